"""What a pass has come to so far: the suspensions it reached, and its steps that are under way.

`gather` leaves its other branches running when one of them suspends. Their steps belong to this
pass, and the next one must not begin beside them (docs/design.md, "What a workflow is").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from .outcomes import Suspended
from .signals import Fenced
from .values import Pass, shown


class Reached(list[Suspended]):
    """The suspensions a pass reached; entered around its body, it sees to its steps as well.

    On the way out it waits for the steps that the body left running, and passes a cancellation
    on to them. What a branch begins after that is `Fenced`: its pass is over. `on_step` is told
    what a step has recorded, and the seconds that took.
    """

    def __init__(self, on_step: Callable[[str, float], None] | None = None) -> None:
        super().__init__()
        self.on_step = on_step
        self._steps: set[Step] = set()
        self._over = False

    def step(self, holder: Pass, key: str) -> Step:
        """To be entered around one step, which is under way until it ends."""
        return Step(self, holder, key)

    def begin(self, step: Step) -> None:
        """`Fenced` once the pass is over."""
        if self._over:
            raise Fenced(
                f"the pass over workflow {shown(step.holder.workflow)} is over: "
                "no step begins in it",
                workflow=step.holder.workflow,
                token=step.holder.token,
            )
        self._steps.add(step)

    def end(self, step: Step) -> None:
        self._steps.remove(step)
        if step.awaited is not None:
            step.awaited.set_result(None)

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
                await asyncio.wait([step.ended() for step in self._steps])
            except asyncio.CancelledError as arrived:
                cancellation = arrived
        self._over = True
        if cancellation is not None and cancellation is not error:
            raise cancellation

    def _cancel_steps(self) -> None:
        for step in self._steps:
            if step.task is not None:
                step.task.cancel()


class Step:
    """One step of a pass, from its effect to its record."""

    __slots__ = ("_began", "_key", "_loop", "_reached", "awaited", "holder", "task")

    def __init__(self, reached: Reached, holder: Pass, key: str) -> None:
        self.holder = holder
        self.task: asyncio.Task[object] | None = None
        self.awaited: asyncio.Future[None] | None = None
        self._reached = reached
        self._key = key
        self._loop = asyncio.get_running_loop()
        self._began = 0.0

    def __enter__(self) -> Callable[[], None]:
        """What to call once the step is on record."""
        self._reached.begin(self)
        self.task = asyncio.current_task()
        if self._reached.on_step is not None:
            self._began = self._loop.time()
        return self._recorded

    def __exit__(self, *_: object) -> None:
        self._reached.end(self)

    def ended(self) -> asyncio.Future[None]:
        """A future for its end."""
        if self.awaited is None:
            self.awaited = self._loop.create_future()
        return self.awaited

    def _recorded(self) -> None:
        if self._reached.on_step is not None:
            self._reached.on_step(self._key, self._loop.time() - self._began)
