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
import sqlite3
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from without_durability.checks import (
    check_aware,
    check_delivery,
    check_limit,
    check_step_key,
    check_supplied_key,
    check_text,
)
from without_durability.codec import JSON, CheckpointCodec, decoded, encoded
from without_durability.durations import Milliseconds, check_duration, check_wait, now_utc
from without_durability.settling import settle
from without_durability.signals import fenced
from without_durability.values import (
    INBOX,
    INBOX_COUNTED,
    LEASE,
    Delivery,
    Entry,
    Pass,
    Recorded,
    Started,
    Written,
    inbox_key,
    inbox_position,
    shown,
)

from . import opening, schema
from .bell import Bell
from .commits import Commits, StoreCursor, Write
from .errors import is_permanent
from .guard import Guard, PlainGuard, attached
from .loading import PIECE_ROWS, Loading, just_value
from .reading import Reader
from .receipts import Receipt
from .rows import as_holder, as_milliseconds, as_seconds, rows, text, written_at
from .schema import SCHEMA
from .thread import PATIENCE, DatabaseThread, Job
from .transactions import Fence, check_not_async, handed_over, transaction
from .turnstile import Turnstile
from .watching import QUIET, USUAL, Seen, Waiter, Watch

if TYPE_CHECKING:
    from pathlib import Path

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
V = TypeVar("V")

SqliteEffect: TypeAlias = Callable[[sqlite3.Cursor], object]
"""What `transact` commits with its record: synchronous, and free to touch any table of the file.

Its code may run twice, where a commit that it shares fails; it is committed once at the most.
"""

Operation: TypeAlias = Callable[[StoreCursor, float], T]
"""A call's part in a transaction: given the cursor and the moment the lock was won."""

BUSY_TIMEOUT = Milliseconds(5000)
"""How long a write waits for another process's write lock."""

POLL = timedelta(seconds=USUAL)
"""How often a waiting `next_ready` looks at the queue."""

_CLOCKS_APART = 1.0
"""Seconds that two clocks of one machine may differ by."""

_GRACE = 0.5
"""Seconds that a look and a take get, however short the wait that was asked for."""

_TOO_LATE = 253402300800
"""The first Unix second that no `datetime` can hold."""

logger = logging.getLogger("without_durability_sqlite")

# --- records ----------------------------------------------------------------------------------
# No row: nothing is recorded under the key.
READ = """
SELECT CAST(value AS BLOB) FROM workflow_checkpoint WHERE workflow = :workflow AND step = :key"""

# No row touched: the key was recorded before, and what is stored stands.
WRITE = """
INSERT INTO workflow_checkpoint (workflow, step, value, written_at)
VALUES (:workflow, :key, :value, :written_at) ON CONFLICT (workflow, step) DO NOTHING"""

# A record's moment, and NULL for what no datetime could hold: one bad row is nobody else's harm.
_READABLE_MOMENT = f"""CASE WHEN typeof(written_at) IN ('real', 'integer')
    AND written_at < {_TOO_LATE} THEN written_at END"""

# The newest record's moment, and the latest moment from which the clock was once set back.
LATEST = f"""
SELECT coalesce((SELECT {_READABLE_MOMENT} FROM workflow_checkpoint ORDER BY seq DESC LIMIT 1), 0),
       coalesce((SELECT max(clock_ahead) FROM workflow_schema), 0)"""

# The clock was set back: remember from where.
CLOCK_WAS_SET_BACK = """
INSERT INTO workflow_schema (version, clock_ahead) VALUES (:version, :latest)
ON CONFLICT (version) DO UPDATE SET clock_ahead = excluded.clock_ahead"""

LATEST_OF_WORKFLOW = f"""
SELECT coalesce(max({_READABLE_MOMENT}), 0) FROM workflow_checkpoint WHERE workflow = :workflow"""

NEXT_SEQ = "SELECT coalesce(max(seq), 0) + 1 FROM workflow_checkpoint"

# The inbox keys a workflow holds, last first, and only those whose position counts.
INBOX_KEYS = """
SELECT CAST(step AS BLOB) FROM workflow_checkpoint
WHERE workflow = :workflow AND step >= :first AND step < :beyond ORDER BY step DESC"""

