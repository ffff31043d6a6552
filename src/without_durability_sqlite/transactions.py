"""One transaction around the store's own statements, and a fence around somebody else's."""

from __future__ import annotations

import inspect
import os
import sqlite3
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import Any, Self, TypeVar

from without_durability.checks import check_synchronous

T = TypeVar("T")

SAVEPOINT = f"without_durability_{os.urandom(4).hex()}"
"""What a write that runs an application's code in a shared transaction is taken back to.

No code knows the name.
"""

_FENCED = f"/* {os.urandom(4).hex()} */ "
"""Marks the statements that effects run, so that none of them was compiled outside a fence.

The driver keeps compiled statements by their text, and a compiled one asks no authorizer.
"""

_FACTORIES = ("row_factory", "text_factory")
_ASYNCHRONOUS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_MODES = ("autocommit", "isolation_level") if sys.version_info >= (3, 12) else ("isolation_level",)


class FencedCursor(sqlite3.Cursor):
    """The cursor an effect is handed: it runs nothing once the transaction is over.

    A conflict clause ends a transaction without asking the authorizer, and a statement compiled
    before that is not asked about either: it would commit by itself.
    """

    made: weakref.WeakSet[Any]
    """Every cursor and blob of the same effect: none of them outlives it."""

    @property
    def connection(self) -> Any:
        return FencedConnection(super().connection, self.made)

    def execute(self, sql: str, *arguments: Any) -> FencedCursor:
        self._check_transaction()
        return super().execute(_FENCED + sql, *arguments)

    def executemany(self, sql: str, *arguments: Any) -> FencedCursor:
        self._check_transaction()
        return super().executemany(_FENCED + sql, *arguments)

    def _check_transaction(self) -> None:
        if not super().connection.in_transaction:
            raise sqlite3.OperationalError("the effect's transaction is over: nothing runs in it")


