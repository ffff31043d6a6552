"""C1 to C19: what every checkpointer promises; where processes or files matter, SQLite's alone."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest

from stores import Stores, over_sqlite
from without_durability import (
    BUDGET,
    INBOX,
    LEASE,
    Contended,
    Entry,
    Fenced,
    MemoryCheckpointer,
    Pass,
    Recorded,
    claimed,
    inbox_key,
)
from without_durability.memory import Stored
from without_durability.testing import Clock, passing
from without_durability_sqlite import Database, SqliteCheckpointer, connect, migrate

MILLISECOND = timedelta(milliseconds=1)
HOURS = timedelta(hours=3)
NEVER_ISSUED = 10**15

Call = Callable[[Any, Pass], Awaitable[object]]

SIGNS_OF_LIFE: dict[str, Call] = {
    "extend": lambda store, holder: store.extend(holder, MILLISECOND, LEASE),
    "renew": lambda store, holder: store.renew(holder, LEASE),
    "record": lambda store, holder: store.record(holder, "step", 1),
    "transact": lambda store, holder: store.transact(holder, "step", lambda _: 1),
}
WRITES = {name: SIGNS_OF_LIFE[name] for name in ("record", "transact")}

each_sign = pytest.mark.parametrize("sign", SIGNS_OF_LIFE.values(), ids=SIGNS_OF_LIFE)
each_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)


async def is_held(stores: Stores) -> bool:
    """Whether somebody holds "w"; claims it when nobody does."""
    return await stores.checkpointer.claim("w", BUDGET, LEASE) is None


async def superseded(stores: Stores) -> Pass:
    """A pass over "w" that a newer one has outranked."""
    old = await claimed(stores.checkpointer, "w")
    await stores.checkpointer.release(old)
    await claimed(stores.checkpointer, "w")
    return old


@contextmanager
def write_lock(path: Path) -> Iterator[sqlite3.Connection]:
    """Another process's write lock, as a second plain connection holds it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as plain:
        plain.execute("BEGIN IMMEDIATE")
        yield plain


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path, isolation_level=None)) as plain:
        return plain.execute(query).fetchall()


# --- C1, C2: records and their history ---------------------------------------------------------


async def test_c1_load_gives_records_in_the_order_each_key_was_first_written(
    stores: Stores,
) -> None:
    store = stores.checkpointer
    holder = await claimed(store, "w")
    await store.record(holder, "z", 1)
    await store.supply("w", "a", 2)
    entry = await store.append("w", 3)
    await store.transact(holder, "m", lambda _: 4)
    await store.supply("other", "b", 5)
    assert list((await store.load("w")).items()) == [("z", 1), ("a", 2), (entry.key, 3), ("m", 4)]


async def test_c1_an_unknown_workflow_loads_empty(stores: Stores) -> None:
    assert await stores.checkpointer.load("nobody") == {}
    assert await stores.checkpointer.history("nobody") == {}


async def test_c1_c2_a_losing_write_moves_neither_value_nor_position_nor_moment(
    stores: Stores,
) -> None:
    store = stores.checkpointer
    holder = await claimed(store, "w")
    await store.record(holder, "a", 1)
    await store.record(holder, "b", 2)
    before = await store.history("w")
    stores.clock.advance(timedelta(seconds=1))
    await store.record(holder, "a", 9)
    await store.transact(holder, "a", lambda _: 9)
    await store.supply("w", "a", 9)
    assert list((await store.history("w")).items()) == list(before.items())
    assert list((await store.load("w")).items()) == [("a", 1), ("b", 2)]


async def test_c2_history_carries_the_moment_of_each_winning_write_in_utc(stores: Stores) -> None:
    store, clock = stores.checkpointer, stores.clock
    holder = await claimed(store, "w")
    moments = []
    for write in (
        lambda: store.record(holder, "a", 1),
        lambda: store.supply("w", "b", 2),
        lambda: store.append("w", 3),
        lambda: store.transact(holder, "d", lambda _: 4),
    ):
        clock.advance(timedelta(seconds=1, microseconds=1))
        moments.append(clock.now())
        await write()
    history = await store.history("w")
    assert list(history) == list(await store.load("w"))
    assert [written.at for written in history.values()] == moments
    assert [written.value for written in history.values()] == [1, 2, 3, 4]
    assert {written.at.tzinfo for written in history.values()} == {UTC}


