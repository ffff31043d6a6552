"""`migrate`: fresh files, older and foreign shapes, and who else may use them (sqlite.md)."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from older_files import PUBLISHED, columns, shape
from stores import over_sqlite
from without_durability import LEASE
from without_durability.testing import Clock
from without_durability_sqlite import SCHEMA, SqliteCheckpointer, connect, migrate

HANG = 10.0
NOW = timedelta(0)

# The statements of the published release, as it would write to a file that we have upgraded.
PUBLISHED_WRITES = (
    "INSERT INTO workflow_checkpoint (workflow, step, value) VALUES ('theirs', 'a', '1')",
    """INSERT INTO workflow_checkpoint (workflow, step, value) VALUES ('theirs', 'a', '2')
       ON CONFLICT (workflow, step) DO NOTHING""",
    """INSERT INTO workflow_claim (workflow, token, held_until, alive_until, alive_for)
       VALUES ('theirs', 1, 5.0, 5.0, 5.0)
       ON CONFLICT (workflow) DO UPDATE SET token = token + 1, held_until = excluded.held_until,
           alive_until = excluded.alive_until, alive_for = excluded.alive_for
       WHERE alive_until <= 9.0 RETURNING token""",
    """UPDATE workflow_claim SET alive_until = min(held_until, 7.0 + alive_for)
       WHERE workflow = 'theirs' AND token = 1""",
    """INSERT INTO workflow_queue (namespace, workflow, visible_at)
       VALUES ('workflow', 'theirs', 5.0)
       ON CONFLICT (namespace, workflow) DO UPDATE SET visible_at = excluded.visible_at""",
    """UPDATE workflow_queue SET visible_at = 6.0 WHERE (namespace, workflow) = (
           SELECT namespace, workflow FROM workflow_queue
           WHERE namespace = 'workflow' AND visible_at <= 9.0 ORDER BY visible_at LIMIT 1)
       RETURNING workflow, visible_at""",
)


async def migrated(path: Path) -> None:
    async with connect(path) as database:
        await migrate(database)


def may_be_left_out(connection: sqlite3.Connection, table: str) -> set[str]:
    """The columns that an INSERT need not name."""
    described = connection.execute(f"PRAGMA table_info({table})").fetchall()
    return {name for _, name, _, notnull, default, _ in described if not notnull or default}


CONTRACT = {
    "workflow_checkpoint": {
        "seq": ("INTEGER", 1),
        "workflow": ("TEXT", 0),
        "step": ("TEXT", 0),
        "value": ("TEXT", 0),
        "written_at": ("REAL", 0),
    },
    "workflow_claim": {
        "workflow": ("TEXT", 1),
        "token": ("INTEGER", 0),
        "held_until": ("REAL", 0),
        "alive_until": ("REAL", 0),
        "alive_for": ("REAL", 0),
    },
    "workflow_queue": {
        "namespace": ("TEXT", 1),
        "workflow": ("TEXT", 2),
        "visible_at": ("REAL", 0),
    },
}


@pytest.mark.parametrize("made_by", ["SCHEMA", "migrate"])
@pytest.mark.parametrize("table", CONTRACT)
async def test_a_table_has_the_columns_of_the_contract(path, other, table, made_by):
    if made_by == "SCHEMA":
        other.executescript(SCHEMA)
    else:
        await migrated(path)
    found = columns(other, table)
    for name, (kind, key) in CONTRACT[table].items():
        assert found[name] == (kind, 1, key), f"{name} is NOT NULL and of its type"
    added = found.keys() - CONTRACT[table].keys()
    assert added <= may_be_left_out(other, table), "an INSERT that names its columns fails"
    assert not any(found[name][2] for name in added)


@pytest.mark.parametrize(
    ("table", "rowid"),
    [("workflow_checkpoint", True), ("workflow_claim", False), ("workflow_queue", False)],
)
def test_a_table_has_a_rowid_only_where_the_contract_says(other, table, rowid):
    other.executescript(SCHEMA)
    (sql,) = other.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    assert ("WITHOUT ROWID" not in sql) == rowid


def test_a_key_of_a_workflow_is_recorded_once_and_the_queue_is_ordered_by_an_index(other):
    other.executescript(SCHEMA)
    insert = (
        "INSERT INTO workflow_checkpoint (workflow, step, value, written_at) VALUES (?, ?, 1, 1)"
    )
    other.execute(insert, ("w", "k"))
    other.execute(insert, ("w", "l"))
    other.execute(insert, ("v", "k"))
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        other.execute(insert, ("w", "k"))
    index = other.execute("PRAGMA index_info(workflow_queue_visible_at)").fetchall()
    assert [name for _, _, name in index] == ["namespace", "visible_at"]


def test_the_schema_may_be_run_again_and_again(other):
    other.executescript(SCHEMA)
    before = shape(other)
    other.executescript(SCHEMA)
    assert shape(other) == before


async def test_migrating_makes_what_the_schema_says(path, tmp_path, other):
    await migrated(path)
    with closing(sqlite3.connect(tmp_path / "by_hand.db")) as by_hand:
        by_hand.executescript(SCHEMA)
        assert shape(other) == shape(by_hand)


async def test_migrating_again_changes_nothing_and_takes_no_lock(path, other):
    await migrated(path)
    before = shape(other)
    other.execute("BEGIN IMMEDIATE")
    async with asyncio.timeout(HANG):
        async with connect(path) as database:
            await migrate(database)
            await migrate(database)
    other.execute("ROLLBACK")
    assert shape(other) == before


async def test_a_file_made_by_the_schema_alone_is_brought_up_to_date(path, other):
    other.executescript(SCHEMA)
    await migrated(path)
    async with connect(path) as database:
        assert await SqliteCheckpointer(database).supply("w", "k", 1) == 1


# --- older files ------------------------------------------------------------------------------


@pytest.mark.parametrize("write", PUBLISHED_WRITES, ids=range(len(PUBLISHED_WRITES)))
async def test_published_statements_go_on_working_on_an_upgraded_file(path, other, write):
    other.executescript(PUBLISHED)
    await migrated(path)
    for before in PUBLISHED_WRITES[: PUBLISHED_WRITES.index(write)]:
        other.execute(before).fetchall()
    other.execute(write).fetchall()
    async with connect(path) as database:
        assert set(await SqliteCheckpointer(database).load("theirs")) == {"a"}


@pytest.mark.parametrize("write", PUBLISHED_WRITES, ids=range(len(PUBLISHED_WRITES)))
async def test_published_statements_work_on_a_file_of_our_making(path, other, write):
    await migrated(path)
    for before in PUBLISHED_WRITES[: PUBLISHED_WRITES.index(write)]:
        other.execute(before).fetchall()
    other.execute(write).fetchall()


async def test_what_a_published_release_queued_is_delivered(path, other):
    await migrated(path)
    for write in PUBLISHED_WRITES:
        other.execute(write).fetchall()
    clock = Clock()
    async with connect(path, clock=clock.seconds) as database:
        both = over_sqlite(database, clock)
        delivery = await both.scheduler.next_ready(NOW)
        assert delivery.workflow == "theirs"
        assert (await both.checkpointer.claim("theirs", LEASE, LEASE)).token > 1
        assert await both.checkpointer.load("theirs") == {"a": 1}


# --- what is nobody's business ----------------------------------------------------------------


@pytest.mark.parametrize("added", ["note TEXT", "note TEXT NOT NULL DEFAULT 'none'"])
@pytest.mark.parametrize("table", CONTRACT)
async def test_an_added_column_that_may_be_left_out_is_nobodys_business(path, other, table, added):
    other.executescript(PUBLISHED)
    other.execute(f"ALTER TABLE {table} ADD COLUMN {added}")
    await migrated(path)
    async with connect(path) as database:
        both = over_sqlite(database, Clock())
        await both.durable.arrive("w", "k", 1)
        assert await both.checkpointer.claim("w", LEASE, LEASE) is not None
        assert (await both.scheduler.next_ready(NOW)).workflow == "w"


async def test_the_applications_own_version_and_tables_are_left_alone(path, other):
    other.execute("PRAGMA user_version = 41")
    other.execute("PRAGMA application_id = 42")
    other.execute("CREATE TABLE app (n)")
    other.execute("INSERT INTO app VALUES (1)")
    await migrated(path)
    assert other.execute("PRAGMA user_version").fetchone() == (41,)
    assert other.execute("PRAGMA application_id").fetchone() == (42,)
    assert other.execute("SELECT n FROM app").fetchall() == [(1,)]


async def test_an_index_that_somebody_dropped_is_made_again(path: Path) -> None:
    async with connect(path) as database:
        await migrate(database)
        await database.run(lambda c: c.execute("DROP INDEX workflow_queue_taken_for").close())
        await migrate(database)
        scheduler = over_sqlite(database, Clock()).scheduler
        await scheduler.make_ready("w")
        assert await scheduler.next_ready(timedelta(0)) is not None
