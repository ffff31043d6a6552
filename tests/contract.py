"""What the tests of the clauses share: calls by name, a clock with a gate, a held write lock."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stores import Stores
from without_durability import (
    BUDGET,
    LEASE,
    Pass,
    claimed,
)
from without_durability.testing import Clock

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


async def assert_held_for(stores: Stores, length: timedelta) -> None:
    """ "w" is held until then, and not a moment longer."""
    stores.clock.advance(length - MILLISECOND)
    assert await is_held(stores)
    stores.clock.advance(MILLISECOND)
    assert not await is_held(stores)


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