async def test_c2_history_never_runs_backwards_when_the_clock_is_set_back(stores: Stores) -> None:
    store, clock = stores.checkpointer, stores.clock
    late = clock.now()
    await store.supply("w", "a", 1)
    clock.advance(-HOURS)
    early = clock.now()
    await store.supply("other", "a", 1)
    await store.supply("w", "b", 2)
    await store.supply("third", "a", 1)
    clock.advance(timedelta(hours=1))
    await store.append("w", 3)
    await store.supply("other", "b", 2)
    assert [written.at for written in (await store.history("w")).values()] == [late] * 3
    others = (await store.history("other")).values()
    assert [written.at for written in others] == [early, early + timedelta(hours=1)]
    assert (await store.history("third"))["a"].at == early, "another workflow's moment is its own"


# --- C3: one live pass, rising tokens ----------------------------------------------------------


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


# --- C4 to C8: how long a claim lasts -------------------------------------------------------------


@pytest.mark.parametrize(("budget", "alive"), [(BUDGET, LEASE), (LEASE, BUDGET), (LEASE, LEASE)])
async def test_c4_a_claim_lapses_at_the_earlier_of_alive_and_budget(
    budget: timedelta, alive: timedelta, stores: Stores
) -> None:
    await claimed(stores.checkpointer, "w", budget, alive)
    stores.clock.advance(min(budget, alive) - MILLISECOND)
    assert await is_held(stores)
    stores.clock.advance(MILLISECOND)
    assert not await is_held(stores)


@each_sign
async def test_c4_a_sign_of_life_holds_the_claim_for_alive_from_then_on(
    sign: Call, stores: Stores
) -> None:
    store = stores.checkpointer
    holder = await claimed(store, "w")
    for _ in range(2):  # the second write finds its key recorded, and is a sign of life as well
        stores.clock.advance(LEASE - MILLISECOND)
        await sign(store, holder)
    stores.clock.advance(LEASE - MILLISECOND)
    assert await is_held(stores)
    stores.clock.advance(MILLISECOND)
    assert not await is_held(stores)


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
    clock.advance(LEASE - MILLISECOND)
    assert await is_held(stores)
    clock.advance(MILLISECOND)
    assert not await is_held(stores)


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
    stores.clock.advance(LEASE - MILLISECOND)
    assert await is_held(stores)
    stores.clock.advance(MILLISECOND)
    assert not await is_held(stores)


async def test_c5_extend_is_worth_alive_and_no_more(stores: Stores) -> None:
    store = stores.checkpointer
    holder = await claimed(store, "w", LEASE, LEASE)
    assert await store.extend(holder, 10 * LEASE, 2 * LEASE)
    stores.clock.advance(2 * LEASE - MILLISECOND)
    assert await is_held(stores)
    stores.clock.advance(MILLISECOND)
    assert not await is_held(stores)


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


# --- C9 to C12: writes behind the fence -----------------------------------------------------------


async def test_c9_a_recorded_key_is_never_overwritten(stores: Stores) -> None:
    store = stores.checkpointer
    holder = await claimed(store, "w")
    assert await store.record(holder, "k", {"b": 1, "a": 2}) == Recorded({"b": 1, "a": 2}, True)
    assert await store.record(holder, "k", {"a": 2, "b": 1}) == Recorded({"b": 1, "a": 2}, True)
    assert await store.record(holder, "k", "other") == Recorded({"b": 1, "a": 2}, False)
    assert await store.load("w") == {"k": {"b": 1, "a": 2}}


@pytest.mark.parametrize("off", [-1, 1])
@each_write
async def test_c9_a_token_beside_the_newest_is_fenced(
    write: Call, off: int, stores: Stores
) -> None:
    holder = await claimed(stores.checkpointer, "w")
    with pytest.raises(Fenced):
        await write(stores.checkpointer, Pass("w", holder.token + off))
    assert await stores.checkpointer.load("w") == {}


