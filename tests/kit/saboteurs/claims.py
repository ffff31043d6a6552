"""Checkpointers that break a clause about claims."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from without_durability import INBOX, Entry, Fenced, Pass, inbox_key

from .breaking import Records, breaks


@breaks("C3", "of ten claims at once")
class EveryClaimIsGranted(Records):
    async def claim(self, workflow, budget, alive):
        if workflow in self.claims:
            self.claim_as(workflow, alive_until=0.0)
        return await super().claim(workflow, budget, alive)


@breaks("C3", "the token did not rise after a release")
class AReleaseStartsTheTokensAfresh(Records):
    async def release(self, holder):
        await super().release(holder)
        del self.claims[holder.workflow]


@breaks("C3", "the token did not rise after a discard")
class ADiscardStartsTheTokensAfresh(Records):
    async def discard(self, workflow):
        self.claims.pop(workflow, None)
        return await super().discard(workflow)


@breaks("C3", "keeps another workflow")
class OneClaimForAll(Records):
    async def claim(self, workflow, budget, alive):
        if workflow == "another":
            return None
        return await super().claim(workflow, budget, alive)


@breaks("C4", "that silence should end did not")
class SilenceEndsNothing(Records):
    async def claim(self, workflow, budget, alive):
        return await super().claim(workflow, budget, max(budget, alive))


@breaks("C4", "that its budget should end did not")
class NoBudgetEnds(Records):
    async def claim(self, workflow, budget, alive):
        return await super().claim(workflow, max(budget, alive), alive)


@breaks("C4", "record is no sign of life")
class ARecordIsNoSignOfLife(Records):
    async def record(self, holder, key, value):
        before = self.claims.get(holder.workflow)
        recorded = await super().record(holder, key, value)
        self.claims[holder.workflow] = before
        return recorded


@breaks("C4", "transact is no sign of life")
class ATransactIsNoSignOfLife(Records):
    async def transact(self, holder, key, effect):
        before = self.claims.get(holder.workflow)
        value = await super().transact(holder, key, effect)
        self.claims[holder.workflow] = before
        return value


@breaks("C5", "grants less than its budget")
class AnExtensionGrantsNothing(Records):
    async def extend(self, holder, budget, alive):
        return await super().extend(holder, timedelta(microseconds=1), alive)


@breaks("C5", "grants more than its budget")
class AnExtensionAddsToWhatIsLeft(Records):
    async def extend(self, holder, budget, alive):
        left = self.claims[holder.workflow].held_until - self.clock()
        return await super().extend(holder, budget + timedelta(seconds=max(left, 0)), alive)


@breaks("C5", "brought a granted budget forward")
class AnExtensionMayShorten(Records):
    async def extend(self, holder, budget, alive):
        self.claim_as(holder.workflow, held_until=0.0)
        return await super().extend(holder, budget, alive)


@breaks("C5", "was refused an extension")
class ALapsedClaimIsNotExtended(Records):
    async def extend(self, holder, budget, alive):
        if self.claims[holder.workflow].held_until <= self.clock():
            return False
        return await super().extend(holder, budget, alive)


@breaks("C5", "no sign of life worth")
class AnExtensionIsNoSignOfLife(Records):
    async def extend(self, holder, budget, alive):
        worth = alive if alive >= budget else timedelta(minutes=1)
        return await super().extend(holder, budget, worth)


@breaks("C6", "after the budget was granted")
class ARenewalExtends(Records):
    async def renew(self, holder, alive):
        granted = await super().renew(holder, alive)
        return granted and await self.extend(holder, alive, alive)


@breaks("C6", "after the budget was granted")
class ARenewalIsAlwaysGranted(Records):
    async def renew(self, holder, alive):
        await super().renew(holder, alive)
        return True


@breaks("C6", "worth less than its `alive`")
class ARenewalIsWorthWhatTheClaimWas(Records):
    async def renew(self, holder, alive):
        return await super().renew(holder, timedelta(minutes=1))


@breaks("C7", "was extended")
class AnybodyIsExtended(Records):
    async def extend(self, holder, budget, alive):
        await super().extend(holder, budget, alive)
        return True


@breaks("C7", "was renewed")
class AnUnknownPassIsRenewed(Records):
    async def renew(self, holder, alive):
        return holder.workflow not in self.claims or await super().renew(holder, alive)


@breaks("C7", "is not Fenced: it raised KeyError")
class AnUnknownPassIsAnInternalError(Records):
    async def record(self, holder, key, value):
        self.claims[holder.workflow]
        return await super().record(holder, key, value)


@breaks("C8", "past its budget")
class ASignOfLifeOutlastsTheBudget(Records):
    async def record(self, holder, key, value):
        recorded = await super().record(holder, key, value)
        until = self.clock() + self.claims[holder.workflow].alive
        self.claim_as(holder.workflow, alive_until=until)
        return recorded


@breaks("C8", "extend after one's own release was granted")
class AReleasedClaimIsExtended(Records):
    async def release(self, holder):
        self.claim_as(holder.workflow, alive_until=0.0)


@breaks("C8", "took a released claim back")
class AWriteTakesAReleasedClaimBack(Records):
    async def record(self, holder, key, value):
        recorded = await super().record(holder, key, value)
        if self.claims[holder.workflow].held_until < 0:
            until = self.clock() + 60
            self.claim_as(holder.workflow, held_until=until, alive_until=until)
        return recorded


@breaks("C10", "record by an outranked pass kept")
class ARefusedWriteRenews(Records):
    async def record(self, holder, key, value):
        try:
            return await super().record(holder, key, value)
        except Fenced:
            current = self.claims[holder.workflow]
            self.claim_as(holder.workflow, alive_until=self.clock() + current.alive)
            raise


@breaks("C10", "renew by an outranked pass kept")
class ARefusedRenewalRenews(Records):
    async def renew(self, holder, alive):
        newest = Pass(holder.workflow, self.claims[holder.workflow].token)
        return await super().renew(newest, alive) and newest == holder


@breaks("C14", "the pass whose workflow was discarded was extended")
class ADiscardRaisesNoFence(Records):
    async def discard(self, workflow):
        return len(self.hashes.pop(workflow, {}))


@breaks("C14", "cannot be claimed at once")
class ADiscardedWorkflowStaysHeld(Records):
    async def discard(self, workflow):
        count = len(self.hashes.pop(workflow, {}))
        if workflow in self.claims:
            self.claim_as(workflow, token=self.claims[workflow].token + 1)
        return count


@breaks("C14", "nobody was granted is not Fenced")
class ADiscardGrantsAClaim(Records):
    async def discard(self, workflow):
        if workflow not in self.claims:
            await self.claim(workflow, timedelta(seconds=1), timedelta(seconds=1))
            return 0
        return await super().discard(workflow)


@breaks("C14", "discard of three records answered")
class ADiscardMiscounts(Records):
    async def discard(self, workflow):
        return min(await super().discard(workflow), 1)


@breaks("C14", "discard left records behind")
class ADiscardKeepsTheMessages(Records):
    async def discard(self, workflow):
        records = self.hashes.get(workflow, {})
        kept = {key: stored for key, stored in records.items() if key.startswith(INBOX)}
        count = await super().discard(workflow)
        if kept:
            self.hashes[workflow] = kept
        return count


@breaks("C14", "discard of nothing counts something")
class ADiscardCountsTheWorkflow(Records):
    async def discard(self, workflow):
        return await super().discard(workflow) or 1


@breaks("C14", "discard of no records answered")
class ADiscardCountsTheClaim(Records):
    async def discard(self, workflow):
        return await super().discard(workflow) or int(workflow in self.claims)


@breaks("C15", "cannot be claimed at once")
class AReleaseWaitsForTheLease(Records):
    async def release(self, holder):
        pass


@breaks("C15", "freed the newer one's")
class AnybodyReleases(Records):
    async def release(self, holder):
        self.claim_as(holder.workflow, alive_until=0.0)


@breaks("C15", "forgot the token")
class AReleaseForgetsTheToken(Records):
    async def release(self, holder):
        del self.claims[holder.workflow]


@breaks("C17", "keeps what nobody heard of")
class AClaimCannotBeCancelled(Records):
    async def claim(self, workflow, budget, alive):
        await asyncio.sleep(0)
        return await asyncio.shield(super().claim(workflow, budget, alive))


@breaks("C17", "left")
class ACancelledAppendIsMadeTwice(Records):
    async def append(self, workflow, value):
        entry = await super().append(workflow, value)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await super().append(workflow, value)
            raise
        return entry


@breaks("C17", "lost its place")
class TheNewestMessageSortsFirst(Records):
    async def append(self, workflow, value):
        key = inbox_key(1000 - len(self.hashes.get(workflow, {})))
        self.put(workflow, key, value)
        return Entry(key, value)


@breaks("C17", "recorded False, effect True")
class ACancelledTransactIsHalfDone(Records):
    async def transact(self, holder, key, effect):
        if key in self.hashes.get(holder.workflow, {}):
            return await super().transact(holder, key, effect)
        result = effect(self.data)
        await asyncio.sleep(0)
        return await super().transact(holder, key, lambda _: result)
