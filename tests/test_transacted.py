"""Transactions: what effects may not do, what failing commits leave, and a fault at every
statement of every write (sqlite.md, faults.md)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path

import pytest

from thread_gates import plain
from without_durability import LEASE, Fenced, Pass, claimed
from without_durability_sqlite import Database, SqliteCheckpointer, migrate
from without_durability_sqlite.store import transacted

HANG = 10.0
NOW = timedelta(0)
Effect = Callable[[sqlite3.Cursor], object]


@pytest.fixture
async def records(database: Database) -> SqliteCheckpointer:
    """A checkpointer over a file with a table of the application's own."""
    await database.run(
        lambda connection: connection.executescript(
            "CREATE TABLE app (n UNIQUE); INSERT INTO app VALUES ('taken');"
        )
    )
    return SqliteCheckpointer(database)


@pytest.fixture(params=["transact", "transacted"])
async def run(
    request: pytest.FixtureRequest, records: SqliteCheckpointer
) -> AsyncIterator[Callable[[Effect], Awaitable[object]]]:
    """An effect run by `transact`, and the same by `transacted` inside `Database.run`."""
    holder = await records.claim("w", LEASE, LEASE)

    async def through(effect: Effect) -> object:
        async with asyncio.timeout(HANG):
            if request.param == "transact":
                return await records.transact(holder, "k", effect)
            return await records.database.run(lambda connection: transacted(connection, effect))

    yield through
    async with asyncio.timeout(HANG):
        assert await records.supply("after", "k", 1) == 1, "the store is usable afterwards"


def kept(other: sqlite3.Connection) -> list[object]:
    """What the application's table and the record of the effect hold, seen from outside."""
    return [
        value
        for (value,) in other.execute(
            "SELECT n FROM app WHERE n <> 'taken' UNION ALL "
            "SELECT step FROM workflow_checkpoint WHERE workflow = 'w'"
        )
    ]


def insert(cursor: sqlite3.Cursor, value: str) -> None:
    cursor.execute("INSERT INTO app VALUES (?)", (value,))


async def test_balanced_savepoints_are_the_effects_own_business(run, other):
    def effect(cursor: sqlite3.Cursor) -> str:
        cursor.execute("SAVEPOINT one")
        insert(cursor, "kept")
        cursor.execute("SAVEPOINT two")
        insert(cursor, "undone")
        cursor.execute("ROLLBACK TO two")
        cursor.execute("RELEASE two")
        cursor.execute("RELEASE one")
        return "done"

    assert await run(effect) == "done"
    assert "kept" in kept(other)
    assert "undone" not in kept(other)


async def test_an_effects_own_sqlite_error_reaches_its_caller_as_it_was(run, other):
    def effect(cursor: sqlite3.Cursor) -> None:
        insert(cursor, "before")
        insert(cursor, "taken")

    with pytest.raises(sqlite3.IntegrityError, match=r"UNIQUE constraint failed: app\.n") as caught:
        await run(effect)
    assert caught.value.sqlite_errorname == "SQLITE_CONSTRAINT_UNIQUE"
    assert kept(other) == []


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit, LookupError]
)
async def test_whatever_an_effect_raises_reaches_its_caller_and_nothing_is_kept(run, other, error):
    def effect(cursor: sqlite3.Cursor) -> None:
        insert(cursor, "before")
        raise error("mine")

    with pytest.raises(error):
        await run(effect)
    assert kept(other) == []


async def test_a_stop_iteration_reaches_the_caller_as_the_cause_of_a_runtime_error(run, other):
    def effect(cursor: sqlite3.Cursor) -> None:
        insert(cursor, "before")
        next(iter(()))

    with pytest.raises((RuntimeError, StopIteration)) as caught:
        await run(effect)
    seen = caught.value
    assert isinstance(seen, StopIteration) or isinstance(seen.__cause__, StopIteration)
    assert kept(other) == []


async def an_async_effect(cursor: sqlite3.Cursor) -> None:
    raise AssertionError("it ran")


@pytest.mark.parametrize(
    "effect", [an_async_effect, lambda cursor: an_async_effect(cursor)], ids=["function", "lambda"]
)
async def test_an_async_effect_is_refused(run, other, effect):
    with pytest.raises(TypeError, match=r"async|synchronous"):
        await run(effect)
    assert kept(other) == []


async def test_an_effects_cursor_has_the_applications_row_factory(run, records):
    connection = records.database.connection
    connection.row_factory = sqlite3.Row

    def effect(cursor: sqlite3.Cursor) -> object:
        (row,) = cursor.execute("SELECT n AS name FROM app").fetchall()
        cursor.connection.row_factory = None
        return row["name"]

    assert await run(effect) == "taken"
    assert connection.row_factory is sqlite3.Row, "it is handed back as it was"


