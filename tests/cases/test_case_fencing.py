"""K39 and K40: who was superseded writes nothing, even out of a backup."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from systems import posix_files
from without_durability import Checkpointer, Fenced, Pass
from without_durability.testing import Clock
from without_durability_sqlite import SqliteCheckpointer, connect, migrate

MIN = timedelta(minutes=1)
MS = timedelta(milliseconds=1)


def never(_: object) -> None:
    raise AssertionError("the effect of a superseded pass ran")


REFUSED: dict[str, Callable[[Checkpointer[Any], Pass], Awaitable[object]]] = {
    "record": lambda store, holder: store.record(holder, "late", 1),
    "record again": lambda store, holder: store.record(holder, "k", 1),
    "transact": lambda store, holder: store.transact(holder, "late", never),
    "transact again": lambda store, holder: store.transact(holder, "k", never),
}


async def assert_powerless(store: Checkpointer[Any], holder: Pass) -> None:
    before = await store.load(holder.workflow)
    for call in REFUSED.values():
        with pytest.raises(Fenced) as refused:
            await call(store, holder)
        assert (refused.value.workflow, refused.value.token) == (holder.workflow, holder.token)
    assert await store.renew(holder, MIN) is False
    assert await store.extend(holder, 5 * MIN, MIN) is False
    await store.release(holder)
    assert await store.load(holder.workflow) == before


async def claimed(store: Checkpointer[Any], alive: timedelta = MIN) -> Pass:
    holder = await store.claim("w", 5 * MIN, alive)
    assert holder is not None
    return holder


async def test_k40_a_superseded_pass_overwrites_nothing_and_frees_nothing(stores: Any) -> None:
    store = stores.checkpointer
    old = await claimed(store, 50 * MS)
    stores.clock.advance(100 * MS)
    new = await claimed(store)
    await store.record(new, "k", "the new one's")
    await assert_powerless(store, old)
    assert await store.load("w") == {"k": "the new one's"}
    assert await store.claim("w", 5 * MIN, MIN) is None, "a stale release freed the claim"


async def test_k40_a_superseded_pass_keeps_nobody_alive(stores: Any) -> None:
    store = stores.checkpointer
    old = await claimed(store, 50 * MS)
    stores.clock.advance(100 * MS)
    await claimed(store, MIN)
    stores.clock.advance(MIN - MS)
    await assert_powerless(store, old)
    stores.clock.advance(MS)
    assert await store.claim("w", 5 * MIN, MIN), "a refused write renewed the newer claim"


@pytest.mark.parametrize("superseded_by", ["discard", "delete"])
async def test_k40_a_pass_over_a_discarded_workflow_writes_nothing(
    stores: Any, superseded_by: str
) -> None:
    store = stores.checkpointer
    old = await claimed(store)
    await store.record(old, "k", 1)
    await (store.discard("w") if superseded_by == "discard" else stores.durable.delete("w"))
    await assert_powerless(store, old)
    assert await store.load("w") == {}


@pytest.mark.parametrize("shift", [1, 1000, 2**40, 2**62, 2**63, 2**80])
async def test_k39_a_token_above_the_files_own_is_refused(stores: Any, shift: int) -> None:
    holder = await claimed(stores.checkpointer)
    await assert_powerless(stores.checkpointer, Pass("w", holder.token + shift))
    assert await stores.checkpointer.renew(holder, MIN)


@pytest.mark.parametrize("token", [-(2**70), -1, 0, 1])
async def test_k39_a_token_never_issued_is_refused(stores: Any, token: int) -> None:
    await assert_powerless(stores.checkpointer, Pass("never claimed", token))
    first = await claimed(stores.checkpointer)
    await stores.checkpointer.release(first)
    await claimed(stores.checkpointer)
    await assert_powerless(stores.checkpointer, Pass("w", min(token, first.token)))


@asynccontextmanager
async def opened(path: Path, clock: Clock) -> AsyncIterator[SqliteCheckpointer]:
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        yield SqliteCheckpointer(database)


@pytest.mark.parametrize("before", ["never claimed", "released", "discarded", "lapsed", "held"])
@pytest.mark.parametrize("claims", [1, 3])
async def test_k39_after_an_older_copy_is_restored_only_the_newest_claimer_may_write(
    before: str, claims: int, path: Path, clock: Clock
) -> None:
    copy = path.with_name("copy.db")
    async with opened(path, clock) as store:
        if before != "never claimed":
            first = await claimed(store)
        if before == "released":
            await store.release(first)
        if before == "discarded":
            clock.advance(MS)
            await store.discard("w")
        if before == "lapsed":
            clock.advance(MIN)
    clock.advance(MS)  # tokens follow time: no two moments of this story are the same
    shutil.copy(path, copy)
    if before == "held":
        clock.advance(MIN)
    async with opened(path, clock) as store:  # what the copy will know nothing of
        for _ in range(claims):
            await store.release(await claimed(store))
            clock.advance(MS)
        lost = await claimed(store)
    path.unlink()
    shutil.copy(copy, path)
    clock.advance(MS)
    async with opened(path, clock) as store:
        newest = await claimed(store)
        await store.record(newest, "k", "the newest one's")
        await assert_powerless(store, lost)
        assert await store.renew(newest, MIN)
        assert await store.load("w") == {"k": "the newest one's"}


async def test_k39_a_lost_claimer_may_not_write_before_anybody_claims_again(
    path: Path, clock: Clock
) -> None:
    copy = path.with_name("copy.db")
    async with opened(path, clock) as store:
        await store.release(await claimed(store))
        await store.supply("w", "k", 1)
    shutil.copy(path, copy)
    clock.advance(MS)
    async with opened(path, clock) as store:
        lost = await claimed(store)
    path.unlink()
    shutil.copy(copy, path)
    async with opened(path, clock) as store:
        await assert_powerless(store, lost)


@posix_files
async def test_k39_a_file_replaced_while_open_is_not_written(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as store:
        holder = await claimed(store)
        path.rename(path.with_name("away.db"))
        with pytest.raises(sqlite3.OperationalError, match="replaced"):
            await store.record(holder, "k", 1)


async def test_k39_the_token_after_a_swept_claim_row_outranks_every_earlier_one(
    database: Any, checkpointer: SqliteCheckpointer, other: sqlite3.Connection, clock: Clock
) -> None:
    old = await claimed(checkpointer)
    await checkpointer.release(old)
    clock.advance(MS)
    other.execute("DELETE FROM workflow_claim")
    await checkpointer.supply("w", "k", 1)
    await assert_powerless(checkpointer, old)
    assert (await claimed(checkpointer)).token > old.token
    await assert_powerless(checkpointer, old)


async def test_k39_tokens_follow_time_as_well_as_count(
    checkpointer: SqliteCheckpointer, clock: Clock
) -> None:
    tokens = []
    for moved in (0 * MS, 0 * MS, MS, MIN, -60 * MIN, 0 * MS):
        clock.advance(moved)
        holder = await claimed(checkpointer)
        await checkpointer.release(holder)
        tokens.append(holder.token)
        assert holder.token >= clock.seconds() * 1000
    assert tokens == sorted(set(tokens)), "a token did not outrank the one before it"
