"""Claims: who may write a workflow now, and for how long (C3 to C8, C14, C15)."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from contract import (
    HOURS,
    MILLISECOND,
    NEVER_ISSUED,
    WRITES,
    Call,
    assert_held_for,
    each_sign,
    each_write,
    is_held,
    rows,
    superseded,
)
from stores import Stores, over_sqlite
from without_durability import (
    BUDGET,
    LEASE,
    Contended,
    Fenced,
    MemoryCheckpointer,
    Pass,
    claimed,
)
from without_durability.testing import Clock
from without_durability_sqlite import Database, SqliteCheckpointer, connect

# --- C3: one live pass, rising tokens -----------------------------------------------------------


async def test_c3_one_of_many_claims_at_once_is_granted(stores: Stores) -> None:
    claims = [stores.checkpointer.claim("w", BUDGET, LEASE) for _ in range(8)]
    granted = [holder for holder in await asyncio.gather(*claims) if holder is not None]
    assert len(granted) == 1
    assert granted[0].workflow == "w"
    with pytest.raises(Contended) as refused:
        await claimed(stores.checkpointer, "w")
    assert refused.value.workflow == "w"


async def test_c3_workflows_are_claimed_independently(stores: Stores) -> None:
    await claimed(stores.checkpointer, "w")
    assert await stores.checkpointer.claim("W", BUDGET, LEASE)
    assert await stores.checkpointer.claim("w ", BUDGET, LEASE)


async def test_c3_tokens_rise_across_releases_lapses_and_discards(stores: Stores) -> None:
    store = stores.checkpointer
    tokens = []
    for _ in range(2):
        holder = await claimed(store, "w")
        tokens.append(holder.token)
        await store.release(holder)
        tokens.append((await claimed(store, "w")).token)
        stores.clock.advance(LEASE)
        tokens.append((await claimed(store, "w")).token)
        await store.discard("w")
    assert tokens == sorted(set(tokens))


async def test_c3_tokens_rise_although_the_clock_is_set_back(stores: Stores) -> None:
    first = await claimed(stores.checkpointer, "w")
    await stores.checkpointer.release(first)
    stores.clock.advance(-HOURS)
    assert (await claimed(stores.checkpointer, "w")).token > first.token


async def test_c3_two_connections_exclude_each_other(
    database: Database, path: Path, clock: Clock
) -> None:
    async with connect(path, clock=clock.seconds) as second:
        holder = await claimed(SqliteCheckpointer(database), "w")
        other = SqliteCheckpointer(second)
        assert await other.claim("w", BUDGET, LEASE) is None
        clock.advance(LEASE)
        assert (await claimed(other, "w")).token > holder.token
        with pytest.raises(Fenced):
            await SqliteCheckpointer(database).record(holder, "late", 1)


async def test_c3_a_token_is_at_least_the_moment_in_milliseconds(
    database: Database, clock: Clock
) -> None:
    holder = await claimed(SqliteCheckpointer(database), "w")
    assert holder.token >= clock.seconds() * 1000


async def test_c3_tokens_do_not_repeat_after_a_claim_row_is_swept(
    database: Database, path: Path, clock: Clock
) -> None:
    store = SqliteCheckpointer(database)
    dead = await claimed(store, "w")
    clock.advance(MILLISECOND)
    rows(path, "DELETE FROM workflow_claim")
    assert (await claimed(store, "w")).token > dead.token
    with pytest.raises(Fenced):
        await store.record(dead, "late", 1)


@pytest.mark.parametrize("claimed_anew", [True, False])
async def test_c3_a_pass_of_the_lost_file_is_fenced_in_a_restored_older_copy(
    claimed_anew: bool, database: Database, path: Path, clock: Clock
) -> None:
    store = SqliteCheckpointer(database)
    await store.release(await claimed(store, "w"))
    older = path.with_name("older.db")
    with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(older)) as copy:
        live.backup(copy)
    running = []
    for _ in range(3):
        clock.advance(MILLISECOND)
        running.append(await claimed(store, "w"))
        await store.release(running[-1])
    clock.advance(MILLISECOND)
    async with connect(older, clock=clock.seconds) as database:
        restored = SqliteCheckpointer(database)
        if claimed_anew:
            assert (await claimed(restored, "w")).token > running[-1].token
        for holder in running:
            with pytest.raises(Fenced):
                await restored.record(holder, "late", 1)
        assert await restored.load("w") == {}


# --- C4 to C8: how long a claim lasts -----------------------------------------------------------


@pytest.mark.parametrize(("budget", "alive"), [(BUDGET, LEASE), (LEASE, BUDGET), (LEASE, LEASE)])
async def test_c4_a_claim_lapses_at_the_earlier_of_alive_and_budget(
    budget: timedelta, alive: timedelta, stores: Stores
) -> None:
    await claimed(stores.checkpointer, "w", budget, alive)
    await assert_held_for(stores, min(budget, alive))


@each_sign
async def test_c4_a_sign_of_life_holds_the_claim_for_alive_from_then_on(
    sign: Call, stores: Stores
) -> None:
    store = stores.checkpointer
    holder = await claimed(store, "w")
    for _ in range(2):  # the second write finds its key recorded, and is a sign of life as well
        stores.clock.advance(LEASE - MILLISECOND)
        await sign(store, holder)
    await assert_held_for(stores, LEASE)


async def test_c4_what_needs_no_claim_is_no_sign_of_life(stores: Stores) -> None:
    store = stores.checkpointer
    await claimed(store, "w")
    stores.clock.advance(LEASE - MILLISECOND)
    await store.supply("w", "a", 1)
    await store.append("w", 1)
    await store.load("w")
    stores.clock.advance(MILLISECOND)
    assert not await is_held(stores)


async def test_c4_a_claim_does_not_outlive_a_clock_set_back_by_hours(
    database: Database, clock: Clock
) -> None:
    stores = over_sqlite(database, clock)
    await claimed(stores.checkpointer, "w")
    clock.advance(-HOURS)
    assert await is_held(stores), "a clock set back takes nothing from a live pass"
    await assert_held_for(stores, LEASE)


async def test_c4_signs_of_life_go_on_counting_after_the_clock_is_set_back(
    database: Database, clock: Clock
) -> None:
    stores = over_sqlite(database, clock)
    holder = await claimed(stores.checkpointer, "w", 3 * LEASE, LEASE)
    clock.advance(LEASE / 2)
    assert await stores.checkpointer.renew(holder, LEASE)
    clock.advance(-HOURS)
    for _ in range(5):
        assert await stores.checkpointer.renew(holder, LEASE)
        clock.advance(LEASE / 2)
    assert not await stores.checkpointer.renew(holder, LEASE), "the budget stayed hours ahead"
    assert not await is_held(stores)


async def test_c5_extend_grants_a_budget_from_now(stores: Stores) -> None:
    store = stores.checkpointer
    holder = await claimed(store, "w", LEASE, LEASE)
    stores.clock.advance(LEASE / 2)
    assert await store.extend(holder, LEASE, 2 * LEASE)
    await assert_held_for(stores, LEASE)


async def test_c5_extend_is_worth_alive_and_no_more(stores: Stores) -> None:
    store = stores.checkpointer
    holder = await claimed(store, "w", LEASE, LEASE)
    assert await store.extend(holder, 10 * LEASE, 2 * LEASE)
    await assert_held_for(stores, 2 * LEASE)


async def test_c5_extend_never_brings_a_budget_forward(stores: Stores) -> None:
    store = stores.checkpointer
    holder = await claimed(store, "w", BUDGET, LEASE)
    assert await store.extend(holder, LEASE, BUDGET)
    stores.clock.advance(BUDGET - MILLISECOND)
    assert await store.renew(holder, LEASE)
    assert await is_held(stores)


@pytest.mark.parametrize("lapsed_by", [LEASE, BUDGET])
async def test_c5_extend_revives_a_lapsed_claim_that_nobody_took(
    lapsed_by: timedelta, stores: Stores
) -> None:
    holder = await claimed(stores.checkpointer, "w")
    stores.clock.advance(lapsed_by)
    assert await stores.checkpointer.extend(holder, BUDGET, LEASE)
    assert await is_held(stores)


async def test_c6_renew_never_moves_the_budget(stores: Stores) -> None:
    store = stores.checkpointer
    holder = await claimed(store, "w", 2 * LEASE, LEASE)
    stores.clock.advance(LEASE - MILLISECOND)
    assert await store.renew(holder, BUDGET)
    stores.clock.advance(LEASE)
    assert await is_held(stores)
    stores.clock.advance(MILLISECOND)
    assert not await store.renew(holder, BUDGET), "the budget has run out"
    assert not await is_held(stores)


async def test_c6_renew_within_the_budget_revives_a_claim_that_nobody_took(
    stores: Stores,
) -> None:
    holder = await claimed(stores.checkpointer, "w")
    stores.clock.advance(LEASE)
    assert await stores.checkpointer.renew(holder, LEASE)
    assert await is_held(stores)


@pytest.mark.parametrize("whose", ["superseded", "never issued", "never claimed", "discarded"])
async def test_c7_whoever_is_not_the_newest_gets_no_time_and_writes_nothing(
    whose: str, stores: Stores
) -> None:
    store = stores.checkpointer
    holder = Pass("nobody", 1)
    if whose == "discarded":
        holder = await claimed(store, "w")
        await store.discard("w")
    elif whose != "never claimed":
        holder = await superseded(stores)
        if whose == "never issued":
            holder = Pass("w", holder.token + NEVER_ISSUED)
    ran: list[object] = []
    assert await store.extend(holder, BUDGET, LEASE) is False
    assert await store.renew(holder, LEASE) is False
    with pytest.raises(Fenced) as refused:
        await store.record(holder, "late", 1)
    assert (refused.value.workflow, refused.value.token) == (holder.workflow, holder.token)
    with pytest.raises(Fenced):
        await store.transact(holder, "late", ran.append)
    assert ran == [], "C12: the fence comes before the effect"
    assert await store.load(holder.workflow) == {}


@each_sign
async def test_c8_no_sign_of_life_takes_back_what_was_released(sign: Call, stores: Stores) -> None:
    holder = await claimed(stores.checkpointer, "w")
    await stores.checkpointer.release(holder)
    answer = await sign(stores.checkpointer, holder)
    if sign not in WRITES.values():
        assert answer is False
    assert not await is_held(stores)


@each_write
async def test_c8_a_write_in_flight_at_the_release_still_lands(write: Call, stores: Stores) -> None:
    holder = await claimed(stores.checkpointer, "w")
    await stores.checkpointer.release(holder)
    await write(stores.checkpointer, holder)
    assert await stores.checkpointer.load("w") == {"step": 1}


@each_write
async def test_c8_no_write_carries_a_claim_past_its_budget(write: Call, stores: Stores) -> None:
    holder = await claimed(stores.checkpointer, "w", LEASE, LEASE)
    stores.clock.advance(LEASE - MILLISECOND)
    await write(stores.checkpointer, holder)
    stores.clock.advance(MILLISECOND)
    await write(stores.checkpointer, holder)
    assert not await is_held(stores)


# --- C14, C15: discard and release --------------------------------------------------------------


async def test_c14_discard_fences_a_live_pass_and_leaves_the_workflow_claimable(
    stores: Stores,
) -> None:
    store = stores.checkpointer
    holder = await claimed(store, "w")
    await store.record(holder, "a", 1)
    await store.append("w", 2)
    await store.supply("other", "a", 1)
    assert await store.discard("w") == 2
    assert await store.load("w") == {}
    assert await store.load("other") == {"a": 1}
    with pytest.raises(Fenced):
        await store.record(holder, "b", 1)
    assert not await is_held(stores)
    assert await store.discard("w") == 0


async def test_c14_a_release_after_a_discard_takes_nothing_from_the_next_pass(
    stores: Stores,
) -> None:
    holder = await claimed(stores.checkpointer, "w")
    await stores.checkpointer.discard("w")
    await claimed(stores.checkpointer, "w")
    await stores.checkpointer.release(holder)
    assert await is_held(stores)


async def test_c14_a_workflow_never_claimed_gets_no_claim_row(stores: Stores, path: Path) -> None:
    await stores.checkpointer.supply("w", "a", 1)
    assert await stores.checkpointer.discard("w") == 1
    assert await stores.checkpointer.discard("nobody") == 0
    if isinstance(stores.checkpointer, MemoryCheckpointer):
        assert stores.checkpointer.claims == {}
    else:
        assert rows(path, "SELECT * FROM workflow_claim") == []


async def test_c15_release_frees_the_workflow_at_once_and_keeps_the_token(stores: Stores) -> None:
    holder = await claimed(stores.checkpointer, "w")
    await stores.checkpointer.release(holder)
    await stores.checkpointer.release(holder)
    assert (await claimed(stores.checkpointer, "w")).token == holder.token + 1


@pytest.mark.parametrize("off", [0, NEVER_ISSUED])
async def test_c15_release_by_anyone_but_the_newest_does_nothing(off: int, stores: Stores) -> None:
    old = await superseded(stores)
    await stores.checkpointer.release(Pass("w", old.token + off))
    await stores.checkpointer.release(Pass("nobody", 1))
    assert await is_held(stores)
