"""K7, K8, K43, K45: a process that ends, is killed, or forks with the database open."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from children import Ended, started
from systems import WINDOWS, forks, posix_signals
from without_durability_sqlite import SqliteCheckpointer, SqliteScheduler, connect, migrate

Child = Callable[..., Ended]
Start = Callable[..., "subprocess.Popen[str]"]
MIN = timedelta(minutes=1)

STUCK = """
FOREVER = '''WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
             SELECT count(*) FROM n'''
inside = threading.Event()

def stuck(cursor):
    cursor.execute("CREATE TABLE half (id INTEGER)")
    inside.set()
    if arguments[0] == "sql":
        cursor.execute(FOREVER).fetchall()
    else:
        time.sleep(60)

async def main():
    await opened()
    await cp.supply("w", "acknowledged", 1)
    p = await cp.claim("w", MIN, MIN)
    call = cp.transact(p, "k", stuck) if arguments[1] == "transact" else db.run(in_a_transaction)
    task = asyncio.create_task(call)
    while not inside.is_set():
        await asyncio.sleep(0.01)
    task.cancel()
    began = time.monotonic()
    try:
        await task
    except asyncio.CancelledError:
        print("cancelled", time.monotonic() - began < 0.5)

def in_a_transaction(connection):
    connection.execute("BEGIN IMMEDIATE")
    stuck(connection)

asyncio.run(main())
print("ran", flush=True)
"""


async def records(path: Path) -> dict[str, object]:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        half = "SELECT name FROM sqlite_master WHERE name = 'half'"
        assert connection.execute(half).fetchall() == [], "half an effect was kept"
    async with connect(path) as database:
        return await SqliteCheckpointer(database).load("w")


@pytest.mark.parametrize(
    ("doing", "through"), [("sql", "transact"), ("sql", "run"), ("python", "transact")]
)
async def test_k7_exit_does_not_wait_for_work_that_never_ends(
    path: Path, child: Child, through: str, doing: str
) -> None:
    ended = child(STUCK, doing, through)
    assert ended.code == 0, ended.err
    assert ended.out.split() == ["cancelled", "True", "ran"], "asyncio.run waited"
    assert ended.took < 6, "exit waited for work that never ends"
    assert "exit waits for work" in ended.err, "nobody said what it waits for"
    gave_up = "leaves work behind" in ended.err
    assert gave_up == (doing == "python"), "SQL is interrupted, only what cannot be is left behind"
    assert await records(path) == {"acknowledged": 1}


async def test_k7_exit_does_not_wait_for_a_codec_that_never_ends(path: Path, child: Child) -> None:
    ended = child(
        """
        inside = threading.Event()

        class Stuck:
            def encode(self, value):
                return "1"
            def decode(self, encoded):
                if threading.current_thread() is not threading.main_thread():
                    inside.set()
                    time.sleep(60)
                return 1

        async def main():
            await opened()
            store = SqliteCheckpointer(db, Stuck())
            await store.supply("w", "acknowledged", 1)
            task = asyncio.create_task(store.load("w"))
            while not inside.is_set():
                await asyncio.sleep(0.01)
            task.cancel()

        asyncio.run(main())
        print("ran", flush=True)
        """
    )
    assert ended.code == 0, ended.err
    assert ended.took < 6, "exit waited for a look that never ends"
    assert await records(path) == {"acknowledged": 1}


LOCKED_OUT = """
from without_durability_sqlite import thread

assert (thread.PATIENCE, thread.GIVING_UP) == (1.0, 2.0)
thread.PATIENCE, thread.GIVING_UP = 0.2, 0.4
db = connect(path, timeout=Milliseconds(20_000))
asked = []
db.connection.set_trace_callback(asked.append)
loop = asyncio.new_event_loop()
write = loop.create_task(SqliteCheckpointer(db).supply("w", "k", 1))

async def begun():
    while "BEGIN IMMEDIATE" not in asked:
        await asyncio.sleep(0.01)

