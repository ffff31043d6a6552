"""Stores over dicts that keep every clause, so that a test injects a store, not a container."""

from __future__ import annotations

import asyncio
import copy
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from .checks import (
    check_aware,
    check_delivery,
    check_step_key,
    check_supplied_key,
    check_synchronous,
    check_text,
)
from .codec import JSON, CheckpointCodec, decoded, encoded
from .durations import check_duration, check_wait, now_utc
from .signals import fenced
from .values import (
    INBOX,
    LEASE,
    Delivery,
    Entry,
    Pass,
    Recorded,
    Written,
    inbox_key,
    inbox_position,
)

MemoryEffect: TypeAlias = Callable[[dict[str, object]], object]
"""What `MemoryCheckpointer.transact` runs over its `data`, rolled back when it raises."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One record as a memory store keeps it: its encoding and the moment it was written.

    `supplied`: it came from outside a pass, through `supply` or `append`.
    """

    encoded: Any
    at: datetime
    supplied: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """Who may write a workflow: moments in seconds of the store's clock.

    `held_until` is the budget's end, `alive_until` when the claim lapses if nothing more is
    heard, `alive` what one sign of life is worth. A released claim holds until minus infinity.
    """

    token: int
    held_until: float
    alive_until: float
    alive: float


_RELEASED = float("-inf")


def wake(waiting: Iterable[asyncio.Future[None]]) -> None:
    """End these waits, whichever loop each belongs to; one that was closed waits for nothing."""
    for one in waiting:
        if not one.done() and not one.get_loop().is_closed():
            one.set_result(None)