DISCARD = "DELETE FROM workflow_checkpoint WHERE workflow = :workflow"

# --- claims -----------------------------------------------------------------------------------
# `seen_at` is the clock's reading when the claim was last written. A reading before it means
# that the clock was set back since: both deadlines then move back by as much.

_SET_BACK = "max(0, coalesce(seen_at, :now) - :now)"
_HELD_UNTIL = f"held_until - {_SET_BACK}"
_ALIVE_UNTIL = f"alive_until - {_SET_BACK}"

# No row: another pass holds the workflow. A token follows time as well as count (C3).
CLAIM = f"""
INSERT INTO workflow_claim (workflow, token, held_until, alive_until, alive_for, seen_at)
VALUES (:workflow, :milliseconds, :now + :budget, :now + min(:budget, :alive), :alive, :now)
ON CONFLICT (workflow) DO UPDATE SET
    token = max(token + 1, excluded.token), held_until = excluded.held_until,
    alive_until = excluded.alive_until, alive_for = excluded.alive_for, seen_at = excluded.seen_at
WHERE {_ALIVE_UNTIL} <= :now RETURNING token"""

# After a refusal, where the clock was set back: the deadlines as far ahead as they were before.
CLAMP_CLAIM = f"""
UPDATE workflow_claim SET held_until = {_HELD_UNTIL},
    alive_until = min({_ALIVE_UNTIL}, :now + alive_for), seen_at = :now
WHERE workflow = :workflow AND (seen_at > :now OR alive_until > :now + alive_for)"""

# Whether the holder is the newest, and what is recorded under the key, if anything is.
FENCE = """
SELECT EXISTS (SELECT 1 FROM workflow_claim WHERE workflow = :workflow AND token = :token),
    (SELECT CAST(value AS BLOB) FROM workflow_checkpoint
     WHERE workflow = :workflow AND step = :key)"""

# No row: the holder is not the newest.
STANDS = "SELECT 1 FROM workflow_claim WHERE workflow = :workflow AND token = :token"

# No row touched: the holder is not the newest. A released claim stays released (C8).
SIGN_OF_LIFE = f"""
UPDATE workflow_claim SET held_until = {_HELD_UNTIL},
    alive_until = min({_HELD_UNTIL}, :now + alive_for), seen_at = :now
WHERE workflow = :workflow AND token = :token"""

# No row touched: not the newest, or the budget has run out, or released (held until 0).
RENEW = f"""
UPDATE workflow_claim SET held_until = {_HELD_UNTIL},
    alive_until = min({_HELD_UNTIL}, :now + :alive), alive_for = :alive, seen_at = :now
WHERE workflow = :workflow AND token = :token AND {_HELD_UNTIL} > :now"""

# No row touched: not the newest, or released.
EXTEND_CLAIM = f"""
UPDATE workflow_claim SET held_until = max({_HELD_UNTIL}, :now + :budget),
    alive_until = min(max({_HELD_UNTIL}, :now + :budget), :now + :alive),
    alive_for = :alive, seen_at = :now
WHERE workflow = :workflow AND token = :token AND held_until > 0"""

RELEASE = """
UPDATE workflow_claim SET held_until = 0, alive_until = 0
WHERE workflow = :workflow AND token = :token"""

RAISE_FENCE = """
UPDATE workflow_claim
SET token = max(token + 1, :milliseconds), held_until = 0, alive_until = 0
WHERE workflow = :workflow"""

# --- queue ------------------------------------------------------------------------------------
# Queued: visible_at in the past. Sleeping: ahead. Out with a worker: ahead, and `taken`.
# `taken_for` is how far ahead a row may lie: a take's seconds, 0 for one that was made ready, and
# NULL for a sleeper, which means its moment.