loop.run_until_complete(begun())
print("waiting", flush=True)
"""


async def test_k7_exit_never_interrupts_a_write_of_the_store_that_waits_for_a_lock(
    path: Path, start: Start
) -> None:
    async with connect(path) as database:
        await migrate(database)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = start(LOCKED_OUT)
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waiting\n"
        # The lock is kept until exit would long have given up on foreign work.
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(timeout=1.5)
        other.execute("ROLLBACK")
    _, err = waiting.communicate(timeout=10)
    assert waiting.returncode == 0, err
    assert "exit waits for work" in err
    assert await records(path) == {"k": 1}


async def test_k7_closing_waits_and_says_so(path: Path, child: Child) -> None:
    ended = child(
        """
        left = []
        async def main():
            await opened()
            p = await cp.claim("w", MIN, MIN)
            inside = threading.Event()
            def effect(cursor):
                inside.set()
                time.sleep(1.4)
                left.append(1)
            task = asyncio.create_task(cp.transact(p, "k", effect))
            while not inside.is_set():
                await asyncio.sleep(0.01)
            task.cancel()
            await db.aclose()
            assert left
        asyncio.run(main())
        """
    )
    assert ended.code == 0, ended.err
    assert "aclose waits" in ended.err
    assert await records(path) == {"k": None}


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        pytest.param("SIGTERM", -15, marks=posix_signals),
        pytest.param("SIGINT", 0, marks=posix_signals),
        ("a kill", -9),
    ],
)
async def test_k7_a_process_ended_from_outside_leaves_the_file_clean(
    path: Path, start: Start, asked: str, status: int
) -> None:
    process = start(
        STUCK.replace("task.cancel()", 'print("inside", flush=True)'), "sql", "transact"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "inside\n"
    if asked == "a kill":
        process.kill()
    else:
        process.send_signal(signal.Signals[asked])
    process.communicate(timeout=10)
    assert process.returncode == (1 if WINDOWS else status)
    assert await records(path) == {"acknowledged": 1}


@pytest.mark.parametrize("kept", ["in a global", "in a local", "in a cycle"])
async def test_k8_a_program_that_forgets_to_close_exits_at_once_and_loses_nothing(
    path: Path, child: Child, kept: str
) -> None:
    ended = child(
        """
        async def main():
            await opened()
            await cp.supply("w", "k", 1)
            if arguments[0] != "in a global":
                me = [db]
                if arguments[0] == "in a cycle":
                    me.append(me)
                for name in "db", "cp", "s", "d":
                    del globals()[name]
        asyncio.run(main())
        print("returned", flush=True)
        """,
        kept,
    )
    assert (ended.code, ended.out) == (0, "returned\n"), ended.err
    assert ended.took < 3, "it should end within a couple of seconds"
    assert await records(path) == {"k": 1}


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("raise LookupError", 1),
        ("sys.exit(3)", 3),
        ("asyncio.get_running_loop().stop()", 1),
        ("asyncio.create_task(work(d, lambda run: None)); await asyncio.sleep(0.01)", 0),
        ("threading.Thread(target=time.sleep, args=(0.1,)).start()", 0),
    ],
    ids=["an error", "sys.exit", "a stopped loop", "a worker left running", "a thread beside it"],
)
async def test_k8_a_program_that_forgets_to_close_exits_however_it_ends(
    path: Path, child: Child, ending: str, status: int
) -> None:
    ended = child(
        f"""
        async def main():
            await opened()
            await cp.supply("w", "k", 1)
            print("ending", flush=True)
            {ending}
            await asyncio.sleep(0)
        asyncio.run(main())
        """
    )
    assert (ended.code, ended.out) == (status, "ending\n"), ended.err
    assert ended.took < 3, "it should end within a couple of seconds"
    assert await records(path) == {"k": 1}


async def test_k8_a_write_that_was_under_way_at_exit_is_whole_or_not_there(
    path: Path, child: Child
) -> None:
    ended = child(
        """
        async def main():
            await opened()
            tasks = [asyncio.create_task(d.arrive("w", str(n), n)) for n in range(50)]
            await tasks[0]
        asyncio.run(main())
        """
    )
    assert ended.code == 0, ended.err
    found = await records(path)
    assert list(found) == [str(n) for n in range(len(found))]
    assert found


FORKED = """
warnings.simplefilter("ignore", DeprecationWarning)
doing, leaving = arguments

async def use():
    for call in (
        lambda: cp.supply("w", "child", 1), lambda: cp.load("w"), lambda: db.run(lambda c: None),
        lambda: s.next_ready(MIN), lambda: db.guard.acquire(), lambda: db.aclose(),
    ):
        try:
            async with asyncio.timeout(5):
                await call()
        except RuntimeError as error:
            print("refused" if "process" in str(error) else error, flush=True)
        else:
            print("served", flush=True)

def open_again():
    for make in (connect, lambda path: Database(plain())):
        try:
            make(path)
        except RuntimeError as error:
            assert "spawn" in str(error), error
            print("refused", flush=True)
    connect(path + ".other")  # another file is nobody else's business

def plain():
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)

loop = asyncio.new_event_loop()
loop.run_until_complete(opened())
loop.run_until_complete(cp.supply("w", "before", 1))
child = os.fork()
if child == 0:
    if doing == "uses":
        asyncio.run(use())
    if doing == "drops":
        del cp, s, d, db
        gc.collect()
    if doing == "opens it again":
        open_again()
    sys.exit(0) if leaving == "by sys.exit" else os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
outsider = sqlite3.connect(path, timeout=0)

async def after():
    for number in range(5):
        await cp.supply("w", f"after {number}", 1)
    outsider.execute("BEGIN IMMEDIATE").close()
    outsider.execute("ROLLBACK").close()
    await db.aclose()

