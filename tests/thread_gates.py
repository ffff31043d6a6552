"""Gates for work on a database's thread, and databases under either kind of guard."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gated import turns
from without_durability_sqlite import Database, SqliteCheckpointer, migrate

HANG = 10.0
"""Seconds that bound a hang; no test waits for them to pass."""

NOW = timedelta(0)
THREAD = "without_durability_sqlite"


class Gate:
    """Work that says when it is inside and stays there until it is opened."""

    def __init__(self, then: Callable[[], object] = lambda: "done") -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.left = threading.Event()
        self.then = then

    def __call__(self, subject: Any) -> object:
        self.entered.set()
        assert self.opened.wait(HANG), "nobody opened the gate"
        self.left.set()
        return self.then()

    async def reached(self) -> None:
        await until(self.entered.is_set)


async def occupied(
    database: Database, then: Callable[[], object] = lambda: "done"
) -> tuple[Gate, asyncio.Task[object]]:
    """A call that is inside until its gate is opened."""
    gate = Gate(then)
    task = asyncio.create_task(database.run(gate))
    await gate.reached()
    return gate, task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG):
        while not condition():
            await asyncio.sleep(0.001)


async def stays_outside(*tasks: asyncio.Future[Any]) -> None:
    """Give every thread and the loop their turns: who could get past has done so by then."""
    for _ in range(20):
        await asyncio.to_thread(int)
        await turns(5)
    assert not any(one.done() for one in tasks), "it went ahead past somebody who was inside"


async def reading(database: Database) -> sqlite3.Connection:
    """The connection that reads beside the writes, which the first read opens."""
    await SqliteCheckpointer(database).load("nobody's")
    reader = database._thread.reader
    assert reader is not None
    assert reader.connection is not None
    return reader.connection


class Stop:
    """Keeps a thread of the database where it is about to run the n-th statement, until opened.

    The statements of all the connections are counted; `at` is the one it came to be at.
    """

    def __init__(self, n: int, *connections: sqlite3.Connection) -> None:
        self._left, self.begun = n, False
        self._lock = threading.Lock()
        self.at: sqlite3.Connection | None = None
        self.reached, self.opened = threading.Event(), threading.Event()
        for connection in connections:
            connection.set_trace_callback(partial(self._traced, connection))

    def _traced(self, connection: sqlite3.Connection, sql: str) -> None:
        with self._lock:
            self._left -= 1
            left = self._left
        if left == 0:
            self.at = connection
            self.reached.set()
            self.opened.wait(HANG)
        elif left > 0 and sql == "BEGIN IMMEDIATE":
            self.begun = True  # an operation begins when it holds the write lock

    async def stands(self, task: asyncio.Future[Any]) -> bool:
        """Whether the thread has come to it, or else the task to its end."""
        while not (self.reached.is_set() or task.done()):
            await asyncio.sleep(0.0002)
        return self.reached.is_set()


async def running(
    connection: sqlite3.Connection, statement: str, task: asyncio.Future[Any]
) -> None:
    """Have the task come to a statement that holds this text, and not to its end."""
    reached = threading.Event()
    connection.set_trace_callback(lambda sql: reached.set() if statement in sql else None)
    await until(lambda: reached.is_set() or task.done())
    await turns()
    assert not task.done(), f"it did not stay at {statement}"


async def in_time(awaitable: Any) -> Any:
    async with asyncio.timeout(HANG):
        return await awaitable


def plain(path: Path, **settings: Any) -> sqlite3.Connection:
    return sqlite3.connect(path, **{"isolation_level": None, "check_same_thread": False} | settings)


def database_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


async def twenty(database: Database, workflow: str) -> int:
    """Twenty calls at once, so that all but one wait; how many records there are afterwards."""
    store = SqliteCheckpointer(database)
    await in_time(asyncio.gather(*(store.supply(workflow, str(n), n) for n in range(20))))
    return len(await store.load(workflow))


def own_guard() -> tuple[asyncio.Lock, ...]:
    return ()


def plain_lock() -> tuple[asyncio.Lock, ...]:
    return (asyncio.Lock(),)


# An `asyncio.Lock` of the caller's own does not know that the loop of its holder has ended.
own_guard_only = pytest.mark.parametrize("loopless", [own_guard], indirect=True)


def fail(error: BaseException) -> Callable[..., Any]:
    def failing(*_: object) -> Any:
        raise error

    return failing


CALLS: dict[str, Callable[[Database], Any]] = {
    "run": lambda database: database.run(lambda connection: 1),
    "supply": lambda database: SqliteCheckpointer(database).supply("v", "k", 1),
    "load": lambda database: SqliteCheckpointer(database).load("v"),
    "migrate": lambda database: migrate(database),
    "guard": lambda database: database.guard.acquire(),
    "aclose": lambda database: database.aclose(),
}


def directly(coroutine: Any, loop: asyncio.AbstractEventLoop) -> object:
    own = asyncio.new_event_loop()
    try:
        return own.run_until_complete(asyncio.wait_for(coroutine, 3))
    finally:
        own.close()


def through_the_loop(coroutine: Any, loop: asyncio.AbstractEventLoop) -> object:
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result(3)
