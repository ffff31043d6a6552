"""Busy executors, two event loops at once, and forked children: over every call there is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_fault_calls import CALLS, Scene
from test_fault_inside import database_calls

from children import ended
from gated import Watched, working
from stores import over_sqlite
from systems import forks
from thread_gates import HANG, THREAD, Gate, in_time
from without_durability import Clock, SplitDurable
from without_durability_sqlite import Database, SqliteCheckpointer, connect, migrate

TESTS = Path(__file__).parents[1]


@pytest.fixture
async def scene(database: Database, clock: Clock) -> Scene:
    return await Scene.over(over_sqlite(database, clock))


def every_call(scene: Scene) -> dict[str, Callable[[], Awaitable[Any]]]:
    """The store's calls and the database's own: what takes something away, and closing, last."""
    away = ("discard", "release", "delete", "cancel", "done")
    names = sorted(CALLS, key=lambda name: name.endswith(away))
    calls = {name: partial(scene.call, name) for name in names}
    return calls | database_calls(scene.database)


@pytest.fixture
async def blocked() -> AsyncIterator[list[asyncio.Future[Any]]]:
    """The application's own calls, which take every thread of the loop's default executor."""
    gate = Gate()
    executor = ThreadPoolExecutor(2)
    asyncio.get_running_loop().set_default_executor(executor)
    calls = [asyncio.ensure_future(asyncio.to_thread(gate, None)) for _ in range(6)]
    await gate.reached()
    yield calls
    gate.opened.set()
    await asyncio.gather(*calls)
    executor.shutdown()


async def test_fault_full_executor_is_nothing_to_any_call(scene, blocked):
    async with asyncio.timeout(HANG):
        for name, call in every_call(scene).items():
            await call()
            if name == "guard":
                scene.database.guard.release()
    assert not any(call.done() for call in blocked), "it was not full all the while"


async def test_fault_full_executor_is_nothing_to_opening_nor_to_work(path, clock, blocked):
    async with asyncio.timeout(HANG), connect(path, clock=clock.seconds) as database:
        await migrate(database)
        stores = over_sqlite(database, clock)
        watched = Watched(stores.scheduler)

        async def body(run: Any) -> None:
            await run.transact("k", lambda cursor: threading.current_thread().name, str)

        async with working(SplitDurable(stores.checkpointer, watched), body, now=clock.now):
            await stores.scheduler.make_ready("w")
            assert await watched.answers.get() == ("w", None)
        assert await stores.checkpointer.load("w") == {"k": THREAD}
    assert not any(call.done() for call in blocked), "it was not full all the while"


async def test_fault_second_running_loop_is_a_runtime_error_of_every_call(scene):
    """Before the file is touched; the loop that has the database goes on."""
    before = scene.contents()
    calls = every_call(scene)
    answers: dict[str, str] = {}

    async def elsewhere() -> None:
        for name, call in calls.items():
            if name in ("scheduler.wake_due", "scheduler.reclaim"):  # which use no file
                continue
            with pytest.raises(RuntimeError) as caught:
                await in_time(call())
            answers[name] = str(caught.value)

    inside = Gate()
    first = asyncio.create_task(scene.database.run(inside))
    await inside.reached()
    try:
        await asyncio.to_thread(asyncio.run, elsewhere())
    finally:
        inside.opened.set()
    assert await in_time(first) == "done"
    assert len(answers) == len(calls) - 2
    assert all("running event loop" in answer for answer in answers.values()), answers
    assert scene.contents() == before
    await scene.assert_of_use()


FORKED = """
warnings.simplefilter("ignore", DeprecationWarning)
sys.path[:0] = [f"{arguments[0]}/faults", arguments[0]]
from test_fault_calls import Scene
from test_fault_loops import every_call
from stores import over_sqlite

async def child():
    for name, call in every_call(scene).items():
        try:
            async with asyncio.timeout(5):
                await call()
        except RuntimeError as error:
            if "before a fork" not in str(error):
                print(name, "raised", error)
        else:
            if name not in ("scheduler.wake_due", "scheduler.reclaim"):
                print(name, "was served")
    for make in (connect, lambda path: Database(plain())):
        try:
            make(path)
        except RuntimeError as error:
            assert "spawn" in str(error), error
        else:
            print("it could be opened again")

def plain():
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)

async def before():
    global scene
    clock = Clock()
    database = connect(path, clock=clock.seconds)
    await migrate(database)
    scene = await Scene.over(over_sqlite(database, clock))
    return scene.contents()

async def after():
    await scene.assert_of_use()
    await scene.database.aclose()

loop = asyncio.new_event_loop()
held = loop.run_until_complete(before())
child_of_mine = os.fork()
if child_of_mine == 0:
    asyncio.run(child())
    del scene
    gc.collect()
    sys.exit(0)
_, status = os.waitpid(child_of_mine, 0)
assert status == 0, status
assert scene.contents() == held, "the child has written"
loop.run_until_complete(after())
loop.close()
print("parent done", flush=True)
"""


@forks
async def test_fault_forked_child_is_refused_every_call_and_closes_nothing_of_its_parents(path):
    child = ended(FORKED, path, TESTS)
    assert (child.code, child.out) == (0, "parent done\n"), child.out + child.err
    async with connect(path) as database:
        assert await SqliteCheckpointer(database).load("w") == Scene.ACKNOWLEDGED
