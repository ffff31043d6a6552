"""Transactions: what effects may not do, what failing commits leave, and a fault at every
statement of every write (sqlite.md, faults.md)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from older_files import BEFORE_SIGNS_OF_LIFE
from stores import Stores, over_sqlite
from without_durability import LEASE, Fenced, Pass, claimed
from without_durability.testing import Clock
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


# --- a fault at every statement ---------------------------------------------------------------


class Faulty(sqlite3.Connection):
    """Fails at the nth statement from `arm` on, before it runs or just after it ran."""

    remaining = 0
    afterwards = False
    failed_at: str | None = None

    def arm(self, n: int, afterwards: bool) -> None:
        self.remaining, self.afterwards, self.failed_at = n, afterwards, None

    def cursor(self, factory: type[sqlite3.Cursor] = sqlite3.Cursor) -> sqlite3.Cursor:
        return super().cursor(faulty_cursor(factory))

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        return self.cursor().execute(sql, *arguments)

    def counted(self, sql: str, run: Callable[[], Any]) -> Any:
        self.remaining -= 1
        due = self.remaining == 0
        if due:
            self.failed_at = sql
        if due and not (self.afterwards and sql != "BEGIN IMMEDIATE"):  # it begins or it fails
            raise sqlite3.OperationalError("injected fault")
        result = run()
        if due:
            raise sqlite3.OperationalError("injected fault")
        return result


class FaultyCursor(sqlite3.Cursor):
    def execute(self, sql: str, *arguments: Any) -> Any:
        return self.connection.counted(
            sql, lambda: super(FaultyCursor, self).execute(sql, *arguments)
        )


@cache
def faulty_cursor(factory: type[sqlite3.Cursor]) -> type[sqlite3.Cursor]:
    return type("Faulty" + factory.__name__, (FaultyCursor, factory), {})


class Scene:
    """Everything the operations below need, in one file."""

    holder: Pass
    delivery: Any

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.records, self.queue = stores.checkpointer, stores.scheduler
        self.durable, self.clock = stores.durable, stores.clock

    async def set(self) -> None:
        self.holder = await self.records.claim("w", LEASE, LEASE)
        await self.records.record(self.holder, "first", 1)
        await self.records.supply("w", "supplied", 1)
        await self.records.append("w", 1)
        await self.queue.make_ready("w")
        self.delivery = await self.queue.next_ready(NOW)
        await self.queue.schedule("sleeper", self.clock.now() + LEASE)
        await self.queue.make_ready("ready")
        self.clock.advance(timedelta(seconds=1))


def touches(cursor: sqlite3.Cursor) -> str:
    cursor.execute("INSERT INTO workflow_claim VALUES ('by effect', 1, 1, 1, 1, 1)")
    cursor.execute("SAVEPOINT s")
    cursor.execute("UPDATE workflow_claim SET token = 2 WHERE workflow = 'by effect'")
    cursor.execute("RELEASE s")
    return "done"


OPERATIONS: dict[str, Callable[[Scene], Awaitable[object]]] = {
    "claim": lambda s: s.records.claim("new", LEASE, LEASE),
    "extend": lambda s: s.records.extend(s.holder, 2 * LEASE, LEASE),
    "renew": lambda s: s.records.renew(s.holder, LEASE / 2),
    "record": lambda s: s.records.record(s.holder, "second", 2),
    "transact": lambda s: s.records.transact(s.holder, "second", touches),
    "supply": lambda s: s.records.supply("w", "more", 2),
    "append": lambda s: s.records.append("w", 2),
    "discard": lambda s: s.records.discard("w"),
    "release": lambda s: s.records.release(s.holder),
    "make_ready": lambda s: s.queue.make_ready("sleeper"),
    "schedule": lambda s: s.queue.schedule("sleeper", s.clock.now()),
    "wake_at": lambda s: s.queue.wake_at(s.delivery, s.clock.now() + 3 * LEASE),
    "next_ready": lambda s: s.queue.next_ready(NOW),
    "extend_delivery": lambda s: s.queue.extend(s.delivery, 2 * LEASE),
    "cancel": lambda s: s.queue.cancel("w"),
    "done": lambda s: s.queue.done(s.delivery),
    "arrive": lambda s: s.durable.arrive("w", "more", 2),
    "deliver": lambda s: s.durable.deliver("w", 2),
    "delete": lambda s: s.durable.delete("w"),
    "transacted": lambda s: s.records.database.run(lambda c: transacted(c, touches)),
}


def everything(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All that the file holds, receipts' nonces apart."""
    with closing(sqlite3.connect(path, timeout=HANG)) as other:
        found = {
            "schema": other.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        }
        for (table,) in other.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall():
            found[table] = other.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
    if "workflow_queue" in found:
        found["workflow_queue"] = [
            tuple("nonce" if index == 3 and value else value for index, value in enumerate(row))
            for row in found["workflow_queue"]
        ]
    return found


