"""The in-memory stores as their users build them and look inside."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from datetime import UTC, datetime, timedelta

import pytest

from gated import HANG, turns
from without_durability import (
    JSON,
    LEASE,
    Claim,
    Clock,
    Delivery,
    Fenced,
    MemoryCheckpointer,
    MemoryScheduler,
    Pass,
    SplitDurable,
    Stored,
    claimed,
    now_utc,
)

pytestmark = pytest.mark.timeout(20)

MINUTE = timedelta(minutes=1)
NOW = timedelta(0)


@pytest.fixture
def store(clock: Clock) -> MemoryCheckpointer:
    return MemoryCheckpointer(clock=clock.seconds, now=clock.now)


@pytest.fixture
def queue(clock: Clock) -> MemoryScheduler:
    return MemoryScheduler(clock=clock.seconds)


# --- construction -----------------------------------------------------------------------------


def test_the_defaults_are_empty_and_shared_by_nobody():
    one, other = MemoryCheckpointer(), MemoryCheckpointer()
    assert (one.hashes, one.claims, one.data) == ({}, {}, {})
    assert (one.codec, one.now) == (JSON, now_utc)
    assert one.hashes is not other.hashes
    queue = MemoryScheduler()
    assert (queue.queue, queue.sleeping, queue.outstanding, queue.lease) == (deque(), {}, {}, LEASE)
    assert queue.arrived is not MemoryScheduler().arrived
    assert one.clock is queue.clock is time.monotonic


async def test_stores_built_by_position_work_over_what_they_were_given(clock: Clock):
    stored = Stored(JSON.encode(1), clock.now())
    store = MemoryCheckpointer({"w": {"k": stored}}, {}, JSON, clock.now, {"paid": False})
    queue = MemoryScheduler(
        deque(["w"]), {}, {}, asyncio.Event(), itertools.count(7), timedelta(seconds=3)
    )
    assert await store.load("w") == {"k": 1}
    assert await queue.next_ready(NOW) == Delivery("w", "7")
    assert SplitDurable(store, queue).scheduler.lease == timedelta(seconds=3)


@pytest.mark.parametrize("lease", [NOW, -MINUTE])
def test_a_scheduler_refuses_a_lease_that_is_not_positive(lease: timedelta):
    with pytest.raises(ValueError, match="lease"):
        MemoryScheduler(lease=lease)


# --- the checkpointer from inside -------------------------------------------------------------


async def test_a_record_is_kept_encoded_with_its_moment(store: MemoryCheckpointer, clock: Clock):
    holder = await claimed(store, "w")
    await store.record(holder, "k", (1, 2))
    assert store.hashes == {"w": {"k": Stored("[1, 2]", clock.now())}}


async def test_a_claim_is_kept_with_its_deadlines_in_seconds(
    store: MemoryCheckpointer, clock: Clock
):
    holder = await store.claim("w", 5 * MINUTE, MINUTE)
    start = clock.seconds()
    assert store.claims == {"w": Claim(1, start + 300, start + 60, 60)}
    clock.advance(MINUTE / 2)
    await store.renew(holder, MINUTE)
    assert store.claims == {"w": Claim(1, start + 300, start + 90, 60)}
    await store.release(holder)
    assert store.claims["w"].token == 1
    assert store.claims["w"].alive_until < start


async def test_claims_lapse_by_the_monotonic_clock_unless_told_otherwise():
    store = MemoryCheckpointer()
    await store.claim("w", 5 * MINUTE, MINUTE)
    assert store.claims["w"].alive_until == pytest.approx(time.monotonic() + 60, abs=5)


def naive_now() -> datetime:
    return datetime(2030, 1, 1)  # noqa: DTZ001


def raising(data):
    data["nested"]["paid"] = True
    data["more"] = 1
    raise LookupError("no such card")


def unstorable(data):
    data["nested"]["paid"] = True
    return {1}


def ordinary(data):
    data["nested"]["paid"] = True
    return 1


async def asynchronous(data):
    raise AssertionError("an effect must be synchronous")


@pytest.mark.parametrize(
    ("effect", "now", "error"),
    [
        (raising, now_utc, LookupError),
        (unstorable, now_utc, TypeError),
        (asynchronous, now_utc, TypeError),
        (ordinary, naive_now, ValueError),
    ],
)
async def test_data_is_rolled_back_when_effect_or_record_fails(effect, now, error):
    store = MemoryCheckpointer(data={"nested": {"paid": False}}, now=now)
    data = store.data
    holder = await claimed(store, "w")
    with pytest.raises(error):
        await store.transact(holder, "k", effect)
    assert store.data is data
    assert data == {"nested": {"paid": False}}
    assert await store.load("w") == {}
    assert await store.renew(holder, MINUTE), "the claim was lost with the effect"


async def test_a_fenced_transact_leaves_data_alone(store: MemoryCheckpointer):
    holder = await claimed(store, "w")
    await store.discard("w")
    with pytest.raises(Fenced):
        await store.transact(holder, "k", lambda data: data.update(paid=True))
    assert store.data == {}


async def test_history_is_in_utc_whatever_zone_now_is_in(clock: Clock):
    zone = datetime.now().astimezone().tzinfo
    store = MemoryCheckpointer(now=lambda: clock.now().astimezone(zone))
    await store.supply("w", "k", 1)
    at = (await store.history("w"))["k"].at
    assert (at, at.tzinfo) == (clock.now(), UTC)


async def test_a_workflow_never_claimed_gets_no_claim_from_a_discard(store: MemoryCheckpointer):
    await store.supply("w", "k", 1)
    assert await store.discard("w") == 1
    assert (store.hashes, store.claims) == ({}, {})
    with pytest.raises(Fenced):
        await store.record(Pass("w", 1), "k", 1)


# --- the scheduler from inside ----------------------------------------------------------------


async def test_a_workflow_is_in_one_place_at_a_time(queue: MemoryScheduler, clock: Clock):
    def places() -> tuple[list[str], list[str], list[str]]:
        return list(queue.queue), list(queue.sleeping), list(queue.outstanding)

    await queue.make_ready("w")
    await queue.make_ready("w")
    assert places() == (["w"], [], [])
    delivery = await queue.next_ready(NOW)
    assert places() == ([], [], ["w"])
    assert queue.outstanding["w"] == (delivery, clock.seconds() + 60)
    await queue.wake_at(delivery, clock.now() + MINUTE)
    assert places() == ([], ["w"], [])
    assert queue.sleeping == {"w": clock.now() + MINUTE}
    await queue.make_ready("w")
    assert places() == (["w"], [], [])
    await queue.schedule("w", clock.now() + MINUTE)
    assert places() == ([], ["w"], [])
    await queue.cancel("w")
    assert places() == ([], [], [])


async def test_wake_due_moves_the_due_sleepers_in_order_and_reports_them(
    queue: MemoryScheduler, clock: Clock
):
    for name, minutes in (("late", 3), ("second", 2), ("first", 1)):
        await queue.schedule(name, clock.now() + minutes * MINUTE)
    assert await queue.wake_due(clock.now()) == ()
    assert await queue.wake_due(clock.now() + 2 * MINUTE) == ("first", "second")
    assert list(queue.queue) == ["first", "second"]
    assert list(queue.sleeping) == ["late"]


@pytest.mark.parametrize("call", ["make_ready", "wake_due"])
async def test_a_waiting_next_ready_is_woken_at_once(queue: MemoryScheduler, clock: Clock, call):
    await queue.schedule("w", clock.now())
    waiting = asyncio.create_task(queue.next_ready(timedelta(days=1)))
    await turns(3)
    assert not waiting.done()
    await (queue.make_ready("w") if call == "make_ready" else queue.wake_due(clock.now()))
    async with asyncio.timeout(HANG):
        assert (await waiting).workflow == "w"


async def test_one_wakeup_goes_to_one_of_several_waiters(queue: MemoryScheduler):
    waiting = [asyncio.create_task(queue.next_ready(timedelta(days=1))) for _ in range(3)]
    await turns(3)
    for name in ("a", "b", "c"):
        await queue.make_ready(name)
        await turns(3)
        assert sum(task.done() for task in waiting) == "abc".index(name) + 1
    assert sorted(task.result().workflow for task in waiting) == ["a", "b", "c"]


async def test_a_waiting_next_ready_sees_a_delivery_lapse():
    queue = MemoryScheduler(lease=timedelta(milliseconds=30))
    await queue.make_ready("w")
    first = await queue.next_ready(NOW)
    async with asyncio.timeout(HANG):
        second = await queue.next_ready(timedelta(days=1))
    assert second.workflow == "w"
    assert second.receipt != first.receipt


@pytest.mark.parametrize("within", [NOW, timedelta(milliseconds=1)])
async def test_next_ready_gives_up_after_its_wait(queue: MemoryScheduler, within: timedelta):
    async with asyncio.timeout(HANG):
        assert await queue.next_ready(within) is None


async def test_a_cancelled_next_ready_takes_nothing(queue: MemoryScheduler):
    waiting = asyncio.create_task(queue.next_ready(timedelta(days=1)))
    await turns(3)
    await queue.make_ready("w")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert list(queue.queue) == ["w"]


@pytest.mark.parametrize(
    ("idle", "silent", "reclaimed"),
    [
        (NOW, MINUTE, True),
        (NOW, MINUTE - timedelta(microseconds=1), False),
        (MINUTE, MINUTE, True),
        (2 * MINUTE, 2 * MINUTE, True),
        (2 * MINUTE, 2 * MINUTE - timedelta(microseconds=1), False),
    ],
)
async def test_reclaim_takes_what_lapsed_and_whose_taker_was_silent_for_idle(
    queue: MemoryScheduler, clock: Clock, idle, silent, reclaimed: bool
):
    await queue.make_ready("w")
    delivery = await queue.next_ready(NOW)
    clock.advance(silent)
    again = await queue.reclaim(idle)
    assert (again is not None) is reclaimed
    assert await queue.holds(delivery) is not reclaimed


async def test_an_extended_delivery_is_kept_under_a_new_receipt(
    queue: MemoryScheduler, clock: Clock
):
    await queue.make_ready("w")
    first = await queue.next_ready(NOW)
    clock.advance(MINUTE / 2)
    second = await queue.extend(first, 2 * MINUTE)
    clock.advance(2 * MINUTE - timedelta(microseconds=1))
    assert await queue.next_ready(NOW) is None
    await queue.done(first)
    assert await queue.holds(second)
    await queue.done(second)
    assert queue.outstanding == {}
