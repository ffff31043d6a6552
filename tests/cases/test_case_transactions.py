"""K15 to K17: transactions that end early, stay open, or were never meant to be durable."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from without_durability_sqlite import Database, SqliteCheckpointer, connect, migrate
from without_durability_sqlite.store import transacted

MIN = timedelta(minutes=1)
INSERT = "INSERT INTO app VALUES (1)"


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
        CREATE TABLE child (id INTEGER REFERENCES taken DEFERRABLE INITIALLY DEFERRED);
    """)
    return other


def rows(connection: sqlite3.Connection, table: str = "app") -> int:
    count: int
    ((count,),) = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
    return count


def by_a_conflict_clause(cursor: sqlite3.Cursor) -> None:
    cursor.execute("INSERT OR ROLLBACK INTO taken VALUES (1)")


def by_a_conflict_clause_among_many(cursor: sqlite3.Cursor) -> None:
    cursor.executemany("INSERT OR ROLLBACK INTO taken VALUES (?)", [(2,), (1,), (3,)])


def by_an_update_clause(cursor: sqlite3.Cursor) -> None:
    cursor.execute("INSERT INTO taken VALUES (2)")
    cursor.execute("UPDATE OR ROLLBACK taken SET id = 1")


def by_a_trigger(cursor: sqlite3.Cursor) -> None:
    cursor.execute("INSERT INTO watched VALUES (1)")


def by_the_connection_rollback(cursor: sqlite3.Cursor) -> None:
    cursor.connection.rollback()


def by_the_connection_commit(cursor: sqlite3.Cursor) -> None:
    cursor.connection.commit()


def by_a_script(cursor: sqlite3.Cursor) -> None:
    cursor.executescript("SELECT 1; COMMIT;")


def by_the_connection_as_a_context(cursor: sqlite3.Cursor) -> None:
    with cursor.connection:
        cursor.execute(INSERT)


def by_the_isolation_level(cursor: sqlite3.Cursor) -> None:
    cursor.connection.isolation_level = "DEFERRED"
    cursor.connection.isolation_level = None


def by(statement: str) -> Callable[[sqlite3.Cursor], object]:
    return lambda cursor: cursor.execute(statement).fetchall()


CONFLICTS = [
    by_a_conflict_clause,
    by_a_conflict_clause_among_many,
    by_an_update_clause,
    by_a_trigger,
]
STATEMENTS = [
    pytest.param(by(statement), id=statement)
    for statement in ("ROLLBACK", "COMMIT", "END", "BEGIN", "rollback -- now", "/* */ COMMIT")
]
METHODS = [
    by_the_connection_rollback,
    by_the_connection_commit,
    by_a_script,
    by_the_connection_as_a_context,
    by_the_isolation_level,
]


@pytest.mark.parametrize("ended", [*CONFLICTS, *STATEMENTS])
async def test_k15_an_effect_that_swallows_the_end_of_its_transaction_keeps_nothing(
    ended: Callable[[sqlite3.Cursor], object],
    app: sqlite3.Connection,
    checkpointer: SqliteCheckpointer,
) -> None:
    holder = await checkpointer.claim("w", MIN, MIN)
    assert holder is not None

    def effect(cursor: sqlite3.Cursor) -> str:
        cursor.execute(INSERT)
        with suppress(sqlite3.Error):
            ended(cursor)
        return "done"

    with pytest.raises(RuntimeError, match=r"transaction"):
        await checkpointer.transact(holder, "k", effect)
    assert rows(app) == 0, "the effect was kept"
    assert rows(app, "taken") == 1, "a part of the effect was kept"
    assert await checkpointer.load("w") == {}, "the record was kept"
    assert await checkpointer.transact(holder, "k", lambda cursor: "again") == "again"


