"""K22 and K23: opening one new file together, and opening what cannot be opened."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from without_durability import Milliseconds
from without_durability_sqlite import SqliteCheckpointer, connect, migrate

TOGETHER = """
import asyncio, sys, time
from without_durability_sqlite import SqliteCheckpointer, connect, migrate

folder, name = sys.argv[1:3]
sys.stdin.readline()  # everybody has started
begin = float(sys.stdin.readline())

async def main():
    for turn in range(12):
        await asyncio.sleep(begin + turn * 0.15 - time.time())
        async with connect(f"{folder}/{turn}.db") as database:
            await migrate(database)
            await SqliteCheckpointer(database).supply(name, "k", turn)

asyncio.run(main())
"""


def test_k22_eight_processes_open_one_new_file_together(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER, str(tmp_path), str(number)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]
    try:
        begin = time.time() + 1.2
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"\n{begin}\n")
            process.stdin.flush()
        errors = [process.communicate(timeout=30)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert errors == [""] * 8
    for turn in range(12):
        connection = sqlite3.connect(tmp_path / f"{turn}.db")
        query = "SELECT count(*) FROM workflow_checkpoint"
        assert connection.execute(query).fetchall() == [(8,)]
        connection.close()


async def test_k22_opening_waits_for_another_processes_lock(
    path: Path, other: sqlite3.Connection
) -> None:
    other.execute("PRAGMA journal_mode = DELETE").close()
    other.execute("CREATE TABLE app (id INTEGER)")
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.4, lambda: other.execute("ROLLBACK"))
    timer.start()
    began = time.monotonic()
    async with connect(path, timeout=Milliseconds(8000)) as database:
        assert 0.3 < time.monotonic() - began < 4
        await migrate(database)
    timer.join()


@pytest.mark.parametrize("lock", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
@pytest.mark.parametrize("timeout", [0, 300])
def test_k22_opening_waits_no_longer_than_its_timeout(
    path: Path, other: sqlite3.Connection, timeout: int, lock: str
) -> None:
    other.execute("CREATE TABLE app (id INTEGER)")
    other.execute(lock)
    began = time.monotonic()
    with pytest.raises(sqlite3.OperationalError, match=f"{path.name}.*locked"):
        connect(path, timeout=Milliseconds(timeout))
    assert timeout / 1000 - 0.1 < time.monotonic() - began < timeout / 1000 + 1
    other.execute("ROLLBACK")


async def test_k22_migrating_waits_for_another_processes_lock(
    path: Path, other: sqlite3.Connection
) -> None:
    async with connect(path) as database:
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.3, lambda: other.execute("ROLLBACK"))
        timer.start()
        await migrate(database)
        timer.join()
        await SqliteCheckpointer(database).supply("w", "k", 1)


async def test_k22_a_migrated_file_opens_under_another_processes_lock(
    path: Path, other: sqlite3.Connection
) -> None:
    async with connect(path) as database:
        await migrate(database)
    other.execute("BEGIN IMMEDIATE")
    async with connect(path, timeout=Milliseconds(0)) as database:
        await migrate(database)
        assert await SqliteCheckpointer(database).load("w") == {}
    other.execute("ROLLBACK")


def descriptors() -> set[str]:
    return {
        os.readlink(f"/proc/self/fd/{number}")
        for number in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{number}")
    }


def a_missing_folder(folder: Path) -> str:
    return str(folder / "missing-folder" / "x.db")


def a_folder(folder: Path) -> str:
    (folder / "x.db").mkdir()
    return str(folder / "x.db")


def a_file_as_the_folder(folder: Path) -> str:
    (folder / "file").write_text("")
    return str(folder / "file" / "x.db")


def a_home_folder(folder: Path) -> str:
    return "~/no-such-folder-of-ours/x.db"


def a_dangling_link(folder: Path) -> str:
    (folder / "x.db").symlink_to(folder / "gone" / "y.db")
    return str(folder / "x.db")


def a_name_too_long(folder: Path) -> str:
    return str(folder / ("x" * 300))


CAUSES = {
    a_missing_folder: "missing-folder does not exist",
    a_folder: "folder",
    a_file_as_the_folder: "file",
    a_home_folder: "~ is not expanded",
    a_dangling_link: "x.db",
    a_name_too_long: "xxx",
}


@pytest.mark.parametrize("place", CAUSES)
def test_k23_the_error_names_the_path_and_the_cause(
    place: Callable[[Path], str], tmp_path: Path
) -> None:
    name = place(tmp_path)
    before, threads = descriptors(), threading.active_count()
    with pytest.raises(sqlite3.OperationalError, match=CAUSES[place]) as refused:
        connect(name, timeout=Milliseconds(300))
    assert name in str(refused.value)
    assert descriptors() == before, "a failed connect left something open"
    assert threading.active_count() == threads, "a failed connect left its thread behind"
    assert not Path("~").exists()


@pytest.mark.parametrize(
    "content", [b"not a database at all" * 100, b"xy", b"SQLite format 2\0" * 9]
)
def test_k23_a_file_that_is_not_a_database_is_named_and_left_as_it_was(
    content: bytes, path: Path
) -> None:
    path.write_bytes(content)
    before = descriptors()
    with pytest.raises(sqlite3.DatabaseError, match="not a database") as refused:
        connect(path)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == [path.name], "a companion file was left behind"
    assert descriptors() == before, "a failed connect left something open"


async def test_k23_a_relative_path_stays_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database = connect("x.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    await migrate(database)
    await SqliteCheckpointer(database).supply("w", "k", 1)
    await database.aclose()
    assert (tmp_path / "x.db").exists()
    assert os.listdir() == []
