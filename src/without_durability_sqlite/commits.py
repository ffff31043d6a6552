"""Group commit: the writes that wait share one transaction, and its one wait for the disk.

A write travels like this: its caller puts it in the thread's line; the thread takes all that wait
there, up to a bound, and hands them to `Commits`; they run one after another in one transaction;
after its commit, and not before, each caller is answered. What one of them does wrong is its own:
its changes are taken back and the others stay. Where they cannot stay, because the transaction
itself is gone, they run again without it.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias, TypeVar

from .bell import Bell
from .errors import operational_error, primary_code
from .jobs import Job
from .rows import rows
from .thread import DatabaseThread
from .transactions import SAVEPOINT, Fence, roll_back
from .turnstile import Turnstile

T = TypeVar("T")

NORMAL = 1
"""The level of `PRAGMA synchronous` at which a commit in a write-ahead log syncs nothing."""

UNSYNCED = 500
"""How many commits may leave their sync to a later one."""

SPAN = 0.005
"""Seconds after which a transaction takes no further writes in."""

logger = logging.getLogger("without_durability_sqlite")


Readied: TypeAlias = tuple[str, float | None, bool]
"""What was made visible: its namespace, from when on (`None`: now), and whether that is soon."""


class StoreCursor(sqlite3.Cursor):
    """The cursor that all of a transaction use, and what they know of it."""

    latest: float | None = None
    """The moment of the newest record, once somebody has asked the file for it."""

    readied: list[Readied]
    """What was made visible in the transaction."""

    ended: list[str]
    """The workflows that came to an end in it."""


class Write(Job[T]):
    """A write in line: an operation on a cursor, given the moment.

    One that is not `durable` need not be on the disk when it returns. One that is `foreign` runs
    an application's code, which may do anything before it fails.
    """

    __slots__ = ("durable", "foreign")

    shares = True

    def __init__(
        self,
        thread: DatabaseThread,
        loop: asyncio.AbstractEventLoop,
        operation: Callable[[StoreCursor, float], T],
        undo: Callable[[T], None] | None = None,
        after: Callable[[], None] | None = None,
        *,
        durable: bool = True,
        foreign: bool = False,
    ) -> None:
        super().__init__(thread, loop, operation, undo, after)
        self.durable = durable
        self.foreign = foreign

    def _do(self, cursor: StoreCursor, now: Callable[[], float]) -> T:
        self.begin()
        return self._work(cursor, now())


class Spoilt(Exception):
    """A member's failure took the whole transaction with it."""


