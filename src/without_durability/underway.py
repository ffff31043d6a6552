"""What a pass has come to so far: the suspensions it reached, and its steps that are under way.

`gather` leaves its other branches running when one of them suspends. Their steps belong to this
pass, and the next one must not begin beside them (docs/design.md, "What a workflow is").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from .outcomes import Suspended
from .signals import Fenced
from .values import Pass, shown


class Reached(list[Suspended]):
    """The suspensions a pass reached; entered around its body, it sees to its steps as well.

    On the way out it waits for the steps that the body left running, and passes a cancellation
    on to them. What a branch begins after that is `Fenced`: its pass is over.
    """

    def __init__(self, on_step: Callable[[str, float], None] | None = None) -> None:
        super().__init__()
        self._on_step = on_step  # told what a step recorded, and the seconds it took
        self._steps: dict[asyncio.Future[None], asyncio.Task[object] | None] = {}
        self._over = False

    @contextmanager
    def step(self, holder: Pass, key: str) -> Iterator[Callable[[], None]]:
        """Around one step, which is under way until it ends; `Fenced` once the pass is over.

        What it gives is to be called when the step is on record.
        """
        if self._over:
            raise Fenced(
                f"the pass over workflow {shown(holder.workflow)} is over: no step begins in it",
                workflow=holder.workflow,
                token=holder.token,
            )
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._steps[done] = asyncio.current_task()
        began = loop.time()

        def recorded() -> None:
            if self._on_step is not None:
                self._on_step(key, loop.time() - began)

        try:
            yield recorded
        finally:
            del self._steps[done]
            done.set_result(None)

    async def __aenter__(self) -> Self:
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
                self._cancel_steps()
            try:
                await asyncio.wait(tuple(self._steps))
            except asyncio.CancelledError as arrived:
                cancellation = arrived
        self._over = True
        if cancellation is not None and cancellation is not error:
            raise cancellation

    def _cancel_steps(self) -> None:
        for task in self._steps.values():
            if task is not None:
                task.cancel()