@each_write
async def test_c9_a_recorded_key_is_no_way_past_the_fence(write: Call, stores: Stores) -> None:
    old = await superseded(stores)
    await stores.checkpointer.supply("w", "step", 1)
    with pytest.raises(Fenced):
        await write(stores.checkpointer, old)


@each_sign
async def test_c10_a_refused_write_renews_nobody(sign: Call, stores: Stores) -> None:
    old = await superseded(stores)
    stores.clock.advance(LEASE - MILLISECOND)
    with suppress(Fenced):
        await sign(stores.checkpointer, old)
    stores.clock.advance(MILLISECOND)
    assert not await is_held(stores), "a superseded pass kept the newer one's claim alive"


@pytest.mark.parametrize(
    "write",
    [
        *WRITES.values(),
        lambda store, holder: store.supply("w", "step", 1),
        lambda store, holder: store.append("w", 1),
    ],
    ids=["record", "transact", "supply", "append"],
)
async def test_c11_another_connection_sees_a_write_once_it_has_returned(
    write: Call, database: Database, path: Path
) -> None:
    store = SqliteCheckpointer(database)
    holder = await claimed(store, "w")
    await write(store, holder)
    assert rows(path, "SELECT workflow, value FROM workflow_checkpoint") == [("w", "1")]


async def test_c12_an_effect_runs_at_most_once_across_passes(stores: Stores) -> None:
    store = stores.checkpointer
    ran: list[int] = []

    def effect(_: object) -> int:
        ran.append(1)
        return len(ran)

    for _ in range(2):
        holder = await claimed(store, "w")
        answers = await asyncio.gather(*[store.transact(holder, "k", effect) for _ in range(3)])
        assert answers == [1, 1, 1]
        await store.release(holder)
    assert ran == [1]


async def test_c12_a_supplied_key_returns_its_value_without_running_the_effect(
    stores: Stores,
) -> None:
    holder = await claimed(stores.checkpointer, "w")
    await stores.checkpointer.supply("w", "k", "supplied")
    ran: list[object] = []
    assert await stores.checkpointer.transact(holder, "k", ran.append) == "supplied"
    assert ran == []


@pytest.mark.parametrize("failing", [lambda: 1 / 0, lambda: {1, 2}, lambda: float("nan")])
async def test_c12_a_failed_effect_leaves_nothing_behind_and_may_be_tried_again(
    failing: Callable[[], object], stores: Stores, path: Path
) -> None:
    store = stores.checkpointer
    holder = await claimed(store, "w")
    in_memory = isinstance(store, MemoryCheckpointer)
    if in_memory:
        store.data["paid"] = {"times": 0}
    else:
        rows(path, "CREATE TABLE paid AS SELECT 0 AS times")

    def effect(at: Any, then: Callable[[], object]) -> object:
        if in_memory:
            at["paid"]["times"] += 1
        else:
            at.execute("UPDATE paid SET times = times + 1")
        return then()

    def times() -> object:
        return store.data["paid"]["times"] if in_memory else rows(path, "SELECT * FROM paid")[0][0]

    with pytest.raises((ZeroDivisionError, TypeError, ValueError)):
        await store.transact(holder, "k", lambda at: effect(at, failing))
    assert times() == 0
    assert await store.load("w") == {}
    assert await store.transact(holder, "k", lambda at: effect(at, lambda: "ok")) == "ok"
    assert times() == 1
    assert await store.load("w") == {"k": "ok"}


# --- C13: what comes from outside ----------------------------------------------------------------


async def test_c13_supply_needs_no_claim_and_the_first_writer_wins(stores: Stores) -> None:
    store = stores.checkpointer
    assert await store.supply("w", "answer", {"yes": True}) == {"yes": True}
    await claimed(store, "w")
    assert await store.supply("w", "answer", "late") == {"yes": True}
    assert await store.load("w") == {"answer": {"yes": True}}


