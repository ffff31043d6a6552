"""S1 to S11: what every scheduler promises; where processes or files matter, SQLite's alone."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from contract import GatedClock, cancelled, write_lock
from gated import turns
from stores import Stores, over_sqlite
from thread_gates import running
from without_durability import LEASE, Delivery, MemoryScheduler, Milliseconds
from without_durability.testing import Clock
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    connect,
    migrate,
)

MILLISECOND = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)
HOURS = timedelta(hours=3)
NOW = timedelta(0)
HANG = 10
"""Seconds that only bound a hang."""

Wake = Callable[[Stores], Awaitable[object]]

WAKES: dict[str, Wake] = {
    "make_ready": lambda stores: stores.scheduler.make_ready("w"),
    "arrive": lambda stores: stores.durable.arrive("w", "k", 1),
    "deliver": lambda stores: stores.durable.deliver("w", 1),
}
each_wake = pytest.mark.parametrize("wake", WAKES.values(), ids=WAKES)


async def look(stores: Stores) -> Delivery | None:
    """One look at the queue, after the timer's."""
    await stores.scheduler.wake_due(stores.clock.now())
    return await stores.scheduler.next_ready(NOW)


async def taken(stores: Stores, workflow: str = "w") -> Delivery:
    delivery = await look(stores)
    assert delivery is not None, "nothing was ready"
    assert delivery.workflow == workflow
    return delivery


async def assert_comes_after(stores: Stores, length: timedelta) -> None:
    """The wakeup of "w" is due then, and not a moment sooner."""
    stores.clock.advance(length - MILLISECOND)
    assert await look(stores) is None
    stores.clock.advance(MILLISECOND)
    await taken(stores)


async def made_taken(stores: Stores) -> Delivery:
    await stores.scheduler.make_ready("w")
    return await taken(stores)


# --- S1, S2: no wakeup is lost -------------------------------------------------------------------


@each_wake
async def test_s1_what_was_made_ready_is_delivered(wake: Wake, stores: Stores) -> None:
    await wake(stores)
    assert (await taken(stores)).workflow == "w"


async def test_s1_a_workflow_whose_worker_died_is_delivered_again(stores: Stores) -> None:
    await made_taken(stores)
    for _ in range(3):
        stores.clock.advance(LEASE)
        await taken(stores)


async def test_s1_reclaim_gives_only_what_its_taker_let_lapse(stores: Stores) -> None:
    scheduler = stores.scheduler
    assert await scheduler.reclaim(LEASE) is None
    first = await made_taken(stores)
    assert await scheduler.reclaim(LEASE) is None
    stores.clock.advance(LEASE)
    again = await scheduler.reclaim(LEASE) or await scheduler.next_ready(NOW)
    assert again.workflow == "w"
    assert again != first
    assert await scheduler.reclaim(NOW) is None
    assert await scheduler.next_ready(NOW) is None


@each_wake
async def test_s1_a_wakeup_that_arrives_while_a_pass_runs_is_delivered(
    wake: Wake, stores: Stores
) -> None:
    delivery = await made_taken(stores)
    await wake(stores)
    await stores.scheduler.done(delivery)
    assert await taken(stores) != delivery


async def test_s2_a_delivered_workflow_is_invisible_for_the_lease(stores: Stores) -> None:
    assert stores.scheduler.lease == LEASE
    await made_taken(stores)
    assert await look(stores) is None
    await assert_comes_after(stores, LEASE)


async def test_s2_each_delivery_goes_to_one_taker(stores: Stores) -> None:
    workflows = {f"w{number}" for number in range(5)}
    for workflow in workflows:
        await stores.scheduler.make_ready(workflow)
    looks = await asyncio.gather(*[stores.scheduler.next_ready(NOW) for _ in range(7)])
    assert sorted(one.workflow for one in looks if one is not None) == sorted(workflows)


@each_wake
async def test_s2_next_ready_waits_for_a_wakeup(wake: Wake, stores: Stores) -> None:
    waiting = asyncio.create_task(stores.scheduler.next_ready(HOURS))
    await turns()
    assert not waiting.done()
    await wake(stores)
    delivery = await asyncio.wait_for(waiting, HANG)
    assert delivery.workflow == "w"


