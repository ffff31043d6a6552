"""A `Database`: what it refuses to be made of, and what `run` promises."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from contract import cancelled
from losses import deleted, renamed, replaced
from stores import over_sqlite
from systems import posix_files
from thread_gates import (
    HANG,
    NOW,
    fail,
    in_time,
    occupied,
    plain,
    stays_outside,
    until,
)
from without_durability import LEASE
from without_durability_sqlite import Database, SqliteCheckpointer, connect, migrate

# --- what the constructor refuses ---------------------------------------------------------------


async def test_a_connection_more_durable_than_needed_is_accepted(path):
    connection = plain(path)
    connection.execute("PRAGMA synchronous = EXTRA")
    async with Database(connection) as database:
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


async def test_a_connection_bound_to_the_thread_that_made_it_is_refused_from_any_other(path):
    made: list[sqlite3.Connection] = []

    def make_refuse_and_close() -> None:
        made.append(plain(path, check_same_thread=True))
        inside.set()
        assert over.wait(HANG)
        made[0].close()

    inside, over = threading.Event(), threading.Event()
    maker = threading.Thread(target=make_refuse_and_close)
    maker.start()
    assert inside.wait(HANG)
    try:
        with pytest.raises(ValueError, match="check_same_thread"):
            Database(made[0])
    finally:
        over.set()
        maker.join(HANG)


# --- run ----------------------------------------------------------------------------------------


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
    gate, task = await occupied(guarded)
    await cancelled(task)
    assert not gate.left.is_set(), "the caller waited for the thread"
    following = asyncio.create_task(guarded.run(lambda connection: gate.left.is_set()))
    await stays_outside(following)
    assert guarded.guard.locked()
    gate.opened.set()
    assert await in_time(following), "somebody landed inside another's work"


async def test_what_waits_in_line_for_a_cancelled_caller_never_runs(guarded):
    gate, first = await occupied(guarded)
    ran: list[int] = []
    second = asyncio.create_task(guarded.run(lambda connection: ran.append(1)))
    await asyncio.sleep(0)
    await cancelled(second)
    gate.opened.set()
    await in_time(first)
    await in_time(guarded.run(lambda connection: None))
    assert ran == []


async def test_an_error_after_its_caller_has_gone_reaches_the_loops_exception_handler(guarded):
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, report: reports.append(report))
    error = LookupError("too late")
    gate, task = await occupied(guarded, fail(error))
    await cancelled(task)
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


# --- the file underneath ------------------------------------------------------------------------


@posix_files
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


@posix_files
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
