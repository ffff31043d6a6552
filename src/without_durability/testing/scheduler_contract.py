"""The clauses of the scheduler about wakeups and answers, each as a check."""

from __future__ import annotations

import asyncio
from datetime import timedelta, timezone

from ..values import Delivery
from .subject import (
    NOW,
    SECOND,
    Opened,
    Subject,
    eventually,
    expect,
    expect_refused,
    together,
)

__all__ = [
    "check_s1_no_wakeup_is_lost",
    "check_s2_a_delivery_is_its_takers_for_a_lease",
    "check_s3_done_removes_its_own_wakeup_and_nothing_newer",
    "check_s4_wake_at_answers_and_sets_the_next_wakeup",
    "check_s5_extend_keeps_a_delivery",
    "check_s6_cancel_removes_every_wakeup",
    "check_s7_wake_due_moves_what_it_reports",
]

NAP = timedelta(days=1)

SHORT = timedelta(milliseconds=5)
PATIENT = timedelta(seconds=10)
"""Of real time: a wait that ends with nothing, and one that something becomes ready in."""


async def check_s1_no_wakeup_is_lost(subject: Subject) -> None:
    """S1: a wakeup outlives its taker, a pass that runs meanwhile, and a crash (`reopen`)."""
    async with subject.opened() as at:
        await at.scheduler.make_ready("w")
        await at.taken("w")
        at.pass_lease()
        delivery = await at.taken("w")  # its taker died

        await at.scheduler.make_ready("w")  # while a pass on it is running
        await at.scheduler.done(delivery)
        await at.scheduler.done(await at.taken("w"))

        await at.scheduler.make_ready("w")
        await at.scheduler.wake_at(await at.taken("w"), at.clock.now() + NAP)
        await at.scheduler.make_ready("w")
        await at.scheduler.done(await at.taken("w"))  # it did not have to wait for its sleep

        many = [f"one of many, {number}" for number in range(25)]
        for workflow in many:
            await at.scheduler.make_ready(workflow)
        taken: list[Delivery] = []
        while len(taken) < len(many) and (one := await eventually(at.take)) is not None:
            taken.append(one)
        found = sorted(one.workflow for one in taken)
        expect(
            found == sorted(many), f"of 25 workflows made ready {len(set(found))} were delivered"
        )
        for one in taken:
            await at.scheduler.done(one)
        if subject.reopen is not None:
            await _expect_kept_in_a_crash(at, subject)


async def check_s2_a_delivery_is_its_takers_for_a_lease(subject: Subject) -> None:
    """S2: a delivery is invisible for its lease, and `next_ready` waits as long as it is told."""
    async with subject.opened() as at:
        await at.expect_quiet("nothing was made ready")
        await at.scheduler.make_ready("w")
        await at.taken("w")
        await at.expect_quiet("the one that was ready is taken")
        at.clock.advance(at.scheduler.lease - SECOND)
        await at.expect_quiet("its lease is not over")
        stolen = await at.scheduler.reclaim(NOW)
        expect(stolen is None, "its lease is not over, and yet reclaim gave it to another")
        at.clock.advance(2 * SECOND)
        early = await at.scheduler.reclaim(3 * at.scheduler.lease)
        expect(early is None, "its taker was silent for a lease, and reclaim was to wait for three")
        delivery = await at.taken("w")
        await at.expect_quiet("the one that lapsed is taken again")
        await at.scheduler.done(delivery)

        await at.scheduler.make_ready("w")
        for state in ("ready", "abandoned"):
            lease = at.scheduler.lease
            looks = [*(at.scheduler.next_ready(NOW) for _ in range(4))]
            if state == "abandoned":
                looks += [at.scheduler.reclaim(lease) for _ in range(4)]
            given = [one for one in await together(*looks) if one is not None]
            expect(len(given) < 2, f"one {state} workflow was given to {len(given)} takers at once")
            if not given:
                await at.taken("w")
            at.pass_lease()
        await at.scheduler.done(await at.taken("w"))

        nothing = await at.scheduler.next_ready(SHORT)
        expect(nothing is None, f"nothing was ready, and yet {nothing} was delivered")

        async def made_ready_later() -> None:
            for _ in range(20):
                await asyncio.sleep(0)
            for workflow in ("late", "later"):
                await at.scheduler.make_ready(workflow)

        waits = [at.scheduler.next_ready(PATIENT) for _ in range(2)]
        *woken, _ = await together(*waits, made_ready_later())
        found = sorted(one.workflow for one in woken if isinstance(one, Delivery))
        expect(
            found == ["late", "later"],
            f"two waited in next_ready for two that became ready, and were given {found}",
        )