async def test_s2_next_ready_gives_up_after_the_time_it_was_given(stores: Stores) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    assert await stores.scheduler.next_ready(timedelta(milliseconds=60)) is None
    assert 0.05 < loop.time() - started < HANG


async def test_s2_a_wakeup_from_another_process_is_seen_within_a_poll(
    database: Database, path: Path, clock: Clock
) -> None:
    async with connect(path, clock=clock.seconds) as second:
        scheduler = SqliteScheduler(database, poll=timedelta(milliseconds=10))
        waiting = asyncio.create_task(scheduler.next_ready(HOURS))
        await turns()
        await SqliteCheckpointer(database).load("w")  # its first look is over: it stood before it
        await SqliteScheduler(second).make_ready("w")
        assert await asyncio.wait_for(waiting, HANG)


async def test_s2_an_idle_look_takes_no_write_lock(path: Path) -> None:
    async with connect(path, timeout=Milliseconds(0)) as database:
        await migrate(database)
        scheduler = SqliteScheduler(database)
        await scheduler.schedule("w", scheduler.now() + HOURS)
        with write_lock(path):
            assert await scheduler.next_ready(NOW) is None
            with pytest.raises(sqlite3.OperationalError):
                await scheduler.make_ready("w")


async def test_s2_a_taken_workflow_does_not_stay_invisible_for_a_clock_set_back_by_hours(
    database: Database, clock: Clock
) -> None:
    stores = over_sqlite(database, clock)
    await made_taken(stores)
    clock.advance(-HOURS)
    assert await look(stores) is None
    await assert_comes_after(stores, LEASE)


async def test_s2_an_extended_delivery_keeps_its_time_when_the_clock_is_set_back(
    database: Database, clock: Clock
) -> None:
    stores = over_sqlite(database, clock)
    delivery = await stores.scheduler.extend(await made_taken(stores), 5 * LEASE)
    assert await look(stores) is None
    assert await stores.scheduler.holds(delivery), "the clock stood still: nothing to clamp"
    clock.advance(-HOURS)
    assert await look(stores) is None
    await assert_comes_after(stores, 5 * LEASE)


@pytest.mark.parametrize("how", ["schedule", "wake_at"])
async def test_s2_a_sleeper_is_not_clamped_when_the_clock_is_set_back(
    how: str, stores: Stores
) -> None:
    due = stores.clock.now() + timedelta(hours=1)
    if how == "schedule":
        await stores.scheduler.schedule("w", due)
    else:
        await stores.scheduler.wake_at(await made_taken(stores), due)
    stores.clock.advance(-HOURS)
    for _ in range(3):  # a take beside the sleeper is what clamps
        await stores.scheduler.make_ready("other")
        await stores.scheduler.done(await taken(stores, "other"))
        assert await look(stores) is None
        stores.clock.advance(LEASE)
    await assert_comes_after(stores, due - stores.clock.now())


# --- S3 to S7: answers ---------------------------------------------------------------------------


async def test_s3_done_removes_its_wakeup_and_a_second_answer_is_silent(stores: Stores) -> None:
    delivery = await made_taken(stores)
    await stores.scheduler.done(delivery)
    await stores.scheduler.done(delivery)
    await stores.scheduler.wake_at(delivery, stores.clock.now())
    stores.clock.advance(10 * LEASE)
    assert await look(stores) is None


async def test_s3_done_removes_nothing_newer(stores: Stores) -> None:
    late = await made_taken(stores)
    stores.clock.advance(LEASE)
    held = await taken(stores)
    await stores.scheduler.done(late)
    assert await stores.scheduler.holds(held)
    stores.clock.advance(LEASE)
    await taken(stores)


async def test_s3_done_for_a_lapsed_delivery_made_ready_again_is_silent(stores: Stores) -> None:
    late = await made_taken(stores)
    stores.clock.advance(LEASE + SECOND)
    await stores.scheduler.make_ready("w")
    await stores.scheduler.done(late)
    await taken(stores)


