"""K24: a later event loop is served, a second one at once is refused, and nothing ever hangs."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gated import Watched, completing, turns, working
from thread_gates import CALLS, HANG, Gate, in_time, own_guard, own_guard_only, plain_lock, twenty
from without_durability import MemoryScheduler, SplitDurable, work
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteEffect,
    SqliteScheduler,
    connect,
    migrate,
)


def test_k24_one_database_serves_one_loop_after_another(loopless: Database) -> None:
    for workflow in ("a", "b", "c"):
        assert asyncio.run(twenty(loopless, workflow)) == 20


@own_guard_only
def test_k24_the_scheduler_serves_one_loop_after_another(loopless: Database) -> None:
    scheduler = SqliteScheduler(loopless)

    async def waits() -> None:
        await scheduler.prepare()
        waiting = [
            asyncio.create_task(scheduler.next_ready(timedelta(seconds=5))) for _ in range(3)
        ]
        await turns()
        for number in range(3):
            await scheduler.make_ready(str(number))
        for delivery in await asyncio.gather(*waiting):
            assert delivery is not None
            await scheduler.done(delivery)

    asyncio.run(waits())
    asyncio.run(waits())


@own_guard_only
def test_k24_closing_belongs_to_no_loop(loopless: Database) -> None:
    asyncio.run(twenty(loopless, "a"))
    asyncio.run(loopless.aclose())
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        asyncio.run(twenty(loopless, "b"))


ELSEWHERE = {name: CALLS[name] for name in ("supply", "load", "run", "guard", "aclose")}
GUARDED = [(guard, call) for guard in (own_guard, plain_lock) for call in ELSEWHERE]
GUARDED.remove((plain_lock, "guard"))  # what a lock of the caller's own does is its own business


@pytest.mark.parametrize(("loopless", "call"), GUARDED, indirect=["loopless"])
def test_k24_a_second_loop_at_once_is_refused_and_the_first_goes_on(
    loopless: Database, call: str
) -> None:
    async def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="running event loop"):
            await in_time(ELSEWHERE[call](loopless))

    async def first() -> None:
        assert await twenty(loopless, "a") == 20
        await asyncio.to_thread(asyncio.run, elsewhere())
        assert await twenty(loopless, "b") == 20

    asyncio.run(first())


@own_guard_only
def test_k24_two_loops_at_once_neither_hang_nor_half_write(loopless: Database) -> None:
    outcomes: list[str] = []

    async def busy(name: str) -> None:
        store = SqliteCheckpointer(loopless)
        for number in range(30):
            try:
                async with asyncio.timeout(5):
                    await store.supply(name, str(number), number)
                outcomes.append("written")
            except RuntimeError:
                outcomes.append("refused")
            await asyncio.sleep(0)

    asyncio.run(migrate(loopless))
    threads = [
        threading.Thread(target=lambda name=name: asyncio.run(busy(name)))  # type: ignore[misc]
        for name in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(outcomes) == 60
    records = loopless.connection.execute("SELECT count(*) FROM workflow_checkpoint").fetchall()
    assert records == [(outcomes.count("written"),)]


def durable_over(database: Database) -> tuple[Watched, SplitDurable[SqliteEffect]]:
    watched = Watched(SqliteScheduler(database, poll=timedelta(milliseconds=5)))
    return watched, SplitDurable(SqliteCheckpointer(database), watched)


@own_guard_only
def test_k24_a_worker_in_a_second_loop_ends_with_the_refusal_and_the_first_goes_on(
    loopless: Database,
) -> None:
    watched, durable = durable_over(loopless)

    async def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="running event loop"):
            await in_time(work(durable, completing))

    async def first() -> None:
        async with working(durable, completing) as worker:
            for workflow in "ab":
                await watched.make_ready(workflow)
                assert await watched.answers.get() == (workflow, None)
                await asyncio.to_thread(asyncio.run, elsewhere())
            assert not worker.done()

    asyncio.run(first())


@own_guard_only
def test_k24_one_worker_after_another_each_in_a_loop_of_its_own(loopless: Database) -> None:
    for workflow in "abc":
        watched, durable = durable_over(loopless)

        async def serves(watched: Watched, durable: Any, workflow: str) -> None:
            async with working(durable, completing):
                await watched.make_ready(workflow)
                assert await watched.answers.get() == (workflow, None)

        asyncio.run(serves(watched, durable, workflow))


def test_k24_two_loops_at_once_with_a_database_each_share_one_file(path: Path) -> None:
    together = threading.Barrier(2, timeout=HANG)
    counts: list[int] = []

    async def serves(name: str) -> None:
        async with connect(path) as database:
            await migrate(database)
            together.wait()
            counts.append(await twenty(database, name))

    threads = [threading.Thread(target=asyncio.run, args=(serves(name),)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    assert counts == [20, 20]


def leave_a_call_inside(database: Database) -> Gate:
    """A loop that ends, cancelling its task, while the call of it is inside."""
    gate = Gate()

    async def abandoned() -> None:
        task = asyncio.create_task(database.run(gate))
        await gate.reached()
        assert not task.done()

    asyncio.run(abandoned())
    return gate


def leave_a_guard_held(database: Database) -> Gate:
    async def abandoned() -> None:
        await database.guard.acquire()

    asyncio.run(abandoned())
    return Gate()


@pytest.mark.parametrize(
    ("loopless", "left"),
    [
        (own_guard, leave_a_call_inside),
        (plain_lock, leave_a_call_inside),
        (own_guard, leave_a_guard_held),  # an `asyncio.Lock` cannot know that its loop has ended
    ],
    indirect=["loopless"],
)
def test_k24_what_an_ended_loop_left_behind_blocks_no_later_one(
    loopless: Database, left: Callable[[Database], Gate]
) -> None:
    gate = left(loopless)
    timer = threading.Timer(0.05, gate.opened.set)
    timer.start()
    assert asyncio.run(twenty(loopless, "a")) == 20
    timer.join()


def test_k24_a_memory_scheduler_serves_one_loop_after_another() -> None:
    scheduler = MemoryScheduler()

    async def waits() -> None:
        waiting = asyncio.create_task(scheduler.next_ready(timedelta(seconds=5)))
        await turns()
        await scheduler.make_ready("w")
        delivery = await waiting
        assert delivery is not None
        await scheduler.done(delivery)

    asyncio.run(waits())
    asyncio.run(waits())


def test_k24_a_waiter_of_a_loop_that_is_closed_keeps_nobody_from_making_ready() -> None:
    scheduler = MemoryScheduler()
    left: list[asyncio.Task[Any]] = []

    async def leaves_a_waiter() -> None:
        left.append(asyncio.ensure_future(scheduler.next_ready(timedelta(days=1))))
        await turns()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leaves_a_waiter())
    loop.close()
    asyncio.run(scheduler.make_ready("w"))
    assert asyncio.run(scheduler.next_ready(timedelta(0))) is not None
    left[0]._log_destroy_pending = False  # it is of the loop that was closed under it
