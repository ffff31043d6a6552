"""Copies taken while four processes write, and what a restored one keeps: C3 among it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from children import started
from gated import HANG, working
from thread_gates import until
from without_durability import BUDGET, INBOX, LEASE, Fenced, Pass, Run
from without_durability.testing import Clock
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    backing_up,
    connect,
    migrate,
)
from without_durability_sqlite.backing_up import backup
from without_durability_sqlite.checking import oddities
from without_durability_sqlite.opening import JOURNAL_SIZE_LIMIT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are stopped and killed")

PROCESSES, LANES = 4, 3
SHARED = "everyone"
SOON = 30.0
"""Seconds after which what has not happened will not: four processes and a test share the disk."""

# Each lane writes one thing after another, and says so once it is acknowledged; the lanes of a
# process share its commits. What it writes follows from its name, so a file tells how far it was.
WRITES = """
import json, itertools

folder, name, lanes = arguments
LONG = "x" * 2000

async def lane(name):
    said = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    own = SqliteDurable(cp, SqliteScheduler(db, namespace=name))
    shared = SqliteDurable(cp, SqliteScheduler(db, namespace="shared"))
    for turn in itertools.count():
        w = f"{name}/{turn}"
        def paid(cursor):
            cursor.execute("INSERT INTO app VALUES (?, ?)", (w, turn))
            cursor.execute("UPDATE total SET amount = amount + ?", (turn,))
            return turn
        os.write(said, b".")
        await own.arrive(w, "plan", LONG)
        os.write(said, b".")
        await shared.deliver("everyone", [name, turn])
        os.write(said, b".")
        (one,) = await own.start_passes(1, timedelta(0), 5 * MIN)
        os.write(said, b".")
        await cp.record(one.holder, "first", turn)
        os.write(said, b".")
        await cp.transact(one.holder, "paid", paid)
        os.write(said, b".")
        ended = Ended(None, ["completed", "blocked", "failed"][turn % 3], None, 0)
        await own.end_pass(one.holder, one.delivery, ended)

async def main():
    await opened(timeout=Milliseconds(60_000))
    await asyncio.gather(*(lane(f"{name}-{n}") for n in range(int(lanes))))

asyncio.run(main())
"""
WRITTEN = 6
"""How many things a lane writes for each workflow of its own."""


class Writers:
    """Four processes that write without a pause, and how much of it they know to be there."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder = path, folder
        self.children = [
            started(WRITES, path, folder, f"child{n}", str(LANES)) for n in range(PROCESSES)
        ]
        self.lanes = [f"child{n}-{lane}" for n in range(PROCESSES) for lane in range(LANES)]

    def acknowledged(self) -> dict[str, int]:
        """How many writes of each lane have been: it says one thing before it begins the next."""
        said = {lane: self.folder / lane for lane in self.lanes}
        return {
            lane: max(0, log.stat().st_size - 1) if log.exists() else 0
            for lane, log in said.items()
        }

    def wait_until(self, reached: Callable[[], bool]) -> None:
        limit = time.monotonic() + SOON
        while not reached():
            assert time.monotonic() < limit, "they hang, or what is waited for does not come"
            for child in self.children:
                assert child.poll() is None, child.communicate()
            time.sleep(0.002)

    def write_on(self, more: int = 1) -> None:
        """Until every lane has written on."""
        before = self.acknowledged()
        self.wait_until(
            lambda: all(count >= before[lane] + more for lane, count in self.acknowledged().items())
        )

    def kill(self) -> None:
        for child in self.children:
            ended_by_force(child)


def ended_by_force(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=HANG)


@pytest.fixture
def writers(path: Path, migrated: Path, tmp_path: Path) -> Iterator[Writers]:
    shutil.copyfile(migrated, path)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE app (workflow, amount); CREATE TABLE total (amount);"
            "INSERT INTO total VALUES (0)"
        )
    (tmp_path / "said").mkdir()
    writers = Writers(path, tmp_path / "said")
    try:
        writers.write_on(3 * WRITTEN)
        yield writers
    finally:
        writers.kill()