async def test_c13_concurrent_appends_get_distinct_keys_that_sort_in_append_order(
    stores: Stores,
) -> None:
    store = stores.checkpointer
    entries = await asyncio.gather(*[store.append("w", value) for value in range(12)])
    await store.append("other", "x")
    entries.append(await store.append("w", 12))
    assert all(entry.key.startswith(INBOX) for entry in entries)
    assert len({entry.key for entry in entries}) == 13
    loaded = await store.load("w")
    assert list(loaded.items()) == [(key, loaded[key]) for key in sorted(loaded)]
    assert loaded == {entry.key: entry.value for entry in entries}


@pytest.mark.parametrize("position", [0, 1, 5, 10**6, 2**53 + 1, 2**62 - 1])
async def test_c13_appends_come_after_every_supplied_inbox_key(
    position: int, stores: Stores
) -> None:
    store = stores.checkpointer
    await store.supply("w", inbox_key(position), "copied")
    keys = [inbox_key(position), *[(await store.append("w", n)).key for n in range(3)]]
    assert keys == sorted(set(keys))
    assert list(await store.load("w")) == keys
    assert (await store.append("other", 1)).key < inbox_key(10**5), "numbering is per workflow"


async def test_c13_appends_stay_in_order_across_a_discard(stores: Stores) -> None:
    store = stores.checkpointer
    for _ in range(2):
        keys = [(await store.append("w", n)).key for n in range(3)]
        assert keys == sorted(set(keys))
        assert await store.discard("w") == 3


# --- C14, C15: discard and release ---------------------------------------------------------------


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


# --- C16, C19: values, keys and ids --------------------------------------------------------------


async def test_c16_every_value_crosses_the_codec_in_both_directions(stores: Stores) -> None:
    store = stores.checkpointer
    holder = await claimed(store, "w")
    shared = [1]
    assert await store.record(holder, "a", (shared, 2)) == Recorded([[1], 2], True)
    assert await store.transact(holder, "b", lambda _: (shared, 2)) == [[1], 2]
    assert await store.supply("w", "c", {1: shared}) == {"1": [1]}
    assert (await store.append("w", (shared,))).value == [[1]]
    shared.append(9)
    loaded = list((await store.load("w")).values())
    assert loaded == [[[1], 2], [[1], 2], {"1": [1]}, [[1]]]
    loaded[0].append("mutated")
    assert (await store.load("w"))["a"] == [[1], 2]


class Backwards:
    """A codec of one's own: JSON read from right to left."""

    def encode(self, value: object, /) -> str:
        return json.dumps(value, sort_keys=True)[::-1]

    def decode(self, encoded: str, /) -> object:
        return json.loads(encoded[::-1])


async def test_c16_a_store_keeps_what_the_codec_of_its_user_makes(database: Database) -> None:
    memory = MemoryCheckpointer(codec=Backwards())
    for store in (memory, SqliteCheckpointer(database, Backwards())):
        holder = await claimed(store, "w")
        assert await store.record(holder, "k", (1, 2)) == Recorded([1, 2], True)
        assert await store.load("w") == {"k": [1, 2]}
    assert memory.hashes["w"]["k"].encoded == "]2 ,1["
    stored = "SELECT value FROM workflow_checkpoint"
    assert await database.run(lambda c: c.execute(stored).fetchall()) == [("]2 ,1[",)]


UNSTORABLE = [{1, 2}, b"bytes", float("nan"), float("inf"), {1: "a", "1": "b"}, object()]


@pytest.mark.parametrize("value", UNSTORABLE, ids=lambda value: type(value).__name__)
async def test_c19_an_unstorable_value_is_refused_naming_workflow_key_and_type(
    value: object, stores: Stores
) -> None:
    store = stores.checkpointer
    holder = await claimed(store, "w-7")
    calls = [
        store.record(holder, "the-key", value),
        store.transact(holder, "the-key", lambda _: value),
        store.supply("w-7", "the-key", value),
        stores.durable.arrive("w-7", "the-key", value),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError)) as refused:
            await call
        for fact in ("w-7", "the-key", type(value).__name__):
            assert fact in str(refused.value)
    for call in (store.append("w-7", value), stores.durable.deliver("w-7", value)):
        with pytest.raises((TypeError, ValueError), match="w-7"):
            await call
    assert await store.load("w-7") == {}
    assert await stores.scheduler.next_ready(timedelta(0)) is None
    assert (await store.record(holder, "the-key", 1)).first, "the claim is still held"


