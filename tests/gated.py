"""Stores and workers that tests can hold, watch and break: gates instead of sleeps."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

from without_durability import (
    Clock,
    Delivery,
    MemoryCheckpointer,
    MemoryScheduler,
    SplitDurable,
    claimed,
    resume,
    work,
)

HANG = 8
"""Seconds after which a test that waits is a test that hangs."""


class Overlay:
    """A store with the given attributes in place of its own."""

    def __init__(self, store: Any, **replaced: Any) -> None:
        self._store = store
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Only:
    """Nothing of a store but the named attributes."""

    def __init__(self, store: Any, names: set[str]) -> None:
        self._store = store
        self._names = names

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise AttributeError(name)
        return getattr(self._store, name)


class Yielding:
    """A store whose every call gives the loop a turn before it does anything."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def late(*arguments: Any) -> Any:
            await asyncio.sleep(0)
            return await found(*arguments)

        return late


class Watched:
    """A scheduler that puts each answer into `answers`: the workflow, and when it wakes or None."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.answers: asyncio.Queue[tuple[str, datetime | None]] = asyncio.Queue()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    async def wake_at(self, delivery: Delivery, when: datetime) -> None:
        await self._scheduler.wake_at(delivery, when)
        self.answers.put_nowait((delivery.workflow, when))

    async def done(self, delivery: Delivery) -> None:
        await self._scheduler.done(delivery)
        self.answers.put_nowait((delivery.workflow, None))


class Heard(logging.Handler):
    """What the library logs, as something to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []
        self._news = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(self.format(record))
        self._news.set()

    async def until(self, *texts: str) -> str:
        """The first message that holds every one of `texts`."""
        while True:
            for message in self.messages:
                if all(text in message for text in texts):
                    return message
            self._news.clear()
            await self._news.wait()


@asynccontextmanager
async def listening() -> AsyncIterator[Heard]:
    heard = Heard()
    logger = logging.getLogger("without_durability")
    level = logger.level
    logger.addHandler(heard)
    logger.setLevel(logging.DEBUG)
    try:
        yield heard
    finally:
        logger.setLevel(level)
        logger.removeHandler(heard)


@asynccontextmanager
async def working(durable: Any, body: Any, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    """A worker for the length of the block; an error that ended it comes out."""
    task = asyncio.create_task(work(durable, body, **options))
    try:
        async with asyncio.timeout(HANG):
            yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def completing(run: object):
    return "done"


async def forever(run: object = None):
    await asyncio.Event().wait()


async def turns(count: int = 30) -> None:
    """Give the loop turns, so that whatever could happen by now has happened."""
    for _ in range(count):
        await asyncio.sleep(0)


async def passed(stores: Any, body: Callable[[Any], Awaitable[Any]], **options: Any) -> Any:
    """One pass over workflow "w", from its claim to its release."""
    holder = await claimed(stores.checkpointer, "w")
    try:
        return await resume(
            holder, stores.checkpointer, body, **({"now": stores.clock.now} | options)
        )
    finally:
        await stores.checkpointer.release(holder)


def cancel_every_task() -> None:
    """What closing a loop does, from within it: cancel every task but this one."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


class Bench:
    """A memory store whose answers can be awaited; `now` is a clock that stands still."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.memory = MemoryCheckpointer(now=self.clock.now)
        self.queue = MemoryScheduler(**options)
        self.watched = Watched(self.queue)
        self.answers = self.watched.answers
        self.durable = SplitDurable(self.memory, self.watched)

    def working(self, body: Any, durable: Any = None, **options: Any):
        options = {"now": self.clock.now, "tick": timedelta(milliseconds=1)} | options
        return working(durable or self.durable, body, **options)

    def over(self, **replaced: Any) -> SplitDurable[Any]:
        """The durable with parts of its checkpointer replaced."""
        return SplitDurable(Overlay(self.memory, **replaced), self.watched)

    async def pause(self, workflow: str) -> timedelta:
        """How long the workflow's next answer makes it wait."""
        answered, when = await self.answers.get()
        assert (answered, when is not None) == (workflow, True)
        return when - self.clock.now()


def about(pause: timedelta, expected: timedelta) -> bool:
    """Whether the pause is the expected one, give or take 20 %."""
    return expected * 0.8 <= pause <= expected * 1.2