# Whether there is anything to take or to clamp, and when the next one is due: what an idle worker
# asks, without a lock.
LOOK = f"""
SELECT EXISTS (SELECT 1 FROM workflow_queue
               WHERE namespace = :namespace AND visible_at <= :now)
    OR EXISTS (SELECT 1 FROM workflow_queue INDEXED BY workflow_queue_taken_for
               WHERE namespace = :namespace AND taken_for IS NOT NULL
               AND visible_at > :now AND visible_at > :now + taken_for + (taken_for > 0)),
    (SELECT min(visible_at) FROM workflow_queue
     WHERE namespace = :namespace AND visible_at > :now AND visible_at < {_TOO_LATE})"""

# Rows that lie further ahead than they may: the clock was set back. A taken one's receipt no
# longer stands after it, so a second's grace leaves a clock's small steps alone.
CLAMP_TAKEN = """
UPDATE workflow_queue INDEXED BY workflow_queue_taken_for SET visible_at = :now + taken_for
WHERE namespace = :namespace AND taken_for IS NOT NULL
  AND visible_at > :now AND visible_at > :now + taken_for + (taken_for > 0)
RETURNING CAST(workflow AS BLOB)"""

# The row visible longest, one lease ahead from here on. No row: nothing is visible.
TAKE = """
UPDATE workflow_queue SET visible_at = :until, taken = :nonce, taken_for = :lease
WHERE namespace = :namespace AND workflow = (
    SELECT workflow FROM workflow_queue
    WHERE namespace = :namespace AND visible_at <= :now ORDER BY visible_at LIMIT 1)
RETURNING CAST(workflow AS BLOB), typeof(workflow) = 'text'"""

# Visible now, or still at the earlier moment it has, under a changed receipt (S10).
MAKE_READY = """
INSERT INTO workflow_queue (namespace, workflow, visible_at, taken_for)
VALUES (:namespace, :workflow, :when, :ahead)
ON CONFLICT (namespace, workflow) DO UPDATE SET
    visible_at = min(visible_at, excluded.visible_at), taken = NULL, taken_for = :ahead"""

SCHEDULE = """
INSERT INTO workflow_queue (namespace, workflow, visible_at) VALUES (:namespace, :workflow, :when)
ON CONFLICT (namespace, workflow) DO UPDATE SET
    visible_at = excluded.visible_at, taken = NULL, taken_for = NULL"""

# A delivery that is still out under its receipt: the next four touch that row or none.
_HELD = """namespace = :namespace AND workflow = :workflow
  AND visible_at = :visible_at AND taken = :nonce"""

HOLDS = f"SELECT taken_for FROM workflow_queue WHERE {_HELD}"

EXTEND_DELIVERY = f"""
UPDATE workflow_queue SET visible_at = :until, taken = :renewed, taken_for = :within
WHERE {_HELD}"""

SUSPEND = f"""
UPDATE workflow_queue SET visible_at = :when, taken = NULL, taken_for = :ahead WHERE {_HELD}"""

DONE = f"DELETE FROM workflow_queue WHERE {_HELD}"

