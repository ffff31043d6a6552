"""The library as the figures use it: opened, claimed, called again and again, at work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from without_durability import Pass, Run, claimed, work
from without_durability_sqlite import (
    SqliteCheckpointer,
    SqliteDurable,
    SqliteEffect,
    SqliteScheduler,
    connect,
    migrate,
)


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteDurable]:
    async with connect(path) as database:
        await migrate(database)
        yield SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database))


async def passes(durable: SqliteDurable, count: int, prefix: str = "workflow") -> list[Pass]:
    """As many claimed workflows."""
    return [await claimed(durable.checkpointer, f"{prefix} {number}") for number in range(count)]


async def rate(
    call: Callable[[int], Awaitable[object]], at_once: int, seconds: float = 0.4
) -> float:
    """Calls a second by so many tasks, each calling one after another with its own number."""

    async def calling(number: int) -> int:
        count = 0
        while time.perf_counter() < until:
            await call(number)
            count += 1
        return count

    began = time.perf_counter()
    until = began + seconds
    counts = await asyncio.gather(*map(calling, range(at_once)))
    return sum(counts) / (time.perf_counter() - began)


@asynccontextmanager
async def working(
    durable: SqliteDurable, body: Callable[[Run[SqliteEffect]], Awaitable[object]]
) -> AsyncIterator[None]:
    """A worker beside the block; it has finished its passes and stopped when the block is left."""
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(work(durable, body, limit=20, stopping=stopping))
        try:
            yield
        finally:
            stopping.set()
