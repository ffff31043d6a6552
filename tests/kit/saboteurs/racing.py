"""Stores that give the loop a turn between looking and writing."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from .breaking import Queue, Records, breaks

WAITING: set = set()


@breaks("C9", "of nine records of one key at once")
class RecordLooksThenWrites(Records):
    async def record(self, holder, key, value):
        known = await self.load(holder.workflow)
        await asyncio.sleep(0)
        if key in known:
            return await super().record(holder, key, value)
        self.hashes.get(holder.workflow, {}).pop(key, None)
        return await super().record(holder, key, value)


@breaks("C12", "of five transacts of one key at once")
class TransactLooksThenWrites(Records):
    async def transact(self, holder, key, effect):
        known = await self.load(holder.workflow)
        await asyncio.sleep(0)
        if key not in known:
            self.hashes.get(holder.workflow, {}).pop(key, None)
        return await super().transact(holder, key, effect)


@breaks("C13", "nine supplies of one key at once")
class SupplyLooksThenWrites(Records):
    async def supply(self, workflow, key, value):
        known = await self.load(workflow)
        await asyncio.sleep(0)
        if key not in known:
            self.put(workflow, key, value)
        return await super().supply(workflow, key, value)


@breaks("S2", "takers at once")
class ATakeLooksThenTakes(Queue):
    async def next_ready(self, within):
        ready = tuple(self.queue)
        await asyncio.sleep(0)
        for workflow in ready[:1]:
            if workflow in self.queue:
                self.queue.remove(workflow)
            return self._delivered(workflow, self.lease)
        return await super().next_ready(within)


@breaks("S2", "takers at once")
class ReclaimLooksThenTakes(Queue):
    async def next_ready(self, within):
        return await super().next_ready(within) if self.queue or within else None

    async def reclaim(self, idle):
        lapsed = self._lapsed(max(timedelta(0), idle - self.lease).total_seconds())
        await asyncio.sleep(0)
        return None if lapsed is None else self._delivered(lapsed, self.lease)


@breaks("S2", "two waited in next_ready")
class OnlyOneCanWait(Queue):
    async def next_ready(self, within):
        if within and self.arrived in WAITING:
            await asyncio.sleep(within.total_seconds())
            return None
        WAITING.add(self.arrived)
        try:
            return await super().next_ready(within)
        finally:
            WAITING.discard(self.arrived)


@breaks("S7", "by four asking at once")
class WakeDueLooksThenMoves(Queue):
    async def wake_due(self, now):
        due = [workflow for workflow, when in self.sleeping.items() if when <= now]
        await asyncio.sleep(0)
        for workflow in due:
            await self.make_ready(workflow)
        return tuple(due)


@breaks("S7", "four woke it at once, and it was taken and done")
class WakeDueReportsOnceAndMovesAsOftenAsAsked(Queue):
    async def wake_due(self, now):
        due = [workflow for workflow, when in self.sleeping.items() if when <= now]
        await asyncio.sleep(0)
        self.queue.extend(due)
        return tuple(workflow for workflow in due if self.sleeping.pop(workflow, None))


@breaks("C17", "freed the holder's")
class ACancelledClaimFreesWhoeverHolds(Records):
    async def claim(self, workflow, budget, alive):
        holder = await super().claim(workflow, budget, alive)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.claim_as(workflow, alive_until=0.0)
            raise
        return holder


@breaks("S9", "a take of what lapsed")
class AReclaimCannotBeCancelled(Queue):
    async def next_ready(self, within):
        return await super().next_ready(within) if self.queue or within else None

    async def reclaim(self, idle):
        delivery = await super().reclaim(idle)
        await asyncio.sleep(0)
        return delivery
