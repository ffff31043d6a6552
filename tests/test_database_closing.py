"""Closing a `Database`, and dropping one."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import suppress

import pytest

from contract import cancelled
from thread_gates import (
    CALLS,
    HANG,
    THREAD,
    Stop,
    fail,
    in_time,
    occupied,
    reading,
    stays_outside,
    until,
)
from without_durability_sqlite import SqliteCheckpointer, connect, migrate


async def test_closing_twice_is_fine(guarded):
    await in_time(guarded.aclose())
    await in_time(guarded.aclose())


async def test_closing_concurrently_is_fine(guarded):
    await in_time(asyncio.gather(*(guarded.aclose() for _ in range(5))))


async def test_closing_waits_until_nobody_is_inside(guarded):
    gate, task = await occupied(guarded)
    close = asyncio.create_task(guarded.aclose())
    await stays_outside(close)
    gate.opened.set()
    await in_time(close)
    assert await in_time(task) == "done"


async def test_a_close_cancelled_while_it_waits_leaves_the_database_open(guarded):
    gate, task = await occupied(guarded)
    close = asyncio.create_task(guarded.aclose())
    await stays_outside(close)
    await cancelled(close)
    gate.opened.set()
    await in_time(task)
    assert await in_time(SqliteCheckpointer(guarded).supply("w", "k", 1)) == 1


async def test_a_close_that_waits_long_says_so(guarded, caplog, monkeypatch):
    monkeypatch.setattr("without_durability_sqlite.database.PATIENCE", 0.01)
    gate, task = await occupied(guarded)
    close = asyncio.create_task(guarded.aclose())
    with caplog.at_level(logging.WARNING, THREAD):
        await until(lambda: "aclose waits" in caplog.text)
    gate.opened.set()
    await in_time(asyncio.gather(task, close))


@pytest.mark.parametrize("ends", [lambda: None, fail(LookupError())], ids=["returns", "raises"])
async def test_async_with_closes_on_the_way_out(path, ends):
    with suppress(LookupError):
        async with connect(path) as database:
            ends()
    with pytest.raises(sqlite3.ProgrammingError):
        database.connection.execute("SELECT 1")
    database._thread._thread.join(HANG)
    assert not database._thread._thread.is_alive()


@pytest.mark.parametrize("call", [name for name in CALLS if name != "aclose"])
async def test_use_after_closing_is_a_programming_error(path, call):
    async with connect(path) as database:
        await migrate(database)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        await in_time(CALLS[call](database))


@pytest.mark.parametrize("call", ["run", "supply"])
async def test_what_waits_behind_a_close_is_a_programming_error_too(guarded, call):
    gate, task = await occupied(guarded)
    close = asyncio.create_task(guarded.aclose())
    await stays_outside(close)
    behind = asyncio.create_task(CALLS[call](guarded))
    await stays_outside(behind)
    gate.opened.set()
    await in_time(asyncio.gather(task, close))
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        await in_time(behind)


async def test_closing_waits_for_a_read_and_the_next_one_is_a_programming_error(guarded):
    stop = Stop(1, await reading(guarded))
    inside = asyncio.create_task(SqliteCheckpointer(guarded).load("w"))
    await until(stop.reached.is_set)
    close = asyncio.create_task(guarded.aclose())
    await stays_outside(close)
    behind = asyncio.create_task(CALLS["load"](guarded))
    await stays_outside(close)
    stop.opened.set()
    await in_time(close)
    assert await in_time(inside) == {}
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        await in_time(behind)