@dataclass
class Held:
    """What a file holds of each workflow."""

    records: dict[str, dict[str, Any]]
    states: dict[str, tuple[str, int]]
    queued: set[str]
    app: list[tuple[str, int]]

    def written(self, lane: str) -> list[bool]:
        """Of everything a lane writes, in order, whether it is there."""
        turns = 1 + max(
            (int(w.partition("/")[2]) for w in self.states if w.startswith(f"{lane}/")), default=-1
        )
        messages = [turn for name, turn in self.records[SHARED].values() if name == lane]
        assert messages == [*range(len(messages))], f"{lane}: {messages}"
        found = []
        for turn in range(turns):
            w = f"{lane}/{turn}"
            records, (state, attempts) = self.records.get(w, {}), self.states[w]
            assert [*records] == ["plan", "first", "paid"][: len(records)], (
                f"half of {w}: {records}"
            )
            ended = (state, attempts) == (["completed", "blocked", "failed"][turn % 3], 0)
            begun = ended or attempts == 1
            assert ended or state == "ready", f"{w} is {state}"
            assert (w in self.queued) == (not ended), f"half of a change of state of {w}"
            assert ((w, turn) in self.app) == ("paid" in records), f"half of a transact of {w}"
            found += ["plan" in records, len(messages) > turn, begun]
            found += ["first" in records, "paid" in records, ended]
        return found


def held(path: Path) -> Held:
    """What a copy holds, which is sound, and whose books balance."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert oddities(connection, time.time()) == []
        records: dict[str, dict[str, Any]] = {SHARED: {}}
        query = "SELECT seq, workflow, step, value FROM workflow_checkpoint ORDER BY seq"
        for seq, workflow, step, value in connection.execute(query):
            records.setdefault(workflow, {})[step] = json.loads(value)
            if workflow == SHARED:
                assert step == f"{INBOX}{seq:020}", "the inbox is numbered by the table's own rows"
        states = {
            workflow: (state, attempts)
            for workflow, state, attempts in connection.execute(
                "SELECT workflow, state, attempts FROM workflow_run"
            )
        }
        queued = {w for (w,) in connection.execute("SELECT workflow FROM workflow_queue")}
        app = connection.execute("SELECT workflow, amount FROM app").fetchall()
        ((total,),) = connection.execute("SELECT amount FROM total").fetchall()
    assert total == sum(amount for _, amount in app), "half of an effect"
    assert len({*app}) == len(app), "an effect came twice"
    return Held(records, states, queued, app)


def assert_whole(copy: Path, before: dict[str, int], after: dict[str, int]) -> None:
    """All that was acknowledged before, nothing from after, and of each lane a beginning."""
    found = held(copy)
    for lane, count in before.items():
        written = found.written(lane)
        reached = sum(written)
        assert written == [True] * reached + [False] * (len(written) - reached), (
            f"{lane}: something came without what was acknowledged before it: {written}"
        )
        assert count <= reached, f"{lane}: {count} were acknowledged before, {reached} are there"
        assert reached <= after[lane] + 1, f"{lane}: {reached} is more than it can have written"


def names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "without_durability_sqlite", *map(str, arguments)]


def test_a_copy_is_whole_and_holds_all_that_was_acknowledged_while_others_write(
    writers: Writers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backing_up, "PAGES", 10)
    for n in range(3):
        calls = 0

        def progress(pages: int, of: int) -> None:
            nonlocal calls
            calls += 1
            if calls in (1, 4):  # the first pages are in the copy, most of them are not
                writers.write_on(WRITTEN)

        copy = tmp_path / f"copy{n}.db"
        before = writers.acknowledged()
        made = backup(writers.path, copy, verify=n == 1, progress=progress)
        after = writers.acknowledged()
        assert calls >= 4, "it was made before anybody wrote"
        assert made.size == os.stat(copy).st_size
        assert_whole(copy, before, after)
    writers.kill()
    assert_whole(tmp_path / "copy0.db", dict.fromkeys(writers.lanes, 0), writers.acknowledged())


def test_so_is_the_command_lines(writers: Writers, tmp_path: Path) -> None:
    for n in range(2):
        before = writers.acknowledged()
        done = subprocess.run(
            command(writers.path, "backup", tmp_path / f"copy{n}.db", *(["--verify"] * n)),
            capture_output=True,
            text=True,
            timeout=SOON,
        )
        after = writers.acknowledged()
        assert (done.returncode, done.stderr) == (0, "")
        assert_whole(tmp_path / f"copy{n}.db", before, after)


def test_the_log_grows_while_a_copy_is_made_and_comes_back_though_nobody_pauses(
    writers: Writers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backing_up, "PAGES", 30)
    log = Path(f"{writers.path}-wal")
    grown = JOURNAL_SIZE_LIMIT + 2**20
    backup(
        writers.path,
        tmp_path / "copy.db",
        progress=lambda pages, of: writers.wait_until(lambda: log.stat().st_size > grown),
    )
    writers.wait_until(lambda: log.stat().st_size <= JOURNAL_SIZE_LIMIT)


# Stops at the point it is told to, says that it is there, and waits for its end.
COPIES = """
from without_durability_sqlite import backing_up

