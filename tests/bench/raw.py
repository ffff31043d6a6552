"""The baseline: a plain `sqlite3` loop of the same statements, one transaction per write."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from figures import Sample
from ours import opened

from without_durability import Pass, claimed
from without_durability_sqlite.statements import (
    ARRIVED,
    FENCE,
    LATEST,
    MAKE_READY,
    SIGN_OF_LIFE,
    WRITE,
)

LEDGER = "CREATE TABLE ledger (entry INTEGER PRIMARY KEY, amount INTEGER NOT NULL)"
ENTER = "INSERT INTO ledger (amount) VALUES (1)"
"""The one-row effect of `transact`, and the application's table it writes to."""


class Raw:
    """Its writes are what the library's calls of the same name write."""

    def __init__(self, connection: sqlite3.Connection, holder: Pass) -> None:
        self._connection = connection
        self._holder = holder
        self._numbers = itertools.count()

    def rate(self, write: Callable[[], None], seconds: float = 0.2) -> float:
        """Transactions a second."""
        count = 0
        began = time.perf_counter()
        until = began + seconds
        while time.perf_counter() < until:
            self._connection.execute("BEGIN IMMEDIATE")
            write()
            self._connection.execute("COMMIT")
            count += 1
        return count / (time.perf_counter() - began)

    def record(self) -> None:
        self._sign_of_life()
        self._write(self._holder.workflow)

    def transact(self) -> None:
        asked = {"workflow": self._holder.workflow, "token": self._holder.token, "key": "none"}
        self._connection.execute(FENCE, asked).fetchall()
        self._connection.execute(ENTER)
        self._write(self._holder.workflow)
        self._sign_of_life()

    def arrive(self) -> None:
        workflow = f"arrived {next(self._numbers)}"
        self._write(workflow)
        now = time.time()
        row = {"namespace": "workflow", "workflow": workflow}
        self._connection.execute(ARRIVED, row | {"now": now})
        self._connection.execute(MAKE_READY, row | {"when": now, "ahead": 0})

    def _sign_of_life(self) -> None:
        workflow, token = self._holder.workflow, self._holder.token
        asked = {"workflow": workflow, "token": token, "now": time.time()}
        self._connection.execute(SIGN_OF_LIFE, asked)

    def _write(self, workflow: str) -> None:
        key = f"step {next(self._numbers)}"
        self._connection.execute(LATEST).fetchall()
        asked = {
            "workflow": workflow,
            "key": key,
            "value": '"done"',
            "written_at": time.time(),
            "supplied": False,
        }
        self._connection.execute(WRITE, asked)


@contextmanager
def plain(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection in autocommit mode whose commits reach the disk."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        yield connection
    finally:
        connection.close()


async def made(path: Path) -> Pass:
    """A new file with one claimed workflow, for a plain connection to write to."""
    async with opened(path) as durable:
        await durable.checkpointer.database.run(lambda connection: connection.execute(LEDGER))
        return await claimed(durable.checkpointer, "raw")


async def beside(
    ours: Callable[[], Awaitable[float]], raw: Raw, write: Callable[[], None]
) -> Sample:
    """Our rate, and the raw one taken half before it and half after."""
    before = raw.rate(write)
    rate = await ours()
    return Sample(rate, (before + raw.rate(write)) / 2)
