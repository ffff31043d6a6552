"""`backup`: one moment of a file in use, whole under its name or not there at all."""

from __future__ import annotations

import errno
import json
import os
import signal
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from console import command, environment, said
from orders import now

from without_durability_sqlite import backing_up
from without_durability_sqlite.backing_up import backup


@pytest.fixture(autouse=True)
def few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backing_up, "PAGES", 1)


@pytest.fixture
def writer(orders: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(orders, isolation_level=None)) as writer:
        writer.execute("UPDATE workflow_run SET attempts = 1")
        yield writer


def attempts(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT DISTINCT attempts FROM workflow_run"
        return [count for (count,) in connection.execute(query)]


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


@pytest.mark.parametrize("verify", [[], ["--verify"]], ids=["plain", "verified"])
def test_a_copy_holds_what_the_file_does(verify: list[str], orders: Path) -> None:
    done = said(orders, "backup", "copy.db", *verify, clock=now)
    assert (done.code, done.err) == (0, "")
    assert names(orders.parent) == ["copy.db", "orders.db"]
    assert ("verified: sound, with 9 workflows and 16 records" in done.out) == bool(verify)
    for argv in (["list"], ["show", "order-4"], ["check"]):
        assert said("copy.db", *argv, clock=now).out == said(orders, *argv, clock=now).out


def test_a_copy_can_be_worked_with(orders: Path) -> None:
    assert said(orders, "backup", "copy.db").code == 0
    assert said("copy.db", "deliver", "order-1", "1").code == 0
    assert said("copy.db", "check").code == 0


def test_json_says_what_was_made(orders: Path) -> None:
    document = json.loads(said(orders, "backup", "copy.db", "--verify", "--json").out)
    assert document["path"] == str(orders.parent / "copy.db")
    assert document["bytes"] == os.stat("copy.db").st_size
    assert document["verified"] is True
    assert document["rows"]["workflow_run"] == 9


@pytest.mark.usefixtures("writer")
def test_a_copy_has_what_is_in_the_write_ahead_log(orders: Path) -> None:
    assert said(orders, "backup", "copy.db").code == 0
    assert attempts(Path("copy.db")) == [1]


def test_a_copy_is_of_one_moment_and_does_not_begin_again_while_others_write(
    orders: Path, writer: sqlite3.Connection
) -> None:
    steps: list[tuple[int, int]] = []

    def progress(pages: int, of: int) -> None:
        steps.append((pages, of))
        writer.execute("UPDATE workflow_run SET attempts = attempts + 1")
        writer.execute("PRAGMA wal_checkpoint(PASSIVE)")

    made = backup(orders, "copy.db", verify=True, progress=progress)
    assert made.counts is not None
    assert len(steps) > 10
    assert steps == sorted(set(steps)), "it began again"
    assert attempts(Path("copy.db")) == [1]
    assert attempts(orders) == [1 + len(steps)]


def test_somebody_who_opens_the_file_meanwhile_does_not_tear_the_copy(orders: Path) -> None:
    """Nobody had it open: it is read as it is, and once more where somebody came."""
    opened: list[sqlite3.Connection] = []

    def progress(pages: int, of: int) -> None:
        if not opened:
            opened.append(sqlite3.connect(orders, isolation_level=None))
        opened[0].execute("UPDATE workflow_run SET attempts = attempts + 1000")
        opened[0].execute("PRAGMA wal_checkpoint(PASSIVE)")

    made = backup(orders, "copy.db", verify=True, progress=progress)
    opened[0].close()
    assert made.counts is not None
    with closing(sqlite3.connect("copy.db")) as copy:
        spread = "SELECT max(attempts) - min(attempts) FROM workflow_run"
        assert copy.execute(spread).fetchone()[0] < 1000
        assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_nothing_is_overwritten_without_force(orders: Path) -> None:
    Path("copy.db").write_text("precious")
    done = said(orders, "backup", "copy.db")
    assert (done.code, done.out) == (1, "")
    assert "exists: pass --force to overwrite it" in done.err
    assert Path("copy.db").read_text() == "precious"
    assert said(orders, "backup", "copy.db", "--force").code == 0
    assert said("copy.db", "check").code == 0


def test_what_appears_there_meanwhile_is_not_overwritten(orders: Path) -> None:
    def progress(pages: int, of: int) -> None:
        Path("copy.db").write_text("precious")

    with pytest.raises(FileExistsError):
        backup(orders, "copy.db", progress=progress)
    assert Path("copy.db").read_text() == "precious"
    assert names(orders.parent) == ["copy.db", "orders.db"]


def test_on_a_file_system_without_links_nothing_is_overwritten_either(
    orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*given: object) -> None:
        raise OSError("not here")

    monkeypatch.setattr(os, "link", no_links)
    backup(orders, "copy.db")
    assert names(orders.parent) == ["copy.db", "orders.db"]
    Path("copy.db").unlink()
    with pytest.raises(FileExistsError):
        backup(orders, "copy.db", progress=lambda pages, of: Path("copy.db").touch())


@pytest.mark.parametrize("way", ["itself", "symlink", "hard link", "dotted", "from a link"])
def test_the_database_is_not_copied_over_itself(way: str, orders: Path) -> None:
    other = orders.parent / "other.db"
    source, dest = orders, other
    if way == "itself":
        dest = orders
    elif way == "dotted":
        dest = orders.parent / "." / ".." / orders.parent.name / "orders.db"
    elif way == "hard link":
        other.hardlink_to(orders)
    else:
        other.symlink_to(orders)
        if way == "from a link":
            source, dest = other, orders
    done = said(source, "backup", dest, "--force")
    assert (done.code, done.out) == (1, "")
    assert "is the database itself" in done.err
    assert said(orders, "check", clock=now).code == 0


@pytest.mark.parametrize("companion", ["-wal", "-shm", "-journal", "-turn", "-bell"])
def test_a_copy_is_not_put_where_the_database_keeps_something(companion: str, orders: Path) -> None:
    done = said(orders, "backup", f"orders.db{companion}", "--force")
    assert done.code == 1
    assert "belongs to the database itself" in done.err
    assert names(orders.parent) == ["orders.db"]


@pytest.mark.parametrize("companion", ["-wal", "-journal"])
@pytest.mark.parametrize("there", [True, False])
def test_a_copy_is_not_put_before_somebody_elses_log(
    companion: str, there: bool, orders: Path
) -> None:
    Path(f"copy.db{companion}").touch()
    if there:
        Path("copy.db").touch()
    done = said(orders, "backup", "copy.db", "--force")
    assert done.code == 1
    assert f"copy.db{companion} exists" in done.err


def test_a_database_in_use_is_not_overwritten(orders: Path) -> None:
    assert said(orders, "backup", "copy.db").code == 0
    with closing(sqlite3.connect("copy.db", isolation_level=None)) as user:
        user.execute("SELECT * FROM workflow_run").fetchall()
        assert said(orders, "backup", "copy.db", "--force").code == 1
    assert said(orders, "backup", "copy.db", "--force").code == 0


def test_a_link_to_where_the_copy_goes_is_followed(orders: Path) -> None:
    elsewhere = orders.parent / "elsewhere"
    elsewhere.mkdir()
    Path("copy.db").symlink_to(elsewhere / "real.db")
    assert said(orders, "backup", "copy.db").code == 0
    assert Path("copy.db").is_symlink()
    assert names(elsewhere) == ["real.db"]


def test_a_folder_or_none_is_refused(orders: Path) -> None:
    assert "there is no folder" in said(orders, "backup", "nowhere/copy.db").err
    assert "is a folder: name the file to write" in said(orders, "backup", ".", "--force").err
    os.mkfifo("pipe")
    assert "is no regular file" in said(orders, "backup", "pipe", "--force").err
    assert names(orders.parent) == ["orders.db", "pipe"]


def test_a_copy_may_be_read_by_whom_the_file_may_be(orders: Path) -> None:
    for mode in (0o600, 0o640):
        orders.chmod(mode)
        assert said(orders, "backup", "copy.db", "--force").code == 0
        assert stat.S_IMODE(os.stat("copy.db").st_mode) == mode


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, sqlite3.OperationalError])
def test_a_copy_that_is_broken_off_leaves_nothing_behind(
    error: type[BaseException], verify: bool, orders: Path
) -> None:
    def progress(pages: int, of: int) -> None:
        if pages > 5:
            raise error

    with pytest.raises(error):
        backup(orders, "copy.db", verify=verify, progress=progress)
    assert names(orders.parent) == ["orders.db"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_copy_that_is_interrupted_leaves_nothing_behind(
    how: signal.Signals, orders: Path
) -> None:
    script = (
        "import os, sys\n"
        "from without_durability_sqlite import backing_up\n"
        "from without_durability_sqlite.cli import backing, main, screen\n"
        "backing_up.PAGES, backing.EVERY = 1, 0\n"
        "def told(screen, line):\n"
        f"    os.kill(os.getpid(), {int(how)})\n"
        "screen.Screen.progress = told\n"
        "sys.exit(main.main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [command()[0], "-c", script, orders, "backup", "copy.db"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (128 + how, "")
    assert names(orders.parent) == ["orders.db"]


LIMITED = """
import resource, sys
from without_durability_sqlite.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.exit(main.main(sys.argv[1:]))
"""


def test_a_copy_that_has_no_room_is_named_and_not_the_source(orders: Path) -> None:
    # The limit is on every file that the process writes: it writes no other.
    env = environment(PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(
        [command()[0], "-c", LIMITED, orders, "backup", "copy.db"],
        capture_output=True,
        text=True,
        env={name: value for name, value in env.items() if "COV" not in name},
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert f"cannot write the copy to {orders.parent / 'copy.db'}: " in line
    assert str(orders) not in line
    assert names(orders.parent) == ["orders.db"]


@pytest.mark.parametrize("call", ["fsync", "chmod", "replace"])
def test_whatever_fails_at_the_copy_names_the_copy(
    call: str, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*given: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, failing)
    if call == "replace":
        monkeypatch.setattr(os, "link", failing)
    done = said(orders, "backup", "copy.db")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"without-durability: cannot write the copy to {orders.parent / 'copy.db'}: "
        "No space left on device\n"
    )
    assert names(orders.parent) == ["orders.db"]


def test_what_fails_at_the_source_names_the_source(orders: Path) -> None:
    with orders.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 8 * 4096)
    done = said(orders, "backup", "copy.db", "--verify")
    assert (done.code, done.out) == (1, "")
    assert f"{orders} is damaged" in done.err
    assert names(orders.parent) == ["orders.db"]


def test_verify_finds_a_file_that_is_damaged(orders: Path) -> None:
    with closing(sqlite3.connect(orders, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, '(state, namespace)', '(state, seq)') "
            "WHERE name = 'workflow_run_state'"
        )
    done = said(orders, "backup", "copy.db", "--verify")
    assert (done.code, done.out) == (1, "")
    assert "the copy is damaged, as the file is" in done.err
    assert names(orders.parent) == ["orders.db"]


def test_verify_finds_a_copy_that_lacks_something(
    orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_pages = backing_up._copy

    def losing(
        connection: sqlite3.Connection, copy: str, target: str, progress: backing_up.Progress
    ) -> None:
        copy_pages(connection, copy, target, progress)
        with closing(sqlite3.connect(copy)) as into, into:
            into.execute("DELETE FROM workflow_checkpoint WHERE seq = 1")

    monkeypatch.setattr(backing_up, "_copy", losing)
    with pytest.raises(sqlite3.DatabaseError, match="does not hold what the file does"):
        backup(orders, "copy.db", verify=True)
    assert names(orders.parent) == ["orders.db"]


def test_a_copy_and_its_name_have_reached_the_disk_before_it_is_acknowledged(
    orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync = os.fsync

    def synced(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        done.append(f"{kind} {'after' if Path('copy.db').exists() else 'before'} the rename")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    backup(orders, "copy.db")
    assert done == ["file before the rename", "folder after the rename"]


def test_progress_is_told_on_a_terminal_and_taken_away_again(orders: Path) -> None:
    done = said(orders, "backup", "copy.db", terminal=True, width=80)
    assert " % of " in done.err
    assert done.err.endswith("\r\x1b[K")
    assert said(orders, "backup", "copy.db", "--force").err == ""
