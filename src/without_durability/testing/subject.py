"""What the checks of the contract share: a fresh store for each, and how they say what broke."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

from ..interfaces import Checkpointer, Durable, Scheduler, claimed
from ..ledger import Failure, Ledger, State, Status, ended, raised
from ..outcomes import Blocked, Completed, Sleeping
from ..signals import Fenced
from ..values import Delivery, Ended, Pass
from .basics import Clock

T = TypeVar("T")

Make: TypeAlias = Callable[[Clock], AbstractAsyncContextManager[Durable[Any]]]
"""Opens a store whose time is the clock's, leases included: `clock.seconds`, `clock.now`."""

Write: TypeAlias = Callable[[Pass], Awaitable[object]]
"""A call by the holder of a claim."""

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
LONG = 10 * MINUTE
NOW = timedelta(0)

NEVER_ISSUED = 10**15
"""So far above a granted token that no store has issued it."""

UNSTORABLE: object = (_ for _ in ())
"""A value that no codec can encode: a generator."""

FAILURE = Failure("ShopClosed", "no such card", "Traceback …\nShopClosed: no such card")
"""What a workflow fails with."""

_PATIENCE = 1.0
"""Seconds of real time in which what was granted to a cancelled caller must be back."""

_PARTS = 40
"""In so many parts of the time that a call takes, its caller is cancelled."""

_THOROUGH = 3.0
"""Seconds of real time after which a slow store's calls are cancelled in fewer places."""


class NotApplicable(Exception):
    """The clause says nothing about this store, or it cannot be checked on it."""


@dataclass(frozen=True, slots=True)
class Marks:
    """How a `transact` effect of this store leaves a mark, and how the kit reads the marks.

    With them C12 and C17 check that an effect is kept exactly when its record is. `leave(handed,
    mark)` is called inside the effect with whatever the store hands to effects.
    """

    leave: Callable[[Any, str], object]
    read: Callable[[Durable[Any]], Awaitable[Collection[str]]]


@dataclass(frozen=True, slots=True)
class Opened:
    """An open store and the clock it reads."""

    durable: Durable[Any]
    clock: Clock

    @property
    def checkpointer(self) -> Checkpointer[Any]:
        return self.durable.checkpointer

    @property
    def scheduler(self) -> Scheduler:
        return self.durable.scheduler

    async def is_free(self, workflow: str) -> bool:
        """Whether nobody holds the workflow. Asking claims it, for ten minutes."""
        return await self.checkpointer.claim(workflow, LONG, LONG) is not None

    async def writes(self, key: str = "step") -> dict[str, Write]:
        """The calls that write under a claim; `transact` where the store can commit an effect."""
        store = self.checkpointer
        writes: dict[str, Write] = {"record": lambda holder: store.record(holder, key, 1)}
        if await self.co_commits():
            writes["transact"] = lambda holder: store.transact(holder, key, lambda _: 1)
        return writes

    async def co_commits(self) -> bool:
        """Whether the store can commit an effect with its record; no: `NotImplementedError`."""
        prober = await self.checkpointer.claim("co-commits", MINUTE, MINUTE)
        if prober is None:
            return True
        try:
            await self.checkpointer.transact(prober, "step", lambda _: None)
        except NotImplementedError:
            return False
        finally:
            await self.checkpointer.release(prober)
        return True

    async def take(self) -> Delivery | None:
        """What is ready now: new, due, or abandoned by its taker."""
        await self.scheduler.wake_due(self.clock.now())
        delivery = await self.scheduler.next_ready(NOW)
        return delivery or await self.scheduler.reclaim(self.scheduler.lease)

    async def taken(self, workflow: str) -> Delivery:
        """The delivery of a workflow that must be the next one ready, or become so by itself."""
        delivery = await eventually(self.take)
        expect(delivery is not None, f"workflow {workflow!r} is ready and was not delivered")
        assert delivery is not None
        expect(
            delivery.workflow == workflow,
            f"{delivery.workflow!r} was delivered where {workflow!r} was the one ready",
        )
        return delivery

    async def expect_quiet(self, why: str) -> None:
        """Nothing is ready."""
        delivery = await self.take()
        expect(delivery is None, f"{why}, and yet {delivery} was delivered")

    def pass_lease(self) -> None:
        """Let the lease of every delivery run out."""
        self.clock.advance(self.scheduler.lease + SECOND)

    @property
    def ledger(self) -> Ledger[Any]:
        """The durable, where it keeps a ledger."""
        durable: Any = self.durable
        if not (hasattr(durable, "status") and hasattr(durable, "start_pass")):
            raise NotApplicable("the durable keeps no ledger")
        return durable  # type: ignore[no-any-return]

    async def row(self, workflow: str) -> Status:
        """Where a workflow stands that must be known."""
        row = await self.ledger.status(workflow)
        expect(row is not None, f"there is no row of {workflow!r} in the ledger")
        assert row is not None
        expect(row.workflow == workflow, f"the status of {workflow!r} is that of {row.workflow!r}")
        return row

    async def begun(self, workflow: str) -> tuple[Pass, Delivery]:
        """A pass over the workflow, which must be the one that is ready."""
        started = await self.ledger.start_pass(await self.taken(workflow), LONG)
        holder = started.holder
        expect(holder is not None, f"no pass over {workflow!r} starts: {started}")
        assert holder is not None
        return holder, started.delivery

    async def ended(self, workflow: str, end: Ended) -> None:
        """A pass over the workflow that ends so."""
        await self.ledger.end_pass(*await self.begun(workflow), end)

    async def brought(self, workflow: str, state: State) -> Status:
        """A new workflow's row once it is in the state: its value under "k" has arrived.

        A ready one is queued. Others wait for "key" and at "mail", sleep in "nap" for ten minutes,
        returned "value", failed with `FAILURE` in their first pass, or were cancelled: "enough".
        """
        await self.ledger.arrive(workflow, "k", 1)
        ends: dict[State, Ended] = {
            "sleeping": ended(Sleeping("nap", self.clock.now() + LONG)),
            "blocked": ended(Blocked(frozenset({"key"}), frozenset({"mail"}))),
            "completed": ended(Completed("value")),
            "failed": raised(FAILURE, None),
        }
        if state == "cancelled":
            await self.ledger.cancel(workflow, "enough")
        elif state != "ready":
            await self.ended(workflow, ends[state])
        row = await self.row(workflow)
        expect(row.state == state, f"a workflow that is {state} is {row.state} in the ledger")
        return row

    async def expect_claimable(self, workflow: str, why: str) -> None:
        """Nobody holds the workflow. Whoever held it last is outranked by this."""
        holder = await self.checkpointer.claim(workflow, LONG, LONG)
        expect(holder is not None, f"{why}, and yet {workflow!r} is held")
        assert holder is not None
        await self.checkpointer.release(holder)


