"""Ledgers that break a clause about the start or the end of a pass."""

from __future__ import annotations

import asyncio
import dataclasses

from without_durability import Ended, Started
from without_durability.ledger import raised, used_up

from .breaking import Rows, breaks

# --- starts -----------------------------------------------------------------------------------


@breaks("L3", "left the workflow")
class AStartDoesNotCount(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        started = await super().start_pass(delivery, budget, attempts)
        if started.holder is not None:
            self.put(delivery.workflow, attempts=started.attempt - 1)
        return started


@breaks("L3", "starts a pass")
class NothingIsParked(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        return await super().start_pass(delivery, budget)


@breaks("L3", "the third start_pass of two attempts starts a pass")
class OneAttemptMoreThanTheLimit(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        return await super().start_pass(delivery, budget, attempts and attempts + 1)


@breaks("L3", "has no error")
class ParkedWithoutAWord(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        started = await super().start_pass(delivery, budget, attempts)
        if started.over == "parked":
            self.put(delivery.workflow, detail=None)
        return started


@breaks("L3", "it keeps the error")
class ParkedOverTheLastError(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        started = await super().start_pass(delivery, budget, attempts)
        if started.over == "parked":
            detail = raised(used_up(started.attempt), None).detail
            self.put(delivery.workflow, detail=self.checkpointer.codec.encode(detail))
        return started


@breaks("L3", "it was parked, and yet")
class ParkedInTheQueue(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        started = await super().start_pass(delivery, budget, attempts)
        if started.over == "parked":
            self.scheduler.outstanding[delivery.workflow] = (delivery, self.scheduler.clock() + 9)
        return started


@breaks("L3", "it was parked, and yet")
class ParkedUnderAClaim(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        started = await super().start_pass(delivery, budget, attempts)
        if started.over == "parked":
            await self.checkpointer.claim(delivery.workflow, budget, self.scheduler.lease)
        return started


@breaks("L3", "made ready by hand")
class WhatWasParkedIsParkedAgain(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        if self.runs[delivery.workflow].state == "failed":
            self.put(delivery.workflow, state="ready")
        return await super().start_pass(delivery, budget, attempts)


@breaks("L3", "the second start_pass starts no pass")
class AStartClaimsForTheWholeBudget(Rows):
    """The second of two starts, after the first one's process died, finds it held."""

    async def start_pass(self, delivery, budget, attempts=None):
        started = await super().start_pass(delivery, budget, attempts)
        if started.holder is not None:
            await self.checkpointer.extend(started.holder, budget, budget)
        return started


@breaks("L3", "that was cancelled")
class AStartDoesNotAskWhoHolds(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        started = await super().start_pass(delivery, budget, attempts)
        if started.over == "gone":
            holder = await self.checkpointer.claim(delivery.workflow, budget, budget)
            return Started(delivery, holder, attempt=1)
        return started


@breaks("L3", "that was made ready again")
class AnyDeliveryWillDo(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        if delivery.workflow in self.scheduler.queue:
            holder = await self.checkpointer.claim(delivery.workflow, budget, budget)
            return Started(delivery, holder, attempt=1)
        return await super().start_pass(delivery, budget, attempts)


@breaks("L3", "its delivery was cancelled, and yet")
class WhatIsGoneStaysClaimed(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        started = await super().start_pass(delivery, budget, attempts)
        if started.over == "gone":
            await self.checkpointer.claim(delivery.workflow, budget, budget)
        return started


@breaks("L3", "of what is cancelled starts a pass")
class ACancelledOneStarts(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        if self.runs.get(delivery.workflow) and self.runs[delivery.workflow].state == "cancelled":
            self.put(delivery.workflow, state="ready")
        return await super().start_pass(delivery, budget, attempts)


@breaks("L3", "a start answered for it")
class ACancelledOneStaysOut(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        held = self.scheduler.outstanding.get(delivery.workflow)
        started = await super().start_pass(delivery, budget, attempts)
        if started.over == "cancelled":
            self.scheduler.outstanding[delivery.workflow] = held
        return started


@breaks("L3", "that was refused left it")
class ARefusedStartCounts(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        started = await super().start_pass(delivery, budget, attempts)
        if started.holder is None and started.over is None:
            self.put(delivery.workflow, attempts=self.runs[delivery.workflow].attempts + 1)
        return started


@breaks("L3", "of what another pass holds is over as 'parked'")
class AHeldOneIsParked(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        started = await super().start_pass(delivery, budget, attempts)
        if started.holder is None and started.over is None and attempts == 1:
            self.put(delivery.workflow, state="failed")
            return started._replace(over="parked")
        return started


@breaks("L3", "never arrived")
class OnlyWhatArrivedHasARow(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        known = delivery.workflow in self.runs
        started = await super().start_pass(delivery, budget, attempts)
        if not known:
            self.runs.pop(delivery.workflow, None)
        return started


@breaks("L3", "keeps a claim that nobody heard of")
class AStartForACancelledCallerStands(Rows):
    async def start_pass(self, delivery, budget, attempts=None):
        started = await super().start_pass(delivery, budget, attempts)
        await asyncio.sleep(0)
        return started


@breaks("L3", "start_passes left the workflow")
class StartedTogetherIsNotCounted(Rows):
    async def start_passes(self, limit, within, budget, attempts=None):
        delivery = await self.scheduler.next_ready(within)
        if delivery is None:
            return []
        started = await super().start_pass(delivery, budget, attempts)
        if started.holder is not None:
            self.put(delivery.workflow, attempts=0)
        return [started]


@breaks("L3", "the third start_passes of two attempts starts a pass")
class StartedTogetherHasNoLimit(Rows):
    async def start_passes(self, limit, within, budget, attempts=None):
        delivery = await self.scheduler.next_ready(within)
        return [await super().start_pass(delivery, budget)] if delivery else []


# --- ends -------------------------------------------------------------------------------------


@breaks("L4", "that was outranked ended")
class AnyPassEndsIt(Rows):
    async def end_pass(self, holder, delivery, ended):
        newest = self.checkpointer.claims[holder.workflow].token
        await super().end_pass(dataclasses.replace(holder, token=newest), delivery, ended)


@breaks("L4", "ended a second time")
class APassEndsTwice(Rows):
    async def end_pass(self, holder, delivery, ended):
        released = not self.checkpointer._unreleased(holder)
        await super().end_pass(holder, delivery, ended)
        if released and ended.state == "blocked":
            self.put(holder.workflow, state="blocked", detail=None)


@breaks("L4", "left 1 attempts")
class AnEndKeepsTheAttempts(Rows):
    async def end_pass(self, holder, delivery, ended):
        await super().end_pass(holder, delivery, ended._replace(attempts=None))


@breaks("L4", "has the result None")
class AnEndKeepsNoDetail(Rows):
    async def end_pass(self, holder, delivery, ended):
        if ended.state == "completed":
            ended = ended._replace(detail=None)
        await super().end_pass(holder, delivery, ended)


@breaks("L4", "its pass ended")
class AnEndKeepsTheClaim(Rows):
    async def end_pass(self, holder, delivery, ended):
        claim = self.checkpointer.claims[holder.workflow]
        await super().end_pass(holder, delivery, ended)
        if claim.token == holder.token:
            self.checkpointer.claims[holder.workflow] = claim


@breaks("L4", "a pass ended blocked")
class AnEndAnswersForNothing(Rows):
    async def end_pass(self, holder, delivery, ended):
        held = self.scheduler.outstanding.get(delivery.workflow)
        await super().end_pass(holder, delivery, ended)
        if held is not None and ended.due is None:
            self.scheduler.outstanding[delivery.workflow] = held


@breaks("L4", "the moment has come")
class WhatIsDueIsDueForEver(Rows):
    def _status(self, run):
        due = self.scheduler.sleeping.get(run.workflow)
        return dataclasses.replace(super()._status(run), due=due)


@breaks("L4", "during a pass, and it ended")
class AnEndOverwritesAWakeup(Rows):
    async def end_pass(self, holder, delivery, ended):
        newest = self.checkpointer._unreleased(holder)
        await super().end_pass(holder, delivery, ended)
        if newest and ended.state:
            self.put(holder.workflow, state=ended.state)


@breaks("L4", "was not delivered")
class ASleepPutsAWakeupOff(Rows):
    async def end_pass(self, holder, delivery, ended):
        await super().end_pass(holder, delivery, ended)
        if ended.state == "sleeping" and holder.workflow in self.scheduler.queue:
            await self.scheduler.schedule(holder.workflow, ended.due)


@breaks("L4", "left it 1 attempts")
class AWakeupKeepsTheAttempts(Rows):
    async def end_pass(self, holder, delivery, ended):
        await super().end_pass(holder, delivery, ended)
        if self.runs[holder.workflow].state == "ready":
            self.put(holder.workflow, attempts=max(1, self.runs[holder.workflow].attempts))


@breaks("L4", "with nothing queued")
class WithoutItsDeliveryItStaysReady(Rows):
    async def end_pass(self, holder, delivery, ended):
        held = await self.scheduler.holds(delivery)
        newest = self.checkpointer._unreleased(holder)
        await super().end_pass(holder, delivery, ended)
        if newest and not held:
            self.put(holder.workflow, state="ready", attempts=0)


@breaks("L4", "a late end answers for the delivery")
class ALateEndAnswersForNothing(Rows):
    async def end_pass(self, holder, delivery, ended):
        if self.checkpointer._unreleased(holder):
            await super().end_pass(holder, delivery, ended)


@breaks("L4", "cancelled after")
class AnEndIsTwoCommits(Rows):
    async def end_pass(self, holder, delivery, ended):
        run = self.runs[holder.workflow]
        await super().end_pass(holder, delivery, ended)
        run, self.runs[holder.workflow] = self.runs[holder.workflow], run
        await asyncio.sleep(0)
        self.runs[holder.workflow] = run


@breaks("L5", "there is None")
class AnErrorIsNotKept(Rows):
    async def end_pass(self, holder, delivery, ended):
        if ended.state == "ready":
            ended = ended._replace(detail=None)
        await super().end_pass(holder, delivery, ended)


@breaks("L5", "of the last error")
class TheFirstErrorIsKept(Rows):
    async def end_pass(self, holder, delivery, ended):
        detail = self.runs[holder.workflow].detail
        await super().end_pass(holder, delivery, ended)
        if ended.state == "failed" and detail is not None:
            self.put(holder.workflow, detail=detail)


@breaks("L5", "0 attempts are counted")
class AFailureIsNoAttempt(Rows):
    async def end_pass(self, holder, delivery, ended):
        await super().end_pass(holder, delivery, ended._replace(attempts=ended.attempts or 0))


@breaks("L5", "it is due at")
class AFailureIsTriedAtOnce(Rows):
    async def end_pass(self, holder, delivery, ended):
        if ended.state == "ready":
            ended = ended._replace(due=self.checkpointer.now())
        await super().end_pass(holder, delivery, ended)


@breaks("L5", "at the limit and is ready")
class NothingEverFails(Rows):
    async def end_pass(self, holder, delivery, ended):
        if ended.state == "failed":
            ended = ended._replace(state="ready")
        await super().end_pass(holder, delivery, ended)


@breaks("L5", "it was parked, and yet")
class AFailedOneIsQueued(Rows):
    async def end_pass(self, holder, delivery, ended):
        await super().end_pass(holder, delivery, ended)
        if ended.state == "failed":
            await self.scheduler.make_ready(holder.workflow)


@breaks("L5", "it has of its records")
class AFailedOneForgetsItsRecords(Rows):
    async def end_pass(self, holder, delivery, ended):
        await super().end_pass(holder, delivery, ended)
        if ended.state == "failed":
            await self.checkpointer.discard(holder.workflow)


@breaks("L5", "that was given back counts")
class WhatIsGivenBackCounts(Rows):
    async def end_pass(self, holder, delivery, ended):
        if ended.state is None:
            ended = Ended(ended.due)
        await super().end_pass(holder, delivery, ended)


@breaks("L5", "that was given back left the error")
class WhatIsGivenBackForgetsTheError(Rows):
    async def end_pass(self, holder, delivery, ended):
        await super().end_pass(holder, delivery, ended)
        if ended.state is None:
            self.put(holder.workflow, detail=None)
