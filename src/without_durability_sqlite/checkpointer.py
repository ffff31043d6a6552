"""Each workflow's records, and who may write them now."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias, TypeVar

from without_durability.checks import check_step_key, check_supplied_key, check_text
from without_durability.codec import JSON, CheckpointCodec, decoded, encoded
from without_durability.durations import check_duration
from without_durability.signals import fenced
from without_durability.values import (
    INBOX,
    INBOX_COUNTED,
    Entry,
    Pass,
    Recorded,
    Written,
    inbox_key,
    inbox_position,
    shown,
)

from .commits import StoreCursor
from .database import Database
from .loading import Loading, just_value
from .operations import Operation, touched, touching
from .rows import as_holder, as_milliseconds, lenient, text, written_at
from .schema import VERSION
from .statements import (
    CLAIM,
    CLAMP_CLAIM,
    DISCARD,
    EXTEND_CLAIM,
    FENCE,
    INBOX_KEYS,
    LATEST,
    LATEST_OF_WORKFLOW,
    NEXT_SEQ,
    RAISE_FENCE,
    READ,
    RELEASE,
    REMEMBER_LATEST,
    RENEW,
    SIGN_OF_LIFE,
    WRITE,
)
from .transactions import check_not_async

V = TypeVar("V")

SqliteEffect: TypeAlias = Callable[[sqlite3.Cursor], object]
"""What `transact` commits with its record: synchronous, and free to touch any table of the file.

