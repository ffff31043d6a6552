"""Effects in a shared transaction: their savepoints, their cursors, and what they may not touch."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from batches import (
    app,
    holder_of,
    interposed_stores,
    of,
    together,
    writes,
)
from beside import Beside, of_transact, then
from stores import Stores
from thread_gates import in_time
from without_durability import Clock
from without_durability_sqlite import transactions


@pytest.fixture
async def stores(path: Path, migrated: Path, clock: Clock) -> AsyncIterator[Stores]:
    async with interposed_stores(path, migrated, clock) as stores:
        yield stores


def leaves_savepoints_open(cursor: sqlite3.Cursor) -> object:
    cursor.execute("SAVEPOINT one")
    writes("inside")(cursor)
    cursor.execute("SAVEPOINT two")
    writes("deeper")(cursor)
    return 1


def leaves_savepoints_open_and_raises(cursor: sqlite3.Cursor) -> object:
    leaves_savepoints_open(cursor)
    raise LookupError


async def test_savepoints_an_effect_leaves_open_are_its_own(stores: Stores):
    store, w, v = stores.checkpointer, await holder_of(stores, "w"), await holder_of(stores, "v")
    open_ones, failed, after = await together(
        of(stores),
        store.transact(w, "a", leaves_savepoints_open),
        store.transact(v, "a", leaves_savepoints_open_and_raises),
        store.transact(v, "b", writes("after")),
    )
    assert (open_ones, type(failed), after) == (1, LookupError, "after")
    assert app(stores) == ["inside", "deeper", "after"]
    assert await store.load("v") == {"b": "after"}


@pytest.mark.parametrize(
    "name", [str.lower, str.upper, '"{}"'.format], ids=["lower", "upper", "quoted"]
)
@pytest.mark.parametrize("verb", ["RELEASE", "ROLLBACK TO", "SAVEPOINT"])
async def test_the_stores_own_savepoint_is_not_an_effects_to_touch(
    beside: Beside, verb: str, name: Callable[[str], str]
):
    """Also not by a statement that the store itself has compiled before."""
    holder = await holder_of(beside.stores, "warm")
    await together(
        of(beside.stores),
        *(
            beside.stores.checkpointer.transact(holder, key, effect)
            for key, effect in {"a": lambda _: 1, "b": lambda _: {1}, "c": lambda _: 2}.items()
        ),
    )
    text = f"{verb} {name(transactions.SAVEPOINT)}"
    assert isinstance(await beside.outcome(of_transact(then(text))(beside), 3), RuntimeError)


async def test_an_effect_that_swallows_that_refusal_is_refused_all_the_same(beside: Beside):
    def effect(cursor: sqlite3.Cursor) -> object:
        writes("of the failed one")(cursor)
        try:
            cursor.execute(f"RELEASE {transactions.SAVEPOINT}")
        except sqlite3.DatabaseError:
            return 1
        raise AssertionError("it was not refused")

    assert isinstance(await beside.outcome(of_transact(effect)(beside), 3), RuntimeError)


async def test_one_effects_fence_is_no_other_effects(stores: Stores):
    """An effect that was refused leaves those after it free, and the store's own statements."""
    store, holder = stores.checkpointer, await holder_of(stores, "w")

    def nested(cursor: sqlite3.Cursor) -> object:
        cursor.execute("SAVEPOINT own")
        writes("free")(cursor)
        cursor.execute("RELEASE own")
        return "free"

    refused, free, supplied = await together(
        of(stores),
        store.transact(holder, "a", then("COMMIT")),
        store.transact(holder, "b", nested),
        store.supply("w", "c", 1),
    )
    assert (type(refused), free, supplied) == (RuntimeError, "free", 1)
    assert app(stores) == ["free"]


async def test_a_cursor_that_an_effect_kept_runs_nothing_for_the_effects_after_it(stores: Stores):
    store, holder = stores.checkpointer, await holder_of(stores, "w")
    kept: list[sqlite3.Cursor] = []

    def keeps(cursor: sqlite3.Cursor) -> object:
        kept.append(cursor)
        return 1

    def uses(cursor: sqlite3.Cursor) -> object:
        with pytest.raises(sqlite3.ProgrammingError):
            kept[0].execute("INSERT INTO app (name) VALUES ('smuggled')")
        return writes("own")(cursor)

    assert await together(
        of(stores), store.transact(holder, "a", keeps), store.transact(holder, "b", uses)
    ) == [1, "own"]
    assert app(stores) == ["own"]


async def test_a_task_begun_in_an_effect_that_ran_twice_may_call_the_database_later(
    stores: Stores,
):
    """The second run is in the same context as the first: no job may be found inside itself."""
    store, holder = stores.checkpointer, await holder_of(stores, "w")
    loop, go = asyncio.get_running_loop(), asyncio.Event()
    begun = []

    async def later() -> object:
        await go.wait()
        return await store.load("w")

    def effect(_: sqlite3.Cursor) -> object:
        begun.append(asyncio.run_coroutine_threadsafe(later(), loop))
        return 1

    conflict = then("INSERT INTO once VALUES ('taken')")
    done, failed = await together(
        of(stores), store.transact(holder, "a", effect), store.transact(holder, "b", conflict)
    )
    assert (done, type(failed)) == (1, sqlite3.IntegrityError)
    assert len(begun) == 2
    go.set()
    for future in begun:
        assert await in_time(asyncio.wrap_future(future)) == {"a": 1}
