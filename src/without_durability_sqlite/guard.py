"""The lock a `Database` shows: held, it keeps the database's thread idle."""

from __future__ import annotations

import asyncio
from typing import Literal

from .thread import DatabaseThread, Hold, Job


class Guard(asyncio.Lock):
    """An `asyncio.Lock` that waits in the same line as every operation, on whatever loop.

    Holding it keeps every `run`, write and `aclose` out, so that its holder may use the
    connection directly. A hold whose loop has ended is over.
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
        return self._thread is not None and self._thread.busy

    async def acquire(self) -> Literal[True]:
        assert self._thread is not None, "a guard is of use once its database exists"
        hold = Hold(asyncio.get_running_loop())

        def enter(job: Job[None]) -> None:
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
