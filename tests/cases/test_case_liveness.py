"""K18 and K19: work that outlives its lease or its budget, or blocks the loop it runs on."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gated import HANG, Overlay, Watched, forever, listening, working
from without_durability import Clock, MemoryCheckpointer, MemoryScheduler, Run, SplitDurable
from without_durability_sqlite import SqliteCheckpointer, SqliteScheduler, connect, migrate

MIN = timedelta(minutes=1)
LEASE = timedelta(milliseconds=90)
BUDGET = timedelta(milliseconds=150)


def as_is(value: object) -> object:
    return value


class Running:
    """The real time, which can be moved on so that no test waits out a pause."""

    def __init__(self) -> None:
        self._ahead = timedelta(0)

    def now(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    def seconds(self) -> float:
        return self.now().timestamp()

    def advance(self, length: timedelta) -> None:
        self._ahead += length


@pytest.fixture
def running() -> Running:
    return Running()


@pytest.fixture(params=["memory", "sqlite"])
async def short_leased(
    request: pytest.FixtureRequest, path: Path, running: Running
) -> AsyncIterator[SplitDurable[Any]]:
    """Each store under the running clock, its answers watched."""
    if request.param == "memory":
        queue = MemoryScheduler(lease=LEASE, clock=running.seconds)
        records = MemoryCheckpointer(clock=running.seconds, now=running.now)
        yield SplitDurable(records, Watched(queue))
        return
    async with connect(path, clock=running.seconds) as database:
        await migrate(database)
        scheduler = SqliteScheduler(database, lease=LEASE, poll=LEASE / 20)
        yield SplitDurable(SqliteCheckpointer(database), Watched(scheduler))


async def test_k18_a_step_longer_than_its_budget_is_started_again_after_growing_pauses_only(
    short_leased: SplitDurable[Any], running: Running
) -> None:
    starts: list[int] = []

    async def slow() -> None:
        starts.append(len(starts))
        await forever()

    async def body(run: Run[Any]) -> None:
        await run.step("slow", slow, as_is)

    watched: Any = short_leased.scheduler
    await watched.make_ready("w")
    options: dict[str, Any] = {"budget": BUDGET, "limit": 1, "now": running.now}
    async with listening() as heard, working(short_leased, body, **options):
        for attempt in (1, 2, 3):
            _, when = await watched.answers.get()
            pause = when - running.now()
            expected = timedelta(seconds=2 ** (attempt - 1))
            assert 0.4 * expected < pause < 1.3 * expected, f"attempt {attempt}: {pause}"
            message = await heard.until("'w'", str(BUDGET), f"attempt {attempt})")
            ran = re.search(r"ran for (\d+\.\d+) s", message)
            assert ran is not None, "the warning does not say how long it ran"
            assert BUDGET.total_seconds() <= float(ran[1]) < 2
            assert len(starts) == attempt, "the effect was started again before its pause"
            running.advance(pause)


async def test_k18_k19_an_effect_that_outlives_lease_and_budget_in_its_transaction_runs_once(
    path: Path, clock: Clock
) -> None:
    """The loop goes on meanwhile, and a worker of another process takes over."""
    inside, leave, waiting = threading.Event(), threading.Event(), threading.Event()
    taken_over = asyncio.Event()
    effects: list[object] = []

    def effect(cursor: sqlite3.Cursor) -> str:
        effects.append(cursor)
        inside.set()
        assert leave.wait(HANG)
        return "done"

    async def body(run: Run[Any]) -> object:
        return await run.transact("k", effect, as_is)

    def late(answer: Any) -> Any:
        async def call(*arguments: Any) -> None:
            await taken_over.wait()
            await answer(*arguments)

        return call

    async with (
        connect(path, clock=clock.seconds) as ours,
        connect(path, clock=clock.seconds) as theirs,
    ):
        await migrate(ours)
        queue, watched = SqliteScheduler(ours), Watched(SqliteScheduler(theirs))
        slow = SplitDurable(
            SqliteCheckpointer(ours),
            Overlay(queue, done=late(queue.done), wake_at=late(queue.wake_at)),
        )
        await queue.make_ready("w")
        async with working(slow, body, limit=1, budget=MIN, now=clock.now):
            assert await asyncio.to_thread(inside.wait, HANG)
            theirs.connection.set_trace_callback(
                lambda sql: waiting.set() if sql == "BEGIN IMMEDIATE" else None
            )
            other = SplitDurable(SqliteCheckpointer(theirs), watched)
            try:
                async with working(other, body, budget=MIN, now=clock.now):
                    clock.advance(5 * MIN)
                    assert await asyncio.to_thread(waiting.wait, HANG), "nobody took over"
                    leave.set()
                    while (await watched.answers.get())[1] is not None:
                        clock.advance(MIN)
            finally:
                leave.set()
                taken_over.set()
        assert await slow.checkpointer.load("w") == {"k": "done"}
        assert len(effects) == 1, "the effect of a transaction ran twice"
        assert await queue.next_ready(timedelta(0)) is None


def test_k19_a_step_that_blocks_its_loop_is_reported_and_the_other_worker_goes_on(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two workers, two loops, one file: the first blocks until the second has taken over."""
    blocking, taken_over, answered = threading.Event(), threading.Event(), threading.Event()
    effects: list[str] = []
    answers: dict[str, object] = {}

    async def worker(name: str) -> None:
        async def effect() -> str:
            effects.append(name)
            if name == "first":
                blocking.set()
                taken_over.wait(HANG)
            taken_over.set()
            return name

        async def body(run: Run[Any]) -> None:
            await run.step("mail", effect, as_is)

        async with connect(path) as database:
            scheduler = Watched(SqliteScheduler(database, lease=LEASE, poll=LEASE / 20))
            durable = SplitDurable(SqliteCheckpointer(database), scheduler)
            await scheduler.prepare()
            if name == "first":
                await scheduler.make_ready("w")
            async with working(durable, body, limit=1, contended=LEASE / 4) as task:
                _, answers[name] = await scheduler.answers.get()
                while name == "second" and answers[name] is not None:
                    _, answers[name] = await scheduler.answers.get()
                if name == "second":
                    answered.set()
                await asyncio.to_thread(answered.wait, HANG)
                assert not task.done(), "the worker ended"
            if name == "second":
                kept = await durable.checkpointer.load("w")
                answers["kept"] = kept

    first = threading.Thread(target=asyncio.run, args=(worker("first"),))
    first.start()
    assert blocking.wait(HANG)
    asyncio.run(worker("second"))
    first.join(HANG)
    assert effects == ["first", "second"]
    assert answers["second"] is None
    assert answers["kept"] == {"mail": "second"}, "a worker taken for dead wrote all the same"
    told = [one.getMessage() for one in caplog.records if "blocked" in one.getMessage()]
    assert told, "a block that made a side effect happen twice was not reported"
    assert all("'w'" in one for one in told)
    lengths = [float(length) for one in told for length in re.findall(r"(\d+\.\d+) s", one)]
    assert LEASE.total_seconds() / 2 < max(lengths) < HANG
