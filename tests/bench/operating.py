"""The ledger with a million workflows: how long a look takes, and what a sweep costs others."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from figures import Figure, Repeat, Sample, Target, flat, noted
from ours import opened
from starting import all_ready, all_started, asked

from without_durability_sqlite import SCHEMA, SqliteDurable

MANY, FEW, SWEPT = 1_000_000, 1_000, 100_000

_NUMBERED = """
WITH RECURSIVE numbered (number) AS (
    SELECT 0 UNION ALL SELECT number + 1 FROM numbered WHERE number + 1 < :count)
"""

# Of a hundred workflows ninety completed, two failed, and eight wait for something.
FILL_LEDGER = f"""{_NUMBERED}
INSERT INTO workflow_run (workflow, namespace, state, detail, created_at, updated_at)
SELECT printf('order %07d', number), CASE WHEN number % 10 = 0 THEN 'mail' ELSE 'workflow' END,
    CASE WHEN number % 100 < 90 THEN 'completed' WHEN number % 100 < 92 THEN 'failed'
         ELSE 'blocked' END,
    '{{"result": "done"}}', :now - 86400 + number * 0.01, :now - 86400 + number * 0.01
FROM numbered"""

FILL_RECORDS = f"""{_NUMBERED}
INSERT INTO workflow_checkpoint (workflow, step, value, written_at)
SELECT printf('order %07d', number), step.value, '"done"', :now - 86400
FROM numbered, json_each('["first", "second", "third"]') AS step"""

FILL_CLAIMS = f"""{_NUMBERED}
INSERT INTO workflow_claim (workflow, token, held_until, alive_until, alive_for)
SELECT printf('order %07d', number), 1, 0, 0, 60 FROM numbered"""

LOOKS: dict[str, Callable[[SqliteDurable], Awaitable[object]]] = {
    "status": lambda durable: durable.status("order 0000500"),
    "counts": lambda durable: durable.counts(),
    "list": lambda durable: durable.list(),
    "list of a state": lambda durable: durable.list(state="failed", limit=10),
    "list of a queue": lambda durable: durable.list(namespace="mail"),
    "list by prefix": lambda durable: durable.list(prefix="order 00005"),
}


async def measure_listing(folder: Path) -> list[Repeat]:
    fill(folder / "many.db", MANY)
    fill(folder / "few.db", FEW)
    async with opened(folder / "many.db") as many, opened(folder / "few.db") as few:
        await alternated(many, few)  # the first ones find cold pages
        return [await alternated(many, few) for _ in range(5)]


async def alternated(many: SqliteDurable, few: SqliteDurable) -> Repeat:
    taken: defaultdict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for _ in range(40):
        for name, look in LOOKS.items():
            for durable, times in zip((many, few), taken[name], strict=True):
                began = time.perf_counter()
                await look(durable)
                times.append(1000 * (time.perf_counter() - began))
    return {name: Sample(*map(statistics.median, times)) for name, times in taken.items()}


async def measure_sweeping(folder: Path) -> list[Repeat]:
    path = folder / "swept.db"
    fill(path, SWEPT * 10 // 9, FILL_LEDGER, FILL_RECORDS, FILL_CLAIMS)
    repeats: list[Repeat] = []
    async with opened(path) as durable:
        with all_started("pacing", [path] * 4) as writers:
            await all_ready(writers)
            await asked(writers, 1)
            alone = p99(await asked(writers, 3))
            began, count = time.perf_counter(), 0
            sweeping = asyncio.create_task(swept(durable))
            while not sweeping.done():
                beside = p99(await asked(writers, 3))
                if not sweeping.done():
                    repeats.append({"p99 of others": Sample(beside, alone)})
            count = await sweeping
            took = time.perf_counter() - began
    assert count >= SWEPT, count
    return [repeat | {"rate": Sample(count / took)} for repeat in repeats]


async def swept(durable: SqliteDurable) -> int:
    count = 0
    while gone := await durable.sweep(older=timedelta(hours=1)):
        count += gone
    return count


def p99(answers: list[dict[str, float]]) -> float:
    return statistics.mean(answer["p99"] for answer in answers)


def fill(path: Path, count: int, *statements: str) -> None:
    """A new file, fast, and on the disk before anything is measured."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.executescript(SCHEMA)
        connection.execute("BEGIN")
        for statement in statements or (FILL_LEDGER,):
            connection.execute(statement, {"count": count, "now": time.time() - 86400})
        connection.execute("COMMIT")
    with path.open("rb+") as file:
        os.fsync(file.fileno())


FIGURES = (
    Figure(
        "listing",
        f"the ledger with {MANY:,} workflows, beside one with {FEW:,}",
        tuple(map(flat, LOOKS)),
        measure_listing,
        limit=180,
    ),
    Figure(
        "sweeping",
        f"recording in 4 other processes beside a sweep of {SWEPT:,} workflows",
        (
            Target("p99 of others", "ms", 2, 1.5, at_most=True, is_ratio=True),
            noted("rate", "/s"),
        ),
        measure_sweeping,
        limit=180,
    ),
)
