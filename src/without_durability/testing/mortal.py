"""A process that dies at a place of one's choosing, as the stores and the body see it."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, TypeVar

from ..interfaces import Checkpointer, PassDurable, PassesDurable, Scheduler
from ..stepwise import Parse, Run
from ..values import BUDGET, Ended, Entry, Pass, Started
from .crash_report import Kind

T = TypeVar("T")


class Died(BaseException):
    """The process is dead: whatever it calls from now on does not happen."""


@dataclass(slots=True)
class Seen:
    """What one run of the workflow did, over all of its processes."""

    kinds: dict[str, Kind] = field(default_factory=dict)
    effects: Counter[str] = field(default_factory=Counter)


class Process:
    """Counts the places where it could die, and dies at the one numbered `dying_at`, if any.

    Its own task is cancelled then: a dead process does not go on with anything.
    """

    def __init__(self, seen: Seen, dying_at: int | None = None) -> None:
        self.seen = seen
        self.places: list[str] = []
        self.died: str | None = None
        self.task: asyncio.Task[Any] | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._dying_at = dying_at

    def place(self, where: str) -> None:
        """A place where the process could die, on any thread; `Died` when it does or has."""
        if self.died is None and len(self.places) == self._dying_at:
            self.died = where
        self.places.append(where)
        self.check_alive()

    def check_alive(self) -> None:
        """`Died` once the process has; its task ends with whatever runs beside it."""
        if self.died is None:
            return
        self.end()
        raise Died(self.died)

    def end(self) -> None:
        """Cancel the process's own task, soon."""
        if self.task is not None and threading.get_ident() == self._thread:
            self._loop.call_soon(self.task.cancel)


_CALLS = frozenset(
    name
    for protocol in (Checkpointer, Scheduler, PassDurable, PassesDurable)
    for name, call in vars(protocol).items()
    if inspect.iscoroutinefunction(call)
)
"""What a store must let one await, though it need not be written as `async def`."""


class MortalStore:
    """A store as a mortal process calls it: it can die before and after every call."""

    def __init__(self, store: Any, process: Process) -> None:
        self._store = store
        self._process = process

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in _CALLS and not inspect.iscoroutinefunction(found):
            return found

        async def call(*arguments: Any, **named: Any) -> Any:
            return await self._made(name, lambda: found(*arguments, **named))

        return call

    async def record(self, holder: Pass, key: str, value: object) -> Any:
        follows_effect = self._process.seen.kinds.get(key) == "step"
        return await self._made(
            f"record of {key!r}",
            lambda: self._store.record(holder, key, value),
            f"after the effect of {key!r} and before its record" if follows_effect else None,
        )

    async def transact(self, holder: Pass, key: str, effect: Any) -> Any:
        """Counts the effect once it is committed, and can die inside its transaction."""
        ran = False

        def counted(handed: Any) -> object:
            nonlocal ran
            value = effect(handed)
            self._process.place(f"after the effect of {key!r} and before its commit")
            ran = True
            return value

        async def call() -> Any:
            value = await self._store.transact(holder, key, _standing_for(effect, counted))
            if ran:
                self._process.seen.effects[key] += 1
            return value

        return await self._made(f"transact of {key!r}", call)

    async def _made(
        self, name: str, call: Callable[[], Awaitable[Any]], before: str | None = None
    ) -> Any:
        self._process.place(before or f"before {name}")
        try:
            answer = await call()
        finally:
            self._process.check_alive()  # it may have died inside, on the store's thread
        self._process.place(f"after {name}")
        return answer


TOGETHER = "start_passes"
"""The call that takes deliveries and starts their passes at one go."""


