"""K15 to K17: transactions that end early, stay open, or were never meant to be durable."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from thread_gates import HANG, database_threads, in_time, plain
from without_durability import claimed
from without_durability_sqlite import Database, SqliteCheckpointer, connect, migrate
from without_durability_sqlite.store import transacted

MIN = timedelta(minutes=1)
INSERT = "INSERT INTO app VALUES (1)"

Effect = Callable[[sqlite3.Cursor], object]
Run = Callable[[Effect], Awaitable[object]]


@pytest.fixture
def app(database: Database, other: sqlite3.Connection) -> sqlite3.Connection:
    """The application's own tables beside the store's."""
    other.executescript("""
        CREATE TABLE app (id INTEGER);
        CREATE TABLE taken (id INTEGER PRIMARY KEY);
        INSERT INTO taken VALUES (1);
        CREATE TABLE watched (id INTEGER);
        CREATE TRIGGER watch BEFORE INSERT ON watched
        BEGIN SELECT RAISE(ROLLBACK, 'not here'); END;
    """)
    return other


def rows(connection: sqlite3.Connection, table: str = "app") -> int:
    count: int
    ((count,),) = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
    return count


def rollback_clause(cursor: sqlite3.Cursor) -> None:
    cursor.execute("INSERT OR ROLLBACK INTO taken VALUES (1)")


def rollback_clause_among_many(cursor: sqlite3.Cursor) -> None:
    cursor.executemany("INSERT OR ROLLBACK INTO taken VALUES (?)", [(2,), (1,), (3,)])


def rollback_clause_of_an_update(cursor: sqlite3.Cursor) -> None:
    cursor.execute("INSERT INTO taken VALUES (2)")
    cursor.execute("UPDATE OR ROLLBACK taken SET id = 1")


def rollback_by_a_trigger(cursor: sqlite3.Cursor) -> None:
    cursor.execute("INSERT INTO watched VALUES (1)")


CONFLICTS: list[Effect] = [
    rollback_clause,
    rollback_clause_among_many,
    rollback_clause_of_an_update,
    rollback_by_a_trigger,
]
ENDINGS: dict[str, Effect] = {
    **{
        statement: lambda cursor, statement=statement: cursor.execute(statement)  # type: ignore
        for statement in (
            "ROLLBACK",
            "COMMIT",
            "END",
            "BEGIN",
            "BEGIN IMMEDIATE",
            "rollback -- now",
            "/* */ COMMIT",
            "/* no */ commit -- yes",
        )
    },
    "connection.execute": lambda cursor: cursor.connection.execute("COMMIT"),
    "connection.cursor": lambda cursor: cursor.connection.cursor().execute("COMMIT"),
    "executescript": lambda cursor: cursor.executescript("COMMIT; BEGIN;"),
}


def as_a_context(cursor: sqlite3.Cursor) -> None:
    with cursor.connection:
        cursor.execute(INSERT)


def by_the_isolation_level(cursor: sqlite3.Cursor) -> None:
    cursor.connection.isolation_level = "DEFERRED"
    cursor.connection.isolation_level = None


# The driver refuses these through SQLite, or does nothing in autocommit mode (from 3.12 on).
PERHAPS_NOTHING: dict[str, Effect] = {
    "connection.commit": lambda cursor: cursor.connection.commit(),
    "connection.rollback": lambda cursor: cursor.connection.rollback(),
    "connection.__exit__": lambda cursor: cursor.connection.__exit__(None, None, None),
    "a script that reads": lambda cursor: cursor.executescript("SELECT 1;"),
    "a script that commits": lambda cursor: cursor.executescript("SELECT 1; COMMIT;"),
    "connection as a context": as_a_context,
    "isolation_level": by_the_isolation_level,
}


def named(endings: dict[str, Effect]) -> list[Any]:
    return [pytest.param(effect, id=name) for name, effect in endings.items()]


@pytest.fixture(params=["transact", "transacted"])
async def run(
    request: pytest.FixtureRequest, checkpointer: SqliteCheckpointer
) -> AsyncIterator[Run]:
    """An effect run by `transact`, and the same by `transacted` inside `Database.run`."""
    holder = await checkpointer.claim("w", MIN, MIN)
    assert holder is not None

    async def through(effect: Effect) -> object:
        if request.param == "transact":
            return await in_time(checkpointer.transact(holder, "k", effect))
        work = checkpointer.database.run(lambda connection: transacted(connection, effect))
        return await in_time(work)

    yield through
    assert await in_time(checkpointer.supply("after", "k", 1)) == 1, "the store is not usable"


async def assert_nothing_kept(app: sqlite3.Connection, checkpointer: SqliteCheckpointer) -> None:
    assert rows(app) == 0, "the effect was kept"
    assert rows(app, "taken") == 1, "a part of the effect was kept"
    assert await checkpointer.load("w") == {}, "the record was kept"
    holder = await checkpointer.claim("v", MIN, MIN)
    assert holder is not None
    assert await checkpointer.transact(holder, "k", lambda cursor: "again") == "again"


@pytest.mark.parametrize("goes_on", [False, True], ids=["returns", "goes on"])
@pytest.mark.parametrize("ended", [*CONFLICTS, *named(ENDINGS)])
async def test_k15_an_effect_that_swallows_the_end_of_its_transaction_keeps_nothing(
    ended: Effect,
    goes_on: bool,
    app: sqlite3.Connection,
    checkpointer: SqliteCheckpointer,
    run: Run,
) -> None:
    def effect(cursor: sqlite3.Cursor) -> str:
        cursor.execute(INSERT)
        with suppress(sqlite3.Error):
            ended(cursor)
        if goes_on:
            with suppress(sqlite3.Error):
                cursor.execute(INSERT)
        return "done"

    with pytest.raises(RuntimeError, match="transaction"):
        await run(effect)
    await assert_nothing_kept(app, checkpointer)


@pytest.mark.parametrize("ended", named(ENDINGS))
async def test_k15_an_effect_that_ends_its_transaction_itself_is_refused(
    ended: Effect, app: sqlite3.Connection, checkpointer: SqliteCheckpointer, run: Run
) -> None:
    def effect(cursor: sqlite3.Cursor) -> None:
        cursor.execute(INSERT)
        ended(cursor)

    with pytest.raises(RuntimeError, match="transaction"):
        await run(effect)
    await assert_nothing_kept(app, checkpointer)


@pytest.mark.parametrize("ended", CONFLICTS)
async def test_k15_a_conflict_clauses_own_error_is_the_one_its_caller_sees(
    ended: Effect, app: sqlite3.Connection, checkpointer: SqliteCheckpointer, run: Run
) -> None:
    def effect(cursor: sqlite3.Cursor) -> None:
        cursor.execute(INSERT)
        ended(cursor)

    with pytest.raises(sqlite3.IntegrityError, match=r"UNIQUE|not here"):
        await run(effect)
    await assert_nothing_kept(app, checkpointer)


@pytest.mark.parametrize("ended", named(PERHAPS_NOTHING))
async def test_k15_an_effect_whose_transaction_may_have_ended_keeps_all_or_nothing(
    ended: Effect, app: sqlite3.Connection, checkpointer: SqliteCheckpointer
) -> None:
    holder = await checkpointer.claim("w", MIN, MIN)
    assert holder is not None
    kept = True

    def effect(cursor: sqlite3.Cursor) -> None:
        cursor.execute(INSERT)
        ended(cursor)

    try:
        await checkpointer.transact(holder, "k", effect)
    except (RuntimeError, sqlite3.Error):
        kept = False
    assert bool(rows(app)) is kept
    assert rows(app, "taken") == 1
    assert await checkpointer.load("w") == ({"k": None} if kept else {})


@pytest.mark.parametrize("swallows", [False, True], ids=["raises", "swallows"])
@pytest.mark.parametrize("ended", named(PERHAPS_NOTHING))
async def test_k15_what_the_driver_may_ignore_commits_nothing_early(
    ended: Effect,
    swallows: bool,
    app: sqlite3.Connection,
    checkpointer: SqliteCheckpointer,
    run: Run,
) -> None:
    def effect(cursor: sqlite3.Cursor) -> str:
        cursor.execute(INSERT)
        with suppress(sqlite3.Error) if swallows else nullcontext():
            ended(cursor)
        cursor.execute(INSERT)
        raise LookupError("the effect's own")

    with pytest.raises((RuntimeError, LookupError)):
        await run(effect)
    await assert_nothing_kept(app, checkpointer)


WAYS: dict[str, Callable[[sqlite3.Cursor, str], object]] = {
    "cursor": lambda cursor, sql: cursor.execute(sql),
    "fresh cursor": lambda cursor, sql: cursor.connection.cursor().execute(sql),
    "connection": lambda cursor, sql: cursor.connection.execute(sql),
    "executemany": lambda cursor, sql: cursor.connection.executemany(sql, [()]),
    "executescript": lambda cursor, sql: cursor.executescript(sql),
}


@pytest.mark.parametrize("prepared", [False, True], ids=["fresh", "prepared"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ended", CONFLICTS)
async def test_k15_what_follows_a_conflict_clause_does_not_commit_on_its_own(
    ended: Effect,
    way: str,
    prepared: bool,
    app: sqlite3.Connection,
    checkpointer: SqliteCheckpointer,
    run: Run,
) -> None:
    def effect(cursor: sqlite3.Cursor) -> None:
        if prepared and way != "executescript":
            WAYS[way](cursor, INSERT)  # the driver has compiled the very statement already
        with suppress(sqlite3.Error):
            ended(cursor)
        for sql in (INSERT, INSERT, "INSERT INTO app VALUES (2)"):
            with suppress(sqlite3.Error):
                WAYS[way](cursor, sql)

    with pytest.raises(RuntimeError, match="transaction"):
        await run(effect)
    await assert_nothing_kept(app, checkpointer)


async def test_k15_an_effects_settings_do_not_outlive_it(
    app: sqlite3.Connection, database: Database, run: Run
) -> None:
    def effect(cursor: sqlite3.Cursor) -> None:
        cursor.connection.isolation_level = "DEFERRED"
        cursor.connection.row_factory = sqlite3.Row

    await run(effect)
    await database.run(lambda connection: connection.execute(INSERT).close())
    assert rows(app) == 1, "an insert that seemed to succeed waits for a commit"
    assert database.connection.row_factory is None


def leaves_a_begin(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    connection.execute(INSERT)


def leaves_an_immediate(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(INSERT)


def leaves_a_savepoint(connection: sqlite3.Connection) -> None:
    connection.execute("SAVEPOINT mine")
    connection.execute(INSERT)


def leaves_an_implicit_one(connection: sqlite3.Connection) -> None:
    connection.isolation_level = "DEFERRED"
    connection.execute("BEGIN")
    connection.execute(INSERT)


LEFT_OPEN = [leaves_a_begin, leaves_an_immediate, leaves_a_savepoint, leaves_an_implicit_one]


@pytest.mark.parametrize("left", LEFT_OPEN)
@pytest.mark.parametrize("raising", [False, True])
async def test_k16_a_transaction_left_open_is_rolled_back_and_the_next_call_is_clean(
    left: Callable[[sqlite3.Connection], None],
    raising: bool,
    path: Path,
    app: sqlite3.Connection,
    database: Database,
    checkpointer: SqliteCheckpointer,
) -> None:
    def work(connection: sqlite3.Connection) -> None:
        left(connection)
        if raising:
            raise LookupError("the work's own")

    expected = LookupError if raising else RuntimeError
    with pytest.raises(expected, match="own" if raising else "left a transaction open"):
        await database.run(work)
    holder = await checkpointer.claim("w", MIN, MIN)
    assert holder is not None
    await checkpointer.supply("w", "k", 1)
    await checkpointer.record(holder, "l", 2)
    assert rows(app) == 0, "what was left open was committed"
    assert rows(app, "workflow_checkpoint") == 2, "a write joined somebody else's transaction"
    await database.aclose()
    async with connect(path) as reopened:
        assert await SqliteCheckpointer(reopened).load("w") == {"k": 1, "l": 2}


async def test_k16_a_cancelled_work_leaves_nothing_open(
    app: sqlite3.Connection, database: Database, checkpointer: SqliteCheckpointer
) -> None:
    inside, leave = threading.Event(), threading.Event()
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reported.append(report))

    def work(connection: sqlite3.Connection) -> None:
        leaves_a_begin(connection)
        inside.set()
        leave.wait(10)

    task = asyncio.create_task(database.run(work))
    await asyncio.to_thread(inside.wait, 10)
    task.cancel()
    supplied = asyncio.create_task(checkpointer.supply("w", "k", 1))
    await asyncio.sleep(0)
    leave.set()
    await supplied
    assert task.cancelled()
    assert rows(app) == 0
    assert rows(app, "workflow_checkpoint") == 1
    assert isinstance(reported[0]["exception"], RuntimeError), "an error went nowhere"


def default_mode(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, check_same_thread=False)


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
    "in_the_drivers_default_mode": (default_mode, "isolation_level"),
    "that_begins_immediately": (partial(plain, isolation_level="IMMEDIATE"), "isolation_level="),
    "that_begins_exclusively": (partial(plain, isolation_level="EXCLUSIVE"), "isolation_level="),
    "bound_to_one_thread": (partial(plain, check_same_thread=True), "check_same_thread"),
    "that_is_closed": (closed, "closed"),
    "with_a_transaction_open": (in_transaction, "in_transaction"),
    "with_synchronous_normal": (partial(synchronous, "NORMAL"), "synchronous"),
    "with_synchronous_off": (partial(synchronous, "OFF"), "synchronous"),
}
if hasattr(sqlite3.Connection, "autocommit"):  # from Python 3.12
    REFUSED["without_autocommit"] = (partial(plain, autocommit=False), "autocommit=False")


@pytest.mark.parametrize("case", REFUSED)
def test_k17_a_connection_is_refused_by_the_setting_it_could_not_be_durable_with(
    case: str, path: Path
) -> None:
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


async def test_k17_what_was_acknowledged_over_an_accepted_connection_is_there_after_reopening(
    path: Path,
) -> None:
    database = Database(plain(path))
    await migrate(database)
    await SqliteCheckpointer(database).supply("w", "k", 1)
    await database.aclose()
    async with connect(path) as reopened:
        assert await SqliteCheckpointer(reopened).load("w") == {"k": 1}


@pytest.mark.parametrize(
    "leaves",
    [
        lambda c: c.execute("SELECT * FROM workflow_checkpoint"),
        lambda c: [c.execute("SELECT * FROM workflow_checkpoint")],
        lambda c: c.execute(
            "INSERT INTO workflow_queue (namespace, workflow, visible_at)"
            " VALUES ('x', 'a', 1), ('x', 'b', 1) RETURNING workflow"
        ),
    ],
    ids=["a half-read cursor", "one in a list", "an unfinished write"],
)
async def test_k16_a_cursor_that_work_returns_half_read_starves_no_later_write(
    database: Database,
    checkpointer: SqliteCheckpointer,
    other: sqlite3.Connection,
    leaves: Callable[[sqlite3.Connection], object],
) -> None:
    for number in range(3):
        await checkpointer.supply("w", str(number), number)
    try:
        kept: object = await database.run(leaves)
    except RuntimeError as refused:
        kept = refused
    other.execute("CREATE TABLE app (id INTEGER)").close()  # somebody else commits
    assert await checkpointer.supply("w", "late", 1) == 1, "every later write is refused at once"
    assert kept is not None


@pytest.mark.parametrize("mode", ["OFF", "MEMORY"])
def test_k17_a_connection_whose_journal_cannot_roll_back_or_recover_is_refused(
    path: Path, mode: str
) -> None:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute(f"PRAGMA journal_mode = {mode}").close()
    try:
        with pytest.raises(ValueError, match="journal_mode"):
            Database(connection)
    finally:
        connection.close()


async def test_k17_an_effect_that_fails_under_an_accepted_connection_keeps_nothing(
    path: Path,
) -> None:
    """What journal_mode = OFF does to C12 once an effect outgrows the page cache."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = OFF").close()
    connection.execute("PRAGMA cache_size = 10").close()
    connection.execute("CREATE TABLE app (id INTEGER, x BLOB)").close()
    for number in range(50):
        connection.execute("INSERT INTO app VALUES (?, zeroblob(300))", (number,)).close()
    try:
        database = Database(connection)
    except ValueError:
        connection.close()
        return

    def grows(cursor: sqlite3.Cursor) -> None:
        cursor.execute("UPDATE app SET id = id + 1000")
        for number in range(500):
            cursor.execute("INSERT INTO app VALUES (?, zeroblob(3000))", (number,))
        raise LookupError

    async with database:
        await migrate(database)
        store = SqliteCheckpointer(database)
        holder = await claimed(store, "w")
        with pytest.raises(LookupError):
            await store.transact(holder, "k", grows)
        last = await database.run(lambda c: c.execute("SELECT max(id) FROM app").fetchone())
        assert last == (49,), "half of a rolled-back effect was kept"


