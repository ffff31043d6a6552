"""One delivery's way through a worker: claim, pass, release, answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from .interfaces import Durable, PassDurable
from .outcomes import Sleeping
from .retrying import is_permanent, pause_after, persist, traced
from .settling import settle
from .signals import Contended, Fenced
from .stepwise import Run, extending, resume_from
from .values import Delivery, Pass, Started, shown

logger = logging.getLogger("without_durability.worker")

RENEWALS = 3
"""How often claim and delivery are renewed within one lease."""

PARTING = timedelta(seconds=2)
"""How long a worker that is being stopped asks a store that refuses to take something back."""

LAST_WORD = 3 * PARTING
"""How long it waits for a store that does not answer at all, an effect being stuck inside it."""


@dataclass(frozen=True, slots=True)
class Raised:
    """What a body raised, as a value: it concerns its own workflow alone."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Policy:
    """What every attempt of one worker shares; `failures` counts failures in a row by workflow."""

    durable: Durable[Any]
    body: Callable[[Run[Any]], Awaitable[object]]
    lease: timedelta
    budget: timedelta
    contended: timedelta
    now: Callable[[], datetime]
    failures: dict[str, int] = field(default_factory=dict)

    @property
    def whole(self) -> PassDurable[Any] | None:
        """The durable, where it starts and ends whole passes."""
        durable: Any = self.durable
        both = hasattr(durable, "start_passes") and hasattr(durable, "end_pass")
        return durable if both else None


class LoopWatch:
    """Reports how long the event loop was away: at least half of one `interval` (seconds).

    It beats ten times an interval, so what it tells is short by a tenth of one at the most.
    """

    def __init__(self, interval: float, report: Callable[[float], None]) -> None:
        self._beat = interval / 10
        self._worth_telling = interval / 2
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._arm()

    def stop(self) -> None:
        self._timer.cancel()
        self._check()

    def _arm(self) -> None:
        self._timer = self._loop.call_later(self._beat, self._tick)

    def _tick(self) -> None:
        self._check()
        self._arm()

    def _check(self) -> None:
        late = self._loop.time() - self._timer.when()
        if late > self._worth_telling:
            self._report(late)