class MortalDurable:
    """A durable as the worker of a mortal process uses it: whole passes, where it offers these.

    With `many` a delivery is taken and its pass started at one go, where the durable does that.
    """

    def __init__(self, durable: Any, process: Process, *, many: bool) -> None:
        self.checkpointer: Any = MortalStore(durable.checkpointer, process)
        self.scheduler: Any = MortalStore(durable.scheduler, process)
        self._calls: Any = MortalStore(durable, process)
        self._whole = hasattr(durable, "start_pass") and hasattr(durable, "end_pass")
        self._many = many and self._whole and hasattr(durable, TOGETHER)

    async def start(self, workflow: str, now: datetime) -> Started | None:
        """The next delivery there is, with a pass on it where it is the workflow's."""
        if self._many:
            for started in await self._calls.start_passes(1, timedelta(0), BUDGET):
                return started  # type: ignore[no-any-return]
            return None
        queue = self.scheduler
        await queue.wake_due(now)
        delivery = await queue.next_ready(timedelta(0)) or await queue.reclaim(queue.lease)
        if delivery is None:
            return None
        if delivery.workflow != workflow:
            return Started(delivery, None)
        if self._whole:
            return await self._calls.start_pass(delivery, BUDGET)  # type: ignore[no-any-return]
        return Started(delivery, await self.checkpointer.claim(workflow, BUDGET, queue.lease))

    async def end(self, started: Started, how: Ended) -> None:
        """Release the claim, if there is one, and answer the delivery."""
        if self._whole and started.holder is not None:
            await self._calls.end_pass(started.holder, started.delivery, how)
            return
        if started.holder is not None:
            await self.checkpointer.release(started.holder)
        if how.due is not None:
            await self.scheduler.wake_at(started.delivery, how.due)
        else:
            await self.scheduler.done(started.delivery)


@dataclass(frozen=True, slots=True)
class MortalRun(Run[Any]):
    """A `Run` that notes its steps and counts their effects; a dead process begins none."""

    process: Process = field(kw_only=True)

    @classmethod
    def over(cls, run: Run[Any], process: Process) -> MortalRun:
        """The same pass: the names it took and the suspensions it reached are shared."""
        return cls(*(getattr(run, one.name) for one in fields(run)), process=process)

    async def step(
        self,
        key: str,
        effect: Callable[[], Awaitable[object]],
        parse: Parse[T],
        *,
        within: timedelta | None = None,
    ) -> T:
        async def counted() -> object:
            self.process.check_alive()
            value = await effect()
            self.process.seen.effects[key] += 1
            return value

        await self._note(key, "step")
        return await Run.step(self, key, _standing_for(effect, counted), parse, within=within)

    async def transact(
        self, key: str, effect: Any, parse: Parse[T], *, within: timedelta | None = None
    ) -> T:
        await self._note(key, "transact")
        return await Run.transact(self, key, effect, parse, within=within)

    async def sleep(self, key: str, duration: timedelta) -> None:
        await self._note(key, "sleep")
        await Run.sleep(self, key, duration)

    async def awaiting(self, key: str, parse: Parse[T]) -> T:
        await self._note(key, "awaiting")
        return await Run.awaiting(self, key, parse)

    async def receive(
        self, key: str, *, after: str | None = None, limit: int | None = None
    ) -> tuple[Entry, ...]:
        await self._note(key, "receive")
        return await Run.receive(self, key, after=after, limit=limit)

    async def pending(
        self, key: str, *, after: str | None = None, limit: int | None = None
    ) -> tuple[Entry, ...]:
        await self._note(key, "pending")
        return await Run.pending(self, key, after=after, limit=limit)

    async def _note(self, key: str, kind: Kind) -> None:
        if self.process.died is not None:
            self.process.end()
            await asyncio.sleep(0)  # or a body that tries again and again would stop the loop
            raise asyncio.CancelledError  # which leaves nothing to say of a task nobody awaits
        self.process.seen.kinds.setdefault(key, kind)


def _standing_for(effect: Any, counted: Any) -> Any:
    """What is no effect at all is for the runner to refuse."""
    return counted if callable(effect) else effect