CANCEL = "DELETE FROM workflow_queue WHERE namespace = :namespace AND workflow = :workflow"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Database:
    """A connection and the thread that alone uses it; share one between the stores of a file.

    Holding `guard` keeps every `run`, write and `aclose` out. `clock` gives Unix seconds; it is
    read after the write lock is held, and no SQL clock is relied on. Usable from one running
    event loop at a time. `ValueError` naming the setting for a connection no write could be
    durable on: implicit transactions, bound to one thread, `synchronous` below FULL, closed.
    """

    connection: sqlite3.Connection
    guard: asyncio.Lock = field(default_factory=Guard, repr=False, compare=False)
    _: KW_ONLY
    clock: Callable[[], float] = field(default=time.time, repr=False, compare=False)
    _thread: DatabaseThread = field(init=False, repr=False, compare=False)
    _commits: Commits = field(init=False, repr=False, compare=False)
    _watch: Watch = field(init=False, repr=False, compare=False)
    _plain_guard: PlainGuard | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        JSON.encode(None)  # what it imports is not to be missing when a value is there
        thread = opening.thread_of(self.connection)
        now = partial(_reading, self.clock)
        try:
            plain = attached(self.guard, thread)
            file = thread.file
            beside = file is not None and file.writes_ahead
            turnstile = Turnstile(file.path if file else "", thread.busy_timeout / 1000)
            bell = Bell(file.path if file and beside else "")
            commits = Commits(
                thread,
                self.connection,
                now,
                turnstile,
                bell,
                writes_ahead=beside,
                alone=plain is None,
            )
        except BaseException:
            thread.stop()
            raise
        watch = Watch(_look, now)
        watch.listen = partial(bell.listen, partial(_rung, thread, watch))
        thread.answered = commits.tell_others
        thread.together = commits.commit
        thread.at_rest = commits.at_rest
        thread.at_close = partial(_at_close, turnstile, bell)
        if not beside and plain is None:  # else somebody may be at the connection meanwhile
            thread.watch = watch
        commits.on_ready = partial(_announce, thread, watch)
        object.__setattr__(self, "_thread", thread)
        object.__setattr__(self, "_commits", commits)
        object.__setattr__(self, "_watch", watch)
        object.__setattr__(self, "_plain_guard", plain)
        weakref.finalize(self, thread.discard).atexit = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or self._thread.is_own_process:  # a child's fork hides no error here
            await self.aclose()

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on the thread, with nobody else on the connection, and return its result.

        A cancelled caller unwinds at once; the connection is let go only when the thread has
        left it. A transaction left open is rolled back with a `RuntimeError`; an `async` work
        is a `TypeError`. Also `RuntimeError`: called back from inside a work or an effect, from
        a second running loop, or in a forked child. `sqlite3.ProgrammingError` once closed.
        """
        check_not_async(work)

        def handed(job: Job[T]) -> T:
            self._thread.check_file()
            self._commits.at_rest()
            try:
                return self._thread.foreign(lambda: handed_over(self.connection, work))
            except BaseException as error:
                self._commits.doubt(error)
                raise
            finally:
                self._has_been_touched()

        return await self._performed(handed)

    def _has_been_touched(self) -> None:
        """An application's own code was at the file: it may have made something ready."""
        if self._watch.touched():
            self._thread.nudge()

    async def _read(
        self,
        look: Callable[[sqlite3.Connection], T],
        within: float | None = None,
        then: Callable[[], bool] | None = None,
        *,
        after_what_is_owed: bool = False,
    ) -> T:
        """Run a look of the store's own, which takes no write lock, beside the writes.

        It sees every write that was acknowledged before. Others get their turn before `then` is
        called, and before every further call that it asks for by returning `True`.
        `TimeoutError` when it has not begun `within` seconds.
        """
        loop = self._thread.check_caller()
        reader = self._reader()

        seen: T

        def begun(job: Job[T]) -> T:
            job.begin()
            self._thread.check_file()
            job.unfinished = then is not None
            if job.thread is not reader:
                self._commits.at_rest()
                if reader is not None:
                    self._thread.nudge()  # whoever waits from here on is watched for there
            return job.thread.foreign(lambda: look(job.thread.opened()))

        def looked(job: Job[T]) -> T:
            nonlocal seen
            if not job.unfinished:
                seen = begun(job)
            else:
                assert then is not None
                job.unfinished = job.thread.foreign(then)
            return seen

        # What was granted to a caller that has gone is back once the line has come to it (S9).
        if reader is None or (after_what_is_owed and self._thread.owing):
            return await self._performed(looked, within=within)
        return await reader.put(Job(reader, loop, looked)).result(within)

    async def _write(
        self,
        operation: Operation[T],
        undo: Callable[[StoreCursor, float, T], None] | None = None,
        within: float | None = None,
        *,
        durable: bool = True,
        foreign: bool = False,
    ) -> T:
        """Run `operation(cursor, now)` in a transaction: the lock first, then the clock.

        It begins when the thread holds the write lock: if its caller was cancelled by then, nothing
        happens (C17). `undo` gives back what was granted (not `None`) to a caller that never
        heard of it. `durable` and `foreign` are told in `Write`.
        `TimeoutError`, and nothing happens, when it has not begun `within` seconds.
        """

        def undone(value: T) -> None:
            assert undo is not None
            try:
                self._commits.apart(lambda cursor, now: undo(cursor, now, value))
            except Exception as error:
                logger.warning("what a cancelled caller was granted waits to lapse: %r", error)

        thread, guard = self._thread, self._plain_guard
        write: Write[T] = Write(
            thread,
            thread.check_caller(),
            operation,
            undone if undo is not None else None,
            guard.leave if guard is not None else None,
            durable=durable,
            foreign=foreign,
        )
        if guard is None:
            return await thread.put(write).result(within)
        async with guard:
            thread.put(write)
        return await write.result(within)

    def _reader(self) -> Reader | None:
        """The thread that reads beside the writes; `None` where they exclude each other."""
        file = self._thread.file
        if file is None or not file.writes_ahead:
            return None
        return self._thread.with_reader(lambda: Reader(self._thread, self._watch))

    def _apply(self, effect: Callable[[sqlite3.Cursor], T]) -> T:
        """Run somebody's `effect` inside the store's open transaction, which it cannot end."""
        try:
            return self._thread.foreign(lambda: self._commits.fence.run(effect))
        finally:
            self._has_been_touched()

    async def aclose(self) -> None:
        """Wait until nobody is inside, then close on the thread; twice is fine.

        Cancelled while waiting, it leaves the database open. Work that stays inside for more
        than a second is logged.
        """
        self._thread.check_process()
        if self._thread.closed:
            return
        await asyncio.sleep(0)  # let whoever was just cancelled give back what it was granted
        slow = asyncio.get_running_loop().call_later(PATIENCE, _report_waiting)
        try:
            await self._performed(lambda job: job.thread.close())
        except sqlite3.ProgrammingError:
            if not self._thread.closed:
                raise
        finally:
            slow.cancel()

    async def _performed(
        self,
        work: Callable[[Job[T]], T],
        undo: Callable[[T], None] | None = None,
        within: float | None = None,
    ) -> T:
        if self._plain_guard is None:
            return await self._thread.submit(work, undo).result(within)
        self._thread.check_caller()
        async with self._plain_guard:
            job = self._thread.submit(work, undo, self._plain_guard.leave)
        return await job.result(within)


