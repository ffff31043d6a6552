"""Writes that share a transaction: a thread held until they wait, and every statement in view."""

from __future__ import annotations

import asyncio
import math
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from gated import turns
from stores import Stores, over_sqlite
from thread_gates import HANG, in_time, occupied, until
from without_durability import Clock, Pass, claimed
from without_durability_sqlite import Database, commits
from without_durability_sqlite.errors import operational_error

Before: TypeAlias = Callable[[str, Any], object]
"""Told a statement and what is bound to it: it may wait, look or raise."""


class Interposed(sqlite3.Connection):
    """Tells `before` of every statement that is about to run on it, on whatever cursor."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.before: Before | None = None
        super().__init__(*arguments, **settings)

    def cursor(self, factory: type[sqlite3.Cursor] = sqlite3.Cursor) -> sqlite3.Cursor:
        cursor = super().cursor(interposed(factory))
        cursor.source = self  # type: ignore[attr-defined]
        return cursor

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        return self.cursor().execute(sql, *arguments)

    def look(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query of the test's own, which `before` is not told of."""
        cursor = super().cursor()
        cursor.row_factory = None
        return cursor.execute(query).fetchall()


class InterposedCursor(sqlite3.Cursor):
    source: Interposed

    def execute(self, sql: str, *arguments: Any) -> Any:
        if self.source.before is not None:
            self.source.before(sql, arguments[0] if arguments else None)
        return super().execute(sql, *arguments)


@cache
def interposed(factory: type[sqlite3.Cursor]) -> type[sqlite3.Cursor]:
    return type("Interposed" + factory.__name__, (InterposedCursor, factory), {})


TABLES = """
CREATE TABLE app (name TEXT, value BLOB);
CREATE TABLE once (name TEXT UNIQUE ON CONFLICT ROLLBACK);
CREATE TABLE parent (name TEXT PRIMARY KEY);
CREATE TABLE child (parent TEXT REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
INSERT INTO once VALUES ('taken');
"""


@asynccontextmanager
async def interposed_stores(path: Path, migrated: Path, clock: Clock) -> AsyncIterator[Stores]:
    """Stores over an `Interposed` connection, in a file with the tables that effects write to."""
    shutil.copyfile(migrated, path)
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, factory=Interposed
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.executescript(TABLES)
    with unhurried():
        async with Database(connection, clock=clock.seconds) as database:
            yield over_sqlite(database, clock)


@contextmanager
def unhurried() -> Iterator[None]:
    """However long a transaction takes, it goes on to take in all that wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, "SPAN", math.inf)
        yield


def of(stores: Stores) -> Database:
    return stores.checkpointer.database


def connection_of(stores: Stores) -> Interposed:
    connection = of(stores).connection
    assert isinstance(connection, Interposed)
    return connection


@asynccontextmanager
async def waiting(
    database: Database, *calls: Awaitable[Any]
) -> AsyncIterator[list[asyncio.Future[Any]]]:
    """The calls, in line behind work that keeps the thread; they go on when this ends."""
    gate, ahead = await occupied(database)
    tasks = [asyncio.ensure_future(call) for call in calls]
    await turns()
    yield tasks
    gate.opened.set()
    await in_time(ahead)


async def together(database: Database, *calls: Awaitable[Any]) -> list[Any]:
    """What each of the calls, all of which wait at once, came to: a value or an error."""
    async with waiting(database, *calls) as tasks:
        pass
    return await came_to(tasks)


async def came_to(tasks: list[asyncio.Future[Any]]) -> list[Any]:
    outcomes: list[Any] = await in_time(asyncio.gather(*tasks, return_exceptions=True))
    return outcomes


@contextmanager
def statements(connection: Interposed) -> Iterator[list[str]]:
    """The statements that are run on it meanwhile, in their order."""
    ran: list[str] = []
    connection.before = lambda sql, _: ran.append(sql)
    yield ran
    connection.before = None


class Halt:
    """Keeps the thread at the n-th statement that holds a text, until it is opened."""

    def __init__(self, connection: Interposed, text: str, n: int = 1) -> None:
        self._left = n
        self._text = text
        self.reached = threading.Event()
        self.opened = threading.Event()
        connection.before = self._before

    def _before(self, sql: str, _: object) -> None:
        self._left -= self._text in sql
        if self._left == 0 and not self.reached.is_set():
            self.reached.set()
            assert self.opened.wait(HANG)

    async def there(self) -> None:
        await until(self.reached.is_set)


class FailsAt:
    """Fails at statements that hold a text, so many times, and has what it raised."""

    def __init__(
        self,
        connection: Interposed,
        text: str,
        times: int = 1,
        error: Callable[[], BaseException] = lambda: operational_error(
            "disk I/O error", "SQLITE_IOERR"
        ),
        bound: Callable[[Any], bool] = lambda _: True,
    ) -> None:
        self.raised: list[BaseException] = []
        self._text, self._times, self._error, self._bound = text, times, error, bound
        connection.before = self._before

    def _before(self, sql: str, bound: Any) -> None:
        if self._text in sql and len(self.raised) < self._times and self._bound(bound):
            self.raised.append(self._error())
            raise self.raised[-1]


def writes(name: str) -> Callable[[sqlite3.Cursor], object]:
    """An effect that writes a row, and returns its name."""

    def effect(cursor: sqlite3.Cursor) -> object:
        cursor.execute("INSERT INTO app (name) VALUES (?)", (name,))
        return name

    return effect


async def holder_of(stores: Stores, workflow: str) -> Pass:
    return await claimed(stores.checkpointer, workflow)


def app(stores: Stores) -> list[str]:
    """What effects have left behind, as another connection sees it."""
    return [name for (name,) in seen(stores, "SELECT name FROM app ORDER BY rowid")]


def seen(stores: Stores, query: str) -> list[tuple[Any, ...]]:
    """Rows as another process would see them."""
    (path,) = [file for *_, file in connection_of(stores).look("PRAGMA database_list")][:1]
    other = sqlite3.connect(path, isolation_level=None)
    try:
        return other.execute(query).fetchall()
    finally:
        other.close()