async def check_s3_done_removes_its_own_wakeup_and_nothing_newer(subject: Subject) -> None:
    """S3: `done` removes the wakeup of its delivery, silently if it is held no more."""
    async with subject.opened() as at:
        await at.scheduler.make_ready("w")
        delivery = await at.taken("w")
        for _ in range(2):
            await at.scheduler.done(delivery)
        await at.scheduler.done(Delivery("unknown", "never given"))
        at.pass_lease()
        await at.expect_quiet("its delivery was answered with done")

        await at.scheduler.make_ready("w")
        delivery = await at.taken("w")
        await at.scheduler.wake_at(delivery, at.clock.now() + NAP)
        await at.scheduler.done(delivery)
        at.clock.advance(NAP + SECOND)
        await at.scheduler.done(await at.taken("w"))  # that done came after its answer

        await at.scheduler.make_ready("w")
        old = await at.taken("w")
        at.pass_lease()
        await at.taken("w")
        await at.scheduler.done(old)
        at.pass_lease()
        old = await at.taken("w")  # a late done for the first of the two removed nothing
        await at.scheduler.make_ready("w")
        await at.taken("w")
        await at.scheduler.done(old)
        at.pass_lease()
        await at.taken("w")  # nor did one for a delivery taken at the very same moment


async def check_s4_wake_at_answers_and_sets_the_next_wakeup(subject: Subject) -> None:
    """S4: `wake_at` puts to sleep what it answers for, and nothing newer or cancelled."""
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
        zone = timezone(timedelta(hours=9))
        await at.scheduler.wake_at(delivery, (at.clock.now() + NAP).astimezone(zone))
        await at.scheduler.wake_at(delivery, at.clock.now())
        await at.expect_quiet("its delivery had been answered for when it was answered again")
        at.clock.advance(NAP - SECOND)
        await at.expect_quiet("it sleeps for another second")
        at.clock.advance(2 * SECOND)
        delivery = await at.taken("w")

        await at.scheduler.make_ready("w")
        await at.scheduler.wake_at(delivery, at.clock.now() + NAP)
        delivery = await at.taken("w")  # woken meanwhile: the wakeup stands

        await at.scheduler.wake_at(delivery, at.clock.now() - NAP)
        delivery = await at.taken("w")  # it was to wake at a moment that had passed

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
    """S5: an extension keeps a delivery its taker's, and returns the one to use from then on."""
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

        async def expect_refused_extension(delivery: Delivery, state: str) -> None:
            answer = await at.scheduler.extend(delivery, long)
            expect(answer == delivery, f"extending what {state} answered {answer}")

        await at.scheduler.make_ready("w")
        delivery = await at.taken("w")
        await at.scheduler.make_ready("w")
        await expect_refused_extension(delivery, "was woken meanwhile")
        delivery = await at.taken("w")  # the wakeup that arrived is not hidden
        await at.scheduler.wake_at(delivery, at.clock.now() + SECOND)
        await expect_refused_extension(delivery, "sleeps")
        at.clock.advance(2 * SECOND)
        delivery = await at.taken("w")  # nor is the sleep's end
        await at.scheduler.cancel("w")
        await expect_refused_extension(delivery, "was cancelled")
        at.clock.advance(long + SECOND)
        await at.expect_quiet("it was cancelled, and a late extension revives nothing")