def _look(connection: sqlite3.Connection, namespace: str, now: float) -> Seen:
    ((ready, due),) = rows(connection, LOOK, {"namespace": namespace, "now": now})
    return bool(ready), due


def _announce(thread: DatabaseThread, watch: Watch, namespace: str, moment: float | None) -> None:
    """Have those told who wait for something to become visible, at once or from a moment on."""
    if watch.changed(namespace, moment):
        thread.nudge()


def _rung(thread: DatabaseThread, watch: Watch) -> None:
    """Another process has made something ready: look."""
    if thread.reader is not None:
        watch.touched()
        thread.reader.later(partial(watch.look, thread.reader.opened))


def _at_close(turnstile: Turnstile, bell: Bell) -> None:
    turnstile.close()
    bell.close()


def _reading(clock: Callable[[], float]) -> float:
    """The clock's reading; `ValueError` for one that is no moment."""
    now = clock()
    if not isinstance(now, (int, float)):
        raise TypeError(f"the database's clock must give seconds, not {type(now).__name__}")
    if not 0 <= now < _TOO_LATE:
        raise ValueError(f"the database's clock reads {now!r}, which is no moment since 1970")
    return now


def _report_waiting() -> None:
    logger.warning("aclose waits for work that is still inside the database")


def connect(
    path: Path | str,
    *,
    timeout: Milliseconds = BUSY_TIMEOUT,
    clock: Callable[[], float] = time.time,
) -> Database:
    """Open a file, created if it is not there, so that every commit reaches the disk.

    `path` is a plain path, never a URI; `":memory:"` gives a private store that is not durable.
    `timeout` is how long to wait for other processes' locks, zero included. An error names the
    path and the reason: `sqlite3.NotSupportedError` (SQLite before 3.35, or single-threaded),
    `OperationalError`, `DatabaseError` (not a database; untouched), `ValueError`, `TypeError`.
    """
    connection = opening.opened(path, timeout)
    try:
        return Database(connection, clock=clock)
    except BaseException:
        connection.close()
        raise


