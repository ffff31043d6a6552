"""Taking turns: processes on one file queue for it, and nothing but fairness depends on that."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from children import ended, started
from systems import descriptors, forks, posix_files, posix_signals
from thread_gates import in_time, plain
from without_durability import Milliseconds
from without_durability_sqlite import Database, SqliteCheckpointer, connect, migrate, turnstile
from without_durability_sqlite.turnstile import DISTRUST, PATIENCE, Turnstile

pytestmark = pytest.mark.skipif(turnstile.fcntl is None, reason="a system without advisory locks")

NEXT, TURN = 0, 1
EMPTY = b""


def turn_of(path: Path) -> Path:
    return Path(f"{path}-turn")


@pytest.fixture
async def ours(path: Path, migrated: Path) -> Any:
    """A database that has written once, and so has its way in open."""
    path.write_bytes(migrated.read_bytes())
    async with connect(path) as database:
        await written(database, "first")
        yield database


async def written(database: Database, key: str) -> object:
    return await in_time(SqliteCheckpointer(database).supply("w", key, 1))


class FakeTime(SimpleNamespace):
    """Time that passes only while somebody sleeps; `slept` is how long they have."""

    def __init__(self) -> None:
        super().__init__(now=1000.0, slept=0.0, during=lambda: None)

    def monotonic(self) -> float:
        return float(self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds
        self.during()


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(turnstile, "time", fake)
    return fake


class Neighbour:
    """Another process with the same file open, which locks and frees its bytes as it is told."""

    SCRIPT = """
    import fcntl
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    how = {"lock": fcntl.LOCK_EX | fcntl.LOCK_NB, "free": fcntl.LOCK_UN}
    for line in sys.stdin:
        doing, byte = line.split()
        try:
            fcntl.lockf(file, how[doing], 1, int(byte))
            print("ok", flush=True)
        except OSError:
            print("held", flush=True)
    """

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child = child

    def ask(self, doing: str, byte: int) -> str:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(f"{doing} {byte}\n")
        self.child.stdin.flush()
        return self.child.stdout.readline().strip()

    def lock(self, byte: int) -> None:
        assert self.ask("lock", byte) == "ok"

    def free(self, byte: int) -> None:
        assert self.ask("free", byte) == "ok"

    def finds_held(self, byte: int) -> bool:
        if self.ask("lock", byte) == "held":
            return True
        self.free(byte)
        return False


@contextmanager
def neighbour(path: Path) -> Iterator[Neighbour]:
    with started(Neighbour.SCRIPT, turn_of(path)) as child:
        try:
            yield Neighbour(child)
        finally:
            child.kill()
            child.communicate()


# --- what it is for -----------------------------------------------------------------------------


def test_whoever_has_had_a_turn_goes_behind_the_one_who_is_next(path: Path, passing: FakeTime):
    path.touch()
    ours = Turnstile(str(path), PATIENCE)
    order: list[str] = []

    def its_turn_comes() -> None:
        other.lock(TURN)
        other.free(NEXT)
        order.append("theirs")
        passing.during = its_turn_ends

    def its_turn_ends() -> None:
        other.free(TURN)
        passing.during = lambda: None

    with neighbour(path) as other:
        with ours:
            assert other.finds_held(TURN)
            assert not other.finds_held(NEXT), "one whose turn it is is in nobody's way"
            other.lock(NEXT)
            order.append("ours")
        passing.during = its_turn_comes
        with ours:
            assert other.finds_held(TURN), "it went in without its turn"
            order.append("ours again")
        assert not other.finds_held(TURN)
        assert not other.finds_held(NEXT)
    assert order == ["ours", "theirs", "ours again"]
    ours.close()


WRITER = """
async def main():
    await opened()
    print("here", flush=True)
    sys.stdin.readline()
    for n in range(int(arguments[1])):
        await cp.supply(arguments[0], f"{n}", n)
    print("done", flush=True)
    sys.stdin.readline()
