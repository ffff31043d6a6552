"""Checkpointers that are mistaken about who is the newest, and for how long."""

from __future__ import annotations

from without_durability import Fenced, Pass, Recorded

from .breaking import Records, breaks


class Judging(Records):
    def newest_lapsed(self, holder):
        """Whether a newer pass than the holder has been, and has lapsed."""
        current = self.claims.get(holder.workflow)
        return (
            current is not None
            and current.alive_until <= self.clock()
            and current.token > holder.token
        )

    def is_ahead(self, holder):
        current = self.claims.get(holder.workflow)
        return current is not None and holder.token > current.token


@breaks("C9", "does not write any more")
class ALapsedPassIsFenced(Records):
    async def record(self, holder, key, value):
        current = self._current(holder)
        if current is not None and current.alive_until <= self.clock():
            raise Fenced("lapsed")
        return await super().record(holder, key, value)


@breaks("C9", "record by an outranked pass, of what it had")
class WhatIsRecordedIsReadWithoutTheFence(Records):
    async def record(self, holder, key, value):
        loaded = await self.load(holder.workflow)
        if key in loaded and self._current(holder) is None:
            return Recorded(loaded[key], loaded[key] == value)
        return await super().record(holder, key, value)


@breaks("C9", "transact by an outranked pass, of what it had")
class WhatIsTransactedIsReadWithoutTheFence(Records):
    async def transact(self, holder, key, effect):
        loaded = await self.load(holder.workflow)
        if key in loaded and self._current(holder) is None:
            return loaded[key]
        return await super().transact(holder, key, effect)


@breaks("C7", "once the newest one's claim lapsed, was extended")
class AFreeClaimIsAnybodys(Judging):
    async def extend(self, holder, budget, alive):
        current = self.claims.get(holder.workflow)
        if (
            current is not None
            and current.alive_until <= self.clock()
            and current.token > holder.token
        ):
            return True
        return await super().extend(holder, budget, alive)


@breaks("C7", "once the newest one's claim lapsed, is not Fenced")
class AFreeClaimLetsAnybodyWrite(Judging):
    async def record(self, holder, key, value):
        current = self.claims.get(holder.workflow)
        if (
            current is not None
            and current.alive_until <= self.clock()
            and current.token > holder.token
        ):
            holder = Pass(holder.workflow, current.token)
        return await super().record(holder, key, value)


@breaks("C7", "never issued was extended")
class ATokenAheadIsExtended(Judging):
    async def extend(self, holder, budget, alive):
        current = self.claims.get(holder.workflow)
        return await super().extend(holder, budget, alive) or (
            current is not None and holder.token > current.token
        )


@breaks("C7", "never issued was renewed")
class ATokenAheadIsRenewed(Judging):
    async def renew(self, holder, alive):
        current = self.claims.get(holder.workflow)
        return await super().renew(holder, alive) or (
            current is not None and holder.token > current.token
        )


@breaks("C15", "by a token never issued")
class ATokenAheadReleases(Records):
    async def release(self, holder):
        current = self.claims.get(holder.workflow)
        if current is not None and holder.token > current.token:
            holder = Pass(holder.workflow, current.token)
        return await super().release(holder)


@breaks("C3", "with the clock set back")
class TokensAreMoments(Records):
    async def claim(self, workflow, budget, alive):
        holder = await super().claim(workflow, budget, alive)
        if holder is None:
            return None
        self.data["claims"] = self.data.get("claims", 0) + 1
        token = int(self.clock() * 1000) * 1000 + self.data["claims"]
        self.claim_as(workflow, token=token)
        return Pass(workflow, token)


@breaks("C14", "was discarded was extended")
class ADiscardedPassIsExtended(Records):
    async def extend(self, holder, budget, alive):
        current = self.claims.get(holder.workflow)
        if current is not None and current.token == holder.token + 1 and current.held_until < 0:
            return True
        return await super().extend(holder, budget, alive)


@breaks("C14", "a released pass without records")
class DiscardFencesOnlyTheLive(Records):
    async def discard(self, workflow):
        current = self.claims.get(workflow)
        if current is not None and current.alive_until <= self.clock():
            return len(self.hashes.pop(workflow, {}))
        return await super().discard(workflow)


@breaks("C14", "a holding pass without records")
class DiscardFencesOnlyWhatHasRecords(Records):
    async def discard(self, workflow):
        if workflow not in self.hashes:
            return 0
        return await super().discard(workflow)


@breaks("C4", "supply, which anybody")
class ASupplyIsASignOfLife(Records):
    async def supply(self, workflow, key, value):
        if workflow in self.claims:
            self._sign_of_life(Pass(workflow, self.claims[workflow].token))
        return await super().supply(workflow, key, value)


@breaks("C4", "append, which anybody")
class AMessageIsASignOfLife(Records):
    async def append(self, workflow, value):
        if workflow in self.claims:
            self._sign_of_life(Pass(workflow, self.claims[workflow].token))
        return await super().append(workflow, value)


@breaks("C4", "load, which anybody")
class ALoadIsASignOfLife(Records):
    async def load(self, workflow):
        if workflow in self.claims:
            self._sign_of_life(Pass(workflow, self.claims[workflow].token))
        return await super().load(workflow)


@breaks("C4", "record of a recorded key")
class ALosingRecordIsNoSignOfLife(Records):
    async def record(self, holder, key, value):
        known = key in self.hashes.get(holder.workflow, {})
        before = self.claims.get(holder.workflow)
        recorded = await super().record(holder, key, value)
        if known:
            self.claims[holder.workflow] = before
        return recorded


@breaks("C4", "transact of a recorded key")
class AReplayedTransactIsNoSignOfLife(Records):
    async def transact(self, holder, key, effect):
        known = key in self.hashes.get(holder.workflow, {})
        before = self.claims.get(holder.workflow)
        recorded = await super().transact(holder, key, effect)
        if known:
            self.claims[holder.workflow] = before
        return recorded


@breaks("C4", "is no sign of life")
class ARefusedClaimShortens(Records):
    async def claim(self, workflow, budget, alive):
        holder = await super().claim(workflow, budget, alive)
        if holder is None:
            self.claim_as(workflow, alive=1.0)
        return holder


@breaks("C6", "was refused a renewal")
class ASilentPassIsNotRenewed(Records):
    async def renew(self, holder, alive):
        current = self._current(holder)
        if current is not None and current.alive_until <= self.clock():
            return False
        return await super().renew(holder, alive)


@breaks("C5", "a silent claim that nobody took")
class ASilentPassIsNotExtended(Records):
    async def extend(self, holder, budget, alive):
        current = self._current(holder)
        if current is not None and current.alive_until <= self.clock() < current.held_until:
            return False
        return await super().extend(holder, budget, alive)


@breaks("C8", "took a released claim back: it is extended")
class AWriteUndoesTheRelease(Records):
    async def record(self, holder, key, value):
        recorded = await super().record(holder, key, value)
        if self.claims[holder.workflow].held_until < 0:
            self.claim_as(holder.workflow, held_until=0.0, alive_until=0.0)
        return recorded


@breaks("C5", "no renewal after it")
class AnExtensionShortensWhatIsLeft(Records):
    async def extend(self, holder, budget, alive):
        extended = await super().extend(holder, budget, alive)
        if extended:
            self.claim_as(holder.workflow, held_until=self.clock() + budget.total_seconds())
        return extended
