"""A row that somebody wrote by hand, or that a fault left: it harms nobody but its own workflow."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from without_durability import Clock, claimed
from without_durability_sqlite import Database, SqliteCheckpointer, SqliteScheduler

MINUTE = timedelta(minutes=1)
UNREADABLE_MOMENTS = ["2024-01-01", b"\x00\xff", float("inf"), 1e300, 253402300800.0]


@pytest.mark.parametrize("moment", UNREADABLE_MOMENTS, ids=repr)
async def test_a_record_without_a_moment_keeps_nobody_else_from_writing(
    database: Database, path: Path, clock: Clock, moment: object
):
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(
            "INSERT INTO workflow_checkpoint (workflow, step, value, written_at)"
            " VALUES ('bad', 'k', '1', ?)",
            (moment,),
        )
    store = SqliteCheckpointer(database)
    holder = await claimed(store, "w")
    await store.record(holder, "k", 1)
    await store.append("w", "m")
    await store.supply("bad", "later", 2)
    assert [written.at for written in (await store.history("w")).values()] == [clock.now()] * 2
    assert await store.load("bad") == {"k": 1, "later": 2}
    with pytest.raises(ValueError, match=r"'bad'.*'k'.*moment"):
        await store.history("bad")


@pytest.mark.parametrize("column", ["token", "held_until", "alive_until", "alive_for", "seen_at"])
@pytest.mark.parametrize("value", ["soon", b"\xff", -1, 0])
async def test_a_claim_row_that_means_nothing_blocks_its_workflow_for_a_lease_at_most(
    database: Database, path: Path, clock: Clock, column: str, value: object
):
    store = SqliteCheckpointer(database)
    await claimed(store, "w")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(f"UPDATE workflow_claim SET {column} = ?", (value,))
    if await store.claim("w", MINUTE, MINUTE) is None:
        clock.advance(MINUTE)
        assert await store.claim("w", MINUTE, MINUTE) is not None


@pytest.mark.parametrize("moment", ["soon", b"\xff", float("inf")], ids=repr)
async def test_a_queue_row_that_is_never_due_delays_nobody_else(
    database: Database, path: Path, moment: object
):
    queue = SqliteScheduler(database)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(
            "INSERT INTO workflow_queue (namespace, workflow, visible_at)"
            " VALUES ('workflow', 'bad', ?)",
            (moment,),
        )
    await queue.make_ready("good")
    delivery = await queue.next_ready(timedelta(0))
    assert delivery is not None
    assert delivery.workflow == "good"
    assert await queue.next_ready(timedelta(0)) is None
    await queue.make_ready("bad")
    brought_back = await queue.next_ready(timedelta(0))
    assert brought_back is not None
    assert brought_back.workflow == "bad"