asyncio.run(main())
"""


def test_two_processes_that_write_all_the_time_come_one_after_the_other(path: Path, migrated: Path):
    path.write_bytes(migrated.read_bytes())
    count = 150
    with started(WRITER, path, "a", str(count)) as a, started(WRITER, path, "b", str(count)) as b:
        for child in (a, b):
            assert child.stdout is not None
            assert child.stdout.readline() == "here\n"
        for child in (a, b):
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        for child in (a, b):
            assert child.stdout is not None
            assert child.stdout.readline() == "done\n"
        for child in (a, b):
            assert child.communicate("go\n", timeout=10)[1] == ""
    with plain(path) as connection:
        order = connection.execute("SELECT workflow FROM workflow_checkpoint ORDER BY seq")
        written_by = [workflow for (workflow,) in order]
    connection.close()
    assert sorted(written_by) == ["a"] * count + ["b"] * count
    changes = sum(one != other for one, other in pairwise(written_by))
    assert changes > count / 10, f"they came {changes} times one after the other"
    assert not turn_of(path).exists()


async def test_two_databases_of_one_process_do_not_wait_for_each_other(
    path: Path, migrated: Path, passing: FakeTime
):
    path.write_bytes(migrated.read_bytes())
    async with connect(path) as one, connect(path) as other:
        for n in range(5):
            await in_time(
                asyncio.gather(
                    *(
                        SqliteCheckpointer(each).supply(f"{id(each)}", f"{n}", n)
                        for each in (one, other)
                    )
                )
            )
        for each in (one, other):
            assert len(await SqliteCheckpointer(each).load(f"{id(each)}")) == 5
    assert passing.slept == 0


# --- its file -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o660, 0o666])
async def test_its_file_is_empty_and_open_to_those_the_database_is_open_to(
    path: Path, migrated: Path, mode: int
):
    path.write_bytes(migrated.read_bytes())
    path.chmod(mode)
    async with connect(path) as database:
        await written(database, "k")
        assert turn_of(path).read_bytes() == EMPTY
        assert stat.S_IMODE(turn_of(path).stat().st_mode) == mode


async def test_a_database_that_only_reads_takes_no_turns(path: Path, migrated: Path):
    path.write_bytes(migrated.read_bytes())
    async with connect(path) as database:
        assert await SqliteCheckpointer(database).load("w") == {}
        assert not turn_of(path).exists()


async def test_the_last_to_close_removes_it_and_an_earlier_one_does_not(ours: Database, path: Path):
    async with connect(path) as another:
        await written(another, "second")
        before = turn_of(path).stat().st_ino
    assert turn_of(path).stat().st_ino == before
    await ours.aclose()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


async def test_an_earlier_one_of_another_process_does_not_remove_it_either(
    ours: Database, path: Path
):
    before = turn_of(path).stat().st_ino
    script = "async def main():\n    await opened()\n    await cp.supply('w', 'b', 1)\n"
    child = ended(script + "    await db.aclose()\nasyncio.run(main())", path)
    assert child.code == 0, child.err
    assert turn_of(path).stat().st_ino == before
    await written(ours, "c")


async def test_one_that_a_killed_process_left_behind_is_used_and_removed(
    path: Path, migrated: Path
):
    path.write_bytes(migrated.read_bytes())
    script = "async def main():\n    await opened()\n    await cp.supply('w', 'b', 1)\n"
    child = ended(script + "    os.kill(os.getpid(), 9)\nasyncio.run(main())", path)
    assert child.code == -9, child.err
    left = turn_of(path).stat().st_ino
    async with connect(path) as database:
        await written(database, "k")
        assert turn_of(path).stat().st_ino == left
    assert not turn_of(path).exists()


@posix_files
async def test_one_that_is_removed_by_hand_is_made_anew_and_nobody_waits_for_the_old_one(
    ours: Database, path: Path, passing: FakeTime, nothing_left_open: None
):
    with neighbour(path) as other:
        other.lock(NEXT)  # of a file that nobody else finds from here on
        turn_of(path).unlink()
        await written(ours, "second")
        assert passing.slept == 0
        assert turn_of(path).exists()
    with neighbour(path) as other:
        other.lock(NEXT)
        await written(ours, "third")
        assert passing.slept == pytest.approx(PATIENCE, abs=0.01), "it is the new one that counts"


def a_folder(turn: Path) -> None:
    turn.mkdir()


def a_link(turn: Path) -> None:
    turn.symlink_to(turn.with_name("elsewhere"))


def a_link_to_a_file(turn: Path) -> None:
    turn.with_name("elsewhere").write_text("precious")
    turn.symlink_to(turn.with_name("elsewhere"))


@pytest.mark.parametrize("instead", [a_folder, a_link, a_link_to_a_file])
async def test_where_it_cannot_be_had_writes_go_on_without(
    path: Path, migrated: Path, instead: Callable[[Path], None], passing: FakeTime
):
    path.write_bytes(migrated.read_bytes())
    instead(turn_of(path))
    before = turn_of(path).lstat()
    async with connect(path) as database:
        for key in "abc":
            await written(database, key)
    assert passing.slept == 0
    after = turn_of(path).lstat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode), "it was replaced"
    elsewhere = path.with_name("elsewhere")
    assert elsewhere.exists() == (instead is a_link_to_a_file), "a link was followed"
    assert not elsewhere.exists() or elsewhere.read_text() == "precious"


async def test_one_that_may_not_be_opened_is_done_without(
    path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch
):
    """As on a file of another user's, or in a folder that has become read-only."""
    path.write_bytes(migrated.read_bytes())
    asked: list[str] = []
    real = os.open

    def refused(name: Any, *arguments: Any, **named: Any) -> int:
        if os.fspath(name) == str(turn_of(path)):
            asked.append(name)
            raise PermissionError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(os, "open", refused)
    async with connect(path) as database:
        for key in "abc":
            await written(database, key)
        assert len(await SqliteCheckpointer(database).load("w")) == 3
    assert len(asked) == 1, "it is asked for once"
    assert not turn_of(path).exists()


