"""A full disk: the write is refused whole, what was acknowledged stays, and room is enough."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from injected_calls import LONG, READS, WRITES, Prepared, everything, prepared_in
from injected_children import FOLDERS
from injected_full_disk import alone_with_a_small_disk

GROWING = {
    *("claim", "record", "transact", "supply", "append", "make_ready", "schedule"),
    *("arrive", "deliver", "transacted_in_a_run", "cancel_of_a_workflow", "fork"),
}
"""The calls that need room in the file; the others are how room is made."""


@pytest.fixture(scope="module")
def prepared(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared_in(tmp_path_factory.mktemp("injected"), migrated)


@pytest.mark.parametrize("name", sorted(GROWING))
async def test_a_file_that_may_not_grow_refuses_what_needs_room_until_there_is_some(
    prepared: Prepared, name: str
):
    async with prepared.scene(value=LONG) as (scene, path):
        before = everything(path)
        ((pages,),) = scene.connection.execute("PRAGMA page_count").fetchall()
        scene.connection.execute(f"PRAGMA max_page_count = {pages}").close()
        for _ in range(2):
            with pytest.raises(sqlite3.OperationalError, match="full") as full:
                await WRITES[name](scene)
            assert full.value.sqlite_errorname == "SQLITE_FULL"
            assert not scene.connection.in_transaction
            assert everything(path) == before
        for read in READS.values():
            await read(scene)
        scene.connection.execute("PRAGMA max_page_count = 1000000").close()
        await WRITES[name](scene)
        assert everything(path) != before


@pytest.mark.parametrize("name", sorted(WRITES.keys() - GROWING))
async def test_a_file_that_may_not_grow_takes_what_needs_no_room(prepared: Prepared, name: str):
    async with prepared.scene(value=LONG) as (scene, path):
        before = everything(path)
        ((pages,),) = scene.connection.execute("PRAGMA page_count").fetchall()
        scene.connection.execute(f"PRAGMA max_page_count = {pages}").close()
        await WRITES[name](scene)
        assert everything(path) != before


async def test_a_full_disk_refuses_every_write_until_there_is_room_and_a_worker_goes_on_then(
    prepared: Prepared, tmp_path: Path
):
    holder, delivery = prepared.granted
    script = f"import sys; sys.path[:0] = {FOLDERS}; from injected_full_disk import main; main()"
    command = [*alone_with_a_small_disk(tmp_path), sys.executable, "-c", script, prepared.path]
    child = subprocess.run(
        [*command, tmp_path, str(holder.token), delivery.receipt],
        capture_output=True,
        text=True,
        timeout=50,
        env=os.environ | {"PYTHONUTF8": "1"},
    )
    assert child.returncode == 0, child.stderr
    told = dict(line.split() for line in child.stdout.splitlines())
    assert int(told["every_write"]) == len(WRITES)
    assert int(told["worker"]) >= 2, "a pass met the full disk, and another one had room"
