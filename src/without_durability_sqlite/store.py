"""Durable workflows in one SQLite file: the connection, and the stores that share it.

```python
database = connect("workflows.db")
await migrate(database)
durable = SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database))
```
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from without_durability.checks import check_attempts, check_limit, check_step_key, check_text
from without_durability.durations import check_wait
from without_durability.settling import settle
from without_durability.values import (
    COMPLETED,
    PAGE,
    SWEPT,
    Delivery,
    Ended,
    Entry,
    Pass,
    Started,
    State,
    shown,
)

from .checkpointer import SqliteCheckpointer, SqliteEffect
from .commits import StoreCursor
from .database import BUSY_TIMEOUT, Database, connect, migrate, transacted
from .operations import Operation, touching
from .scheduler import POLL, SqliteScheduler
from .schema import SCHEMA
from .statements import FORGET
from .watching import QUIET

if TYPE_CHECKING:
    from without_durability.ledger import Page, Status

    from .lookups import Found
    from .passes import Passes

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

SWEPT_TOGETHER = 20
SWEEPING = 0.0005
"""A sweep deletes so many workflows in one transaction, or for so many seconds."""

RESTING = 4.0
"""How long it rests then, in terms of the time that took."""

LAST_WORD = 6.0
"""Seconds to wait for a start to be given back, an effect being stuck in the database."""

logger = logging.getLogger("without_durability_sqlite")

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
        from .passes import Passes  # whoever has a durable imports it soon enough

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

            async def given_back() -> None:
                async with asyncio.timeout(LAST_WORD):
                    await self._database._write(back, durable=False)

            settled = await settle(given_back)
            if settled.error is not None:
                logger.warning("what was started waits to lapse: %r", settled.error)
            raise

    async def end_pass(self, holder: Pass, delivery: Delivery, ended: Ended) -> State | None:
        """`release`, the answer and what the ledger says of it, in one commit."""
        ending = self._passes.ending(holder, delivery, ended)
        return await self._database._write(ending, durable=False)

    async def _together(self, first: Operation[T], *others: Operation[bool]) -> T:
        """All operations in one transaction; what the first returned."""

        def operation(cursor: StoreCursor, now: float) -> T:
            value = first(cursor, now)
            for other in others:
                other(cursor, now)
            return value

        return await self._database._write(operation)

    async def status(self, workflow: str) -> Status | None:
        found = await self._found(workflow)
        return None if found is None else found.status

    async def _found(self, workflow: str) -> Found | None:
        from .lookups import found

        check_text("workflow", workflow)
        codec, now = self.checkpointer.codec, self._database._commits.now
        return await self._database._read(lambda at: found(at, codec, workflow, now()))

    async def list(
        self,
        *,
        state: State | None = None,
        namespace: str | None = None,
        prefix: str | None = None,
        after: int | None = None,
        limit: int = PAGE,
    ) -> Page:
        from .lookups import listed

        codec, now = self.checkpointer.codec, self._database._commits.now
        return await self._database._read(
            lambda at: listed(at, codec, now(), state, namespace, prefix, after, limit)
        )

    async def counts(self, namespace: str | None = None) -> dict[State, int]:
        from .lookups import counted

        return await self._database._read(lambda connection: counted(connection, namespace))

    async def why(self, workflow: str) -> str:
        from .lookups import told

        check_text("workflow", workflow)
        codec, now = self.checkpointer.codec, self._database._commits.now
        return await self._database._read(lambda at: told(at, codec, workflow, now()))

    async def result(self, workflow: str, *, within: timedelta) -> object:
        """What the body returned, waiting for it (L14).

        An end in this process is noticed at once, one in another within half a second.
        """
        from without_durability.ledger import FINISHED, outcome

        check_wait("within", within)
        check_text("workflow", workflow)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within.total_seconds()
        pause = self.scheduler.poll_seconds
        while True:
            waiting = self._database._endings.join(workflow)
            try:
                status = await self.status(workflow)
                if status is not None and status.state in FINISHED:
                    return outcome(status)
                remaining = deadline - loop.time()
                if remaining <= 0:
                    raise TimeoutError(f"workflow {shown(workflow)} has not ended")
                await asyncio.wait(waiting[1:], timeout=min(pause, remaining))
            finally:
                self._database._endings.leave(workflow, waiting)
            pause = min(2 * pause, max(QUIET, self.scheduler.poll_seconds))

    async def retry(self, workflow: str) -> bool:
        from .steering import retried

        check_text("workflow", workflow)

        def operation(cursor: StoreCursor, now: float) -> bool:
            return self._readied(cursor, now, workflow, retried(cursor, now, workflow))

        return await self._database._write(operation)

    async def cancel(self, workflow: str, reason: str = "") -> bool:
        from .steering import cancelled

        check_text("workflow", workflow)
        check_text("reason", reason)
        namespace = self.scheduler.namespace
        ended = Ended(state="cancelled", detail={"reason": reason})
        detail = self._passes.detail(workflow, ended)
        return await self._database._write(
            lambda cursor, now: cancelled(cursor, now, workflow, detail, namespace)
        )

    async def rewind(self, workflow: str, to: str) -> int:
        from .steering import rewound

        check_text("workflow", workflow)
        check_text("to", to)

        def operation(cursor: StoreCursor, now: float) -> int:
            done = rewound(cursor, now, workflow, to, self.scheduler.namespace)
            if done is None:
                return 0
            self._readied(cursor, now, workflow, done[1])
            return done[0]

        return await self._database._write(operation)

    async def fork(self, workflow: str, into: str, *, before: str | None = None) -> int:
        from .steering import forked

        check_text("workflow", workflow)
        check_text("into", into)
        if before is not None:
            check_text("before", before)

        def operation(cursor: StoreCursor, now: float) -> int:
            done = forked(cursor, now, workflow, into, before, self.scheduler.namespace)
            if done is None:
                return 0
            self._readied(cursor, now, into, done[1])
            return done[0]

        return await self._database._write(operation)

    async def sweep(
        self,
        *,
        older: timedelta,
        states: Collection[State] = COMPLETED,
        limit: int = SWEPT,
    ) -> int:
        """Delete what finished long ago, a little at a time: others write in between (L13)."""
        from without_durability.ledger import check_states

        from .lookups import ripe
        from .steering import swept

        check_wait("older", older)
        check_limit(limit)
        states = check_states(states)
        count = 0
        while not count:  # what was found may all have been woken since
            now = self._database._commits.now()
            before = now - older.total_seconds()
            finding = partial(ripe, states=states, before=before, now=now, limit=limit)
            seqs = await self._database._read(finding)
            if not seqs:
                break
            while seqs:
                began = time.monotonic()
                sweeping = partial(swept, seqs=seqs[:SWEPT_TOGETHER], before=before, span=SWEEPING)
                gone, looked_at = await self._database._write(sweeping, durable=False)
                count += gone
                del seqs[:looked_at]
                await asyncio.sleep(RESTING * (time.monotonic() - began))
        return count

    def _readied(
        self, cursor: StoreCursor, now: float, workflow: str, namespace: str | None
    ) -> bool:
        """Make a workflow ready in its own queue, if there is one."""
        if namespace is None:
            return False
        row = {"namespace": namespace, "workflow": workflow}
        return self.scheduler._made_ready(cursor, now, row)
