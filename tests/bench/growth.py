"""Whether calls stay as fast beside a long queue and a full inbox."""

from __future__ import annotations

import itertools
import os
import sqlite3
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from figures import Figure, Repeat, Sample, flat
from ours import opened

from without_durability_sqlite import SCHEMA, SqliteDurable

T = TypeVar("T")

QUEUED, FILED = 1_000_000, 100_000

# Half of them were made ready in the past, half of them sleep.
FILL_QUEUE = """
WITH RECURSIVE numbered (number) AS (
    SELECT 0 UNION ALL SELECT number + 1 FROM numbered WHERE number + 1 < :count)
INSERT INTO workflow_queue (namespace, workflow, visible_at, taken_for)
SELECT 'workflow', printf('queued %07d', number),
       CASE WHEN number < :count / 2 THEN :now - 86400 ELSE :now + 86400 END + number * 0.001,
       CASE WHEN number < :count / 2 THEN 0 END
FROM numbered"""

FILL_INBOX = """
WITH RECURSIVE numbered (number) AS (
    SELECT 0 UNION ALL SELECT number + 1 FROM numbered WHERE number + 1 < :count)
INSERT INTO workflow_checkpoint (workflow, step, value, written_at)
SELECT 'listening', printf('inbox:%020d', number), '"hello"', :now - 86400 FROM numbered"""


async def measure(folder: Path) -> list[Repeat]:
    fill(folder / "full.db")
    async with opened(folder / "full.db") as full, opened(folder / "empty.db") as empty:
        numbers = itertools.count()
        await alternated(full, empty, numbers)  # the first ones find cold pages
        return [await alternated(full, empty, numbers) for _ in range(5)]


def fill(path: Path) -> None:
    """A new file, fast, and on the disk before anything is measured."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.executescript(SCHEMA)
        connection.execute("BEGIN")
        connection.execute(FILL_QUEUE, {"count": QUEUED, "now": time.time()})
        connection.execute(FILL_INBOX, {"count": FILED, "now": time.time()})
        connection.execute("COMMIT")
    with path.open("rb+") as file:
        os.fsync(file.fileno())


async def alternated(
    full: SqliteDurable, empty: SqliteDurable, numbers: itertools.count[int]
) -> Repeat:
    beside_full, beside_empty = Timed(full), Timed(empty)
    for _ in range(100):
        number = next(numbers)
        await beside_full.one_of_each(number)
        await beside_empty.one_of_each(number)
    empty_medians = beside_empty.medians()
    return {
        call: Sample(median, empty_medians[call]) for call, median in beside_full.medians().items()
    }


class Timed:
    """Calls on one store, and the milliseconds that each of them took."""

    def __init__(self, durable: SqliteDurable) -> None:
        self._durable = durable
        self._taken: defaultdict[str, list[float]] = defaultdict(list)

    async def one_of_each(self, number: int) -> None:
        scheduler, checkpointer = self._durable.scheduler, self._durable.checkpointer
        await self._timed("arrive", self._durable.arrive(f"new {number}", "order", "tea"))
        delivery = await self._timed("next_ready", scheduler.next_ready(timedelta(0)))
        assert delivery is not None
        await self._timed("done", scheduler.done(delivery))
        await self._timed("append", checkpointer.append("listening", "hello"))

    def medians(self) -> dict[str, float]:
        return {call: statistics.median(taken) for call, taken in self._taken.items()}

    async def _timed(self, call: str, awaited: Awaitable[T]) -> T:
        began = time.perf_counter()
        answer = await awaited
        self._taken[call].append(1000 * (time.perf_counter() - began))
        return answer


FIGURES = (
    Figure(
        "growth",
        f"beside {QUEUED:,} queued and {FILED:,} inbox entries",
        (flat("next_ready"), flat("arrive"), flat("done"), flat("append")),
        measure,
    ),
)
