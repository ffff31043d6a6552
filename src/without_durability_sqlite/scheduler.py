"""When each workflow should run next."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from without_durability.checks import check_aware, check_delivery, check_text
from without_durability.durations import check_duration, check_wait, now_utc
from without_durability.values import LEASE, Delivery, shown

from .commits import StoreCursor
from .database import Database, migrate
from .errors import is_permanent
from .operations import Operation, made_visible, touching, visible_from
from .receipts import Receipt
from .rows import as_seconds, rows
from .statements import (
    CANCEL,
    CLAMP_CLAIM,
    CLAMP_TAKEN,
    DONE,
    EXTEND_DELIVERY,
    HOLDS,
    MAKE_READY,
    SCHEDULE,
    SUSPEND,
    TAKE,
    VISIBLE,
)
from .watching import USUAL, Waiter

T = TypeVar("T")

logger = logging.getLogger("without_durability_sqlite")

POLL = timedelta(seconds=USUAL)
"""How often a waiting `next_ready` looks at the queue."""

_CLOCKS_APART = 1.0
"""Seconds that two clocks of one machine may differ by."""

_GRACE = 0.5
"""Seconds that a look and a take get, however short the wait that was asked for."""


@dataclass(frozen=True, slots=True)
class SqliteScheduler:
    """A `Scheduler` over a `Database`: one row per workflow that has something to wait for.

    A namespace is a queue, not a tenant: ids and records are global to the file. The lease is
    measured by the database's clock, `wake_at`'s moment by the caller's.
    """

    database: Database
    namespace: str = "workflow"
    lease: timedelta = LEASE
    poll: timedelta = POLL
    now: Callable[[], datetime] = now_utc
    lease_seconds: float = field(init=False, repr=False, compare=False)
    poll_seconds: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_text("namespace", self.namespace)
        check_duration("lease", self.lease)
        check_duration("poll", self.poll)
        object.__setattr__(self, "lease_seconds", self.lease.total_seconds())
        object.__setattr__(self, "poll_seconds", self.poll.total_seconds())

    async def prepare(self) -> None:
        await migrate(self.database)

    async def make_ready(self, workflow: str) -> None:
        await self.database._write(self._readying(workflow))

    def _readying(self, workflow: str) -> Operation[bool]:
        """`make_ready` as part of a transaction."""
        asked = self._row(workflow)
        return lambda cursor, now: self._made_ready(cursor, now, asked)

    def _made_ready(self, cursor: StoreCursor, now: float, asked: dict[str, Any]) -> bool:
        when = now if self.now is now_utc else as_seconds("now", self.now())
        # A clock of the caller's own may run a little ahead: that is ready all the same (S11).
        ahead = visible_from(when, now, _CLOCKS_APART)
        return made_visible(cursor, now, MAKE_READY, asked | ahead)

    async def schedule(self, workflow: str, visible_at: datetime) -> None:
        """Move the workflow to `visible_at`, whatever its state: an unconditional move (S10)."""
        when = {"when": as_seconds("visible_at", visible_at)}
        asked = self._row(workflow) | when
        await self.database._write(lambda cursor, now: made_visible(cursor, now, SCHEDULE, asked))

    async def wake_at(self, delivery: Delivery, when: datetime) -> None:
        await self.database._write(self._suspending(delivery, when), durable=False)

    def _suspending(self, delivery: Delivery, when: datetime) -> Operation[bool]:
        """`wake_at` as part of a transaction."""
        moment = as_seconds("when", when)
        asked = self._held(delivery)
        return lambda cursor, now: made_visible(
            cursor, now, SUSPEND, asked | visible_from(moment, now)
        )

    async def wake_due(self, now: datetime) -> tuple[str, ...]:
        check_aware("now", now)
        return ()

    async def next_ready(self, within: timedelta) -> Delivery | None:
        check_wait("within", within)

        def taking(cursor: StoreCursor, now: float) -> Delivery | None:
            for delivery in self._taken(cursor, now, 1):
                return delivery
            return None

        async def take(patience: float) -> Delivery | None:
            return await self.database._write(taking, self._put_back, patience, durable=False)

        return await self._once_ready(within, take)

    async def _once_ready(
        self, within: timedelta, take: Callable[[float], Awaitable[T | None]]
    ) -> T | None:
        """What `take`, given the seconds it may wait, takes once there is something; or `None`.

        Waiting costs no lock and no turn of the loop.
        """
        loop = asyncio.get_running_loop()
        watch = self.database._watch
        deadline = loop.time() + within.total_seconds()
        while True:
            # What is ready is found whatever `within` is (S11), unless others keep us waiting.
            patient_until = max(deadline, loop.time() + _GRACE)
            waiter = Waiter(self.namespace, self.poll_seconds)
            try:
                looking = partial(watch.join, waiter=waiter)
                ready = await self.database._read(
                    looking, patient_until - loop.time(), after_what_is_owed=True
                )
                if ready or await waiter.result(self._patience(deadline - loop.time())):
                    taken = await take(max(patient_until - loop.time(), 0))
                    if taken is not None:
                        return taken
            except TimeoutError:  # others keep the database busy: that is no reason to wait longer
                return None
            finally:
                watch.leave(waiter)
            if loop.time() >= deadline:
                return None

    def _patience(self, remaining: float) -> float:
        """How long to wait before looking by oneself: a poll, where no thread looks out."""
        thread = self.database._thread
        watched = thread.watch is not None or thread.reader is not None
        return remaining if watched else min(remaining, self.poll_seconds)

    async def reclaim(self, idle: timedelta) -> Delivery | None:
        check_wait("idle", idle)
        return None

    async def extend(self, delivery: Delivery, within: timedelta) -> Delivery:
        check_duration("within", within)
        seconds = within.total_seconds()
        asked = self._held(delivery)

        before = {"until": asked["visible_at"], "renewed": asked["nonce"], "within": seconds}

        def operation(cursor: StoreCursor, now: float) -> Delivery:
            held = cursor.execute(HOLDS, asked).fetchall()
            if not held:
                return delivery
            ((before["within"],),) = held
            renewed = Receipt.until(now + seconds)
            terms = {"until": now + seconds, "renewed": renewed.nonce, "within": seconds}
            cursor.execute(EXTEND_DELIVERY, asked | terms)
            return Delivery(delivery.workflow, str(renewed))

        def undo(cursor: StoreCursor, now: float, extended: Delivery) -> None:
            cursor.execute(EXTEND_DELIVERY, self._held(extended) | before)

        return await self.database._write(operation, undo, durable=False)

    async def holds(self, delivery: Delivery) -> bool:
        """Whether the delivery is still out under its receipt."""
        asked = self._held(delivery)
        return bool(await self.database._read(lambda connection: rows(connection, HOLDS, asked)))

    async def cancel(self, workflow: str) -> None:
        await self.database._write(self._cancelling(workflow))

    def _cancelling(self, workflow: str) -> Operation[bool]:
        """`cancel` as part of a transaction."""
        return touching(CANCEL, self._row(workflow))

    async def done(self, delivery: Delivery) -> None:
        await self.database._write(self._answering(delivery), durable=False)

    def _answering(self, delivery: Delivery) -> Operation[bool]:
        """`done` as part of a transaction."""
        return touching(DONE, self._held(delivery))

    def permanent(self, error: Exception) -> bool:
        """Whether an error of this store will not go away by itself."""
        return is_permanent(error)

    def _row(self, workflow: str) -> dict[str, Any]:
        check_text("workflow", workflow)
        return {"namespace": self.namespace, "workflow": workflow}

    def _held(self, delivery: Delivery) -> dict[str, Any]:
        check_delivery(delivery)
        receipt = Receipt.parsed(delivery.receipt)
        held = {"visible_at": receipt.visible_at, "nonce": receipt.nonce}
        return self._row(delivery.workflow) | held

    def _taken(self, cursor: StoreCursor, now: float, limit: int) -> list[Delivery]:
        """The deliveries visible longest, up to `limit` of them."""
        asked: dict[str, Any] = {
            "namespace": self.namespace,
            "now": now,
            "until": now + self.lease_seconds,
            "lease": self.lease_seconds,
        }
        for (raw,) in cursor.execute(CLAMP_TAKEN, asked).fetchall():
            with suppress(UnicodeDecodeError):  # the claim's deadlines lie as far ahead
                cursor.execute(CLAMP_CLAIM, {"workflow": raw.decode(), "now": now})
        receipt = Receipt.until(now + self.lease_seconds)
        asked["nonce"] = receipt.nonce
        deliveries: list[Delivery] = []
        while len(deliveries) < limit:
            asked["limit"] = limit - len(deliveries)
            visible = cursor.execute(VISIBLE, asked).fetchall()
            if visible:
                cursor.execute(TAKE, asked)
            deliveries.extend(self._readable(visible, str(receipt)))
            if len(visible) < asked["limit"]:
                break
        return deliveries

    def _readable(self, taken: list[tuple[bytes, int]], receipt: str) -> Iterator[Delivery]:
        """The deliveries of those whose id is text; the others are set aside for a lease."""
        for raw, is_text in taken:
            try:
                if is_text:
                    yield Delivery(raw.decode(), receipt)
                    continue
            except UnicodeDecodeError:
                pass
            logger.error(
                "queue %s holds an id that is not text, %s: set aside for a lease",
                shown(self.namespace),
                shown(raw),
            )

    def _put_back(self, cursor: StoreCursor, now: float, delivery: Delivery | None) -> None:
        assert delivery is not None
        made_visible(cursor, now, SUSPEND, self._held(delivery) | visible_from(now, now))
