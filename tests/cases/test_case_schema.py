"""K9: files of older, newer and foreign making."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from children import answered_ok, started
from older_files import BEFORE_SIGNS_OF_LIFE, CLAIM_BY_BUDGET, PUBLISHED, columns, shape
from stores import over_sqlite
from without_durability import LEASE, Fenced, Pass
from without_durability.testing import Clock
from without_durability_sqlite import SqliteCheckpointer, SqliteScheduler, connect, migrate

MIN = timedelta(minutes=1)
NOW = timedelta(0)


@pytest.mark.parametrize(
    "older",
    ["", PUBLISHED, CLAIM_BY_BUDGET, BEFORE_SIGNS_OF_LIFE],
    ids=["new", "0.0.10", "0.0.8's claims", "0.0.8"],
)
def test_k9_several_processes_migrate_one_file_together(tmp_path: Path, older: str) -> None:
    script = """
async def use(path):
    async with connect(path) as database:
        await migrate(database)
        await SqliteCheckpointer(database).claim(str(os.getpid()), MIN, MIN)
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
            assert answered_ok(children, path)
            with closing(sqlite3.connect(path)) as other:
                assert other.execute("SELECT count(*) FROM workflow_claim").fetchone() == (4,)
    finally:
        for child in children:
            child.kill()
            child.communicate()


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("queued", [False, True])
async def test_k9_an_older_file_is_brought_up_to_date_and_keeps_its_tokens(
    path: Path, other: sqlite3.Connection, clock: Clock, queued: bool, held: bool
) -> None:
    token = 2**60  # ahead of the clock, so that only the file can know it
    other.executescript(BEFORE_SIGNS_OF_LIFE)
    other.execute(
        "INSERT INTO workflow_checkpoint (workflow, step, value) VALUES ('w', 'k', '\"old\"')"
    )
    if queued:
        other.execute("INSERT INTO workflow_queue VALUES ('workflow', 'w', 0)")
    else:
        other.execute("DROP TABLE workflow_queue")
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
        delivery = await scheduler.next_ready(NOW)
        assert (delivery is not None) is queued
        if delivery is not None:
            await scheduler.done(delivery)
    assert {name for _, name, _ in shape(other) if name.startswith("workflow_claim")} == {
        "workflow_claim"
    }


async def test_k9_a_published_file_is_upgraded_in_place_and_keeps_its_rows(
    path: Path, other: sqlite3.Connection
) -> None:
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
async def test_k9_a_newer_file_is_refused_by_its_version_and_left_as_it_was(
    path: Path, other: sqlite3.Connection, changed: str
) -> None:
    async with connect(path) as database:
        await migrate(database)
    other.execute("UPDATE workflow_schema SET version = 99")
    other.execute(changed)
    before = shape(other)
    async with connect(path) as database:
        with pytest.raises(sqlite3.NotSupportedError, match=r"version 99.*version 2") as caught:
            await migrate(database)
    assert str(path) in str(caught.value)
    assert shape(other) == before


FOREIGN = {
    "workflow_queue": "CREATE TABLE workflow_queue (id INTEGER PRIMARY KEY, job TEXT NOT NULL)",
    "workflow_claim": "CREATE TABLE workflow_claim (workflow TEXT PRIMARY KEY, owner TEXT)",
    "workflow_checkpoint": "CREATE TABLE workflow_checkpoint (workflow TEXT, step TEXT)",
    "workflow_schema": "CREATE TABLE workflow_schema (name TEXT)",
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
    path: Path, other: sqlite3.Connection, table: str
) -> None:
    other.execute(FOREIGN[table])
    await refused(path, other, table, *columns(other, table))


@pytest.mark.parametrize("case", SUBTLY_FOREIGN)
async def test_k9_an_unknown_shape_is_refused_naming_table_and_column(
    path: Path, other: sqlite3.Connection, case: str
) -> None:
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
