"""K9 to K11, K27, K28, K44, K47: files of other releases, odd names, full disks and growth."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from without_durability import Fenced, Pass
from without_durability.testing import Clock
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    connect,
    migrate,
    store,
)

MIN = timedelta(minutes=1)

# The tables as the 0.0.8 release made them.
OLD = """
CREATE TABLE workflow_checkpoint (
    seq INTEGER PRIMARY KEY NOT NULL, workflow TEXT NOT NULL, step TEXT NOT NULL,
    value TEXT NOT NULL, written_at REAL NOT NULL DEFAULT 0, UNIQUE (workflow, step));
CREATE TABLE workflow_claim (
    workflow TEXT PRIMARY KEY NOT NULL, token INTEGER NOT NULL, held_until REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE workflow_queue (
    namespace TEXT NOT NULL, workflow TEXT NOT NULL, visible_at REAL NOT NULL,
    PRIMARY KEY (namespace, workflow)) WITHOUT ROWID;
CREATE INDEX workflow_queue_visible_at ON workflow_queue (namespace, visible_at);
INSERT INTO workflow_checkpoint (workflow, step, value) VALUES ('w', 'k', '"old"');
INSERT INTO workflow_queue VALUES ('workflow', 'w', 0);
"""


@pytest.mark.parametrize("held", [False, True])
async def test_k9_an_older_file_is_brought_up_to_date_and_keeps_its_tokens(
    path: Path, other: sqlite3.Connection, clock: Clock, held: bool
) -> None:
    token = 2**60  # ahead of the clock, so that only the file can know it
    other.executescript(OLD)
    claim = ("w", token, clock.seconds() + 60 if held else 0)
    other.execute("INSERT INTO workflow_claim VALUES (?, ?, ?)", claim)
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        await migrate(database)
        checkpointer, scheduler = SqliteCheckpointer(database), SqliteScheduler(database)
        if held:
            assert await checkpointer.claim("w", 5 * MIN, MIN) is None, "a live claim was lost"
            assert await checkpointer.renew(Pass("w", token), MIN)
            clock.advance(MIN)
        holder = await checkpointer.claim("w", 5 * MIN, MIN)
        assert holder == Pass("w", token + 1)
        with pytest.raises(Fenced):
            await checkpointer.record(Pass("w", token), "late", 1)
        await checkpointer.record(holder, "l", "new")
        assert await checkpointer.load("w") == {"k": "old", "l": "new"}
        delivery = await scheduler.next_ready(timedelta(0))
        assert delivery is not None
        await scheduler.done(delivery)


async def test_k9_a_newer_file_is_refused_by_name_and_left_alone(
    path: Path, database: Database, other: sqlite3.Connection
) -> None:
    other.execute("UPDATE workflow_schema SET version = 99")
    before = other.execute("SELECT name, sql FROM sqlite_master").fetchall()
    async with connect(path) as late:
        with pytest.raises(sqlite3.NotSupportedError, match=r"version 99.*version 1") as refused:
            await migrate(late)
    assert str(path) in str(refused.value)
    assert other.execute("SELECT name, sql FROM sqlite_master").fetchall() == before


FOREIGN = {
    "workflow_claim": "CREATE TABLE workflow_claim (workflow TEXT PRIMARY KEY, owner TEXT)",
    "workflow_queue": "CREATE TABLE workflow_queue (id INTEGER PRIMARY KEY, payload TEXT)",
    "workflow_checkpoint": "CREATE TABLE workflow_checkpoint (workflow TEXT, step TEXT)",
    "workflow_schema": "CREATE TABLE workflow_schema (name TEXT)",
}


@pytest.mark.parametrize("table", FOREIGN)
async def test_k9_tables_of_an_unknown_shape_are_refused_by_name(
    path: Path, other: sqlite3.Connection, table: str
) -> None:
    other.execute(FOREIGN[table])
    before = other.execute("SELECT name, sql FROM sqlite_master").fetchall()
    async with connect(path) as database:
        with pytest.raises(sqlite3.DatabaseError, match=table) as refused:
            await migrate(database)
    assert str(path) in str(refused.value)
    assert other.execute("SELECT name, sql FROM sqlite_master").fetchall() == before


@pytest.mark.parametrize("found", [(3, 7, 17), (3, 34, 1)])
def test_k10_an_sqlite_too_old_is_refused_with_both_versions(
    path: Path, monkeypatch: pytest.MonkeyPatch, found: tuple[int, ...]
) -> None:
    text = ".".join(map(str, found))
    monkeypatch.setattr(sqlite3, "sqlite_version_info", found)
    monkeypatch.setattr(sqlite3, "sqlite_version", text)
    with pytest.raises(sqlite3.NotSupportedError, match=f"3.35.0.*{text}"):
        connect(path)
    assert not path.exists()


async def test_k10_no_moment_is_null_whoever_inserts(
    durable: SqliteDurable, other: sqlite3.Connection
) -> None:
    other.execute("INSERT INTO workflow_checkpoint (workflow, step, value) VALUES ('w', 'k', '1')")
    await durable.arrive("w", "l", 1)
    holder = await durable.checkpointer.claim("w", MIN, MIN)
    assert holder is not None
    await durable.checkpointer.record(holder, "m", 1)
    kinds = other.execute("SELECT DISTINCT typeof(written_at) FROM workflow_checkpoint").fetchall()
    assert kinds == [("real",)]
    assert await durable.scheduler.next_ready(timedelta(0)) is not None
    age = "SELECT abs(written_at - strftime('%s', 'now')) FROM workflow_checkpoint WHERE step = 'k'"
    assert other.execute(age).fetchall()[0][0] < 5


class WithoutSharedMemory(sqlite3.Connection):
    """A connection on a file system that can do no write-ahead log."""

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        return super().execute(sql.replace("journal_mode = WAL", "journal_mode"), *arguments)


class WithoutSync(sqlite3.Connection):
    """A connection that takes no other level of care than its own."""

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        return super().execute(sql.replace("synchronous = FULL", "synchronous = OFF"), *arguments)


@pytest.mark.parametrize(
    ("factory", "named"),
    [(WithoutSharedMemory, "journal_mode.*delete"), (WithoutSync, "synchronous")],
)
def test_k11_a_refused_setting_is_an_error_that_names_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, factory: type[sqlite3.Connection], named: str
) -> None:
    made: list[sqlite3.Connection] = []
    connecting = sqlite3.connect

    def connected(*arguments: Any, **options: Any) -> sqlite3.Connection:
        made.append(connecting(*arguments, **options, factory=factory))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", connected)
    with pytest.raises(sqlite3.OperationalError, match=named) as refused:
        connect(path)
    assert str(path) in str(refused.value)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        made[0].execute("SELECT 1")


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
def test_k27_a_blank_path_is_refused(
    blank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="blank"):
        connect(blank)
    assert os.listdir() == []


async def test_k27_memory_is_what_it_says_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        async with connect(":memory:") as database:
            await migrate(database)
            checkpointer = SqliteCheckpointer(database)
            assert await checkpointer.load("w") == {}
            await checkpointer.supply("w", "k", 1)
    assert os.listdir() == []


NAMES = [
    "a?b#c%20d.db",
    "sp ace.db",
    "q'uote.db",
    'double".db',
    "\u00fcn\u00ef.db",
    "file:m?mode=memory",
    "file:x.db",
    "file::memory:?cache=shared",
    ":memory:.db",
    " :memory:",
    "-wal",
    "a;b--c.db",
    "new\nline.db",
    "%s%d.db",
    "~",
    "\U0001f9fe.db",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("given", [str, Path, lambda name: Path(name).absolute()])
async def test_k28_a_path_is_always_a_path(
    name: str,
    given: Callable[[str], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for turn in range(2):
        async with connect(given(name)) as database:
            await migrate(database)
            await SqliteCheckpointer(database).supply("w", str(turn), 1)
            assert len(await SqliteCheckpointer(database).load("w")) == turn + 1
            found = os.listdir()
            assert name in found
            assert all(one.startswith(name) for one in found), found
    assert os.listdir() == [name]


async def test_k44_a_deleted_workflow_leaves_a_bounded_rest(
    durable: SqliteDurable, other: sqlite3.Connection, clock: Clock
) -> None:
    for number in range(100):
        workflow = str(number)
        await durable.deliver(workflow, "x" * 1000)
        delivery = await durable.scheduler.next_ready(timedelta(0))
        holder = await durable.checkpointer.claim(workflow, MIN, MIN)
        assert holder is not None
        assert delivery is not None
        await durable.checkpointer.record(holder, "k", 1)
        await durable.checkpointer.release(holder)
        await durable.delete(workflow)
    counts = {
        table: other.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]
        for table in ("workflow_checkpoint", "workflow_queue", "workflow_claim")
    }
    assert counts["workflow_checkpoint"] == counts["workflow_queue"] == 0
    assert counts["workflow_claim"] <= 100
    ((pages,),) = other.execute("PRAGMA page_count").fetchall()
    assert pages < 50, "what was deleted still takes its place"


async def test_k44_the_log_comes_back_after_a_burst_without_closing(
    path: Path, database: Database, checkpointer: SqliteCheckpointer
) -> None:
    log = path.with_name(path.name + "-wal")
    await checkpointer.supply("big", "k", "x" * 20_000_000)
    assert log.stat().st_size > 15_000_000
    for number in range(1500):
        await checkpointer.supply("small", str(number), number)
        if log.stat().st_size < 5_000_000:
            break
    assert log.stat().st_size < 5_000_000


async def test_k47_a_full_disk_is_what_the_caller_hears_of_and_passes(
    database: Database, durable: SqliteDurable, other: sqlite3.Connection
) -> None:
    checkpointer = durable.checkpointer
    holder = await checkpointer.claim("w", MIN, MIN)
    assert holder is not None

    def limited(extra: int) -> Callable[[sqlite3.Connection], None]:
        def work(connection: sqlite3.Connection) -> None:
            ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
            connection.execute(f"PRAGMA max_page_count = {pages + extra}").fetchall()

        return work

    await database.run(limited(2))
    big = "x" * 100_000
    for call in (
        lambda: checkpointer.record(holder, "k", big),
        lambda: checkpointer.transact(holder, "k", lambda cursor: big),
        lambda: durable.arrive("w", "k", big),
        lambda: durable.deliver("w", big),
        lambda: database.run(
            lambda connection: store.transacted(
                connection, lambda cursor: cursor.execute("CREATE TABLE t AS SELECT zeroblob(1e6)")
            )
        ),
    ):
        with pytest.raises(sqlite3.OperationalError, match="full"):
            await call()
        assert not database.connection.in_transaction
        assert await checkpointer.load("w") == {}
    assert await durable.scheduler.next_ready(timedelta(0)) is None
    await database.run(limited(10_000))
    assert (await checkpointer.record(holder, "k", big)).first
    assert await checkpointer.load("w") == {"k": big}
