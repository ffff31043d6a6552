"""Ledgers that break a clause about going back to a step, or on from a copy."""

from __future__ import annotations

import asyncio
import dataclasses

from without_durability import INBOX

from .breaking import Rows, breaks


@breaks("L11", "its history is")
class RewindForgetsWhatCameFromOutside(Rows):
    async def rewind(self, workflow, to):
        keys = [*self.checkpointer.hashes.get(workflow, {})]
        count = await super().rewind(workflow, to)
        for key in keys[keys.index(to) :]:
            self.checkpointer.hashes[workflow].pop(key, None)
        return count


@breaks("L11", "its history is")
class RewindForgetsMessages(Rows):
    async def rewind(self, workflow, to):
        count = await super().rewind(workflow, to)
        records = self.checkpointer.hashes[workflow]
        for key in [key for key in records if key.startswith(INBOX)]:
            del records[key]
        return count


@breaks("L11", "rewind forgot b and c, and answered 1")
class RewindForgetsOneStep(Rows):
    async def rewind(self, workflow, to):
        records = dict(self.checkpointer.hashes.get(workflow, {}))
        count = await super().rewind(workflow, to)
        if not count:
            return count
        del records[to]
        self.checkpointer.hashes[workflow] = records
        return 1


@breaks("L11", "its history is")
class RewindKeepsTheStep(Rows):
    async def rewind(self, workflow, to):
        records = dict(self.checkpointer.hashes.get(workflow, {}))
        count = await super().rewind(workflow, to)
        self.checkpointer.hashes[workflow][to] = records[to]
        return count


@breaks("L11", "which no pass recorded")
class RewindTakesAnyStep(Rows):
    async def rewind(self, workflow, to):
        try:
            return await super().rewind(workflow, to)
        except ValueError:
            return 0


@breaks("L11", "rewind to 'given'")
class RewindTakesWhatWasSupplied(Rows):
    async def rewind(self, workflow, to):
        stored = self.checkpointer.hashes.get(workflow, {}).get(to)
        if stored is not None:
            self.checkpointer.hashes[workflow][to] = dataclasses.replace(stored, supplied=False)
        return await super().rewind(workflow, to)


@breaks("L11", "whose workflow was rewound")
class RewindLeavesThePassAlone(Rows):
    async def rewind(self, workflow, to):
        claim = self.checkpointer.claims.get(workflow)
        count = await super().rewind(workflow, to)
        if claim is not None:
            self.checkpointer.claims[workflow] = claim
        return count


@breaks("L11", "was not delivered")
class RewindQueuesNothing(Rows):
    async def rewind(self, workflow, to):
        count = await super().rewind(workflow, to)
        await self.scheduler.cancel(workflow)
        return count


@breaks("L11", "rewound, it is")
class RewindKeepsTheAttempts(Rows):
    async def rewind(self, workflow, to):
        row = self.runs.get(workflow)
        count = await super().rewind(workflow, to)
        if row is not None:
            self.put(workflow, attempts=row.attempts)
        return count


@breaks("L11", "rewound while cancelled")
class WhatIsCancelledIsNotRewound(Rows):
    async def rewind(self, workflow, to):
        row = self.runs.get(workflow)
        count = await super().rewind(workflow, to)
        if row is not None and row.state == "cancelled":
            self.runs[workflow] = row
        return count


@breaks("L11", "Fenced")
class ARefusedRewindRaisesTheFence(Rows):
    async def rewind(self, workflow, to):
        self.checkpointer._raise_fence(workflow)
        return await super().rewind(workflow, to)


@breaks("L12", "a fork of {")
class AForkIsDatedAnew(Rows):
    async def fork(self, workflow, into, *, before=None):
        count = await super().fork(workflow, into, before=before)
        now = self.checkpointer.now()
        for key, stored in self.checkpointer.hashes.get(into, {}).items():
            self.checkpointer.hashes[into][key] = dataclasses.replace(stored, at=now)
        return count


