"""Records: what is written stays, in order and as it was (C1, C2, C9 to C13, C16, C19)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest

from contract import (
    HOURS,
    MILLISECOND,
    WRITES,
    Call,
    each_sign,
    each_write,
    is_held,
    rows,
    superseded,
)
from stores import Stores
from without_durability import (
    BUDGET,
    INBOX,
    LEASE,
    Fenced,
    MemoryCheckpointer,
    Pass,
    Recorded,
    claimed,
    inbox_key,
)
from without_durability_sqlite import Database, SqliteCheckpointer

# --- C1, C2: records and their history ----------------------------------------------------------


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


# --- C9 to C12: writes behind the fence ---------------------------------------------------------


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


# --- C13: what comes from outside ---------------------------------------------------------------


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


# --- C16, C19: values, keys and ids -------------------------------------------------------------


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
