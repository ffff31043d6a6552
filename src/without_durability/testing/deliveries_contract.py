"""The clauses of the scheduler about deliveries: receipts, takers and order, each as a check."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from ..values import Delivery
from .subject import (
    MINUTE,
    NOW,
    SECOND,
    Opened,
    Subject,
    cancelled_in_every_turn,
    eventually,
    expect,
)

__all__ = [
    "check_s8_receipts_never_repeat",
    "check_s9_a_delivery_for_a_cancelled_caller_is_visible_at_once",
    "check_s10_asking_twice_makes_nothing_later",
    "check_s11_what_is_ready_is_found_without_waiting",
]

HOURS = timedelta(hours=3)


async def check_s8_receipts_never_repeat(subject: Subject) -> None:
    """S8: no two takes carry one receipt, whatever the clock does, nor after a restart."""
    async with subject.opened() as at:
        receipts: list[str] = []
        for number in range(60):
            await at.scheduler.make_ready("w")
            delivery = await at.taken("w")
            receipts.append(delivery.receipt)
            if number % 3 == 0:
                taken = delivery
                delivery = await at.scheduler.extend(taken, at.scheduler.lease)
                receipts += {delivery.receipt} - {taken.receipt}
            if number % 3 == 1:
                await at.scheduler.done(delivery)
            if number % 20 == 19:
                at.clock.advance(-SECOND)
        if subject.reopen is not None:
            await at.scheduler.make_ready("w")
            async with subject.reopened(at.clock) as after:
                receipts.append((await after.taken("w")).receipt)
        repeated = len(receipts) - len(set(receipts))
        expect(repeated == 0, f"{repeated} of {len(receipts)} takes got a receipt given before")


async def check_s9_a_delivery_for_a_cancelled_caller_is_visible_at_once(subject: Subject) -> None:
    """S9: what was taken for a caller that never heard of it is there for the next."""
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

        async def taken_over(_: str) -> Delivery | None:
            lease = at.scheduler.lease
            return await at.scheduler.next_ready(NOW) or await at.scheduler.reclaim(lease)

        async def lapses_again(call: str, delivery: Delivery | None) -> None:
            delivery = delivery or await eventually(at.take)
            expect(delivery is not None, f"{call} keeps what nobody heard of")
            at.pass_lease()

        await at.taken("w")
        at.pass_lease()
        await cancelled_in_every_turn("a take of what lapsed", taken_over, lapses_again)


async def check_s10_asking_twice_makes_nothing_later(subject: Subject) -> None:
    """S10: asking again makes nothing later, and changes the receipt of what is out."""
    async with subject.opened() as at:
        if await _delivers_in_order(at):
            for workflow in ("old", "mid", "old"):
                await at.scheduler.make_ready(workflow)
                at.clock.advance(SECOND)
            await at.durable.arrive("old", "k", 1)
            await at.durable.deliver("old", "message")
            await at.scheduler.done(await at.taken("old"))
            await at.scheduler.done(await at.taken("mid"))
        await at.scheduler.make_ready("old")
        old = await at.taken("old")
        await at.scheduler.make_ready("old")
        await at.scheduler.done(old)  # under a changed receipt: this is not the newer wakeup
        await at.taken("old")


async def check_s11_what_is_ready_is_found_without_waiting(subject: Subject) -> None:
    """S11: what is ready is found by a look that does not wait, whatever the clock did since."""
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


async def _delivers_in_order(at: Opened) -> bool:
    """Whether what was made ready first is delivered first: no clause says that it must."""
    workflows = [f"in order {number}" for number in range(5)]
    for workflow in workflows:
        await at.scheduler.make_ready(workflow)
        at.clock.advance(SECOND)
    taken = [await eventually(at.take) for _ in workflows]
    for delivery in taken:
        if delivery is not None:
            await at.scheduler.done(delivery)
    return [one.workflow for one in taken if one is not None] == workflows
