"""Durables that break a clause."""

from __future__ import annotations

import asyncio

from without_durability import INBOX, SplitDurable

from .breaking import breaks


@breaks("D1", "arrive of 'second'")
class ArriveAnswersWhatItWasGiven(SplitDurable):
    async def arrive(self, workflow, key, value):
        await super().arrive(workflow, key, value)
        return value


@breaks("D1", "was not delivered")
class ArriveWakesNobody(SplitDurable):
    async def arrive(self, workflow, key, value):
        return await self.checkpointer.supply(workflow, key, value)


@breaks("D2", "was not delivered")
class DeliverWakesNobody(SplitDurable):
    async def deliver(self, workflow, value):
        return await self.checkpointer.append(workflow, value)


@breaks("D2", "deliver answered")
class DeliverAppendsTwice(SplitDurable):
    async def deliver(self, workflow, value):
        await self.checkpointer.append(workflow, value)
        return await super().deliver(workflow, value)


@breaks("D3", "it was deleted, and yet")
class DeleteLeavesTheWakeup(SplitDurable):
    async def delete(self, workflow):
        return await self.checkpointer.discard(workflow)


@breaks("D3", "delete of two records answered")
class DeleteOnlyCancels(SplitDurable):
    async def delete(self, workflow):
        await self.scheduler.cancel(workflow)
        return 0


@breaks("D3", "delete left records behind")
class DeleteKeepsTheMessages(SplitDurable):
    async def delete(self, workflow):
        records = self.checkpointer.hashes.get(workflow, {})
        count = await super().delete(workflow)
        if count:
            self.checkpointer.hashes[workflow] = {
                key: stored for key, stored in records.items() if key.startswith(INBOX)
            }
        return count


@breaks("D3", "delete of nothing counts something")
class DeleteCountsTheWorkflow(SplitDurable):
    async def delete(self, workflow):
        return await super().delete(workflow) or 1


@breaks("D3", "delete of no records answered")
class DeleteCountsTheWakeup(SplitDurable):
    async def delete(self, workflow):
        queue = self.scheduler
        waits = any(workflow in one for one in (queue.queue, queue.outstanding, queue.sleeping))
        return await super().delete(workflow) or int(waits)


@breaks("D4", "queued what it had not recorded")
class ArriveQueuesFirst(SplitDurable):
    async def arrive(self, workflow, key, value):
        await self.scheduler.make_ready(workflow)
        await asyncio.sleep(0)
        return await self.checkpointer.supply(workflow, key, value)


@breaks("D4", "queued what it had not recorded")
class DeliverQueuesFirst(SplitDurable):
    async def deliver(self, workflow, value):
        await self.scheduler.make_ready(workflow)
        await asyncio.sleep(0)
        return await self.checkpointer.append(workflow, value)


@breaks("D4", "left a wakeup that starts afresh")
class DeleteDiscardsFirst(SplitDurable):
    async def delete(self, workflow):
        count = await self.checkpointer.discard(workflow)
        await asyncio.sleep(0)
        await self.scheduler.cancel(workflow)
        return count
