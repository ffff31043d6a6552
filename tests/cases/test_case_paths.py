"""K23, K27, K28: what is given as a path, and what is found there."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from systems import posix_names
from without_durability import Milliseconds
from without_durability_sqlite import SqliteCheckpointer, connect, migrate, turnstile


def a_missing_folder(folder: Path) -> str:
    return str(folder / "missing-folder" / "x.db")


def a_folder(folder: Path) -> str:
    (folder / "x.db").mkdir()
    return str(folder / "x.db")


def a_file_as_the_folder(folder: Path) -> str:
    (folder / "file").touch()
    return str(folder / "file" / "x.db")


def a_home_folder(folder: Path) -> str:
    return "~/x.db"


def a_folder_under_home(folder: Path) -> str:
    return "~/no-such-folder-of-ours/x.db"


def a_dangling_link(folder: Path) -> str:
    (folder / "x.db").symlink_to(folder / "gone" / "y.db")
    return str(folder / "x.db")


def a_name_too_long(folder: Path) -> str:
    return str(folder / ("x" * 300))


CAUSES = [
    pytest.param(a_missing_folder, "missing-folder does not exist", id="a missing folder"),
    pytest.param(a_folder, "it is a folder", id="a folder"),
    pytest.param(a_file_as_the_folder, "file does not exist", id="a file as the folder"),
    pytest.param(a_home_folder, "~ is not expanded", id="a home folder"),
    pytest.param(a_folder_under_home, "~ is not expanded", id="a folder under home"),
    pytest.param(a_dangling_link, "unable to open", id="a dangling link", marks=posix_names),
    pytest.param(a_name_too_long, "unable to open", id="a name too long", marks=posix_names),
]


@pytest.mark.usefixtures("nothing_left_open")
@pytest.mark.parametrize(("place", "cause"), CAUSES)
def test_k23_the_error_names_the_path_and_the_cause(
    place: Callable[[Path], str], cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = place(tmp_path)
    before, threads = os.listdir(), threading.active_count()
    with pytest.raises(sqlite3.OperationalError, match=cause) as refused:
        connect(name, timeout=Milliseconds(300))
    assert os.path.abspath(name) in str(refused.value)
    assert threading.active_count() == threads, "a failed connect left its thread behind"
    assert os.listdir() == before, "a failed connect made something"


@pytest.mark.usefixtures("nothing_left_open")
@pytest.mark.parametrize(
    "content",
    [
        b"not a database at all" * 100,
        b"xy",
        b"SQLite format 2\0" * 9,
        b"SQLite format 3\0" + b"x" * 4096,
    ],
)
def test_k23_a_file_that_is_not_a_database_is_named_and_left_as_it_was(
    content: bytes, path: Path
) -> None:
    path.write_bytes(content)
    with pytest.raises(sqlite3.DatabaseError, match="not a database") as refused:
        connect(path)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == [path.name], "a companion file was left behind"


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


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
def test_k27_a_blank_path_is_refused(
    blank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="path is blank"):
        connect(blank)
    assert os.listdir() == []


async def test_k27_a_store_in_memory_is_private_forgets_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        async with connect(":memory:") as one, connect(":memory:") as two:
            await migrate(one)
            await migrate(two)
            assert await SqliteCheckpointer(one).load("w") == {}
            await SqliteCheckpointer(one).supply("w", "k", 1)
            assert await SqliteCheckpointer(one).load("w") == {"k": 1}
            assert await SqliteCheckpointer(two).load("w") == {}
    assert os.listdir() == []


NAMES = [
    "sp ace.db",
    "q'uote.db",
    "a#b%20c.db",
    "\u00fcn\u00ef.db",
    "\U0001f9fe.db",
    "a;b--c.db",
    "%s%d.db",
    "-wal",
    "-.db",
    "~",
    "~.db",
]
POSIX_NAMES = [
    "a?b#c%20d.db",
    'double".db',
    "file:m?mode=memory",
    "file:x.db",
    "file::memory:?cache=shared",
    ":memory:.db",
    " :memory:",
    "new\nline.db",
]


@pytest.mark.parametrize(
    "name", [*NAMES, *(pytest.param(name, marks=posix_names) for name in POSIX_NAMES)]
)
@pytest.mark.parametrize("given", [str, Path, lambda name: Path(name).absolute()])
async def test_k28_a_path_is_always_a_path(
    name: str, given: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for turn in range(2):
        async with connect(given(name)) as database:
            await migrate(database)
            await SqliteCheckpointer(database).supply("w", str(turn), 1)
            assert len(await SqliteCheckpointer(database).load("w")) == turn + 1
            found = os.listdir()
            assert name in found
            assert all(one.startswith(name) for one in found), found
    assert {name} <= {*os.listdir()} <= {name, name + turnstile.SUFFIX}
