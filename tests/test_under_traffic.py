"""What must hold although the thread is never idle, or is just being closed."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from contract import cancelled
from idling import HOUR, SOON, a_file, by_next_ready, durable_over, idle, in_memory
from thread_gates import Gate, in_time, plain, until
from without_durability import LEASE, now_utc
from without_durability_sqlite import Database, SqliteCheckpointer, commits, migrate


@asynccontextmanager
async def traffic(database: Database) -> AsyncIterator[None]:
    """Somebody whose reads and writes leave no thread of the database idle."""
    store = SqliteCheckpointer(database)
    holder = await store.claim("busy", HOUR, HOUR)
    assert holder is not None

    async def keep_busy() -> None:
        while True:
            await asyncio.gather(store.renew(holder, LEASE), store.load("busy"))

    task = asyncio.create_task(keep_busy())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_a_sleeper_is_found_at_its_moment_whatever_traffic_there_is(anywhere: Database):
    durable = durable_over(anywhere)
    async with idle(anywhere, by_next_ready(durable)) as task, traffic(anywhere):
        await durable.scheduler.schedule("w", now_utc() + SOON)
        assert await in_time(task) == "w"


async def test_what_a_foreign_program_makes_ready_is_found_whatever_traffic_there_is(
    path: Path, filed: Database
):
    durable = durable_over(filed, poll=SOON)
    async with idle(filed, by_next_ready(durable)) as task, traffic(filed):
        with closing(plain(path)) as foreign:
            foreign.execute(
                "INSERT INTO workflow_queue (namespace, workflow, visible_at) "
                "VALUES ('workflow', 'w', 1)"
            )
        assert await in_time(task) == "w"


@pytest.mark.parametrize("kind", [a_file, in_memory])
async def test_closing_a_database_wakes_those_who_wait_for_its_queue(path: Path, kind):
    database = kind(path)
    await migrate(database)
    async with idle(database, durable_over(database).scheduler.next_ready(HOUR)) as task:
        await database.aclose()
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            await in_time(task)


async def test_a_read_is_not_kept_waiting_by_a_grant_whose_caller_has_gone(database: Database):
    store = SqliteCheckpointer(database)
    gate = Gate()
    working = asyncio.create_task(database.run(gate))
    await gate.reached()
    claiming = asyncio.create_task(store.claim("w", LEASE, LEASE))
    await until(lambda: database._thread._in_line > 1)
    await cancelled(claiming)
    assert await in_time(store.load("w")) == {}
    assert not working.done()
    gate.opened.set()
    await working


async def test_now_and_then_a_commit_is_synced_so_that_the_log_does_not_grow(
    database: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(commits, "UNSYNCED", 3)
    store = SqliteCheckpointer(database)
    holder = await store.claim("w", HOUR, HOUR)
    assert holder is not None
    said: list[str] = []
    await database.run(lambda connection: connection.set_trace_callback(said.append))
    for _ in range(8):
        await store.renew(holder, LEASE)
    await database.run(lambda connection: connection.set_trace_callback(None))
    levels = [one for one in said if one.startswith("PRAGMA synchronous")]
    assert levels.count("PRAGMA synchronous = 2") >= 2, levels
    assert "PRAGMA wal_autocheckpoint = 1000" in said


async def test_nothing_of_the_fence_is_left_in_the_schema(database: Database):
    store = SqliteCheckpointer(database)
    holder = await store.claim("w", HOUR, HOUR)
    assert holder is not None

    def effect(cursor: sqlite3.Cursor) -> int:
        cursor.execute("CREATE TABLE app (x)")
        cursor.execute("CREATE INDEX app_x ON app (x)")
        return cursor.execute("INSERT INTO app VALUES (1)").rowcount

    assert await store.transact(holder, "k", effect) == 1
    schema = "SELECT sql FROM sqlite_schema WHERE tbl_name = 'app' ORDER BY name"
    made = await database.run(lambda connection: connection.execute(schema).fetchall())
    assert made == [("CREATE TABLE app (x)",), ("CREATE INDEX app_x ON app (x)",)]


async def test_under_a_plain_lock_every_effect_is_fenced_anew(path: Path):
    lock = asyncio.Lock()
    async with Database(plain(path), lock) as database:
        await migrate(database)
        store = SqliteCheckpointer(database)
        holder = await store.claim("w", HOUR, HOUR)
        assert holder is not None
        await store.transact(holder, "a", lambda cursor: 1)
        async with lock:
            database.connection.set_authorizer(None)

        def effect(cursor: sqlite3.Cursor) -> None:
            cursor.execute("CREATE TABLE app (x)")
            with suppress(sqlite3.Error):
                cursor.execute("COMMIT")

        with pytest.raises(RuntimeError, match="transaction"):
            await store.transact(holder, "b", effect)
        tables = "SELECT count(*) FROM sqlite_schema WHERE name = 'app'"
        assert await database.run(lambda c: c.execute(tables).fetchall()) == [(0,)]


async def test_an_effect_that_makes_something_ready_by_itself_is_noticed(filed: Database):
    durable = durable_over(filed, poll=timedelta(milliseconds=50))
    holder = await durable.checkpointer.claim("other", HOUR, HOUR)
    assert holder is not None
    statement = (
        "INSERT INTO workflow_queue (namespace, workflow, visible_at) VALUES ('workflow', 'w', 1)"
    )
    async with idle(filed, by_next_ready(durable)) as task:
        filed._watch._happened -= 3600  # it has been quiet for long
        await durable.checkpointer.transact(
            holder, "k", lambda cursor: cursor.execute(statement).rowcount
        )
        assert await in_time(task) == "w"


@pytest.mark.parametrize("swallowed", [False, True])
async def test_an_effect_that_rolls_back_by_the_drivers_own_means_is_refused(
    database: Database, swallowed: bool
):
    store = SqliteCheckpointer(database)
    holder = await store.claim("w", HOUR, HOUR)
    assert holder is not None

    def effect(cursor: sqlite3.Cursor) -> str:
        cursor.execute("CREATE TABLE app (x)")
        with suppress(sqlite3.Error if swallowed else ()), cursor.connection:
            raise sqlite3.DataError
        return "nothing was done"

    for _ in range(2):
        with pytest.raises(RuntimeError, match="transaction"):
            await store.transact(holder, "k", effect)
    assert await store.load("w") == {}
    tables = "SELECT count(*) FROM sqlite_schema WHERE name = 'app'"
    assert await database.run(lambda c: c.execute(tables).fetchall()) == [(0,)]