@pytest.mark.parametrize("receipt", ["", "garbage", "nan x", "1e999 x", "1.0", "\0", "0x1 é"])
async def test_s3_an_answer_under_a_receipt_of_nobody_touches_nothing(
    receipt: str, stores: Stores
) -> None:
    held = await made_taken(stores)
    stranger = Delivery("w", receipt)
    await stores.scheduler.done(stranger)
    await stores.scheduler.wake_at(stranger, stores.clock.now())
    assert await stores.scheduler.extend(stranger, LEASE) == stranger
    assert not await stores.scheduler.holds(stranger)
    assert await stores.scheduler.holds(held)
    assert await look(stores) is None


async def test_s4_wake_at_answers_and_sets_the_next_wakeup(stores: Stores) -> None:
    delivery = await made_taken(stores)
    await stores.scheduler.wake_at(delivery, stores.clock.now() + HOURS)
    await stores.scheduler.done(delivery)
    await assert_comes_after(stores, HOURS)


@each_wake
async def test_s4_wake_at_never_overwrites_a_wakeup_that_arrived_since(
    wake: Wake, stores: Stores
) -> None:
    delivery = await made_taken(stores)
    await wake(stores)
    await stores.scheduler.wake_at(delivery, stores.clock.now() + HOURS)
    await taken(stores)


async def test_s4_wake_at_never_moves_a_delivery_that_is_somebody_elses(stores: Stores) -> None:
    late = await made_taken(stores)
    stores.clock.advance(LEASE)
    held = await taken(stores)
    await stores.scheduler.wake_at(late, stores.clock.now())
    assert await stores.scheduler.holds(held)
    assert await look(stores) is None


@pytest.mark.parametrize("how", ["cancel", "delete"])
async def test_s4_no_answer_revives_a_cancelled_workflow(how: str, stores: Stores) -> None:
    delivery = await made_taken(stores)
    await (stores.scheduler.cancel if how == "cancel" else stores.durable.delete)("w")
    await stores.scheduler.wake_at(delivery, stores.clock.now())
    assert await stores.scheduler.extend(delivery, LEASE) == delivery
    assert not await stores.scheduler.holds(delivery)
    stores.clock.advance(10 * LEASE)
    assert await look(stores) is None


async def test_s5_extend_keeps_a_delivery_for_that_long_from_now(stores: Stores) -> None:
    delivery = await made_taken(stores)
    stores.clock.advance(LEASE - SECOND)
    extended = await stores.scheduler.extend(delivery, 2 * LEASE)
    assert await stores.scheduler.holds(extended)
    stores.clock.advance(2 * LEASE - MILLISECOND)
    assert await look(stores) is None
    await stores.scheduler.done(extended)
    stores.clock.advance(MILLISECOND)
    assert await look(stores) is None


async def test_s5_extend_may_also_bring_the_end_forward(stores: Stores) -> None:
    await stores.scheduler.extend(await made_taken(stores), SECOND)
    stores.clock.advance(SECOND)
    await taken(stores)


async def test_s5_the_delivery_before_an_extension_answers_for_nothing(stores: Stores) -> None:
    delivery = await made_taken(stores)
    extended = await stores.scheduler.extend(delivery, LEASE)
    assert extended != delivery
    await stores.scheduler.done(delivery)
    assert await stores.scheduler.extend(delivery, LEASE) == delivery
    assert await stores.scheduler.holds(extended)


async def test_s5_extend_of_a_delivery_no_longer_held_returns_it(stores: Stores) -> None:
    late = await made_taken(stores)
    stores.clock.advance(LEASE)
    held = await taken(stores)
    assert await stores.scheduler.extend(late, LEASE) == late
    assert await stores.scheduler.holds(held)


@pytest.mark.parametrize("state", ["ready", "sleeping", "out", "unknown"])
async def test_s6_cancel_removes_every_wakeup_whatever_its_state(
    state: str, stores: Stores
) -> None:
    if state == "sleeping":
        await stores.scheduler.schedule("w", stores.clock.now() + LEASE)
    elif state != "unknown":
        await stores.scheduler.make_ready("w")
    if state == "out":
        await taken(stores)
    await stores.scheduler.make_ready("other")
    await stores.scheduler.cancel("w")
    stores.clock.advance(10 * LEASE)
    await stores.scheduler.done(await taken(stores, "other"))
    assert await look(stores) is None