async def migrate(database: Database) -> None:
    """Create the tables or bring an older file's up to date, as often and from wherever one likes.

    `sqlite3.NotSupportedError` for a file of a newer schema, `DatabaseError` naming table and
    columns for one of a shape that no release made.
    """
    if not await database._read(schema.is_current):
        await database._write(lambda cursor, now: schema.bring_up_to_date(cursor), foreign=True)


def transacted(connection: sqlite3.Connection, work: Callable[[sqlite3.Cursor], T]) -> T:
    """`work` in a transaction of its own, for an application's use inside `Database.run`.

    Committed when it returns, rolled back when it raises; `work` is held to what `transact`
    holds an effect to: synchronous, and no beginning or ending of transactions.
    """
    check_not_async(work)
    with transaction(connection):
        fence = Fence(connection)
        try:
            return fence.run(work)
        finally:
            fence.lift()


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
        extending = _touching(EXTEND_CLAIM, as_holder(holder) | granted)
        return await self.database._write(extending, durable=False)

    async def renew(self, holder: Pass, alive: timedelta) -> bool:
        check_duration("alive", alive)
        granted = {"alive": alive.total_seconds()}
        renewing = _touching(RENEW, as_holder(holder) | granted)
        return await self.database._write(renewing, durable=False)

    async def record(self, holder: Pass, key: str, value: object) -> Recorded:
        check_step_key(key)
        asked = as_holder(holder)
        encoding, back = self._encoded(holder.workflow, key, value)

        def operation(cursor: StoreCursor, now: float) -> Recorded:
            if not _touched(cursor, SIGN_OF_LIFE, asked | {"now": now}):
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
            if not _touched(cursor, SIGN_OF_LIFE, asked | {"now": now}):
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
        return lambda cursor, now: self._standing(cursor, now, workflow, key, encoding, back).value

    def _standing(
        self,
        cursor: StoreCursor,
        now: float,
        workflow: str,
        key: str,
        encoding: str,
        back: object,
    ) -> Recorded:
        """Write unless the key is recorded; what stands under it, decoded before the commit."""
        stored = _written(cursor, now, workflow, key, encoding)
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
            _written(cursor, now, workflow, key, encoding)
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
        return _touching(RELEASE, as_holder(holder))

    def _encoded(self, workflow: str, key: str, value: object) -> tuple[str, object]:
        encoding, back = encoded(self.codec, workflow, key, value)
        try:
            check_text("the codec's encoding", encoding)
        except (TypeError, ValueError) as error:
            where = f"workflow {shown(workflow)}, key {shown(key)}"
            raise type(error)(f"{where}: {error}") from error
        return encoding, back


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

        def operation(cursor: StoreCursor, now: float) -> bool:
            when = now if self.now is now_utc else as_seconds("now", self.now())
            # A clock of the caller's own may run a little ahead: that is ready all the same (S11).
            return _shown(cursor, now, MAKE_READY, asked | _visible_from(when, now, _CLOCKS_APART))

        return operation

    async def schedule(self, workflow: str, visible_at: datetime) -> None:
        """Move the workflow to `visible_at`, whatever its state: an unconditional move (S10)."""
        when = {"when": as_seconds("visible_at", visible_at)}
        asked = self._row(workflow) | when
        await self.database._write(lambda cursor, now: _shown(cursor, now, SCHEDULE, asked))

    async def wake_at(self, delivery: Delivery, when: datetime) -> None:
        await self.database._write(self._suspending(delivery, when), durable=False)

    def _suspending(self, delivery: Delivery, when: datetime) -> Operation[bool]:
        """`wake_at` as part of a transaction."""
        moment = as_seconds("when", when)
        asked = self._held(delivery)
        return lambda cursor, now: _shown(cursor, now, SUSPEND, asked | _visible_from(moment, now))

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
        return _touching(CANCEL, self._row(workflow))

    async def done(self, delivery: Delivery) -> None:
        await self.database._write(self._answering(delivery), durable=False)

    def _answering(self, delivery: Delivery) -> Operation[bool]:
        """`done` as part of a transaction."""
        return _touching(DONE, self._held(delivery))

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
        asked = {
            "namespace": self.namespace,
            "now": now,
            "until": now + self.lease_seconds,
            "lease": self.lease_seconds,
        }
        for (raw,) in cursor.execute(CLAMP_TAKEN, asked).fetchall():
            with suppress(UnicodeDecodeError):  # the claim's deadlines lie as far ahead
                cursor.execute(CLAMP_CLAIM, {"workflow": raw.decode(), "now": now})
        deliveries: list[Delivery] = []
        while len(deliveries) < limit:
            receipt = Receipt.until(now + self.lease_seconds)
            taken = cursor.execute(TAKE, asked | {"nonce": receipt.nonce}).fetchall()
            if not taken:
                break
            ((raw, is_text),) = taken
            try:
                if is_text:
                    deliveries.append(Delivery(raw.decode(), str(receipt)))
                    continue
            except UnicodeDecodeError:
                pass
            logger.error(
                "queue %s holds an id that is not text, %s: set aside for a lease",
                shown(self.namespace),
                shown(raw),
            )
        return deliveries

    def _put_back(self, cursor: StoreCursor, now: float, delivery: Delivery | None) -> None:
        assert delivery is not None
        _shown(cursor, now, SUSPEND, self._held(delivery) | _visible_from(now, now))


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


