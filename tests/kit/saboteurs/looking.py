"""Ledgers that break a clause about a call that changes nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import fnmatch
from datetime import timedelta

from without_durability import Page, WorkflowFailed
from without_durability.testing.subject import FAILURE

from .breaking import Rows, breaks


@breaks("L6", "there is a status of what is unknown")
class WhatIsUnknownIsReady(Rows):
    async def status(self, workflow):
        if workflow not in self.runs:
            self._arrived(workflow, self.checkpointer.now())
        return await super().status(workflow)


@breaks("L6", "is due at None")
class NothingIsEverDue(Rows):
    def _status(self, run):
        return dataclasses.replace(super()._status(run), due=None)


@breaks("L6", "a ready workflow is due at")
class WhatIsReadyIsDue(Rows):
    def _status(self, run):
        status = super()._status(run)
        return dataclasses.replace(status, due=status.due or self.checkpointer.now())


@breaks("L6", "does not count as running")
class NothingEverRuns(Rows):
    def _status(self, run):
        return dataclasses.replace(super()._status(run), running=False)


@breaks("L6", "whose claim lapsed counts as running")
class WhatLapsedRunsOn(Rows):
    def _status(self, run):
        claim = self.checkpointer.claims.get(run.workflow)
        held = claim is not None and claim.held_until > 0
        return dataclasses.replace(super()._status(run), running=held)


@breaks("L6", "a start did not move updated_at")
class AStartIsNoChange(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        row = self.runs[delivery.workflow]
        started = await super().start_pass(delivery, budget, attempts)
        self.put(delivery.workflow, updated_at=row.updated_at)
        return started


@breaks("L6", "they are numbered")
class RowsAreNumberedByState(Rows):
    def _status(self, run):
        return dataclasses.replace(super()._status(run), seq=len(run.state))


@breaks("L6", "they are numbered")
class ANumberIsHowManyThereAre(Rows):
    async def arrive(self, workflow, key, value):
        known = workflow in self.runs
        stored = await super().arrive(workflow, key, value)
        if not known:
            self.put(workflow, seq=len(self.runs))
        return stored


@breaks("L6", "neither arrived nor started")
class RecordsAreARow(Rows):
    async def status(self, workflow):
        if workflow in self.checkpointer.hashes and workflow not in self.runs:
            self._arrived(workflow, self.checkpointer.now())
        return await super().status(workflow)


@breaks("L6", "status takes")
class StatusTakesAnything(Rows):
    async def status(self, workflow):
        run = self.runs.get(workflow)
        return None if run is None else self._status(run)


@breaks("L6", "cancel of what is unknown")
class CancelOfNothingIsARow(Rows):
    async def cancel(self, workflow, reason=""):
        if workflow == "unknown":
            self._arrived(workflow, self.checkpointer.now())
        return await super().cancel(workflow, reason)


@breaks("L6", "rewind of what is unknown")
class RewindCountsNothingAsNone(Rows):
    async def rewind(self, workflow, to):
        return await super().rewind(workflow, to) or None


class Listing(Rows):
    """A ledger whose pages are sliced from all that its rows make of a filter."""

    def rows(self, state, namespace, prefix):
        return [
            self._status(run)
            for run in reversed(self.runs.values())
            if (state is None or run.state == state)
            and (namespace is None or run.namespace == namespace)
            and (prefix is None or run.workflow.startswith(prefix))
        ]

    async def list(self, *, state=None, namespace=None, prefix=None, after=None, limit=100):
        await super().list(state=state, namespace=namespace, prefix=prefix, limit=limit)
        found = self.rows(state, namespace, prefix)
        return self.paged([one for one in found if after is None or one.seq < after], limit)

    def paged(self, found, limit):
        return Page(tuple(found[:limit]), found[limit - 1].seq if len(found) > limit else None)


@breaks("L7", "pages of 100 show")
class OldestFirst(Listing):
    def rows(self, state, namespace, prefix):
        return super().rows(state, namespace, prefix)[::-1]


@breaks("L7", "with prefix 'a_'")
class APrefixIsAPattern(Listing):
    def rows(self, state, namespace, prefix):
        pattern = (prefix or "").replace("_", "?").replace("%", "*") + "*"
        return [
            one
            for one in super().rows(state, namespace, None)
            if fnmatch.fnmatchcase(one.workflow, pattern)
        ]


@breaks("L7", "with prefix 'a")
class APrefixHasNoCase(Listing):
    def rows(self, state, namespace, prefix):
        prefix = (prefix or "").lower()
        rows = super().rows(state, namespace, None)
        return [one for one in rows if one.workflow.lower().startswith(prefix)]


@breaks("L7", "with prefix 'a'")
class APrefixEndsBeforeTheLastCharacter(Listing):
    def rows(self, state, namespace, prefix):
        rows = super().rows(state, namespace, prefix)
        return [one for one in rows if not prefix or one.workflow < prefix + "\U0010ffff"]


@breaks("L7", "with the cancelled")
class AStateIsNoFilter(Listing):
    def rows(self, state, namespace, prefix):
        return super().rows(None, namespace, prefix)


@breaks("L7", "with another queue")
class AQueueIsNoFilter(Listing):
    def rows(self, state, namespace, prefix):
        return super().rows(state, None, prefix)


@breaks("L7", "with all filters")
class OnlyOneFilterCounts(Listing):
    def rows(self, state, namespace, prefix):
        return super().rows(None if prefix else state, namespace, prefix)


@breaks("L7", "names a next one")
class AFullPageHasANextOne(Listing):
    def paged(self, found, limit):
        page = super().paged(found, limit)
        return Page(page.items, page.items[-1].seq if len(page.items) == limit else None)


@breaks("L7", "pages of 1 have no end")
class APageBeginsWithTheLastRow(Listing):
    def paged(self, found, limit):
        page = super().paged(found, limit)
        return Page(page.items, page.next and page.next + 1)


@breaks("L7", "names a next one and shows nothing")
class FiltersApplyToAPage(Listing):
    async def list(self, *, state=None, namespace=None, prefix=None, after=None, limit=100):
        page = await super().list(namespace=namespace, prefix=prefix, after=after, limit=limit)
        fitting = tuple(one for one in page.items if state is None or one.state == state)
        return Page(fitting, page.next)


@breaks("L7", "while others came and went")
class PagesGoByPlace(Listing):
    async def list(self, *, state=None, namespace=None, prefix=None, after=None, limit=100):
        await super().list(state=state, namespace=namespace, prefix=prefix, limit=limit)
        begin = after or 0
        found = self.rows(state, namespace, prefix)[begin : begin + limit + 1]
        return Page(tuple(found[:limit]), begin + limit if len(found) > limit else None)


@breaks("L7", "while others came and went")
class PagesGoByTheLastChange(Listing):
    def rows(self, state, namespace, prefix):
        rows = super().rows(state, namespace, prefix)
        return sorted(rows, key=lambda one: one.seq, reverse=True)

    async def arrive(self, workflow, key, value):
        known = workflow in self.runs
        stored = await super().arrive(workflow, key, value)
        if known:
            self.put(workflow, seq=max(run.seq for run in self.runs.values()) + 1)
        return stored


@breaks("L7", "takes a limit of 0")
class APageOfNothing(Rows):
    async def list(self, *, limit=100, **filters):
        if limit == 0:
            return Page((), None)
        return await super().list(limit=limit, **filters)


@breaks("L8", "where there is nothing")
class OnlyWhatThereIsIsCounted(Rows):
    async def counts(self, namespace=None):
        counts = await super().counts(namespace)
        return {state: count for state, count in counts.items() if count}


@breaks("L8", "and counts says")
class CountsGoUpAlone(Rows):
    async def delete(self, workflow):
        row = self.runs.get(workflow)
        self.checkpointer.data["gone"] = row.state
        return await super().delete(workflow)

    async def counts(self, namespace=None):
        counts = await super().counts(namespace)
        if "gone" in self.checkpointer.data:
            counts[self.checkpointer.data["gone"]] += 1
        return counts


@breaks("L8", "counts of another queue")
class CountsOfAnyQueue(Rows):
    async def counts(self, namespace=None):
        return await super().counts()


@breaks("L8", "counts of their queue")
class CountsOfNoQueue(Rows):
    async def counts(self, namespace=None):
        return await super().counts(namespace and namespace.upper())


# --- the end ----------------------------------------------------------------------------------


@breaks("L14", "is there within")
class WhatHasNotEndedReturnsNothing(Rows):
    async def result(self, workflow, *, within):
        try:
            return await super().result(workflow, within=within)
        except TimeoutError:
            return None


@breaks("L14", "TimeoutError")
class NobodyWaitsForTheEnd(Rows):
    async def result(self, workflow, *, within):
        return await super().result(workflow, within=timedelta(0))


@breaks("L14", "did not end")
class OneOfThoseThatWaitIsWoken(Rows):
    def _put(self, workflow, now, state, detail, attempts):
        waiting = self._awaited.get(workflow, set())
        later = {waiting.pop() for _ in range(len(waiting) - 1)}
        super()._put(workflow, now, state, detail, attempts)
        waiting |= later


@breaks("L14", "did not end")
class WhatIsCancelledWakesNobody(Rows):
    async def cancel(self, workflow, reason=""):
        waiting = self._awaited.pop(workflow, set())
        return await super().cancel(workflow, reason) or bool(waiting)


@breaks("L14", "did not end")
class WhatIsParkedWakesNobody(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        if attempts is not None:
            self._awaited.pop(delivery.workflow, None)
        return await super().start_pass(delivery, budget, attempts)


@breaks("L14", "a failed workflow has a result")
class AFailureIsNoResult(Rows):
    async def result(self, workflow, *, within):
        try:
            return await super().result(workflow, within=within)
        except WorkflowFailed:
            return None


@breaks("L14", "and says")
class AnyFailureWillDo(Rows):
    async def result(self, workflow, *, within):
        try:
            return await super().result(workflow, within=within)
        except WorkflowFailed as error:
            raise WorkflowFailed(workflow, dataclasses.replace(FAILURE, message="?")) from error


@breaks("L14", "is not a TypeError")
class WhatCouldNotBeStoredIsNone(Rows):
    async def result(self, workflow, *, within):
        try:
            return await super().result(workflow, within=within)
        except TypeError:
            return None


@breaks("L14", "the store raised TypeError")
class WhatCannotBeStoredEndsNothing(Rows):
    async def end_pass(self, holder, delivery, ended):
        self.checkpointer.codec.encode(ended.detail)
        await super().end_pass(holder, delivery, ended)


@breaks("L14", "leaves its result standing")
class AResultStandsForEver(Rows):
    async def result(self, workflow, *, within):
        kept = self.checkpointer.data
        kept[workflow] = kept.get(workflow) or await super().result(workflow, within=within)
        return kept[workflow]


@breaks("L14", "one that waited heard 'too soon'")
class TheFirstEndIsTheEnd(Rows):
    async def end_pass(self, holder, delivery, ended):
        await super().end_pass(holder, delivery, ended)
        if ended.state == "completed" and self.runs[holder.workflow].state == "ready":
            row = self.runs[holder.workflow]
            detail = self.checkpointer.codec.encode(ended.detail)
            self._put(holder.workflow, row.updated_at, "completed", detail, 0)
            await asyncio.sleep(0.01)


@breaks("L15", "is no sentence")
class WhyIsAWord(Rows):
    async def why(self, workflow):
        row = self.runs.get(workflow)
        return f"{workflow} {row.state if row else 'unknown'}"


@breaks("L15", "does not tell 'no such card'")
class WhyTellsNoMessage(Rows):
    async def why(self, workflow):
        return (await super().why(workflow)).replace(FAILURE.message, "something")


@breaks("L15", "does not tell 'key'")
class WhyTellsNoKeys(Rows):
    async def why(self, workflow):
        return (await super().why(workflow)).replace("key", "something")


@breaks("L15", "says the same of different states")
class WhyTellsNoneFromAnother(Rows):
    async def why(self, workflow):
        why = await super().why(workflow)
        return f"{workflow} is at rest." if "completed" in why or "queued" in why else why


@breaks("L15", "of what is running")
class WhyTellsNoToken(Rows):
    async def why(self, workflow):
        why = await super().why(workflow)
        return f"{workflow} is running." if "running" in why else why