async def test_s7_wake_due_reports_only_what_is_due_and_makes_it_ready(stores: Stores) -> None:
    clock, scheduler = stores.clock, stores.scheduler
    for seconds, workflow in ((2, "b"), (1, "a"), (9, "late")):
        await scheduler.schedule(workflow, clock.now() + seconds * SECOND)
    assert await scheduler.wake_due(clock.now()) == ()
    clock.advance(2 * SECOND)
    reported = await scheduler.wake_due(clock.now())
    assert reported == (("a", "b") if isinstance(scheduler, MemoryScheduler) else ())
    assert await scheduler.wake_due(clock.now()) == ()
    assert [(await taken(stores, workflow)).workflow for workflow in ("a", "b")] == ["a", "b"]
    assert await look(stores) is None


async def test_moments_without_a_zone_are_refused(stores: Stores) -> None:
    delivery = await made_taken(stores)
    naive = datetime(2030, 1, 1)  # noqa: DTZ001
    for call in (
        stores.scheduler.wake_at(delivery, naive),
        stores.scheduler.schedule("w", naive),
        stores.scheduler.wake_due(naive),
    ):
        with pytest.raises(ValueError, match="timezone-aware"):
            await call
    assert await stores.scheduler.holds(delivery)


async def test_waits_may_be_zero_and_never_negative(stores: Stores) -> None:
    scheduler = stores.scheduler
    assert await scheduler.next_ready(NOW) is None
    assert await scheduler.reclaim(NOW) is None
    delivery = await made_taken(stores)
    for name, call in {
        "within": scheduler.next_ready(-SECOND),
        "idle": scheduler.reclaim(-SECOND),
        "within ": scheduler.extend(delivery, NOW),
    }.items():
        with pytest.raises(ValueError, match=name.strip()):
            await call
    with pytest.raises(ValueError, match="lease"):
        MemoryScheduler(lease=NOW)


# --- S8 to S11 -----------------------------------------------------------------------------------


async def test_s8_receipts_never_repeat_whatever_the_clock_does(stores: Stores) -> None:
    seen = []
    for step in (NOW, NOW, SECOND, -SECOND, -HOURS, HOURS):
        stores.clock.advance(step)
        await stores.scheduler.cancel("w")
        seen.append(await made_taken(stores))
        seen.append(await stores.scheduler.extend(seen[-1], LEASE))
        await stores.scheduler.make_ready("w")
        seen.append(await taken(stores))
    assert len(set(seen)) == len(seen)
    for stale in seen[:-1]:
        await stores.scheduler.done(stale)
    assert await stores.scheduler.holds(seen[-1])


async def test_s9_a_delivery_taken_for_a_cancelled_caller_is_visible_at_once(path: Path) -> None:
    clock = GatedClock()
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        stores = over_sqlite(database, clock)
        await stores.scheduler.make_ready("w")
        clock.stop_at_reading(2)  # the first look needs no lock
        task = asyncio.create_task(stores.scheduler.next_ready(HOURS))
        await clock.reached()
        await cancelled(task)
        clock.open()
        await taken(stores)


async def test_s9_a_take_cancelled_before_it_has_the_write_lock_does_not_happen(
    database: Database, path: Path, clock: Clock
) -> None:
    stores = over_sqlite(database, clock)
    await stores.scheduler.make_ready("w")
    with write_lock(path):
        task = asyncio.create_task(stores.scheduler.next_ready(HOURS))
        await running(database.connection, "BEGIN IMMEDIATE", task)
        await cancelled(task)
    await taken(stores)


async def test_s9_a_wakeup_outlives_the_cancelling_of_whoever_waited_for_it(
    stores: Stores,
) -> None:
    waiting = asyncio.create_task(stores.scheduler.next_ready(HOURS))
    await turns()
    await stores.scheduler.make_ready("w")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await taken(stores)