async def test_in_memory_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    before = descriptors()
    async with connect(":memory:") as database:
        await migrate(database)
        await written(database, "k")
        assert descriptors() == before
    assert list(tmp_path.iterdir()) == []


@posix_files
async def test_nothing_of_it_is_left_open(path: Path, migrated: Path, nothing_left_open: None):
    path.write_bytes(migrated.read_bytes())
    async with connect(path) as database:
        await written(database, "k")
        assert any(one.endswith("-turn") for one in descriptors()) or sys.platform != "linux"


# --- a neighbour that hangs ---------------------------------------------------------------------


@posix_signals
@pytest.mark.parametrize("byte", [NEXT, TURN])
async def test_a_process_that_is_stopped_in_its_place_is_waited_for_once(
    ours: Database, path: Path, passing: FakeTime, byte: int
):
    with neighbour(path) as other:
        other.lock(byte)
        os.kill(other.child.pid, signal.SIGSTOP)
        await written(ours, "a")
        assert passing.slept == pytest.approx(PATIENCE, abs=0.01)
        for n in range(3):
            passing.now += DISTRUST / 2
            await written(ours, f"b{n}")
        assert passing.slept == pytest.approx(PATIENCE, abs=0.01), "it was waited for again"
        os.kill(other.child.pid, signal.SIGCONT)
        other.free(byte)
        await written(ours, "c")
        other.lock(byte)
        await written(ours, "d")
        assert passing.slept == pytest.approx(2 * PATIENCE, abs=0.02), "it is trusted again"
    assert len(await SqliteCheckpointer(ours).load("w")) == 7


@posix_signals
async def test_two_processes_that_are_stopped_cost_one_wait_and_not_two(
    ours: Database, path: Path, passing: FakeTime
):
    with neighbour(path) as one, neighbour(path) as two:
        one.lock(NEXT)
        two.lock(TURN)
        passing.during = lambda: (
            one.free(NEXT) if passing.slept > PATIENCE / 2 else None  # then it waits for the turn
        )
        await written(ours, "a")
        assert passing.slept == pytest.approx(PATIENCE, abs=0.01)
        passing.during = lambda: None
        assert not one.finds_held(NEXT), "whoever gives up is no longer next"


