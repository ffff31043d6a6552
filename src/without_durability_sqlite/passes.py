"""Arrivals and whole passes as parts of a transaction, with what each writes in the ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from without_durability.values import Delivery, Ended, Pass, Started, State

from .checkpointer import SqliteCheckpointer
from .commits import StoreCursor
from .loading import PIECE_ROWS, Loading, just_value
from .operations import Operation, touched
from .rows import as_holder, lenient, rows
from .scheduler import SqliteScheduler
from .statements import (
    ARRIVED,
    END_CLAIM,
    ENDED,
    ENDED_HERE,
    HOLDS,
    ONE_MORE,
    PARKED,
    QUEUED,
    STANDING,
    STANDS,
    STARTED,
    STARTED_FIRST,
)

Claiming = Callable[[StoreCursor, float, str], Pass | None]


class Passes:
    """The parts that a durable puts together, over its two stores."""

    def __init__(self, checkpointer: SqliteCheckpointer, scheduler: SqliteScheduler) -> None:
        self._checkpointer = checkpointer
        self._scheduler = scheduler

    def arriving(self, workflow: str) -> Operation[bool]:
        """Make ready what is not cancelled (L1, L2)."""
        asked = self._scheduler._row(workflow)

        def operation(cursor: StoreCursor, now: float) -> bool:
            if not touched(cursor, ARRIVED, asked | {"now": now}):
                return False
            return self._scheduler._made_ready(cursor, now, asked)

        return operation

    def starting(
        self, delivery: Delivery, claiming: Claiming, attempts: int | None
    ) -> Operation[Started]:
        """Start a pass on a delivery, if it is still held (L3)."""
        held = self._scheduler._held(delivery)

        def operation(cursor: StoreCursor, now: float) -> Started:
            if not cursor.execute(HOLDS, held).fetchall():
                return Started(delivery, None, over="gone")
            return self.started(cursor, now, delivery, claiming, attempts)

        return operation

    def started(
        self,
        cursor: StoreCursor,
        now: float,
        delivery: Delivery,
        claiming: Claiming,
        attempts: int | None,
    ) -> Started:
        """Start a pass on a delivery that is held (L3)."""
        holder = claiming(cursor, now, delivery.workflow)
        if holder is None:
            return Started(delivery, None)
        asked: dict[str, Any] = {
            "namespace": self._scheduler.namespace,
            "workflow": delivery.workflow,
            "now": now,
            "attempt": 1,
        }
        for seq, state, spent, in_its_queue, _ in cursor.execute(STANDING, asked).fetchall():
            asked["seq"] = seq
            if state == "cancelled":
                self._drop(cursor, now, delivery, holder)
                return Started(delivery, None, over="cancelled")
            if state != "failed":
                if attempts is not None and spent >= attempts:
                    self._park(cursor, delivery, spent, asked)
                    self._drop(cursor, now, delivery, holder)
                    return Started(delivery, None, None, spent, "parked")
                asked["attempt"] = spent + 1
            cursor.execute(ONE_MORE if state == "ready" and in_its_queue else STARTED, asked)
            return Started(delivery, holder, None, asked["attempt"])
        cursor.execute(STARTED_FIRST, asked)
        return Started(delivery, holder, None, 1)

    def _drop(self, cursor: StoreCursor, now: float, delivery: Delivery, holder: Pass) -> None:
        """There is no pass to run after all."""
        self._checkpointer._releasing(holder)(cursor, now)
        self._scheduler._answering(delivery)(cursor, now)

    def _park(
        self, cursor: StoreCursor, delivery: Delivery, spent: int, asked: dict[str, Any]
    ) -> None:
        """Its attempts are used up, by passes that did not live to say so."""
        from without_durability.ledger import raised, used_up

        detail = self.detail(delivery.workflow, raised(used_up(spent), None))
        cursor.execute(PARKED, asked | {"detail": detail})
        cursor.ended.append(delivery.workflow)

    def unclaim(self, cursor: StoreCursor, now: float, started: Started) -> None:
        """Take a start back: it was no attempt."""
        if started.holder is not None:
            if not self._checkpointer._releasing(started.holder)(cursor, now):
                return  # cancelled or deleted since, and perhaps begun again
            before = Ended(attempts=started.attempt - 1)
            cursor.execute(ENDED, _written_down(started.holder.workflow, before, None, now))

    def give_back(self, cursor: StoreCursor, now: float, started: Started) -> None:
        """As `unclaim`, and let the delivery be visible at once."""
        self.unclaim(cursor, now, started)
        if started.over is None:
            self._scheduler._put_back(cursor, now, started.delivery)

    def ending(self, holder: Pass, delivery: Delivery, ended: Ended) -> Operation[State | None]:
        """Release the claim, answer the delivery, and write down how the pass ended (L4, L5)."""
        released = as_holder(holder)
        detail = self.detail(holder.workflow, ended)
        row = self._scheduler._row(delivery.workflow)
        if ended.due is None:
            answering = self._scheduler._answering(delivery)
        else:
            answering = self._scheduler._suspending(delivery, ended.due)

        def operation(cursor: StoreCursor, now: float) -> State | None:
            newest = touched(cursor, END_CLAIM, released)
            answered = answering(cursor, now)
            if not newest:
                return None
            asked = row | _written_down(holder.workflow, ended, detail, now)
            if ended.state is None:
                if ended.attempts is not None:
                    cursor.execute(ENDED, asked)
                return _stands(cursor, row)
            if answered and touched(cursor, ENDED_HERE, asked):
                return self._ended(cursor, holder, ended.state)
            return self._overtaken(cursor, holder, ended, asked)

        return operation

    def _ended(self, cursor: StoreCursor, holder: Pass, state: State) -> State:
        if state in ("completed", "failed"):
            cursor.ended.append(holder.workflow)
        return state

    def _overtaken(
        self, cursor: StoreCursor, holder: Pass, ended: Ended, asked: dict[str, Any]
    ) -> State | None:
        """An end of which something may have come between: what is queued is to be run (L4)."""
        assert ended.state is not None
        for _, _, _, _, raw in cursor.execute(STANDING, asked).fetchall():
            queue = asked | {"namespace": lenient(raw)}
            for (arrived,) in cursor.execute(QUEUED, queue).fetchall():
                asked["state"] = "ready"
                if arrived and ended.state == "failed":  # a new chance, unlike a mere take
                    asked["attempts"] = 0
                if ended.state not in ("ready", "failed"):
                    asked["detail"] = None
            if touched(cursor, ENDED, asked):
                return self._ended(cursor, holder, asked["state"])
        return None

    def with_records(self, connection: sqlite3.Connection, started: list[Started]) -> list[Started]:
        """With what is recorded, where that is no more than a piece and can be read."""
        loaded = []
        for one in started:
            recorded = None
            if one.holder is not None:
                loading = Loading(self._checkpointer.codec, one.holder.workflow, just_value)
                with suppress(ValueError):  # whoever loads it for itself is told
                    if not loading.fetch(connection, PIECE_ROWS) and not loading.decode():
                        recorded = loading.records
                if not rows(connection, STANDS, as_holder(one.holder)):  # deleted since: no pass
                    one, recorded = one._replace(holder=None), None
            loaded.append(Started(one.delivery, one.holder, recorded, one.attempt, one.over))
        return loaded

    def detail(self, workflow: str, ended: Ended) -> str | None:
        """The encoding of what goes with a state, as far as it can be kept."""
        if ended.detail is None:
            return None
        from without_durability.ledger import kept

        def encode(detail: object) -> str:
            return self._checkpointer._encoded(workflow, "the ledger's detail", detail)[0]

        return kept(workflow, ended, encode)


def _stands(cursor: StoreCursor, row: dict[str, Any]) -> State | None:
    for _, state, _, _, _ in cursor.execute(STANDING, row).fetchall():
        return state  # type: ignore[no-any-return]
    return None


def _written_down(workflow: str, ended: Ended, detail: str | None, now: float) -> dict[str, Any]:
    return {
        "workflow": workflow,
        "state": ended.state,
        "detail": detail,
        "attempts": ended.attempts,
        "now": now,
    }
