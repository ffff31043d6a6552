"""One delivery's way through a worker: claim, pass, release, answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from .interfaces import Durable, PassDurable
from .outcomes import Blocked, Completed, Sleeping
from .retrying import is_permanent, log_error, pause_after, persist
from .settling import settle
from .signals import Contended, Fenced
from .stepwise import Run, extending, resume_from
from .values import Delivery, Ended, Pass, Started, State, shown

if TYPE_CHECKING:
    from .ledger import Failure, Retry
    from .observing import Observer, Telling

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
    """What every attempt of one worker shares.

    `failures` counts failures in a row by workflow, where no ledger does.
    """

    durable: Durable[Any]
    body: Callable[[Run[Any]], Awaitable[object]]
    lease: timedelta
    budget: timedelta
    contended: timedelta
    now: Callable[[], datetime]
    retry: Retry | None = None
    observe: Observer | None = None
    failures: dict[str, int] = field(default_factory=dict)
    whole: PassDurable[Any] | None = field(init=False)
    """The durable, where it starts and ends whole passes."""

    def __post_init__(self) -> None:
        durable: Any = self.durable
        both = hasattr(durable, "start_pass") and hasattr(durable, "end_pass")
        if self.retry is not None and not (both and hasattr(durable, "status")):
            raise ValueError("retry needs a durable with a ledger, to park a workflow in")
        object.__setattr__(self, "whole", durable if both else None)

    @property
    def attempts(self) -> int | None:
        """After how many passes without an orderly end a workflow is parked."""
        return None if self.retry is None else self.retry.attempts

    def pause(self, attempt: int) -> timedelta:
        """How long a workflow rests after its `attempt`-th failure in a row."""
        return pause_after(attempt) if self.retry is None else self.retry.pause(attempt)

    def telling(self, workflow: str) -> Telling | Silence:
        """What tells the observer about a pass, if there is one."""
        if self.observe is None:
            return _SILENCE
        from .observing import Telling

        return Telling(self.observe, workflow)


class Silence:
    """What stands for a `Telling` where nobody listens."""

    def _ignore(self, *_: object) -> None:
        pass

    started = late = ended = failed = parked = lost = _ignore
    recorded = None


_SILENCE = Silence()


class LoopWatch:
    """Wakes whoever waits in it once per `interval` (seconds), and reports a loop that was away.

    A block of at least half an interval is reported. It beats ten times an interval, so what it
    tells is short by a tenth of one at the most.
    """

    def __init__(self, interval: float, report: Callable[[float], None]) -> None:
        self._interval = interval
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._lapses_at = self._loop.time() + interval
        self._waiter: asyncio.Future[None] | None = None
        self._arm()

    async def lapse(self, task: asyncio.Task[object]) -> None:
        """Wait until the task has ended, or an interval is over."""
        self._waiter = self._loop.create_future()
        task.add_done_callback(self._wake)
        try:
            await self._waiter
        finally:
            task.remove_done_callback(self._wake)

    def stop(self) -> None:
        self._timer.cancel()
        self._check()

    def _arm(self) -> None:
        self._timer = self._loop.call_later(self._interval / 10, self._tick)

    def _tick(self) -> None:
        self._check()
        if self._loop.time() >= self._lapses_at:
            self._lapses_at = self._loop.time() + self._interval
            self._wake()
        self._arm()

    def _wake(self, _: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _check(self) -> None:
        late = self._loop.time() - self._timer.when()
        if late > self._interval / 2:
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
        self._answered = False
        self._tell = policy.telling(delivery.workflow)
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
                    attempt = self._started.attempt if self._started is not None else 0
                    before = attempt - 1 if attempt else None
                    await self._end(Ended(now, attempts=before), PARTING)
                    await self._policy.durable.scheduler.wake_due(now)
        except Exception as error:
            logger.warning("workflow %s was not handed back: %r", shown(self.workflow), error)
        self._tell.ended(None)

    async def _run(self) -> None:
        policy = self._policy
        self._began = asyncio.get_running_loop().time()
        self._granted_until = self._began + policy.budget.total_seconds()
        if self._started is None:
            try:
                self._started = await self._start()
            except Exception as error:
                if is_permanent(policy.durable.scheduler, error):
                    raise
                await self._failed(error)
                return
        started = self._started
        if started.over is not None:
            self._answered = True
            if started.over == "parked":
                self._report_parked(None)
        elif started.holder is None:
            await self._look_again(policy.contended)
        else:
            self._holder = started.holder
            await self._answer(await self._passed(started.holder))

    async def _start(self) -> Started:
        """Claim the workflow, unless its delivery is no longer held: then no pass starts."""
        policy = self._policy
        if policy.whole is not None:
            return await policy.whole.start_pass(self._delivery, policy.budget, policy.attempts)
        self._holder = await policy.durable.checkpointer.claim(
            self.workflow, policy.budget, policy.lease
        )
        if self._holder is not None and not await self._still_held():
            await self._ask(self._release, "release")
            return Started(self._delivery, None, over="gone")
        return Started(self._delivery, self._holder)

    async def _still_held(self) -> bool:
        """Whether the delivery outlived the claim: cancelled since its take, it starts no pass."""
        holds = getattr(self._policy.durable.scheduler, "holds", None)
        if holds is None:
            return True
        return bool(await self._ask(lambda: holds(self._delivery), "look at its delivery"))

    async def _passed(self, holder: Pass) -> object:
        """Run the body, renewing claim and delivery beside it; its outcome, or what it raised."""
        interval = self._policy.lease.total_seconds() / RENEWALS
        self._tell.started(holder.token, self._attempt())
        ending = asyncio.create_task(self._ended(holder))
        watch = LoopWatch(interval, self._report_block)
        try:
            while not ending.done():
                await watch.lapse(ending)
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
        recorded = self._started.recorded if self._started is not None else None
        try:
            if recorded is None:
                recorded = await checkpointer.load(holder.workflow)
            return await resume_from(
                recorded,
                holder,
                checkpointer,
                policy.body,
                extend=self._extend,
                now=policy.now,
                on_step=self._tell.recorded,
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
        self._tell.late(late)

    def _report_parked(self, error: BaseException | None) -> None:
        attempts = self._attempt()
        logger.error("workflow %s is parked after %d attempts", shown(self.workflow), attempts)
        self._tell.parked(attempts, error)

    def _report_slow_end(self) -> None:
        logger.warning(
            "workflow %s was cancelled and does not end: does its body swallow the cancellation?",
            shown(self.workflow),
        )

    async def _answer(self, came_to: object) -> None:
        if self._refused or (isinstance(came_to, Raised) and self._lost_by(came_to.error)):
            await self._lost()
        elif isinstance(came_to, Raised):
            await self._failed(came_to.error)
        else:
            from .ledger import ended  # a program that runs no worker need not have it

            assert isinstance(came_to, (Completed, Sleeping, Blocked))
            self._policy.failures.pop(self.workflow, None)
            ending = ended(came_to)
            stands = await self._end(ending)
            if self._answered and stands is None:  # cancelled, say, and what it came to is void
                self._tell.lost()
            else:
                self._tell.ended(ending.state if self._answered else None)

    def _lost_by(self, error: BaseException) -> bool:
        """Whether an error says that this pass lost its workflow, and not some other one."""
        return isinstance(error, (Fenced, Contended)) and error.workflow in (None, self.workflow)

    async def _lost(self) -> None:
        now = asyncio.get_running_loop().time()
        stands: State | None = None
        if now < self._granted_until:
            logger.info("workflow %s was taken from its pass", shown(self.workflow))
            await self._look_again(self._policy.contended)
        else:
            from .ledger import Failure

            sentence = "ran for %.2f s and lost its claim to its own budget of %s"
            spent = now - self._began, self._policy.budget
            attempt = self._next_attempt()
            pause = self._pause(attempt)
            logger.warning(
                f"workflow %s {sentence} (attempt %d): %s",
                shown(self.workflow),
                *spent,
                attempt,
                _then(pause),
            )
            stands = await self._ended_by(Failure("Fenced", f"it {sentence}" % spent), pause)
        self._tell.lost()
        if stands == "failed":
            self._report_parked(None)

    async def _failed(self, error: BaseException) -> None:
        from .ledger import failure_of

        attempt = self._next_attempt()
        pause = self._pause(attempt)
        log_error(
            logger,
            "workflow %s failed (attempt %d), %s",
            shown(self.workflow),
            attempt,
            _then(pause),
            error=error,
        )
        stands = await self._ended_by(failure_of(error), pause)
        if self._answered and stands is None:
            logger.warning(
                "workflow %s was taken from that pass, whose failure counts for nothing",
                shown(self.workflow),
            )
            self._tell.lost()
            return
        if pause is None and stands == "ready":  # something arrived meanwhile: a new chance
            pause = timedelta(0)
        self._tell.failed(attempt, error, pause)
        if stands == "failed":
            self._report_parked(error)

    def _pause(self, attempt: int) -> timedelta | None:
        """How long to rest after a failure; `None` where that was the last attempt."""
        limit = self._policy.attempts
        if limit is not None and self._holder is not None and attempt >= limit:
            return None
        return self._policy.pause(attempt)

    async def _ended_by(self, failure: Failure, pause: timedelta | None) -> State | None:
        from .ledger import raised

        return await self._end(raised(failure, None if pause is None else self._after(pause)))

    def _attempt(self) -> int:
        """How many passes in a row this one makes, if it comes to no orderly end."""
        if self._started is not None and self._started.attempt:
            return self._started.attempt
        return self._policy.failures.get(self.workflow, 0) + 1

    def _next_attempt(self) -> int:
        """As `_attempt`, remembered where no ledger does."""
        attempt = self._attempt()
        if self._started is None or not self._started.attempt:
            self._policy.failures[self.workflow] = attempt
        return attempt

    async def _look_again(self, pause: timedelta) -> None:
        await self._end(Ended(self._after(pause)))

    def _after(self, pause: timedelta) -> datetime:
        try:
            return self._policy.now() + pause
        except OverflowError:
            return datetime.max.replace(tzinfo=UTC)

    async def _end(self, ended: Ended, patience: timedelta | None = None) -> State | None:
        """Release the claim and answer for the delivery, as the pass ended.

        Where the workflow stands then; `None` where that was not for this pass to say.
        """
        whole = self._policy.whole
        if whole is not None and self._holder is not None:
            ending = partial(self._end_at_once, whole, self._holder, ended)
            stands: State | None = await self._ask(ending, "end", patience)
            return stands
        await self._ask(self._release, "release", patience)
        await self._ask(partial(self._answer_for, ended.due), "answer", patience)
        return ended.state

    async def _end_at_once(
        self, whole: PassDurable[Any], holder: Pass, ended: Ended
    ) -> State | None:
        stands = await whole.end_pass(holder, self._delivery, ended)
        self._holder = None
        self._answered = True
        return stands

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
            log_error(
                logger,
                "the %s of workflow %s failed: it waits for its lease to end",
                doing,
                shown(self.workflow),
                error=error,
            )
            return None


def _then(pause: timedelta | None) -> str:
    """What becomes of a workflow that failed, in a log."""
    if pause is None:
        return "its attempts are used up"
    return f"trying again in {pause.total_seconds():.1f} s"


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