@pytest.mark.parametrize("extended_before", [False, True])
async def test_s9_an_extension_for_a_cancelled_caller_leaves_the_old_receipt_good(
    extended_before: bool, path: Path
) -> None:
    clock = GatedClock()
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        stores = over_sqlite(database, clock)
        delivery = await made_taken(stores)
        span = LEASE
        if extended_before:
            span = 5 * LEASE
            delivery = await stores.scheduler.extend(delivery, span)
        clock.stop_at_reading(1)
        task = asyncio.create_task(stores.scheduler.extend(delivery, 9 * LEASE))
        await clock.reached()
        await cancelled(task)
        clock.open()
        assert await look(stores) is None
        assert await stores.scheduler.holds(delivery)
        clock.advance(span - MILLISECOND)
        assert await look(stores) is None
        assert await stores.scheduler.holds(delivery), "the old receipt was not left as it was"
        clock.advance(MILLISECOND)
        await taken(stores)


@each_wake
async def test_s10_making_ready_what_is_ready_never_makes_it_later(
    wake: Wake, stores: Stores
) -> None:
    await wake(stores)
    stores.clock.advance(SECOND)
    await stores.scheduler.make_ready("second")
    stores.clock.advance(SECOND)
    await wake(stores)
    assert [(await taken(stores, name)).workflow for name in ("w", "second")] == ["w", "second"]
    assert await look(stores) is None, "one wakeup was delivered twice"


async def test_s10_making_ready_with_the_clock_set_back_makes_it_ready_at_that_moment(
    stores: Stores,
) -> None:
    await stores.scheduler.make_ready("w")
    stores.clock.advance(-HOURS)
    await stores.scheduler.make_ready("w")
    await taken(stores)


@each_wake
async def test_s10_making_ready_brings_a_sleeper_forward(wake: Wake, stores: Stores) -> None:
    await stores.scheduler.schedule("w", stores.clock.now() + HOURS)
    await wake(stores)
    await stores.scheduler.done(await taken(stores))
    stores.clock.advance(HOURS)
    assert await look(stores) is None


@pytest.mark.parametrize("state", ["ready", "sleeping", "out"])
async def test_s10_schedule_moves_unconditionally(state: str, stores: Stores) -> None:
    delivery = Delivery("w", "none")
    if state == "sleeping":
        await stores.scheduler.schedule("w", stores.clock.now() + SECOND)
    else:
        await stores.scheduler.make_ready("w")
    if state == "out":
        delivery = await taken(stores)
    await stores.scheduler.schedule("w", stores.clock.now() + HOURS)
    await stores.scheduler.done(delivery)
    await assert_comes_after(stores, HOURS)


@each_wake
async def test_s10_an_injected_now_decides_when_it_is_visible(
    wake: Wake, database: Database, clock: Clock
) -> None:
    later = Clock(clock.now() + HOURS)
    stores = Stores(
        SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database, now=later.now)), clock
    )
    await wake(stores)
    assert await look(stores) is None
    clock.advance(HOURS)
    await taken(stores)


async def test_s11_what_was_made_ready_before_is_found_without_waiting(stores: Stores) -> None:
    for name in ("a", "b"):
        await stores.scheduler.make_ready(name)
    found = {(await stores.scheduler.next_ready(NOW)).workflow for _ in range(2)}
    assert found == {"a", "b"}


async def test_s11_what_another_process_made_ready_before_is_found_without_waiting(
    database: Database, path: Path, clock: Clock
) -> None:
    assert await SqliteScheduler(database).next_ready(NOW) is None
    async with connect(path, clock=clock.seconds) as second:
        await SqliteScheduler(second).make_ready("w")
    assert await SqliteScheduler(database).next_ready(NOW)


async def test_s6_a_namespace_is_a_queue_of_its_own(database: Database) -> None:
    mine, other = SqliteScheduler(database), SqliteScheduler(database, "other")
    await mine.make_ready("w")
    assert await other.next_ready(NOW) is None
    await other.cancel("w")
    delivery = await mine.next_ready(NOW)
    assert delivery is not None
    await other.done(delivery)
    assert await mine.holds(delivery)


async def test_s4_wake_at_is_one_commit(database: Database, path: Path, clock: Clock) -> None:
    stores = over_sqlite(database, clock)
    delivery = await made_taken(stores)
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute(
            "CREATE TRIGGER refuse AFTER UPDATE ON workflow_queue "
            "BEGIN SELECT raise(ABORT, 'no'); END"
        )
    with pytest.raises(sqlite3.IntegrityError):
        await stores.scheduler.wake_at(delivery, clock.now() + HOURS)
    assert await stores.scheduler.holds(delivery)
