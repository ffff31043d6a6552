"""Several processes on one file: who gets to write, and what idle neighbours cost."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Awaitable
from pathlib import Path

from figures import Figure, Repeat, Sample, at_least, at_most, noted
from ours import opened, passes, rate
from raw import Raw, beside, made, plain
from starting import Child, all_ready, all_started, asked

from without_durability_sqlite import SqliteDurable


async def measure_fair(folder: Path) -> list[Repeat]:
    path = folder / "ours.db"
    holder = await made(folder / "raw.db")
    await made(path)
    with plain(folder / "raw.db") as connection, all_started("recording", [path] * 4) as children:
        await all_ready(children)
        return [await shared(children, Raw(connection, holder)) for _ in range(5)]


async def shared(children: list[Child], raw: Raw) -> Repeat:
    """Two seconds of every process recording one after another."""
    answers: list[dict[str, float]] = []

    async def recorded() -> float:
        answers.extend(await asked(children, 2))
        return sum(answer["rate"] for answer in answers)

    together = await beside(recorded, raw, raw.record)
    rates = [answer["rate"] for answer in answers]
    return {
        "worst wait": Sample(1000 * max(answer["worst"] for answer in answers)),
        "slowest / fastest": Sample(min(rates), max(rates)),
        "all together": together,
    }


async def measure_beside_idle(folder: Path) -> list[Repeat]:
    path = folder / "ours.db"
    async with opened(path) as durable:
        with all_started("idling", [path] * 10) as neighbours:
            await all_ready(neighbours)
            await asyncio.sleep(1)
            return await alternated(durable, neighbours)


async def alternated(durable: SqliteDurable, neighbours: list[Child]) -> list[Repeat]:
    """Our rate beside the neighbours, with the rate while they are frozen before it and after it.

    Every stretch is as long as the others and begins as they do: a disk is faster after a pause.
    """
    (holder,) = await passes(durable, 1)
    numbers = itertools.count()

    def record(number: int) -> Awaitable[object]:
        return durable.checkpointer.record(holder, f"step {next(numbers)}", "done")

    async def recorded(sent: signal.Signals) -> float:
        for neighbour in neighbours:
            neighbour.process.send_signal(sent)
        await asyncio.sleep(0.02)
        return await rate(record, 1, seconds=0.3)

    order = (signal.SIGSTOP, signal.SIGCONT, signal.SIGCONT, signal.SIGSTOP)
    repeats = []
    for _ in range(25):
        before, beside, still_beside, after = [await recorded(sent) for sent in order]
        repeats.append({"rate": Sample((beside + still_beside) / 2, (before + after) / 2)})
    return repeats


FIGURES = (
    Figure(
        "fair",
        "4 processes recording on one file",
        (
            at_most("worst wait", "ms", 60, 10),
            at_least("slowest / fastest", "/s", 0.8, 0.95),
            noted("all together", "/s", is_ratio=True),
        ),
        measure_fair,
    ),
    Figure(
        "beside-idle",
        "record beside 10 idle workers of other processes",
        (at_least("rate", "/s", 0.98, 1),),
        measure_beside_idle,
    ),
)
