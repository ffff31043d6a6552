"""The lock a `Database` shows: held, it keeps the database's thread idle."""

from __future__ import annotations

import asyncio
from typing import Literal

from .jobs import Job
from .thread import DatabaseThread, Hold


class Guard(asyncio.Lock):
    """An `asyncio.Lock` that waits in the same line as every operation, on whatever loop.

    Holding it keeps every `run`, write and `aclose` out, so that its holder may use the
    connection directly; a call of the holder's own is refused with a `RuntimeError`. A hold
    whose loop has ended is over.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread: DatabaseThread | None = None
        self._hold: Hold | None = None

    def attach(self, thread: DatabaseThread) -> None:
        """Guard that thread from now on; a guard serves one database only."""
        if self._thread is not None:
            raise ValueError("this guard belongs to another database")
        self._thread = thread

    def locked(self) -> bool:
        """Whether somebody holds it or the thread is at work."""
        return self._hold is not None or (self._thread is not None and self._thread.busy)

    async def acquire(self) -> Literal[True]:
        assert self._thread is not None, "a guard is of use once its database exists"
        hold = Hold(asyncio.get_running_loop())

        def enter(job: Job[None]) -> None:
            job.thread.at_rest()
            job.thread.hold = hold

        try:
            await self._thread.submit(enter).result()
        except BaseException:
            hold.released.set()
            raise
        self._hold = hold
        return True

    def release(self) -> None:
        if self._hold is None:
            raise RuntimeError("the guard is not acquired")
        self._hold.released.set()
        self._hold = None


class PlainGuard:
    """A lock that a `Database` was handed, held for as long as the thread has work.

    The database's own operations look whether somebody else holds it instead of waiting in its
    line: waiting is what ties an `asyncio.Lock` to one event loop. Others get it once the thread
    has nothing in line; the default `Guard` is fairer.
    """

    def __init__(self, lock: asyncio.Lock, thread: DatabaseThread) -> None:
        self._lock = lock
        self._thread = thread
        self._held = False

    async def __aenter__(self) -> None:
        while not self._held and self._lock.locked():  # noqa: ASYNC110 (a lock has no event)
            await asyncio.sleep(0.005)
        if not self._held:
            await self._lock.acquire()
            self._held = True

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Let go once nothing is in line or under way."""
        if self._held and not self._thread.busy:
            self._held = False
            self._lock.release()


def attached(guard: asyncio.Lock, thread: DatabaseThread) -> PlainGuard | None:
    """Make `guard` keep others off the thread; what a lock that is no `Guard` needs for that."""
    if isinstance(guard, Guard):
        guard.attach(thread)
        return None
    return PlainGuard(guard, thread)