@pytest.mark.parametrize("ended", [*CONFLICTS, *STATEMENTS, *METHODS])
async def test_k15_an_effect_whose_transaction_ended_keeps_all_or_nothing(
    ended: Callable[[sqlite3.Cursor], object],
    app: sqlite3.Connection,
    checkpointer: SqliteCheckpointer,
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


@pytest.mark.parametrize("through", ["cursor", "fresh cursor", "connection"])
@pytest.mark.parametrize("ended", CONFLICTS)
async def test_k15_what_follows_a_conflict_clause_does_not_commit_on_its_own(
    ended: Callable[[sqlite3.Cursor], object],
    through: str,
    app: sqlite3.Connection,
    checkpointer: SqliteCheckpointer,
) -> None:
    holder = await checkpointer.claim("w", MIN, MIN)
    assert holder is not None

    def effect(cursor: sqlite3.Cursor) -> None:
        runner: Any = {
            "cursor": cursor,
            "fresh cursor": cursor.connection.cursor(),
            "connection": cursor.connection,
        }[through]
        runner.execute(INSERT)
        with suppress(sqlite3.Error):
            ended(cursor)
        with suppress(sqlite3.Error):
            runner.execute(INSERT)  # the very statement the driver has compiled already
        with suppress(sqlite3.Error):
            runner.execute("INSERT INTO app VALUES (2)")

    with pytest.raises(RuntimeError, match="transaction"):
        await checkpointer.transact(holder, "k", effect)
    assert rows(app) == 0, "a statement after the rollback committed by itself"


async def test_k15_a_commit_that_fails_keeps_nothing(
    app: sqlite3.Connection, database: Database, checkpointer: SqliteCheckpointer
) -> None:
    await database.run(lambda connection: connection.execute("PRAGMA foreign_keys = ON").close())
    holder = await checkpointer.claim("w", MIN, MIN)
    assert holder is not None
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        await checkpointer.transact(holder, "k", by("INSERT INTO child VALUES (7)"))
    assert not database.connection.in_transaction
    assert rows(app, "child") == 0
    assert await checkpointer.load("w") == {}


async def test_k15_savepoints_of_an_effects_own_are_its_own_business(
    app: sqlite3.Connection, checkpointer: SqliteCheckpointer
) -> None:
    holder = await checkpointer.claim("w", MIN, MIN)
    assert holder is not None

    def effect(cursor: sqlite3.Cursor) -> None:
        cursor.execute("SAVEPOINT mine")
        cursor.execute(INSERT)
        cursor.execute("ROLLBACK TO mine")
        cursor.execute("RELEASE mine")
        cursor.execute(INSERT)

    await checkpointer.transact(holder, "k", effect)
    assert rows(app) == 1


@pytest.mark.parametrize("ended", [*CONFLICTS, *STATEMENTS])
async def test_k15_transacted_is_held_to_the_same(
    ended: Callable[[sqlite3.Cursor], object], app: sqlite3.Connection, database: Database
) -> None:
    def work(cursor: sqlite3.Cursor) -> None:
        cursor.execute(INSERT)
        with suppress(sqlite3.Error):
            ended(cursor)

    with pytest.raises(RuntimeError, match="transaction"):
        await database.run(lambda connection: transacted(connection, work))
    assert rows(app) == 0


async def test_k15_an_effects_settings_do_not_outlive_it(
    app: sqlite3.Connection, database: Database, checkpointer: SqliteCheckpointer
) -> None:
    holder = await checkpointer.claim("w", MIN, MIN)
    assert holder is not None

    def effect(cursor: sqlite3.Cursor) -> None:
        cursor.connection.isolation_level = "DEFERRED"
        cursor.connection.row_factory = sqlite3.Row

    await checkpointer.transact(holder, "k", effect)
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


REFUSED = {
    "isolation_level": {"check_same_thread": False},
    "isolation_level=": {"isolation_level": "IMMEDIATE", "check_same_thread": False},
    "check_same_thread": {"isolation_level": None},
}


@pytest.mark.parametrize("setting", REFUSED)
def test_k17_a_connection_that_cannot_be_durable_is_refused_by_the_setting(
    setting: str, path: Path
) -> None:
    connection = sqlite3.connect(path, **REFUSED[setting])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=setting):
        Database(connection)
    connection.execute("SELECT 1").close()
    connection.close()


@pytest.mark.skipif(not hasattr(sqlite3.Connection, "autocommit"), reason="from Python 3.12")
def test_k17_autocommit_false_is_refused(path: Path) -> None:
    connection = sqlite3.connect(path, autocommit=False, check_same_thread=False)  # type: ignore
    with pytest.raises(ValueError, match="autocommit"):
        Database(connection)
    connection.close()


def test_k17_a_closed_connection_is_refused(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.close()
    with pytest.raises(ValueError, match="closed"):
        Database(connection)


def test_k17_a_connection_inside_a_transaction_is_refused(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN")
    with pytest.raises(ValueError, match="transaction"):
        Database(connection)
    connection.close()


@pytest.mark.parametrize("level", ["OFF", "NORMAL"])
def test_k17_a_connection_that_does_not_wait_for_the_disk_is_refused(
    level: str, path: Path
) -> None:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute(f"PRAGMA synchronous = {level}")
    with pytest.raises(ValueError, match="synchronous"):
        Database(connection)
    connection.close()


async def test_k17_what_was_acknowledged_over_an_accepted_connection_is_there_after_reopening(
    path: Path,
) -> None:
    database = Database(sqlite3.connect(path, isolation_level=None, check_same_thread=False))
    await migrate(database)
    await SqliteCheckpointer(database).supply("w", "k", 1)
    await database.aclose()
    async with connect(path) as reopened:
        assert await SqliteCheckpointer(reopened).load("w") == {"k": 1}
