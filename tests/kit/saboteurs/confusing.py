"""Checkpointers that take one thing for another: ids, keys, values, moments."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import unicodedata
from datetime import UTC, datetime

from without_durability import INBOX, Entry, Recorded, Stored, inbox_key

from .breaking import Records, breaks


@breaks("C14", "left {} of workflow 'w2'")
class DiscardMatchesAPrefix(Records):
    async def discard(self, workflow):
        for other in [*self.hashes]:
            if other.startswith(workflow) and other != workflow:
                del self.hashes[other]
        return await super().discard(workflow)


@breaks("C14", "took its id for a pattern")
class DiscardReadsWildcards(Records):
    async def discard(self, workflow):
        if workflow == "%":
            self.hashes.clear()
        return await super().discard(workflow)


@breaks("C14", "after a discard a supply")
class DiscardLeavesATombstone(Records):
    async def discard(self, workflow):
        count = await super().discard(workflow)
        self.data[f"dead {workflow}"] = 1
        return count

    async def supply(self, workflow, key, value):
        if f"dead {workflow}" in self.data:
            return None
        return await super().supply(workflow, key, value)


@breaks("C14", "discard of three records")
class DiscardLeavesTheInbox(Records):
    async def discard(self, workflow):
        kept = {k: v for k, v in self.hashes.get(workflow, {}).items() if k.startswith(INBOX)}
        count = await super().discard(workflow)
        if kept:
            self.hashes[workflow] = kept
        return count - len(kept)


@breaks("C9", "recording 0 after None")
class NoneIsNothing(Records):
    async def record(self, holder, key, value):
        if (await self.load(holder.workflow)).get(key) is None:
            self.hashes.get(holder.workflow, {}).pop(key, None)
        return await super().record(holder, key, value)


@breaks("C12", "whose result is None, ran")
class NoResultIsNoRecord(Records):
    async def transact(self, holder, key, effect):
        if (await self.load(holder.workflow)).get(key) is None:
            self.hashes.get(holder.workflow, {}).pop(key, None)
        return await super().transact(holder, key, effect)


@breaks("C13", "two supplies of one key")
class AnEmptySupplyIsNone(Records):
    async def supply(self, workflow, key, value):
        if not (await self.load(workflow)).get(key):
            self.hashes.get(workflow, {}).pop(key, None)
        return await super().supply(workflow, key, value)


@breaks("C9", "recording True after 1")
class EqualIsTheSame(Records):
    async def record(self, holder, key, value):
        recorded = await super().record(holder, key, value)
        return Recorded(recorded.value, recorded.value == value)


@breaks("C9", "after 'first' was supplied")
class RecordsAndSuppliesAreKeptApart(Records):
    async def supply(self, workflow, key, value):
        return await super().supply("supplied", f"{workflow} {key}", value)

    async def history(self, workflow):
        history = await super().history(workflow)
        for key, written in (await super().history("supplied")).items():
            if key.startswith(f"{workflow} "):
                history.setdefault(key.removeprefix(f"{workflow} "), written)
        return history


@breaks("C1", "load gave")
class LoadSortsByMoment(Records):
    def _written(self, workflow, key, encoding, supplied=False):
        records = self.hashes.setdefault(workflow, {})
        return records.setdefault(key, Stored(encoding, self.now())).encoded

    async def history(self, workflow):
        history = await super().history(workflow)
        return dict(sorted(history.items(), key=lambda one: one[1].at))


@breaks("C1", "load gave")
class ALosingTransactMovesItsKey(Records):
    async def transact(self, holder, key, effect):
        stored = await super().transact(holder, key, effect)
        records = self.hashes[holder.workflow]
        records[key] = records.pop(key)
        return stored


@breaks("C1", "load gave")
class LoadPutsMessagesLast(Records):
    async def history(self, workflow):
        return dict(
            sorted(
                (await super().history(workflow)).items(), key=lambda one: one[0].startswith(INBOX)
            )
        )


@breaks("C2", "for supplied")
class ASupplyHasNoMoment(Records):
    async def supply(self, workflow, key, value):
        stored = await super().supply(workflow, key, value)
        records = self.hashes[workflow]
        records[key] = dataclasses.replace(records[key], at=datetime(1970, 1, 1, tzinfo=UTC))
        return stored


@breaks("C2", "for supplied")
class ALosingSupplyMovesTheMoment(Records):
    async def supply(self, workflow, key, value):
        stored = await super().supply(workflow, key, value)
        self.put(workflow, key, stored)
        return stored


@breaks("C2", "for transacted")
class ALosingTransactMovesTheMoment(Records):
    async def transact(self, holder, key, effect):
        stored = await super().transact(holder, key, effect)
        self.put(holder.workflow, key, stored)
        return stored


@breaks("C13", "messages appended in turn")
class MessagesAreNumberedByTheClock(Records):
    async def append(self, workflow, value):
        entry = await super().append(workflow, value)
        stored = self.hashes[workflow].pop(entry.key)
        key = inbox_key(int(self.clock() * 1000) * 1000 + len(self.hashes[workflow]))
        self.hashes[workflow][key] = stored
        return Entry(key, entry.value)


@breaks("C13", "over the message 0")
class AMessageIsOverwritten(Records):
    async def supply(self, workflow, key, value):
        if key.startswith(INBOX):
            await super().supply(workflow, key, value)
            self.put(workflow, key, value)
            return value
        return await super().supply(workflow, key, value)


@breaks("C16", "record hands out")
class ARecordAnswersFromACache(Records):
    async def record(self, holder, key, value):
        recorded = await super().record(holder, key, value)
        cached = self.data.setdefault(key, recorded.value)
        return Recorded(cached, recorded.first)

    async def load(self, workflow):
        return copy.deepcopy(await super().load(workflow) | self.data)


@breaks("C16", "history hands out")
class HistoryHandsOutWhatIsKept(Records):
    async def history(self, workflow):
        history = await super().history(workflow)
        return {key: self.data.setdefault(f"{workflow} {key}", one) for key, one in history.items()}

    async def load(self, workflow):
        return {
            key: copy.deepcopy(written.value)
            for key, written in (await self.history(workflow)).items()
        }


@breaks("C16", "cuts a long value")
class LongValuesAreCut(Records):
    def _written(self, workflow, key, encoding, supplied=False):
        return super()._written(workflow, key, encoding if len(encoding) < 2**16 else "{}")


@breaks("C18", "under 'inbox:'")
class OnlyWellFormedInboxKeysAreTheStores(Records):
    async def record(self, holder, key, value):
        if key.startswith(INBOX) and len(key) < 20:
            self.put(holder.workflow, key, value)
            return Recorded(value, True)
        return await super().record(holder, key, value)


@breaks("C18", "lies in the inbox space")
class InboxKeysIgnoreCase(Records):
    async def record(self, holder, key, value):
        return await super().record(
            holder, key.lower() if key.lower().startswith(INBOX) else key, value
        )


@breaks("C18", "'inbox:+0")
class WhateverIntReadsIsAPosition(Records):
    async def supply(self, workflow, key, value):
        number = key.removeprefix(INBOX)
        if key.startswith(INBOX) and len(number) == 20:
            with contextlib.suppress(ValueError):
                if 0 <= int(number) < 2**62:
                    return self.codec.decode(self._written(workflow, key, self.codec.encode(value)))
        return await super().supply(workflow, key, value)


@breaks("C18", "'inbox:-0")
class ANegativePositionIsSupplied(Records):
    async def supply(self, workflow, key, value):
        if key.startswith(INBOX + "-"):
            self.put(workflow, key, value)
            return value
        return await super().supply(workflow, key, value)


@breaks("C18", "'inbox:0")
class ALongerPositionIsSupplied(Records):
    async def supply(self, workflow, key, value):
        if key.startswith(INBOX) and len(key) > 26 and key.removeprefix(INBOX).isdigit():
            self.put(workflow, key, value)
            return value
        return await super().supply(workflow, key, value)


class Confusing(Records):
    """A checkpointer in which two workflows or keys are one if their `name` is."""

    def name(self, workflow, key):
        raise NotImplementedError

    def _written(self, workflow, key, encoding, supplied=False):
        for other, records in self.hashes.items():
            for another, stored in records.items():
                if self.name(other, another) == self.name(workflow, key):
                    encoding = stored.encoded
        return super()._written(workflow, key, encoding)


@breaks("C19", "holds what was supplied to")
class IdAndKeyAreJoined(Confusing):
    def name(self, workflow, key):
        return f"{workflow}:{key}"


@breaks("C19", "holds what was supplied to")
class IdAndKeyAreJoinedWithoutAnything(Confusing):
    def name(self, workflow, key):
        return workflow + key


@breaks("C19", "the workflow of id 'A'")
class IdsIgnoreCase(Confusing):
    def name(self, workflow, key):
        return workflow.lower(), key


@breaks("C19", "the workflow of id 'xxx")
class IdsAreCutShort(Confusing):
    def name(self, workflow, key):
        return workflow[:255], key


@breaks("C19", "what belongs to others")
class KeysIgnoreCase(Confusing):
    def name(self, workflow, key):
        return workflow, key.lower()


@breaks("C19", "what belongs to others")
class KeysAreTrimmed(Confusing):
    def name(self, workflow, key):
        return workflow, key.strip(" ")


@breaks("C19", "what belongs to others")
class KeysAreCutShort(Confusing):
    def name(self, workflow, key):
        return workflow, key[:255]


@breaks("C19", "what belongs to others")
class KeysAreNormalized(Confusing):
    def name(self, workflow, key):
        return workflow, unicodedata.normalize("NFC", key)