@dataclass(frozen=True, slots=True)
class MemoryCheckpointer:
    """A `Checkpointer[MemoryEffect]` over dicts: what a process forgets when it ends.

    `clock` (seconds, default `time.monotonic`) measures claims, `now` stamps records.
    """

    hashes: dict[str, dict[str, Stored]] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    codec: CheckpointCodec[Any] = JSON
    now: Callable[[], datetime] = now_utc
    data: dict[str, object] = field(default_factory=dict)
    _: KW_ONLY
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)
    _swept: list[int] = field(init=False, default_factory=lambda: [0], repr=False, compare=False)
    """The highest token of a claim that was forgotten: every new one is above it (C3)."""

    async def load(self, workflow: str) -> dict[str, object]:
        return {key: written.value for key, written in (await self.history(workflow)).items()}

    async def history(self, workflow: str) -> dict[str, Written]:
        check_text("workflow", workflow)
        return {
            key: Written(decoded(self.codec, workflow, key, stored.encoded), stored.at)
            for key, stored in self.hashes.get(workflow, {}).items()
        }

    async def claim(self, workflow: str, budget: timedelta, alive: timedelta) -> Pass | None:
        check_text("workflow", workflow)
        check_duration("budget", budget)
        check_duration("alive", alive)
        return self._claimed(workflow, budget, alive)

    async def extend(self, holder: Pass, budget: timedelta, alive: timedelta) -> bool:
        check_duration("budget", budget)
        check_duration("alive", alive)
        current = self._current(holder)
        if current is None or current.held_until == _RELEASED:
            return False
        now = self.clock()
        held_until = max(current.held_until, now + budget.total_seconds())
        self._grant(holder.workflow, holder.token, held_until, now, alive.total_seconds())
        return True

    async def renew(self, holder: Pass, alive: timedelta) -> bool:
        check_duration("alive", alive)
        current = self._current(holder)
        now = self.clock()
        if current is None or current.held_until <= now:
            return False
        self._grant(holder.workflow, holder.token, current.held_until, now, alive.total_seconds())
        return True

    async def record(self, holder: Pass, key: str, value: object) -> Recorded:
        check_step_key(key)
        check_text("workflow", holder.workflow)
        encoding, back = encoded(self.codec, holder.workflow, key, value)
        self._sign_of_life(holder)
        stored = self._written(holder.workflow, key, encoding)
        if stored == encoding:
            return Recorded(back, first=True)
        return Recorded(decoded(self.codec, holder.workflow, key, stored), first=False)

    async def transact(self, holder: Pass, key: str, effect: MemoryEffect) -> object:
        check_step_key(key)
        if self._current(holder) is None:
            raise fenced(holder)
        recorded = self.hashes.get(holder.workflow, {}).get(key)
        if recorded is not None:
            self._sign_of_life(holder)
            return decoded(self.codec, holder.workflow, key, recorded.encoded)
        before = copy.deepcopy(self.data)
        try:
            result = effect(self.data)
            check_synchronous(result)
            encoding, back = encoded(self.codec, holder.workflow, key, result)
            self._written(holder.workflow, key, encoding)
        except BaseException:
            self.data.clear()
            self.data.update(before)
            raise
        self._sign_of_life(holder)
        return back

    async def supply(self, workflow: str, key: str, value: object) -> object:
        check_text("workflow", workflow)
        check_supplied_key(key)
        encoding, _ = encoded(self.codec, workflow, key, value)
        stored = self._written(workflow, key, encoding, supplied=True)
        return decoded(self.codec, workflow, key, stored)

    async def append(self, workflow: str, value: object) -> Entry:
        check_text("workflow", workflow)
        encoding, back = encoded(self.codec, workflow, INBOX, value)
        return Entry(self._filed(workflow, encoding), back)

    async def discard(self, workflow: str) -> int:
        check_text("workflow", workflow)
        self._raise_fence(workflow)
        return len(self.hashes.pop(workflow, {}))

    async def release(self, holder: Pass) -> None:
        self._released(holder)

    def _released(self, holder: Pass) -> None:
        current = self._current(holder)
        if current is not None:
            self.claims[holder.workflow] = Claim(current.token, _RELEASED, _RELEASED, current.alive)

    def _claimed(self, workflow: str, budget: timedelta, alive: timedelta) -> Pass | None:
        now = self.clock()
        current = self.claims.get(workflow)
        if current is not None and current.alive_until > now:
            return None
        token = 1 + (self._swept[0] if current is None else current.token)
        self._grant(workflow, token, now + budget.total_seconds(), now, alive.total_seconds())
        return Pass(workflow, token)

    def _raise_fence(self, workflow: str) -> None:
        """A live pass finds its next write `Fenced`, and the workflow is claimable (C14)."""
        current = self.claims.get(workflow)
        if current is not None:
            self.claims[workflow] = Claim(current.token + 1, _RELEASED, _RELEASED, current.alive)

    def _forget_claim(self, workflow: str) -> None:
        """Remove the claim; no later one repeats its token (C3)."""
        claim = self.claims.pop(workflow, None)
        if claim is not None:
            self._swept[0] = max(self._swept[0], claim.token)

    def _alive(self, workflow: str) -> Claim | None:
        """The claim of the pass that holds the workflow now, if one does."""
        claim = self.claims.get(workflow)
        return claim if claim is not None and claim.alive_until > self.clock() else None

    def _unreleased(self, holder: Pass) -> bool:
        """Whether the holder is the newest and has not released."""
        current = self._current(holder)
        return current is not None and current.held_until != _RELEASED

    def _moment(self) -> datetime:
        now = self.now()
        check_aware("now", now)
        return now.astimezone(UTC)

    def _filed(self, workflow: str, encoding: Any) -> str:
        """Write under the next inbox key, which this answers (C13)."""
        positions = map(inbox_position, self.hashes.get(workflow, {}))
        last = max((one for one in positions if one is not None), default=0)
        key = inbox_key(last + 1)
        self._written(workflow, key, encoding, supplied=True)
        return key

    def _current(self, holder: Pass) -> Claim | None:
        check_text("workflow", holder.workflow)
        current = self.claims.get(holder.workflow)
        return current if current is not None and current.token == holder.token else None

    def _grant(
        self, workflow: str, token: int, held_until: float, now: float, alive: float
    ) -> None:
        self.claims[workflow] = Claim(token, held_until, min(held_until, now + alive), alive)

    def _sign_of_life(self, holder: Pass) -> None:
        """The fence and, for the newest pass only, a sign of life (C9, C10)."""
        current = self._current(holder)
        if current is None:
            raise fenced(holder)
        self._grant(holder.workflow, holder.token, current.held_until, self.clock(), current.alive)

    def _written(self, workflow: str, key: str, encoding: Any, supplied: bool = False) -> Any:
        """Write unless the key is recorded; the encoding that is stored, either way."""
        records = self.hashes.get(workflow, {})
        if key not in records:
            now = self._moment()
            latest = max((stored.at for stored in records.values()), default=now)
            records = self.hashes.setdefault(workflow, records)
            records[key] = Stored(encoding, max(now, latest), supplied)
        return records[key].encoded