Its code may run twice, where a commit that it shares fails; it is committed once at the most.
"""


@dataclass(frozen=True, slots=True)
class SqliteCheckpointer:
    """A `Checkpointer[SqliteEffect]` over a `Database`; see the protocol for each promise."""

    database: Database
    codec: CheckpointCodec[str] = JSON

    async def load(self, workflow: str) -> dict[str, object]:
        return await self._loaded(workflow, just_value)

    async def history(self, workflow: str) -> dict[str, Written]:
        def shape(key: str, value: object, at: float) -> Written:
            return Written(value, written_at(workflow, key, at))

        return await self._loaded(workflow, shape)

    async def _loaded(
        self, workflow: str, shape: Callable[[str, object, float], V]
    ) -> dict[str, V]:
        check_text("workflow", workflow)
        loading = Loading(self.codec, workflow, shape)
        await self.database._read(loading.fetch, then=loading.decode)
        return loading.records

    async def claim(self, workflow: str, budget: timedelta, alive: timedelta) -> Pass | None:
        claiming = self._claiming(budget, alive)
        check_text("workflow", workflow)

        def undo(cursor: StoreCursor, now: float, holder: Pass | None) -> None:
            assert holder is not None
            cursor.execute(RELEASE, as_holder(holder))

        return await self.database._write(
            lambda cursor, now: claiming(cursor, now, workflow), undo, durable=False
        )

    def _claiming(
        self, budget: timedelta, alive: timedelta
    ) -> Callable[[StoreCursor, float, str], Pass | None]:
        """`claim` as part of a transaction."""
        check_duration("budget", budget)
        check_duration("alive", alive)
        granted = {"budget": budget.total_seconds(), "alive": alive.total_seconds()}

        def claimed(cursor: StoreCursor, now: float, workflow: str) -> Pass | None:
            asked = {
                "workflow": workflow,
                "milliseconds": as_milliseconds(now),
                "now": now,
                **granted,
            }
            for (token,) in cursor.execute(CLAIM, asked).fetchall():
                return Pass(workflow, token)
            cursor.execute(CLAMP_CLAIM, asked)
            return None

        return claimed

    async def extend(self, holder: Pass, budget: timedelta, alive: timedelta) -> bool:
        check_duration("budget", budget)
        check_duration("alive", alive)
        granted = {"budget": budget.total_seconds(), "alive": alive.total_seconds()}
        extending = touching(EXTEND_CLAIM, as_holder(holder) | granted)
        return await self.database._write(extending, durable=False)

    async def renew(self, holder: Pass, alive: timedelta) -> bool:
        check_duration("alive", alive)
        granted = {"alive": alive.total_seconds()}
        renewing = touching(RENEW, as_holder(holder) | granted)
        return await self.database._write(renewing, durable=False)

    async def record(self, holder: Pass, key: str, value: object) -> Recorded:
        check_step_key(key)
        asked = as_holder(holder)
        encoding, back = self._encoded(holder.workflow, key, value)

        def operation(cursor: StoreCursor, now: float) -> Recorded:
            if not touched(cursor, SIGN_OF_LIFE, asked | {"now": now}):
                raise fenced(holder)
            return self._standing(cursor, now, holder.workflow, key, encoding, back)

        return await self.database._write(operation)

    async def transact(self, holder: Pass, key: str, effect: SqliteEffect) -> object:
        check_step_key(key)
        check_not_async(effect)
        asked = as_holder(holder) | {"key": key}

        def operation(cursor: StoreCursor, now: float) -> object:
            ((newest, stored),) = cursor.execute(FENCE, asked).fetchall()
            if not newest:
                raise fenced(holder)
            if stored is not None:
                encoding = text(holder.workflow, f"what is stored under {shown(key)}", stored)
                value = decoded(self.codec, holder.workflow, key, encoding)
            else:
                result = self.database._apply(effect)
                encoding, back = self._encoded(holder.workflow, key, result)
                now = self.database._commits.now()
                value = self._standing(cursor, now, holder.workflow, key, encoding, back).value
            if not touched(cursor, SIGN_OF_LIFE, asked | {"now": now}):
                raise fenced(holder)
            return value

        return await self.database._write(operation, foreign=True)

    async def supply(self, workflow: str, key: str, value: object) -> object:
        return await self.database._write(self._supplying(workflow, key, value))

    def _supplying(self, workflow: str, key: str, value: object) -> Operation[object]:
        """`supply` as part of a transaction; what is stored."""
        check_text("workflow", workflow)
        check_supplied_key(key)
        encoding, back = self._encoded(workflow, key, value)
        return lambda cursor, now: (
            self._standing(cursor, now, workflow, key, encoding, back, supplied=True).value
        )

    def _standing(
        self,
        cursor: StoreCursor,
        now: float,
        workflow: str,
        key: str,
        encoding: str,
        back: object,
        *,
        supplied: bool = False,
    ) -> Recorded:
        """Write unless the key is recorded; what stands under it, decoded before the commit."""
        stored = _written(cursor, now, workflow, key, encoding, supplied=supplied)
        if stored == encoding:
            return Recorded(back, first=True)
        return Recorded(decoded(self.codec, workflow, key, stored), first=False)

    async def append(self, workflow: str, value: object) -> Entry:
        return await self.database._write(self._appending(workflow, value))

    def _appending(self, workflow: str, value: object) -> Operation[Entry]:
        """`append` as part of a transaction."""
        check_text("workflow", workflow)
        encoding, back = self._encoded(workflow, INBOX, value)

        def operation(cursor: StoreCursor, now: float) -> Entry:
            key = inbox_key(_next_position(cursor, workflow))
            _written(cursor, now, workflow, key, encoding, supplied=True)
            return Entry(key, back)

        return operation

    async def discard(self, workflow: str) -> int:
        return await self.database._write(self._discarding(workflow))

    def _discarding(self, workflow: str) -> Operation[int]:
        """`discard` as part of a transaction."""
        check_text("workflow", workflow)

        def operation(cursor: StoreCursor, now: float) -> int:
            asked = {"workflow": workflow, "milliseconds": as_milliseconds(now)}
            cursor.execute(RAISE_FENCE, asked)
            return cursor.execute(DISCARD, asked).rowcount

        return operation

    async def release(self, holder: Pass) -> None:
        await self.database._write(self._releasing(holder), durable=False)

    def _releasing(self, holder: Pass) -> Operation[bool]:
        """`release` as part of a transaction."""
        return touching(RELEASE, as_holder(holder))

    def _encoded(self, workflow: str, key: str, value: object) -> tuple[str, object]:
        encoding, back = encoded(self.codec, workflow, key, value)
        try:
            check_text("the codec's encoding", encoding)
        except (TypeError, ValueError) as error:
            where = f"workflow {shown(workflow)}, key {shown(key)}"
            raise type(error)(f"{where}: {error}") from error
        return encoding, back


def _read(cursor: sqlite3.Cursor, workflow: str, key: str) -> str | None:
    for (raw,) in cursor.execute(READ, {"workflow": workflow, "key": key}).fetchall():
        return text(workflow, f"what is stored under {shown(key)}", raw)
    return None


def _written(
    cursor: StoreCursor, now: float, workflow: str, key: str, encoding: str, *, supplied: bool
) -> str:
    """Write unless the key is recorded; the encoding that is stored, either way."""
    record = {"workflow": workflow, "key": key, "value": encoding, "supplied": supplied}
    if touched(cursor, WRITE, record | {"written_at": _stamp(cursor, workflow, now)}):
        return encoding
    stored = _read(cursor, workflow, key)
    assert stored is not None
    return stored


def _stamp(cursor: StoreCursor, workflow: str, now: float) -> float:
    """What to stamp on a record: `now`, unless the clock was set back since the workflow's last."""
    if cursor.latest is not None and cursor.latest <= now:  # nobody else writes meanwhile
        cursor.latest = now
        return now
    ((latest, ahead),) = cursor.execute(LATEST).fetchall()
    cursor.latest = max(latest, ahead, now)
    if cursor.latest == now:
        return now
    if latest > ahead:
        cursor.execute(REMEMBER_LATEST, {"version": VERSION, "latest": latest})
    own: float
    ((own,),) = cursor.execute(LATEST_OF_WORKFLOW, {"workflow": workflow}).fetchall()
    return max(now, own)


def _next_position(cursor: sqlite3.Cursor, workflow: str) -> int:
    """Past the table's highest `seq`, and past every inbox key the workflow holds (C13)."""
    position: int
    ((position,),) = cursor.execute(NEXT_SEQ).fetchall()
    beyond = {"workflow": workflow, "first": inbox_key(0), "beyond": inbox_key(INBOX_COUNTED)}
    for (raw,) in cursor.execute(INBOX_KEYS, beyond):
        held = inbox_position(lenient(raw))
        if held is not None:
            return max(position, held + 1)
    return position
