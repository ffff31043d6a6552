"""Ledgers at work, of each kind, as the tests of a worker look at them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gated import working
from stores import over_sqlite
from thread_gates import in_time
from without_durability import (
    LEASE,
    Blocked,
    Clock,
    Completed,
    Delivery,
    Ended,
    Failure,
    MemoryCheckpointer,
    MemoryDurable,
    MemoryScheduler,
    Outcome,
    Pass,
    Run,
    Started,
    State,
    Status,
)
from without_durability.ledger import ended
from without_durability_sqlite import SqliteDurable, connect

NOW, HOUR = timedelta(0), timedelta(hours=1)
DAY = 24 * HOUR
SECRET = "card 4111 1111"
DONE = Completed("done")
AT_REST = Blocked(frozenset("k"), frozenset())
FAILURE = Failure("KeyError", "no such thing")

KINDS = ("memory", "sqlite", "sqlite, one by one")


class Noted:
    """A durable whose passes' ends are put into `ends`, and of which some methods are hidden."""

    def __init__(self, durable: Any, *hidden: str) -> None:
        self._durable, self._hidden = durable, hidden
        self.ends: asyncio.Queue[tuple[str, Ended]] = asyncio.Queue()

    def __getattr__(self, name: str) -> Any:
        if name in self._hidden:
            raise AttributeError(name)
        return getattr(self._durable, name)

    async def end_pass(self, holder: Pass, delivery: Delivery, ended: Ended) -> State | None:
        stands: State | None = await self._durable.end_pass(holder, delivery, ended)
        self.ends.put_nowait((holder.workflow, ended))
        return stands


class Kept:
    """A durable that keeps a ledger, the clock that all of it reads, and the ends of its passes."""

    def __init__(self, durable: Any, clock: Clock, *hidden: str) -> None:
        self.durable, self.clock = durable, clock
        self.noted = Noted(durable, *hidden)

    def working(
        self, body: Any, durable: Any = None, **options: Any
    ) -> AbstractAsyncContextManager[asyncio.Task[None]]:
        millisecond = timedelta(milliseconds=1)
        options = {"now": self.clock.now, "within": 5 * millisecond, "tick": millisecond} | options
        return working(durable or self.noted, body, **options)

    async def end(self, workflow: str = "w") -> Ended:
        """How the next pass ended, which is that workflow's."""
        which, ended = await in_time(self.noted.ends.get())
        assert which == workflow
        return ended

    async def pause(self, workflow: str = "w") -> timedelta:
        """How long the next pass to end makes its workflow rest."""
        due = (await self.end(workflow)).due
        assert due is not None
        return due - self.clock.now()

    async def status(self, workflow: str = "w") -> Status:
        status = await self.durable.status(workflow)
        assert isinstance(status, Status)
        return status

    async def delivered(self, workflow: str | None = None, within: timedelta = DAY) -> str | None:
        """What is delivered now or later, if anything is."""
        self.clock.advance(within)
        await self.durable.scheduler.wake_due(self.clock.now())
        delivery = await self.durable.scheduler.next_ready(NOW)
        return None if delivery is None else str(delivery.workflow)


async def each_ledger(
    request: pytest.FixtureRequest, path: Path, migrated: Path, clock: Clock
) -> AsyncIterator[Kept]:
    """Each ledger in turn, and each way in which a worker starts its passes."""
    if request.param == "memory":
        memory = MemoryCheckpointer(clock=clock.seconds, now=clock.now)
        yield Kept(MemoryDurable(memory, MemoryScheduler(clock=clock.seconds)), clock)
        return
    path.write_bytes(migrated.read_bytes())
    hidden = ("start_passes",) if request.param == "sqlite, one by one" else ()
    async with connect(path, clock=clock.seconds) as database:
        yield Kept(over_sqlite(database, clock).durable, clock, *hidden)


async def value() -> str:
    return SECRET


async def charging(run: Run[Any]) -> str:
    return await run.step("charge", value, str)


async def one() -> int:
    return 1


class Failing:
    """A body that fails until it is told not to, after a step; it counts both."""

    def __init__(self) -> None:
        self.runs = self.steps = 0
        self.fails = True

    async def __call__(self, run: Run[Any]) -> str:
        self.runs += 1
        await run.step("kept", self._step, int)
        if self.fails:
            raise LookupError(f"run {self.runs}")
        return "done"

    async def _step(self) -> int:
        self.steps += 1
        return self.steps


async def began(durable: SqliteDurable, workflow: str) -> Started:
    """A pass on a workflow, which is the only one that is ready."""
    await durable.arrive(workflow, "given", workflow)
    (started,) = await durable.start_passes(9, NOW, LEASE)
    assert started.delivery.workflow == workflow
    assert started.holder is not None
    return started


async def came_to(
    durable: SqliteDurable, workflow: str, how: Ended | Outcome[object] = DONE
) -> None:
    started = await began(durable, workflow)
    assert started.holder is not None
    end = how if isinstance(how, Ended) else ended(how)
    await durable.end_pass(started.holder, started.delivery, end)


async def state_of(durable: SqliteDurable, workflow: str) -> State | None:
    status = await durable.status(workflow)
    return None if status is None else status.state


async def listed(durable: SqliteDurable, **filters: Any) -> list[str]:
    """Every page of a list."""
    found: list[str] = []
    page = await durable.list(**filters)
    while page.next is not None:
        found += [one.workflow for one in page.items]
        page = await durable.list(**filters, after=page.next)
    return found + [one.workflow for one in page.items]