point, dest = arguments
backing_up.PAGES = 10

def here(*_):
    print("here", flush=True)
    sys.stdin.readline()

calls = 0

def progress(pages, of):
    global calls
    calls += 1
    if point == "first pages" and calls == 1 or point == "half" and pages * 2 >= of:
        here()

if point.startswith("_"):
    setattr(backing_up, point, here)
backing_up.backup(path, dest, verify=True, progress=progress)
"""
POINTS = ["first pages", "half", "_facts", "_verify", "_to_disk", "_put_in_place"]


def test_a_copy_killed_at_any_point_leaves_nothing_under_its_name_and_the_file_unharmed(
    writers: Writers, tmp_path: Path
) -> None:
    (tmp_path / "copies").mkdir()
    dest = tmp_path / "copies" / "copy.db"
    with ExitStack() as stack:

        def reached(point: str) -> subprocess.Popen[str]:
            process = started(COPIES, writers.path, point, dest)
            stack.callback(ended_by_force, process)
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n", (point, process.communicate())
            return process

        for point in POINTS:
            process = reached(point)
            assert [*dest.parent.glob(".backup-*.partial")] != [], "it was not under way"
            ended_by_force(process)
            assert not dest.exists(), point
            writers.write_on()
        ended_by_force(reached("_folder_to_disk"))
    assert_whole(dest, dict.fromkeys(writers.lanes, 0), writers.acknowledged())
    dest.unlink()
    before = writers.acknowledged()
    backup(writers.path, dest)
    assert_whole(dest, before, writers.acknowledged())


LIMITED = """
import resource
from without_durability_sqlite.__main__ import main

(dest,) = arguments
resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.stat(path).st_size * 0.6),) * 2)
sys.argv[1:] = [path, "backup", dest]
sys.exit(main())
"""


def test_a_full_disk_leaves_nothing_behind(writers: Writers, tmp_path: Path) -> None:
    """A limit to a file's size stands for the disk: the writes fail halfway through the copy."""
    (tmp_path / "copies").mkdir()
    writers.wait_until(lambda: os.stat(writers.path).st_size > 2**19)
    process = started(LIMITED, writers.path, tmp_path / "copies" / "copy.db")
    out, errors = process.communicate(timeout=SOON)
    assert (process.returncode, out, len(errors.splitlines())) == (1, "", 1), errors
    assert "Traceback" not in errors
    assert names(tmp_path / "copies") == set()
    writers.write_on()
    before = writers.acknowledged()
    backup(writers.path, tmp_path / "copy.db")
    assert_whole(tmp_path / "copy.db", before, writers.acknowledged())


# --- restored ---------------------------------------------------------------------------------


def durable_over(database: Database) -> SqliteDurable:
    return SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database))


