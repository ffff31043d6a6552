"""Waiting for a workflow's end: told at once by this process's commits, looked for otherwise."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

from .jobs import told

Waiting = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Endings:
    """Who waits for the end of which workflow, on whatever loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, set[Waiting]] = {}

    def join(self, workflow: str) -> Waiting:
        """Wait from here on for the running loop."""
        loop = asyncio.get_running_loop()
        waiting = loop, loop.create_future()
        with self._lock:
            self._waiting.setdefault(workflow, set()).add(waiting)
        return waiting

    def leave(self, workflow: str, waiting: Waiting) -> None:
        """Wait no longer."""
        with self._lock:
            others = self._waiting.get(workflow, set())
            others.discard(waiting)
            if not others:
                self._waiting.pop(workflow, None)

    def tell(self, workflows: Iterable[str]) -> None:
        """They have ended, and that is committed."""
        if not self._waiting:
            return
        with self._lock:
            for workflow in workflows:
                for loop, future in self._waiting.get(workflow, ()):
                    told(loop, _done, future)


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
