"""The stores that are certified here, each as a factory under a clock."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stores import over_memory, over_sqlite
from without_durability import (
    Durable,
    MemoryCheckpointer,
    MemoryDurable,
    MemoryScheduler,
    SplitDurable,
)
from without_durability.testing import Clock, Marks
from without_durability_sqlite import connect, migrate

MARKS = "CREATE TABLE IF NOT EXISTS mark (mark TEXT NOT NULL)"


@asynccontextmanager
async def memory(clock: Clock) -> AsyncIterator[Durable[Any]]:
    yield over_memory(clock).durable


@asynccontextmanager
async def memory_ledger(clock: Clock) -> AsyncIterator[Durable[Any]]:
    yield MemoryDurable(
        MemoryCheckpointer(clock=clock.seconds, now=clock.now), MemoryScheduler(clock=clock.seconds)
    )


async def marks_in_memory(durable: Any) -> list[str]:
    return list(durable.checkpointer.data)


memory_marks = Marks(lambda data, mark: data.update({mark: True}), marks_in_memory)


@asynccontextmanager
async def over_file(path: Path | str, clock: Clock) -> AsyncIterator[Durable[Any]]:
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        await database.run(lambda connection: connection.execute(MARKS).close())
        yield over_sqlite(database, clock).durable


async def marks_in_sqlite(durable: Any) -> list[str]:
    found = await durable.checkpointer.database.run(
        lambda connection: connection.execute("SELECT mark FROM mark").fetchall()
    )
    return [mark for (mark,) in found]


sqlite_marks = Marks(
    lambda cursor, mark: cursor.execute("INSERT INTO mark VALUES (?)", (mark,)).rowcount,
    marks_in_sqlite,
)


class Files:
    """A new file for each `make`, and `reopen` for the last of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def make(self, clock: Clock) -> AbstractAsyncContextManager[Durable[Any]]:
        self._count += 1
        return self.reopen(clock)

    def reopen(self, clock: Clock) -> AbstractAsyncContextManager[Durable[Any]]:
        return over_file(self._folder / f"{self._count}.db", clock)

    @asynccontextmanager
    async def make_two(self, clock: Clock) -> AsyncIterator[Durable[Any]]:
        """Two databases on a new file, which take turns in answering."""
        async with self.make(clock) as one, self.reopen(clock) as other:
            yield InTurn(one, other)


class InTurn:
    """Two stores of one kind that stand for one: each call goes to the other one than the last."""

    def __init__(self, one: Any, other: Any) -> None:
        self._both = (one, other)
        self._calls = 0

    @property
    def checkpointer(self) -> InTurn:
        return InTurn(*(one.checkpointer for one in self._both))

    @property
    def scheduler(self) -> InTurn:
        return InTurn(*(one.scheduler for one in self._both))

    def __getattr__(self, name: str) -> Any:
        self._calls += 1
        return getattr(self._both[self._calls % 2], name)


class Disk:
    """A memory store that a crash leaves as it was after its last call that reached the disk.

    The call named `lost` does not reach it. `spoil(call, kept)` changes what does.
    """

    def __init__(
        self,
        lost: str | None = None,
        spoil: Callable[[str, Kept], object] = lambda call, kept: None,
        checkpointer: type[MemoryCheckpointer] = MemoryCheckpointer,
        receipts: Iterable[int] | None = None,
    ) -> None:
        self._receipts = receipts
        self._lost = lost
        self._spoil = spoil
        self._checkpointer = checkpointer

    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[Durable[Any]]:
        durable = SplitDurable(
            self._checkpointer(clock=clock.seconds, now=clock.now),
            MemoryScheduler(clock=clock.seconds),
        )
        self._write("make", durable)
        yield SplitDurable(
            Written(durable.checkpointer, lambda call: self._written(call, durable)),
            Written(durable.scheduler, lambda call: self._written(call, durable)),
        )

    @asynccontextmanager
    async def reopen(self, clock: Clock) -> AsyncIterator[Durable[Any]]:
        kept = copy.deepcopy(self._kept)
        yield SplitDurable(
            self._checkpointer(kept.hashes, kept.claims, clock=clock.seconds, now=clock.now),
            MemoryScheduler(
                kept.queue,
                kept.sleeping,
                kept.outstanding,
                receipts=itertools.count(10**6) if self._receipts is None else iter(self._receipts),
                clock=clock.seconds,
            ),
        )

    def _written(self, call: str, durable: Any) -> None:
        if call != self._lost:
            self._write(call, durable)

    def _write(self, call: str, durable: Any) -> None:
        records, queue = durable.checkpointer, durable.scheduler
        self._kept = copy.deepcopy(
            Kept(records.hashes, records.claims, queue.queue, queue.sleeping, queue.outstanding)
        )
        self._spoil(call, self._kept)


@dataclass
class Kept:
    """What is on a `Disk`: the fields of the memory stores."""

    hashes: dict[str, dict[str, Any]]
    claims: dict[str, Any]
    queue: deque[str]
    sleeping: dict[str, Any]
    outstanding: dict[str, Any]


class Written:
    """A store that says which of its calls has returned."""

    def __init__(self, store: Any, returned: Callable[[str], None]) -> None:
        self._store = store
        self._returned = returned

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*arguments: Any) -> Any:
            answer = await found(*arguments)
            self._returned(name)
            return answer

        return call
