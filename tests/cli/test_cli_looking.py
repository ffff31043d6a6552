"""Looking at a file from a folder that cannot be written, and while others come and go."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from console import READING, Said, changed, environment, refused, titled
from orders import make

from without_durability_sqlite.looking import Watched, looked

NOBODY = 65534

AS_NOBODY = """
import os, sys
import json, random, traceback, urllib.parse  # what is imported late, and that user may not read
from without_durability_sqlite.cli.commands import run
from without_durability_sqlite.cli.main import main
if os.geteuid() == 0:  # whom no permission stops
    os.setgid({0}); os.setuid({0})
sys.exit(main(sys.argv[1:]))
"""


def as_nobody(*argv: str | Path) -> Said:
    """As a user who may enter the file's folder and not write in it."""
    env = {name: value for name, value in environment().items() if "COV" not in name}
    folder = Path(argv[0]).parent
    folder.chmod(0o555)
    try:
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY.format(NOBODY), *map(str, argv)],
            capture_output=True,
            encoding="utf-8",
            env=env,
            timeout=30,
        )
    finally:
        folder.chmod(0o755)
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def readable(orders: Path) -> Iterator[Path]:
    """The file in a folder that everybody may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "orders.db"
        shutil.copyfile(orders, path)
        path.chmod(0o444)
        yield path


@pytest.fixture
def committed(readable: Path) -> Iterator[sqlite3.Connection]:
    """A program that has that file open, and a commit of its in the log."""
    readable.chmod(0o644)
    with closing(sqlite3.connect(readable, isolation_level=None)) as writer:
        writer.execute("UPDATE workflow_run SET attempts = 99")
        for companion in ("-wal", "-shm"):
            Path(f"{readable}{companion}").chmod(0o644)
        yield writer


@pytest.mark.parametrize("argv", READING, ids=titled)
def test_a_file_in_a_folder_that_cannot_be_written_is_read(argv: list[str], readable: Path) -> None:
    done = as_nobody(readable, *argv)
    assert (done.code, done.err) == (0, "")
    assert [one.name for one in readable.parent.iterdir()] == ["orders.db"]


@pytest.mark.usefixtures("committed")
def test_a_file_that_a_program_has_open_is_read_from_a_folder_that_cannot_be_written(
    readable: Path,
) -> None:
    assert as_nobody(readable, "list").out.count("\t99\t") == 9


@pytest.mark.usefixtures("committed")
def test_a_log_without_its_index_is_refused_where_none_can_be_made(readable: Path) -> None:
    left = readable.parent / "left"
    left.mkdir(mode=0o755)
    copied_by_a_child(readable, left / "orders.db")
    copied_by_a_child(Path(f"{readable}-wal"), left / "orders.db-wal")
    for one in left.iterdir():
        one.chmod(0o644)
    line = refused(as_nobody(left / "orders.db", "list"))
    assert "write-ahead log" in line
    assert f"a user who may write in {left}" in line


def test_a_file_that_may_not_be_read_or_written_is_refused(readable: Path) -> None:
    assert "permission denied" in refused(as_nobody(readable, "deliver", "order-1", "1"))
    readable.chmod(0)
    assert "permission denied" in refused(as_nobody(readable, "status"))


def copied_by_a_child(source: Path, copy: Path) -> None:
    subprocess.run(["cp", source, copy], check=True)


def test_somebody_who_opens_the_file_meanwhile_is_seen(orders: Path) -> None:
    """What was read of a file that had nobody at it is dropped when somebody came."""
    looks: list[int] = []

    def look(connection: sqlite3.Connection) -> list[tuple[int]]:
        looks.append(1)
        if len(looks) == 1:
            changed(orders, "UPDATE workflow_run SET attempts = 99")
        query = "SELECT DISTINCT attempts FROM workflow_run"
        return connection.execute(query).fetchall()

    assert looked(orders, look) == [(99,)]
    assert len(looks) == 2


def test_a_look_that_fails_for_somebody_who_came_meanwhile_is_made_again(orders: Path) -> None:
    looks: list[int] = []

    def look(connection: sqlite3.Connection) -> str:
        looks.append(1)
        if len(looks) == 1:
            changed(orders, "UPDATE workflow_run SET attempts = 99")
            raise sqlite3.DatabaseError("torn")
        return "seen"

    assert looked(orders, look) == "seen"


@pytest.mark.parametrize("in_use", [False, True])
def test_a_look_cannot_write(orders: Path, in_use: bool) -> None:
    def look(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM workflow_run")

    with closing(sqlite3.connect(orders)) as other:
        if in_use:
            other.execute("SELECT * FROM workflow_run").fetchall()
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            looked(orders, look)


def test_one_look_sees_one_moment(orders: Path, writer: sqlite3.Connection) -> None:
    writer.execute("COMMIT")

    def look(connection: sqlite3.Connection) -> list[tuple[int]]:
        writer.execute("UPDATE workflow_run SET attempts = 100")
        return connection.execute("SELECT DISTINCT attempts FROM workflow_run").fetchall()

    assert looked(orders, look) == [(99,)]


def test_a_watched_file_has_changed_when_somebody_wrote_and_not_otherwise(orders: Path) -> None:
    watched = Watched(orders)
    count = attempts_of(watched)
    assert not watched.changed()
    changed(orders, "UPDATE workflow_run SET attempts = 50")  # and closed again
    assert watched.changed()
    assert attempts_of(watched) == 50 != count
    with closing(sqlite3.connect(orders, isolation_level=None)) as writer:
        writer.execute("UPDATE workflow_run SET attempts = 60")
        assert watched.changed()
        assert attempts_of(watched) == 60
        assert not watched.changed()
        writer.execute("UPDATE workflow_run SET attempts = 70")
        assert watched.changed()
        assert attempts_of(watched) == 70
    watched.close()


def test_a_watched_file_that_is_replaced_is_seen(orders: Path) -> None:
    watched = Watched(orders)
    with closing(sqlite3.connect(orders, isolation_level=None)) as writer:
        writer.execute("UPDATE workflow_run SET attempts = 60")
        assert attempts_of(watched) == 60
        for companion in ("", "-wal", "-shm"):
            Path(f"{orders}{companion}").unlink()
        asyncio.run(make(orders))
        assert watched.changed()
        assert attempts_of(watched) == 1
    watched.close()


def attempts_of(watched: Watched) -> int:
    query = "SELECT max(attempts) FROM workflow_run"
    return int(watched.look(lambda connection: connection.execute(query).fetchone()[0]))
