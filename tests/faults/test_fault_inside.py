"""What is inside the database and asynchronous, calls it back, or never returns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_fault_calls import AWAY_FROM_THE_FILE, CALLS, WRITES, Scene, rows_of
from test_fault_effects import WAYS, mark, over

from children import ended
from stores import Stores, over_sqlite
from thread_gates import (
    THREAD,
    Gate,
    directly,
    in_time,
    stays_outside,
    through_the_loop,
    until,
)
from without_durability import Clock
from without_durability_sqlite import Database, SqliteCheckpointer, connect, migrate

Effect = Callable[[Any], object]


@pytest.fixture
async def scene(database: Database, clock: Clock) -> Scene:
    return await over(over_sqlite(database, clock))


async def asynchronous(subject: Any) -> None:
    mark(subject)


async def generating(subject: Any) -> Any:
    mark(subject)
    yield 1


class Asynchronous:
    async def __call__(self, subject: Any) -> None:
        mark(subject)


ASYNC = [asynchronous, generating, Asynchronous(), partial(asynchronous), lambda s: asynchronous(s)]


@pytest.mark.parametrize("way", [*WAYS, "run"])
async def test_fault_async_work_is_a_type_error_and_nothing_of_it_runs(scene: Scene, way):
    ways = WAYS | {"run": lambda scene, effect: scene.database.run(effect)}
    for work in ASYNC:
        async with scene.refusal(TypeError):
            await ways[way](scene, work)


async def test_fault_async_effect_in_memory_is_a_type_error_and_nothing_of_it_runs(stores: Stores):
    scene = await over(stores)
    for work in ASYNC:
        async with scene.refusal(TypeError):
            await scene.call("checkpointer.transact", effect=work)


def database_calls(database: Database) -> dict[str, Callable[[], Awaitable[Any]]]:
    """What else uses the file: a database's own calls."""
    return {
        "run": lambda: database.run(lambda connection: 1),
        "migrate": lambda: migrate(database),
        "guard": lambda: database.guard.acquire(),
        "aclose": lambda: database.aclose(),
    }


@pytest.mark.parametrize("back", [directly, through_the_loop])
@pytest.mark.parametrize("way", [*WAYS, "run"])
async def test_fault_calling_back_from_inside_is_a_runtime_error_at_once_whatever_is_called(
    scene: Scene, way, back
):
    loop = asyncio.get_running_loop()
    calls = {name: partial(scene.call, name) for name in CALLS.keys() - AWAY_FROM_THE_FILE}
    calls |= database_calls(scene.database)
    answers: dict[str, str] = {}

    def calling_back(subject: Any) -> str:
        for name, call in calls.items():
            with pytest.raises(RuntimeError) as caught:
                back(call(), loop)
            answers[name] = str(caught.value)
        return "done"

    ways = WAYS | {"run": lambda scene, effect: scene.database.run(effect)}
    assert await in_time(ways[way](scene, calling_back)) == "done" or way == "Run.transact"
    assert answers.keys() == calls.keys()
    assert all("back into the database" in answer for answer in answers.values()), answers
    assert scene.effects == [], "one of them was served"
    assert await scene.call("checkpointer.load", workflow="free") == {}


@pytest.mark.parametrize("way", [*WAYS, "run"])
async def test_fault_never_returning_work_makes_others_wait_and_cancelling_unwinds_them(
    scene: Scene, path, way, caplog, monkeypatch
):
    monkeypatch.setattr("without_durability_sqlite.database.PATIENCE", 0.01)
    ways = WAYS | {"run": lambda scene, effect: scene.database.run(effect)}
    gate = Gate()
    stuck = asyncio.create_task(ways[way](scene, gate))
    await gate.reached()
    try:
        before = scene.contents()
        others = [asyncio.ensure_future(scene.call(name)) for name in WRITES]
        await stays_outside(*others)
        for one in others:
            one.cancel()
        await in_time(asyncio.wait(others))
        closed = asyncio.create_task(scene.database.aclose())
        with caplog.at_level(logging.WARNING, THREAD):
            await until(lambda: "aclose waits" in caplog.text)
        assert not gate.left.is_set(), "it was not there all the while"
        assert not closed.done(), "the connection was closed under it"
        assert scene.contents() == before, "a cancelled call was made"
    finally:
        gate.opened.set()
    await in_time(asyncio.gather(stuck, closed))
    found = rows_of(path)
    for table in ("workflow_claim", "workflow_queue"):
        assert found[table] == before[table], "a cancelled call was made once it had returned"


@pytest.mark.parametrize("way", WAYS)
async def test_fault_what_an_effect_leaves_open_blocks_nobody(scene: Scene, way):
    """A cursor or a blob that somebody still refers to would be a statement in progress."""
    left: list[Any] = []

    def leaving(cursor: Any) -> str:
        cursor.execute("INSERT INTO app VALUES (zeroblob(9))")
        left.append(cursor.connection.blobopen("app", "n", cursor.lastrowid))
        left.append(cursor.connection.execute("INSERT INTO app VALUES (1), (2) RETURNING n"))
        return "done"

    await WAYS[way](scene, leaving)
    assert await scene.call("checkpointer.supply", key="after") == 1
    assert scene.contents()["app"] == [(1,), (2,), (bytes(9),)]


STUCK = """
from without_durability_sqlite import thread
from without_durability_sqlite.files import main_file
from without_durability_sqlite.store import transacted
thread.PATIENCE, thread.GIVING_UP = 0.1, 0.2
FOREVER = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
inside = threading.Event()
way, doing = arguments

def stuck(subject):
    subject.execute("CREATE TABLE half (n)")
    inside.set()
    subject.execute(FOREVER).fetchall() if doing == "sql" else time.sleep(60)

async def main():
    await opened()
    await cp.supply("w", "acknowledged", 1)
    holder = await cp.claim("w", MIN, MIN)
    task = asyncio.create_task({
        "transact": lambda: cp.transact(holder, "k", stuck),
        "transacted": lambda: db.run(lambda connection: transacted(connection, stuck)),
    }[way]())
    while not inside.is_set():
        await asyncio.sleep(0.001)

asyncio.run(main())
print("returned", flush=True)
"""


@pytest.mark.parametrize(
    ("way", "doing"), [("transact", "python"), ("transact", "sql"), ("transacted", "python")]
)
async def test_fault_never_returning_work_is_given_up_on_when_the_interpreter_exits(
    path: Path, way, doing
):
    child = ended(STUCK, path, way, doing)
    assert (child.code, child.out) == (0, "returned\n"), child.err
    assert child.took < 5, "exit waited for it"
    assert ("leaves work behind" in child.err) is (doing == "python"), child.err
    async with connect(path) as database:
        assert await SqliteCheckpointer(database).load("w") == {"acknowledged": 1}
        half = "SELECT * FROM sqlite_master WHERE name = 'half'"
        assert await database.run(lambda connection: connection.execute(half).fetchall()) == []