class OneWay:
    """A codec that cannot read back what it writes."""

    def encode(self, value: object, /) -> str:
        return repr(value)

    def decode(self, encoded: str, /) -> object:
        raise LookupError(encoded)


async def test_c19_nothing_is_committed_that_the_codec_could_not_read_back(
    database: Database, path: Path
) -> None:
    memory = MemoryCheckpointer(codec=OneWay())
    for store in (memory, SqliteCheckpointer(database, OneWay())):
        holder = await claimed(store, "w")
        for call in (
            store.record(holder, "k", 1),
            store.transact(holder, "k", lambda _: 1),
            store.supply("w", "k", 1),
            store.append("w", 1),
        ):
            with pytest.raises(ValueError, match="'w'"):
                await call
    assert not memory.hashes.get("w")
    assert rows(path, "SELECT * FROM workflow_checkpoint") == []


@pytest.mark.parametrize(
    ("bad", "error"), [("\ud800", ValueError), (7, TypeError), (None, TypeError), (b"w", TypeError)]
)
async def test_c19_an_unusable_key_or_id_is_refused_before_anything_runs(
    bad: Any, error: type[Exception], stores: Stores
) -> None:
    store, durable = stores.checkpointer, stores.durable
    holder = await claimed(store, "w")
    ran: list[object] = []
    stranger = Pass(bad, holder.token)
    for call in (
        lambda: store.record(holder, bad, 1),
        lambda: store.record(stranger, "k", 1),
        lambda: store.transact(holder, bad, ran.append),
        lambda: store.transact(stranger, "k", ran.append),
        lambda: store.supply("w", bad, 1),
        lambda: store.supply(bad, "k", 1),
        lambda: store.append(bad, 1),
        lambda: store.claim(bad, BUDGET, LEASE),
        lambda: store.extend(stranger, BUDGET, LEASE),
        lambda: store.renew(stranger, LEASE),
        lambda: store.release(stranger),
        lambda: store.load(bad),
        lambda: store.history(bad),
        lambda: store.discard(bad),
        lambda: durable.arrive("w", bad, 1),
        lambda: durable.arrive(bad, "k", 1),
        lambda: durable.deliver(bad, 1),
        lambda: durable.delete(bad),
    ):
        with pytest.raises(error):
            await call()
    assert ran == []
    assert await store.load("w") == {}


@pytest.mark.parametrize(
    "name", ["", "\0", "'\"%;--", "🙂", "مرحبا", "e\u0301", "\u00e9", "x" * 10**6]
)
async def test_c19_any_text_is_an_id_and_a_key(name: str, stores: Stores) -> None:
    store = stores.checkpointer
    holder = await claimed(store, name)
    await store.record(holder, name, name)
    assert await store.load(name) == {name: name}
    assert await store.load(name + " ") == {}


# --- C17: callers that went away -----------------------------------------------------------------


class GatedClock(Clock):
    """Stops whoever reads it, on the database's thread, at the reading asked for."""

    def __init__(self) -> None:
        super().__init__()
        self._readings_left = 0
        self._reached = threading.Event()
        self._opened = threading.Event()

    def stop_at_reading(self, count: int) -> None:
        self._readings_left = count

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, 10), "nobody read the clock"

    def open(self) -> None:
        self._opened.set()

    def seconds(self) -> float:
        self._readings_left -= 1
        if self._readings_left == 0:
            self._reached.set()
            self._opened.wait(10)
        return super().seconds()


async def cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


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
        done, _ = await asyncio.wait({task}, timeout=0.02)
        assert not done, "it did not wait for the other process's lock"
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
        assert await store.load("w") == {"step": 1}


# --- C18: the inbox space ------------------------------------------------------------------------

MALFORMED = [
    INBOX,
    INBOX + "1",
    INBOX + "zzz",
    INBOX + "9" * 20,
    INBOX + "9" * 21,
    INBOX + "-" + "0" * 18 + "1",
    INBOX + "0" * 19 + " ",
    INBOX + "\u0660" * 20,
    inbox_key(7) + "x",
]