async def started_on(durable: SqliteDurable) -> Pass:
    (one,) = await durable.start_passes(1, timedelta(0), BUDGET)
    assert one.holder is not None
    return one.holder


async def assert_fenced(store: SqliteCheckpointer, holder: Pass) -> None:
    before = await store.load(holder.workflow)
    with pytest.raises(Fenced):
        await store.record(holder, "late", 1)
    ran = []
    with pytest.raises(Fenced):
        await store.transact(holder, "late", lambda cursor: ran.append(1))
    assert ran == [], "the effect of a pass from before the restore ran"
    assert not await store.extend(holder, BUDGET, LEASE)
    assert not await store.renew(holder, LEASE)
    assert await store.load(holder.workflow) == before


@dataclass
class Restored:
    """A copy in use, and who had a right to write before it was."""

    path: Path
    before_the_copy: Pass
    after_the_copy: list[Pass]


@pytest.fixture(params=["the same path", "a new path"])
async def restored(
    request: pytest.FixtureRequest, path: Path, migrated: Path, tmp_path: Path, clock: Clock
) -> Restored:
    """A copy of a file in which "w" has recorded "a"; the original went on, to "b" and "c"."""
    shutil.copyfile(migrated, path)
    copy = tmp_path / "copy.db"
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        durable = durable_over(database)
        store = durable.checkpointer
        await durable.arrive("w", "plan", "go")
        first = await started_on(durable)
        await store.record(first, "a", "from before the copy")
        backup(path, copy)
        later = []
        for step in "bc":
            clock.advance(LEASE)
            later.append(await started_on(durable))
            await store.record(later[-1], step, "lost")
    # A restore takes at least a millisecond: what C3 asks of whoever makes one.
    clock.advance(timedelta(milliseconds=1))
    at = path if request.param == "the same path" else tmp_path / "restored.db"
    os.replace(copy, at)
    return Restored(at, first, later)


async def test_a_pass_that_began_after_the_copy_is_fenced_whether_or_not_it_is_claimed_anew(
    restored: Restored, clock: Clock
) -> None:
    async with connect(restored.path, clock=clock.seconds) as database:
        durable = durable_over(database)
        for old in restored.after_the_copy:
            await assert_fenced(durable.checkpointer, old)
        holder = await started_on(durable)
        for old in [restored.before_the_copy, *restored.after_the_copy]:
            assert holder.token > old.token, "a token was given out that is not above every other"
            await assert_fenced(durable.checkpointer, old)
        await durable.checkpointer.record(holder, "b", "anew")


async def test_tokens_stay_above_those_of_before_the_restore_after_a_discard_and_a_sweep(
    restored: Restored, clock: Clock
) -> None:
    async with connect(restored.path, clock=clock.seconds) as database:
        store = durable_over(database).checkpointer
        await store.discard("w")
        for old in [restored.before_the_copy, *restored.after_the_copy]:
            await assert_fenced(store, old)
        await database.run(lambda c: c.execute("DELETE FROM workflow_claim").close())
        for old in [restored.before_the_copy, *restored.after_the_copy]:
            await assert_fenced(store, old)
        holder = await store.claim("w", BUDGET, LEASE)
        assert holder is not None
        for old in [restored.before_the_copy, *restored.after_the_copy]:
            assert holder.token > old.token
            await assert_fenced(store, old)


async def test_a_worker_on_a_restored_copy_goes_on_from_what_the_copy_holds(
    restored: Restored, clock: Clock
) -> None:
    ran: list[str] = []

    async def body(run: Run[Any]) -> str:
        async def effect(step: str) -> str:
            ran.append(step)
            return "anew"

        return "".join([await run.step(s, lambda s=s: effect(s), str) for s in "abc"])

    async with connect(restored.path, clock=clock.seconds) as database:
        durable = durable_over(database)
        async with working(durable, body, now=clock.now):
            result = await durable.result("w", within=timedelta(seconds=HANG))
        assert ran == ["b", "c"], "what was recorded ran again, or what was lost did not"
        assert result == "from before the copyanewanew"
        records = {"plan": "go", "a": "from before the copy", "b": "anew", "c": "anew"}
        assert await durable.checkpointer.load("w") == records
        status = await durable.status("w")
        assert status is not None
        assert (status.state, status.attempts) == ("completed", 0)
        assert await database.run(lambda c: oddities(c, clock.seconds())) == []
        for old in [restored.before_the_copy, *restored.after_the_copy]:
            await assert_fenced(durable.checkpointer, old)


