"""Which files are taken, which are refused and how; and that looking leaves no trace."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from console import READING, changed, piped, refused, said, titled
from orders import now

from older_files import BEFORE_SIGNS_OF_LIFE, PUBLISHED

WRITING = [
    ["arrive", "order-1", "key", "1"],
    ["deliver", "order-1", "1"],
    ["retry", "order-1"],
    ["retry", "--failed", "--yes"],
    ["cancel", "order-3", "--yes"],
    ["rewind", "order-1", "charge", "--yes"],
    ["fork", "order-1", "order-1b"],
    ["delete", "order-1", "--yes"],
    ["sweep", "--older", "0s", "--yes"],
]
EVERY = [*READING, ["watch"], *WRITING, ["backup", "copy.db"]]


def digest(folder: Path) -> dict[str, str]:
    """What every file of the folder holds, read by a process that has none of them open."""
    script = (
        "import hashlib, pathlib, sys\n"
        "for p in sorted(pathlib.Path(sys.argv[1]).iterdir()):\n"
        "    print(p.name, hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else 'folder')"
    )
    lines = subprocess.run(
        [sys.executable, "-c", script, folder], capture_output=True, text=True, check=True
    ).stdout
    return dict(line.rsplit(" ", 1) for line in lines.splitlines())


@pytest.mark.parametrize("argv", EVERY, ids=titled)
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["words", "json"])
def test_a_file_that_is_not_there_is_refused_and_not_made(
    argv: list[str], form: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"there is no file {tmp_path / 'nowhere.db'}" in refused(
        said("nowhere.db", *argv, *form)
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("argv", EVERY, ids=titled)
def test_what_is_no_database_is_refused(argv: list[str], tmp_path: Path) -> None:
    for content in (b"x", b"some text that is no database\n" * 100):
        path = tmp_path / "notes.txt"
        path.write_bytes(content)
        assert refused(said(path, *argv)).endswith(f"{path} is not a database")
        assert path.read_bytes() == content


@pytest.mark.parametrize("argv", EVERY, ids=titled)
def test_a_database_of_another_kind_is_refused(argv: list[str], tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE page (url TEXT)")
    before = digest(tmp_path)
    assert "is a database, and holds no workflows" in refused(said(path, *argv))
    assert digest(tmp_path) == before


@pytest.mark.parametrize("argv", EVERY, ids=titled)
def test_an_empty_file_is_refused_and_stays_empty(argv: list[str], tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    assert "holds no workflows" in refused(said(path, *argv))
    assert digest(tmp_path) == {"empty.db": hashlib.sha256(b"").hexdigest()}


OF_THIS_SCHEMA = [argv for argv in EVERY if argv[0] != "backup"]


@pytest.mark.parametrize("argv", OF_THIS_SCHEMA, ids=titled)
@pytest.mark.parametrize("tables", [PUBLISHED, BEFORE_SIGNS_OF_LIFE], ids=["0.0.10", "before it"])
def test_a_file_from_before_schema_versions_is_refused_and_stays_as_it_is(
    argv: list[str], tables: str, tmp_path: Path
) -> None:
    path = tmp_path / "older.db"
    with closing(sqlite3.connect(path)) as older:
        older.executescript(tables)
    before = digest(tmp_path)
    line = refused(said(path, *argv))
    assert "no version" in line
    assert (
        "the first program of this release that opens it (`migrate`) brings it up to date" in line
    )
    assert digest(tmp_path) == before


@pytest.mark.parametrize("argv", OF_THIS_SCHEMA, ids=titled)
def test_a_file_of_schema_version_1_is_refused(argv: list[str], orders: Path) -> None:
    changed(orders, "UPDATE workflow_schema SET version = 1")
    line = refused(said(orders, *argv))
    assert "has workflow schema version 1, and this release works with version 2" in line
    assert "`migrate`" in line


@pytest.mark.parametrize("argv", OF_THIS_SCHEMA, ids=titled)
def test_a_file_of_a_newer_schema_is_refused(argv: list[str], orders: Path) -> None:
    changed(orders, "INSERT INTO workflow_schema (version) VALUES (3)")
    line = refused(said(orders, *argv))
    assert (
        "has workflow schema version 3, made by a newer release: this one knows version 2" in line
    )


@pytest.mark.parametrize("argv", OF_THIS_SCHEMA, ids=titled)
def test_a_file_that_lacks_a_part_of_its_schema_is_refused(argv: list[str], orders: Path) -> None:
    changed(orders, "DROP INDEX workflow_run_finished")
    assert "lacks parts of it" in refused(said(orders, *argv))


@pytest.mark.parametrize("version", [1, 3])
def test_a_file_of_another_schema_can_be_backed_up_before_anybody_upgrades_it(
    version: int, orders: Path
) -> None:
    changed(orders, f"UPDATE workflow_schema SET version = {version}")
    copy = orders.parent / "copy.db"
    assert "verified: sound" in said(orders, "backup", str(copy), "--verify").out
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT version FROM workflow_schema").fetchall() == [(version,)]


def test_a_folder_a_pipe_and_a_name_with_a_nul_are_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "is a folder" in refused(said(tmp_path, "status"))
    assert "is no regular file" in refused(said(pipe, "status"))
    assert "there is no file" in refused(said("a\0b", "status"))


def test_a_damaged_file_is_refused_in_one_line(orders: Path) -> None:
    with orders.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 8 * 4096)
    for argv in READING:
        done = said(orders, *argv, clock=now)
        assert done.code == 1
        if argv != ["check"]:
            assert "damaged" in refused(done)


@pytest.mark.parametrize("argv", READING, ids=titled)
def test_looking_leaves_a_file_that_nobody_has_open_as_it_was(
    argv: list[str], orders: Path
) -> None:
    before = digest(orders.parent), orders.stat().st_mtime_ns
    assert piped("orders.db", *argv).code == 0
    assert (digest(orders.parent), orders.stat().st_mtime_ns) == before


@pytest.mark.parametrize("argv", READING, ids=titled)
def test_looking_works_beside_a_writer_and_changes_nothing(
    argv: list[str], orders: Path, writer: sqlite3.Connection
) -> None:
    ((version,),) = writer.execute("PRAGMA data_version").fetchall()
    names = sorted(one.name for one in orders.parent.iterdir())
    assert piped("orders.db", *argv).code == 0
    assert writer.execute("PRAGMA data_version").fetchall() == [(version,)]
    assert sorted(one.name for one in orders.parent.iterdir()) == names


def test_what_is_not_committed_is_not_seen_and_what_is_committed_is(
    orders: Path, writer: sqlite3.Connection
) -> None:
    before = said(orders, "list").out
    assert "99" not in before
    writer.execute("COMMIT")  # into the write-ahead log, and no further
    assert said(orders, "list").out.count("\t99\t") == 9


def test_a_link_to_the_file_is_followed_to_what_its_log_holds(
    orders: Path, writer: sqlite3.Connection
) -> None:
    writer.execute("COMMIT")
    link = orders.parent / "elsewhere"
    link.mkdir()
    (link / "link.db").symlink_to(orders)
    assert said(link / "link.db", "list").out.count("\t99\t") == 9


@pytest.mark.parametrize("argv", WRITING, ids=titled)
def test_a_writing_command_gives_up_on_a_busy_file(
    argv: list[str], orders: Path, writer: sqlite3.Connection
) -> None:
    assert "is busy: another process kept its write lock" in refused(
        said(orders, *argv, wait=0.05, clock=now)
    )


@pytest.mark.parametrize(
    "odd", ["a?b#c%20d e.db", "x&mode=rw.db", "ü日本.db", "file:x.db", "-x.db"]
)
def test_any_name_of_a_file_will_do(odd: str, orders: Path) -> None:
    orders.rename(orders.parent / odd)
    done = piped(f"./{odd}", "why", "order-1")
    assert (done.code, done.err) == (0, "")
    assert piped(f"./{odd}", "deliver", "order-1", "1").code == 0
    assert not orders.exists()


def test_a_name_that_is_no_utf8_will_do(orders: Path) -> None:
    odd = os.fsdecode(b"\xff.db")
    try:
        orders.rename(orders.parent / odd)
    except OSError:
        pytest.skip("this file system has no such names")
    done = said(orders.parent / odd, "status", clock=now)
    assert done.code == 0
    done.out.encode()


def test_a_name_of_memory_is_a_file_like_any_other(orders: Path) -> None:
    assert "there is no file" in refused(said(":memory:", "deliver", "x", "1"))
    orders.rename(orders.parent / ":memory:")
    assert said(":memory:", "deliver", "order-1", "1").code == 0
    assert json_records(":memory:") == 3


def json_records(file: str) -> int:
    import json

    return len(json.loads(said(file, "show", "order-1", "--json").out)["records"])
