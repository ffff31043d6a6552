"""Who is kept out of a `Database` and when: calls back, guards, threads."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import sys
import threading
import warnings
import weakref
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from contract import cancelled
from thread_gates import (
    CALLS,
    HANG,
    Gate,
    directly,
    in_time,
    occupied,
    own_guard,
    plain,
    plain_lock,
    stays_outside,
    through_the_loop,
    until,
)
from without_durability import LEASE, Milliseconds
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteScheduler,
    connect,
    migrate,
)

# --- callbacks ----------------------------------------------------------------------------------


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


# --- the guard ----------------------------------------------------------------------------------


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
        await cancelled(task)
        following = asyncio.create_task(guarded.run(lambda connection: 1))
        await stays_outside(following)
    assert await in_time(following) == 1, "the cancelled caller left it open and usable"


async def test_a_cancelled_wait_for_the_guard_leaves_nobody_outside_for_ever(guarded):
    gate, task = await occupied(guarded)
    waiter = asyncio.create_task(guarded.guard.acquire())
    await stays_outside(waiter)
    await cancelled(waiter)
    gate.opened.set()
    await in_time(task)
    assert await in_time(guarded.run(lambda connection: 1)) == 1


async def test_the_guard_is_not_had_while_a_thread_is_inside_for_a_cancelled_caller(guarded):
    gate, task = await occupied(guarded)
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


# --- threads, tasks, memory ---------------------------------------------------------------------


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
    await cancelled(task)
    gate.opened.set()
    del gate, task

    def let_go() -> bool:
        gc.collect()
        return gone() is None

    await until(let_go)


@pytest.mark.parametrize("call", [name for name in CALLS if name != "guard"])
async def test_the_holder_of_the_guard_is_told_that_it_would_wait_for_itself(database, call):
    async with database.guard:
        with pytest.raises(RuntimeError, match="holder"):
            await in_time(CALLS[call](database))
        assert database.connection.execute("SELECT 1").fetchall() == [(1,)]
    assert await in_time(database.run(lambda connection: 1)) == 1


async def test_a_look_that_gave_up_waiting_is_no_error_of_the_loop(path, other):
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    async with connect(path, timeout=Milliseconds(700)) as database:
        await migrate(database)
        queue = SqliteScheduler(database)
        await queue.make_ready("w")
        other.execute("BEGIN IMMEDIATE")
        assert await queue.next_ready(timedelta(0)) is None
        await database.run(lambda connection: None)  # behind the take that was given up
        other.execute("ROLLBACK")
    assert reports == []


def test_databases_may_be_opened_from_many_threads_at_once(tmp_path):
    errors: list[BaseException] = []

    def open_some(number: int) -> None:
        try:
            for _ in range(15):
                asyncio.run(connect(tmp_path / f"{number}.db").aclose())
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=open_some, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG)
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