async def test_transacted_returns_what_the_work_returned_and_has_committed_it(database, other):
    def work(cursor: sqlite3.Cursor) -> object:
        cursor.execute("CREATE TABLE mine (n)")
        return {"any", "value"}

    assert await database.run(lambda connection: transacted(connection, work)) == {"any", "value"}
    assert other.execute("SELECT count(*) FROM mine").fetchall() == [(0,)]


async def test_transactions_one_after_another_in_one_work_are_each_their_own(records, other):
    def work(connection: sqlite3.Connection) -> None:
        transacted(connection, lambda cursor: insert(cursor, "first"))
        with suppress(LookupError):
            transacted(connection, fails)
        transacted(connection, lambda cursor: insert(cursor, "third"))

    def fails(cursor: sqlite3.Cursor) -> None:
        insert(cursor, "second")
        raise LookupError

    await records.database.run(work)
    assert kept(other) == ["first", "third"]


async def test_an_effect_whose_result_cannot_be_encoded_is_rolled_back(records, other):
    holder = await records.claim("w", LEASE, LEASE)

    def effect(cursor: sqlite3.Cursor) -> object:
        insert(cursor, "before")
        return {1, 2}

    with pytest.raises(TypeError, match="set"):
        await records.transact(holder, "k", effect)
    assert kept(other) == []
    assert await records.renew(holder, LEASE), "the claim is still held"


async def test_the_fence_is_checked_before_the_effect_runs(records):
    ran: list[int] = []
    holder = await records.claim("w", LEASE, LEASE)
    with pytest.raises(Fenced):
        await records.transact(Pass("w", holder.token + 1), "k", lambda cursor: ran.append(1))
    assert ran == []


async def test_a_commit_that_fails_leaves_no_transaction_open(run, records, other):
    connection = records.database.connection
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
    connection.execute(
        "CREATE TABLE child (id REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)"
    )

    def effect(cursor: sqlite3.Cursor) -> None:
        insert(cursor, "before")
        cursor.execute("INSERT INTO child VALUES (1)")

    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        await run(effect)
    assert not connection.in_transaction
    assert kept(other) == []


async def test_an_effect_that_takes_its_own_claim_away_is_fenced(database):
    store = SqliteCheckpointer(database)
    holder = await claimed(store, "w")

    def effect(cursor: sqlite3.Cursor) -> None:
        cursor.execute("DELETE FROM workflow_claim")

    with pytest.raises(Fenced):
        await store.transact(holder, "k", effect)
    assert await store.load("w") == {}
    assert await store.renew(holder, timedelta(minutes=1)), "what the effect did was kept"


class HalfRead(sqlite3.Cursor):
    """Fails where the rows of a statement are fetched that has run."""

    def fetchall(self) -> list[object]:
        if self.connection.fails:  # type: ignore[attr-defined]
            raise LookupError("halfway")
        return super().fetchall()


@cache
def half_read(factory: type[sqlite3.Cursor]) -> type[sqlite3.Cursor]:
    return type("HalfRead" + factory.__name__, (HalfRead, factory), {})


class FailsHalfway(sqlite3.Connection):
    fails = False

    def cursor(self, factory: type[sqlite3.Cursor] = sqlite3.Cursor) -> sqlite3.Cursor:
        return super().cursor(half_read(factory))


async def test_a_half_read_cursor_that_a_kept_error_refers_to_blocks_no_later_write(path: Path):
    connection = plain(path, factory=FailsHalfway)
    connection.execute("PRAGMA journal_mode = WAL").close()
    async with Database(connection) as database:
        await migrate(database)
        store = SqliteCheckpointer(database)
        connection.fails = True
        with pytest.raises(LookupError, match="halfway") as kept:
            await store.claim("w", LEASE, LEASE)
        connection.fails = False
        assert await store.supply("w", "k", 1) == 1
        assert await store.claim("w", LEASE, LEASE) is not None, "what failed was kept"
        assert kept.traceback, "nobody refers to the cursor any more"


async def test_a_transaction_that_a_failed_rollback_left_is_no_later_works(database: Database):
    def refuses(action: int, what: str | None, *_: object) -> int:
        refused = action == sqlite3.SQLITE_INSERT or what == "ROLLBACK"
        return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK

    database.connection.set_authorizer(refuses)
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        await SqliteCheckpointer(database).supply("w", "k", 1)
    database.connection.set_authorizer(None)
    assert database.connection.in_transaction, "its rollback did not fail"
    assert await database.run(lambda connection: connection.in_transaction) is False
