"""Schedulers and durables that mislay a wakeup, or keep one too many."""

from __future__ import annotations

from datetime import UTC, timedelta

from without_durability import Delivery, SplitDurable

from .breaking import Queue, breaks


@breaks("S1", "was not delivered")
class ASleeperIsNotWoken(Queue):
    async def make_ready(self, workflow):
        if self.sleeping.get(workflow) is None:
            await super().make_ready(workflow)

    async def wake_due(self, now):
        due = await super().wake_due(now)
        for workflow in [one for one, when in self.sleeping.items() if when <= now]:
            del self.sleeping[workflow]
            await super().make_ready(workflow)
        return due


@breaks("S1", "of 25 workflows")
class ABatchIsTakenForOne(Queue):
    async def next_ready(self, within):
        delivery = await super().next_ready(within)
        if len(self.queue) > 5:
            self.queue.clear()
        return delivery


@breaks("S2", "it did not end")
class AShortWaitIsForever(Queue):
    async def next_ready(self, within):
        return await super().next_ready(timedelta(hours=1) if within else within)


@breaks("S2", "reclaim gave it to another")
class ReclaimTakesFromTheLiving(Queue):
    async def reclaim(self, idle):
        if idle < self.lease and self.outstanding:
            return self._delivered(next(iter(self.outstanding)), self.lease)
        return await super().reclaim(idle)


@breaks("S2", "reclaim was to wait for three")
class ReclaimIgnoresIdle(Queue):
    async def reclaim(self, idle):
        return await super().reclaim(self.lease)


@breaks("S2", "that lapsed is taken again")
class ASecondTakeHasNoLease(Queue):
    async def next_ready(self, within):
        lapsed = not self.queue and self._lapsed() is not None
        delivery = await super().next_ready(within)
        if lapsed and delivery:
            self.outstanding[delivery.workflow] = (delivery, self.clock())
        return delivery


@breaks("S3", "was not delivered")
class DoneUndoesASleep(Queue):
    async def done(self, delivery):
        await super().done(delivery)
        if delivery.receipt.isdigit():
            self.sleeping.pop(delivery.workflow, None)


@breaks("S4", "when it was answered again")
class WakeAtTwiceMoves(Queue):
    async def wake_at(self, delivery, when):
        await super().wake_at(delivery, when)
        if delivery.workflow in self.sleeping and delivery.receipt.isdigit():
            self.sleeping[delivery.workflow] = when


@breaks("S4", "was not delivered")
class APastMomentIsNoWakeup(Queue):
    async def wake_at(self, delivery, when):
        await super().wake_at(delivery, when)
        if when.utcoffset() is not None and when.timestamp() < self.clock():
            self.sleeping.pop(delivery.workflow, None)


@breaks("S4", "was not delivered")
class WakeAtForgetsTheZone(Queue):
    async def wake_at(self, delivery, when):
        await super().wake_at(delivery, when if when.tzinfo is None else when.replace(tzinfo=UTC))


@breaks("S5", "was woken meanwhile")
class AnExtensionHidesANewerWakeup(Queue):
    async def extend(self, delivery, within):
        if delivery.workflow in self.queue:
            self.queue.remove(delivery.workflow)
            return self._delivered(delivery.workflow, within)
        return await super().extend(delivery, within)


@breaks("S5", "a late extension revives nothing")
class AnExtensionRevives(Queue):
    async def extend(self, delivery, within):
        if (
            delivery.receipt.isdigit()
            and delivery.workflow not in self.outstanding
            and delivery.workflow not in self.queue
            and delivery.workflow not in self.sleeping
        ):
            self._delivered(delivery.workflow, within)
            return delivery
        return await super().extend(delivery, within)


@breaks("S5", "extending what sleeps")
class AnExtensionEndsASleep(Queue):
    async def extend(self, delivery, within):
        if delivery.workflow in self.sleeping and delivery.receipt.isdigit():
            del self.sleeping[delivery.workflow]
            return self._delivered(delivery.workflow, within)
        return await super().extend(delivery, within)


@breaks("S6", "'w2' is ready and was not")
class CancelMatchesAPrefix(Queue):
    async def cancel(self, workflow):
        await super().cancel(workflow)
        for other in [*self.queue, *self.outstanding, *self.sleeping]:
            if other.startswith(workflow):
                await super().cancel(other)


@breaks("S6", "ready again while it was out")
class CancelTakesOneOfTwo(Queue):
    """A wakeup that arrived during a pass is kept beside the delivery."""

    async def make_ready(self, workflow):
        held = self.outstanding.get(workflow)
        await super().make_ready(workflow)
        if held:
            self.outstanding[workflow] = held

    async def cancel(self, workflow):
        if workflow in self.queue and workflow in self.outstanding:
            self.outstanding.pop(workflow)
            return
        await super().cancel(workflow)


@breaks("C18", "what should have arrived was refused")
class ArriveRefusesTooLate(SplitDurable):
    async def arrive(self, workflow, key, value):
        await self.scheduler.make_ready(workflow)
        return await super().arrive(workflow, key, value)


@breaks("C19", "would have made it ready was refused")
class DeliverRefusesTooLate(SplitDurable):
    async def deliver(self, workflow, value):
        await self.scheduler.make_ready(workflow)
        return await super().deliver(workflow, value)


@breaks("D3", "it was deleted while it was ready")
class DeleteOnlyWhatIsRecorded(SplitDurable):
    async def delete(self, workflow):
        if not await self.checkpointer.load(workflow):
            return 0
        return await super().delete(workflow)


@breaks("D3", "while it was out with a worker")
class DeleteSparesWhatIsOut(SplitDurable):
    async def delete(self, workflow):
        out = self.scheduler.outstanding.get(workflow)
        count = await super().delete(workflow)
        if out:
            self.scheduler.outstanding[workflow] = out
        return count


@breaks("D3", "while it was asleep")
class DeleteSparesSleepers(SplitDurable):
    async def delete(self, workflow):
        out = self.scheduler.sleeping.get(workflow)
        count = await super().delete(workflow)
        if out:
            self.scheduler.sleeping[workflow] = out
        return count


@breaks("D3", "nobody was granted")
class DeleteWaitsForTheClaim(SplitDurable):
    async def delete(self, workflow):
        h = await self.checkpointer.claim(workflow, timedelta(minutes=1), timedelta(minutes=1))
        if h:
            await self.checkpointer.release(h)
        return await super().delete(workflow)


@breaks("S3", "was not delivered")
class DoneComparesTheMomentOfTheReceipt(Queue):
    def _delivered(self, workflow, within):
        until = self.clock() + within.total_seconds()
        delivery = Delivery(workflow, f"{next(self.receipts)} {until}")
        self.outstanding[workflow] = delivery, until
        return delivery

    async def done(self, delivery):
        held = self.outstanding.get(delivery.workflow)
        if held is not None and delivery.receipt.endswith(f" {held[1]}"):
            del self.outstanding[delivery.workflow]
