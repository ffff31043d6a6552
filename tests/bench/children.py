"""What a child process does: `children.py PART FILE`, one answer for each amount it is asked for.

Amounts are lines of the standard input, answers are lines of JSON; the first says that it is
ready. It ends with its input.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import random
import sqlite3
import statistics
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

from ours import opened, passes, working

from without_durability import Run
from without_durability_sqlite import Database, SqliteEffect


async def answering(answer: Callable[[float], Awaitable[dict[str, float]]]) -> None:
    print("{}", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await answer(float(line))), flush=True)


async def recording(path: Path) -> None:
    """Record one after another for so many seconds: how often, and the worst wait."""
    async with opened(path) as durable:
        (holder,) = await passes(durable, 1, f"process {os.getpid()}")
        number = 0

        async def record(seconds: float) -> dict[str, float]:
            nonlocal number
            worst, first = 0.0, number
            began = ended = time.perf_counter()
            while ended < began + seconds:
                called = ended
                await durable.checkpointer.record(holder, f"step {number}", "done")
                number += 1
                ended = time.perf_counter()
                worst = max(worst, ended - called)
            return {"rate": (number - first) / (ended - began), "worst": worst}

        await answering(record)


async def pacing(path: Path) -> None:
    """Record every few milliseconds for so many seconds: the p99 of the waits, in milliseconds."""
    async with opened(path) as durable:
        (holder,) = await passes(durable, 1, f"process {os.getpid()}")
        numbers = itertools.count()

        async def paced(seconds: float) -> dict[str, float]:
            waits: list[float] = []
            until = time.perf_counter() + seconds
            while (called := time.perf_counter()) < until:
                await durable.checkpointer.record(holder, f"step {next(numbers)}", "done")
                waits.append(1000 * (time.perf_counter() - called))
                await asyncio.sleep(random.uniform(0.002, 0.006))
            return {"p99": statistics.quantiles(waits, n=100, method="inclusive")[98]}

        await answering(paced)


async def arriving(path: Path) -> None:
    """So many arrivals 20 to 150 ms apart: the moment each of them was acknowledged."""
    async with opened(path) as durable:

        async def arrive(count: float) -> dict[str, float]:
            moments = {}
            for number in range(int(count)):
                await asyncio.sleep(random.uniform(0.020, 0.150))
                workflow = f"workflow {number}"
                await durable.arrive(workflow, "order", "tea")
                moments[workflow] = time.monotonic()
            return moments

        await answering(arrive)


async def idling(path: Path) -> None:
    """A worker with nothing to do for so many seconds: its CPU, and its attempts at the lock."""
    async with opened(path) as durable:
        attempts = await attempts_counted(durable.checkpointer.database)

        async def idle(seconds: float) -> dict[str, float]:
            began, cpu, before = time.perf_counter(), time.process_time(), len(attempts)
            await asyncio.sleep(seconds)
            cpu = time.process_time() - cpu
            share = cpu / (time.perf_counter() - began)
            return {"share": share, "attempts": len(attempts) - before}

        async with working(durable, nothing):
            await answering(idle)


async def attempts_counted(database: Database) -> list[str]:
    """Gathers every attempt at the write lock from now on."""
    attempts: list[str] = []

    def traced(statement: str) -> None:
        if statement.startswith(("BEGIN IMMEDIATE", "BEGIN EXCLUSIVE")):
            attempts.append(statement)

    def install(connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(traced)

    await database.run(install)
    return attempts


async def nothing(run: Run[SqliteEffect]) -> None:
    pass


async def growing(path: Path) -> None:
    """So many records, 200 at once: the bytes kept after them, Python's and the process's."""
    tracemalloc.start()
    async with opened(path) as durable:
        holders = await passes(durable, 200)

        async def record(lane: int, count: int) -> None:
            for number in range(count):
                await durable.checkpointer.record(holders[lane], f"step {number}", "done")

        async def grow(count: float) -> dict[str, float]:
            before, resident_before = python_bytes(), resident_bytes()
            async with asyncio.TaskGroup() as group:
                for lane in range(len(holders)):
                    group.create_task(record(lane, int(count) // len(holders)))
            del group
            return {
                "python": python_bytes() - before,
                "resident": resident_bytes() - resident_before,
            }

        await answering(grow)


def python_bytes() -> int:
    gc.collect()
    current, _ = tracemalloc.get_traced_memory()
    return current


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


PARTS = {part.__name__: part for part in (recording, pacing, arriving, idling, growing)}

if __name__ == "__main__":
    asyncio.run(PARTS[sys.argv[1]](Path(sys.argv[2])))
