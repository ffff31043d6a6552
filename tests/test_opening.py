"""`connect`: what it sets and reads back, what it refuses, and opening together (faults.md)."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from children import ended, started
from without_durability import Milliseconds
from without_durability_sqlite import SqliteCheckpointer, connect, migrate
from without_durability_sqlite.store import BUSY_TIMEOUT

HANG = 10.0
JOURNAL_LIMIT = 4 * 1024 * 1024
POSIX = pytest.mark.skipif(os.name == "nt", reason="POSIX names and permissions")


def descriptors() -> set[str]:
    """What this process has open, where the system tells."""
    folder = Path("/proc/self/fd")
    found = set()
    for entry in folder.iterdir() if folder.is_dir() else ():
        try:
            found.add(f"{entry.name} {entry.readlink()}")
        except OSError:  # the descriptor of the listing itself
            continue
    return {each for each in found if "/proc/" not in each}


@pytest.fixture
def nothing_left_open() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() - before == set(), "a descriptor was left open"


@pytest.fixture
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """A rollback-journal file on which another connection holds the write lock."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE app (n)")
        other.execute("BEGIN IMMEDIATE")
        yield other


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


def raised(error: type[BaseException], *texts: object) -> Any:
    """`pytest.raises` for an error whose text holds every one of these."""

    def check(found: BaseException) -> bool:
        missing = [text for text in texts if str(text) not in str(found)]
        assert not missing, f"{found!r} does not say {missing}"
        return True

    context: Any = pytest.raises(error)
    return _Checked(context, check)