async def test_k16_a_transaction_of_ones_own_is_not_thrown_away_by_the_one_begun_inside_it(
    database: Database, app: sqlite3.Connection
) -> None:
    def nested(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")
        connection.execute(INSERT)
        transacted(connection, lambda cursor: cursor.execute(INSERT).rowcount)

    with pytest.raises(sqlite3.OperationalError, match="within a transaction"):
        await database.run(nested)
    assert app.execute("SELECT count(*) FROM app").fetchall() == [(0,)]


async def test_k16_a_transaction_that_the_guards_holder_left_open_is_rolled_back_and_said(
    database: Database, app: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async with database.guard:
        database.connection.execute("BEGIN")
        database.connection.execute(INSERT)
    await SqliteCheckpointer(database).supply("w", "k", 1)
    assert app.execute("SELECT count(*) FROM app").fetchall() == [(0,)]
    assert "a transaction that was left open is rolled back" in caplog.text


async def test_k16_a_cursor_that_was_half_read_before_the_work_is_not_held_against_it(
    path: Path,
) -> None:
    connection = plain(path)
    connection.execute("CREATE TABLE app AS SELECT 1 UNION SELECT 2")
    half_read = connection.execute("SELECT * FROM app")
    assert half_read.fetchone()
    async with Database(connection) as database:
        assert await database.run(lambda c: 5) == 5
        half_read.close()
