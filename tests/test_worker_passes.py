"""The worker's ordinary course: claims, passes, renewals, answers, and stopping."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gated import (
    HANG,
    Bench,
    Only,
    Overlay,
    completing,
    forever,
    listening,
    turns,
    working,
)
from stores import Stores
from without_durability import (
    CONTENDED,
    Checkpointer,
    Clock,
    Contended,
    Delivery,
    Fenced,
    MemoryScheduler,
    Scheduler,
    SplitDurable,
    claimed,
    passes,
    ready,
    waking,
    work,
)

pytestmark = pytest.mark.timeout(20)

HOUR = timedelta(hours=1)
MILLISECOND = timedelta(milliseconds=1)
SHORT_LEASE = timedelta(milliseconds=90)


async def listed(items) -> AsyncIterator[Any]:
    for item in items:
        yield item


# --- bad timings ------------------------------------------------------------------------------

BAD = [
    ("budget", timedelta(0)),
    ("budget", timedelta(seconds=-1)),
    ("contended", timedelta(0)),
    ("limit", 0),
    ("limit", -1),
    ("now", lambda: datetime(2030, 1, 1)),  # noqa: DTZ001
]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *BAD,
        ("tick", timedelta(0)),
        ("tick", timedelta(seconds=-1)),
        ("within", timedelta(0)),
        ("within", timedelta(seconds=-1)),
    ],
)
async def test_work_refuses_bad_timings_from_the_call_itself(bench: Bench, name, value):
    coroutine = None
    try:
        with pytest.raises(ValueError, match=name):
            coroutine = work(bench.durable, completing, **{name: value})
    finally:
        if coroutine is not None:
            coroutine.close()


async def test_work_refuses_a_scheduler_without_a_lease(bench: Bench):
    durable = SplitDurable(bench.memory, Overlay(bench.queue, lease=timedelta(0)))
    with pytest.raises(ValueError, match="lease"):
        work(durable, completing)


@pytest.mark.parametrize(("name", "value"), [*BAD, ("lease", timedelta(0))])
async def test_passes_refuses_bad_timings_from_the_call_itself(bench: Bench, name, value):
    with pytest.raises(ValueError, match=name):
        passes(bench.durable, completing, **{name: value})


# --- answers ----------------------------------------------------------------------------------


async def sleeping(run):
    await run.sleep("nap", HOUR)


async def blocked(run):
    await run.awaiting("approval", str)


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (completing, None),
        (blocked, None),
        (sleeping, datetime(2030, 1, 1, 1, tzinfo=UTC)),
    ],
)
async def test_a_pass_is_answered_for_by_its_outcome_once_its_claim_is_free(
    bench: Bench, body, answer
):
    order = []

    async def release(holder):
        await bench.memory.release(holder)
        order.append(("released", bench.answers.qsize()))

    await bench.queue.make_ready("w")
    async with bench.working(body, bench.over(release=release)):
        assert await bench.answers.get() == ("w", answer)
    assert order[0] == ("released", 0)
    assert bench.queue.outstanding == {}


async def test_a_sleeper_is_woken_when_it_is_due_and_goes_on(bench: Bench):
    await bench.queue.make_ready("w")
    async with bench.working(sleeping):
        _, due = await bench.answers.get()
        bench.clock.advance(HOUR)
        assert due == bench.clock.now()
        assert await bench.answers.get() == ("w", None)


async def test_a_blocked_workflow_runs_again_when_its_input_arrives(stores: Stores):
    got: asyncio.Queue[str] = asyncio.Queue()

    async def body(run):
        got.put_nowait(await run.awaiting("approval", str))

    await stores.scheduler.make_ready("w")
    async with working(stores.durable, body, now=stores.clock.now):
        await stores.durable.arrive("w", "approval", "yes")
        assert await got.get() == "yes"


async def test_a_wakeup_that_arrives_during_a_pass_is_not_lost(bench: Bench):
    started: asyncio.Queue[int] = asyncio.Queue()
    gate = asyncio.Event()

    async def body(run):
        started.put_nowait(1)
        await gate.wait()

    await bench.queue.make_ready("w")
    async with bench.working(body, limit=1):
        await started.get()
        await bench.queue.make_ready("w")
        gate.set()
        await started.get()


async def test_a_refused_claim_looks_again_and_starts_no_pass(bench: Bench):
    await claimed(bench.memory, "w")
    await bench.queue.make_ready("w")
    ran = []

    async def body(run):
        ran.append(run)

    async with bench.working(body, contended=HOUR):
        assert await bench.answers.get() == ("w", bench.clock.now() + HOUR)
    assert ran == []


@pytest.mark.parametrize("lost", [Fenced("lost"), Contended("held")])
async def test_a_lost_claim_looks_again_and_is_no_failure(bench: Bench, lost):
    async def body(run):
        raise lost

    await bench.queue.make_ready("w")
    async with listening() as heard, bench.working(body):
        assert await bench.answers.get() == ("w", bench.clock.now() + CONTENDED)
    assert not any("failed" in message for message in heard.messages)


# --- limit ------------------------------------------------------------------------------------


async def test_one_delivery_is_pulled_per_free_slot_and_never_more(bench: Bench):
    started: asyncio.Queue[str] = asyncio.Queue()
    gates = {str(number): asyncio.Event() for number in range(5)}

    async def body(run):
        started.put_nowait(run.workflow)
        await gates[run.workflow].wait()

    for workflow in gates:
        await bench.queue.make_ready(workflow)
    async with bench.working(body, limit=2):
        assert [await started.get(), await started.get()] == ["0", "1"]
        await turns()
        assert (set(bench.queue.outstanding), len(bench.queue.queue)) == ({"0", "1"}, 3)
        gates["1"].set()
        assert await started.get() == "2"
        await turns()
        assert (set(bench.queue.outstanding), len(bench.queue.queue)) == ({"0", "2"}, 2)


async def test_passes_takes_a_delivery_only_when_a_slot_is_free(bench: Bench):
    pulled, started = [], asyncio.Queue()
    gate = asyncio.Event()

    async def deliveries():
        for number in range(4):
            await bench.queue.make_ready(str(number))
            pulled.append(number)
            yield await bench.queue.next_ready(HOUR)

    async def body(run):
        started.put_nowait(run.workflow)
        await gate.wait()

    running = asyncio.create_task(passes(bench.durable, body, limit=1)(deliveries()))
    await started.get()
    await turns()
    assert pulled == [0]
    gate.set()
    async with asyncio.timeout(HANG):
        await running
    assert pulled == [0, 1, 2, 3]
    assert bench.queue.outstanding == {}, "passes returned before its deliveries were answered for"


async def test_a_pool_that_has_ended_leaves_another_streams_pass_alone(bench: Bench):
    """One function from `passes`, given two streams of deliveries."""
    started = asyncio.Event()

    async def body(run):
        if run.workflow == "long":
            started.set()
            await forever()

    for workflow in ("long", "short"):
        await bench.queue.make_ready(workflow)
    long, short = [await bench.queue.next_ready(HOUR) for _ in range(2)]
    pool = passes(bench.durable, body)
    running = asyncio.create_task(pool(listed([long])))
    await started.wait()
    await pool(listed([short]))
    taken = await bench.memory.claim("long", HOUR, HOUR)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert taken is None, "the ended stream gave away the claim of a pass that was still running"


async def test_passes_hands_an_error_of_its_deliveries_on_as_it_is(bench: Bench):
    error = LookupError("no queue")

    async def deliveries():
        yield Delivery("w", "1")
        raise error

    with pytest.raises(LookupError) as caught:
        await passes(bench.durable, completing)(deliveries())
    assert caught.value is error


# --- ready and waking -------------------------------------------------------------------------


async def test_ready_gives_abandoned_deliveries_first_then_new_ones(clock: Clock):
    queue = MemoryScheduler(clock=clock.seconds)
    await queue.make_ready("abandoned")
    await queue.next_ready(HOUR)
    clock.advance(queue.lease)
    await queue.make_ready("new")
    deliveries = ready(queue, within=HOUR)
    assert [(await anext(deliveries)).workflow for _ in range(2)] == ["abandoned", "new"]
    await deliveries.aclose()


async def test_ready_leaves_alone_what_has_not_been_silent_for_long_enough(clock: Clock):
    queue = MemoryScheduler(clock=clock.seconds)
    await queue.make_ready("busy")
    busy = await queue.next_ready(HOUR)
    deliveries = ready(queue, within=HOUR, idle=HOUR)
    waiting = asyncio.ensure_future(anext(deliveries))
    clock.advance(queue.lease - MILLISECOND)
    await queue.make_ready("new")
    assert (await waiting).workflow == "new"
    assert await queue.holds(busy)
    await deliveries.aclose()


async def test_waking_moves_what_is_due_at_each_moment_and_returns_with_them(clock: Clock):
    queue = MemoryScheduler()
    for hours in (1, 2, 3):
        await queue.schedule(str(hours), clock.now() + hours * HOUR)
    await waking(queue)(listed([clock.now() + HOUR, clock.now() + 2 * HOUR]))
    assert list(queue.queue) == ["1", "2"]
    assert list(queue.sleeping) == ["3"]


# --- renewals ---------------------------------------------------------------------------------


async def test_a_pass_longer_than_its_lease_keeps_claim_and_delivery():
    bench = Bench(lease=SHORT_LEASE)
    renewals: asyncio.Queue[timedelta] = asyncio.Queue()

    async def renew(holder, alive):
        renewals.put_nowait(alive)
        return await bench.memory.renew(holder, alive)

    async def body(run):
        for _ in range(7):  # three a lease: more than two leases
            assert await renewals.get() == SHORT_LEASE
        taken.append(await bench.memory.claim("w", HOUR, HOUR))
        taken.append(await bench.queue.reclaim(timedelta(0)))

    taken: list[object] = []
    await bench.queue.make_ready("w")
    async with bench.working(body, bench.over(renew=renew), limit=1):
        assert await bench.answers.get() == ("w", None)
    assert taken == [None, None], "somebody else could take a workflow whose pass was running"
    assert bench.queue.outstanding == {}, "the answer did not name the renewed delivery"


@pytest.mark.parametrize("failing", ["renew", "extend"])
async def test_a_failed_renewal_is_logged_and_tried_again(failing: str):
    bench = Bench(lease=SHORT_LEASE)
    calls: list[str] = []
    again = asyncio.Event()

    def failing_once(method):
        async def call(*arguments):
            calls.append(failing)
            if len(calls) == 1:
                raise OSError("disk gone")
            again.set()
            return await method(*arguments)

        return call

    async def body(run):
        await again.wait()

    if failing == "renew":
        durable = bench.over(renew=failing_once(bench.memory.renew))
    else:
        scheduler = Overlay(bench.watched, extend=failing_once(bench.queue.extend))
        durable = SplitDurable(bench.memory, scheduler)
    await bench.queue.make_ready("w")
    async with listening() as heard, bench.working(body, durable):
        assert await bench.answers.get() == ("w", None)
        await heard.until("'w'", "disk gone")


async def test_a_refused_renewal_ends_the_pass_and_looks_again():
    bench = Bench(lease=SHORT_LEASE)
    ended = asyncio.Event()

    async def renew(holder, alive):
        return False

    async def body(run):
        try:
            await forever()
        finally:
            ended.set()

    await bench.queue.make_ready("w")
    async with bench.working(body, bench.over(renew=renew), contended=HOUR):
        assert await bench.answers.get() == ("w", bench.clock.now() + HOUR)
        assert ended.is_set(), "the workflow was given up while its body still ran"


# --- what a worker needs of a store -----------------------------------------------------------


async def test_work_needs_nothing_beyond_the_protocols(bench: Bench):
    def only(store, protocol):
        names = {name for name, _ in inspect.getmembers(protocol) if not name.startswith("_")}
        return Only(store, names)

    durable = SplitDurable(only(bench.memory, Checkpointer), only(bench.watched, Scheduler))
    await bench.queue.make_ready("w")
    async with bench.working(sleeping, durable):
        _, due = await bench.answers.get()
        assert due == bench.clock.now() + HOUR
        bench.clock.advance(HOUR)
        assert await bench.answers.get() == ("w", None)


# --- stopping ---------------------------------------------------------------------------------


async def test_a_worker_told_to_stop_finishes_its_passes_takes_nothing_new_and_returns(
    bench: Bench,
):
    started, gate, stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def body(run):
        started.set()
        await gate.wait()
        await run.sleep("nap", HOUR)

    await bench.queue.make_ready("w")
    async with bench.working(body, stopping=stopping) as worker:
        await started.wait()
        stopping.set()
        await turns()
        await bench.queue.make_ready("new")
        await turns()
        assert not worker.done(), "the worker left a pass behind"
        gate.set()
        await worker
    assert list(bench.queue.sleeping) == ["w"]
    assert list(bench.queue.queue) == ["new"]


async def test_an_idle_worker_told_to_stop_returns_without_waiting_its_look_out(stores: Stores):
    stopping = asyncio.Event()
    async with working(stores.durable, completing, within=HOUR, stopping=stopping) as worker:
        await turns()
        stopping.set()
        await worker


async def test_a_worker_told_to_stop_before_it_began_takes_nothing(stores: Stores):
    stopping = asyncio.Event()
    stopping.set()
    ran = []

    async def body(run):
        ran.append(run.workflow)

    await stores.scheduler.make_ready("w")
    async with working(stores.durable, body, stopping=stopping) as worker:
        await worker
    assert ran == []
    assert await stores.scheduler.next_ready(timedelta(0)) is not None


async def test_a_worker_told_to_stop_in_the_instant_a_slot_frees_takes_nothing(bench: Bench):
    stopping = asyncio.Event()

    async def done(delivery):
        await bench.queue.done(delivery)
        stopping.set()

    for workflow in ("first", "second"):
        await bench.queue.make_ready(workflow)
    durable = SplitDurable(bench.memory, Overlay(bench.queue, done=done))
    async with bench.working(completing, durable, limit=1, stopping=stopping) as worker:
        await worker
    assert list(bench.queue.queue) == ["second"]


async def test_a_worker_told_to_stop_does_not_wait_for_a_store_that_is_away(bench: Bench):
    stopping, asked = asyncio.Event(), asyncio.Event()

    async def prepare():
        asked.set()
        raise OSError("away")

    durable = SplitDurable(bench.memory, Overlay(bench.queue, prepare=prepare))
    async with bench.working(completing, durable, stopping=stopping) as worker:
        await asked.wait()
        stopping.set()
        await asyncio.wait((worker,), timeout=2)
        assert worker.done(), "still asking a store that is away"