@dataclass(frozen=True, slots=True)
class Subject:
    """A store to be checked, as its factories.

    `make(clock)` opens a new and empty store. `reopen(clock)` opens what the last `make` keeps,
    as after a crash: while that one is still open and was not closed. `marks` tell what became of
    effects.
    """

    make: Make
    reopen: Make | None = None
    marks: Marks | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Opened]:
        """A new and empty store, prepared, under a clock of its own."""
        clock = Clock()
        async with self.make(clock) as durable:
            await durable.scheduler.prepare()
            yield Opened(durable, clock)

    @asynccontextmanager
    async def reopened(self, clock: Clock) -> AsyncIterator[Opened]:
        """What the store opened last keeps; `NotApplicable` for one that outlives no process."""
        if self.reopen is None:
            raise NotApplicable("without `reopen` the store is taken not to outlive its process")
        async with self.reopen(clock) as durable:
            await durable.scheduler.prepare()
            yield Opened(durable, clock)


def expect(holds: bool, why: str) -> None:
    """`AssertionError(why)` unless it holds, under `python -O` as well."""
    if not holds:
        raise AssertionError(why)


async def expect_refused(
    kinds: type[BaseException] | tuple[type[BaseException], ...], call: Awaitable[object], why: str
) -> None:
    """The call must raise one of `kinds`; `why` is the sentence about one that does not."""
    try:
        await call
    except kinds:
        return
    except Exception as error:
        raise AssertionError(f"{why}: it raised {error!r}") from error
    raise AssertionError(why)


async def together(*calls: Awaitable[T]) -> list[T]:
    """The answers of calls made at once; should one fail, the others end with it."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def cancelled_in_every_turn(
    name: str,
    call: Callable[[str], Coroutine[Any, Any, T]],
    settled: Callable[[str, T | None], Awaitable[None]],
) -> None:
    """Make the call for one new workflow after another, each cancelled a little later.

    `settled(workflow, answer)` looks at what came of it; the answer is `None` where the caller
    heard of its cancellation instead. Ends with the first call that is over before it is cancelled,
    after which it goes through the time that took once more: a store may have a thread.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + _THOROUGH
    turns, took = 0, 0.0

    async def cancelled_once(after: str, wait: Callable[[], Awaitable[None]]) -> bool:
        workflow = f"{name} cancelled after {after}"
        task = asyncio.ensure_future(call(workflow))
        await wait()
        over = task.done()
        task.cancel()
        try:
            answer: T | None = await task
        except asyncio.CancelledError:
            if is_told_to_end():
                raise
            answer = None
        await settled(workflow, answer)
        return over

    async def for_turns() -> None:
        nonlocal took
        began = loop.time()
        for _ in range(turns):
            await asyncio.sleep(0)
        took = loop.time() - began

    async def for_part() -> None:
        began = loop.time()
        while loop.time() < began + took * part / _PARTS:  # noqa: ASYNC110 - a timer is too coarse
            await asyncio.sleep(0)

    while not await cancelled_once(f"{turns} turns", for_turns):
        turns += 1 + (turns // 10 if loop.time() < until else turns)
    for part in range(_PARTS):
        if loop.time() < until:
            await cancelled_once(f"{part} of {_PARTS} parts of its time", for_part)


def is_told_to_end() -> bool:
    """Whether it is this very task that somebody cancelled."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


async def eventually(look: Callable[[], Awaitable[T | None]]) -> T | None:
    """The first answer of `look()` that is not `None`, asked again for a second of real time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _PATIENCE
    answer = await look()
    while answer is None and loop.time() < until:
        await asyncio.sleep(_PATIENCE / 100)
        answer = await look()
    return answer


async def outranked_pass(store: Checkpointer[Any]) -> Pass:
    """A pass over "w" that a newer one has outranked."""
    old = await claimed(store, "w", LONG, LONG)
    await store.release(old)
    await claimed(store, "w", LONG, LONG)
    return old


async def expect_never_claimed(at: Opened, workflow: str) -> None:
    """Nobody has any right to the workflow: a store has no claim to hold against a token."""
    moment = int(at.clock.seconds() * 1000)
    for token in (0, 1, 2, moment, moment + 1):
        await expect_fenced(at, Pass(workflow, token), "a pass that nobody was granted")


async def expect_fenced(at: Opened, holder: Pass, who: str) -> None:
    for name, write in (await at.writes()).items():
        await expect_refused(Fenced, write(holder), f"{name} by {who} is not Fenced")
