"""One call that fails beside others that have nothing to do with it."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from batches import app, holder_of, of, seen, together, writes
from stores import Stores

MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)


class Beside:
    """One call between others that have nothing to do with it and must not notice it."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores

    async def prepare(self) -> None:
        """ "u" and its holder are for the call that fails, "w" and its holder for the others."""
        self.holder = await holder_of(self.stores, "w")
        self.failing = await holder_of(self.stores, "u")
        await self.stores.checkpointer.supply("u", "unreadable", 1)
        await of(self.stores).run(
            lambda c: c.execute("UPDATE workflow_checkpoint SET value = '{'").close()
        )
        self.stores.clock.advance(SECOND)
        self.before = self.of_the_failing()

    def of_the_failing(self) -> list[tuple[Any, ...]]:
        records = "SELECT seq, step, value FROM workflow_checkpoint WHERE workflow = 'u'"
        claims = "SELECT * FROM workflow_claim WHERE workflow = 'u'"
        return seen(self.stores, records) + seen(self.stores, claims)

    async def outcome(self, failing: Awaitable[Any], at: int) -> Any:
        """What the call comes to at that place among the others, which all succeed once."""
        store = self.stores.checkpointer
        calls = [
            store.supply("w", "first", 1),
            store.append("w", 2),
            store.claim("v", MINUTE, MINUTE),
            store.transact(self.holder, "third", writes("third")),
            self.stores.durable.arrive("w", "fourth", 4),
        ]
        calls.insert(at, failing)
        outcomes = await together(of(self.stores), *calls)
        outcome = outcomes.pop(at)
        first, entry, granted, third, fourth = outcomes
        assert (first, entry.value, third, fourth) == (1, 2, "third", 4)
        assert granted.workflow == "v"
        assert [*(await store.load("w")).items()] == [
            ("first", 1),
            (entry.key, 2),
            ("third", "third"),
            ("fourth", 4),
        ]
        assert await store.claim("v", MINUTE, MINUTE) is None
        delivery = await self.stores.scheduler.next_ready(timedelta(0))
        assert delivery.workflow == "w"
        assert app(self.stores) == ["third"], "an effect of nobody's, or one twice"
        assert self.of_the_failing() == self.before, "something of the failed call was kept"
        return outcome


def then(text: str) -> Callable[[sqlite3.Cursor], object]:
    """An effect that writes, and then runs a statement."""

    def effect(cursor: sqlite3.Cursor) -> object:
        writes("of the failed one")(cursor)
        cursor.execute(text)
        return 1

    return effect


def raises(cursor: sqlite3.Cursor) -> object:
    writes("of the failed one")(cursor)
    raise LookupError("the effect's own")


def swallows(cursor: sqlite3.Cursor) -> object:
    writes("of the failed one")(cursor)
    try:
        cursor.execute("INSERT INTO once VALUES ('taken')")
    except sqlite3.IntegrityError:
        return "as if nothing had happened"
    raise AssertionError("it was not refused")


def no_json(cursor: sqlite3.Cursor) -> object:
    writes("of the failed one")(cursor)
    return {1, 2}


def of_transact(effect: Callable[[sqlite3.Cursor], object]) -> Callable[[Beside], Awaitable[Any]]:
    return lambda beside: beside.stores.checkpointer.transact(beside.failing, "new", effect)
