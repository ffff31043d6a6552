"""The worker: deliveries through a bounded pool of passes, beside a timer."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Sequence,
)
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from .attempt import RENEWALS, Attempt, Policy, logger
from .checks import check_aware, check_limit
from .durations import check_duration, check_wait, now_utc
from .interfaces import Durable, Effect, PassesDurable, Scheduler
from .retrying import log_error, persist
from .settling import settle
from .stepwise import Run
from .values import BUDGET, LEASE, Delivery

if TYPE_CHECKING:
    from .ledger import Retry
    from .observing import Observer

__all__ = [
    "BLOCKING",
    "CONTENDED",
    "POOL",
    "RENEWALS",
    "TICK",
    "passes",
    "ready",
    "waking",
    "work",
]

TICK = timedelta(milliseconds=50)
"""How often the timer asks the scheduler for due sleepers."""

BLOCKING = timedelta(seconds=1)
"""How long one look for a delivery waits."""

POOL = 20
"""How many passes run at once."""

CONTENDED = timedelta(seconds=1)
"""When to look again at a workflow whose claim was refused or lost."""


def work(
    durable: Durable[Effect],
    body: Callable[[Run[Effect]], Awaitable[object]],
    *,
    tick: timedelta = TICK,
    within: timedelta = BLOCKING,
    budget: timedelta = BUDGET,
    contended: timedelta = CONTENDED,
    limit: int = POOL,
    now: Callable[[], datetime] = now_utc,
    stopping: asyncio.Event | None = None,
    retry: Retry | None = None,
    observe: Observer | None = None,
) -> Coroutine[Any, Any, None]:
    """Run passes of `body` over whatever `durable` delivers, until cancelled.

    Cancelling it ends its passes, releases their claims and makes their deliveries visible at
    once. Setting `stopping` lets the passes in flight finish, takes nothing new, and returns.
    A body that raises is logged and retried after growing pauses, without delaying others; so
    is a store's transient refusal. A permanent store error ends the worker with that error.
    With `retry` a workflow is parked once it has used its attempts up (L5); `observe` is called
    with an event for whatever happens to a pass. `ValueError` for bad timings, and for a `retry`
    over a durable that keeps no ledger, from this call itself, before anything is awaited.
    """
    check_duration("tick", tick)
    check_duration("within", within)
    lease = durable.scheduler.lease
    pool = _Pool(durable, body, limit, lease, budget, contended, now, retry, observe)
    return _working(durable.scheduler, pool, tick, within, now, stopping)


def passes(
    durable: Durable[Effect],
    body: Callable[[Run[Effect]], Awaitable[object]],
    limit: int = POOL,
    *,
    lease: timedelta = LEASE,
    budget: timedelta = BUDGET,
    contended: timedelta = CONTENDED,
    now: Callable[[], datetime] = now_utc,
) -> Callable[[AsyncIterable[Delivery]], Coroutine[Any, Any, None]]:
    """The pool alone: an async function that runs a pass for each delivery it is given.

    It takes a delivery only when one of its `limit` slots is free, and returns once the
    deliveries have ended and their passes too. `ValueError` for bad timings.
    """
    return _Pool(durable, body, limit, lease, budget, contended, now).run


async def ready(
    scheduler: Scheduler, within: timedelta = BLOCKING, idle: timedelta = LEASE
) -> AsyncGenerator[Delivery, None]:
    """Deliveries without end: abandoned ones first, then new ones.

    A store's transient refusal is logged and asked again, a permanent error comes out. Bad
    durations are a `ValueError` when the first delivery is asked for.
    """
    check_wait("within", within)
    check_wait("idle", idle)
    while True:
        delivery = await persist(scheduler, lambda: scheduler.reclaim(idle), "a reclaim")
        if delivery is None:
            delivery = await persist(scheduler, lambda: scheduler.next_ready(within), "a take")
        if delivery is not None:
            yield delivery
        else:
            await asyncio.sleep(0)  # `within` may be zero, and others want the loop too


def waking(
    scheduler: Scheduler,
) -> Callable[[AsyncIterable[datetime]], Coroutine[Any, Any, None]]:
    """The timer alone: an async function that wakes what is due at each moment it is given.

    A store's transient refusal is logged and asked again, a permanent error comes out.
    """

    async def wake(moments: AsyncIterable[datetime]) -> None:
        async for moment in moments:
            check_aware("moment", moment)
            await persist(scheduler, partial(scheduler.wake_due, moment), "a wake-up of sleepers")

    return wake


Pull: TypeAlias = Callable[[int], Awaitable[Sequence[Attempt] | None]]
"""What is to be run next, given the number of free slots; `None` once there will be no more."""


def _one_by_one(policy: Policy, deliveries: AsyncIterable[Delivery]) -> Pull:
    """One delivery at a time, which its attempt claims for itself."""
    pulled = aiter(deliveries)

    async def pull(free: int) -> Sequence[Attempt] | None:
        try:
            return [Attempt(policy, await anext(pulled))]
        except StopAsyncIteration:
            return None

    return pull


def _together(policy: Policy, durable: PassesDurable[Any], within: timedelta) -> Pull:
    """As many started passes as there are free slots, of a store that is prepared first."""
    scheduler = policy.durable.scheduler
    prepared = False

    async def pull(free: int) -> Sequence[Attempt]:
        nonlocal prepared
        if not prepared:
            await persist(scheduler, scheduler.prepare, "to be prepared")
            prepared = True
        starting = partial(durable.start_passes, free, within, policy.budget, policy.attempts)
        started = await persist(scheduler, starting, "a start of passes")
        if not started:
            await asyncio.sleep(0)  # `within` may be zero, and others want the loop too
        return [Attempt(policy, one.delivery, one) for one in started]

    return pull


async def _prepared_and_ready(
    scheduler: Scheduler, within: timedelta, prepared: asyncio.Event
) -> AsyncGenerator[Delivery, None]:
    await persist(scheduler, scheduler.prepare, "to be prepared")
    prepared.set()
    async with aclosing(ready(scheduler, within, scheduler.lease)) as deliveries:
        async for delivery in deliveries:
            yield delivery


async def _ticks(
    tick: timedelta, now: Callable[[], datetime], prepared: asyncio.Event
) -> AsyncGenerator[datetime, None]:
    await prepared.wait()
    while True:
        yield now()
        await asyncio.sleep(tick.total_seconds())


async def _working(
    scheduler: Scheduler,
    pool: _Pool,
    tick: timedelta,
    within: timedelta,
    now: Callable[[], datetime],
    stopping: asyncio.Event | None,
) -> None:
    durable: Any = pool.policy.durable
    if pool.policy.whole is not None and hasattr(durable, "start_passes"):
        await pool.pulled(_together(pool.policy, durable, within), stopping)
        return
    prepared = asyncio.Event()
    try:
        async with (
            aclosing(_prepared_and_ready(scheduler, within, prepared)) as deliveries,
            aclosing(_ticks(tick, now, prepared)) as moments,
            asyncio.TaskGroup() as group,
        ):
            timer = group.create_task(waking(scheduler)(moments))
            await pool.run(deliveries, stopping)
            timer.cancel()
    except BaseExceptionGroup as failures:
        raise _first(failures) from None


class _Pool:
    """At most `limit` attempts at once."""

    def __init__(
        self,
        durable: Durable[Effect],
        body: Callable[[Run[Effect]], Awaitable[object]],
        limit: int,
        lease: timedelta,
        budget: timedelta,
        contended: timedelta,
        now: Callable[[], datetime],
        retry: Retry | None = None,
        observe: Observer | None = None,
    ) -> None:
        check_limit(limit)
        check_duration("lease", lease)
        check_duration("budget", budget)
        check_duration("contended", contended)
        check_aware("now", now())
        self.policy = Policy(durable, body, lease, budget, contended, now, retry, observe)
        self._limit = limit

    async def run(
        self, deliveries: AsyncIterable[Delivery], stopping: asyncio.Event | None = None
    ) -> None:
        await self.pulled(_one_by_one(self.policy, deliveries), stopping)

    async def pulled(self, pull: Pull, stopping: asyncio.Event | None) -> None:
        unstarted: set[Attempt] = set()
        try:
            async with asyncio.TaskGroup() as group:
                pulling = group.create_task(self._pull(pull, group, unstarted, stopping))
                if stopping is not None:
                    stopper = group.create_task(_cancel_once(stopping, pulling))
                    pulling.add_done_callback(lambda _: stopper.cancel())
        except BaseExceptionGroup as failures:
            raise _first(failures) from None
        finally:
            # Cancelled before its first turn, an attempt's own task never ran to hand it back.
            await settle(lambda: asyncio.gather(*(attempt.abandon() for attempt in unstarted)))

    async def _pull(
        self,
        pull: Pull,
        group: asyncio.TaskGroup,
        unstarted: set[Attempt],
        stopping: asyncio.Event | None,
    ) -> None:
        slots = _Slots(self._limit)
        while True:
            free = await slots.free()
            if stopping is not None and stopping.is_set():
                return
            attempts = await pull(free)
            if attempts is None:
                return
            unstarted.update(attempts)
            for attempt in attempts:
                slots.take()
                group.create_task(_made(attempt, unstarted, slots))


class _Slots:
    """How many more attempts may run."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._any = asyncio.Event()
        self._any.set()

    async def free(self) -> int:
        """The number of free ones, once there is one."""
        await self._any.wait()
        return self._free

    def take(self) -> None:
        self._free -= 1
        if not self._free:
            self._any.clear()

    def give_back(self) -> None:
        self._free += 1
        self._any.set()


async def _made(attempt: Attempt, unstarted: set[Attempt], slots: _Slots) -> None:
    unstarted.discard(attempt)  # from here on it hands itself back
    try:
        await attempt.run()
    finally:
        slots.give_back()


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to end with: that very one, and no group. Others that came with it are logged."""
    for other in failures.exceptions[1:]:
        log_error(logger, "another error came with the one that ended the worker", error=other)
    return failures.exceptions[0]


async def _cancel_once(event: asyncio.Event, task: asyncio.Task[None]) -> None:
    await event.wait()
    task.cancel()