async def test_a_process_that_dies_in_its_place_is_not_waited_for(
    ours: Database, path: Path, passing: FakeTime
):
    with neighbour(path) as other:
        other.lock(NEXT)
        other.lock(TURN)
        other.child.kill()
        other.child.wait()
        await written(ours, "a")
    assert passing.slept == 0


@pytest.mark.parametrize("byte", [NEXT, TURN])
async def test_a_timeout_of_nothing_waits_for_no_turn(
    path: Path, migrated: Path, passing: FakeTime, byte: int
):
    path.write_bytes(migrated.read_bytes())
    async with connect(path, timeout=Milliseconds(0)) as database:
        with neighbour(path) as other:
            other.lock(byte)
            await written(database, "k")
    assert passing.slept == 0


async def test_nobody_waits_longer_for_a_turn_than_for_a_lock(
    path: Path, migrated: Path, passing: FakeTime
):
    path.write_bytes(migrated.read_bytes())
    async with connect(path, timeout=Milliseconds(100)) as database:
        with neighbour(path) as other:
            other.lock(NEXT)
            await written(database, "k")
    assert passing.slept == pytest.approx(0.1, abs=0.01)


# --- SQLite's own locks -------------------------------------------------------------------------


async def test_a_writer_that_takes_no_turns_is_waited_for_as_ever_and_no_longer(
    path: Path, migrated: Path, other: sqlite3.Connection
):
    path.write_bytes(migrated.read_bytes())
    async with connect(path, timeout=Milliseconds(20)) as database:
        store = SqliteCheckpointer(database)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError) as caught:
            await in_time(store.supply("w", "a", 1))
        assert caught.value.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
        with neighbour(path) as another:
            assert not another.finds_held(TURN), "what failed keeps its turn"
            assert not another.finds_held(NEXT)
        other.execute("COMMIT")
        assert await in_time(store.supply("w", "a", 1)) == 1


TAKES_THE_LOCK = """
connection = sqlite3.connect(path, timeout=0, isolation_level=None)
try:
    connection.execute("BEGIN IMMEDIATE")
    print("got it")
except sqlite3.OperationalError as error:
    print(error)
"""


async def test_closing_one_database_drops_no_lock_of_sqlites_of_another_in_the_process(
    ours: Database, path: Path
):
    async with connect(path) as another:
        await written(another, "second")
        async with ours.guard:
            ours.connection.execute("BEGIN IMMEDIATE").close()
            await another.aclose()
            assert ended(TAKES_THE_LOCK, path).out == "database is locked\n"
            ours.connection.execute("ROLLBACK").close()
    assert ended(TAKES_THE_LOCK, path).out == "got it\n"


@forks
def test_a_forked_child_that_ends_leaves_everybody_their_place(path: Path):
    script = """
    from without_durability_sqlite.turnstile import Turnstile
    ours = Turnstile(path, 1)
    with ours:
        child = os.fork()
        if child == 0:
            if arguments[0] == "closes":
                os.close(ours._file)
            os._exit(0)
        os.waitpid(child, 0)
        print("forked", flush=True)
        sys.stdin.readline()
    """
    path.touch()
    for how in ("ends", "closes"):
        with started(script, path, how) as child, neighbour(path) as other:
            assert child.stdout is not None
            assert child.stdout.readline() == "forked\n"
            assert other.finds_held(TURN)
            assert child.communicate("go on\n", timeout=10)[1] == ""
            assert not other.finds_held(TURN)


def test_a_child_that_is_spawned_inherits_nothing_of_it(path: Path):
    path.touch()
    ours = Turnstile(str(path), PATIENCE)
    with ours:
        listing = "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in range(3, 30) if "
        listing += "os.path.exists(f'/proc/self/fd/{n}')])"
        child = subprocess.run(
            [sys.executable, "-c", listing], close_fds=False, capture_output=True, text=True
        )
    assert child.returncode == 0, child.stderr
    assert "-turn" not in child.stdout
    ours.close()


def test_closing_twice_or_never_having_been_open_is_fine(path: Path):
    path.touch()
    ours = Turnstile(str(path), PATIENCE)
    ours.close()
    ours.close()
    with ours:
        assert not turn_of(path).exists(), "what is closed opens nothing"
