"""Ways to cancel a call to a database, each at a moment of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from gated import HANG, turns
from without_durability_sqlite import Database

Task: TypeAlias = asyncio.Future[Any]


@dataclass
class Cut:
    """A call that was cancelled at some moment: what came of it.

    `begun` is whether it must have happened, or `None` where only the file can tell; `heard` holds
    its answer where it was quicker than the cancellation.
    """

    begun: bool | None
    heard: tuple[Any, ...]


Moment: TypeAlias = Callable[[Callable[[], Task], Database, Database], Awaitable[bool | None]]
"""Starts the call on the first database, cancels it, and says whether it must have happened."""


async def before_its_first_turn(start: Callable[[], Task], one: Database, other: Database) -> bool:
    await ended(start())
    return False


async def in_line(start: Callable[[], Task], one: Database, other: Database) -> bool:
    """Behind work that keeps the database's thread."""
    opened = threading.Event()
    ahead = asyncio.ensure_future(one.run(lambda _: opened.wait(HANG)))
    await turns(1)
    task = start()
    await turns(2)
    await ended(task)
    opened.set()
    await ahead
    return False


async def waiting_for_the_lock(start: Callable[[], Task], one: Database, other: Database) -> bool:
    """While the other database holds the write lock."""
    opened = threading.Event()
    locked, hold = told(opened)

    def write(connection: Any) -> None:
        connection.execute("BEGIN IMMEDIATE")
        hold()
        connection.execute("ROLLBACK")

    writing = asyncio.ensure_future(other.run(write))
    await locked.wait()
    task = start()
    await turns(3)
    await ended(task)
    opened.set()
    await writing
    return False


async def about_to_commit(start: Callable[[], Task], one: Database, other: Database) -> bool | None:
    """With everything done and the lock still held; a call that only looks ends before that."""
    opened = threading.Event()
    reached, hold = told(opened)
    await one.run(lambda c: c.set_trace_callback(lambda text: hold() if text == "COMMIT" else None))
    task = start()
    reaching = asyncio.ensure_future(reached.wait())
    await asyncio.wait({task, reaching}, return_when=asyncio.FIRST_COMPLETED)
    await ended(reaching)
    await ended(task)
    opened.set()
    await one.run(lambda c: c.set_trace_callback(None))
    return reached.is_set() or None


def unheard_after(count: int) -> Moment:
    """After so many turns, each time with nothing left for the database's thread to do."""

    async def cancel(start: Callable[[], Task], one: Database, other: Database) -> None:
        task = start()
        for _ in range(count):
            await turns(1)
            idle = threading.Event()
            one._thread.later(idle.set)
            assert idle.wait(HANG)
        await ended(task)

    return cancel


def after_turns(count: int) -> Moment:
    """After so many turns, wherever the database's thread is by then."""

    async def cancel(start: Callable[[], Task], one: Database, other: Database) -> None:
        task = start()
        await turns(count)
        await ended(task)

    return cancel


MOMENTS: list[Moment] = [
    before_its_first_turn,
    in_line,
    waiting_for_the_lock,
    about_to_commit,
    *map(unheard_after, (1, 2, 3, 4)),
    *map(after_turns, (1, 2, 3, 5, 8)),
]


async def cut(
    moment: Moment, call: Callable[[], Awaitable[Any]], one: Database, other: Database
) -> Cut:
    """Cancel a call on `one` at that moment; whoever stood in line behind it is served."""
    started: list[Task] = []

    def start() -> Task:
        started.extend(map(asyncio.ensure_future, (call(), one.run(lambda _: "served"))))
        return started[0]

    begun = await moment(start, one, other)
    task, behind = started
    assert await behind == "served"
    await one.run(lambda _: None)  # behind what gives back what was granted
    return Cut(begun, () if task.cancelled() else (task.result(),))


async def ended(task: Task) -> None:
    task.cancel()
    await asyncio.wait({task})


def told(opened: threading.Event) -> tuple[asyncio.Event, Callable[[], object]]:
    """What tells the loop that a thread is there, and what keeps the thread until `opened`."""
    loop = asyncio.get_running_loop()
    there = asyncio.Event()

    def hold() -> None:
        loop.call_soon_threadsafe(there.set)
        assert opened.wait(HANG)

    return there, hold