class Attempt:
    """One delivery, from the moment a worker has it until it is answered for.

    Two facts are kept: the claim that is still to be released, and whether the delivery still
    waits for an answer. Whatever ends the attempt early, `abandon` sees to both.
    """

    def __init__(self, policy: Policy, delivery: Delivery, started: Started | None = None) -> None:
        self._policy = policy
        self._delivery = delivery
        self._started = started
        self._holder = None if started is None else started.holder
        self._recorded = None if started is None else started.recorded
        self._answered = False
        self._began = 0.0
        self._granted_until = 0.0
        self._refused = False
        self._buy = extending(policy.durable.checkpointer, policy.budget, policy.lease, policy.now)

    @property
    def workflow(self) -> str:
        return self._delivery.workflow

    async def run(self) -> None:
        """Make the pass and answer for the delivery; only a permanent store error comes out."""
        try:
            await self._run()
        except GeneratorExit:
            raise
        except BaseException:  # cancelled, or a store that is gone for good
            await settle(self.abandon)
            raise

    async def abandon(self) -> None:
        """Release the claim and make an unanswered delivery visible at once, as far as one can."""
        try:
            async with asyncio.timeout(LAST_WORD.total_seconds()):
                now = self._policy.now()
                if self._answered:
                    await self._ask(self._release, "release", PARTING)
                else:
                    await self._end(now, PARTING)
                    await self._policy.durable.scheduler.wake_due(now)
        except Exception as error:
            logger.warning("workflow %s was not handed back: %r", shown(self.workflow), error)

    async def _run(self) -> None:
        policy = self._policy
        self._began = asyncio.get_running_loop().time()
        self._granted_until = self._began + policy.budget.total_seconds()
        if self._started is None:
            try:
                self._holder = await policy.durable.checkpointer.claim(
                    self.workflow, policy.budget, policy.lease
                )
            except Exception as error:
                if is_permanent(policy.durable.scheduler, error):
                    raise
                await self._failed(error)
                return
        if self._holder is None:
            await self._look_again(policy.contended)
        elif self._started is not None or await self._still_held():
            await self._answer(await self._passed(self._holder))
        else:
            await self._ask(self._release, "release")
            self._answered = True

    async def _still_held(self) -> bool:
        """Whether the delivery outlived the claim: cancelled since its take, it starts no pass."""
        holds = getattr(self._policy.durable.scheduler, "holds", None)
        if holds is None:
            return True
        return bool(await self._ask(lambda: holds(self._delivery), "look at its delivery"))

    async def _passed(self, holder: Pass) -> object:
        """Run the body, renewing claim and delivery beside it; its outcome, or what it raised."""
        interval = self._policy.lease.total_seconds() / RENEWALS
        ending = asyncio.create_task(self._ended(holder))
        watch = LoopWatch(interval, self._report_block)
        try:
            while not ending.done():
                await asyncio.wait((ending,), timeout=interval)
                if not ending.done() and not await self._renewed(holder):
                    self._refused = True
                    break
        finally:
            watch.stop()
            await _stopped(ending, self._report_slow_end)
        return ending.result()

    async def _ended(self, holder: Pass) -> object:
        policy = self._policy
        checkpointer = policy.durable.checkpointer
        try:
            recorded = self._recorded
            if recorded is None:
                recorded = await checkpointer.load(holder.workflow)
            return await resume_from(
                recorded, holder, checkpointer, policy.body, extend=self._extend, now=policy.now
            )
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Raised(error)

    async def _extend(self, holder: Pass, within: timedelta) -> bool:
        """Buy claim time for a step, and remember it: a pass that outran it gets a warning."""
        until = asyncio.get_running_loop().time() + within.total_seconds()
        if not await self._buy(holder, within):
            return False
        self._granted_until = max(self._granted_until, until)
        return True

    async def _renewed(self, holder: Pass) -> bool:
        """Renew claim and delivery; a failed try is logged and counts as renewed until the next."""
        policy = self._policy
        try:
            if not await policy.durable.checkpointer.renew(holder, policy.lease):
                return False
            self._delivery = await policy.durable.scheduler.extend(self._delivery, policy.lease)
        except Exception as error:
            logger.warning(
                "workflow %s could not be renewed, trying again: %r", shown(self.workflow), error
            )
        return True

    def _report_block(self, late: float) -> None:
        logger.warning(
            "the event loop was blocked for at least %.2f s while workflow %s ran: its claim is "
            "renewed that much late, and others may take it for dead",
            late,
            shown(self.workflow),
        )

    def _report_slow_end(self) -> None:
        logger.warning(
            "workflow %s was cancelled and does not end: does its body swallow the cancellation?",
            shown(self.workflow),
        )

    async def _answer(self, ended: object) -> None:
        if self._refused or (isinstance(ended, Raised) and self._lost_by(ended.error)):
            await self._lost()
        elif isinstance(ended, Raised):
            await self._failed(ended.error)
        else:
            self._policy.failures.pop(self.workflow, None)
            await self._end(ended.due if isinstance(ended, Sleeping) else None)

    def _lost_by(self, error: BaseException) -> bool:
        """Whether an error says that this pass lost its workflow, and not some other one."""
        return isinstance(error, (Fenced, Contended)) and error.workflow in (None, self.workflow)

    async def _lost(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._granted_until:
            logger.info("workflow %s was lost to another pass", shown(self.workflow))
            await self._look_again(self._policy.contended)
            return
        pause = self._next_pause()
        logger.warning(
            "workflow %s ran for %.2f s and lost its claim to its own budget of %s (attempt %d): "
            "trying again in %.1f s",
            shown(self.workflow),
            now - self._began,
            self._policy.budget,
            self._policy.failures[self.workflow],
            pause.total_seconds(),
        )
        await self._look_again(pause)

    async def _failed(self, error: BaseException) -> None:
        pause = self._next_pause()
        logger.error(
            "workflow %s failed (attempt %d), trying again in %.1f s",
            shown(self.workflow),
            self._policy.failures[self.workflow],
            pause.total_seconds(),
            exc_info=traced(error),
        )
        await self._look_again(pause)

    def _next_pause(self) -> timedelta:
        failures = self._policy.failures
        failures[self.workflow] = failures.get(self.workflow, 0) + 1
        return pause_after(failures[self.workflow])

    async def _look_again(self, pause: timedelta) -> None:
        now = self._policy.now()
        try:
            later = now + pause
        except OverflowError:
            later = datetime.max.replace(tzinfo=UTC)
        await self._end(later)

    async def _end(self, due: datetime | None, patience: timedelta | None = None) -> None:
        """Release the claim and answer for the delivery: look again when `due`, or never."""
        whole = self._policy.whole
        if whole is not None and self._holder is not None:
            await self._ask(partial(self._end_at_once, whole, self._holder, due), "end", patience)
        else:
            await self._ask(self._release, "release", patience)
            await self._ask(partial(self._answer_for, due), "answer", patience)

    async def _end_at_once(
        self, whole: PassDurable[Any], holder: Pass, due: datetime | None
    ) -> None:
        await whole.end_pass(holder, self._delivery, due)
        self._holder = None
        self._answered = True

    async def _answer_for(self, due: datetime | None) -> None:
        scheduler = self._policy.durable.scheduler
        if due is None:
            await scheduler.done(self._delivery)
        else:
            await scheduler.wake_at(self._delivery, due)
        self._answered = True

    async def _release(self) -> None:
        if self._holder is not None:
            await self._policy.durable.checkpointer.release(self._holder)
            self._holder = None

    async def _ask(
        self, call: Callable[[], Awaitable[Any]], doing: str, patience: timedelta | None = None
    ) -> Any:
        """Ask the store for a lease at the most: after it claim and delivery are back (S2)."""
        policy = self._policy
        try:
            return await persist(
                policy.durable.scheduler,
                call,
                f"the {doing} of workflow {shown(self.workflow)}",
                patience=policy.lease if patience is None else patience,
            )
        except Exception as error:
            if is_permanent(policy.durable.scheduler, error):
                raise
            logger.error(
                "the %s of workflow %s failed: it waits for its lease to end",
                doing,
                shown(self.workflow),
                exc_info=traced(error),
            )
            return None


async def _stopped(task: asyncio.Task[object], report: Callable[[], None]) -> None:
    """Cancel the task and wait until it has ended, however often the waiting is cancelled.

    One that takes its time is reported once.
    """
    if task.done():
        _read(task)
        return
    cancellation: asyncio.CancelledError | None = None
    slow = asyncio.get_running_loop().call_later(PARTING.total_seconds(), report)
    task.cancel()
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancellation = error
    slow.cancel()
    _read(task)
    if cancellation is not None:
        raise cancellation


def _read(task: asyncio.Task[object]) -> None:
    """Ask for the task's error: nobody else will, once this worker is being stopped."""
    if not task.cancelled():
        task.exception()
