"""One delivery's way through a worker: claim, pass, release, answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from .interfaces import Durable
from .outcomes import Blocked, Completed, Sleeping
from .retrying import is_permanent, pause_after, persist
from .settling import settle
from .signals import Contended, Fenced
from .stepwise import Run, resume
from .values import Delivery, Pass, shown

logger = logging.getLogger("without_durability.worker")

RENEWALS = 3
"""How often claim and delivery are renewed within one lease."""


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


class Attempt:
    """One delivery, from the moment a worker has it until it is answered for."""

    def __init__(self, policy: Policy, delivery: Delivery) -> None:
        self._policy = policy
        self._delivery = delivery
        self._holder: Pass | None = None
        self._answered = False
        self._started = 0.0
        self._granted_until = 0.0
        self._refused = False

    @property
    def workflow(self) -> str:
        return self._delivery.workflow

    async def run(self) -> None:
        """Make the pass and answer for the delivery; only a permanent store error comes out."""
        try:
            await self._run()
        except asyncio.CancelledError:
            await settle(self.abandon)
            raise

    async def abandon(self) -> None:
        """Release the claim and make an unanswered delivery visible at once, as far as one can."""
        if self._answered:
            return
        self._answered = True
        try:
            if self._holder is not None:
                await self._policy.durable.checkpointer.release(self._holder)
            await self._policy.durable.scheduler.wake_at(self._delivery, self._policy.now())
        except Exception as error:
            logger.warning(
                "workflow %s could not be handed back and waits for its lease to end: %r",
                shown(self.workflow),
                error,
            )

    async def _run(self) -> None:
        policy = self._policy
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
        elif not await self._still_held():
            self._answered = True
            await self._ask(lambda: self._release(), "a release")
        else:
            await self._answer(await self._passed(self._holder))

    async def _still_held(self) -> bool:
        """Whether the delivery outlived the claim: cancelled since its take, it starts no pass."""
        holds = getattr(self._policy.durable.scheduler, "holds", None)
        if holds is None:
            return True
        return bool(await self._ask(lambda: holds(self._delivery), "a look at a delivery"))

    async def _passed(self, holder: Pass) -> object:
        """Run the body, renewing claim and delivery beside it; its outcome, or what it raised."""
        loop = asyncio.get_running_loop()
        self._started = loop.time()
        self._granted_until = self._started + self._policy.budget.total_seconds()
        interval = self._policy.lease.total_seconds() / RENEWALS
        ending = asyncio.create_task(self._ended(holder))
        try:
            while not ending.done():
                asked = loop.time()
                await asyncio.wait((ending,), timeout=interval)
                self._report_block(loop.time() - asked - interval, interval)
                if not ending.done() and not await self._renewed(holder):
                    self._refused = True
                    break
        finally:
            await _stopped(ending)
        return ending.result()

    async def _ended(self, holder: Pass) -> object:
        policy = self._policy
        try:
            return await resume(
                holder,
                policy.durable.checkpointer,
                policy.body,
                extend=self._extend,
                now=policy.now,
            )
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Raised(error)

    async def _extend(self, holder: Pass, within: timedelta) -> bool:
        """Buy claim time for a step, and remember it: a pass that outran it gets a warning."""
        policy = self._policy
        if not await policy.durable.checkpointer.extend(holder, within, policy.lease):
            return False
        until = asyncio.get_running_loop().time() + within.total_seconds()
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

    def _report_block(self, late: float, interval: float) -> None:
        if late > interval / 2:
            logger.warning(
                "the event loop was blocked for about %.2f s while workflow %s ran: its claim "
                "was renewed that much late, and others may have taken it for dead",
                late,
                shown(self.workflow),
            )

    async def _answer(self, ended: object) -> None:
        if self._refused or (
            isinstance(ended, Raised) and isinstance(ended.error, (Fenced, Contended))
        ):
            await self._lost()
        elif isinstance(ended, Raised):
            await self._failed(ended.error)
        else:
            self._policy.failures.pop(self.workflow, None)
            await self._ask(lambda: self._release(), "a release")
            if isinstance(ended, Sleeping):
                await self._wake_at(ended.due)
            else:
                assert isinstance(ended, (Completed, Blocked))
                await self._ask(lambda: self._done(), "an answer")

    async def _lost(self) -> None:
        elapsed = asyncio.get_running_loop().time() - self._started
        if self._started + elapsed < self._granted_until:
            logger.info("workflow %s was lost to another pass", shown(self.workflow))
            await self._look_again(self._policy.contended)
            return
        pause = self._next_pause()
        logger.warning(
            "workflow %s ran for %.2f s and lost its claim to its own budget of %s (attempt %d): "
            "trying again in %.1f s",
            shown(self.workflow),
            elapsed,
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
            exc_info=error,
        )
        await self._look_again(pause)

    def _next_pause(self) -> timedelta:
        failures = self._policy.failures
        failures[self.workflow] = failures.get(self.workflow, 0) + 1
        return pause_after(failures[self.workflow])

    async def _look_again(self, pause: timedelta) -> None:
        if self._holder is not None:
            await self._ask(lambda: self._release(), "a release")
        await self._wake_at(self._policy.now() + pause)

    async def _release(self) -> None:
        assert self._holder is not None
        await self._policy.durable.checkpointer.release(self._holder)

    async def _wake_at(self, when: datetime) -> None:
        async def answer() -> None:
            await self._policy.durable.scheduler.wake_at(self._delivery, when)
            self._answered = True

        await self._ask(answer, "an answer")

    async def _done(self) -> None:
        await self._policy.durable.scheduler.done(self._delivery)
        self._answered = True

    async def _ask(self, call: Callable[[], Awaitable[Any]], doing: str) -> Any:
        """Ask the store for as long as the lease lasts: after it the delivery is back (S2)."""
        policy = self._policy
        try:
            return await persist(
                policy.durable.scheduler,
                call,
                f"{doing} for workflow {shown(self.workflow)}",
                patience=policy.lease,
            )
        except Exception as error:
            if is_permanent(policy.durable.scheduler, error):
                raise
            self._answered = True
            logger.error(
                "workflow %s gets no %s and waits for its lease to end",
                shown(self.workflow),
                doing,
                exc_info=error,
            )
            return None


async def _stopped(task: asyncio.Task[object]) -> None:
    """Cancel the task and wait until it has ended, however often the waiting is cancelled."""
    cancellation: asyncio.CancelledError | None = None
    if not task.done():
        task.cancel()
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation
