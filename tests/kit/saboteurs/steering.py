"""Ledgers that break a clause about a call that steers a workflow."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta

from without_durability import Claim
from without_durability.ledger import COMPLETED, FINISHED

from .breaking import Rows, breaks

# --- retry and cancel -------------------------------------------------------------------------


@breaks("L9", "retry of a sleeping workflow answered")
class RetryWakesSleepers(Rows):
    async def retry(self, workflow):
        if self.runs[workflow].state == "sleeping":
            self.put(workflow, state="failed")
        return await super().retry(workflow)


@breaks("L9", "retry of a completed workflow answered")
class RetryRunsWhatCompletedAgain(Rows):
    async def retry(self, workflow):
        if self.runs[workflow].state == "completed":
            self.put(workflow, state="failed")
        return await super().retry(workflow)


@breaks("L9", "of 5 at once retry answered")
class RetryIsNotExclusive(Rows):
    async def retry(self, workflow):
        failed = self.runs[workflow].state in ("failed", "cancelled")
        await asyncio.sleep(0)
        return await super().retry(workflow) or failed


@breaks("L9", "of 5 at once retry answered")
class RetryIsForFailedOnes(Rows):
    async def retry(self, workflow):
        return self.runs[workflow].state != "cancelled" and await super().retry(workflow)


@breaks("L9", "after retry it is")
class RetryKeepsTheAttempts(Rows):
    async def retry(self, workflow):
        attempts = self.runs[workflow].attempts
        done = await super().retry(workflow)
        self.put(workflow, attempts=attempts)
        return done


@breaks("L9", "after retry there is still")
class RetryKeepsTheError(Rows):
    async def retry(self, workflow):
        detail = self.runs[workflow].detail
        done = await super().retry(workflow)
        self.put(workflow, detail=detail)
        return done


@breaks("L9", "was not delivered")
class RetryQueuesNothing(Rows):
    async def retry(self, workflow):
        done = await super().retry(workflow)
        await self.scheduler.cancel(workflow)
        return done


@breaks("L9", "of its records retry left")
class RetryForgetsTheRecords(Rows):
    async def retry(self, workflow):
        done = await super().retry(workflow)
        if done:
            await self.checkpointer.discard(workflow)
        return done


@breaks("L9", "retry of a ready workflow was refused")
class RetryQueuesWhatItRefuses(Rows):
    async def retry(self, workflow):
        await self.scheduler.make_ready(workflow)
        return await super().retry(workflow)


@breaks("L10", "cancel of a completed workflow answered")
class CancelUndoesACompletion(Rows):
    async def cancel(self, workflow, reason=""):
        if self.runs[workflow].state == "completed":
            self.put(workflow, state="blocked")
        return await super().cancel(workflow, reason)


@breaks("L10", "cancel of a cancelled workflow")
class CancelTakesTheLastReason(Rows):
    async def cancel(self, workflow, reason=""):
        if self.runs[workflow].state == "cancelled":
            self.put(workflow, detail=self.checkpointer.codec.encode({"reason": reason}))
            return False
        return await super().cancel(workflow, reason)


@breaks("L10", "the reason is ''")
class CancelTakesNoReason(Rows):
    async def cancel(self, workflow, reason=""):
        return await super().cancel(workflow)


@breaks("L10", "cancelled while ready, and yet")
class CancelLeavesTheWakeup(Rows):
    async def cancel(self, workflow, reason=""):
        ready = workflow in self.scheduler.queue
        done = await super().cancel(workflow, reason)
        if ready:
            await self.scheduler.make_ready(workflow)
        return done


@breaks("L10", "cancelled while sleeping, it is due")
class CancelLeavesASleeper(Rows):
    async def cancel(self, workflow, reason=""):
        due = self.scheduler.sleeping.get(workflow)
        done = await super().cancel(workflow, reason)
        if due is not None:
            await self.scheduler.schedule(workflow, due)
        return done


@breaks("L10", "a pass whose workflow was cancelled")
class CancelLeavesThePassAlone(Rows):
    async def cancel(self, workflow, reason=""):
        claim = self.checkpointer.claims.get(workflow)
        done = await super().cancel(workflow, reason)
        if claim is not None:
            self.checkpointer.claims[workflow] = claim
        return done


@breaks("L10", "while it ran, and yet")
class CancelLeavesTheDelivery(Rows):
    async def cancel(self, workflow, reason=""):
        held = self.scheduler.outstanding.get(workflow)
        done = await super().cancel(workflow, reason)
        if held is not None:
            self.scheduler.outstanding[workflow] = held
        return done


@breaks("L10", "and left it completed")
class AnEndUndoesACancellation(Rows):
    async def end_pass(self, holder, delivery, ended):
        await super().end_pass(holder, delivery, ended)
        if self.runs[holder.workflow].state == "cancelled":
            self.put(holder.workflow, state=ended.state, detail=None)


@breaks("L10", "cancel left")
class CancelForgetsTheRecords(Rows):
    async def cancel(self, workflow, reason=""):
        done = await super().cancel(workflow, reason)
        if done:
            await self.checkpointer.discard(workflow)
        return done


@breaks("L10", "nobody was granted")
class CancelClaims(Rows):
    async def cancel(self, workflow, reason=""):
        if workflow not in self.checkpointer.claims:
            never = float("-inf")
            self.checkpointer.claims[workflow] = Claim(0, never, never, 1.0)
        return await super().cancel(workflow, reason)


@breaks("L10", "left the row")
class CancelIsTwoCommits(Rows):
    async def cancel(self, workflow, reason=""):
        await self.scheduler.cancel(workflow)
        await asyncio.sleep(0)
        return await super().cancel(workflow, reason)


# --- sweep and delete -------------------------------------------------------------------------


class Sweeping(Rows):
    """A ledger whose sweep chooses in a way of its own."""

    def oldest(self, runs):
        return sorted(runs, key=lambda run: (run.updated_at, run.seq))

    def is_ripe(self, run, older):
        at_rest = self._at_rest(run.workflow)
        return at_rest and run.updated_at <= self.checkpointer.now() - older

    def forget(self, workflow):
        self.checkpointer.hashes.pop(workflow, None)
        self.checkpointer._forget_claim(workflow)
        del self.runs[workflow]

    async def sweep(self, *, older, states=COMPLETED, limit=1000):
        await super().sweep(older=timedelta.max, states=states, limit=limit)
        ripe = [r for r in self.runs.values() if r.state in states and self.is_ripe(r, older)]
        gone = self.oldest(ripe)[:limit]
        for run in gone:
            self.forget(run.workflow)
        return len(gone)


@breaks("L13", "what is too young is []")
class SweepAsksForNoAge(Sweeping):
    def is_ripe(self, run, older):
        return self._at_rest(run.workflow)


@breaks("L13", "what is too young is []")
class SweepGoesByCreation(Sweeping):
    def is_ripe(self, run, older):
        changed = self.runs["completed 0"]
        created = run.created_at if run == changed else run.updated_at
        return super().is_ripe(dataclasses.replace(run, updated_at=created), older)


@breaks("L13", "or is no completed one")
class SweepTakesAllThatFinished(Sweeping):
    async def sweep(self, *, older, states=FINISHED, limit=1000):
        return await super().sweep(older=older, states=states, limit=limit)


@breaks("L13", "what is the oldest is")
class SweepTakesTheNewest(Sweeping):
    def oldest(self, runs):
        return super().oldest(runs)[::-1]


@breaks("L13", "what is the oldest is")
class SweepHasNoLimit(Sweeping):
    def oldest(self, runs):
        for run in super().oldest(runs)[3:]:
            self.forget(run.workflow)
        return super().oldest(runs)


@breaks("L13", "what is the oldest is")
class SweepTakesWhatIsQueued(Sweeping):
    def is_ripe(self, run, older):
        at_rest = self.checkpointer._alive(run.workflow) is None
        return at_rest and run.updated_at <= self.checkpointer.now() - older


@breaks("L13", "what is the oldest is")
class SweepTakesWhatIsHeld(Sweeping):
    def is_ripe(self, run, older):
        queued = self.scheduler._queued(run.workflow)
        return not queued and run.updated_at <= self.checkpointer.now() - older


class ByTheClock(list):
    def __init__(self, clock):
        super().__init__([0])
        self.clock = clock

    def __getitem__(self, index):
        return int(self.clock() * 1000)


@breaks("L13", "swept before the clock was set back")
class SweptTokensGoByTheClock(Rows):
    async def sweep(self, **options):
        count = await super().sweep(**options)
        object.__setattr__(self.checkpointer, "_swept", ByTheClock(self.checkpointer.clock))
        return count


@breaks("L13", "of its records there is")
class SweepForgetsTheRowAlone(Sweeping):
    def forget(self, workflow):
        self.checkpointer._forget_claim(workflow)
        del self.runs[workflow]


@breaks("L13", "is not Fenced")
class SweepLeavesTheClaim(Sweeping):
    def forget(self, workflow):
        self.checkpointer.hashes.pop(workflow, None)
        del self.runs[workflow]


@breaks("L13", "came back as 1")
class SweepForgetsTheTokens(Sweeping):
    def forget(self, workflow):
        self.checkpointer.claims.pop(workflow)
        super().forget(workflow)


@breaks("L13", "and answered")
class SweepCountsRecords(Sweeping):
    async def sweep(self, *, older, states=COMPLETED, limit=1000):
        before = sum(map(len, self.checkpointer.hashes.values()))
        await super().sweep(older=older, states=states, limit=limit)
        return 2 * (before - sum(map(len, self.checkpointer.hashes.values())))


@breaks("L13", "sweep takes what sleeps")
class SweepTakesSleepers(Sweeping):
    async def sweep(self, *, older, states=COMPLETED, limit=1000):
        states = [state for state in states if state != "sleeping"]
        return await super().sweep(older=older, states=states, limit=limit)


@breaks("L16", "it has the row")
class DeleteKeepsTheRow(Rows):
    async def delete(self, workflow):
        row = self.runs.get(workflow)
        count = await super().delete(workflow)
        if row is not None:
            self.runs[workflow] = row
        return count


@breaks("L16", "deleted while cancelled, it has the row")
class WhatIsCancelledKeepsItsRow(Rows):
    async def delete(self, workflow):
        row = self.runs.get(workflow)
        count = await super().delete(workflow)
        if row is not None and row.state == "cancelled":
            self.runs[workflow] = row
        return count


@breaks("L16", "its deleted workflow is back")
class ALateEndBringsItBack(Rows):
    async def end_pass(self, holder, delivery, ended):
        if holder.workflow not in self.runs:
            self._put(holder.workflow, self.checkpointer.now(), ended.state, None, 0)
        await super().end_pass(holder, delivery, ended)


@breaks("L16", "it is counted")
class DeleteLeavesTheCount(Rows):
    async def delete(self, workflow):
        self.checkpointer.data["gone"] = True
        return await super().delete(workflow)

    async def counts(self, namespace=None):
        counts = await super().counts(namespace)
        counts["ready"] += "gone" in self.checkpointer.data
        return counts


@breaks("L16", "took another")
class DeleteTakesOthers(Rows):
    async def delete(self, workflow):
        self.runs.pop(f"beside {workflow}", None)
        return await super().delete(workflow)


@breaks("L16", "it arrived as")
class WhatWasDeletedIsRemembered(Rows):
    async def delete(self, workflow):
        self.checkpointer.data[workflow] = self.runs.get(workflow)
        return await super().delete(workflow)

    async def arrive(self, workflow, key, value):
        stored = await super().arrive(workflow, key, value)
        before = self.checkpointer.data.get(workflow)
        if before is not None:
            self.put(workflow, created_at=before.created_at)
        return stored
