"""Durables whose calls are noted, and workers over them."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from datetime import timedelta
from typing import Any

from gated import working
from stores import Stores, over_sqlite
from thread_gates import in_time, until
from without_durability import BUDGET, Clock, Run
from without_durability_sqlite import (
    Database,
)

NOW, HOUR = timedelta(0), timedelta(hours=1)
CONTENDED = timedelta(seconds=7)
FILL = """
WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < :count)
INSERT INTO workflow_checkpoint (workflow, step, value, written_at)
SELECT :workflow, printf('%05d', n), n, 1 FROM n"""


async def over_a_file(database: Database, clock: Clock) -> Stores:
    return over_sqlite(database, clock)


class Spied:
    """A store that notes the name of each call of its once that has come to an end."""

    def __init__(self, store: Any, calls: list[str], *, without: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self._store, self._calls, self._without = store, calls, without
        self.limits: list[int] = []

    def __getattr__(self, name: str) -> Any:
        if name in self._without:
            raise AttributeError(name)
        found = getattr(self._store, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def noted(*arguments: Any, **named: Any) -> Any:
            if name == "start_passes":
                self.limits.append(arguments[0])
            result = await found(*arguments, **named)
            if result or name not in ("start_passes", "next_ready", "reclaim"):
                self._calls.append(name)
            return result

        return noted


class SpiedDurable(Spied):
    """A durable of whose calls, and those of its stores, the names are noted."""

    def __init__(self, durable: Any, *, without: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self.calls: list[str] = []
        super().__init__(durable, self.calls, without=without)
        self.checkpointer = Spied(durable.checkpointer, self.calls)
        self.scheduler = Spied(durable.scheduler, self.calls)

    async def answers(self, count: int = 1) -> None:
        """Wait until so many deliveries are answered for."""
        answered = ("end_pass", "done", "wake_at")
        await until(lambda: sum(self.calls.count(name) for name in answered) >= count)


def at_one_go(stores: Stores) -> Any:
    return stores.durable


def left(stores: Stores) -> dict[str, list[Any]]:
    """All that the file holds, nonces and what follows the wall clock apart."""

    def look(connection: sqlite3.Connection) -> dict[str, list[Any]]:
        return {
            "records": connection.execute(
                "SELECT workflow, step, value FROM workflow_checkpoint ORDER BY seq"
            ).fetchall(),
            "claims": connection.execute("SELECT * FROM workflow_claim ORDER BY 1").fetchall(),
            "queue": connection.execute(
                "SELECT namespace, workflow, visible_at, taken IS NULL, taken_for "
                "FROM workflow_queue ORDER BY 1, 2"
            ).fetchall(),
        }

    return look(stores.checkpointer.database.connection)


async def ready(stores: Stores, *workflows: str) -> None:
    for workflow in workflows:
        await stores.scheduler.make_ready(workflow)


async def start(stores: Stores, limit: int = 10) -> dict[str, Any]:
    """What is started now, by workflow."""
    started = await in_time(stores.durable.start_passes(limit, NOW, BUDGET))
    return {one.delivery.workflow: one for one in started}


def doing(stores: Stores, body: Any, durable: Any, **options: Any) -> Any:
    options = {"now": stores.clock.now, "within": timedelta(milliseconds=5)} | options
    return working(durable, body, contended=CONTENDED, **options)


async def value() -> int:
    return 1


async def completing(run: Run[Any]) -> object:
    return await run.step("a", value, int)


async def transacting(run: Run[Any]) -> object:
    return await run.transact("a", lambda cursor: 1, int)


class Crowd:
    """A body that stays inside until it is let go, and who is inside."""

    def __init__(self) -> None:
        self.inside: set[str] = set()
        self.most = 0
        self._leave: dict[str, asyncio.Event] = {}

    async def __call__(self, run: Run[Any]) -> object:
        self.inside.add(run.workflow)
        self.most = max(self.most, len(self.inside))
        self._leave[run.workflow] = asyncio.Event()
        await self._leave[run.workflow].wait()
        self.inside.discard(run.workflow)
        return None

    def let_go(self, *workflows: str) -> None:
        for workflow in workflows:
            self._leave[workflow].set()

    async def holds(self, count: int) -> None:
        await until(lambda: len(self.inside) == count)
