"""One `Database` and several event loops: one after another, torn down, or at once (sqlite.md)."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from without_durability import LEASE
from without_durability_sqlite import Database, SqliteCheckpointer, connect, migrate

HANG = 3.0
THREAD = "without_durability_sqlite"


class Gate:
    """Work that says when it is inside and stays there until it is opened."""

    def __init__(self, then: Callable[[], object] = lambda: "done") -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.then = then

    def __call__(self, subject: Any) -> object:
        self.entered.set()
        assert self.opened.wait(HANG), "nobody opened the gate"
        return self.then()

    async def reached(self) -> None:
        async with asyncio.timeout(HANG):
            while not self.entered.is_set():
                await asyncio.sleep(0.001)


def own_guard(path: Path) -> Database:
    return connect(path)


def plain_lock(path: Path) -> Database:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    return Database(connection, asyncio.Lock())


@pytest.fixture(params=[own_guard, plain_lock], ids=lambda make: make.__name__)
def database(request: pytest.FixtureRequest, path: Path) -> Iterator[Database]:
    """A module-level database, so to speak: made outside any loop and closed from a last one."""
    database = request.param(path)
    asyncio.run(migrate(database))
    yield database
    try:
        asyncio.run(in_time(database.aclose()))
    except (TimeoutError, RuntimeError):  # a test that found it unusable has said so already
        database._thread.later(database._thread.close)


# An `asyncio.Lock` of the caller's own does not know that the loop of its holder has ended.
default_guard_only = pytest.mark.parametrize("database", [own_guard], indirect=True)


async def in_time(awaitable: Any) -> Any:
    async with asyncio.timeout(HANG):
        return await awaitable


async def supplied(database: Database, workflow: str, count: int = 20) -> dict[str, object]:
    records = SqliteCheckpointer(database)
    await in_time(asyncio.gather(*(records.supply(workflow, str(n), n) for n in range(count))))
    return await records.load(workflow)


@contextmanager
def new_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        loop.close()


def fail(error: BaseException) -> Callable[[], object]:
    def failing() -> object:
        raise error

    return failing


def test_k24_two_loops_one_after_another_are_both_served(database):
    assert len(asyncio.run(supplied(database, "a"))) == 20
    assert len(asyncio.run(supplied(database, "b"))) == 20


def test_a_loop_that_merely_stopped_counts_as_ended(database):
    with new_loop() as first, new_loop() as second:
        assert len(first.run_until_complete(supplied(database, "a"))) == 20
        assert len(second.run_until_complete(supplied(database, "b"))) == 20
        assert len(first.run_until_complete(supplied(database, "c"))) == 20


def test_a_loop_stopped_with_a_thread_inside_keeps_no_later_one_waiting(database):
    gate = Gate()
    with new_loop() as first:
        task = first.create_task(database.run(gate))
        first.run_until_complete(gate.reached())
        gate.opened.set()
        assert len(asyncio.run(supplied(database, "b"))) == 20
        assert first.run_until_complete(task) == "done", "what it had begun is still heard of"


def test_a_loop_stopped_while_tasks_stand_in_line_keeps_no_later_one_waiting(database):
    gate = Gate()
    with new_loop() as first:
        task = first.create_task(database.run(gate))
        waiting = [first.create_task(supplied(database, f"a{n}", 1)) for n in range(3)]
        first.run_until_complete(gate.reached())
        gate.opened.set()
        assert len(asyncio.run(supplied(database, "b"))) == 20
        first.run_until_complete(asyncio.gather(task, *waiting))


@default_guard_only
def test_a_guard_held_by_a_loop_that_ended_keeps_no_later_one_waiting(database):
    async def holds() -> None:
        await database.guard.acquire()

    asyncio.run(holds())
    assert len(asyncio.run(supplied(database, "b"))) == 20


@default_guard_only
def test_a_guard_of_a_stopped_loop_is_over(database):
    with new_loop() as first:
        first.run_until_complete(database.guard.acquire())
        assert len(asyncio.run(supplied(database, "b"))) == 20


def test_the_guard_keeps_others_out_in_a_later_loop_too(database):
    async def guards() -> None:
        async with database.guard:
            task = asyncio.create_task(database.run(lambda connection: 1))
            done, _ = await asyncio.wait({task}, timeout=0.1)
            assert not done
        assert await in_time(task) == 1

    asyncio.run(guards())
    asyncio.run(guards())


def test_two_running_loops_at_once_are_refused(database):
    refused: list[BaseException] = []

    async def elsewhere() -> None:
        for call in (
            lambda: database.run(lambda connection: 1),
            lambda: SqliteCheckpointer(database).supply("w", "k", 1),
            lambda: SqliteCheckpointer(database).load("w"),
            lambda: database.aclose(),
        ):
            with pytest.raises(RuntimeError, match="running event loop") as caught:
                await in_time(call())
            refused.append(caught.value)

    async def first() -> None:
        await database.run(lambda connection: 1)
        await asyncio.to_thread(asyncio.run, elsewhere())
        assert await SqliteCheckpointer(database).supply("w", "k", 1) == 1

    asyncio.run(first())
    assert len(refused) == 4


def test_a_loop_closed_with_a_thread_inside_leaves_the_database_usable(database):
    gate = Gate()

    async def begins() -> None:
        task = asyncio.ensure_future(database.run(gate))
        await gate.reached()
        assert not task.done()

    asyncio.run(begins())  # cancels the task and closes the loop
    gate.opened.set()
    assert len(asyncio.run(supplied(database, "b"))) == 20


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_closed_without_cancelling_anything_leaves_the_database_usable(database, caplog):
    gate = Gate()
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(database.run(gate))]
    tasks += [loop.create_task(database.run(lambda connection: 1)) for _ in range(3)]
    loop.run_until_complete(gate.reached())
    with caplog.at_level(logging.CRITICAL, "asyncio"):
        loop.close()
        gate.opened.set()
        assert len(asyncio.run(supplied(database, "b"))) == 20
        del tasks


def test_an_error_after_the_loop_was_closed_is_logged(database, caplog):
    error = LookupError("too late for anybody")
    gate = Gate(fail(error))

    async def begins() -> None:
        begins.task = asyncio.ensure_future(database.run(gate))
        await gate.reached()

    asyncio.run(begins())
    with caplog.at_level(logging.ERROR, THREAD):
        gate.opened.set()
        assert len(asyncio.run(supplied(database, "b"))) == 20
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error]


def test_a_claim_granted_after_its_loop_was_closed_is_given_back(path):
    database = connect(path)
    asyncio.run(migrate(database))
    gate = Gate()

    async def asks() -> None:
        asks.first = asyncio.ensure_future(database.run(gate))
        await gate.reached()
        asks.claim = asyncio.ensure_future(SqliteCheckpointer(database).claim("w", LEASE, LEASE))
        await asyncio.sleep(0)

    async def claims() -> object:
        try:
            return await in_time(SqliteCheckpointer(database).claim("w", LEASE, LEASE))
        finally:
            await in_time(database.aclose())

    asyncio.run(asks())
    gate.opened.set()
    assert asyncio.run(claims()) is not None


def test_closing_from_a_later_loop_waits_for_the_thread(database):
    gate = Gate()

    async def begins() -> None:
        begins.task = asyncio.ensure_future(database.run(gate))
        await gate.reached()

    async def closes() -> None:
        close = asyncio.create_task(database.aclose())
        done, _ = await asyncio.wait({close}, timeout=0.1)
        assert not done
        gate.opened.set()
        await in_time(close)

    asyncio.run(begins())
    asyncio.run(closes())
