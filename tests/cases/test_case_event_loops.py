"""K24: a later event loop is served, a second one at once is refused, and nothing ever hangs."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteScheduler,
    connect,
    migrate,
)

MIN = timedelta(minutes=1)


@pytest.fixture
def shared(path: Path) -> Iterator[Database]:
    """A database made outside of any loop, as one at module level is."""
    database = connect(path)
    yield database
    with suppress(RuntimeError):
        asyncio.run(database.aclose())


async def twenty(database: Database, workflow: str) -> int:
    """Twenty calls at once, so that all but one wait; how many records there are afterwards."""
    await migrate(database)
    store = SqliteCheckpointer(database)
    async with asyncio.timeout(10):
        await asyncio.gather(*(store.supply(workflow, str(n), n) for n in range(20)))
        return len(await store.load(workflow))


def test_k24_one_database_serves_one_loop_after_another(shared: Database) -> None:
    for workflow in ("a", "b", "c"):
        assert asyncio.run(twenty(shared, workflow)) == 20


def test_k24_the_scheduler_serves_one_loop_after_another(shared: Database) -> None:
    scheduler = SqliteScheduler(shared)

    async def waits() -> None:
        await scheduler.prepare()
        waiting = [
            asyncio.create_task(scheduler.next_ready(timedelta(seconds=5))) for _ in range(3)
        ]
        await asyncio.sleep(0.01)
        for number in range(3):
            await scheduler.make_ready(str(number))
        for delivery in await asyncio.gather(*waiting):
            assert delivery is not None
            await scheduler.done(delivery)

    asyncio.run(waits())
    asyncio.run(waits())


def test_k24_closing_belongs_to_no_loop(shared: Database) -> None:
    asyncio.run(twenty(shared, "a"))
    asyncio.run(shared.aclose())
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        asyncio.run(twenty(shared, "b"))


@pytest.mark.parametrize("call", ["twenty", "guard", "run", "aclose"])
def test_k24_a_second_loop_at_once_is_refused_and_the_first_goes_on(
    shared: Database, call: str
) -> None:
    started, leave = threading.Event(), threading.Event()
    counts: list[int] = []

    async def first() -> None:
        counts.append(await twenty(shared, "a"))
        started.set()
        while not leave.is_set():
            await asyncio.sleep(0.01)
        counts.append(await twenty(shared, "b"))

    async def second() -> None:
        async with asyncio.timeout(5):
            if call == "twenty":
                await SqliteCheckpointer(shared).supply("c", "k", 1)
            elif call == "guard":
                await shared.guard.acquire()
            elif call == "run":
                await shared.run(lambda connection: None)
            else:
                await shared.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(first()))
    thread.start()
    assert started.wait(10)
    with pytest.raises(RuntimeError, match="loop"):
        asyncio.run(second())
    leave.set()
    thread.join(10)
    assert counts == [20, 20]


def test_k24_two_loops_at_once_neither_hang_nor_half_write(shared: Database) -> None:
    outcomes: list[str] = []

    async def busy(name: str) -> None:
        store = SqliteCheckpointer(shared)
        for number in range(30):
            try:
                async with asyncio.timeout(5):
                    await store.supply(name, str(number), number)
                outcomes.append("written")
            except RuntimeError:
                outcomes.append("refused")
            await asyncio.sleep(0)

    asyncio.run(migrate(shared))
    threads = [
        threading.Thread(target=lambda name=name: asyncio.run(busy(name)))  # type: ignore[misc]
        for name in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(outcomes) == 60
    records = shared.connection.execute("SELECT count(*) FROM workflow_checkpoint").fetchall()
    assert records == [(outcomes.count("written"),)]


def leave_a_call_inside(shared: Database) -> threading.Event:
    """A loop that ends while its call is inside; the event lets the call go."""
    inside, leave = threading.Event(), threading.Event()

    async def abandoned() -> None:
        task = asyncio.create_task(shared.run(lambda _: (inside.set(), leave.wait(10))))
        await asyncio.to_thread(inside.wait, 10)
        assert not task.done()

    asyncio.run(abandoned())
    return leave


def leave_a_guard_held(shared: Database) -> threading.Event:
    async def abandoned() -> None:
        await shared.guard.acquire()

    asyncio.run(abandoned())
    return threading.Event()


@pytest.mark.parametrize("left", [leave_a_call_inside, leave_a_guard_held])
def test_k24_what_an_ended_loop_left_behind_blocks_no_later_one(
    shared: Database, left: Callable[[Database], threading.Event]
) -> None:
    leave = left(shared)
    timer = threading.Timer(0.2, leave.set)
    timer.start()
    assert asyncio.run(twenty(shared, "a")) == 20
    timer.join()


def test_k24_a_stopped_loop_counts_as_ended(shared: Database) -> None:
    stopped = asyncio.new_event_loop()
    stopped.run_until_complete(twenty(shared, "a"))
    assert asyncio.run(twenty(shared, "b")) == 20
    assert stopped.run_until_complete(twenty(shared, "c")) == 20
    stopped.close()


OWN_GUARD = """
async def twenty(workflow):
    async with asyncio.timeout(5):
        await asyncio.gather(*(cp.supply(workflow, str(n), n) for n in range(20)))

connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
db = Database(connection, asyncio.Lock())
cp = SqliteCheckpointer(db)
asyncio.run(migrate(db))
asyncio.run(twenty("a"))
try:
    asyncio.run(twenty("b"))
    refused = False
except RuntimeError:
    refused = True
found = connection.execute("SELECT count(*) FROM workflow_checkpoint WHERE workflow = 'b'")
print(refused, *found.fetchone())
"""


def test_k24_a_guard_of_the_callers_own_serves_a_later_loop_or_is_refused_at_once(
    child: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    ended = child(OWN_GUARD)
    assert ended.returncode == 0, ended.stderr
    answers = ("False 20", "True 0")
    assert ended.stdout.strip() in answers, "some calls of the later loop were served, not others"
