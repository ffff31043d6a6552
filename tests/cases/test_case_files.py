"""K10, K44, K47: SQLite itself, growth and a full disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from without_durability import Fenced, Pass
from without_durability.testing import Clock
from without_durability_sqlite import Database, SqliteCheckpointer, SqliteDurable, connect, store

MIN = timedelta(minutes=1)


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
    durable: SqliteDurable, other: sqlite3.Connection, clock: Clock
) -> None:
    other.execute("INSERT INTO workflow_checkpoint (workflow, step, value) VALUES ('w', 'k', '1')")
    await durable.arrive("w", "l", 1)
    holder = await durable.checkpointer.claim("w", MIN, MIN)
    assert holder is not None
    await durable.checkpointer.record(holder, "m", 1)
    kinds = other.execute("SELECT DISTINCT typeof(written_at) FROM workflow_checkpoint").fetchall()
    assert kinds == [("real",)]
    ours = "SELECT DISTINCT written_at FROM workflow_checkpoint WHERE step <> 'k'"
    assert other.execute(ours).fetchall() == [(clock.seconds(),)]
    assert await durable.scheduler.next_ready(timedelta(0)) is not None
    age = "SELECT abs(written_at - strftime('%s', 'now')) FROM workflow_checkpoint WHERE step = 'k'"
    assert other.execute(age).fetchall()[0][0] < 5


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


async def test_k44_swept_claims_of_finished_workflows_leave_nothing_and_are_outranked(
    database: Database, durable: SqliteDurable, other: sqlite3.Connection, clock: Clock
) -> None:
    """The sweep that docs/design.md allows: what nobody holds, below the present millisecond."""
    checkpointer = durable.checkpointer
    tokens: dict[str, int] = {}
    ((before,),) = other.execute("PRAGMA page_count").fetchall()
    for number in range(60):
        holder = await checkpointer.claim(str(number), MIN, MIN)
        assert holder is not None
        tokens[str(number)] = holder.token
        await checkpointer.record(holder, "k", 1)
        await durable.delete(str(number))
    held = await checkpointer.claim("held", MIN, MIN)
    assert held is not None
    ((after,),) = other.execute("PRAGMA page_count").fetchall()
    assert (after - before) * 4096 < 60 * 300, "a deleted workflow leaves too much"
    clock.advance(timedelta(milliseconds=2))
    asked = (int(clock.seconds() * 1000), clock.seconds())
    await database.run(
        lambda connection: connection.execute(
            "DELETE FROM workflow_claim WHERE token < ? AND alive_until <= ?", asked
        ).close()
    )
    assert other.execute("SELECT workflow FROM workflow_claim").fetchall() == [("held",)]
    assert await checkpointer.renew(held, MIN), "a live claim was swept"
    for workflow, token in tokens.items():
        with pytest.raises(Fenced):
            await checkpointer.record(Pass(workflow, token), "late", 1)
        again = await checkpointer.claim(workflow, MIN, MIN)
        assert again is not None
        assert again.token > token


async def test_k44_the_log_comes_back_once_a_reader_that_kept_it_has_gone(
    path: Path, checkpointer: SqliteCheckpointer, other: sqlite3.Connection
) -> None:
    limit = 4 * 1024 * 1024
    log = path.with_name(path.name + "-wal")
    other.execute("BEGIN")
    other.execute("SELECT * FROM workflow_checkpoint").fetchall()
    await checkpointer.supply("big", "k", "x" * 2 * limit)
    for number in range(20):
        await checkpointer.supply("small", str(number), number)
    assert log.stat().st_size > 2 * limit, "a reader's state of the file was taken from it"
    other.execute("COMMIT")
    for number in range(20):
        await checkpointer.supply("smaller", str(number), number)
    assert log.stat().st_size <= limit


async def test_k44_the_log_comes_back_after_a_burst_without_closing(
    path: Path, checkpointer: SqliteCheckpointer
) -> None:
    limit = 4 * 1024 * 1024
    log = path.with_name(path.name + "-wal")
    await checkpointer.supply("big", "k", "x" * 4 * limit)
    assert log.stat().st_size > 3 * limit
    for number in range(20):
        await checkpointer.supply("small", str(number), number)
    assert log.stat().st_size <= limit


def makes_a_table(cursor: sqlite3.Cursor) -> str:
    cursor.execute("CREATE TABLE app (id INTEGER)")
    return BIG


BIG = "x" * 100_000
GROWING: dict[str, Callable[[SqliteDurable, Pass], Awaitable[object]]] = {
    "record": lambda d, holder: d.checkpointer.record(holder, "k", BIG),
    "transact": lambda d, holder: d.checkpointer.transact(holder, "k", makes_a_table),
    "supply": lambda d, _: d.checkpointer.supply("w", "k", BIG),
    "append": lambda d, _: d.checkpointer.append("w", BIG),
    "arrive": lambda d, _: d.arrive("w", "k", BIG),
    "deliver": lambda d, _: d.deliver("w", BIG),
    "transacted": lambda d, _: d.checkpointer.database.run(
        lambda connection: store.transacted(
            connection, lambda cursor: cursor.execute("CREATE TABLE app AS SELECT zeroblob(1e6)")
        )
    ),
}


@pytest.mark.parametrize("call", GROWING)
async def test_k47_a_full_disk_is_what_the_caller_hears_of_and_passes(
    call: str, database: Database, durable: SqliteDurable, other: sqlite3.Connection
) -> None:
    checkpointer = durable.checkpointer
    holder = await checkpointer.claim("w", MIN, MIN)
    assert holder is not None

    def limited(extra: int) -> Callable[[sqlite3.Connection], None]:
        def work(connection: sqlite3.Connection) -> None:
            ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
            connection.execute(f"PRAGMA max_page_count = {pages + extra}").fetchall()

        return work

    await database.run(limited(3))
    before = other.execute("SELECT name FROM sqlite_master").fetchall()
    with pytest.raises(sqlite3.OperationalError, match="full") as heard:
        await GROWING[call](durable, holder)
    assert heard.value.sqlite_errorname == "SQLITE_FULL"
    assert not database.connection.in_transaction
    assert await checkpointer.load("w") == {}
    assert other.execute("SELECT name FROM sqlite_master").fetchall() == before
    assert await durable.scheduler.next_ready(timedelta(0)) is None
    await database.run(limited(10_000))
    await GROWING[call](durable, holder)
    kept = list((await checkpointer.load("w")).values())
    assert kept == ([] if call == "transacted" else [BIG])
    assert await checkpointer.renew(holder, MIN), "the claim was lost with the write"
