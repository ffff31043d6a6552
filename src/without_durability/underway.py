"""The steps of a pass that are still under way when its body has ended.

`gather` leaves its other branches running when one of them suspends. Their steps belong to this
pass, and the next one must not begin beside them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Self

from .signals import Fenced


class Underway:
    """Entered around a body: on the way out it waits for the steps of its run that are left.

    A cancellation meanwhile is passed on to them. What a branch begins after that is `Fenced`:
    its pass is over.
    """

    def __init__(self, run: object) -> None:
        self.run = run
        self.outer: Underway | None = None
        self._steps: dict[asyncio.Future[None], asyncio.Task[object] | None] = {}
        self._over = False

    @contextmanager
    def step(self) -> Iterator[None]:
        if self._over:
            raise Fenced("this pass is over: it begins no more steps")
        done = asyncio.get_running_loop().create_future()
        self._steps[done] = asyncio.current_task()
        try:
            yield
        finally:
            del self._steps[done]
            done.set_result(None)

    async def __aenter__(self) -> Self:
        self.outer = _current.get()
        self._token = _current.set(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        cancellation = error if isinstance(error, asyncio.CancelledError) else None
        while self._steps:
            if cancellation is not None:
                self._cancel()
            try:
                await asyncio.wait(tuple(self._steps))
            except asyncio.CancelledError as arrived:
                cancellation = arrived
        self._over = True
        _current.reset(self._token)
        if cancellation is not None and cancellation is not error:
            raise cancellation

    def _cancel(self) -> None:
        for task in self._steps.values():
            if task is not None:
                task.cancel()


_current: ContextVar[Underway | None] = ContextVar("_current", default=None)


@contextmanager
def step_under_way(run: object) -> Iterator[None]:
    """Around a step's effect and record; for a `run` that no `resume` made it changes nothing."""
    current = _current.get()
    while current is not None and current.run is not run:
        current = current.outer
    if current is None:
        yield
    else:
        with current.step():
            yield
