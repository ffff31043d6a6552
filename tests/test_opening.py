"""`connect`: what it sets and reads back, what it refuses, and opening together (faults.md)."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from children import ended
from without_durability import Milliseconds
from without_durability_sqlite import SqliteCheckpointer, connect, migrate
from without_durability_sqlite.store import BUSY_TIMEOUT

JOURNAL_LIMIT = 4 * 1024 * 1024


# --- what it sets -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pragma", "answer"),
    [
        ("journal_mode", "wal"),
        ("synchronous", 2),
        ("busy_timeout", 5000),
        ("journal_size_limit", JOURNAL_LIMIT),
        ("fullfsync", 1),
        ("checkpoint_fullfsync", 1),
    ],
)
async def test_every_pragma_reads_back_as_it_was_set(path, pragma, answer):
    async with connect(path) as database:
        assert database.connection.execute(f"PRAGMA {pragma}").fetchone() == (answer,)


async def test_no_transaction_is_ever_begun_by_the_driver(path):
    async with connect(path) as database:
        connection = database.connection
        connection.execute("CREATE TABLE app (n)")
        connection.execute("INSERT INTO app VALUES (1)")
        assert not connection.in_transaction
        if sys.version_info >= (3, 12):
            assert connection.autocommit is True
        else:
            assert connection.isolation_level is None


@pytest.mark.parametrize("count", [0, 1, 1234, 2**31 - 1])
async def test_the_timeout_is_the_one_asked_for(path, count):
    async with connect(path, timeout=Milliseconds(count)) as database:
        assert database.connection.execute("PRAGMA busy_timeout").fetchone() == (count,)


def test_the_default_timeout_is_five_seconds():
    assert Milliseconds(5000) == BUSY_TIMEOUT


@pytest.mark.parametrize("as_given", [str, Path])
async def test_a_path_may_be_text_or_a_path(path, as_given):
    async with connect(as_given(path)) as database:
        await migrate(database)
    assert path.is_file()


# --- what it refuses --------------------------------------------------------------------------


@contextmanager
def raised(error: type[BaseException], *texts: object) -> Iterator[None]:
    """`pytest.raises` for an error whose text holds every one of these."""
    with pytest.raises(error) as caught:
        yield
    missing = [text for text in texts if str(text) not in str(caught.value)]
    assert not missing, f"{caught.value!r} does not say {missing}"


@pytest.mark.parametrize("path", [None, 1, b"workflows.db", True])
def test_a_path_that_is_no_path_is_refused(path):
    with raised(TypeError, "path"):
        connect(path)


def test_a_path_holding_nul_is_refused():
    with raised(ValueError, "NUL"):
        connect("a\0b.db")


@pytest.mark.parametrize("count", [-1, 2**31, 2**63, -(2**63)])
def test_a_timeout_sqlite_cannot_hold_is_refused(path, count):
    with raised(ValueError, "timeout"):
        connect(path, timeout=Milliseconds(count))
    assert not path.exists()


@pytest.mark.parametrize(
    "timeout", [5000, 5.0, None, "5000", Milliseconds(1.5), Milliseconds(True)]
)
def test_a_timeout_that_is_no_whole_milliseconds_is_refused(path, timeout):
    with raised(TypeError, "timeout"):
        connect(path, timeout=timeout)
    assert not path.exists()


@pytest.mark.usefixtures("nothing_left_open")
@pytest.mark.parametrize("read_only", ["file", "folder"])
def test_what_cannot_be_written_is_named(path, read_only, monkeypatch):
    with closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE app (n)")
    there = path if read_only == "file" else path.parent
    real = os.access

    def access(asked: Any, mode: int, **keywords: Any) -> bool:
        return real(asked, mode, **keywords) and not (Path(asked) == there and mode & os.W_OK)

    monkeypatch.setattr(os, "access", access)
    before = path.read_bytes()
    with raised(sqlite3.OperationalError, path, read_only, "permission"):
        connect(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user"
)
@pytest.mark.parametrize("mode", [(0o555, 0o666), (0o777, 0o444), (0o777, 0o000)])
def test_missing_permission_is_named_for_an_ordinary_user(tmp_path, mode):
    folder, file = tmp_path / "folder", tmp_path / "folder" / "x.db"
    folder.mkdir()
    with closing(sqlite3.connect(file)) as made:
        made.execute("CREATE TABLE app (n)")
    for above in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        above.chmod(0o755)
    file.chmod(mode[1])
    folder.chmod(mode[0])
    script = """
os.setuid(65534)
try:
    connect(path)
except sqlite3.OperationalError as error:
    print(path in str(error), "permission" in str(error))
else:
    print("opened")
"""
    child = ended(script, file)
    assert (child.code, child.out) == (0, "True True\n"), child.err
    assert os.listdir(folder) == ["x.db"]


def test_the_oldest_sqlite_that_will_do_is_not_refused(path, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 35, 0))
    asyncio.run(connect(path).aclose())


def test_an_sqlite_built_single_threaded_is_refused(path, monkeypatch):
    monkeypatch.setattr(sqlite3, "threadsafety", 0)
    with raised(sqlite3.NotSupportedError, "single-threaded", sqlite3.sqlite_version):
        connect(path)
    assert not path.exists()


async def test_a_timeout_of_zero_does_not_wait_for_a_write_lock(path):
    async with connect(path, timeout=Milliseconds(0)) as database:
        await migrate(database)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            with raised(sqlite3.OperationalError, "locked"):
                await SqliteCheckpointer(database).supply("w", "k", 1)
            assert time.monotonic() - began < 3
            other.execute("ROLLBACK")
        assert await SqliteCheckpointer(database).load("w") == {}
        assert await SqliteCheckpointer(database).supply("w", "k", 1) == 1