async def fail_at_every_statement(
    path: Path,
    faulty: Faulty,
    afterwards: bool,
    operation: Callable[[], Awaitable[object]],
) -> tuple[list[str], dict[str, Any]]:
    """Run the operation until no statement of it is left to fail at; each statement it failed at,
    and what the file held in the end."""
    before = everything(path)
    failed_at: list[str] = []
    for n in range(1, 100):
        faulty.arm(n, afterwards)
        surfaced: sqlite3.Error | None = None
        try:
            await operation()
        except sqlite3.OperationalError as error:
            surfaced = error
        if faulty.failed_at is None:
            assert surfaced is None
            return failed_at, everything(path)
        failed_at.append(faulty.failed_at)
        assert "injected fault" in str(surfaced), f"{faulty.failed_at} failed, and who was told?"
        assert not faulty.in_transaction, f"a transaction is left open after {faulty.failed_at}"
        if afterwards and faulty.failed_at == "COMMIT":
            return failed_at, everything(path)
        assert everything(path) == before, f"half of it is there after {faulty.failed_at}"
    raise AssertionError("it never ends")


def scene_over(path: Path, clock: Clock) -> tuple[Faulty, Scene]:
    faulty = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Faulty)
    faulty.execute("PRAGMA journal_mode = WAL")
    return faulty, Scene(over_sqlite(Database(faulty, clock=clock.seconds), clock))


@pytest.mark.parametrize("afterwards", [False, True], ids=["before_it_ran", "after_it_ran"])
@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_fault_at_any_statement_leaves_all_of_a_write_or_none_of_it(
    tmp_path, name, afterwards
):
    async def played(file: str) -> tuple[Faulty, Scene, Path]:
        clock = Clock()
        faulty, scene = scene_over(tmp_path / file, clock)
        await migrate(scene.records.database)
        await scene.set()
        return faulty, scene, tmp_path / file

    _, scene, path = await played("reference.db")
    async with scene.records.database:
        before = everything(path)
        await OPERATIONS[name](scene)
        reference = everything(path)
        assert reference != before, "the operation writes something"
    faulty, scene, path = await played("faulty.db")
    async with scene.records.database:
        failed_at, left = await fail_at_every_statement(
            path, faulty, afterwards, lambda: OPERATIONS[name](scene)
        )
        assert left == reference, "all of it is there in the end"
        assert "COMMIT" in failed_at, failed_at
        assert "BEGIN IMMEDIATE" in failed_at, failed_at
        faulty.arm(0, False)
        assert await scene.records.supply("usable", "k", 1) == 1


OLDER_FILE = (
    BEFORE_SIGNS_OF_LIFE
    + "INSERT INTO workflow_claim VALUES ('w', 7, 5);"
    + "INSERT INTO workflow_queue VALUES ('workflow', 'w', 5);"
)


@pytest.mark.parametrize("afterwards", [False, True], ids=["before_it_ran", "after_it_ran"])
@pytest.mark.parametrize("found", ["", OLDER_FILE], ids=["a_new_file", "an_older_file"])
async def test_a_fault_at_any_statement_leaves_all_of_a_migration_or_none_of_it(
    tmp_path, found, afterwards
):
    async def prepared(file: str) -> tuple[Faulty, Scene, Path]:
        with closing(sqlite3.connect(tmp_path / file)) as made:
            made.executescript(found)
        return *scene_over(tmp_path / file, Clock()), tmp_path / file

    _, scene, path = await prepared("reference.db")
    async with scene.records.database as database:
        await migrate(database)
        reference = everything(path)
    faulty, scene, path = await prepared("faulty.db")
    async with scene.records.database as database:
        failed_at, left = await fail_at_every_statement(
            path, faulty, afterwards, lambda: migrate(database)
        )
        assert left == reference
        assert "COMMIT" in failed_at
        faulty.arm(0, False)
        await scene.set()


async def test_an_effect_that_takes_its_own_claim_away_is_fenced(database):
    store = SqliteCheckpointer(database)
    holder = await claimed(store, "w")

    def effect(cursor: sqlite3.Cursor) -> None:
        cursor.execute("DELETE FROM workflow_claim")

    with pytest.raises(Fenced):
        await store.transact(holder, "k", effect)
    assert await store.load("w") == {}
    assert await store.renew(holder, timedelta(minutes=1)), "what the effect did was kept"
