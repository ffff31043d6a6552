"""A file that is gone, put back or restored, and a database that is closed."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from test_fault_calls import AWAY_FROM_THE_FILE, CALLS, Scene, taking
from test_fault_inside import database_calls

from gated import HANG, completing
from losses import deleted, renamed, replaced
from stores import Stores, over_sqlite
from systems import posix_files
from thread_gates import in_time
from without_durability import (
    Clock,
    Fenced,
    claimed,
    inbox_key,
    work,
)
from without_durability_sqlite import Database, connect

MILLISECOND = timedelta(milliseconds=1)


@pytest.fixture
async def scene(database: Database, clock: Clock) -> Scene:
    return await Scene.over(over_sqlite(database, clock))


def restored(path: Path) -> None:
    """Another file of the very same content: a backup."""
    path.rename(path.with_suffix(".moved"))
    shutil.copyfile(path.with_suffix(".moved"), path)


def without_its_log(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()


GONE = [deleted, renamed, replaced, restored, without_its_log]


@posix_files
@pytest.mark.parametrize("gone", GONE)
async def test_fault_lost_file_is_an_operational_error_of_every_call_and_written_nowhere(
    scene, path, gone
):
    gone(path)
    left = {one: one.read_bytes() for one in path.parent.glob("*.db")}
    calls = {name: partial(scene.call, name) for name in CALLS.keys() - AWAY_FROM_THE_FILE}
    database = scene.database
    for name, call in (calls | {"run": lambda: database.run(str)}).items():
        with pytest.raises(sqlite3.OperationalError, match="deleted or replaced") as caught:
            await in_time(call())
        assert str(path) in str(caught.value), name
        assert scene.stores.scheduler.permanent(caught.value), name
    assert scene.effects == []
    with pytest.raises(sqlite3.OperationalError, match="deleted or replaced"):
        await asyncio.wait_for(work(scene.stores.durable, completing), HANG)
    assert {one: one.read_bytes() for one in path.parent.glob("*.db")} == left


@posix_files
@pytest.mark.parametrize("gone", [renamed, replaced])
async def test_fault_lost_file_that_is_put_back_is_of_use_again(scene, path, gone):
    gone(path)
    with pytest.raises(sqlite3.OperationalError):
        await scene.call("checkpointer.supply")
    path.with_suffix(".moved").replace(path)
    await scene.assert_of_use()


WRITTEN_BY_A_RUN = ["step", "transact", "sleep", "receive", "pending"]


@pytest.mark.parametrize("claimed_since", [False, True])
async def test_fault_older_copy_restored_fences_the_old_pass_whatever_it_does_next(
    path, clock, migrated, claimed_since
):
    async def reopened() -> tuple[Database, Stores]:
        database = connect(path, clock=clock.seconds)
        return database, over_sqlite(database, clock)

    copy = path.with_name("copy.db")
    shutil.copyfile(migrated, path)
    database, stores = await reopened()
    async with database:
        await stores.checkpointer.release(await claimed(stores.checkpointer, "w"))
        await stores.checkpointer.supply("w", inbox_key(1), "hello")
    shutil.copyfile(path, copy)
    clock.advance(MILLISECOND)  # a restore takes time, and tokens follow it
    database, stores = await reopened()
    async with database:
        scene = await Scene.over(stores)
    shutil.copyfile(copy, path)
    clock.advance(MILLISECOND)
    database, scene.stores = await reopened()
    async with database:
        newer = await claimed(scene.stores.checkpointer, "w") if claimed_since else None
        before = scene.contents()
        for call in WRITTEN_BY_A_RUN:
            with pytest.raises(Fenced) as caught:
                await scene.asked(call)
            assert caught.value.token == scene.arguments["holder"].token
        for call, _ in taking("holder"):
            if call in ("checkpointer.record", "checkpointer.transact"):
                with pytest.raises(Fenced):
                    await scene.call(call)
            else:
                assert not await scene.call(call), "it got what is another's"
        assert scene.effects == [None], "but for the step's, which runs before its record"
        assert scene.contents() == before
        if newer is not None:
            assert (await scene.call("checkpointer.record", holder=newer)).first


# --- closed -------------------------------------------------------------------------------------


async def test_fault_closed_database_is_a_programming_error_of_every_call(scene, path):
    database = scene.database
    before = scene.contents()
    await database.aclose()
    calls = {name: partial(scene.call, name) for name in CALLS.keys() - AWAY_FROM_THE_FILE}
    others = database_calls(database)
    await others.pop("aclose")()  # twice is fine
    for name, call in (calls | others).items():
        with pytest.raises(sqlite3.ProgrammingError, match="closed") as caught:
            await in_time(call())
        assert scene.stores.scheduler.permanent(caught.value), name
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        await asyncio.wait_for(work(scene.stores.durable, completing), HANG)
    async with connect(path, clock=scene.clock.seconds) as reopened:
        scene.stores = over_sqlite(reopened, scene.clock)
        assert scene.contents() == before
        await scene.assert_of_use()