class Commits:
    """Commits writes on the thread of a database, many at a time."""

    def __init__(
        self,
        thread: DatabaseThread,
        connection: sqlite3.Connection,
        now: Callable[[], float],
        turnstile: Turnstile,
        bell: Bell,
        *,
        writes_ahead: bool,
        alone: bool,
    ) -> None:
        self._alone = alone  # nobody uses the connection behind the thread's back
        self.now = now
        self.on_ready: Callable[[str, float | None], None] = _nobody_waits
        self.on_end: Callable[[list[str]], None] = _nobody_waits
        self.fence = Fence(connection)
        self._thread = thread
        self._connection = connection
        self._turnstile = turnstile
        self._bell = bell
        self._ring = False
        # In a write-ahead log a commit may leave its sync to a later one.
        self._full = rows(connection, "PRAGMA synchronous")[0][0]
        self._relaxed = NORMAL if writes_ahead and alone else self._full
        self._unsynced = 0
        self._cursor: StoreCursor | None = None
        self._level: int | None = self._full
        self._checkpoint = rows(connection, "PRAGMA wal_autocheckpoint")[0][0]
        self._doubtful = False
        self._effects_take_long = False

    def commit(self, writes: list[Write[Any]]) -> list[Write[Any]]:
        """Commit them together; each keeps its own result or its own error.

        Those that are left have not run, for the others took long enough.
        """
        if not writes:
            return []
        with self._turnstile:
            return self._together(writes)

    def apart(self, operation: Callable[[StoreCursor, float], object]) -> None:
        """A transaction of its own, which need not be durable and which nobody waits for."""
        if not self._alone and self._connection.in_transaction:
            raise operational_error("somebody holds the guard", "SQLITE_BUSY")
        self._end_what_was_left()
        self._wait_for_disk(durable=False)
        try:
            with self._turnstile, self._transaction() as cursor:
                operation(cursor, self.now())
        except sqlite3.Error as error:
            self.doubt(error)
            raise
        self._unsynced += 1
        self._tell(cursor.readied, cursor.ended)

    def at_rest(self) -> None:
        """Make the connection what others may use: no transaction open, and every commit durable.

        A transaction is left open when a write's own rollback failed, or when somebody who held
        the guard began one and left: nobody is in it any more.
        """
        self._end_what_was_left()
        self._wait_for_disk(durable=True)
        self.fence.lift()

    def _end_what_was_left(self) -> None:
        if self._connection.in_transaction:
            logger.warning("a transaction that was left open is rolled back")
            roll_back(self._connection)

    def _together(self, writes: list[Write[Any]]) -> list[Write[Any]]:
        """Commit them in one transaction, or one by one after all; those that are left."""
        # Now and then one that need not be durable is: SQLite checkpoints after those only.
        durable = self._unsynced >= UNSYNCED or any(write.durable for write in writes)
        ran: list[Write[Any]] = []
        try:
            self._end_what_was_left()
            self._trust_the_log()
            self._wait_for_disk(durable)
            with self._transaction() as cursor:
                self._thread.check_file()
                began = time.monotonic()
                for write in writes:
                    if ran and self._is_long_enough(began, write):
                        break
                    ran.append(write)
                    self._run(cursor, write, alone=len(writes) == 1)
        except Spoilt:  # by the last of those that ran, which keeps its error
            self._one_by_one(ran[:-1])
        except BaseException as error:
            self.doubt(error)
            if len(ran) > 1:
                self._one_by_one(ran)
            else:
                ran = ran or writes
                for write in ran:
                    write.fail(error if len(ran) == 1 else copied(error))
        else:
            self._unsynced = 0 if durable else self._unsynced + 1
            self._tell(cursor.readied, cursor.ended)
        return writes[len(ran) :]

    def _one_by_one(self, writes: list[Write[Any]]) -> None:
        for write in writes:
            self._together([write])

    @contextmanager
    def _transaction(self) -> Iterator[StoreCursor]:
        """A transaction under the write lock, on a cursor that the next one uses again.

        Committed, or all of it rolled back: no failing rollback hides what went wrong.
        """
        cursor = self._cursor
        if cursor is None:
            cursor = self._cursor = self._connection.cursor(StoreCursor)
            cursor.row_factory = None
        cursor.latest, cursor.readied, cursor.ended = None, [], []
        try:
            cursor.execute("BEGIN IMMEDIATE")
            yield cursor
            cursor.execute("COMMIT")
        except BaseException:
            self._cursor = None
            with suppress(Exception):
                cursor.close()  # a statement left half-read would block the end
                roll_back(self._connection)
            raise

    def _is_long_enough(self, began: float, following: Write[Any]) -> bool:
        """Whether to commit before the next one: others wait, here and in other processes."""
        if following.foreign and self._effects_take_long:
            return True
        return time.monotonic() - began >= SPAN

    def _run(self, cursor: StoreCursor, write: Write[Any], *, alone: bool) -> None:
        """Run one of them; one that fails leaves nothing behind, or `Spoilt` is raised."""
        revocable = write.foreign and not alone
        if revocable:
            cursor.execute(f"SAVEPOINT {SAVEPOINT}")
        before = self._connection.total_changes
        began = time.monotonic() if write.foreign else 0.0
        error = write.attempt(cursor, self.now)
        if write.foreign:
            self._effects_take_long = time.monotonic() - began >= SPAN
            if not self._alone:
                self.fence.lift()
        if error is not None:
            write.fail(error)
            if not self._connection.in_transaction:
                raise Spoilt
            if revocable:
                try:
                    cursor.execute(f"ROLLBACK TO {SAVEPOINT}")
                except BaseException:
                    raise Spoilt from error
            elif alone or self._connection.total_changes != before:
                raise Spoilt
        if revocable:
            cursor.execute(f"RELEASE {SAVEPOINT}")

    def _wait_for_disk(self, durable: bool) -> None:
        """Whether the next commit syncs, or leaves that to whoever commits durably after it."""
        level = self._full if durable else self._relaxed
        if level != self._level:
            relaxing = not durable and self._level == self._full
            self._level = None  # until it is known to have been set
            self._connection.execute(f"PRAGMA synchronous = {level}")
            if relaxing:
                ((self._checkpoint,),) = rows(self._connection, "PRAGMA wal_autocheckpoint")
            # A checkpoint would sync what is not synced yet, and hide a failure.
            checkpoint = self._checkpoint if durable else 0
            self._connection.execute(f"PRAGMA wal_autocheckpoint = {checkpoint}").close()
            self._level = level

    def doubt(self, error: BaseException) -> None:
        """Take note of an error that may have been a failed sync."""
        if isinstance(error, sqlite3.Error):
            self._doubtful |= primary_code(error) == sqlite3.SQLITE_IOERR

    def _trust_the_log(self) -> None:
        """After a failed sync, start the log afresh before anything is called durable again.

        What others left to a later sync may be lost on the disk although that sync succeeds: the
        system reports a failure once. What then follows in the log would be lost with it.
        """
        if self._doubtful:
            ((busy, _, _),) = rows(self._connection, "PRAGMA wal_checkpoint(TRUNCATE)")
            if busy:
                raise operational_error(
                    "the disk failed to sync, and the log cannot be written afresh while others "
                    "read it",
                    "SQLITE_BUSY",
                )
            self._doubtful = False

    def _tell(self, readied: list[Readied], ended: list[str]) -> None:
        for namespace, moment, soon in dict.fromkeys(readied):
            self._ring |= soon
            self.on_ready(namespace, moment)
        if ended:
            self.on_end(ended)

    def tell_others(self) -> None:
        """Once the callers are answered: ring if something was made ready."""
        if self._ring:
            self._ring = False
            self._bell.ring()


def copied(error: BaseException) -> BaseException:
    """The same error for somebody else, where one can be made: it collects its raiser's frames."""
    try:
        another = type(error)(*error.args)
    except Exception:  # it wants to be made in a way of its own
        return error
    another.__dict__.update(error.__dict__)
    return another


def _nobody_waits(*_: object) -> None:
    pass
