"""Durable workflows in one SQLite file: the connection, and the stores that share it.

```python
database = connect("workflows.db")
await migrate(database)
durable = SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database))
```
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from without_durability.checks import check_limit, check_step_key
from without_durability.durations import check_wait
from without_durability.settling import settle
from without_durability.values import Delivery, Entry, Pass, Started

from .checkpointer import SqliteCheckpointer, SqliteEffect
from .commits import StoreCursor
from .database import BUSY_TIMEOUT, Database, connect, migrate, transacted
from .loading import PIECE_ROWS, Loading, just_value
from .operations import Operation
from .rows import as_holder, rows
from .scheduler import POLL, SqliteScheduler
from .schema import SCHEMA
from .statements import STANDS

__all__ = [
    "BUSY_TIMEOUT",
    "POLL",
    "SCHEMA",
    "Database",
    "SqliteCheckpointer",
    "SqliteDurable",
    "SqliteEffect",
    "SqliteScheduler",
    "connect",
    "migrate",
    "transacted",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SqliteDurable:
    """A `Durable[SqliteEffect]` over two stores of one `Database`: each call is one commit (D4).

    `ValueError` when the stores do not share the very same `Database`.
    """

    checkpointer: SqliteCheckpointer
    scheduler: SqliteScheduler

    def __post_init__(self) -> None:
        if self.checkpointer.database is not self.scheduler.database:
            raise ValueError("the checkpointer and the scheduler must share one database")

    @property
    def _database(self) -> Database:
        return self.checkpointer.database

    async def arrive(self, workflow: str, key: str, value: object) -> object:
        check_step_key(key)
        return await self._together(
            self.checkpointer._supplying(workflow, key, value), self.scheduler._readying(workflow)
        )

    async def deliver(self, workflow: str, value: object) -> Entry:
        return await self._together(
            self.checkpointer._appending(workflow, value), self.scheduler._readying(workflow)
        )

    async def delete(self, workflow: str) -> int:
        return await self._together(
            self.checkpointer._discarding(workflow), self.scheduler._cancelling(workflow)
        )

    async def start_passes(
        self, limit: int, within: timedelta, budget: timedelta
    ) -> Sequence[Started]:
        """`next_ready`, `claim` and `load` for up to `limit` workflows: a commit and a read."""
        check_limit(limit)
        check_wait("within", within)
        claiming = self.checkpointer._claiming(budget, self.scheduler.lease)

        def starting(cursor: StoreCursor, now: float) -> list[Started] | None:
            deliveries = self.scheduler._taken(cursor, now, limit)
            return [
                Started(delivery, claiming(cursor, now, delivery.workflow))
                for delivery in deliveries
            ] or None

        async def start(patience: float) -> list[Started] | None:
            return await self._database._write(starting, self._give_back, patience, durable=False)

        def giving_back(cursor: StoreCursor, now: float) -> None:
            self._give_back(cursor, now, started)

        started = await self.scheduler._once_ready(within, start)
        if started is None:
            return ()
        try:
            return await self._database._read(partial(self._with_records, started=started))
        except BaseException:
            await settle(lambda: self._database._write(giving_back, durable=False))
            raise

    def _with_records(
        self, connection: sqlite3.Connection, started: list[Started]
    ) -> list[Started]:
        """With what is recorded, where that is no more than a piece and can be read."""
        loaded = []
        for one in started:
            recorded = None
            if one.holder is not None:
                loading = Loading(self.checkpointer.codec, one.holder.workflow, just_value)
                with suppress(ValueError):  # whoever loads it for itself is told
                    if not loading.fetch(connection, PIECE_ROWS) and not loading.decode():
                        recorded = loading.records
                if not rows(connection, STANDS, as_holder(one.holder)):  # deleted since: no pass
                    one, recorded = one._replace(holder=None), None
            loaded.append(one._replace(recorded=recorded))
        return loaded

    def _give_back(self, cursor: StoreCursor, now: float, started: list[Started] | None) -> None:
        for one in started or ():
            if one.holder is not None:
                self.checkpointer._releasing(one.holder)(cursor, now)
            self.scheduler._put_back(cursor, now, one.delivery)

    async def end_pass(self, holder: Pass, delivery: Delivery, due: datetime | None) -> None:
        """`release` and the answer in one commit."""
        releasing = self.checkpointer._releasing(holder)
        if due is None:
            answering = self.scheduler._answering(delivery)
        else:
            answering = self.scheduler._suspending(delivery, due)
        await self._together(releasing, answering, durable=False)

    async def _together(
        self, first: Operation[T], second: Operation[bool], *, durable: bool = True
    ) -> T:
        """Both operations in one transaction; what the first returned."""

        def operation(cursor: StoreCursor, now: float) -> T:
            value = first(cursor, now)
            second(cursor, now)
            return value

        return await self._database._write(operation, durable=durable)