@pytest.mark.parametrize("key", [INBOX, inbox_key(1), *MALFORMED[1:]])
async def test_c18_passes_and_arrivals_may_not_write_into_the_inbox_space(
    key: str, stores: Stores
) -> None:
    store = stores.checkpointer
    holder = await claimed(store, "w")
    ran: list[object] = []
    for call in (
        store.record(holder, key, 1),
        store.transact(holder, key, ran.append),
        stores.durable.arrive("w", key, 1),
    ):
        with pytest.raises(ValueError, match="inbox"):
            await call
    assert ran == []
    assert await store.load("w") == {}
    assert await stores.scheduler.next_ready(timedelta(0)) is None


@pytest.mark.parametrize("key", [*MALFORMED, inbox_key(2**62), inbox_key(2**63 - 1)])
async def test_c18_supply_refuses_an_inbox_key_it_could_not_number_past(
    key: str, stores: Stores
) -> None:
    with pytest.raises(ValueError, match="inbox"):
        await stores.checkpointer.supply("w", key, 1)
    assert await stores.checkpointer.load("w") == {}


async def test_c18_a_workflow_is_copied_by_supplying_its_records(stores: Stores) -> None:
    store = stores.checkpointer
    await store.supply("w", "a", 1)
    await store.append("w", 2)
    await store.supply("w", inbox_key(2**62 - 1), 3)
    await store.append("w", 4)
    source = await store.load("w")
    for key, value in list(source.items())[:3]:
        assert await store.supply("copy", key, value) == value
    assert (await store.append("copy", 4)).key == list(source)[3]
    assert await store.load("copy") == source


async def planted(stores: Stores, path: Path, keys: list[str]) -> None:
    """Write what an older release let through, past the store."""
    if isinstance(stores.checkpointer, MemoryCheckpointer):
        records = stores.checkpointer.hashes.setdefault("w", {})
        records.update({key: Stored('"planted"', stores.clock.now()) for key in keys})
        return
    insert = (
        "INSERT INTO workflow_checkpoint (workflow, step, value) VALUES ('w', ?, '\"planted\"')"
    )
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.executemany(insert, [(key,) for key in keys])


async def test_c18_malformed_inbox_keys_in_an_older_file_never_count_and_are_never_received(
    stores: Stores, path: Path
) -> None:
    store = stores.checkpointer
    await planted(stores, path, [*MALFORMED, inbox_key(2**63 - 1)])
    first = await store.append("w", "first")
    await store.supply("w", inbox_key(10**6), "copied")
    last = await store.append("w", "last")
    assert first.key < inbox_key(10**3), "a malformed key counted in the numbering"
    assert last.key == inbox_key(10**6 + 1)
    holder = await claimed(store, "w")
    run = passing(holder, store, await store.load("w"))
    received = (first, Entry(inbox_key(10**6), "copied"), last)
    assert await run.receive("messages") == received
    assert await run.pending("later", after=last.key) == ()
    assert await run.pending("again") == received


def test_c18_inbox_keys_sort_as_text_as_their_positions_do() -> None:
    positions = [0, 1, 9, 10, 99, 2**31, 2**53 + 1, 2**62 - 1, 2**62, 2**63 - 1]
    keys = [inbox_key(position) for position in positions]
    assert keys == sorted(keys)
    assert inbox_key(7) == "inbox:00000000000000000007"


@pytest.mark.parametrize("name", ["budget", "alive"])
@pytest.mark.parametrize("length", [timedelta(0), -LEASE])
async def test_a_duration_that_is_not_positive_is_refused_by_name(
    length: timedelta, name: str, stores: Stores
) -> None:
    store = stores.checkpointer
    durations = {"budget": BUDGET, "alive": LEASE} | {name: length}
    holder = await claimed(store, "w")
    with pytest.raises(ValueError, match=name):
        await store.claim("v", **durations)
    with pytest.raises(ValueError, match=name):
        await store.extend(holder, **durations)
    if name == "alive":
        with pytest.raises(ValueError, match=name):
            await store.renew(holder, length)
