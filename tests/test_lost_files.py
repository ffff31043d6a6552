"""A file that is no longer where it was opened: the next call says so."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gated import listening
from thread_gates import reading, running
from without_durability import Run, work
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    connect,
)

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows lets nobody remove an open file"
)


async def test_a_write_ahead_log_that_was_removed_is_an_error_and_not_a_loss(
    database: Database, path: Path
):
    store = SqliteCheckpointer(database)
    await store.supply("w", "before", 1)
    Path(f"{path}-wal").unlink()
    for call in (store.supply("w", "after", 1), store.load("w")):
        with pytest.raises(sqlite3.OperationalError, match="write-ahead log") as lost:
            await call
        assert lost.value.sqlite_errorname == "SQLITE_READONLY_DBMOVED"


async def test_a_write_ahead_log_that_is_made_by_the_first_use_is_no_loss(path: Path):
    await connect(path).aclose()
    async with connect(path) as database:
        assert await database.run(lambda connection: connection.execute("SELECT 1").fetchall())
        await SqliteScheduler(database).prepare()
        await SqliteCheckpointer(database).supply("w", "k", 1)


async def test_an_idle_worker_notices_that_its_file_is_gone(database: Database, path: Path):
    durable = SqliteDurable(
        SqliteCheckpointer(database), SqliteScheduler(database, poll=timedelta(milliseconds=5))
    )

    async def body(run: Run) -> None: ...

    async with listening():
        looking = await reading(database)
        worker = asyncio.create_task(work(durable, body))
        await running(looking, "EXISTS", worker)
        path.unlink()
        with pytest.raises(sqlite3.OperationalError, match="deleted or replaced"):
            await asyncio.wait_for(worker, 10)


@pytest.mark.parametrize("reading", [float("nan"), float("inf"), 1e12, -1e12])
async def test_a_clock_that_gives_no_moment_is_named(path: Path, reading: float):
    async with connect(path, clock=lambda: reading) as database:
        with pytest.raises(ValueError, match=r"clock.*no moment"):
            await SqliteScheduler(database).prepare()


async def test_a_clock_that_gives_something_else_than_seconds_is_named(path: Path):
    async with connect(path, clock=lambda: datetime.now(UTC)) as database:
        with pytest.raises(TypeError, match="clock must give seconds, not datetime"):
            await SqliteScheduler(database).prepare()
