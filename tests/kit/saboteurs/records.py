"""Checkpointers that break a clause about what is recorded."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta, timezone

from without_durability import (
    INBOX,
    Entry,
    Fenced,
    Pass,
    Recorded,
)

from .breaking import Records, breaks


@breaks("C1", "load gave")
class ALosingWriteMovesItsKey(Records):
    async def record(self, holder, key, value):
        recorded = await super().record(holder, key, value)
        records = self.hashes[holder.workflow]
        records[key] = records.pop(key)
        return recorded


@breaks("C1", "load of an unknown workflow")
class LoadInventsARecord(Records):
    async def load(self, workflow):
        return await super().load(workflow) or {"started": True}


@breaks("C1", "load gave")
class LoadSortsByKey(Records):
    async def load(self, workflow):
        return dict(sorted((await super().load(workflow)).items()))


@breaks("C2", "history tells")
class ALosingWriteMovesTheMoment(Records):
    async def record(self, holder, key, value):
        recorded = await super().record(holder, key, value)
        self.put(holder.workflow, key, recorded.value)
        return recorded


@breaks("C2", "no aware moment in UTC")
class HistoryTellsLocalTime(Records):
    async def history(self, workflow):
        zone = timezone(timedelta(hours=1))
        return {
            key: dataclasses.replace(written, at=written.at.astimezone(zone))
            for key, written in (await super().history(workflow)).items()
        }

    async def load(self, workflow):
        return {key: one.value for key, one in (await super().history(workflow)).items()}


@breaks("C2", "tell different things")
class HistoryForgetsTheLast(Records):
    async def history(self, workflow):
        return dict(list((await super().history(workflow)).items())[:-1])

    async def load(self, workflow):
        return {key: one.value for key, one in (await super().history(workflow)).items()}


@breaks("C9", "never issued is not Fenced")
class TheFenceIsOnlyALowerBound(Records):
    async def record(self, holder, key, value):
        newest = self.claims[holder.workflow].token
        if holder.token > newest:
            holder = Pass(holder.workflow, newest)
        return await super().record(holder, key, value)


@breaks("C9", "an outranked pass is not Fenced")
class NoFence(Records):
    async def record(self, holder, key, value):
        return await super().record(
            Pass(holder.workflow, self.claims[holder.workflow].token), key, value
        )


@breaks("C9", "recording 'second' after 'first' answered")
class TheLastValueStands(Records):
    async def record(self, holder, key, value):
        await super().record(holder, key, value)
        self.put(holder.workflow, key, value)
        return Recorded(value, first=True)


@breaks("C9", "recording 'first' after 'first' answered")
class ATieIsALoss(Records):
    async def record(self, holder, key, value):
        known = key in self.hashes.get(holder.workflow, {})
        recorded = await super().record(holder, key, value)
        return Recorded(recorded.value, recorded.first and not known)


@breaks("C9", "a refused write left a record behind")
class TheFenceComesLast(Records):
    async def record(self, holder, key, value):
        try:
            return await super().record(holder, key, value)
        except Fenced:
            self.put(holder.workflow, key, value)
            raise


@breaks("C12", "the effects of one step ran")
class AnEffectRunsAgain(Records):
    async def transact(self, holder, key, effect):
        if key in self.hashes.get(holder.workflow, {}):
            effect(self.data)
        return await super().transact(holder, key, effect)


@breaks("C12", "ran before the fence was checked")
class AnEffectRunsBeforeTheFence(Records):
    async def transact(self, holder, key, effect):
        if holder.token != self.claims[holder.workflow].token:
            effect(self.data)
        return await super().transact(holder, key, effect)


@breaks("C12", "of the effects")
class AFailedEffectIsKept(Records):
    async def transact(self, holder, key, effect):
        try:
            return await super().transact(holder, key, effect)
        except LookupError:
            self.data["failed"] = 1
            raise


@breaks("C12", "a transact answered")
class AResultSkipsTheCodec(Records):
    async def transact(self, holder, key, effect):
        results = []

        def kept(handed):
            results.append(effect(handed))
            return results[0]

        stored = await super().transact(holder, key, kept)
        return results[0] if results else stored


@breaks("C12", "an effect that failed is recorded")
class AFailureIsRecorded(Records):
    async def transact(self, holder, key, effect):
        try:
            return await super().transact(holder, key, effect)
        except LookupError as error:
            self.put(holder.workflow, key, repr(error))
            raise


@breaks("C12", "its caller saw")
class AnEffectsErrorIsWrapped(Records):
    async def transact(self, holder, key, effect):
        try:
            return await super().transact(holder, key, effect)
        except LookupError as error:
            raise LookupError("transact failed") from error


@breaks("C12", "a result that cannot be encoded")
class AnUnstorableResultIsStoredAsText(Records):
    async def transact(self, holder, key, effect):
        def told(handed):
            result = effect(handed)
            try:
                self.codec.encode(result)
            except (TypeError, ValueError):
                return repr(result)
            return result

        return await super().transact(holder, key, told)


@breaks("C12", "of the effects")
class AnUnstorableResultLeavesItsEffect(Records):
    async def transact(self, holder, key, effect):
        try:
            return await super().transact(holder, key, effect)
        except (TypeError, ValueError):
            self.data[key] = True
            raise


@breaks("C12", "is not tried again")
class AFailedStepIsGivenUp(Records):
    async def transact(self, holder, key, effect):
        failed = vars(self).setdefault("failed", set())
        if key in failed:
            return None
        try:
            return await super().transact(holder, key, effect)
        except LookupError:
            failed.add(key)
            raise


@breaks("C12", "of the effects")
class AFailedEffectIsUndoneWhenItIsTriedAgain(Records):
    async def transact(self, holder, key, effect):
        failed = vars(self).setdefault("failed", set())
        if key in failed:
            self.data.pop(f"half of {key}", None)
        try:
            return await super().transact(holder, key, effect)
        except LookupError:
            failed.add(key)
            self.data[f"half of {key}"] = True
            raise


@breaks("C12", "of the effects")
class AnEffectThatIsTriedAgainIsLost(Records):
    async def transact(self, holder, key, effect):
        failed = vars(self).setdefault("failed", set())
        before = {**self.data}
        try:
            value = await super().transact(holder, key, effect)
        except LookupError:
            failed.add(key)
            raise
        if key in failed:
            self.data.clear()
            self.data.update(before)
        return value


@breaks("C13", "two supplies of one key answered")
class TheLastSupplyWins(Records):
    async def supply(self, workflow, key, value):
        await super().supply(workflow, key, value)
        self.put(workflow, key, value)
        return value


@breaks("C13", "messages appended in turn have the keys")
class MessagesAreNotPadded(Records):
    async def append(self, workflow, value):
        count = sum(key.startswith(INBOX) for key in self.hashes.get(workflow, {}))
        key = f"{INBOX}{100 - count}"
        self.put(workflow, key, value)
        return Entry(key, value)


@breaks("C13", "sorts before one the workflow held")
class MessagesAreCounted(Records):
    async def append(self, workflow, value):
        count = sum(key.startswith(INBOX) for key in self.hashes.get(workflow, {}))
        key = f"{INBOX}{count:020}"
        self.put(workflow, key, value)
        return Entry(key, value)


@breaks("C13", "filed under one key")
class ConcurrentMessagesCollide(Records):
    async def append(self, workflow, value):
        entry = await super().append(workflow, value)
        del self.hashes[workflow][entry.key]
        await asyncio.sleep(0)
        self.put(workflow, entry.key, value)
        return entry


@breaks("C13", "is not where its entry says")
class AnEntryTellsAnotherKey(Records):
    async def append(self, workflow, value):
        entry = await super().append(workflow, value)
        return Entry(entry.key + "0", entry.value)


class NoCodec:
    def encode(self, value):
        return value

    def decode(self, encoded):
        return encoded


@breaks("C16", "keeps the caller's own object")
class ValuesAreKeptAsTheyAre(Records):
    def __init__(self, **options):
        super().__init__(codec=NoCodec(), **options)


@breaks("C16", "record answered")
class ARecordAnswersWhatItWasGiven(Records):
    async def record(self, holder, key, value):
        recorded = await super().record(holder, key, value)
        return Recorded(value, recorded.first) if recorded.first else recorded


@breaks("C16", "supply answered")
class ASupplyAnswersWhatItWasGiven(Records):
    async def supply(self, workflow, key, value):
        await super().supply(workflow, key, value)
        return value


@breaks("C18", "record into the inbox space is allowed")
class APassMayRecordAMessage(Records):
    async def record(self, holder, key, value):
        if key.startswith(INBOX):
            self.put(holder.workflow, key, value)
            return Recorded(value, first=True)
        return await super().record(holder, key, value)


@breaks("C18", "transact into the inbox space is allowed")
class APassMayTransactAMessage(Records):
    async def transact(self, holder, key, effect):
        return await super().transact(holder, key.removeprefix(INBOX), effect)


@breaks("C18", "supply of a malformed key")
class AnyInboxKeyIsSupplied(Records):
    async def supply(self, workflow, key, value):
        self.put(workflow, key, value)
        return value


@breaks("C18", "inbox:0000")
class NoMessageIsSupplied(Records):
    async def supply(self, workflow, key, value):
        if key.startswith(INBOX):
            raise ValueError(key)
        return await super().supply(workflow, key, value)


@breaks("C19", "a key that cannot be stored is not refused")
class AKeyIsStoredAsFarAsItCan(Records):
    async def record(self, holder, key, value):
        return await super().record(holder, key.encode(errors="replace").decode(), value)


@breaks("C19", "an effect ran though its key cannot be stored")
class AKeyIsCheckedTooLate(Records):
    async def transact(self, holder, key, effect):
        results = [effect(self.data)]
        return await super().transact(holder, key, lambda _: results[0])


@breaks("C19", "cost the holder its claim")
class ARefusedValueEndsTheClaim(Records):
    async def record(self, holder, key, value):
        try:
            return await super().record(holder, key, value)
        except TypeError:
            await self.release(holder)
            raise


@breaks("C19", "behind")
class ARefusedValueLeavesItsKey(Records):
    async def supply(self, workflow, key, value):
        try:
            return await super().supply(workflow, key, value)
        except ValueError:
            self.put(workflow, "refused", key.encode(errors="replace").decode())
            raise


@breaks("C19", "the workflow of id")
class IdsAreTrimmed(Records):
    async def supply(self, workflow, key, value):
        return await super().supply(workflow.strip(), key, value)

    async def load(self, workflow):
        return await super().load(workflow.strip())


@breaks("C1", "load gave")
class NoneIsNotLoaded(Records):
    async def load(self, workflow):
        return {k: v for k, v in (await super().load(workflow)).items() if v is not None}


@breaks("C1", "of 150 records load gave 100")
class LoadGivesAPage(Records):
    async def load(self, workflow):
        return dict(list((await super().load(workflow)).items())[:100])


@breaks("C13", "filed under one key")
class EqualMessagesAreOne(Records):
    async def append(self, workflow, value):
        for key, held in (await self.load(workflow)).items():
            if key.startswith(INBOX) and held == value:
                return Entry(key, held)
        return await super().append(workflow, value)


@breaks("C19", "left something of itself behind")
class ARefusedClaimIsHalfAClaim(Records):
    async def claim(self, workflow, budget, alive):
        try:
            return await super().claim(workflow, budget, alive)
        except ValueError:
            if workflow == "idle":
                await super().claim(workflow, timedelta(days=1), timedelta(days=1))
            raise


@breaks("C19", "an id that is no text")
class AnIdMayBeANumber(Records):
    async def claim(self, workflow, budget, alive):
        return await super().claim(str(workflow), budget, alive)
