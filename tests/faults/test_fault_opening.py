"""What `connect`, `migrate` and `Database` refuse, and that they leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from children import ended
from systems import WINDOWS, posix_names
from thread_gates import plain
from without_durability import Milliseconds
from without_durability_sqlite import Database, SqliteCheckpointer, connect, migrate

pytestmark = pytest.mark.usefixtures("nothing_left_open")


def left(folder: Path) -> dict[str, bytes]:
    """What is in a folder and was not put there by what it is compared with."""
    return {one.name: one.read_bytes() if one.is_file() else b"" for one in folder.iterdir()}


@contextmanager
def refused(error: type[BaseException], folder: Path, *facts: object) -> Iterator[None]:
    """An error that names the facts and leaves the folder as it was."""
    before = left(folder)
    with pytest.raises(error) as caught:
        yield
    missing = [fact for fact in facts if str(fact) not in str(caught.value)]
    assert not missing, f"{caught.value!r} does not name {missing}"
    assert left(folder) == before, "something was made or changed"


async def usable(path: Path) -> None:
    async with connect(path) as database:
        await migrate(database)
        assert await SqliteCheckpointer(database).supply("w", "k", 1) == 1


@pytest.mark.parametrize(
    ("fact", "value", "texts"),
    [
        *(("sqlite_version_info", old, ("3.35.0",)) for old in [(3, 34, 1), (3, 7, 17), (2, 8)]),
        ("threadsafety", 0, ("single-threaded", "threadsafety 1 or 3", "has 0")),
    ],
)
@pytest.mark.parametrize("there", [False, True])
async def test_fault_sqlite_too_old_or_single_threaded_is_refused_with_found_and_needed(
    path, monkeypatch, fact, value, texts, there
):
    if there:
        await usable(path)
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, fact, value)
        patched.setattr(sqlite3, "sqlite_version", "the one found")
        for given in (path, ":memory:"):
            with refused(sqlite3.NotSupportedError, path.parent, "the one found", *texts):
                connect(given)
        found = pytest.raises(sqlite3.NotSupportedError, match="the one found")
        with closing(plain(path)) as connection, found:
            Database(connection)
    await usable(path)


def missing_folder(path: Path) -> tuple[Path, str]:
    return path.parent / "missing" / "x.db", "missing does not exist"


def folder(path: Path) -> tuple[Path, str]:
    path.mkdir()
    return path, "it is a folder"


def file_as_folder(path: Path) -> tuple[Path, str]:
    path.touch()
    return path / "x.db", "does not exist"


def folder_as_log(path: Path) -> tuple[Path, str]:
    path.with_name(path.name + "-wal").mkdir()
    return path, "cannot open"


def link_to_nowhere(path: Path) -> tuple[Path, str]:
    path.symlink_to(path.parent / "gone" / "x.db")
    return path, "unable to open"


def pipe(path: Path) -> tuple[Path, str]:
    os.mkfifo(path)
    return path, "cannot open"


PLACES = [missing_folder, folder, file_as_folder, folder_as_log]
POSIX_PLACES = [link_to_nowhere, pipe]


@pytest.mark.parametrize(
    "place", [*PLACES, *(pytest.param(place, marks=posix_names) for place in POSIX_PLACES)]
)
@pytest.mark.parametrize("given", [str, Path])
async def test_fault_no_place_is_an_operational_error_with_path_and_reason(path, place, given):
    there, reason = place(path)
    with refused(sqlite3.OperationalError, path.parent, there, reason):
        connect(given(there), timeout=Milliseconds(0))


PERMISSIONS = """
if os.geteuid() == 0:  # whom no permission stops
    os.setgid(65534)
    os.setuid(65534)
for path in [path, *arguments]:
    try:
        connect(path)
    except sqlite3.OperationalError as error:
        print(path in str(error) and "permission denied" in str(error), error)
    else:
        print("opened", path)
