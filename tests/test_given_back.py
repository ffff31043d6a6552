"""What was granted to a caller that never heard of it, where giving it back fails as well."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from without_durability import Clock, Milliseconds
from without_durability_sqlite import SqliteCheckpointer, connect, migrate, opening

MINUTE = timedelta(minutes=1)


class SaysWhen:
    """A clock that stops whoever reads it, under the write lock, until it is opened."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.opened.set()

    def __call__(self) -> float:
        self.reached.set()
        self.opened.wait(10)
        return self.clock.seconds()


async def test_a_claim_that_cannot_be_given_back_is_reported_and_lapses(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SaysWhen()
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    async with connect(path, timeout=Milliseconds(0), clock=clock) as database:
        await migrate(database)
        store = SqliteCheckpointer(database)
        clock.reached.clear()
        clock.opened.clear()
        claiming = asyncio.create_task(store.claim("w", MINUTE, MINUTE))
        await asyncio.to_thread(clock.reached.wait, 10)
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        committed = threading.Event()

        def lock_after(statement: str) -> None:
            """Another process takes the write lock between the commit and the giving back."""
            if statement == "COMMIT":
                committed.set()
            elif statement == "BEGIN IMMEDIATE" and committed.is_set() and not other.in_transaction:
                other.execute("BEGIN IMMEDIATE")

        database.connection.set_trace_callback(lock_after)
        clock.opened.set()
        await database.run(lambda connection: connection.set_trace_callback(None))
        assert "waits to lapse" in caplog.text
        other.execute("ROLLBACK")
        assert await store.claim("w", MINUTE, MINUTE) is None
        clock.clock.advance(MINUTE)
        assert await store.claim("w", MINUTE, MINUTE) is not None
    other.close()


def test_a_connect_that_gets_no_thread_leaves_nothing_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []

    def none_left(connection: sqlite3.Connection) -> Any:
        opened.append(connection)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(opening, "thread_of", none_left)
    with pytest.raises(RuntimeError, match="thread"):
        connect(path)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")


async def test_closing_from_many_tasks_at_once_closes_once(path: Path) -> None:
    database = connect(path)
    await asyncio.gather(*[database.aclose() for _ in range(5)])
    await database.aclose()
