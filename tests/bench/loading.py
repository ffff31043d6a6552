"""Reads: `load` beside writers, and what a long one does to the event loop."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable
from pathlib import Path

from figures import Figure, Repeat, Sample, at_most, latencies
from ours import opened, passes, rate
from raw import made, plain

from without_durability import Pass
from without_durability_sqlite import SqliteDurable

FILL = """
INSERT INTO workflow_checkpoint (workflow, step, value, written_at)
VALUES ('long', :key, :value, 1700000000.0)"""


async def measure_beside(folder: Path) -> list[Repeat]:
    async with opened(folder / "ours.db") as durable:
        for number in range(100):
            await durable.checkpointer.supply("loaded", f"step {number}", {"number": number})
        holders = await passes(durable, 20)
        numbers = itertools.count()
        return [await loaded_beside(durable, holders, numbers) for _ in range(3)]


async def loaded_beside(
    durable: SqliteDurable, holders: list[Pass], numbers: itertools.count[int]
) -> Repeat:
    """Loads, 3 ms apart, for as long as every pass records."""

    def record(number: int) -> Awaitable[object]:
        return durable.checkpointer.record(holders[number], f"step {next(numbers)}", "done")

    milliseconds = []
    async with asyncio.TaskGroup() as group:
        writers = group.create_task(rate(record, len(holders), seconds=2))
        while not writers.done():
            await asyncio.sleep(0.003)
            began = time.perf_counter()
            assert len(await durable.checkpointer.load("loaded")) == 100
            milliseconds.append(1000 * (time.perf_counter() - began))
    return latencies(milliseconds)


async def measure_stall(folder: Path) -> list[Repeat]:
    path, count = folder / "ours.db", 100_000
    await made(path)
    with plain(path) as connection:
        connection.execute("BEGIN")
        values = ({"paid": number, "by": "Ada"} for number in range(count))
        connection.executemany(
            FILL,
            (
                {"key": f"step {number}", "value": json.dumps(value)}
                for number, value in enumerate(values)
            ),
        )
        connection.execute("COMMIT")
    async with opened(path) as durable:
        return [{"stall": Sample(await stalled_by_load(durable, count))} for _ in range(5)]


async def stalled_by_load(durable: SqliteDurable, count: int) -> float:
    """The longest that a task's sleep of a millisecond lasted beyond it, in milliseconds."""
    longest = 0.0
    loading = asyncio.create_task(durable.checkpointer.load("long"))
    while not loading.done():
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        longest = max(longest, time.perf_counter() - began - 0.001)
    assert len(await loading) == count
    return 1000 * longest


FIGURES = (
    Figure(
        "load-beside",
        "load of 100 steps while 20 passes record",
        (at_most("p50", "ms", 1.5, 0.7), at_most("p99", "ms", 3, 1.4)),
        measure_beside,
    ),
    Figure(
        "stall",
        "event loop while loading 100,000 steps",
        (at_most("stall", "ms", 25, 20),),
        measure_stall,
    ),
)
