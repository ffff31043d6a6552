"""The end of a process, a fork, and loops torn down, each in a child with a hard time limit."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from children import ended, started

FORGETFUL = """
{place}
async def main():
    {declare}
    database = connect(path)
    await migrate(database)
    await SqliteCheckpointer(database).supply("w", "k", 1)
asyncio.run(main())
print("returned", flush=True)
"""

HELD_UP = """
database = connect(path)
asyncio.run(migrate(database))
inside = threading.Event()
def stuck(subject):
    {insert}
    inside.set()
    {stuck}
async def main():
    store = SqliteCheckpointer(database)
    await store.supply("w", "k", 1)
    holder = await store.claim("w", MINUTE, MINUTE)
    task = asyncio.create_task({call})
    while not inside.is_set():
        await asyncio.sleep(0.01)
asyncio.run(main())
print("returned", flush=True)
"""

SLEEPS = "time.sleep(60)"
LOOPS = (
    'subject.execute("WITH RECURSIVE n(i) AS (VALUES(0) UNION ALL SELECT i + 1 FROM n) '
    'SELECT count(*) FROM n").fetchall()'
)
INSERTS = "subject.execute(\"INSERT INTO workflow_claim VALUES ('x', 1, 1, 1, 1, 1)\")"


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path, timeout=5)) as other:
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return other.execute(query).fetchall()


@pytest.mark.parametrize("place", ["local", "global"])
def test_k8_a_process_that_forgets_to_close_ends_and_has_lost_nothing(path, place):
    script = FORGETFUL.format(
        place="database = None", declare="global database" if place == "global" else "pass"
    )
    child = ended(script, path)
    assert (child.code, child.out) == (0, "returned\n"), child.err
    assert child.took < 3, "it should end within a couple of seconds"
    assert rows(path, "SELECT workflow, step, value FROM workflow_checkpoint") == [("w", "k", "1")]


@pytest.mark.parametrize(
    ("call", "stuck"),
    [
        ('store.transact(holder, "e", stuck)', SLEEPS),
        ('store.transact(holder, "e", stuck)', LOOPS),
        ("database.run(stuck)", LOOPS),
    ],
    ids=["a_sleeping_effect", "an_effect_looping_in_sql", "work_looping_in_sql"],
)
def test_k7_exit_does_not_wait_for_work_that_never_returns(path, call, stuck):
    insert = INSERTS if "transact" in call else "pass"
    child = ended(HELD_UP.format(call=call, stuck=stuck, insert=insert), path, within=10)
    assert child.code == 0, child.err
    assert child.out == "returned\n"
    assert "exit waits for work" in child.err, "it should say after a second that it waits"
    gave_up = "leaves work behind" in child.err
    assert gave_up == (stuck == SLEEPS), "SQL is interrupted, only what cannot be is left behind"
    assert rows(path, "SELECT step FROM workflow_checkpoint") == [("k",)]
    assert rows(path, "SELECT workflow FROM workflow_claim") == [("w",)], "the effect was kept"


def test_k7_exit_never_interrupts_a_write_of_the_store_that_waits_for_a_lock(path):
    assert ended("asyncio.run(migrate(connect(path)))\nprint()", path).code == 0
    script = """
database = connect(path, timeout=Milliseconds(20_000))
asked = []
database.connection.set_trace_callback(asked.append)
loop = asyncio.new_event_loop()
write = loop.create_task(SqliteCheckpointer(database).supply("w", "k", 1))
async def begun():
    while "BEGIN IMMEDIATE" not in asked:
        await asyncio.sleep(0.01)
loop.run_until_complete(begun())
print("waiting", flush=True)
"""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with started(script, path) as child:
            try:
                assert child.stdout.readline() == "waiting\n"
                # The lock is kept until exit would long have given up on foreign work.
                with pytest.raises(subprocess.TimeoutExpired):
                    child.wait(timeout=3.6)
                other.execute("ROLLBACK")
                _, err = child.communicate(timeout=10)
            finally:
                child.kill()
        assert child.returncode == 0, err
    assert "exit waits for work" in err
    assert rows(path, "SELECT value FROM workflow_checkpoint") == [("1",)]


def test_k1_cancelling_every_task_and_closing_waits_for_the_thread(path):
    script = """
left = []
inside = threading.Event()
def slow(cursor):
    inside.set()
    time.sleep(0.5)
    cursor.execute("SELECT 1").fetchall()
    left.append(1)
async def main():
    database = connect(path)
    await migrate(database)
    store = SqliteCheckpointer(database)
    holder = await store.claim("w", MINUTE, MINUTE)
    asyncio.create_task(store.transact(holder, "k", slow))
    while not inside.is_set():
        await asyncio.sleep(0.01)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await database.aclose()
    print("closed", left, flush=True)
asyncio.run(main())
"""
    child = ended(script, path)
    assert (child.code, child.out) == (0, "closed [1]\n"), child.err


def test_k1_a_background_task_that_closes_on_teardown_ends_cleanly(path):
    script = """
left = []
inside = threading.Event()
def slow(cursor):
    inside.set()
    time.sleep(0.5)
    cursor.execute("SELECT 1").fetchall()
    left.append(1)
async def background():
    database = connect(path)
    try:
        await migrate(database)
        store = SqliteCheckpointer(database)
        await store.transact(await store.claim("w", MINUTE, MINUTE), "k", slow)
    finally:
        await database.aclose()
        print("closed", left, flush=True)
async def main():
    main.task = asyncio.create_task(background())
    while not inside.is_set():
        await asyncio.sleep(0.01)
asyncio.run(main())
"""
    child = ended(script, path)
    assert (child.code, child.out) == (0, "closed [1]\n"), child.err


@pytest.mark.parametrize("how", ["sys.exit(0)", "os._exit(0)"])
def test_k43_a_forked_child_is_refused_and_closes_nothing_of_its_parents(path, how):
    script = f"""
async def attempt(name, call):
    try:
        await call
    except RuntimeError as error:
        print(name, "refused" if "process" in str(error) else error, flush=True)
    else:
        print(name, "served", flush=True)
async def use():
    store = SqliteCheckpointer(database)
    await attempt("supply", store.supply("w", "child", 1))
    await attempt("load", store.load("w"))
    await attempt("run", database.run(lambda connection: 1))
    await attempt("guard", database.guard.acquire())
    await attempt("aclose", database.aclose())
async def write(key):
    await SqliteCheckpointer(database).supply("w", key, 1)
database = connect(path)
loop = asyncio.new_event_loop()
loop.run_until_complete(migrate(database))
loop.run_until_complete(write("before"))
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    asyncio.run(use())
    sys.stdout.flush()
    {how}
assert os.waitpid(child, 0)[1] == 0
# A child that only exits, with nobody referring to the database any more.
child = os.fork()
if child == 0:
    del database
    {how}
assert os.waitpid(child, 0)[1] == 0
loop.run_until_complete(write("after"))
loop.run_until_complete(database.aclose())
loop.close()
print("parent done", flush=True)
"""
    child = ended(
        "import warnings; warnings.simplefilter('ignore', DeprecationWarning)" + script, path
    )
    assert child.code == 0, child.err
    assert child.out.splitlines() == [
        *(f"{name} refused" for name in ("supply", "load", "run", "guard", "aclose")),
        "parent done",
    ]
    assert "Warning" not in child.err
    assert "Traceback" not in child.err
    assert rows(path, "SELECT step FROM workflow_checkpoint ORDER BY seq") == [
        ("before",),
        ("after",),
    ]
