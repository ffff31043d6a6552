"""A caller that goes away while its write waits among others, or runs among them (C17, S9)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from batches import (
    Halt,
    app,
    came_to,
    connection_of,
    holder_of,
    interposed_stores,
    of,
    seen,
    statements,
    waiting,
    writes,
)
from contract import cancelled
from steered import TAKEN, steer
from stores import Stores
from thread_gates import Gate, fail, until
from without_durability import JSON, LEASE, Clock, Delivery, Pass
from without_durability.values import Ended
from without_durability_sqlite import SqliteCheckpointer, SqliteDurable
from without_durability_sqlite.errors import operational_error
from without_durability_sqlite.passes import Passes

MINUTE = timedelta(minutes=1)
NOW = timedelta(0)
CONTENTS = ("workflow_checkpoint", "workflow_claim", "workflow_queue", "workflow_run", "app")


@pytest.fixture
async def stores(path: Path, migrated: Path, clock: Clock) -> AsyncIterator[Stores]:
    async with interposed_stores(path, migrated, clock) as stores:
        yield stores


def contents(stores: Stores) -> list[list[tuple[Any, ...]]]:
    return [seen(stores, f"SELECT * FROM {table}") for table in CONTENTS]


ENDED = Ended(state="completed", attempts=0)

CALLS: dict[str, Callable[[Stores, Pass, Delivery], Awaitable[object]]] = {
    "record": lambda s, holder, _: s.checkpointer.record(holder, "new", 1),
    "transact": lambda s, holder, _: s.checkpointer.transact(holder, "new", writes("effect")),
    "supply": lambda s, *_: s.checkpointer.supply("w", "new", 1),
    "append": lambda s, *_: s.checkpointer.append("w", 1),
    "discard": lambda s, *_: s.checkpointer.discard("w"),
    "release": lambda s, holder, _: s.checkpointer.release(holder),
    "claim": lambda s, *_: s.checkpointer.claim("v", LEASE, LEASE),
    "extend": lambda s, holder, _: s.checkpointer.extend(holder, 2 * LEASE, LEASE),
    "renew": lambda s, holder, _: s.checkpointer.renew(holder, LEASE / 2),
    "arrive": lambda s, *_: s.durable.arrive("v", "new", 1),
    "deliver": lambda s, *_: s.durable.deliver("v", 1),
    "delete": lambda s, *_: s.durable.delete("w"),
    "make_ready": lambda s, *_: s.scheduler.make_ready("v"),
    "cancel": lambda s, *_: s.scheduler.cancel("w"),
    "done": lambda s, _, delivery: s.scheduler.done(delivery),
    "wake_at": lambda s, _, delivery: s.scheduler.wake_at(delivery, s.clock.now()),
    "extend a delivery": lambda s, _, delivery: s.scheduler.extend(delivery, 2 * LEASE),
    "end_pass": lambda s, holder, delivery: s.durable.end_pass(holder, delivery, ENDED),
    "start_pass": lambda s, *_: s.durable.start_pass(TAKEN, LEASE),
    "retry": lambda s, *_: s.durable.retry("failed"),
    "cancel a workflow": lambda s, *_: s.durable.cancel("w", "enough"),
    "rewind": lambda s, *_: s.durable.rewind("w", "step"),
    "fork": lambda s, *_: s.durable.fork("w", "v"),
    "sweep": lambda s, *_: s.durable.sweep(older=NOW, limit=1),
}


async def held(stores: Stores) -> tuple[Pass, Delivery]:
    """A pass and a delivery of "w", taken before now."""
    await steer(stores.durable)
    await stores.durable.arrive("w", "kept", 1)
    delivery = await stores.scheduler.next_ready(NOW)
    holder = await holder_of(stores, "w")
    await stores.checkpointer.record(holder, "step", 1)
    stores.clock.advance(timedelta(seconds=1))
    return holder, delivery


@pytest.mark.parametrize("name", CALLS)
async def test_a_caller_cancelled_while_its_write_waits_is_taken_out(stores: Stores, name: str):
    holder, delivery = await held(stores)
    before = contents(stores)
    async with waiting(of(stores), CALLS[name](stores, holder, delivery)) as (task,):
        await cancelled(task)
    await of(stores).run(lambda _: None)
    assert contents(stores) == before


async def test_those_beside_a_caller_that_was_taken_out_share_their_commit(stores: Stores):
    store = stores.checkpointer
    with statements(connection_of(stores)) as ran:
        async with waiting(of(stores), *(store.supply("w", str(n), n) for n in range(5))) as tasks:
            await cancelled(tasks.pop(2))
        assert await came_to(tasks) == [0, 1, 3, 4]
    assert ran.count("COMMIT") == 1
    assert [*await store.load("w")] == ["0", "1", "3", "4"]


async def test_a_batch_whose_callers_have_all_gone_begins_no_transaction(stores: Stores):
    with statements(connection_of(stores)) as ran:
        async with waiting(
            of(stores), *(stores.checkpointer.append("w", n) for n in range(3))
        ) as tasks:
            for task in tasks:
                await cancelled(task)
        await of(stores).run(lambda _: None)
    assert "BEGIN IMMEDIATE" not in ran


@pytest.mark.parametrize("name", CALLS)
async def test_a_caller_cancelled_before_the_batch_has_the_lock_is_taken_out(
    stores: Stores, name: str
):
    """The transaction it would have shared is about to begin, and goes on without it."""
    holder, delivery = await held(stores)
    store = stores.checkpointer
    halt = Halt(connection_of(stores), "BEGIN IMMEDIATE")
    async with waiting(
        of(stores), CALLS[name](stores, holder, delivery), store.supply("other", "a", 1)
    ) as (task, other):
        before = contents(stores)
    await halt.there()
    await cancelled(task)
    halt.opened.set()
    assert await came_to([other]) == [1]
    after = contents(stores)
    assert [row for row in after[0] if row[1] != "other"] == before[0]
    assert after[1:] == before[1:]


@pytest.mark.parametrize("at", ["COMMIT", "INSERT INTO app"], ids=["committing", "running"])
@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"sweep"}))  # it looks before it writes
async def test_a_caller_cancelled_after_its_write_began_has_all_of_it_or_it_is_given_back(
    stores: Stores, name: str, at: str
):
    """The one behind it in the batch is stopped there: by then it has begun."""
    holder, delivery = await held(stores)
    before = contents(stores)
    last = await holder_of(stores, "last")
    halt = Halt(connection_of(stores), at, 2 if name == "transact" and at != "COMMIT" else 1)
    async with waiting(
        of(stores),
        CALLS[name](stores, holder, delivery),
        stores.checkpointer.transact(last, "last", writes("last")),
    ) as (task, behind):
        pass
    await halt.there()
    await cancelled(task)
    halt.opened.set()
    assert await came_to([behind]) == ["last"]
    await of(stores).run(lambda _: None)
    after = contents(stores)
    assert [row for row in after[0] if row[1] == "last"] != []
    changed = [[row for row in table if "last" not in row] for table in after] != before
    if name == "claim":
        assert await stores.checkpointer.claim("v", LEASE, LEASE), "the grant was not given back"
    elif name == "start_pass":
        started = await stores.durable.start_pass(TAKEN, LEASE)
        assert (started.holder is not None, started.attempt) == (True, 1), "it was an attempt"
    elif name == "extend a delivery":
        assert [row[:3] for row in after[2]] == [row[:3] for row in before[2]]
    else:
        assert changed, "it had begun, and did not happen"
    if name == "transact":
        assert app(stores) == ["effect", "last"]


async def test_a_delivery_taken_for_a_caller_that_has_gone_is_there_for_the_next(stores: Stores):
    await stores.scheduler.make_ready("w")
    halt = Halt(connection_of(stores), "COMMIT")
    task = asyncio.create_task(stores.scheduler.next_ready(NOW))
    await halt.there()
    others = [asyncio.create_task(stores.checkpointer.supply("w", "a", 1))]
    await cancelled(task)
    halt.opened.set()
    assert await came_to([*others]) == [1]
    delivery = await stores.scheduler.next_ready(NOW)
    assert delivery is not None
    assert delivery.workflow == "w"


async def test_passes_started_for_a_caller_that_has_gone_are_given_back(stores: Stores):
    for workflow in "vw":
        await stores.scheduler.make_ready(workflow)
    halt = Halt(connection_of(stores), "COMMIT")
    task = asyncio.create_task(stores.durable.start_passes(5, NOW, MINUTE))
    await halt.there()
    await cancelled(task)
    halt.opened.set()
    started = await stores.durable.start_passes(5, NOW, MINUTE)
    assert {one.holder.workflow for one in started} == {"v", "w"}
    assert await stores.scheduler.next_ready(NOW) is None


class Gated:
    """A codec that stops at what it decodes, until it is opened."""

    def __init__(self) -> None:
        self.gate = Gate()

    def encode(self, value: object) -> str:
        return JSON.encode(value)

    def decode(self, encoded: str) -> object:
        self.gate(None)
        return JSON.decode(encoded)


async def test_passes_whose_caller_goes_away_while_they_are_loaded_are_given_back(stores: Stores):
    codec = Gated()
    durable = SqliteDurable(SqliteCheckpointer(of(stores), codec), stores.scheduler)
    await stores.checkpointer.supply("w", "a", 1)
    await stores.scheduler.make_ready("w")
    task = asyncio.create_task(durable.start_passes(5, NOW, MINUTE))
    await codec.gate.reached()
    task.cancel()
    codec.gate.opened.set()
    await asyncio.wait((task,))
    assert task.cancelled()
    (started,) = await stores.durable.start_passes(5, NOW, MINUTE)
    assert started.holder is not None
    assert started.recorded == {"a": 1}


async def test_passes_whose_loading_fails_are_given_back(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
):
    await stores.scheduler.make_ready("w")
    real = Passes.with_records

    def fails(*_: object, **__: object) -> object:
        raise sqlite3.OperationalError("the reader broke")

    monkeypatch.setattr(Passes, "with_records", fails)
    with pytest.raises(sqlite3.OperationalError, match="broke"):
        await stores.durable.start_passes(5, NOW, MINUTE)
    monkeypatch.setattr(Passes, "with_records", real)
    (started,) = await stores.durable.start_passes(5, NOW, MINUTE)
    assert started.holder is not None


async def test_a_write_cancelled_while_its_batch_fails_does_not_run_again(stores: Stores):
    """What it had begun is rolled back with the others', and they run again without it."""
    store = stores.checkpointer
    gate = Gate(then=fail(operational_error("disk I/O error", "SQLITE_IOERR")))

    def before(sql: str, _: object) -> None:
        if sql == "COMMIT" and not gate.entered.is_set():
            gate(None)

    connection_of(stores).before = before
    async with waiting(
        of(stores),
        store.append("w", "cancelled"),
        store.claim("v", MINUTE, MINUTE),
        store.append("w", "kept"),
    ) as (gone, claiming, kept):
        pass
    await gate.reached()
    await cancelled(gone)
    await cancelled(claiming)
    gate.opened.set()
    (entry,) = await came_to([kept])
    assert await store.load("w") == {entry.key: "kept"}
    assert await store.claim("v", MINUTE, MINUTE)


async def test_the_error_of_a_write_whose_caller_has_gone_reaches_the_loop(stores: Stores):
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    holder = await holder_of(stores, "w")
    gate = Gate()

    def raises(_: sqlite3.Cursor) -> object:
        gate(None)
        raise LookupError("the effect's own")

    async with waiting(
        of(stores),
        stores.checkpointer.transact(holder, "a", raises),
        stores.checkpointer.supply("w", "b", 1),
    ) as (task, other):
        pass
    await gate.reached()
    await cancelled(task)
    gate.opened.set()
    assert await came_to([other]) == [1]
    await until(lambda: bool(unheard))
    (context,) = unheard
    assert isinstance(context["exception"], LookupError)
    assert await stores.checkpointer.load("w") == {"b": 1}