class FencedConnection:
    """The connection as an effect sees it: every cursor made through it is a `FencedCursor`.

    It stands for a `sqlite3.Connection` and is none: `isinstance` says so.
    """

    def __init__(self, connection: sqlite3.Connection, made: weakref.WeakSet[Any]) -> None:
        object.__setattr__(self, "_connection", connection)  # our own __setattr__ writes through
        object.__setattr__(self, "_made", made)

    def cursor(self, factory: type[FencedCursor] = FencedCursor) -> FencedCursor:
        if factory is not FencedCursor:
            raise RuntimeError("an effect's cursors are the store's own: no factory of one's own")
        cursor: FencedCursor = self._connection.cursor(FencedCursor)
        cursor.made = self._made
        self._made.add(cursor)
        return cursor

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        return self.cursor().execute(sql, *arguments)

    def executemany(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        return self.cursor().executemany(sql, *arguments)

    def blobopen(self, *arguments: Any, **named: Any) -> sqlite3.Blob:
        blob = self._connection.blobopen(*arguments, **named)
        self._made.add(blob)
        return blob  # type: ignore[no-any-return]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """No commit: the transaction is the store's. A rollback is refused."""
        if kind is not None:
            self.rollback()

    def commit(self) -> None:
        """Refused aloud: where the driver leaves transactions alone, its own does nothing."""
        self.execute("COMMIT")

    def rollback(self) -> None:
        """Refused, as `commit` is: what an effect believes undone must not be kept."""
        self.execute("ROLLBACK")

    def __getattr__(self, name: str) -> Any:
        if name in ("close", "set_authorizer"):
            raise RuntimeError(f"an effect may not call {name} on the connection it runs on")
        return getattr(self._connection, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "autocommit" and value != self._connection.autocommit:
            self.commit()  # which is what the driver would answer one of the two changes with
        elif name not in _MODES:  # the transaction, which others share, is the store's
            setattr(self._connection, name, value)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction under the write lock: committed, or all of it rolled back.

    The caller sees the original error: a rollback that SQLite already did by itself (a full
    disk) is not attempted again, and no failing rollback hides what went wrong.
    """
    modes = _state(connection, _MODES)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(Exception):
            roll_back(connection)
        raise
    finally:
        _restore(connection, modes)


def roll_back(connection: sqlite3.Connection) -> None:
    """End a transaction that is open, also one that an earlier attempt failed to end."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


class Fence:
    """Lets an application's code into an open transaction, which it cannot end, nest or outlive.

    One fence stands until others may use the connection: putting one up makes SQLite compile every
    statement anew.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._inside = self._stands = self._tried = False
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()

    def run(self, effect: Callable[[sqlite3.Cursor], T]) -> T:
        """What `effect` returns; savepoints of its own are its own business.

        Raises `RuntimeError` when it tried to end the transaction, whether or not it swallowed the
        refusal, and `TypeError` when it is asynchronous.
        """
        connection = self._connection
        if not self._stands:
            connection.set_authorizer(self._authorize)
            self._stands = True
        state = _state(connection, _FACTORIES)
        self._inside, self._tried = True, False
        try:
            result = effect(FencedConnection(connection, self._made).cursor())
            check_synchronous(result)
        except sqlite3.Error as error:
            if self._tried:
                raise RuntimeError(_ENDED) from error
            raise
        finally:
            self._inside = False
            while self._made:
                self._made.pop().close()
            _restore(connection, state)
        if self._tried or not connection.in_transaction:
            raise RuntimeError(_ENDED)
        return result

    def lift(self) -> None:
        """Take it down before others use the connection."""
        if self._stands:
            self._connection.set_authorizer(None)
            self._stands = False

    def _authorize(self, action: int, _: str | None, savepoint: str | None, *__: object) -> int:
        if not self._inside:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_TRANSACTION or (
            action == sqlite3.SQLITE_SAVEPOINT and (savepoint or "").lower() == SAVEPOINT
        ):
            self._tried = True
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK if self._connection.in_transaction else sqlite3.SQLITE_DENY


_ENDED = (
    "the effect tried to begin or end a transaction (before Python 3.12 executescript does), or a "
    "conflict clause rolled it back: nothing of it is kept"
)


def handed_over(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run `work` on the connection and take the connection back as it was handed over.

    A transaction left open is rolled back, and a statement left half-read, which would block later
    writes, is let go: each with a `RuntimeError` where `work` raised nothing.
    """
    state = _state(connection, _FACTORIES + _MODES)
    was_reading = is_reading(connection)
    try:
        result = work(connection)
        check_synchronous(result)
        left_open = connection.in_transaction
        roll_back(connection)
        if not was_reading and is_reading(connection):
            del result  # and with it, most likely, the cursor
            raise RuntimeError(
                "the work left a cursor half-read or a blob open, which blocks later writes: fetch "
                "all rows, or close it"
            )
    except BaseException as error:
        let_go(error)
        with suppress(Exception):
            roll_back(connection)
        raise
    finally:
        _restore(connection, state)
    if left_open:
        raise RuntimeError(
            "the work left a transaction open, which was rolled back: commit it, or use transacted"
        )
    return result


def is_reading(connection: sqlite3.Connection) -> bool:
    """Whether a statement is under way: SQLite then refuses to replace a collation.

    There must be one to replace: the first call makes it and cannot tell.
    """
    try:
        connection.create_collation("without_durability", _collate)
    except sqlite3.OperationalError:
        return True
    return False


def _collate(one: str, other: str) -> int:
    return (one > other) - (one < other)


def check_not_async(work: Callable[..., object]) -> None:
    """`TypeError` for an `async` function, before anything of it runs."""
    if type(work) is FunctionType:  # most are, and `inspect` takes its time
        asynchronous = bool(work.__code__.co_flags & _ASYNCHRONOUS)
    else:
        asynchronous = any(
            inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call)
            for call in (work, type(work).__call__)
        )
    if asynchronous:
        raise TypeError(f"{work!r} is async: work on a database is synchronous, on its thread")


def let_go(error: BaseException | None) -> None:
    """Clear the frames an error keeps alive: a half-read cursor in one of them blocks the file.

    Its statement would stay active for as long as somebody holds on to the error: no commit
    succeeds beside an unfinished write, and an unfinished read keeps an old state of the file.
    The price is the locals that a debugger would show. Coroutines are left alone: before Python
    3.13 clearing the frame of a suspended one closes it.
    """
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        one = chain.pop()
        if one is None or id(one) in seen:  # `raise error from error` makes a ring
            continue
        seen.add(id(one))
        for frame, _ in traceback.walk_tb(one.__traceback__):
            if not frame.f_code.co_flags & _ASYNCHRONOUS:
                with suppress(RuntimeError):  # it is running still
                    frame.clear()
        chain += (one.__cause__, one.__context__)
        if isinstance(one, BaseExceptionGroup):
            chain += one.exceptions


def _state(connection: sqlite3.Connection, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(connection, name) for name in names}


def _restore(connection: sqlite3.Connection, state: dict[str, Any]) -> None:
    for name, value in state.items():
        current = getattr(connection, name)
        if current is not value and current != value:
            setattr(connection, name, value)
