"""What a cancelled worker, and a cancelled delivery, leave behind: nothing to wait out."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta

import pytest

from gated import (
    HANG,
    Bench,
    Only,
    Overlay,
    Yielding,
    cancel_every_task,
    completing,
    forever,
    turns,
    working,
)
from stores import Stores, over_sqlite
from thread_gates import Stop, reading
from without_durability import (
    Clock,
    MemoryCheckpointer,
    MemoryScheduler,
    Scheduler,
    SplitDurable,
    work,
)
from without_durability_sqlite import Database

pytestmark = pytest.mark.timeout(30)

HOUR = timedelta(hours=1)
NOW = timedelta(0)


# --- cancelling the worker --------------------------------------------------------------------


async def test_k6_a_cancelled_worker_leaves_its_workflow_free_and_visible_at_once(stores: Stores):
    started = asyncio.Event()

    async def body(run):
        async def effect():
            started.set()
            await forever()

        await run.step("slow", effect, str)

    await stores.scheduler.make_ready("w")
    async with working(stores.durable, body, now=stores.clock.now):
        await started.wait()
    await stores.scheduler.wake_due(stores.clock.now())
    delivery = await stores.scheduler.next_ready(NOW)
    assert delivery is not None, "the workflow waits for a lease"
    assert delivery.workflow == "w"
    assert await stores.checkpointer.claim("w", HOUR, HOUR) is not None


@pytest.mark.parametrize("body", [forever, completing])
@pytest.mark.parametrize("other_tasks", [False, True])
async def test_a_worker_may_be_cancelled_in_any_turn_of_the_loop(body, other_tasks: bool):
    """With a store that yields before every call, so that each of its awaits is met."""
    finished = 0
    for turn in range(60):
        clock = Clock()
        memory = MemoryCheckpointer(clock=clock.seconds, now=clock.now)
        queue = MemoryScheduler(clock=clock.seconds)
        for workflow in ("a", "b", "c"):
            await queue.make_ready(workflow)
        durable = SplitDurable(Yielding(memory), Yielding(queue))
        worker = asyncio.create_task(work(durable, body, limit=2, now=clock.now))
        await turns(turn)
        if other_tasks:
            cancel_every_task()
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        await queue.wake_due(clock.now())
        assert queue.outstanding == {}, f"turn {turn}: a delivery waits for its lease"
        for workflow in ("a", "b", "c"):
            assert await memory.claim(workflow, HOUR, HOUR), f"turn {turn}: a claim was kept"
        finished += len(queue.queue) < 3
        if body is forever:
            assert sorted(queue.queue) == ["a", "b", "c"], f"turn {turn}: a wakeup was lost"
    assert bool(finished) is (body is completing)


async def test_a_worker_over_a_file_may_be_cancelled_in_any_turn_and_at_any_statement(
    database: Database, clock: Clock
):
    stores = over_sqlite(database, clock)
    await stores.scheduler.make_ready("w")
    for turn in range(20):
        worker = asyncio.create_task(work(stores.durable, forever, now=clock.now))
        await turns(turn)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        await assert_nothing_is_waited_out(stores, f"turn {turn}")
    for n in itertools.count(1):
        started = asyncio.get_running_loop().create_future()

        async def body(run, started=started):
            started.set_result(None)
            await forever()

        stop = Stop(n, database.connection, await reading(database))
        worker = asyncio.create_task(work(stores.durable, body, now=clock.now))
        stopped = await stop.stands(started)
        worker.cancel()
        await turns()
        stop.opened.set()
        await asyncio.gather(worker, return_exceptions=True)
        await assert_nothing_is_waited_out(stores, f"statement {n}")
        if not stopped:
            break
    assert n > 10, "it takes a look, a take, a claim and a load until the body starts"


async def assert_nothing_is_waited_out(stores: Stores, when: str) -> None:
    """ "w" is visible and free at once; and so it is made again."""
    delivery = await stores.scheduler.next_ready(NOW)
    assert delivery is not None, f"{when}: the delivery waits for its lease"
    holder = await stores.checkpointer.claim("w", HOUR, HOUR)
    assert holder is not None, f"{when}: the claim was kept"
    await stores.checkpointer.release(holder)
    await stores.scheduler.wake_at(delivery, stores.clock.now())


async def test_a_delivery_whose_attempt_never_started_is_visible_at_once(bench: Bench):
    """The worker is cancelled in the very turn in which it takes the delivery."""
    worker: asyncio.Task[None]
    ran = []

    async def next_ready(within):
        delivery = await bench.queue.next_ready(within)
        worker.cancel()
        return delivery

    async def body(run):
        ran.append(run)

    await bench.queue.make_ready("w")
    durable = SplitDurable(bench.memory, Overlay(bench.queue, next_ready=next_ready))
    worker = asyncio.create_task(work(durable, body, now=bench.clock.now))
    with pytest.raises(asyncio.CancelledError):
        await worker
    assert ran == []
    assert bench.queue.outstanding == {}
    assert list(bench.queue.queue) == ["w"]


@pytest.mark.parametrize("gated", ["release", "wake_at"])
async def test_handing_back_is_finished_though_every_task_of_the_loop_is_cancelled(
    bench: Bench, gated: str
):
    started, reached, gate = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def gating(method):
        async def call(*arguments):
            reached.set()
            await gate.wait()
            return await method(*arguments)

        return call

    async def body(run):
        started.set()
        await forever()

    if gated == "release":
        durable = SplitDurable(
            Overlay(bench.memory, release=gating(bench.memory.release)), bench.queue
        )
    else:
        durable = SplitDurable(
            bench.memory, Overlay(bench.queue, wake_at=gating(bench.queue.wake_at))
        )
    await bench.queue.make_ready("w")
    worker = asyncio.create_task(work(durable, body, now=bench.clock.now))
    await started.wait()
    worker.cancel()
    await reached.wait()
    cancel_every_task()
    await turns(5)
    gate.set()
    async with asyncio.timeout(HANG):
        await asyncio.gather(worker, return_exceptions=True)
    assert await bench.memory.claim("w", HOUR, HOUR), "the claim waits for its lease"
    assert bench.queue.outstanding == {}, "the delivery waits for its lease"


async def test_a_pass_that_takes_its_time_to_end_is_waited_for_however_often_one_cancels(
    bench: Bench,
):
    started, gate = asyncio.Event(), asyncio.Event()
    ended = []

    async def body(run):
        started.set()
        try:
            await forever()
        finally:
            await gate.wait()
            ended.append(await bench.memory.claim("w", HOUR, HOUR))

    await bench.queue.make_ready("w")
    worker = asyncio.create_task(work(bench.durable, body, now=bench.clock.now))
    await started.wait()
    for _ in range(3):
        worker.cancel()
        await turns(5)
        assert not worker.done(), "the worker left a running body behind"
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await worker
    assert ended == [None], "the claim was given away while the body still ran"


# --- deliveries cancelled meanwhile -----------------------------------------------------------


async def test_without_holds_a_delivery_deleted_before_its_claim_is_not_revived(bench: Bench):
    async def claim(*arguments):
        await bench.durable.delete("w")
        return await bench.memory.claim(*arguments)

    async def body(run):
        await run.sleep("nap", HOUR)

    names = {name for name in dir(Scheduler) if not name.startswith("_")}
    durable = SplitDurable(Overlay(bench.memory, claim=claim), Only(bench.watched, names))
    await bench.queue.make_ready("w")
    async with bench.working(body, durable):
        await bench.answers.get()
    assert (list(bench.queue.queue), bench.queue.sleeping, bench.queue.outstanding) == ([], {}, {})


async def test_a_worker_cancelled_while_it_drops_a_cancelled_delivery_keeps_no_claim(bench: Bench):
    reached = asyncio.Event()
    calls = []

    async def claim(*arguments):
        await bench.queue.cancel("w")
        return await bench.memory.claim(*arguments)

    async def release(holder):
        calls.append(holder)
        if len(calls) == 1:
            reached.set()
            await forever()
        await bench.memory.release(holder)

    await bench.queue.make_ready("w")
    durable = SplitDurable(Overlay(bench.memory, claim=claim, release=release), bench.queue)
    async with bench.working(completing, durable):
        await reached.wait()
    assert await bench.memory.claim("w", HOUR, HOUR), "the claim waits for its lease"
