"""K7, K8, K43, K45: a process that ends, is killed, or forks with the database open."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from without_durability_sqlite import SqliteCheckpointer, SqliteScheduler, connect

Child = Callable[..., "subprocess.CompletedProcess[str]"]
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
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    halves = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half'").fetchall()
    connection.close()
    assert halves == [(0,)], "half an effect was kept"
    async with connect(path) as database:
        return await SqliteCheckpointer(database).load("w")


@pytest.mark.parametrize(
    ("doing", "through"), [("sql", "transact"), ("sql", "run"), ("python", "transact")]
)
async def test_k7_exit_does_not_wait_for_work_that_never_ends(
    path: Path, child: Child, through: str, doing: str
) -> None:
    began = time.monotonic()
    ended = child(STUCK, doing, through)
    assert time.monotonic() - began < 6
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["cancelled", "True", "ran"], "asyncio.run waited"
    assert "exit waits" in ended.stderr, "nobody said what it waits for"
    assert await records(path) == {"acknowledged": 1}


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
    assert ended.returncode == 0, ended.stderr
    assert "aclose waits" in ended.stderr
    assert await records(path) == {"k": None}


@pytest.mark.parametrize(
    ("asked", "status"), [(signal.SIGTERM, -15), (signal.SIGINT, 0), (signal.SIGKILL, -9)]
)
async def test_k7_a_process_ended_from_outside_leaves_the_file_clean(
    path: Path, start: Start, asked: signal.Signals, status: int
) -> None:
    process = start(
        STUCK.replace("task.cancel()", 'print("inside", flush=True)'), "sql", "transact"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "inside\n"
    process.send_signal(asked)
    process.communicate(timeout=10)
    assert process.returncode == status
    assert await records(path) == {"acknowledged": 1}


@pytest.mark.parametrize("kept", ["in a global", "in a local", "in a cycle"])
async def test_k8_a_program_that_forgets_to_close_exits_at_once_and_loses_nothing(
    path: Path, child: Child, kept: str
) -> None:
    began = time.monotonic()
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
        """,
        kept,
    )
    assert time.monotonic() - began < 2
    assert ended.returncode == 0, ended.stderr
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
    assert ended.returncode == 0, ended.stderr
    found = await records(path)
    assert list(found) == [str(n) for n in range(len(found))]
    assert found


FORKED = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)

async def main():
    await opened()
    await cp.supply("w", "before", 1)

asyncio.run(main())
child = os.fork()
if child == 0:
    refused = []
    calls = [
        lambda: cp.supply("w", "child", 1), lambda: cp.load("w"), lambda: db.aclose(),
        lambda: db.run(lambda c: None), lambda: s.next_ready(MIN), lambda: db.guard.acquire(),
    ]
    if arguments[0] == "uses":
        for call in calls:
            async def once():
                async with asyncio.timeout(5):
                    await call()
            try:
                asyncio.run(once())
            except RuntimeError as error:
                refused.append("process" in str(error))
        assert refused == [True] * 6, refused
    if arguments[0] == "drops":
        del cp, s, d, db
        import gc
        gc.collect()
    if arguments[0] == "opens its own":
        asyncio.run(opened())
        asyncio.run(cp.supply("w", "own", 1))
        asyncio.run(db.aclose())
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
outsider = sqlite3.connect(path, timeout=0)

async def after():
    for number in range(5):
        await cp.supply("w", f"after {number}", 1)
    outsider.execute("BEGIN IMMEDIATE").close()
    outsider.execute("ROLLBACK")
    print(len(await cp.load("w")))
    await db.aclose()

asyncio.run(after())
"""


@pytest.mark.parametrize("doing", ["uses", "only exits", "drops", "opens its own"])
async def test_k43_a_forked_child_uses_and_closes_nothing_of_its_parents(
    path: Path, child: Child, doing: str
) -> None:
    ended = child(FORKED, doing)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["7" if doing == "opens its own" else "6"], ended.stderr
    assert len(await records(path)) == (7 if doing == "opens its own" else 6)


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
    assert ended.returncode == -signal.SIGKILL
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
import random

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
    connection = sqlite3.connect(path)
    query = "SELECT count(*) FROM workflow_checkpoint"
    assert connection.execute(query).fetchall() == [(6 * 60,)]
    connection.close()