"""
MODES = [
    *(("file", mode) for mode in (0o444, 0o333, 0o000)),
    *(("folder", mode) for mode in (0o555, 0o444, 0o000)),
    ("new file's folder", 0o555),
]


@pytest.mark.skipif(WINDOWS, reason="modes are POSIX's")
def test_fault_no_permission_is_an_error_from_connect_and_not_from_the_first_write():
    """The same for what is read-only: to SQLite there is no difference."""
    with tempfile.TemporaryDirectory() as made:  # for others to enter, as pytest's own is not
        Path(made).chmod(0o755)
        folders = [Path(made) / f"{of} {mode:o}" for of, mode in MODES]
        for folder, (of, mode) in zip(folders, MODES, strict=True):
            folder.mkdir()
            if of != "new file's folder":
                asyncio.run(usable(folder / "x.db"))
                (folder / "x.db").chmod(mode if of == "file" else 0o666)
        before = [os.listdir(folder) for folder in folders]
        for folder, (of, mode) in zip(folders, MODES, strict=True):
            folder.chmod(0o777 if of == "file" else mode)
        child = ended(PERMISSIONS, *(folder / "x.db" for folder in folders))
        for folder in folders:
            folder.chmod(0o777)
        assert child.code == 0, child.err
        assert [line.split()[0] for line in child.out.splitlines()] == ["True"] * len(MODES)
        assert [os.listdir(folder) for folder in folders] == before, "something was made"


@pytest.mark.skipif(WINDOWS, reason="modes are POSIX's")
def test_fault_no_permission_for_the_log_is_an_error_from_connect_too():
    """A killed process of another user may have left its log, or the log's index, behind."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        paths = [Path(made) / companion / "x.db" for companion in ("-wal", "-shm")]
        for path in paths:
            path.parent.mkdir()
            asyncio.run(killed_with(path))
            for one in path.parent.iterdir():
                one.chmod(0o444 if one.name.endswith(path.parent.name) else 0o666)
            path.parent.chmod(0o777)
        child = ended(PERMISSIONS, *paths)
        assert child.code == 0, child.err
        assert [line.split()[0] for line in child.out.splitlines()] == ["True"] * 2, child.out


async def killed_with(path: Path) -> None:
    """Leave the file and its companions as a process does that is killed."""
    async with connect(path) as database:
        await migrate(database)
        for one in [*path.parent.iterdir()]:
            shutil.copy(one, f"{one}.kept")
    for one in path.parent.glob("*.kept"):
        one.replace(one.with_suffix(""))


@pytest.mark.parametrize(
    "content", [b"x", b"text " * 3000, b"\0" * 5000, b"SQLite format 3\0" * 99]
)
def test_fault_not_a_database_is_named_and_untouched(path, content):
    path.write_bytes(content)
    with refused(sqlite3.DatabaseError, path.parent, path, "not a database"):
        connect(path)


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_fault_a_database_of_utf_16_is_named_and_untouched(path, encoding):
    with closing(sqlite3.connect(path)) as other:
        other.executescript(f"PRAGMA encoding = '{encoding}'; CREATE TABLE theirs (name TEXT);")
    with refused(sqlite3.NotSupportedError, path.parent, path, "UTF-16", "UTF-8"):
        connect(path)
    for given in (path, ":memory:"):
        with closing(plain(given)) as connection:
            connection.execute(f"PRAGMA encoding = '{encoding}'")
            with refused(ValueError, path.parent, "PRAGMA encoding", "UTF-16", "UTF-8"):
                Database(connection)
            assert connection.execute("SELECT 1").fetchone() == (1,)


def without_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file opens as on a file system that cannot share memory: SQLite's own refusal."""
    real = sqlite3.connect

    def opened(name: str, **settings: Any) -> sqlite3.Connection:
        return real(f"{Path(name).as_uri()}?vfs=unix-dotfile", uri=True, **settings)

    monkeypatch.setattr(sqlite3, "connect", opened)


@pytest.mark.skipif(WINDOWS, reason="that way of locking is SQLite's for POSIX")
async def test_fault_a_filesystem_without_wal_is_an_error_from_connect_that_says_so(
    path, monkeypatch
):
    with monkeypatch.context() as patched:
        without_shared_memory(patched)
        with pytest.raises(sqlite3.OperationalError, match="WAL was refused") as caught:
            connect(path)
    assert str(path) in str(caught.value)
    assert path.stat().st_size == 0, "something was written"
    await usable(path)