loop.run_until_complete(after())
loop.close()
outsider.close()
print("parent done", flush=True)
"""


@forks
@pytest.mark.parametrize("leaving", ["by sys.exit", "by os._exit"])
@pytest.mark.parametrize("doing", ["uses", "only exits", "drops", "opens it again"])
async def test_k43_a_forked_child_uses_and_closes_nothing_of_its_parents(
    path: Path, child: Child, doing: str, leaving: str
) -> None:
    ended = child(FORKED, doing, leaving)
    assert ended.code == 0, ended.err
    answers = ["refused"] * {"uses": 6, "opens it again": 2}.get(doing, 0)
    assert ended.out.splitlines() == [*answers, "parent done"], ended.err
    assert ended.err == ""
    afterwards = [f"after {number}" for number in range(5)]
    assert list(await records(path)) == ["before", *afterwards]


async def test_k45_a_killed_workers_claim_and_delivery_lapse_and_its_record_is_there(
    path: Path, child: Child, clock: Any
) -> None:
    ended = child(
        """
        async def main():
            await opened(clock=lambda: float(arguments[0]))
            await s.make_ready("w")
            assert await s.next_ready(MIN)
            p = await cp.claim("w", 5 * MIN, timedelta(seconds=1))
            await cp.record(p, "step", "done")
            os.kill(os.getpid(), 9)
        asyncio.run(main())
        """,
        repr(clock.seconds()),
    )
    assert abs(ended.code) == 9, ended.err
    async with connect(path, clock=clock.seconds) as database:
        store, scheduler = SqliteCheckpointer(database), SqliteScheduler(database)
        assert await store.load("w") == {"step": "done"}
        assert await store.claim("w", MIN, MIN) is None
        clock.advance(timedelta(seconds=1.1))
        assert await store.claim("w", MIN, MIN)
        assert await scheduler.next_ready(timedelta(0)) is None
        clock.advance(scheduler.lease)
        delivery = await scheduler.next_ready(timedelta(0))
        assert delivery is not None
        assert delivery.workflow == "w"


WRITES = """
async def main():
    await opened()
    errors = []
    me = arguments[0]
    holder = await cp.claim(me, 5 * MIN, MIN)
    for number in range(60):
        calls = [
            lambda: cp.record(holder, f"r{number}", number),
            lambda: cp.transact(holder, f"t{number}", lambda c: c.execute("SELECT 1").fetchall()),
            lambda: d.arrive("shared", f"{me} {number}", number),
            lambda: d.deliver("shared", number),
        ]
        await random.choice(calls)()
    await db.aclose()

asyncio.run(main())
"""


def test_k46_many_processes_write_at_once_without_an_error(path: Path, start: Start) -> None:
    processes = [start(WRITES, str(number)) for number in range(6)]
    errors = [process.communicate(timeout=30)[1] for process in processes]
    assert errors == [""] * 6
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT count(*) FROM workflow_checkpoint"
        assert connection.execute(query).fetchall() == [(6 * 60,)]


READ_THEN_WRITE = """
def increments(cursor):
    ((n,),) = cursor.execute("SELECT n FROM app").fetchall()
    cursor.execute("UPDATE app SET n = ?", (n + 1,))

async def main():
    await opened()
    holder = await cp.claim(arguments[0], 5 * MIN, MIN)
    for number in range(15):
        await cp.transact(holder, str(number), increments)
        await db.run(lambda connection: transacted(connection, increments))
    await db.aclose()

asyncio.run(main())
"""


def test_k46_many_processes_read_then_write_and_lose_no_update(
    start: Start, other: sqlite3.Connection
) -> None:
    other.execute("CREATE TABLE app AS SELECT 0 AS n")
    processes = [start(READ_THEN_WRITE, str(number)) for number in range(4)]
    errors = [process.communicate(timeout=30)[1] for process in processes]
    assert errors == [""] * 4
    assert other.execute("SELECT n FROM app").fetchall() == [(4 * 2 * 15,)]


STUCK_WORKER = """
FOREVER = '''WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
             SELECT count(*) FROM n'''

def stuck(cursor):
    print("inside", flush=True)
    if arguments[0] == "sql":
        cursor.execute(FOREVER).fetchall()
    else:
        time.sleep(60)

async def body(run):
    await run.transact("k", stuck, str)

async def main():
    await opened()
    await s.make_ready("w")
    await work(d, body)

asyncio.run(main())
"""


@posix_signals
def test_k7_an_interrupted_worker_does_not_wait_for_an_effect_that_never_ends(
    tmp_path: Path,
) -> None:
    children = [started(STUCK_WORKER, tmp_path / doing, doing) for doing in ("sql", "python")]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "inside\n"
            child.send_signal(signal.SIGINT)
        for child in children:
            child.communicate(timeout=20)
            assert child.returncode != 0
    finally:
        for child in children:
            child.kill()
            child.communicate()
