"""Somebody who waits for a queue, and is not to be woken by a poll."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from thread_gates import HANG, plain, until
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    connect,
)
from without_durability_sqlite.watching import Watch

NOW, HOUR, MINUTE = timedelta(0), timedelta(hours=1), timedelta(minutes=1)
A_MOMENT, SOON = timedelta(milliseconds=1), timedelta(milliseconds=50)
LONG = timedelta(seconds=2 * HANG)

# A poll of an hour: whoever is woken has been told, or has known when to look.
Waits = Callable[[SqliteDurable], Awaitable[Any]]


async def by_next_ready(durable: SqliteDurable) -> str | None:
    delivery = await durable.scheduler.next_ready(LONG)
    return None if delivery is None else delivery.workflow


async def by_start_passes(durable: SqliteDurable) -> str | None:
    for one in await durable.start_passes(1, LONG, MINUTE):
        return one.delivery.workflow
    return None


each_way = pytest.mark.parametrize("waits", [by_next_ready, by_start_passes])


def durable_over(
    database: Database, queue: str = "workflow", poll: timedelta = HOUR, **options: Any
) -> SqliteDurable:
    scheduler = SqliteScheduler(database, queue, poll=poll, **options)
    return SqliteDurable(SqliteCheckpointer(database), scheduler)


def a_file(path: Path) -> Database:
    return connect(path)


def in_memory(path: Path) -> Database:
    return connect(":memory:")


def rollback_journal(path: Path) -> Database:
    return Database(plain(path))


def watch_of(database: Database) -> Watch:
    return database._watch


def waiters(database: Database) -> int:
    return len(watch_of(database)._waiters)


@asynccontextmanager
async def idle(database: Database, waiting: Awaitable[Any]) -> AsyncIterator[asyncio.Future[Any]]:
    """Somebody who has looked, found nothing and waits; whoever still does is cancelled."""
    before = waiters(database)
    task = asyncio.ensure_future(waiting)
    await until(lambda: waiters(database) > before or task.done())
    await SqliteCheckpointer(database).load("nothing")  # it has looked
    assert not task.done()
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait((task,))
