"""Passes started for somebody who goes away, is deleted or fails: nothing of it is lost."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from contract import cancelled
from gated import listening, turns, working
from spied import (
    HOUR,
    NOW,
    Crowd,
    SpiedDurable,
    completing,
    doing,
    left,
    over_a_file,
    ready,
    start,
    transacting,
)
from stores import Stores
from thread_gates import Stop, in_time, occupied, reading, until
from without_durability import BUDGET, Run, work
from without_durability_sqlite import (
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    connect,
)

stores = pytest.fixture(over_a_file)


# --- gone away ----------------------------------------------------------------------------------


async def assert_all_is_there(stores: Stores, names: str) -> None:
    """Nothing is out and nothing is claimed: the next one has it at once."""
    started = await start(stores)
    assert set(started) == set(names), "a delivery was lost"
    assert all(one.holder is not None for one in started.values()), "a claim was kept"


async def at_rest(stores: Stores) -> None:
    """Have both threads leave their connections: a trace is not to be changed under them."""
    database = stores.checkpointer.database
    await in_time(database.run(lambda connection: None))
    await in_time(stores.checkpointer.load("nothing"))


async def put_back(stores: Stores) -> None:
    await stores.checkpointer.database.run(
        lambda c: c.executescript(
            "UPDATE workflow_queue SET visible_at = 1, taken = NULL, taken_for = 0;"
            "UPDATE workflow_claim SET held_until = 0, alive_until = 0;"
        ).close()
    )


async def test_a_caller_that_goes_away_at_any_statement_leaves_all_of_it(stores: Stores):
    names = "abc"
    await ready(stores, *names)
    await stores.checkpointer.supply("a", "k", 1)
    database = stores.checkpointer.database
    connections = (database.connection, await reading(database))
    places = []
    for n in range(1, 100):
        stop = Stop(n, *connections)
        task = asyncio.create_task(stores.durable.start_passes(5, NOW, BUDGET))
        if not await stop.stands(task):
            assert len(task.result()) == len(names)
            break
        places.append(stop.at)
        task.cancel()
        await turns()
        stop.opened.set()
        await in_time(asyncio.wait((task,)))
        assert task.cancelled()
        await assert_all_is_there(stores, names)
        await put_back(stores)
        await at_rest(stores)
    assert places[0] is connections[1], "it looks before it takes"
    assert places[-1] is connections[1], "it loads after it has taken"
    assert places.count(connections[0]) > 2 * len(names)


@pytest.mark.parametrize("count", range(12))
async def test_a_caller_that_goes_away_at_any_turn_of_the_loop_leaves_all_of_it(
    stores: Stores, count: int
):
    names = "abc"
    await ready(stores, *names)
    for _ in range(5):
        task = asyncio.create_task(stores.durable.start_passes(5, NOW, BUDGET))
        await turns(count)
        task.cancel()
        await in_time(asyncio.wait((task,)))
        if task.cancelled():
            await assert_all_is_there(stores, names)
        await put_back(stores)


async def test_a_caller_that_goes_away_while_it_waits_takes_nothing(stores: Stores):
    task = asyncio.create_task(stores.durable.start_passes(5, HOUR, BUDGET))
    await until(lambda: len(stores.checkpointer.database._watch._waiters) > 0)
    await cancelled(task)
    await ready(stores, *"abc")
    await assert_all_is_there(stores, "abc")


async def test_a_worker_that_is_cancelled_hands_everything_back_at_once(stores: Stores):
    await ready(stores, *"abcd")
    crowd = Crowd()
    async with doing(stores, crowd, stores.durable, limit=3):
        await crowd.holds(3)
    await assert_all_is_there(stores, "abcd")


@pytest.mark.parametrize("count", range(0, 60, 5))
async def test_a_worker_that_is_cancelled_at_any_turn_hands_everything_back(
    stores: Stores, count: int
):
    await ready(stores, *"abcd")
    task = asyncio.create_task(work(stores.durable, Crowd(), limit=3, now=stores.clock.now))
    await turns(count)
    task.cancel()
    await in_time(asyncio.wait((task,)))
    await assert_all_is_there(stores, "abcd")


async def test_passes_that_never_had_a_turn_are_handed_back(stores: Stores):
    """Closing a loop cancels every task, and one that has not begun does not even hear of it."""
    durable = SpiedDurable(stores.durable)
    begin = durable.start_passes

    async def then_cancelled(*arguments: Any) -> Any:
        started = await begin(*arguments)
        asyncio.get_running_loop().call_soon(cancel_all_but, me)
        return started

    me = asyncio.current_task()
    durable.start_passes = then_cancelled
    await ready(stores, *"abc")
    crowd = Crowd()
    task = asyncio.create_task(work(durable, crowd, now=stores.clock.now))
    await in_time(asyncio.wait((task,)))
    assert crowd.most == 0
    del durable.start_passes
    await assert_all_is_there(stores, "abc")


def cancel_all_but(me: object) -> None:
    for task in asyncio.all_tasks() - {me}:
        task.cancel()


async def test_a_worker_that_is_stopped_while_it_waits_takes_nothing_new(stores: Stores):
    stopping = asyncio.Event()
    options = {"stopping": stopping, "now": stores.clock.now, "within": HOUR}
    task = asyncio.create_task(work(stores.durable, completing, **options))
    await until(lambda: len(stores.checkpointer.database._watch._waiters) > 0)
    stopping.set()
    await in_time(task)
    await ready(stores, *"ab")
    await assert_all_is_there(stores, "ab")


async def test_a_worker_that_is_stopped_lets_its_passes_finish(stores: Stores):
    stopping, crowd = asyncio.Event(), Crowd()
    await ready(stores, *"abc")
    options = {"stopping": stopping, "now": stores.clock.now, "limit": 2}
    task = asyncio.create_task(work(stores.durable, crowd, **options))
    await crowd.holds(2)
    stopping.set()
    await turns()
    crowd.let_go("a", "b")
    await in_time(task)
    await assert_all_is_there(stores, "c")


async def test_a_worker_that_is_stopped_while_it_takes_gives_back_what_it_took(stores: Stores):
    await ready(stores, *"abc")
    database = stores.checkpointer.database
    stopping, crowd = asyncio.Event(), Crowd()
    options = {"stopping": stopping, "now": stores.clock.now}
    await stores.scheduler.prepare()
    stop = Stop(1, database.connection)
    task = asyncio.create_task(work(stores.durable, crowd, **options))
    assert await stop.stands(task)
    stopping.set()
    await turns()
    stop.opened.set()
    await in_time(task)
    assert crowd.most == 0
    await assert_all_is_there(stores, "abc")


# --- deleted ------------------------------------------------------------------------------------


@pytest.mark.parametrize("deleted", ["cancel", "delete"])
async def test_what_is_deleted_before_it_is_taken_starts_no_pass(stores: Stores, deleted: str):
    await ready(stores, *"wv")
    database = stores.checkpointer.database
    gate, ahead = await occupied(database)
    calls = {"cancel": stores.scheduler.cancel, "delete": stores.durable.delete}
    task = asyncio.create_task(calls[deleted]("w"))
    await turns()
    started = asyncio.create_task(start(stores))
    await turns()
    gate.opened.set()
    await in_time(asyncio.gather(ahead, task))
    assert set(await started) == {"v"}


async def test_what_is_deleted_at_any_moment_of_a_start_ends_with_nothing(stores: Stores):
    """A pass may begin over it, as it may be deleted in the middle of one: it writes nothing."""
    database = stores.checkpointer.database
    connections = (database.connection, await reading(database))
    stood = 0
    for n in range(1, 100):
        await stores.checkpointer.supply("w", "a", 1)
        await ready(stores, "w")
        durable = SpiedDurable(stores.durable)
        stop = Stop(n, *connections)
        async with doing(stores, transacting, durable):
            await until(
                lambda stop=stop, durable=durable: bool(  # type: ignore[misc]
                    stop.reached.is_set() or durable.calls.count("end_pass")
                )
            )
            stands = stop.reached.is_set()
            deleting = asyncio.create_task(stores.durable.delete("w"))
            await turns()
            stop.opened.set()
            await in_time(deleting)
        await at_rest(stores)
        assert left(stores)["records"] == []
        assert left(stores)["queue"] == []
        assert [row for row in left(stores)["claims"] if row[2] > 0] == []
        if not stands:
            break
        stood += 1
    assert stood > 5


async def test_what_is_deleted_before_its_records_are_read_runs_no_effect(stores: Stores):
    """Its recorded steps are gone: a pass over it would run them again."""
    effects = []

    async def body(run: Run[Any]) -> object:
        async def effect() -> int:
            effects.append(run.workflow)
            return 1

        return await run.step("a", effect, int)

    await stores.checkpointer.supply("w", "a", 1)
    await ready(stores, "w")
    reader = await reading(stores.checkpointer.database)
    durable = SpiedDurable(stores.durable)
    stop = AtLoad(1, reader)
    async with doing(stores, body, durable):
        await until(stop.reached.is_set)
        await in_time(stores.durable.delete("w"))
        stop.opened.set()
        await ready(stores, "next")
        await until(lambda: "next" in effects)
    assert effects == ["next"]


class AtLoad(Stop):
    """Keeps the reading thread where it is about to read the records of a started pass."""

    def _traced(self, connection: sqlite3.Connection, sql: str) -> None:
        if "FROM workflow_checkpoint WHERE workflow" in sql:
            super()._traced(connection, sql)


# --- errors -------------------------------------------------------------------------------------


class Failing:
    """A call that fails so many times first."""

    def __init__(self, call: Callable[..., Awaitable[Any]], *errors: BaseException) -> None:
        self.call, self.errors, self.asked = call, list(errors), 0

    async def __call__(self, *arguments: Any) -> Any:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return await self.call(*arguments)


def busy() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_BUSY, "SQLITE_BUSY"
    return error


@pytest.mark.parametrize("name", ["start_passes", "end_pass"])
async def test_a_passing_error_is_asked_again(
    stores: Stores, name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("without_durability.retrying.STORE_FIRST", timedelta(milliseconds=1))
    durable = SpiedDurable(stores.durable)
    failing = Failing(getattr(durable, name), busy(), busy())
    setattr(durable, name, failing)
    await ready(stores, "w")
    async with listening() as heard, doing(stores, completing, durable):
        await heard.until("the store refused", "attempt 2")
        await durable.answers()
    assert left(stores)["queue"] == []
    assert failing.asked >= 3


@pytest.mark.parametrize("name", ["start_passes", "end_pass"])
async def test_an_error_that_does_not_pass_ends_the_worker_with_it(stores: Stores, name: str):
    durable = SpiedDurable(stores.durable)
    broken = sqlite3.DatabaseError("database disk image is malformed")
    setattr(durable, name, Failing(getattr(durable, name), broken))
    await ready(stores, "w")
    with pytest.raises(sqlite3.DatabaseError) as caught:
        await in_time(work(durable, completing, now=stores.clock.now))
    assert caught.value is broken
    await assert_all_is_there(stores, "w")


async def test_a_worker_prepares_its_file_first(path: Path):
    async with connect(path) as database:
        durable = SpiedDurable(
            SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database))
        )
        async with working(durable, completing):
            await until(lambda: "prepare" in durable.calls)
            await durable.arrive("w", "k", 1)
            await durable.answers()
    assert durable.calls[0] == "prepare"


@pytest.mark.parametrize("within", [timedelta(-1), 1, None])
async def test_a_wait_that_is_none_is_refused(stores: Stores, within: Any):
    await ready(stores, "w")
    with pytest.raises((TypeError, ValueError)):
        await stores.durable.start_passes(1, within, BUDGET)
    await assert_all_is_there(stores, "w")


@pytest.mark.parametrize("budget", [timedelta(0), timedelta(-1), 1])
async def test_a_budget_that_is_none_is_refused(stores: Stores, budget: Any):
    await ready(stores, "w")
    with pytest.raises((TypeError, ValueError)):
        await stores.durable.start_passes(1, NOW, budget)
    await assert_all_is_there(stores, "w")
