"""K11 and K22: opening together with others, and where a setting is refused."""

from __future__ import annotations

import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from children import answered_ok, started
from systems import posix_files
from without_durability import Milliseconds
from without_durability_sqlite import SqliteCheckpointer, connect, migrate

Start = Callable[..., "subprocess.Popen[str]"]

TOGETHER = """
async def use(begin, path):
    await asyncio.sleep(begin - time.time())
    async with connect(path) as database:
        await migrate(database)
        await SqliteCheckpointer(database).supply("w", str(os.getpid()), 1)

for line in sys.stdin:
    begin, path = line.rstrip("\\n").split(" ", 1)
    try:
        asyncio.run(use(float(begin), path))
    except BaseException as error:
        print(repr(error), flush=True)
    else:
        print("ok", flush=True)
"""


def test_k22_eight_processes_open_one_new_file_together(tmp_path: Path) -> None:
    children = [started(TOGETHER) for _ in range(8)]
    try:
        for turn in range(20):
            path = tmp_path / f"{turn}.db"
            assert answered_ok(children, f"{time.time() + 0.02} {path}")
            with closing(sqlite3.connect(path)) as connection:
                query = "SELECT count(*) FROM workflow_checkpoint"
                assert connection.execute(query).fetchall() == [(8,)]
        for child in children:
            _, err = child.communicate(timeout=10)
            assert (child.returncode, err) == (0, "")
    finally:
        for child in children:
            child.kill()
            child.communicate()


def test_k22_opening_waits_for_another_processes_lock(
    start: Start, other: sqlite3.Connection
) -> None:
    other.execute("PRAGMA journal_mode = DELETE").close()
    other.execute("CREATE TABLE app (id INTEGER)")
    other.execute("BEGIN IMMEDIATE")
    child = start(
        """
        print("asking", flush=True)
        asyncio.run(opened(timeout=Milliseconds(8000)))
        asyncio.run(db.aclose())
        print("opened", flush=True)
        """
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "asking\n"
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(timeout=0.6)
    other.execute("ROLLBACK")
    out, err = child.communicate(timeout=10)
    assert (child.returncode, out) == (0, "opened\n"), err


@pytest.mark.usefixtures("nothing_left_open")
@pytest.mark.parametrize("lock", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
@pytest.mark.parametrize("timeout", [0, 200])
def test_k22_opening_waits_no_longer_than_its_timeout(path: Path, timeout: int, lock: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE app (id INTEGER)")
        other.execute(lock)
        began = time.monotonic()
        with pytest.raises(sqlite3.OperationalError, match="locked") as refused:
            connect(path, timeout=Milliseconds(timeout))
        assert timeout / 1000 - 0.1 < time.monotonic() - began < timeout / 1000 + 3
        assert str(path) in str(refused.value)
        assert refused.value.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
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


def deaf_to(pragma: str, base: type[sqlite3.Connection]) -> type[sqlite3.Connection]:
    """A connection on which one pragma is another than needed and stays so."""

    class Deaf(base):  # type: ignore[misc,valid-type]
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            for other in ("synchronous = OFF", "busy_timeout = 1"):
                sqlite3.Connection.execute(self, f"PRAGMA {other}").close()

        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if sql.startswith(f"PRAGMA {pragma} ="):
                sql = f"PRAGMA {pragma}"
            return super().execute(sql, *arguments)

    return Deaf


@posix_files
@pytest.mark.usefixtures("nothing_left_open")
@pytest.mark.parametrize("old_mode", ["delete", "persist", "truncate"])
def test_k11_a_file_system_without_shared_memory_is_refused_and_the_file_left_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch, old_mode: str
) -> None:
    with closing(sqlite3.connect(path)) as made:
        made.execute(f"PRAGMA journal_mode = {old_mode}")
        made.execute("CREATE TABLE app (id INTEGER)")
    before = path.read_bytes()
    connecting = sqlite3.connect

    def connected(name: str, **options: Any) -> sqlite3.Connection:
        return connecting(f"{Path(name).as_uri()}?vfs=unix-none", uri=True, **options)

    monkeypatch.setattr(sqlite3, "connect", connected)
    with pytest.raises(sqlite3.OperationalError, match=r"journal_mode.*'delete'") as refused:
        connect(path)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == before


@pytest.mark.usefixtures("nothing_left_open")
@pytest.mark.parametrize(
    ("pragma", "named"),
    [
        ("journal_mode", "journal_mode.*delete"),  # as on a file system without shared memory
        ("synchronous", "synchronous"),
        ("fullfsync", "fullfsync"),
        ("journal_size_limit", "journal_size_limit"),
        ("busy_timeout", "busy_timeout"),
    ],
)
def test_k11_a_refused_setting_is_an_error_that_names_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, pragma: str, named: str
) -> None:
    made: list[sqlite3.Connection] = []
    connecting = sqlite3.connect

    def connected(
        *arguments: Any, factory: type[sqlite3.Connection] = sqlite3.Connection, **options: Any
    ) -> sqlite3.Connection:
        made.append(connecting(*arguments, factory=deaf_to(pragma, factory), **options))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", connected)
    with pytest.raises(sqlite3.OperationalError, match=named) as refused:
        connect(path)
    assert str(path) in str(refused.value)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        made[0].execute("SELECT 1")