@breaks("L12", "a fork of ['k', 'a', 'given'] answered")
class AForkIsOfEverything(Rows):
    async def fork(self, workflow, into, *, before=None):
        if before is not None and before not in self.checkpointer.hashes[workflow]:
            raise ValueError(before)
        return await super().fork(workflow, into)


@breaks("L12", "before b is")
class AForkIncludesTheStep(Rows):
    async def fork(self, workflow, into, *, before=None):
        count = await super().fork(workflow, into, before=before)
        if before == "b":
            records = self.checkpointer.hashes
            records[into][before] = records[workflow][before]
        return count


@breaks("L12", "which exists")
class AForkAddsToWhatIsThere(Rows):
    async def fork(self, workflow, into, *, before=None):
        if into in self.runs and into != workflow:
            return 0
        return await super().fork(workflow, into, before=before)


@breaks("L12", "a fork into 'w'")
class AForkIntoItselfIsNothing(Rows):
    async def fork(self, workflow, into, *, before=None):
        return 0 if into == workflow else await super().fork(workflow, into, before=before)


@breaks("L12", "a fork into 'has records'")
class OnlyARowExists(Rows):
    async def fork(self, workflow, into, *, before=None):
        if into in self.checkpointer.hashes and into not in self.runs:
            return 0
        return await super().fork(workflow, into, before=before)


@breaks("L12", "a fork into 'is held'")
class OnlyWhatIsRecordedExists(Rows):
    async def fork(self, workflow, into, *, before=None):
        self.checkpointer.claims.pop(into, None) if into == "is held" else None
        return await super().fork(workflow, into, before=before)


@breaks("L12", "a fork before a step that is not recorded")
class AForkBeforeAnything(Rows):
    async def fork(self, workflow, into, *, before=None):
        if before == "unknown":
            return 0
        return await super().fork(workflow, into, before=before)


@breaks("L12", "that was rewound forgot 5")
class AForkForgetsWhatCameFromOutside(Rows):
    async def fork(self, workflow, into, *, before=None):
        count = await super().fork(workflow, into, before=before)
        for key, stored in self.checkpointer.hashes.get(into, {}).items():
            self.checkpointer.hashes[into][key] = dataclasses.replace(stored, supplied=False)
        return count


@breaks("L12", "ValueError")
class AForkIsAllFromOutside(Rows):
    async def fork(self, workflow, into, *, before=None):
        count = await super().fork(workflow, into, before=before)
        for key, stored in self.checkpointer.hashes.get(into, {}).items():
            self.checkpointer.hashes[into][key] = dataclasses.replace(stored, supplied=True)
        return count


@breaks("L12", "touched its source")
class AForkIsAMove(Rows):
    async def fork(self, workflow, into, *, before=None):
        count = await super().fork(workflow, into, before=before)
        if into == "none":
            self.checkpointer.hashes[workflow].popitem()
        return count


@breaks("L12", "was delivered where 'whole' was the one ready")
class AForkWakesItsSource(Rows):
    async def fork(self, workflow, into, *, before=None):
        known = workflow in self.runs and into not in self.runs and into == "whole"
        if known:
            await self.scheduler.make_ready(workflow)
        return await super().fork(workflow, into, before=before)


@breaks("L12", "was not delivered")
class AForkQueuesNothing(Rows):
    async def fork(self, workflow, into, *, before=None):
        count = await super().fork(workflow, into, before=before)
        await self.scheduler.cancel(into)
        return count


class Undated(dict):
    def values(self):
        return ()


@breaks("L12", "runs backwards")
class AForkIsTakenForTheNewest(Rows):
    async def fork(self, workflow, into, *, before=None):
        count = await super().fork(workflow, into, before=before)
        records = self.checkpointer.hashes
        records.update({one: Undated(records[one]) for one in records if one != into})
        return count


@breaks("L12", "cancelled after")
class AForkIsTwoCommits(Rows):
    async def fork(self, workflow, into, *, before=None):
        count = await super().fork(workflow, into, before=before)
        row = self.runs.pop(into)
        await asyncio.sleep(0)
        self.runs[into] = row
        return count