@dataclass(frozen=True, slots=True)
class MemoryScheduler:
    """A `Scheduler` over a deque and two dicts; each workflow is in at most one of them.

    `outstanding` holds, by workflow, each delivery and when it lapses in seconds of `clock`
    (default `time.monotonic`).
    """

    queue: deque[str] = field(default_factory=deque)
    sleeping: dict[str, datetime] = field(default_factory=dict)
    outstanding: dict[str, tuple[Delivery, float]] = field(default_factory=dict)
    arrived: asyncio.Event = field(default_factory=asyncio.Event, repr=False, compare=False)
    receipts: Iterator[int] = field(default_factory=itertools.count, repr=False, compare=False)
    lease: timedelta = LEASE
    _: KW_ONLY
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)
    _waiting: set[asyncio.Future[None]] = field(
        init=False, default_factory=set, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_duration("lease", self.lease)

    async def prepare(self) -> None:
        """Nothing: a dict is always fit for use."""

    async def make_ready(self, workflow: str) -> None:
        check_text("workflow", workflow)
        self._queue(workflow)

    async def schedule(self, workflow: str, visible_at: datetime) -> None:
        """Move the workflow to `visible_at`, whatever its state: an unconditional move (S10)."""
        check_aware("visible_at", visible_at)
        await self.cancel(workflow)
        self.sleeping[workflow] = visible_at

    async def wake_at(self, delivery: Delivery, when: datetime) -> None:
        check_aware("when", when)
        if await self.holds(delivery):
            self._answer(delivery, when)

    async def wake_due(self, now: datetime) -> tuple[str, ...]:
        check_aware("now", now)
        due = sorted((when, workflow) for workflow, when in self.sleeping.items() if when <= now)
        for _, workflow in due:
            await self.make_ready(workflow)
        return tuple(workflow for _, workflow in due)

    async def next_ready(self, within: timedelta) -> Delivery | None:
        check_wait("within", within)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within.total_seconds()
        while (delivery := self._taken()) is None:
            self.arrived.clear()
            remaining = deadline - loop.time()
            if remaining <= 0:
                return None
            # A future of the caller's own loop: an event belongs to the first that waited on it.
            arrival = loop.create_future()
            self._waiting.add(arrival)
            try:
                await asyncio.wait((arrival,), timeout=min(remaining, self._until_next_lapse()))
            finally:
                self._waiting.discard(arrival)
        return delivery

    async def reclaim(self, idle: timedelta) -> Delivery | None:
        check_wait("idle", idle)
        silent = max(timedelta(0), idle - self.lease).total_seconds()
        lapsed = self._lapsed(silent)
        return None if lapsed is None else self._delivered(lapsed, self.lease)

    async def extend(self, delivery: Delivery, within: timedelta) -> Delivery:
        check_duration("within", within)
        if not await self.holds(delivery):
            return delivery
        return self._delivered(delivery.workflow, within)

    async def holds(self, delivery: Delivery) -> bool:
        """Whether the delivery is still out under its receipt."""
        check_delivery(delivery)
        return self._out(delivery)

    async def cancel(self, workflow: str) -> None:
        check_text("workflow", workflow)
        self._unqueue(workflow)

    async def done(self, delivery: Delivery) -> None:
        if await self.holds(delivery):
            self._answer(delivery, None)

    def _queue(self, workflow: str) -> None:
        """Ready from now on, or since it was (S10)."""
        if workflow not in self.queue:
            self._unqueue(workflow)
            self.queue.append(workflow)
        self.arrived.set()
        wake(self._waiting)

    def _unqueue(self, workflow: str) -> None:
        self.sleeping.pop(workflow, None)
        self.outstanding.pop(workflow, None)
        if workflow in self.queue:
            self.queue.remove(workflow)

    def _queued(self, workflow: str) -> bool:
        """Whether the workflow has a wakeup: ready, sleeping, or out with a worker."""
        return workflow in self.outstanding or workflow in self.sleeping or workflow in self.queue

    def _out(self, delivery: Delivery) -> bool:
        held = self.outstanding.get(delivery.workflow)
        return held is not None and held[0] == delivery

    def _answer(self, delivery: Delivery, when: datetime | None) -> None:
        """Remove the wakeup of a delivery that is out, or put it off."""
        del self.outstanding[delivery.workflow]
        if when is not None:
            self.sleeping[delivery.workflow] = when

    def _taken(self) -> Delivery | None:
        """The workflow ready longest, or else one whose taker let it lapse (S2)."""
        ready = self.queue.popleft() if self.queue else self._lapsed()
        return None if ready is None else self._delivered(ready, self.lease)

    def _lapsed(self, silent: float = 0) -> str | None:
        until = self.clock() - silent
        lapsed = [
            (end, workflow) for workflow, (_, end) in self.outstanding.items() if end <= until
        ]
        return min(lapsed)[1] if lapsed else None

    def _delivered(self, workflow: str, within: timedelta) -> Delivery:
        delivery = Delivery(workflow, str(next(self.receipts)))
        self.outstanding[workflow] = delivery, self.clock() + within.total_seconds()
        return delivery

    def _until_next_lapse(self) -> float:
        ends = (end for _, end in self.outstanding.values())
        return max(0.0, min(ends, default=float("inf")) - self.clock())
