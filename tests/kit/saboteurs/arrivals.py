"""Ledgers that break a clause about arrivals."""

from __future__ import annotations

import asyncio

from .breaking import Rows, breaks


@breaks("L1", "there is no row")
class ArriveMakesNoRow(Rows):
    async def arrive(self, workflow, key, value):
        known = workflow in self.runs
        stored = await super().arrive(workflow, key, value)
        if not known:
            del self.runs[workflow]
        return stored


@breaks("L1", "after a deliver a sleeping workflow is sleeping")
class DeliverLeavesTheRow(Rows):
    async def deliver(self, workflow, value):
        row = self.runs.get(workflow)
        entry = await super().deliver(workflow, value)
        if row is not None:
            self.runs[workflow] = row
        return entry


@breaks("L1", "after an arrive of what is known a sleeping workflow is sleeping")
class OnlyWhatIsNewIsAnArrival(Rows):
    async def arrive(self, workflow, key, value):
        row = self.runs.get(workflow)
        known = key in self.checkpointer.hashes.get(workflow, {})
        stored = await super().arrive(workflow, key, value)
        if known and row is not None:
            self.runs[workflow] = row
        return stored


@breaks("L1", "left a failed workflow 1 attempts")
class AFailedOneKeepsItsAttempts(Rows):
    async def arrive(self, workflow, key, value):
        row = self.runs.get(workflow)
        stored = await super().arrive(workflow, key, value)
        if row is not None:
            self.put(workflow, attempts=row.attempts)
        return stored


@breaks("L1", "of a pass that died")
class AnArrivalForgetsWhoDied(Rows):
    async def arrive(self, workflow, key, value):
        stored = await super().arrive(workflow, key, value)
        self.put(workflow, attempts=0)
        return stored


@breaks("L1", "another one")
class AnArrivalIsANewRow(Rows):
    async def arrive(self, workflow, key, value):
        self.runs.pop(workflow, None)
        return await super().arrive(workflow, key, value)


@breaks("L1", "did not move updated_at")
class AnArrivalIsNoChange(Rows):
    async def arrive(self, workflow, key, value):
        row = self.runs.get(workflow)
        stored = await super().arrive(workflow, key, value)
        if row is not None:
            self.put(workflow, updated_at=row.updated_at)
        return stored


@breaks("L1", "left a part")
class TheRowIsACommitOfItsOwn(Rows):
    async def deliver(self, workflow, value):
        entry = await super().deliver(workflow, value)
        row = self.runs.pop(workflow)
        await asyncio.sleep(0)
        self.runs[workflow] = row
        return entry


@breaks("L1", "refused has a row")
class ARefusedArrivalHasARow(Rows):
    async def arrive(self, workflow, key, value):
        self._arrived(workflow, self.checkpointer.now())
        return await super().arrive(workflow, key, value)


@breaks("L2", "before that arrived")
class AnArrivalWakesACancelledOne(Rows):
    async def arrive(self, workflow, key, value):
        stored = await super().arrive(workflow, key, value)
        await self.scheduler.make_ready(workflow)
        return stored


@breaks("L2", "before that arrived")
class ADeliveryWakesACancelledOne(Rows):
    async def deliver(self, workflow, value):
        entry = await super().deliver(workflow, value)
        await self.scheduler.make_ready(workflow)
        return entry


@breaks("L2", "for a cancelled workflow there is")
class WhatArrivesForACancelledOneIsDropped(Rows):
    async def arrive(self, workflow, key, value):
        if workflow in self.runs and self.runs[workflow].state == "cancelled" and key != "k":
            return value
        return await super().arrive(workflow, key, value)


@breaks("L2", "made a cancelled workflow ready")
class AnArrivalRevivesACancelledOne(Rows):
    async def deliver(self, workflow, value):
        entry = await super().deliver(workflow, value)
        self.put(workflow, state="ready")
        return entry


@breaks("L2", "was cancelled and was retried")
class OnceCancelledItIsForEver(Rows):
    async def cancel(self, workflow, reason=""):
        self.checkpointer.data[workflow] = True
        return await super().cancel(workflow, reason)

    async def arrive(self, workflow, key, value):
        stored = await super().arrive(workflow, key, value)
        if workflow in self.checkpointer.data:
            self.put(workflow, state="cancelled")
        return stored
