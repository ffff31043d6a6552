"""What happens to a call whose caller was cancelled (C17)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from contract import (
    Call,
    GatedClock,
    cancelled,
    each_write,
    is_held,
    write_lock,
)
from stores import Stores, over_sqlite
from thread_gates import running
from without_durability import (
    BUDGET,
    LEASE,
    Pass,
    claimed,
)
from without_durability.testing import Clock
from without_durability_sqlite import Database, SqliteCheckpointer, connect, migrate


async def test_c17_a_claim_granted_to_a_cancelled_caller_is_given_back(path: Path) -> None:
    clock = GatedClock()
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        stores = over_sqlite(database, clock)
        clock.stop_at_reading(1)
        task = asyncio.create_task(stores.checkpointer.claim("w", BUDGET, LEASE))
        await clock.reached()
        await cancelled(task)
        clock.open()
        assert not await is_held(stores)


@pytest.mark.parametrize(
    "call",
    [
        lambda stores, holder: stores.checkpointer.claim("v", BUDGET, LEASE),
        lambda stores, holder: stores.checkpointer.record(holder, "a", 1),
        lambda stores, holder: stores.checkpointer.transact(holder, "a", lambda _: 1),
        lambda stores, holder: stores.checkpointer.supply("w", "a", 1),
        lambda stores, holder: stores.checkpointer.append("w", 1),
        lambda stores, holder: stores.checkpointer.discard("v"),
        lambda stores, holder: stores.checkpointer.release(holder),
        lambda stores, holder: stores.durable.arrive("w", "a", 1),
        lambda stores, holder: stores.durable.deliver("w", 1),
        lambda stores, holder: stores.scheduler.make_ready("w"),
    ],
    ids=[
        "claim",
        "record",
        "transact",
        "supply",
        "append",
        "discard",
        "release",
        "arrive",
        "deliver",
        "make_ready",
    ],
)
async def test_c17_an_operation_cancelled_before_it_has_the_write_lock_does_not_happen(
    call: Callable[[Stores, Pass], Awaitable[object]], database: Database, path: Path, clock: Clock
) -> None:
    stores = over_sqlite(database, clock)
    await stores.checkpointer.supply("v", "kept", 1)
    holder = await claimed(stores.checkpointer, "w")
    with write_lock(path):
        task = asyncio.ensure_future(call(stores, holder))
        await running(database.connection, "BEGIN IMMEDIATE", task)
        await cancelled(task)
    assert await stores.checkpointer.load("w") == {}
    assert await stores.checkpointer.load("v") == {"kept": 1}
    assert await stores.scheduler.next_ready(timedelta(0)) is None
    assert await is_held(stores)
    assert await stores.checkpointer.claim("v", BUDGET, LEASE)


@each_write
async def test_c17_a_write_that_had_begun_when_its_caller_was_cancelled_happens_whole(
    write: Call, path: Path
) -> None:
    clock = GatedClock()
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        store = SqliteCheckpointer(database)
        holder = await claimed(store, "w")
        clock.stop_at_reading(1)
        task = asyncio.ensure_future(write(store, holder))
        await clock.reached()
        await cancelled(task)
        clock.open()
        await database.run(lambda connection: None)  # which waits behind it
        assert await store.load("w") == {"step": 1}