async def test_a_pass_whose_own_claim_is_in_the_copy_is_fenced_once_the_workflow_is_claimed_anew(
    path: Path, migrated: Path, tmp_path: Path, clock: Clock
) -> None:
    """The known limit: the copy cannot tell that pass from one that was never interrupted.

    It may write into the restored file until its lease has lapsed and somebody else has begun.
    """
    shutil.copyfile(migrated, path)
    async with connect(path, clock=clock.seconds) as database:
        durable = durable_over(database)
        await durable.arrive("w", "plan", "go")
        holder = await started_on(durable)
        backup(path, tmp_path / "copy.db")
    clock.advance(timedelta(milliseconds=1))
    async with connect(tmp_path / "copy.db", clock=clock.seconds) as database:
        durable = durable_over(database)
        store = durable.checkpointer
        assert (await store.record(holder, "a", "by the same pass")).first
        assert await store.claim("w", BUDGET, LEASE) is None, "two passes hold it"
        assert await durable.start_passes(1, timedelta(0), BUDGET) == ()
        clock.advance(LEASE)
        assert (await started_on(durable)).token > holder.token
        await assert_fenced(store, holder)


# --- restored beneath a process that was stopped ----------------------------------------------

FROZEN = """
async def held():
    print("under way", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    return "written into nowhere"

async def worker():
    await work(d, lambda run: run.step("a", held, str))

async def writer():
    (one,) = await d.start_passes(1, timedelta(0), MIN)
    value = await held()
    await cp.record(one.holder, "a", value)

async def main():
    await opened()
    try:
        await {"worker": worker, "writer": writer}[arguments[0]]()
    except sqlite3.OperationalError as error:
        print(error.sqlite_errorname, flush=True)
    await db.aclose()  # which must harm nothing that lies under the same names now

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["worker", "writer"])
async def test_a_process_that_was_stopped_over_a_restore_gets_an_error_and_harms_nothing(
    kind: str, path: Path, migrated: Path, tmp_path: Path
) -> None:
    shutil.copyfile(migrated, path)
    async with connect(path) as database:
        await durable_over(database).arrive("w", "plan", "go")
    backup(path, tmp_path / "copy.db")
    process = started(FROZEN, path, kind)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "under way\n"
        process.send_signal(signal.SIGSTOP)
        os.replace(tmp_path / "copy.db", path)
        for companion in ("-wal", "-shm"):
            os.unlink(f"{path}{companion}")
        gate = asyncio.Event()

        async def body(run: Run[Any]) -> str:
            async def effect() -> str:
                await gate.wait()
                return "written"

            return await run.step("a", effect, str)

        async with connect(path) as database:
            durable = durable_over(database)
            async with working(durable, body):
                await until(lambda: Path(f"{path}-wal").exists())
                await durable.arrive("v", "plan", "in the log only")
                process.stdin.write("\n")
                process.send_signal(signal.SIGCONT)
                out, errors = await asyncio.to_thread(process.communicate, timeout=SOON)
                assert out == "SQLITE_READONLY_DBMOVED\n", errors
                assert process.returncode == 0, errors
                gate.set()
                assert await durable.result("w", within=timedelta(seconds=HANG)) == "written"
                assert await durable.checkpointer.load("w") == {"plan": "go", "a": "written"}
    finally:
        ended_by_force(process)
    async with connect(path) as database:
        records = await SqliteCheckpointer(database).load("v")
        assert records == {"plan": "in the log only", "a": "written"}
