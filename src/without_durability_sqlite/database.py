"""The connection of a file and the threads that alone use it."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
import weakref
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

from without_durability.codec import JSON
from without_durability.durations import Milliseconds

from . import opening, schema
from .bell import Bell
from .commits import Commits, StoreCursor, Write
from .endings import Endings
from .guard import Guard, PlainGuard, attached
from .jobs import Job
from .operations import Operation
from .reading import Reader
from .rows import rows
from .statements import LOOK, TOO_LATE
from .thread import PATIENCE, DatabaseThread
from .transactions import Fence, check_not_async, handed_over, transaction
from .turnstile import Turnstile
from .watching import Seen, Watch

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

BUSY_TIMEOUT = Milliseconds(5000)
"""How long a write waits for another process's write lock."""

logger = logging.getLogger("without_durability_sqlite")


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
    _endings: Endings = field(init=False, repr=False, compare=False, default_factory=Endings)
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
        commits.on_end = self._endings.tell
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
    if not 0 <= now < TOO_LATE:
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
    path and the reason: `sqlite3.NotSupportedError` (SQLite before 3.35, or single-threaded; a
    file of UTF-16), `OperationalError`, `DatabaseError` (not a database), `ValueError`,
    `TypeError`. What is refused is left as it was.
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
        await database._write(schema.bring_up_to_date, foreign=True)


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