def _visible_from(moment: float, now: float, ahead: float = 0) -> dict[str, float | None]:
    """Visible from a moment on; ready, if that lies no more than `ahead` seconds ahead.

    What is ready has `ahead` 0, which lets `CLAMP_TAKEN` bring it back to the present; a sleeper's
    `None` keeps its moment.
    """
    return {"when": moment, "ahead": 0 if moment <= now + ahead else None}


def _touched(cursor: sqlite3.Cursor, statement: str, asked: dict[str, Any]) -> bool:
    return cursor.execute(statement, asked).rowcount > 0


def _shown(cursor: StoreCursor, now: float, statement: str, asked: dict[str, Any]) -> bool:
    """Make a row visible from `when` on, and have those told who wait for that."""
    touched = _touched(cursor, statement, asked)
    if touched:
        at_once = asked.get("ahead") == 0 or asked["when"] <= now
        moment = None if at_once else asked["when"]
        soon = at_once or asked["when"] < now + 2 * QUIET
        cursor.readied.append((asked["namespace"], moment, soon))
    return touched


def _touching(statement: str, asked: dict[str, Any]) -> Operation[bool]:
    """An operation of one statement: whether it touched a row."""
    return lambda cursor, now: _touched(cursor, statement, asked | {"now": now})


def _read(cursor: sqlite3.Cursor, workflow: str, key: str) -> str | None:
    for (raw,) in cursor.execute(READ, {"workflow": workflow, "key": key}).fetchall():
        return text(workflow, f"what is stored under {shown(key)}", raw)
    return None


def _written(cursor: StoreCursor, now: float, workflow: str, key: str, encoding: str) -> str:
    """Write unless the key is recorded; the encoding that is stored, either way."""
    record = {"workflow": workflow, "key": key, "value": encoding}
    if _touched(cursor, WRITE, record | {"written_at": _stamp(cursor, workflow, now)}):
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
        cursor.execute(CLOCK_WAS_SET_BACK, {"version": schema.VERSION, "latest": latest})
    own: float
    ((own,),) = cursor.execute(LATEST_OF_WORKFLOW, {"workflow": workflow}).fetchall()
    return max(now, own)


def _next_position(cursor: sqlite3.Cursor, workflow: str) -> int:
    """Past the table's highest `seq`, and past every inbox key the workflow holds (C13)."""
    position: int
    ((position,),) = cursor.execute(NEXT_SEQ).fetchall()
    beyond = {"workflow": workflow, "first": inbox_key(0), "beyond": inbox_key(INBOX_COUNTED)}
    for (raw,) in cursor.execute(INBOX_KEYS, beyond):
        held = inbox_position(raw.decode(errors="replace"))
        if held is not None:
            return max(position, held + 1)
    return position
