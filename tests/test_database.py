"""`Database`: what it refuses, who is on the connection when, and how it closes (sqlite.md)."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import os
import sqlite3
import sys
import threading
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stores import Stores, over_sqlite
from without_durability import LEASE
from without_durability_sqlite import Database, SqliteCheckpointer, connect, migrate, store

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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG):
        while not condition():
            await asyncio.sleep(0.001)


async def stays_outside(task: asyncio.Task[Any]) -> None:
    done, _ = await asyncio.wait({task}, timeout=0.1)
    assert not done, "it went ahead past somebody who was inside"


async def in_time(awaitable: Any) -> Any:
    async with asyncio.timeout(HANG):
        return await awaitable


def plain(path: Path, **settings: Any) -> sqlite3.Connection:
    return sqlite3.connect(path, **{"isolation_level": None, "check_same_thread": False} | settings)


def database_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def own_guard() -> tuple[asyncio.Lock, ...]:
    return ()


def plain_lock() -> tuple[asyncio.Lock, ...]:
    return (asyncio.Lock(),)


@pytest.fixture(params=[own_guard, plain_lock], ids=lambda guard: guard.__name__)
async def guarded(request: pytest.FixtureRequest, path: Path) -> AsyncIterator[Database]:
    """A migrated database under its own guard, and under an `asyncio.Lock` passed to it."""
    connection = plain(path)
    connection.execute("PRAGMA journal_mode = WAL")
    async with Database(connection, *request.param()) as database:
        await migrate(database)
        yield database


@pytest.fixture
def stores_over(database: Database, clock: Any) -> Stores:
    return over_sqlite(database, clock)


@pytest.fixture
def other(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(plain(path, timeout=HANG)) as other:
        yield other


# --- what the constructor refuses -------------------------------------------------------------


def closed(path: Path) -> sqlite3.Connection:
    connection = plain(path)
    connection.close()
    return connection


def in_transaction(path: Path) -> sqlite3.Connection:
    connection = plain(path)
    connection.execute("BEGIN")
    return connection


def synchronous(level: str, path: Path) -> sqlite3.Connection:
    connection = plain(path)
    connection.execute(f"PRAGMA synchronous = {level}")
    return connection


REFUSED: dict[str, tuple[Callable[[Path], sqlite3.Connection], str]] = {
    "in_the_drivers_default_mode": (partial(plain, isolation_level=""), "isolation_level"),
    "that_begins_exclusively": (partial(plain, isolation_level="EXCLUSIVE"), "isolation_level"),
    "bound_to_one_thread": (partial(plain, check_same_thread=True), "check_same_thread"),
    "that_is_closed": (closed, "closed"),
    "with_a_transaction_open": (in_transaction, "in_transaction"),
    "with_synchronous_normal": (partial(synchronous, "NORMAL"), "synchronous"),
    "with_synchronous_off": (partial(synchronous, "OFF"), "synchronous"),
}
if sys.version_info >= (3, 12):
    REFUSED["without_autocommit"] = (partial(plain, autocommit=False), "autocommit=False")


@pytest.mark.parametrize("case", REFUSED)
def test_k17_a_connection_is_refused_by_the_setting_it_could_not_be_durable_with(path, case):
    make, setting = REFUSED[case]
    before = set(database_threads())
    connection = make(path)
    try:
        with pytest.raises(ValueError, match=setting):
            Database(connection)
        started = set(database_threads()) - before
        for thread in started:
            thread.join(HANG)
        assert not any(thread.is_alive() for thread in started), "it left a thread behind"
        if setting != "closed":
            assert connection.execute("SELECT 1").fetchone() == (1,), "it is still the caller's"
    finally:
        connection.close()


async def test_a_connection_more_durable_than_needed_is_accepted(path):
    async with Database(synchronous("EXTRA", path)) as database:
        await migrate(database)
        assert await SqliteCheckpointer(database).supply("w", "k", 1) == 1


@pytest.mark.parametrize("factory", [lambda cursor, row: row[0], sqlite3.Row], ids=["value", "Row"])
async def test_a_connection_with_factories_of_its_own_is_accepted(path, factory):
    connection = plain(path)
    connection.row_factory = factory
    connection.text_factory = bytes
    async with Database(connection) as database:
        await migrate(database)
        assert await SqliteCheckpointer(database).supply("w", "k", "v") == "v"


async def test_a_database_is_a_frozen_value_that_shows_its_connection_only(path):
    with closing(plain(path)) as connection:
        async with Database(connection, asyncio.Lock(), clock=lambda: 1.0) as one:
            async with Database(connection) as two:
                assert one == two, "guard and clock are no part of what it is"
            assert "guard" not in repr(one)
            assert "clock" not in repr(one)
            with pytest.raises(dataclasses.FrozenInstanceError):
                one.clock = time.time
            assert not hasattr(one, "__dict__")


async def test_a_guard_serves_one_database_only(path, database):
    with closing(plain(path)) as connection, pytest.raises(ValueError, match="guard"):
        Database(connection, database.guard)


# --- run --------------------------------------------------------------------------------------


async def test_work_runs_on_one_other_thread_with_nobody_else_on_the_connection(guarded):
    inside: list[int] = []

    def alone(connection: sqlite3.Connection) -> int:
        inside.append(1)
        assert len(inside) == 1, "two were inside at once"
        time.sleep(0.002)
        inside.pop()
        return threading.get_ident()

    threads = await in_time(asyncio.gather(*(guarded.run(alone) for _ in range(20))))
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


async def test_a_cancelled_caller_unwinds_at_once_and_the_connection_is_kept_until_the_end(guarded):
    gate = Gate()
    task = asyncio.create_task(guarded.run(gate))
    await gate.reached()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(task)
    assert not gate.left.is_set(), "the caller waited for the thread"
    following = asyncio.create_task(guarded.run(lambda connection: gate.left.is_set()))
    await stays_outside(following)
    assert guarded.guard.locked()
    gate.opened.set()
    assert await in_time(following), "somebody landed inside another's work"


async def test_what_waits_in_line_for_a_cancelled_caller_never_runs(guarded):
    gate = Gate()
    first = asyncio.create_task(guarded.run(gate))
    await gate.reached()
    ran: list[int] = []
    second = asyncio.create_task(guarded.run(lambda connection: ran.append(1)))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(second)
    gate.opened.set()
    await in_time(first)
    await in_time(guarded.run(lambda connection: None))
    assert ran == []


def fail(error: BaseException) -> Callable[..., Any]:
    def failing(*_: object) -> Any:
        raise error

    return failing


async def test_an_error_after_its_caller_has_gone_reaches_the_loops_exception_handler(guarded):
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, report: reports.append(report))
    error = LookupError("too late")
    gate = Gate(fail(error))
    task = asyncio.create_task(guarded.run(gate))
    await gate.reached()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(task)
    gate.opened.set()
    await until(lambda: bool(reports))
    assert [report["exception"] for report in reports] == [error]


async def test_an_error_its_caller_hears_of_is_reported_nowhere_else(guarded):
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, report: reports.append(report))
    with pytest.raises(LookupError, match="heard"):
        await guarded.run(fail(LookupError("heard")))
    await guarded.run(lambda connection: None)
    assert reports == []


async def test_k16_a_transaction_left_open_is_rolled_back_and_refused(database, other):
    records = SqliteCheckpointer(database)

    def leaves_open(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")
        connection.execute(
            "INSERT INTO workflow_checkpoint (workflow, step, value) VALUES ('w', 'lost', '0')"
        )

    with pytest.raises(RuntimeError, match="transaction open"):
        await database.run(leaves_open)
    await records.supply("w", "k", 1)
    assert other.execute("SELECT step FROM workflow_checkpoint").fetchall() == [("k",)]


async def test_k16_work_that_fails_with_a_transaction_open_shows_its_own_error(database, other):
    def fails(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "INSERT INTO workflow_checkpoint (workflow, step, value) VALUES ('w', 'lost', '0')"
        )
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await database.run(fails)
    await SqliteCheckpointer(database).supply("w", "k", 1)
    assert other.execute("SELECT step FROM workflow_checkpoint").fetchall() == [("k",)]


async def test_a_transaction_that_work_commits_itself_is_kept(database, other):
    def commits(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE app (n)")
        connection.execute("COMMIT")

    await database.run(commits)
    assert other.execute("SELECT count(*) FROM app").fetchall() == [(0,)]


@pytest.mark.parametrize("ends", [lambda: None, fail(LookupError())], ids=["returns", "raises"])
async def test_factories_that_work_sets_are_handed_back_as_they_were(database, ends):
    connection = database.connection

    def factory(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> object:
        return list(row)

    await database.run(lambda connection: None)
    connection.row_factory, connection.text_factory = factory, bytes

    def changes(connection: sqlite3.Connection) -> None:
        assert connection.execute("SELECT 'a'").fetchone() == [b"a"], "work sees the application's"
        connection.row_factory, connection.text_factory = sqlite3.Row, str
        ends()

    with suppress(LookupError):
        await database.run(changes)
    assert connection.row_factory is factory
    assert connection.text_factory is bytes


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def refusing(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> object:
    raise AssertionError("the store's own read went through the application's row_factory")


def refusing_text(text: bytes) -> object:
    raise AssertionError("the store's own read went through the application's text_factory")


@pytest.mark.parametrize(
    ("row_factory", "text_factory"),
    [(as_dict, bytes), (refusing, refusing_text)],
    ids=["dict_and_bytes", "refusing"],
)
async def test_no_call_of_the_store_depends_on_the_connections_factories(
    path, clock, row_factory, text_factory
):
    connection = plain(path)
    connection.row_factory, connection.text_factory = row_factory, text_factory
    async with Database(connection, clock=clock.seconds) as database:
        await migrate(database)
        await migrate(database)
        both = over_sqlite(database, clock)
        records, queue, durable = both.checkpointer, both.scheduler, both.durable
        holder = await records.claim("w", LEASE, LEASE)
        assert await records.claim("w", LEASE, LEASE) is None
        assert (await records.record(holder, "é", "ü")).first
        assert (await records.record(holder, "é", "y")).value == "ü"
        assert await records.transact(holder, "t", lambda cursor: "x") == "x"
        assert await records.transact(holder, "t", lambda cursor: "y") == "x"
        assert await records.renew(holder, LEASE)
        assert await records.extend(holder, LEASE, LEASE)
        assert await records.supply("w", "s", 1) == 1
        assert await records.supply("w", "s", 2) == 1
        first = await records.append("w", 1)
        second = await records.append("w", 2)
        assert first.key < second.key
        assert list(await records.load("w")) == ["é", "t", "s", first.key, second.key]
        assert list(await records.history("w")) == ["é", "t", "s", first.key, second.key]
        clock.advance(timedelta(hours=-1))
        await records.supply("w", "back", 1)
        clock.advance(timedelta(hours=1))
        await records.release(holder)
        await queue.make_ready("w")
        delivery = await queue.next_ready(NOW)
        assert delivery.workflow == "w"
        assert await queue.holds(delivery)
        delivery = await queue.extend(delivery, LEASE)
        await queue.wake_at(delivery, clock.now())
        assert not await queue.holds(delivery)
        await queue.schedule("v", clock.now())
        await queue.done(await queue.next_ready(NOW))
        await queue.cancel("w")
        assert await durable.arrive("w", "a", 1) == 1
        await durable.deliver("w", 1)
        assert await durable.delete("w") == 8
        assert await records.discard("w") == 0


async def an_async_function(subject: object) -> None:
    raise AssertionError("it ran")


async def an_async_generator(subject: object) -> AsyncIterator[int]:
    raise AssertionError("it ran")
    yield 1


class AsyncCallable:
    async def __call__(self, subject: object) -> None:
        raise AssertionError("it ran")


ASYNCHRONOUS: dict[str, Callable[[Any], object]] = {
    "function": an_async_function,
    "partial": partial(an_async_function),
    "callable": AsyncCallable(),
    "coroutine_returned": lambda subject: an_async_function(subject),
    "generator": an_async_generator,
}


@pytest.mark.parametrize("work", ASYNCHRONOUS.values(), ids=ASYNCHRONOUS)
async def test_async_work_is_refused(guarded, work):
    with pytest.raises(TypeError, match=r"async|synchronous"):
        await in_time(guarded.run(work))
    assert await in_time(guarded.run(lambda connection: 1)) == 1


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit, LookupError]
)
async def test_whatever_work_raises_reaches_its_caller_and_nobody_hangs(guarded, error):
    with pytest.raises(error):
        await guarded.run(fail(error("mine")))
    assert await in_time(guarded.run(lambda connection: 1)) == 1


async def test_a_stop_iteration_reaches_the_caller_as_the_cause_of_a_runtime_error(guarded):
    with pytest.raises((RuntimeError, StopIteration)) as caught:
        await in_time(guarded.run(fail(StopIteration("mine"))))
    seen = caught.value
    assert isinstance(seen, StopIteration) or isinstance(seen.__cause__, StopIteration)
    assert await in_time(guarded.run(lambda connection: 1)) == 1


# --- callbacks --------------------------------------------------------------------------------

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


@pytest.mark.parametrize("back", [directly, through_the_loop])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("inside", ["work", "effect"])
async def test_a_call_back_into_the_database_is_refused_at_once(database, inside, call, back):
    loop = asyncio.get_running_loop()
    records = SqliteCheckpointer(database)
    holder = await records.claim("w", LEASE, LEASE)

    def calls_back(subject: Any) -> str:
        with pytest.raises(RuntimeError, match="back into the database"):
            back(CALLS[call](database), loop)
        return "refused"

    if inside == "work":
        assert await in_time(database.run(calls_back)) == "refused"
    else:
        assert await in_time(records.transact(holder, "k", calls_back)) == "refused"
    assert await in_time(records.supply("after", "k", 1)) == 1


@pytest.mark.parametrize("call", ["run", "supply", "aclose"])
async def test_a_call_back_under_a_lock_of_the_applications_is_refused_at_once(guarded, call):
    loop = asyncio.get_running_loop()

    def calls_back(connection: sqlite3.Connection) -> str:
        with pytest.raises(RuntimeError, match="back into the database"):
            through_the_loop(CALLS[call](guarded), loop)
        return "refused"

    assert await in_time(guarded.run(calls_back)) == "refused"


async def test_a_call_back_by_way_of_another_database_is_refused_at_once(database, tmp_path):
    loop = asyncio.get_running_loop()
    async with connect(tmp_path / "second.db") as second:

        def innermost(connection: sqlite3.Connection) -> str:
            with pytest.raises(RuntimeError, match="back into the database"):
                through_the_loop(database.run(lambda connection: 1), loop)
            return "refused"

        def outermost(connection: sqlite3.Connection) -> object:
            return asyncio.run_coroutine_threadsafe(second.run(innermost), loop).result(6)

        assert await in_time(database.run(outermost)) == "refused"


async def test_another_database_may_be_used_from_inside(database, tmp_path):
    loop = asyncio.get_running_loop()
    async with connect(tmp_path / "second.db") as second:
        assert (
            await in_time(
                database.run(lambda connection: through_the_loop(second.run(lambda c: 7), loop))
            )
            == 7
        )


async def test_a_task_merely_started_from_inside_is_served_once_that_work_has_ended(guarded):
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    async def later() -> object:
        await ended.wait()
        return await SqliteCheckpointer(guarded).supply("w", "k", 1)

    started = await guarded.run(lambda connection: asyncio.run_coroutine_threadsafe(later(), loop))
    ended.set()
    assert await in_time(asyncio.wrap_future(started)) == 1


# --- the guard --------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["run", "supply", "aclose"])
async def test_holding_the_guard_keeps_everybody_out(guarded, call):
    async with guarded.guard:
        assert guarded.guard.locked()
        task = asyncio.create_task(CALLS[call](guarded))
        await stays_outside(task)
        guarded.connection.execute("BEGIN IMMEDIATE")
        guarded.connection.execute("CREATE TABLE app (n)")
        await stays_outside(task)
        guarded.connection.execute("COMMIT")
    await in_time(task)


@pytest.mark.parametrize("call", ["run", "supply", "aclose"])
async def test_cancelled_callers_do_not_lift_somebody_elses_guard(guarded, call):
    async with guarded.guard:
        task = asyncio.create_task(CALLS[call](guarded))
        await stays_outside(task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await in_time(task)
        following = asyncio.create_task(guarded.run(lambda connection: 1))
        await stays_outside(following)
    assert await in_time(following) == 1, "the cancelled caller left it open and usable"


async def test_a_cancelled_wait_for_the_guard_leaves_nobody_outside_for_ever(guarded):
    gate = Gate()
    task = asyncio.create_task(guarded.run(gate))
    await gate.reached()
    waiter = asyncio.create_task(guarded.guard.acquire())
    await stays_outside(waiter)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(waiter)
    gate.opened.set()
    await in_time(task)
    assert await in_time(guarded.run(lambda connection: 1)) == 1


async def test_the_guard_is_not_had_while_a_thread_is_inside_for_a_cancelled_caller(guarded):
    gate = Gate()
    task = asyncio.create_task(guarded.run(gate))
    await gate.reached()
    task.cancel()
    waiter = asyncio.create_task(guarded.guard.acquire())
    await stays_outside(waiter)
    gate.opened.set()
    await in_time(waiter)
    assert gate.left.is_set()
    guarded.guard.release()
    assert await in_time(guarded.run(lambda connection: 1)) == 1


async def test_the_guard_is_had_in_turn_while_others_keep_the_thread_busy(guarded):
    enough = asyncio.Event()

    async def keeps_busy() -> None:
        while not enough.is_set():
            await guarded.run(lambda connection: None)

    busy = [asyncio.create_task(keeps_busy()) for _ in range(3)]
    try:
        await guarded.run(lambda connection: None)
        async with asyncio.timeout(2):
            await guarded.guard.acquire()
        guarded.guard.release()
    finally:
        enough.set()
        await in_time(asyncio.gather(*busy))


async def test_releasing_a_guard_that_nobody_holds_is_an_error(guarded):
    await until(lambda: not guarded.guard.locked())
    with pytest.raises(RuntimeError):
        guarded.guard.release()


# --- the file underneath ----------------------------------------------------------------------


def deleted(path: Path) -> None:
    path.unlink()


def renamed(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))


def replaced(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.write_bytes(b"")


@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be moved there")
@pytest.mark.parametrize("moved", [deleted, renamed, replaced])
async def test_the_next_write_fails_once_the_file_was_moved_away(
    database, stores_over, path, moved
):
    await stores_over.checkpointer.supply("w", "k", 1)
    moved(path)
    with pytest.raises(sqlite3.OperationalError, match="deleted or replaced") as caught:
        await stores_over.checkpointer.supply("w", "lost", 1)
    assert str(path) in str(caught.value)
    with pytest.raises(sqlite3.OperationalError, match="deleted or replaced"):
        await stores_over.durable.deliver("w", "lost")
    assert stores_over.scheduler.permanent(caught.value)


@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be moved there")
async def test_a_file_moved_back_is_written_again(database, stores_over, path):
    renamed(path)
    with pytest.raises(sqlite3.OperationalError):
        await stores_over.checkpointer.supply("w", "lost", 1)
    path.with_suffix(".moved").rename(path)
    await stores_over.checkpointer.supply("w", "k", 1)
    assert await stores_over.checkpointer.load("w") == {"k": 1}


async def test_a_store_in_memory_has_no_file_to_lose():
    async with connect(":memory:") as database:
        await migrate(database)
        assert await SqliteCheckpointer(database).supply("w", "k", 1) == 1


# --- closing ----------------------------------------------------------------------------------


async def test_closing_twice_is_fine(guarded):
    await in_time(guarded.aclose())
    await in_time(guarded.aclose())


async def test_closing_concurrently_is_fine(guarded):
    await in_time(asyncio.gather(*(guarded.aclose() for _ in range(5))))


async def test_closing_waits_until_nobody_is_inside(guarded):
    gate = Gate()
    task = asyncio.create_task(guarded.run(gate))
    await gate.reached()
    close = asyncio.create_task(guarded.aclose())
    await stays_outside(close)
    gate.opened.set()
    await in_time(close)
    assert await in_time(task) == "done"


async def test_a_close_cancelled_while_it_waits_leaves_the_database_open(guarded):
    gate = Gate()
    task = asyncio.create_task(guarded.run(gate))
    await gate.reached()
    close = asyncio.create_task(guarded.aclose())
    await stays_outside(close)
    close.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(close)
    gate.opened.set()
    await in_time(task)
    assert await in_time(SqliteCheckpointer(guarded).supply("w", "k", 1)) == 1


async def test_a_close_that_waits_long_says_so(guarded, caplog, monkeypatch):
    monkeypatch.setattr(store, "PATIENCE", 0.01)
    gate = Gate()
    task = asyncio.create_task(guarded.run(gate))
    await gate.reached()
    close = asyncio.create_task(guarded.aclose())
    with caplog.at_level(logging.WARNING, THREAD):
        await until(lambda: "aclose waits" in caplog.text)
    gate.opened.set()
    await in_time(asyncio.gather(task, close))


@pytest.mark.parametrize("ends", [lambda: None, fail(LookupError())], ids=["returns", "raises"])
async def test_async_with_closes_on_the_way_out(path, ends):
    with suppress(LookupError):
        async with connect(path) as database:
            ends()
    with pytest.raises(sqlite3.ProgrammingError):
        database.connection.execute("SELECT 1")
    database._thread._thread.join(HANG)
    assert not database._thread._thread.is_alive()


@pytest.mark.parametrize("call", [name for name in CALLS if name != "aclose"])
async def test_use_after_closing_is_a_programming_error(path, call):
    async with connect(path) as database:
        await migrate(database)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        await in_time(CALLS[call](database))


@pytest.mark.parametrize("call", ["run", "supply", "load"])
async def test_what_waits_behind_a_close_is_a_programming_error_too(guarded, call):
    gate = Gate()
    task = asyncio.create_task(guarded.run(gate))
    await gate.reached()
    close = asyncio.create_task(guarded.aclose())
    await stays_outside(close)
    behind = asyncio.create_task(CALLS[call](guarded))
    await stays_outside(behind)
    gate.opened.set()
    await in_time(asyncio.gather(task, close))
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        await in_time(behind)


# --- threads, tasks, memory -------------------------------------------------------------------


async def test_k25_a_full_default_executor_delays_nobody(database):
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(4)
    loop.set_default_executor(pool)
    records = SqliteCheckpointer(database)

    def blocks(number: int) -> object:
        call = asyncio.run_coroutine_threadsafe(records.supply("w", f"k{number}", number), loop)
        return call.result(HANG)

    answers = await in_time(asyncio.gather(*(asyncio.to_thread(blocks, n) for n in range(4))))
    assert answers == [0, 1, 2, 3]
    full = threading.Event()
    blocked = [loop.run_in_executor(None, full.wait, HANG) for _ in range(8)]
    try:
        holder = await in_time(records.claim("w", LEASE, LEASE))
        assert await in_time(records.renew(holder, LEASE))
        assert await in_time(database.run(lambda connection: 1)) == 1
        assert not any(future.done() for future in blocked)
    finally:
        full.set()
        await asyncio.gather(*blocked)


async def test_k2_cancelling_every_task_keeps_others_out_of_the_running_transaction(database):
    records = SqliteCheckpointer(database)
    holder = await records.claim("w", LEASE, LEASE)
    gate = Gate(fail(LookupError("late")))

    def effect(cursor: sqlite3.Cursor) -> object:
        cursor.execute("CREATE TABLE app (n)")
        return gate(cursor)

    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, report: reports.append(report))
    task = asyncio.create_task(records.transact(holder, "k", effect))
    await gate.reached()
    for each in asyncio.all_tasks() - {asyncio.current_task()}:
        each.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(task)
    following = asyncio.create_task(records.supply("other", "k", "v"))
    await stays_outside(following)
    gate.opened.set()
    assert await in_time(following) == "v"
    assert await records.load("other") == {"k": "v"}
    assert await records.load("w") == {}
    await until(lambda: bool(reports))


def drop(held: list[Database]) -> None:
    held.clear()
    gc.collect()


async def dropped(held: list[Database]) -> None:
    """Drop it and see its thread end: whoever let go of it last, this thread or that one."""
    thread = held[0]._thread._thread

    def has_ended() -> bool:
        drop(held)
        return not thread.is_alive()

    await until(has_ended)


@pytest.mark.parametrize("guard", [own_guard, plain_lock])
async def test_a_dropped_database_warns_and_lets_its_thread_end(path, guard):
    held = [Database(plain(path), *guard())]
    await migrate(held[0])
    with pytest.warns(ResourceWarning, match="aclose"):
        await dropped(held)


async def test_a_dropped_database_lets_its_thread_end_where_warnings_are_errors(path, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    held = [connect(path)]
    thread = held[0]._thread
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        drop(held)
    thread._thread.join(1)
    still_there = thread._thread.is_alive()
    if still_there:
        thread.later(thread.close)
    assert not still_there


@pytest.mark.parametrize("raises", [False, True])
async def test_finished_work_is_let_go_while_the_database_idles(guarded, raises):
    def work(connection: sqlite3.Connection) -> None:
        if raises:
            raise LookupError

    gone = weakref.ref(work)
    with suppress(LookupError):
        await guarded.run(work)
    del work
    await asyncio.sleep(0)

    def let_go() -> bool:
        gc.collect()
        return gone() is None

    await until(let_go)


async def test_a_cancelled_callers_work_is_let_go_too(guarded):
    gate = Gate()
    gone = weakref.ref(gate)
    task = asyncio.create_task(guarded.run(gate))
    await gate.reached()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(task)
    gate.opened.set()
    del gate, task

    def let_go() -> bool:
        gc.collect()
        return gone() is None

    await until(let_go)
