"""D1 to D4: the calls that touch both stores, over one datastore and over two."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stores import Stores, over_sqlite
from without_durability import (
    INBOX,
    LEASE,
    Fenced,
    MemoryCheckpointer,
    MemoryScheduler,
    SplitDurable,
    claimed,
)
from without_durability.testing import Clock
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    connect,
)

NOW = timedelta(0)

Call = Callable[[Any], Awaitable[object]]

CALLS: dict[str, Call] = {
    "arrive": lambda durable: durable.arrive("w", "k", 1),
    "deliver": lambda durable: durable.deliver("w", 1),
    "delete": lambda durable: durable.delete("w"),
}
WRITES = {name: CALLS[name] for name in ("arrive", "deliver")}

each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
each_write = pytest.mark.parametrize("call", WRITES.values(), ids=WRITES)


async def is_ready(stores: Stores) -> bool:
    return await stores.scheduler.next_ready(NOW) is not None


async def test_d1_arrive_supplies_and_makes_ready(stores: Stores) -> None:
    assert await stores.durable.arrive("w", "k", (1, 2)) == [1, 2]
    assert await is_ready(stores)
    assert await stores.durable.arrive("w", "k", "late") == [1, 2]
    assert await is_ready(stores), "a losing arrival wakes the workflow as well"
    assert await stores.checkpointer.load("w") == {"k": [1, 2]}


async def test_d2_deliver_appends_and_makes_ready(stores: Stores) -> None:
    entries = [await stores.durable.deliver("w", (n,)) for n in range(3)]
    assert [entry.value for entry in entries] == [[0], [1], [2]]
    keys = [entry.key for entry in entries]
    assert keys == sorted(set(keys))
    assert all(key.startswith(INBOX) for key in keys)
    assert list((await stores.checkpointer.load("w")).items()) == [
        (entry.key, entry.value) for entry in entries
    ]
    assert await is_ready(stores)


@pytest.mark.parametrize("state", ["ready", "sleeping", "out"])
async def test_d3_delete_cancels_and_discards_and_counts(state: str, stores: Stores) -> None:
    await stores.durable.arrive("w", "k", 1)
    await stores.durable.deliver("w", 2)
    await stores.checkpointer.supply("other", "k", 1)
    if state == "sleeping":
        await stores.scheduler.schedule("w", stores.clock.now() + LEASE)
    elif state == "out":
        assert await is_ready(stores)
    holder = await claimed(stores.checkpointer, "w")
    assert await stores.durable.delete("w") == 2
    assert await stores.checkpointer.load("w") == {}
    with pytest.raises(Fenced):
        await stores.checkpointer.record(holder, "late", 1)
    stores.clock.advance(10 * LEASE)
    await stores.scheduler.wake_due(stores.clock.now())
    assert not await is_ready(stores)
    assert await stores.durable.delete("w") == 0
    assert await stores.checkpointer.load("other") == {"k": 1}


async def test_d3_delete_leaves_another_namespace_to_start_the_id_afresh(
    database: Database, clock: Clock
) -> None:
    stores = over_sqlite(database, clock)
    other = SqliteScheduler(database, "other")
    await stores.durable.arrive("w", "k", 1)
    await other.make_ready("w")
    assert await stores.durable.delete("w") == 1
    assert not await is_ready(stores)
    assert await other.next_ready(NOW)
    assert await stores.checkpointer.load("w") == {}


# --- D4: one commit over one file ----------------------------------------------------------------


def refuse(path: Path, event: str, table: str) -> None:
    """From now on the file refuses such statements on the table, whoever asks."""
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute(
            f"CREATE TRIGGER refuse BEFORE {event} ON {table} "
            "BEGIN SELECT raise(ABORT, 'refused'); END"
        )


def relent(path: Path) -> None:
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute("DROP TRIGGER refuse")


def held(path: Path) -> tuple[list[Any], list[Any]]:
    """Both tables, as a second plain connection sees them."""
    with closing(sqlite3.connect(path)) as plain:
        records = plain.execute("SELECT step, value FROM workflow_checkpoint").fetchall()
        return records, plain.execute("SELECT workflow, visible_at FROM workflow_queue").fetchall()


@each_write
@pytest.mark.parametrize("table", ["workflow_checkpoint", "workflow_queue"])
async def test_d4_a_write_whose_other_half_fails_does_not_happen(
    table: str, call: Call, database: Database, path: Path, clock: Clock
) -> None:
    stores = over_sqlite(database, clock)
    refuse(path, "INSERT", table)
    with pytest.raises(sqlite3.IntegrityError):
        await call(stores.durable)
    assert held(path) == ([], [])
    relent(path)
    await call(stores.durable)
    records, wakeups = held(path)
    assert (len(records), len(wakeups)) == (1, 1)


@pytest.mark.parametrize("table", ["workflow_checkpoint", "workflow_queue"])
async def test_d4_a_delete_whose_other_half_fails_does_not_happen(
    table: str, database: Database, path: Path, clock: Clock
) -> None:
    stores = over_sqlite(database, clock)
    await stores.durable.arrive("w", "k", 1)
    holder = await claimed(stores.checkpointer, "w")
    before = held(path)
    refuse(path, "DELETE", table)
    with pytest.raises(sqlite3.IntegrityError):
        await stores.durable.delete("w")
    assert held(path) == before
    assert await stores.checkpointer.renew(holder, LEASE), "the fence was raised all the same"
    relent(path)
    assert await stores.durable.delete("w") == 1
    assert held(path) == ([], [])


@each_call
async def test_d4_each_call_is_one_commit(
    call: Call, database: Database, path: Path, clock: Clock
) -> None:
    stores = over_sqlite(database, clock)
    statements: list[str] = []
    await stores.durable.arrive("w", "before", 1)
    await database.run(lambda connection: connection.set_trace_callback(statements.append))
    await call(stores.durable)
    await database.run(lambda connection: connection.set_trace_callback(None))
    assert [one for one in statements if one in ("BEGIN IMMEDIATE", "COMMIT", "ROLLBACK")] == [
        "BEGIN IMMEDIATE",
        "COMMIT",
    ]


async def test_d4_stores_over_two_databases_are_refused(database: Database, path: Path) -> None:
    async with connect(path) as second:
        with pytest.raises(ValueError, match="share one database"):
            SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(second))


# --- D4: two datastores in a recoverable order ---------------------------------------------------


class Outage(Exception):
    """The second datastore is away."""


class Flaky:
    """A store that goes away just before some of its calls."""

    def __init__(self, store: Any, failing: str) -> None:
        self.store = store
        self.failing = {failing}

    def __getattr__(self, name: str) -> Any:
        if name in self.failing:
            return self._refuse
        return getattr(self.store, name)

    async def _refuse(self, *_: object) -> object:
        raise Outage


@pytest.fixture(params=["memory and sqlite", "sqlite and memory"])
async def halves(request: pytest.FixtureRequest, database: Database, clock: Clock) -> Any:
    """A checkpointer and a scheduler of two different datastores."""
    if request.param == "memory and sqlite":
        return MemoryCheckpointer(clock=clock.seconds, now=clock.now), SqliteScheduler(database)
    return SqliteCheckpointer(database), MemoryScheduler(clock=clock.seconds)


@each_write
async def test_d4_split_stores_record_before_they_queue(call: Call, halves: Any) -> None:
    checkpointer, scheduler = halves
    flaky = Flaky(scheduler, "make_ready")
    durable = SplitDurable(checkpointer, flaky)
    with pytest.raises(Outage):
        await call(durable)
    assert len(await checkpointer.load("w")) == 1, "queued before it was recorded"
    assert await scheduler.next_ready(NOW) is None
    flaky.failing.clear()
    await call(durable)
    delivery = await scheduler.next_ready(NOW)
    assert delivery is not None
    assert delivery.workflow == "w"


@pytest.mark.parametrize(("name", "first_half"), [("arrive", "supply"), ("deliver", "append")])
async def test_d4_split_stores_queue_nothing_that_was_not_recorded(
    name: str, first_half: str, halves: Any
) -> None:
    checkpointer, scheduler = halves
    with pytest.raises(Outage):
        await CALLS[name](SplitDurable(Flaky(checkpointer, first_half), scheduler))
    assert await scheduler.next_ready(NOW) is None


async def test_d4_split_stores_cancel_before_they_discard(halves: Any) -> None:
    checkpointer, scheduler = halves
    flaky = Flaky(checkpointer, "discard")
    durable = SplitDurable(flaky, scheduler)
    await durable.arrive("w", "k", 1)
    with pytest.raises(Outage):
        await durable.delete("w")
    assert await checkpointer.load("w") == {"k": 1}
    assert await scheduler.next_ready(NOW) is None, "discarded before it was cancelled"
    flaky.failing.clear()
    assert await durable.delete("w") == 1


async def test_d4_split_stores_discard_nothing_that_may_still_be_woken(halves: Any) -> None:
    checkpointer, scheduler = halves
    flaky = Flaky(scheduler, "cancel")
    durable = SplitDurable(checkpointer, flaky)
    await durable.arrive("w", "k", 1)
    with pytest.raises(Outage):
        await durable.delete("w")
    assert await checkpointer.load("w") == {"k": 1}
    flaky.failing.clear()
    assert await durable.delete("w") == 1
    assert await scheduler.next_ready(NOW) is None
