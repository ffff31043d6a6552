"""The clauses of the scheduler, each as a check that any store can be put to."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from ..values import Delivery
from .subject import (
    MINUTE,
    NOW,
    SECOND,
    Subject,
    cancelled_in_every_turn,
    eventually,
    expect,
    expect_refused,
)

__all__ = [
    "check_s1_no_wakeup_is_lost",
    "check_s2_a_delivery_is_its_takers_for_a_lease",
    "check_s3_done_removes_its_own_wakeup_and_nothing_newer",
    "check_s4_wake_at_answers_and_sets_the_next_wakeup",
    "check_s5_extend_keeps_a_delivery",
    "check_s6_cancel_removes_every_wakeup",
    "check_s7_wake_due_moves_what_it_reports",
    "check_s8_receipts_never_repeat",
    "check_s9_a_delivery_for_a_cancelled_caller_is_visible_at_once",
    "check_s10_asking_twice_makes_nothing_later",
    "check_s11_what_is_ready_is_found_without_waiting",
]

HOURS = timedelta(hours=3)
NAP = timedelta(days=1)


async def check_s1_no_wakeup_is_lost(subject: Subject) -> None:
    async with subject.opened() as at:
        await at.scheduler.make_ready("w")
        await at.taken("w")
        at.pass_lease()
        delivery = await at.taken("w")  # its taker died

        await at.scheduler.make_ready("w")  # while a pass on it is running
        await at.scheduler.done(delivery)
        await at.scheduler.done(await at.taken("w"))

        await at.scheduler.make_ready("w")
        if subject.reopen is not None:
            async with subject.reopened(at.clock) as after:
                await after.taken("w")


async def check_s2_a_delivery_is_its_takers_for_a_lease(subject: Subject) -> None:
    async with subject.opened() as at:
        await at.expect_quiet("nothing was made ready")
        await at.scheduler.make_ready("w")
        await at.taken("w")
        await at.expect_quiet("the one that was ready is taken")
        at.clock.advance(at.scheduler.lease - SECOND)
        await at.expect_quiet("its lease is not over")
        at.clock.advance(2 * SECOND)
        await at.scheduler.done(await at.taken("w"))

        waiting = asyncio.ensure_future(at.scheduler.next_ready(MINUTE))
        for _ in range(20):
            await asyncio.sleep(0)
        await at.scheduler.make_ready("late")
        delivery = await waiting
        expect(
            delivery is not None and delivery.workflow == "late",
            f"next_ready waited for a minute and gave {delivery} when one became ready",
        )


async def check_s3_done_removes_its_own_wakeup_and_nothing_newer(subject: Subject) -> None:
    async with subject.opened() as at:
        await at.scheduler.make_ready("w")
        delivery = await at.taken("w")
        for _ in range(2):
            await at.scheduler.done(delivery)
        await at.scheduler.done(Delivery("unknown", "never given"))
        at.pass_lease()
        await at.expect_quiet("its delivery was answered with done")

        await at.scheduler.make_ready("w")
        old = await at.taken("w")
        at.pass_lease()
        await at.taken("w")
        await at.scheduler.done(old)
        at.pass_lease()
        await at.taken("w")  # a late done for the first of the two removed nothing


async def check_s4_wake_at_answers_and_sets_the_next_wakeup(subject: Subject) -> None:
    async with subject.opened() as at:

        async def taken_anew() -> Delivery:
            await at.scheduler.make_ready("w")
            return await at.taken("w")

        delivery = await taken_anew()
        await expect_refused(
            ValueError,
            at.scheduler.wake_at(delivery, at.clock.now().replace(tzinfo=None)),
            "a naive moment is taken for something",
        )
        await at.scheduler.wake_at(delivery, at.clock.now() + NAP)
        at.clock.advance(NAP - SECOND)
        await at.expect_quiet("it sleeps for another second")
        at.clock.advance(2 * SECOND)
        delivery = await at.taken("w")

        await at.scheduler.make_ready("w")
        await at.scheduler.wake_at(delivery, at.clock.now() + NAP)
        delivery = await at.taken("w")  # woken meanwhile: the wakeup stands

        at.pass_lease()
        newer = await at.taken("w")
        await at.scheduler.wake_at(delivery, at.clock.now())
        await at.expect_quiet("its newer taker holds it")
        await at.scheduler.done(newer)

        delivery = await taken_anew()
        await at.scheduler.cancel("w")
        await at.scheduler.wake_at(delivery, at.clock.now())
        await at.expect_quiet("it was cancelled, and a late answer revives nothing")


async def check_s5_extend_keeps_a_delivery(subject: Subject) -> None:
    async with subject.opened() as at:
        await at.scheduler.make_ready("w")
        delivery = await at.taken("w")
        long = 3 * at.scheduler.lease
        extended = await at.scheduler.extend(delivery, long)
        at.clock.advance(long - SECOND)
        await at.expect_quiet("its delivery was extended")
        at.clock.advance(2 * SECOND)
        newer = await at.taken("w")
        for stale in (delivery, extended, Delivery("unknown", "never given")):
            answer = await at.scheduler.extend(stale, long)
            expect(answer == stale, f"extending {stale}, which is not held, answered {answer}")
        at.pass_lease()
        newest = await at.taken("w")  # the stale extensions kept nothing from anybody
        await at.scheduler.done(newer)
        await at.scheduler.done(await at.scheduler.extend(newest, long))
        at.clock.advance(long + SECOND)
        await at.expect_quiet("the delivery an extension returned was answered with done")


async def check_s6_cancel_removes_every_wakeup(subject: Subject) -> None:
    async with subject.opened() as at:
        await at.scheduler.cancel("unknown")
        for state in ("ready", "out with a worker", "sleeping"):
            await at.scheduler.make_ready(state)
            if state != "ready":
                delivery = await at.taken(state)
            if state == "sleeping":
                await at.scheduler.wake_at(delivery, at.clock.now() + NAP)
            await at.scheduler.cancel(state)
            at.clock.advance(NAP + at.scheduler.lease + SECOND)
            await at.expect_quiet(f"it was cancelled while it was {state}")


async def check_s7_wake_due_moves_what_it_reports(subject: Subject) -> None:
    async with subject.opened() as at:
        for workflow in ("early", "late"):
            await at.scheduler.make_ready(workflow)
        early, late = [await at.taken(workflow) for workflow in ("early", "late")]
        await at.scheduler.wake_at(early, at.clock.now() + NAP)
        await at.scheduler.wake_at(late, at.clock.now() + 2 * NAP)
        moved = tuple(await at.scheduler.wake_due(at.clock.now()))
        expect(moved == (), f"{moved} were woken before they were due")
        at.clock.advance(NAP + SECOND)
        moved = tuple(await at.scheduler.wake_due(at.clock.now()))
        expect(moved in ((), ("early",)), f"{moved} were woken where 'early' was due")
        again = tuple(await at.scheduler.wake_due(at.clock.now()))
        expect(again == (), f"{again} were reported twice")
        delivery = await at.scheduler.next_ready(NOW)
        expect(
            delivery is not None and delivery.workflow == "early",
            f"after wake_due {delivery} was delivered where 'early' was due",
        )
        await at.expect_quiet("the other one sleeps")


async def check_s8_receipts_never_repeat(subject: Subject) -> None:
    async with subject.opened() as at:
        receipts: list[str] = []
        for number in range(60):
            await at.scheduler.make_ready("w")
            delivery = await at.taken("w")
            if number % 3 == 0:
                delivery = await at.scheduler.extend(delivery, at.scheduler.lease)
            if number % 3 == 1:
                await at.scheduler.done(delivery)
            if number % 20 == 19:
                at.clock.advance(-SECOND)
            receipts.append(delivery.receipt)
        repeated = len(receipts) - len(set(receipts))
        expect(repeated == 0, f"{repeated} of {len(receipts)} takes got a receipt given before")


async def check_s9_a_delivery_for_a_cancelled_caller_is_visible_at_once(subject: Subject) -> None:
    async with subject.opened() as at:
        wakers: list[asyncio.Future[None]] = []

        async def taken(_: str) -> Delivery | None:
            return await at.scheduler.next_ready(MINUTE)

        async def woken_and_taken(_: str) -> Delivery | None:
            wakers.append(asyncio.ensure_future(at.scheduler.make_ready("w")))
            return await at.scheduler.next_ready(MINUTE)

        async def is_back(call: str, delivery: Delivery | None) -> None:
            if delivery is None:
                delivery = await eventually(at.take)
                expect(delivery is not None, f"{call} keeps what nobody heard of")
                assert delivery is not None
            await at.scheduler.done(delivery)
            await at.scheduler.make_ready("w")

        async def wakeup_is_there(call: str, delivery: Delivery | None) -> None:
            while wakers:
                await wakers.pop()
            await is_back(call, delivery)

        await at.scheduler.make_ready("w")
        await cancelled_in_every_turn("a take", taken, is_back)
        await cancelled_in_every_turn("a take of what just woke", woken_and_taken, wakeup_is_there)


async def check_s10_asking_twice_makes_nothing_later(subject: Subject) -> None:
    async with subject.opened() as at:
        for workflow in ("old", "mid", "old"):
            await at.scheduler.make_ready(workflow)
            at.clock.advance(SECOND)
        await at.durable.arrive("old", "k", 1)
        await at.durable.deliver("old", "message")
        old = await at.taken("old")
        await at.scheduler.done(await at.taken("mid"))
        await at.scheduler.make_ready("old")
        await at.scheduler.done(old)  # under a changed receipt: this is not the newer wakeup
        await at.taken("old")


async def check_s11_what_is_ready_is_found_without_waiting(subject: Subject) -> None:
    async with subject.opened() as at:
        for workflow, step in (("w", NOW), ("forward", HOURS), ("back", -HOURS)):
            await at.scheduler.make_ready(workflow)
            at.clock.advance(step)
            delivery = await at.scheduler.next_ready(NOW)
            expect(
                delivery is not None and delivery.workflow == workflow,
                f"{workflow!r} was made ready, the clock moved by {step}, and {delivery} was found",
            )
            assert delivery is not None
            await at.scheduler.done(delivery)
