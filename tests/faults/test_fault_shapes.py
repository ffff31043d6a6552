"""Tables of other shapes, settings and connections that are refused before anything is written."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from test_fault_opening import refused, usable

from gated import HANG, completing
from older_files import BEFORE_SIGNS_OF_LIFE, CLAIM_BY_BUDGET, PUBLISHED, shape
from stores import over_sqlite
from thread_gates import plain
from without_durability import Clock, Milliseconds, claimed, work
from without_durability_sqlite import Database, SqliteCheckpointer, connect, migrate

pytestmark = pytest.mark.usefixtures("nothing_left_open")

OLDER = {"published": PUBLISHED, "claims alone": CLAIM_BY_BUDGET, "before": BEFORE_SIGNS_OF_LIFE}
UNKNOWN = {
    "workflow_claim": (CLAIM_BY_BUDGET.replace("held_until REAL", "until REAL"), "until"),
    "workflow_checkpoint": (PUBLISHED.replace("value TEXT", "payload TEXT"), "payload"),
    "workflow_queue": (PUBLISHED.replace("visible_at REAL NOT", "visible_at TEXT NOT"), "visible"),
    "workflow_schema": ("CREATE TABLE workflow_schema (version TEXT PRIMARY KEY)", "version"),
}
MIGRATING: dict[str, Callable[[Database], Awaitable[object]]] = {
    "migrate": migrate,
    "prepare": lambda database: over_sqlite(database, Clock()).scheduler.prepare(),
    "work": lambda database: work(over_sqlite(database, Clock()).durable, completing),
}


@pytest.mark.parametrize("older", OLDER)
@pytest.mark.parametrize("way", ["migrate", "prepare"])
async def test_fault_an_older_shape_is_brought_up_to_date_by_whatever_migrates(path, older, way):
    with closing(plain(path)) as other:
        other.executescript(OLDER[older])
        claim = f"'w', {2**60}, 0{', 0, 60' if older == 'published' else ''}"
        other.execute(f"INSERT INTO workflow_claim VALUES ({claim})")
    async with connect(path) as database:
        await MIGRATING[way](database)
        holder = await claimed(SqliteCheckpointer(database), "w")
        assert holder.token > 2**60, "tokens begin anew"
        assert (await SqliteCheckpointer(database).record(holder, "k", 1)).first


@pytest.mark.parametrize("table", UNKNOWN)
@pytest.mark.parametrize("way", MIGRATING)
async def test_fault_an_unknown_shape_names_table_and_column_whatever_migrates(path, table, way):
    script, column = UNKNOWN[table]
    with closing(plain(path)) as other:
        other.executescript(script)
        before = shape(other)
        async with connect(path) as database:
            with pytest.raises(sqlite3.DatabaseError) as caught:
                await asyncio.wait_for(MIGRATING[way](database), HANG)
        for fact in (path, table, column):
            assert str(fact) in str(caught.value)
        assert shape(other) == before, "half of it was migrated"


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        *((Milliseconds(count), ValueError) for count in (-1, -(2**31), 2**31, 2**64)),
        *((Milliseconds(count), TypeError) for count in (1.0, True, "5", None)),
        *((given, TypeError) for given in (5000, 5.0, "5000", None, timedelta(seconds=5))),
    ],
)
async def test_fault_timeout_that_sqlite_cannot_hold_is_refused_and_never_becomes_no_wait(
    path, timeout, error
):
    for given in (path, ":memory:"):
        with refused(error, path.parent, "timeout"):
            connect(given, timeout=timeout)
    await usable(path)


@pytest.mark.parametrize("count", [0, 1, 2**31 - 1])
async def test_fault_timeout_that_sqlite_can_hold_is_the_one_it_holds(path, count):
    async with connect(path, timeout=Milliseconds(count)) as database:
        assert database.connection.execute("PRAGMA busy_timeout").fetchall() == [(count,)]


@pytest.mark.parametrize("blank", ["", " ", "\t", "\r\n", "\u3000\u00a0"], ids=ascii)
@pytest.mark.parametrize("given", [str, Path])
def test_fault_blank_path_is_a_value_error_and_makes_no_file(tmp_path, monkeypatch, blank, given):
    monkeypatch.chdir(tmp_path)
    if given is Path and not blank:
        with refused(sqlite3.OperationalError, tmp_path, "it is a folder"):
            connect(Path(blank))  # which is the folder one is in
    else:
        with refused(ValueError, tmp_path, "blank"):
            connect(given(blank))


def set_to(*pragmas: str, path: Path) -> sqlite3.Connection:
    connection = plain(path)
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}").fetchall()
    return connection


UNDURABLE: dict[str, tuple[Callable[[Path], sqlite3.Connection], str]] = {
    "isolation_level": (lambda path: plain(path, isolation_level=""), "isolation_level=''"),
    "check_same_thread": (partial(plain, check_same_thread=True), "check_same_thread"),
    "synchronous normal": (partial(set_to, "synchronous = 1"), "synchronous = 1"),
    "synchronous off": (partial(set_to, "synchronous = 0"), "synchronous = 0"),
    **{  # what a killed process leaves is then half a transaction
        f"journal {mode}": (
            partial(set_to, "journal_mode = DELETE", f"journal_mode = {mode}"),
            f"journal_mode = {mode}",
        )
        for mode in ("off", "memory")
    },
}
if sys.version_info >= (3, 12):
    UNDURABLE["autocommit"] = (partial(plain, autocommit=False), "autocommit=False")


@pytest.mark.parametrize("case", UNDURABLE)
@pytest.mark.parametrize("guard", [(), (asyncio.Lock(),)], ids=["own guard", "a lock"])
async def test_fault_connection_that_is_not_durable_is_refused_by_its_setting_and_stays_the_callers(
    path, case, guard
):
    await usable(path)
    make, setting = UNDURABLE[case]
    with closing(make(path=path)) as connection:
        with refused(ValueError, path.parent, setting):
            Database(connection, *guard)
        assert connection.execute("SELECT count(*) FROM workflow_checkpoint").fetchone() == (1,)
    await usable(path)
