"""Wakeups: how soon a worker begins what arrived, and what it costs to wait for it."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

from figures import Figure, Repeat, Sample, Target, at_most, latencies, noted
from ours import opened, working
from starting import all_ready, all_started, asked, started

from without_durability import Run
from without_durability_sqlite import SqliteDurable, SqliteEffect

SETTLING = 0.5
"""Seconds that a worker gets until it has nothing left to do but to wait."""


class Begun:
    """When the body of each workflow began, and when all that were waited for have."""

    def __init__(self, count: int) -> None:
        self.moments: dict[str, float] = {}
        self.all = asyncio.Event()
        self._count = count

    async def body(self, run: Run[SqliteEffect]) -> None:
        self.moments.setdefault(run.workflow, time.monotonic())
        if len(self.moments) == self._count:
            self.all.set()

    def latencies(self, arrived: dict[str, float]) -> Repeat:
        return latencies(
            [1000 * (self.moments[workflow] - moment) for workflow, moment in arrived.items()]
        )


async def measure_here(folder: Path) -> list[Repeat]:
    repeats = []
    for number in range(3):
        async with opened(folder / f"{number}.db") as durable:
            repeats.append(await begun_here(durable, 300))
    return repeats


async def begun_here(durable: SqliteDurable, count: int) -> Repeat:
    begun = Begun(count)
    arrived = {}
    async with working(durable, begun.body):
        await asyncio.sleep(SETTLING)
        for number in range(count):
            await asyncio.sleep(random.uniform(0.003, 0.015))
            workflow = f"workflow {number}"
            await durable.arrive(workflow, "order", "tea")
            arrived[workflow] = time.monotonic()
        await begun.all.wait()
    return begun.latencies(arrived)


async def measure_elsewhere(folder: Path) -> list[Repeat]:
    """The monotonic clock is one for all processes."""
    path, count = folder / "ours.db", 100
    begun = Begun(count)
    async with opened(path) as durable:
        with started("arriving", path) as child:
            async with working(durable, begun.body):
                await all_ready([child])
                await asyncio.sleep(SETTLING)
                (arrived,) = await asked([child], count)
                await begun.all.wait()
    return [begun.latencies(arrived)]


async def measure_idle(folder: Path) -> list[Repeat]:
    """Three workers, each with a file of its own."""
    with all_started("idling", [folder / f"{number}.db" for number in range(3)]) as children:
        await all_ready(children)
        await asyncio.sleep(1)
        answers = await asked(children, 5)
    return [
        {
            "CPU": Sample(100 * answer["share"]),
            "attempts at the write lock": Sample(answer["attempts"]),
        }
        for answer in answers
    ]


FIGURES = (
    Figure(
        "arrive-here",
        "arrive returns to first line of the body, same process",
        (at_most("p50", "ms", 1.5, 0.7), at_most("p99", "ms", 4, 1.5)),
        measure_here,
    ),
    Figure(
        "arrive-elsewhere",
        "the same, arrived from another process",
        (at_most("p50", "ms", 10, 1), noted("p99", "ms")),
        measure_elsewhere,
    ),
    Figure(
        "idle",
        "idle worker",
        (
            at_most("CPU", "%", 0.5, 0.1),
            Target("attempts at the write lock", "", 0, 0, at_most=True),
        ),
        measure_idle,
    ),
)