async def check_s6_cancel_removes_every_wakeup(subject: Subject) -> None:
    """S6: a cancelled workflow has no wakeup left, wherever it was."""
    async with subject.opened() as at:
        await at.scheduler.cancel("unknown")
        for state in ("ready", "out with a worker", "sleeping", "ready again while it was out"):
            await at.scheduler.make_ready(state)
            if state != "ready":
                delivery = await at.taken(state)
            if state == "sleeping":
                await at.scheduler.wake_at(delivery, at.clock.now() + NAP)
            if state == "ready again while it was out":
                await at.scheduler.make_ready(state)
            await at.scheduler.cancel(state)
            at.clock.advance(NAP + at.scheduler.lease + SECOND)
            await at.expect_quiet(f"it was cancelled while it was {state}")
        for workflow in ("w2", "w:2", "W"):
            await at.scheduler.make_ready(workflow)
            await at.scheduler.cancel("w")
            await at.scheduler.cancel("%")
            await at.scheduler.done(await at.taken(workflow))  # cancelled was another one


async def check_s7_wake_due_moves_what_it_reports(subject: Subject) -> None:
    """S7: `wake_due` moves what is due and only that, for good."""
    async with subject.opened() as at:
        await at.scheduler.make_ready("early")
        early = await at.taken("early")
        await at.scheduler.make_ready("late")
        late = await at.taken("late")
        await at.scheduler.wake_at(early, at.clock.now() + NAP)
        await at.scheduler.wake_at(late, at.clock.now() + 2 * NAP)
        moved = tuple(await at.scheduler.wake_due(at.clock.now()))
        expect(moved == (), f"{moved} were woken before they were due")
        at.clock.advance(NAP + SECOND)
        moved = tuple(await at.scheduler.wake_due(at.clock.now()))
        expect(moved in ((), ("early",)), f"{moved} were woken where 'early' was due")
        again = tuple(await at.scheduler.wake_due(at.clock.now()))
        expect(again == (), f"{again} were reported twice")
        delivery = await eventually(lambda: at.scheduler.next_ready(NOW))
        expect(
            delivery is not None and delivery.workflow == "early",
            f"after wake_due {delivery} was delivered where 'early' was due",
        )
        assert delivery is not None
        await at.expect_quiet("the other one sleeps")
        await at.scheduler.done(delivery)
        at.clock.advance(NAP)
        at_once = await together(*(at.scheduler.wake_due(at.clock.now()) for _ in range(4)))
        reported = [workflow for moved in at_once for workflow in moved]
        expect(reported in ([], ["late"]), f"{reported} were reported by four asking at once")
        if subject.reopen is not None:
            async with subject.reopened(at.clock) as after:
                await after.taken("late")  # what was moved is not lost in a crash
            at.pass_lease()
        await at.scheduler.done(await at.taken("late"))
        at.pass_lease()
        await at.expect_quiet("four woke it at once, and it was taken and done")


async def _expect_kept_in_a_crash(at: Opened, subject: Subject) -> None:
    """Whatever state a wakeup is in when the process dies, it is delivered again at last."""
    for state in ("was ready", "was out with a worker", "slept"):
        await at.scheduler.make_ready("w")
        if state != "was ready":
            delivery = await at.taken("w")
        if state == "slept":
            await at.scheduler.wake_at(delivery, at.clock.now() + NAP)
        async with subject.reopened(at.clock) as after:
            if state != "was ready":
                at.clock.advance(NAP)
                at.pass_lease()
            delivered = await eventually(after.take)
            expect(delivered is not None, f"what {state} is lost in a crash")
            assert delivered is not None
            await after.scheduler.done(delivered)
        await at.scheduler.cancel("w")
