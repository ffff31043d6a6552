"""Durable workflows in one SQLite file: the connection, and the stores that share it.

```python
database = connect("workflows.db")
await migrate(database)
durable = SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database))
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TypeAlias, TypeVar

from without_durability.checks import check_attempts, check_limit, check_step_key
from without_durability.durations import check_wait
from without_durability.settling import settle
from without_durability.values import Delivery, Ended, Entry, Pass, Started

from .checkpointer import SqliteCheckpointer, SqliteEffect
from .commits import StoreCursor
from .database import BUSY_TIMEOUT, Database, connect, migrate, transacted
from .operations import Operation, touching
from .passes import Passes
from .scheduler import POLL, SqliteScheduler
from .schema import SCHEMA
from .statements import FORGET

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

GivingBack: TypeAlias = Callable[[StoreCursor, float, "list[Started] | None"], None]


@dataclass(frozen=True, slots=True)
class SqliteDurable:
    """A `Ledger[SqliteEffect]` over two stores of one `Database`: each call is one commit (D4).

    `ValueError` when the stores do not share the very same `Database`.
    """

    checkpointer: SqliteCheckpointer
    scheduler: SqliteScheduler
    _passes: Passes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.checkpointer.database is not self.scheduler.database:
            raise ValueError("the checkpointer and the scheduler must share one database")
        object.__setattr__(self, "_passes", Passes(self.checkpointer, self.scheduler))

    @property
    def _database(self) -> Database:
        return self.checkpointer.database

    async def arrive(self, workflow: str, key: str, value: object) -> object:
        check_step_key(key)
        return await self._together(
            self.checkpointer._supplying(workflow, key, value), self._passes.arriving(workflow)
        )

    async def deliver(self, workflow: str, value: object) -> Entry:
        return await self._together(
            self.checkpointer._appending(workflow, value), self._passes.arriving(workflow)
        )

    async def delete(self, workflow: str) -> int:
        return await self._together(
            self.checkpointer._discarding(workflow),
            self.scheduler._cancelling(workflow),
            touching(FORGET, {"workflow": workflow}),
        )

    async def start_passes(
        self, limit: int, within: timedelta, budget: timedelta, attempts: int | None = None
    ) -> Sequence[Started]:
        """`next_ready`, `start_pass` and `load` for up to `limit`: a commit and a read."""
        check_limit(limit)
        check_wait("within", within)
        check_attempts(attempts)
        claiming = self.checkpointer._claiming(budget, self.scheduler.lease)

        def starting(cursor: StoreCursor, now: float) -> list[Started] | None:
            deliveries = self.scheduler._taken(cursor, now, limit)
            return [
                self._passes.started(cursor, now, delivery, claiming, attempts)
                for delivery in deliveries
            ] or None

        async def start(patience: float) -> list[Started] | None:
            return await self._database._write(starting, giving_back, patience, durable=False)

        def giving_back(cursor: StoreCursor, now: float, started: list[Started] | None) -> None:
            for one in started or ():
                self._passes.give_back(cursor, now, one)

        started = await self.scheduler._once_ready(within, start)
        return () if started is None else await self._loaded(started, giving_back)

    async def start_pass(
        self, delivery: Delivery, budget: timedelta, attempts: int | None = None
    ) -> Started:
        check_attempts(attempts)
        claiming = self.checkpointer._claiming(budget, self.scheduler.lease)
        starting = self._passes.starting(delivery, claiming, attempts)

        def giving_back(cursor: StoreCursor, now: float, started: list[Started] | None) -> None:
            for one in started or ():
                self._passes.unclaim(cursor, now, one)

        started = await self._database._write(
            lambda cursor, now: [starting(cursor, now)], giving_back, durable=False
        )
        return (await self._loaded(started, giving_back))[0]

    async def _loaded(self, started: list[Started], giving_back: GivingBack) -> list[Started]:
        """With their records; given back where these cannot be had or nobody hears of it."""
        try:
            return await self._database._read(partial(self._passes.with_records, started=started))
        except BaseException:

            def back(cursor: StoreCursor, now: float) -> None:
                giving_back(cursor, now, started)

            await settle(lambda: self._database._write(back, durable=False))
            raise

    async def end_pass(self, holder: Pass, delivery: Delivery, ended: Ended) -> None:
        """`release`, the answer and what the ledger says of it, in one commit."""
        await self._database._write(self._passes.ending(holder, delivery, ended), durable=False)

    async def _together(self, first: Operation[T], *others: Operation[bool]) -> T:
        """All operations in one transaction; what the first returned."""

        def operation(cursor: StoreCursor, now: float) -> T:
            value = first(cursor, now)
            for other in others:
                other(cursor, now)
            return value

        return await self._database._write(operation)
