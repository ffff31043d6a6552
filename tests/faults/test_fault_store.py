"""A full disk and another process's lock: the caller hears of them, and a worker waits them out."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import timedelta
from typing import Any

import pytest
from test_fault_calls import CALLS, MINUTE, WRITES, Scene, taking

from contract import write_lock
from gated import Watched, listening, working
from stores import Stores, over_sqlite
from thread_gates import in_time
from without_durability import (
    Clock,
    Milliseconds,
    SplitDurable,
    retrying,
)
from without_durability_sqlite import Database, SqliteCheckpointer, connect, migrate

MILLISECOND = timedelta(milliseconds=1)
LONG = "long" * 30_000


@pytest.fixture
async def scene(database: Database, clock: Clock) -> Scene:
    return await Scene.over(over_sqlite(database, clock))


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a store that refused again after a few milliseconds."""
    monkeypatch.setattr(retrying, "STORE_FIRST", 5 * MILLISECOND)


# --- a full disk ------------------------------------------------------------------------------


async def room(database: Database, pages: int) -> None:
    """Leave the file so many pages to grow by, as a disk would."""

    def limited(connection: sqlite3.Connection) -> None:
        ((count,),) = connection.execute("PRAGMA page_count").fetchall()
        connection.execute(f"PRAGMA max_page_count = {count + pages}").close()

    await database.run(limited)


GROWING = {
    **{call: {"value": LONG} for call, _ in taking("value")},
    **{call: {"effect": lambda _: LONG} for call, _ in taking("effect")},
    **{f"checkpointer.{name}": {"workflow": LONG} for name in ("claim", "supply")},
    **{f"scheduler.{name}": {"workflow": LONG} for name in ("make_ready", "schedule")},
}


@pytest.mark.parametrize("call", GROWING)
async def test_fault_full_disk_is_an_operational_error_rolled_back_and_works_with_room(scene, call):
    await room(scene.database, 2)
    async with scene.refusal(sqlite3.OperationalError, "full") as caught:
        await scene.call(call, **GROWING[call])
    assert caught.value.sqlite_errorname == "SQLITE_FULL"
    assert not scene.stores.scheduler.permanent(caught.value)
    await room(scene.database, 10_000)
    before = scene.contents()
    await scene.call(call, **GROWING[call])
    assert scene.contents() != before


async def test_fault_full_disk_keeps_nobody_from_what_needs_no_room(scene):
    await room(scene.database, 0)
    for call in WRITES:
        if call not in GROWING:
            await scene.call(call)
            await scene.call("scheduler.make_ready", workflow="ready")  # for the next to take
    assert await scene.call("checkpointer.load") == {}, "it was deleted"


async def test_fault_full_disk_is_an_operational_error_of_migrate_and_half_a_schema_is_not_there(
    path,
):
    async with connect(path) as database:
        await room(database, 2)
        with pytest.raises(sqlite3.OperationalError, match="full"):
            await migrate(database)
        tables = "SELECT * FROM sqlite_master"
        assert await database.run(lambda connection: connection.execute(tables).fetchall()) == []
        await room(database, 10_000)
        await migrate(database)
        assert await SqliteCheckpointer(database).supply("w", "k", 1) == 1


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("of", ["step", "transact"])
async def test_fault_full_disk_is_waited_out_by_work(scene, of):
    await scene.call("durable.delete")
    for other in ("ready", "taken"):
        await scene.call("scheduler.cancel", workflow=other)
    await scene.call("scheduler.make_ready")
    watched = Watched(scene.stores.scheduler)
    durable = SplitDurable(scene.stores.checkpointer, watched)

    async def long() -> str:
        return LONG

    async def body(run: Any) -> None:
        effect = long if of == "step" else lambda cursor: LONG
        await getattr(run, of)("k", effect, len)

    await room(scene.database, 2)
    async with listening(), working(durable, body, now=scene.clock.now) as worker:
        for _ in range(2):
            assert (await watched.answers.get())[1] is not None, "it was not to be tried again"
            scene.clock.advance(MINUTE)
        assert not worker.done()
        await room(scene.database, 10_000)
        while (await watched.answers.get())[1] is not None:
            scene.clock.advance(MINUTE)
    assert await scene.call("checkpointer.load") == {"k": LONG}


# --- another process's lock ---------------------------------------------------------------------


@pytest.mark.parametrize("call", WRITES)
async def test_fault_busy_lock_beyond_the_timeout_is_an_operational_error_and_nothing_is_written(
    scene, path, call
):
    await scene.database.run(
        lambda connection: connection.execute("PRAGMA busy_timeout = 5").close()
    )
    before = scene.contents()
    with write_lock(path), pytest.raises(sqlite3.OperationalError, match="locked") as caught:
        await scene.call(call)
    assert caught.value.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
    assert not scene.stores.scheduler.permanent(caught.value)
    assert scene.contents() == before
    await scene.assert_of_use()
    await scene.call(call)


async def test_fault_busy_lock_keeps_nobody_from_reading(scene, path):
    with write_lock(path):
        for call in CALLS.keys() - {*WRITES}:
            await in_time(scene.call(call))


LOCKED = ["before it is prepared", "before it takes", "while a pass runs", "before it answers"]


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("locked", LOCKED)
async def test_fault_busy_lock_is_waited_out_by_work_whenever_it_comes(path, clock, other, locked):
    passes: list[str] = []

    def lock_at(moment: str) -> None:
        if moment == locked and len(passes) < 2:
            other.execute("BEGIN IMMEDIATE")

    async def body(run: Any) -> None:
        passes.append(run.workflow)
        lock_at("while a pass runs")
        await run.transact("k", lambda cursor: "v", str)
        lock_at("before it answers")

    async with connect(path, timeout=Milliseconds(5), clock=clock.seconds) as database:
        stores = over_sqlite(database, clock)
        watched = Watched(stores.scheduler)
        if locked != "before it is prepared":
            await migrate(database)
            await stores.scheduler.make_ready("w")
        lock_at("before it is prepared")
        lock_at("before it takes")
        durable = SplitDurable(stores.checkpointer, watched)
        async with listening() as heard, working(durable, body, now=clock.now) as worker:
            await heard.until("refused", "locked", "attempt 2)")
            assert not worker.done(), "it ended the worker"
            assert watched.answers.empty()
            other.execute("ROLLBACK")
            if locked == "before it is prepared":
                await heard_nothing_more(stores)
            clock.advance(MINUTE)
            while (await watched.answers.get())[1] is not None:
                clock.advance(MINUTE)
        assert await stores.checkpointer.load("w") == {"k": "v"}
        assert await stores.checkpointer.claim("w", MINUTE, MINUTE), "a claim was left behind"


async def heard_nothing_more(stores: Stores) -> None:
    """Make "w" ready as soon as the worker has made the tables."""
    while True:
        try:
            return await stores.scheduler.make_ready("w")
        except sqlite3.OperationalError:
            await asyncio.sleep(0.001)
