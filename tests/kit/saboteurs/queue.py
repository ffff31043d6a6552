"""Schedulers that break a clause."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta

from without_durability import (
    Delivery,
)

from .breaking import Queue, breaks


@breaks("S1", "was not delivered")
class ADeadTakersWakeupIsLost(Queue):
    async def next_ready(self, within):
        delivery = await super().next_ready(within)
        if delivery is not None:
            self.outstanding[delivery.workflow] = (delivery, float("inf"))
        return delivery


@breaks("S1", "was not delivered")
class AWakeupWhileItRunsIsLost(Queue):
    async def make_ready(self, workflow):
        if workflow not in self.outstanding:
            await super().make_ready(workflow)


@breaks("S2", "nothing was made ready")
class AQueueBeginsWithAWakeup(Queue):
    def __init__(self, **options):
        super().__init__(deque(["the first"]), **options)


@breaks("S2", "the one that was ready is taken")
class ATakeIsNotExclusive(Queue):
    async def next_ready(self, within):
        delivery = await super().next_ready(within)
        if delivery is not None:
            self.queue.append(delivery.workflow)
        return delivery


@breaks("S2", "its lease is not over, and yet Delivery")
class ALeaseIsTooShort(Queue):
    async def next_ready(self, within):
        delivery = await super().next_ready(within)
        if delivery is not None:
            self.outstanding[delivery.workflow] = (delivery, self.clock() + 1)
        return delivery


@breaks("S2", "two waited in next_ready")
class NobodyWaits(Queue):
    async def next_ready(self, within):
        return await super().next_ready(timedelta(0))


@breaks("S3", "KeyError")
class AnsweringTwiceIsAnError(Queue):
    async def done(self, delivery):
        del self.outstanding[delivery.workflow]


@breaks("S3", "was not delivered")
class DoneAnswersForAnyDelivery(Queue):
    async def done(self, delivery):
        self.outstanding.pop(delivery.workflow, None)


@breaks("S3", "answered with done")
class DoneRemovesNothing(Queue):
    async def done(self, delivery):
        pass


@breaks("S4", "a naive moment")
class ANaiveMomentIsTaken(Queue):
    async def wake_at(self, delivery, when):
        if when.tzinfo is not None:
            await super().wake_at(delivery, when)


@breaks("S4", "its newer taker holds it")
class WakeAtIgnoresTheReceipt(Queue):
    async def wake_at(self, delivery, when):
        await super().wake_at(delivery, when)
        held = self.outstanding.get(delivery.workflow)
        if held is not None:
            await super().wake_at(held[0], when)


@breaks("S4", "was not delivered")
class WakeAtOverwritesANewerWakeup(Queue):
    async def wake_at(self, delivery, when):
        await super().wake_at(delivery, when)
        if delivery.workflow in self.queue:
            await self.schedule(delivery.workflow, when)


@breaks("S4", "a late answer revives nothing")
class WakeAtRevivesACancelledWorkflow(Queue):
    async def wake_at(self, delivery, when):
        await super().wake_at(delivery, when)
        elsewhere = (self.queue, self.outstanding, self.sleeping)
        if not any(delivery.workflow in one for one in elsewhere):
            self.sleeping[delivery.workflow] = when


@breaks("S4", "it sleeps for another second")
class ASleeperWakesEarly(Queue):
    async def wake_at(self, delivery, when):
        await super().wake_at(delivery, when - timedelta(minutes=1))


@breaks("S5", "its delivery was extended")
class AnExtensionKeepsNothing(Queue):
    async def extend(self, delivery, within):
        return delivery


@breaks("S5", "was not delivered")
class AStaleExtensionKeepsIt(Queue):
    async def extend(self, delivery, within):
        extended = await super().extend(delivery, within)
        held = self.outstanding.get(delivery.workflow)
        if held is not None:
            self.outstanding[delivery.workflow] = (held[0], self.clock() + within.total_seconds())
        return extended


@breaks("S5", "an extension returned was answered")
class AnExtensionReturnsADeadReceipt(Queue):
    async def extend(self, delivery, within):
        await super().extend(delivery, within)
        return delivery


@breaks("S6", "while it was ready")
class CancelForgetsTheQueue(Queue):
    async def cancel(self, workflow):
        ready = workflow in self.queue
        await super().cancel(workflow)
        if ready:
            self.queue.append(workflow)


@breaks("S6", "while it was sleeping")
class CancelForgetsSleepers(Queue):
    async def cancel(self, workflow):
        when = self.sleeping.get(workflow)
        await super().cancel(workflow)
        if when is not None:
            self.sleeping[workflow] = when


@breaks("S6", "while it was out with a worker")
class CancelForgetsWhatIsOut(Queue):
    async def cancel(self, workflow):
        held = self.outstanding.get(workflow)
        await super().cancel(workflow)
        if held is not None:
            self.outstanding[workflow] = held


@breaks("S7", "before they were due")
class EverySleeperIsDue(Queue):
    async def wake_due(self, now):
        return await super().wake_due(now + timedelta(days=10))


@breaks("S7", "where 'early' was due")
class WakeDueReportsAndForgets(Queue):
    async def wake_due(self, now):
        due = await super().wake_due(now)
        for workflow in due:
            self.queue.remove(workflow)
        return due


@breaks("S7", "reported twice")
class WakeDueReportsAgain(Queue):
    async def wake_due(self, now):
        due = await super().wake_due(now)
        return due or tuple(self.queue)


@breaks("S7", "were woken where 'early' was due")
class WakeDueReportsWhoSleepsOn(Queue):
    async def wake_due(self, now):
        due = await super().wake_due(now)
        return due and (*due, *self.sleeping)


@breaks("S7", "the other one sleeps")
class OneThatIsDueWakesTheOthers(Queue):
    async def wake_due(self, now):
        due = await super().wake_due(now)
        for workflow in [*self.sleeping] if due else []:
            await self.make_ready(workflow)
        return due


@breaks("S8", "a receipt given before")
class AReceiptIsAMoment(Queue):
    async def next_ready(self, within):
        delivery = await super().next_ready(within)
        if delivery is not None:
            delivery = Delivery(delivery.workflow, str(self.clock()))
            self.outstanding[delivery.workflow] = (delivery, self.clock() + 60)
        return delivery


@breaks("S8", "a receipt given before")
class AnExtensionKeepsTheReceipt(Queue):
    def __init__(self, **options):
        super().__init__(receipts=iter([0, 1, 2] * 100), **options)


@breaks("S9", "keeps what nobody heard of")
class ATakeCannotBeCancelled(Queue):
    async def next_ready(self, within):
        return await asyncio.shield(asyncio.ensure_future(super().next_ready(within)))


@breaks("S10", "'mid' was delivered where 'old'")
class AskingAgainQueuesAtTheEnd(Queue):
    async def make_ready(self, workflow):
        await self.cancel(workflow)
        await super().make_ready(workflow)


@breaks("S10", "was not delivered")
class AskingForATakenOneKeepsItsReceipt(Queue):
    async def done(self, delivery):
        await super().done(delivery)
        if delivery.workflow == "old" and delivery.workflow in self.queue:
            self.queue.remove(delivery.workflow)


@breaks("S11", "was found")
class AZeroWaitLooksNowhere(Queue):
    async def next_ready(self, within):
        return await super().next_ready(within) if within else None


@breaks("S11", "was found")
class WhatWasReadyBeforeTheClockWentBackIsFuture(Queue):
    async def make_ready(self, workflow):
        await super().make_ready(workflow)
        self.outstanding["moment"] = (Delivery("moment", ""), self.clock())

    async def next_ready(self, within):
        made = self.outstanding.pop("moment", None)
        return await super().next_ready(within) if made and made[1] <= self.clock() else None
