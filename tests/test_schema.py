"""`migrate`: fresh files, older and foreign shapes, and who else may use them (sqlite.md)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from children import started
from stores import over_sqlite
from without_durability import LEASE
from without_durability.testing import Clock
from without_durability_sqlite import SCHEMA, SqliteCheckpointer, connect, migrate

HANG = 10.0
NOW = timedelta(0)

PUBLISHED = """
CREATE TABLE workflow_checkpoint (
    seq INTEGER PRIMARY KEY NOT NULL,
    workflow TEXT NOT NULL,
    step TEXT NOT NULL,
    value TEXT NOT NULL,
    written_at REAL NOT NULL DEFAULT ((julianday('now') - 2440587.5) * 86400.0),
    UNIQUE (workflow, step)
);
CREATE TABLE workflow_claim (
    workflow TEXT PRIMARY KEY NOT NULL,
    token INTEGER NOT NULL,
    held_until REAL NOT NULL,
    alive_until REAL NOT NULL,
    alive_for REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE workflow_queue (
    namespace TEXT NOT NULL,
    workflow TEXT NOT NULL,
    visible_at REAL NOT NULL,
    PRIMARY KEY (namespace, workflow)
) WITHOUT ROWID;
CREATE INDEX workflow_queue_visible_at ON workflow_queue (namespace, visible_at);
"""

CLAIM_BY_BUDGET = """
CREATE TABLE workflow_claim (
    workflow TEXT PRIMARY KEY NOT NULL,
    token INTEGER NOT NULL,
    held_until REAL NOT NULL
) WITHOUT ROWID;
"""

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


@pytest.fixture
def other(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=HANG)) as other:
        yield other


def columns(connection: sqlite3.Connection, table: str) -> dict[str, tuple[str, int, int]]:
    return {
        name: (kind, notnull, key)
        for _, name, kind, notnull, _, key in connection.execute(f"PRAGMA table_info({table})")
    }


def shape(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    return connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()


async def migrated(path: Path) -> None:
    async with connect(path) as database:
        await migrate(database)


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
    for name in found.keys() - CONTRACT[table].keys():
        assert found[name][1:] == (0, 0), f"the added {name} may be left out of an INSERT"


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


@pytest.mark.parametrize("older", ["", PUBLISHED, CLAIM_BY_BUDGET], ids=["new", "0.0.10", "0.0.8"])
def test_k9_several_processes_migrate_one_file_together(tmp_path, older):
    script = """
async def use(path):
    async with connect(path) as database:
        await migrate(database)
        await SqliteCheckpointer(database).claim(str(os.getpid()), MINUTE, MINUTE)
for line in sys.stdin:
    try:
        asyncio.run(use(line.rstrip("\\n")))
    except BaseException as error:
        print(repr(error), flush=True)
    else:
        print("ok", flush=True)
"""
    children = [started(script) for _ in range(4)]
    try:
        for number in range(10):
            path = tmp_path / f"{number}.db"
            with closing(sqlite3.connect(path)) as made:
                made.executescript(older)
            for child in children:
                child.stdin.write(f"{path}\n")
                child.stdin.flush()
            assert [child.stdout.readline() for child in children] == ["ok\n"] * 4
            with closing(sqlite3.connect(path)) as other:
                assert other.execute("SELECT count(*) FROM workflow_claim").fetchone() == (4,)
    finally:
        for child in children:
            child.kill()
            child.communicate()


# --- older files ------------------------------------------------------------------------------


async def test_k9_a_published_file_is_upgraded_in_place_and_keeps_its_rows(path, other):
    clock = Clock()
    now = clock.seconds()
    other.executescript(PUBLISHED)
    other.execute(
        "INSERT INTO workflow_checkpoint (workflow, step, value, written_at) VALUES "
        "('w', 'b', '[1]', 5.5), ('w', 'a', '\"x\"', 6.5)"
    )
    other.execute("INSERT INTO workflow_claim VALUES ('w', 7, ?, ?, 60.0)", (now + 300, now + 60))
    other.execute("INSERT INTO workflow_queue VALUES ('workflow', 'w', ?)", (now - 1,))
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        both = over_sqlite(database, clock)
        assert list((await both.checkpointer.load("w")).items()) == [("b", [1]), ("a", "x")]
        history = await both.checkpointer.history("w")
        assert [written.at.timestamp() for written in history.values()] == [5.5, 6.5]
        assert await both.checkpointer.claim("w", LEASE, LEASE) is None, "it is still held"
        clock.advance(LEASE)
        holder = await both.checkpointer.claim("w", LEASE, LEASE)
        assert holder is not None
        assert holder.token > 7
        delivery = await both.scheduler.next_ready(NOW)
        assert delivery.workflow == "w"
        await both.scheduler.done(delivery)
    assert {"taken", "taken_for"} <= columns(other, "workflow_queue").keys()


async def test_k9_claims_from_before_signs_of_life_are_upgraded_with_their_tokens(path, other):
    clock = Clock()
    far = 10 * clock.seconds() * 1000
    other.executescript(PUBLISHED.split("CREATE TABLE workflow_claim")[0])
    other.executescript(CLAIM_BY_BUDGET)
    other.execute("INSERT INTO workflow_checkpoint (workflow, step, value) VALUES ('w', 'k', '1')")
    other.execute("INSERT INTO workflow_claim VALUES ('held', 3, ?)", (clock.seconds() + 60,))
    other.execute("INSERT INTO workflow_claim VALUES ('w', ?, 0)", (int(far),))
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        records = SqliteCheckpointer(database)
        assert await records.load("w") == {"k": 1}
        holder = await records.claim("w", LEASE, LEASE)
        assert holder.token == int(far) + 1, "the token goes on from where it stood"
        assert await records.claim("held", LEASE, LEASE) is None, "held until its budget ends"
        clock.advance(LEASE)
        assert (await records.claim("held", LEASE, LEASE)).token > 3
    tables = {name for (_, name, _) in shape(other)}
    assert "workflow_claim_before" not in tables


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


# --- newer and foreign files ------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        "SELECT 1",
        "ALTER TABLE workflow_queue ADD COLUMN shard TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE workflow_claim RENAME COLUMN alive_for TO patience",
        "DROP TABLE workflow_queue",
        "ALTER TABLE workflow_schema ADD COLUMN made_by TEXT",
    ],
)
async def test_k9_a_newer_file_is_refused_by_its_version_and_left_as_it_was(path, other, changed):
    await migrated(path)
    other.execute("UPDATE workflow_schema SET version = 99")
    other.execute(changed)
    before = shape(other)
    async with connect(path) as database:
        with pytest.raises(sqlite3.NotSupportedError, match="99") as caught:
            await migrate(database)
    assert str(path) in str(caught.value)
    assert shape(other) == before


FOREIGN = {
    "workflow_queue": "CREATE TABLE workflow_queue (id INTEGER PRIMARY KEY, job TEXT NOT NULL)",
    "workflow_claim": "CREATE TABLE workflow_claim (workflow TEXT PRIMARY KEY, owner TEXT)",
    "workflow_checkpoint": "CREATE TABLE workflow_checkpoint (workflow TEXT, step TEXT)",
}
SUBTLY_FOREIGN = {
    "no_unique_key": (
        "workflow_checkpoint",
        PUBLISHED.replace(",\n    UNIQUE (workflow, step)", ""),
        "step",
    ),
    "another_key": (
        "workflow_queue",
        PUBLISHED.replace("PRIMARY KEY (namespace, workflow)", "PRIMARY KEY (workflow)"),
        "namespace",
    ),
    "another_type": (
        "workflow_claim",
        PUBLISHED.replace("token INTEGER", "token TEXT"),
        "token",
    ),
    "a_column_that_must_be_filled": (
        "workflow_queue",
        PUBLISHED.replace(
            "visible_at REAL NOT NULL,", "visible_at REAL NOT NULL, x TEXT NOT NULL,"
        ),
        "x",
    ),
    "a_column_missing": (
        "workflow_checkpoint",
        PUBLISHED.replace("    value TEXT NOT NULL,\n", ""),
        "value",
    ),
}


@pytest.mark.parametrize("table", FOREIGN)
async def test_k9_a_table_of_another_making_is_refused_by_name_and_left_as_it_was(
    path, other, table
):
    other.execute(FOREIGN[table])
    await refused(path, other, table, *columns(other, table))


@pytest.mark.parametrize("case", SUBTLY_FOREIGN)
async def test_k9_an_unknown_shape_is_refused_naming_table_and_column(path, other, case):
    table, script, column = SUBTLY_FOREIGN[case]
    assert script != PUBLISHED
    other.executescript(script)
    await refused(path, other, table, column)


async def refused(path: Path, other: sqlite3.Connection, *named: str) -> None:
    before = shape(other)
    async with connect(path) as database:
        with pytest.raises(sqlite3.DatabaseError) as caught:
            await migrate(database)
    for name in (str(path), *named):
        assert name in str(caught.value)
    assert shape(other) == before, "nothing is half applied"


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


async def test_k10_no_statement_relies_on_the_clock_of_sql(path):
    clock = Clock()
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        both = over_sqlite(database, clock)
        await both.durable.arrive("w", "k", 1)
        ((at,),) = await database.run(
            lambda connection: connection.execute(
                "SELECT written_at FROM workflow_checkpoint"
            ).fetchall()
        )
        assert at == clock.seconds()
        assert (await both.scheduler.next_ready(NOW)).workflow == "w"