class _Checked:
    def __init__(self, context: Any, check: Callable[[BaseException], bool]) -> None:
        self.context, self.check = context, check

    def __enter__(self) -> Any:
        return self.context.__enter__()

    def __exit__(self, *raised: Any) -> bool:
        handled = self.context.__exit__(*raised)
        self.check(raised[1])
        return bool(handled)


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
def test_k27_a_blank_path_is_refused(blank, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with raised(ValueError, "path"):
        connect(blank)
    assert list(tmp_path.iterdir()) == []


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
def test_k23_a_missing_folder_is_named(tmp_path):
    path = tmp_path / "missing-folder" / "x.db"
    with raised(sqlite3.OperationalError, path, path.parent, "does not exist"):
        connect(path)


@pytest.mark.usefixtures("nothing_left_open")
def test_k23_a_folder_given_as_the_path_is_named(tmp_path):
    with raised(sqlite3.OperationalError, tmp_path, "folder"):
        connect(tmp_path)


@pytest.mark.usefixtures("nothing_left_open")
def test_k23_a_tilde_is_not_expanded_and_the_error_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with raised(sqlite3.OperationalError, "~", "not expanded"):
        connect("~/x.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("nothing_left_open")
@pytest.mark.parametrize("content", [b"not a database " * 500, b"SQLite format 3\0" + b"x" * 4096])
def test_k23_a_file_that_is_no_database_is_named_and_left_as_it_was(path, content):
    path.write_bytes(content)
    with raised(sqlite3.DatabaseError, path, "not a database"):
        connect(path)
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == [path.name]


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


@POSIX
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives up root")
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


def test_an_sqlite_too_old_is_refused_by_version(path, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.34.1")
    with raised(sqlite3.NotSupportedError, "3.34.1", "3.35"):
        connect(path)
    assert not path.exists()


def test_the_oldest_sqlite_that_will_do_is_not_refused(path, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 35, 0))
    asyncio.run(connect(path).aclose())


def test_an_sqlite_built_single_threaded_is_refused(path, monkeypatch):
    monkeypatch.setattr(sqlite3, "threadsafety", 0)
    with raised(sqlite3.NotSupportedError, "single-threaded", sqlite3.sqlite_version):
        connect(path)
    assert not path.exists()


def deaf_to(pragma: str, base: type[sqlite3.Connection]) -> type[sqlite3.Connection]:
    """A connection on which one pragma is another than needed and stays so."""

    class Deaf(base):
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            for other in ("synchronous = OFF", "busy_timeout = 1"):
                sqlite3.Connection.execute(self, f"PRAGMA {other}")

        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if sql.startswith(f"PRAGMA {pragma} ="):
                sql = f"PRAGMA {pragma}"
            return super().execute(sql, *arguments)

    return Deaf


@pytest.mark.usefixtures("nothing_left_open")
@pytest.mark.parametrize(
    "pragma", ["journal_mode", "synchronous", "fullfsync", "journal_size_limit", "busy_timeout"]
)
def test_k11_a_pragma_that_is_refused_is_an_error_from_connect(path, pragma, monkeypatch):
    real = sqlite3.connect

    def deaf(
        *arguments: Any, factory: type[sqlite3.Connection] = sqlite3.Connection, **keywords: Any
    ) -> sqlite3.Connection:
        return real(*arguments, factory=deaf_to(pragma, factory), **keywords)

    monkeypatch.setattr(sqlite3, "connect", deaf)
    with raised(sqlite3.OperationalError, path, pragma):
        connect(path)


# --- names ------------------------------------------------------------------------------------


@POSIX
@pytest.mark.parametrize(
    "name",
    [
        "a?b#c%20d.db",
        "sp ace.db",
        "q'uote.db",
        "ünï.db",
        "file:x.db",
        "file:m?mode=memory",
        ":memory:.db",
        "~.db",
        "-.db",
        'double"quote.db',
        "%s.db",
    ],
)
@pytest.mark.parametrize("relative", [False, True])
async def test_k28_a_name_is_a_name_and_never_a_uri(tmp_path, monkeypatch, name, relative):
    monkeypatch.chdir(tmp_path)
    path: Any = name if relative else tmp_path / name
    async with connect(path) as database:
        await migrate(database)
        await SqliteCheckpointer(database).supply("w", "k", 1)
        assert {found for found in os.listdir(tmp_path) if not found.startswith(name)} == set()
        assert name in os.listdir(tmp_path)
    async with connect(path) as database:
        assert await SqliteCheckpointer(database).load("w") == {"k": 1}
    assert os.listdir(tmp_path) == [name]


async def test_k27_a_store_in_memory_is_private_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with connect(":memory:") as one, connect(":memory:") as two:
        await migrate(one)
        await migrate(two)
        await SqliteCheckpointer(one).supply("w", "k", 1)
        assert await SqliteCheckpointer(one).load("w") == {"k": 1}
        assert await SqliteCheckpointer(two).load("w") == {}
    assert list(tmp_path.iterdir()) == []


# --- together with others ---------------------------------------------------------------------


def test_k22_eight_processes_open_fresh_files_together(tmp_path):
    script = """
async def use(path):
    async with connect(path) as database:
        await migrate(database)
        await SqliteCheckpointer(database).supply("w", str(os.getpid()), 1)
for line in sys.stdin:
    try:
        asyncio.run(use(line.rstrip("\\n")))
    except BaseException as error:
        print(repr(error), flush=True)
    else:
        print("ok", flush=True)
"""
    children = [started(script) for _ in range(8)]
    try:
        for number in range(20):
            for child in children:
                child.stdin.write(f"{tmp_path / f'{number}.db'}\n")
                child.stdin.flush()
            assert [child.stdout.readline() for child in children] == ["ok\n"] * 8
        for child in children:
            _, err = child.communicate(timeout=HANG)
            assert (child.returncode, err) == (0, "")
    finally:
        for child in children:
            child.kill()
            child.communicate()
    with closing(sqlite3.connect(tmp_path / "0.db")) as other:
        assert other.execute("SELECT count(*) FROM workflow_checkpoint").fetchone() == (8,)


def test_k22_a_file_somebody_else_holds_for_a_second_is_waited_for(path, locked):
    script = """
print("asking", flush=True)
asyncio.run(connect(path, timeout=Milliseconds(8000)).aclose())
print("opened", flush=True)
"""
    with started(script, path) as child:
        try:
            assert child.stdout.readline() == "asking\n"
            time.sleep(1)
            assert child.poll() is None, child.stderr.read()
            locked.execute("ROLLBACK")
            out, err = child.communicate(timeout=HANG)
        finally:
            child.kill()
    assert (child.returncode, out) == (0, "opened\n"), err


@pytest.mark.usefixtures("nothing_left_open")
@pytest.mark.parametrize("count", [0, 200])
def test_a_file_held_for_longer_than_the_timeout_is_a_busy_error(path, count, locked):
    began = time.monotonic()
    with raised(sqlite3.OperationalError, path, "locked") as caught:
        connect(path, timeout=Milliseconds(count))
    assert time.monotonic() - began < 3, "it should wait no longer than asked"
    assert caught.value.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


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


async def test_k44_the_journal_comes_back_to_a_few_megabytes_after_a_burst(path):
    journal = path.with_name(f"{path.name}-wal")
    async with connect(path) as database:
        await migrate(database)
        records = SqliteCheckpointer(database)
        await records.supply("w", "burst", "x" * 3 * JOURNAL_LIMIT)
        assert journal.stat().st_size > 2 * JOURNAL_LIMIT
        for number in range(20):
            await records.supply("w", str(number), number)
        assert journal.stat().st_size <= JOURNAL_LIMIT
