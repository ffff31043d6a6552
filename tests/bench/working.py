"""A worker end to end: how fast it goes through a full queue, and what that costs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from figures import Figure, Repeat, Sample, at_least, at_most
from ours import opened, working
from raw import Raw, beside, made, plain

from without_durability import Run
from without_durability_sqlite import SqliteDurable, SqliteEffect

REPEATS = 5
WORKFLOWS = 1000
STEPS = 5


async def measure(folder: Path) -> list[Repeat]:
    holder = await made(folder / "raw.db")
    with plain(folder / "raw.db") as connection:
        raw = Raw(connection, holder)
        return [await drained(folder / f"{number}.db", raw) for number in range(REPEATS)]


async def drained(path: Path, raw: Raw) -> Repeat:
    """A queue of workflows, and a worker that goes through it."""
    async with opened(path) as durable:
        await filled(durable)
        cpu = 0.0

        async def drain() -> float:
            nonlocal cpu
            began, cpu_before = time.perf_counter(), time.process_time()
            await emptied(durable)
            cpu = time.process_time() - cpu_before
            return WORKFLOWS * STEPS / (time.perf_counter() - began)

        steps = await beside(drain, raw, raw.record)
        return {"steps": steps, "CPU a workflow": Sample(1000 * cpu / WORKFLOWS)}


async def filled(durable: SqliteDurable) -> None:
    lanes = 200

    async def arriving(lane: int) -> None:
        for number in range(lane, WORKFLOWS, lanes):
            await durable.arrive(f"workflow {number}", "order", {"number": number})

    async with asyncio.TaskGroup() as group:
        for lane in range(lanes):
            group.create_task(arriving(lane))


async def emptied(durable: SqliteDurable) -> None:
    """Return when every workflow has completed and is answered for."""
    left = WORKFLOWS
    all_completed = asyncio.Event()

    async def body(run: Run[SqliteEffect]) -> None:
        nonlocal left
        for number in range(STEPS):
            await run.step(f"step {number}", effect, str)
        left -= 1
        if left == 0:
            all_completed.set()

    async with working(durable, body):
        await all_completed.wait()


async def effect() -> str:
    return "done"


FIGURES = (
    Figure(
        "worker",
        f"worker, {WORKFLOWS:,} workflows of {STEPS} steps, 20 at once",
        (at_least("steps", "/s", 1.2, 2.2), at_most("CPU a workflow", "ms", 0.7, 0.35)),
        measure,
    ),
)
