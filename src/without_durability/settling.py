"""Awaiting what must happen once begun, whatever cancels its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_RESTARTS = 100


class Settled(Generic[T]):
    """What a call came to, and the cancellation that arrived while it was under way, if any."""

    __slots__ = ("cancellation", "error", "value")

    def __init__(self) -> None:
        self.value: T | None = None
        self.error: BaseException | None = None
        self.cancellation: asyncio.CancelledError | None = None

    def result(self) -> T:
        """The call's value or its error; a cancellation meanwhile outranks both."""
        if self.cancellation is not None:
            raise self.cancellation from self.error
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


async def settle(call: Callable[[], Awaitable[T]]) -> Settled[T]:
    """Run `call()` to its end however often the caller is cancelled; ask the answer's `result()`.

    `call` must be idempotent: should its own task be cancelled (as closing a loop does to every
    task), it is called again, so that what was promised still happens.
    """
    settled: Settled[T] = Settled()
    loop = asyncio.get_running_loop()
    for _ in range(_RESTARTS):
        task = loop.create_task(_outcome(call))
        while not task.done():
            try:
                await _ended(task, loop)
            except asyncio.CancelledError as cancellation:
                settled.cancellation = cancellation
        if not task.cancelled():
            settled.value, settled.error = task.result()
            break
        settled.cancellation = settled.cancellation or asyncio.CancelledError()
    return settled


def _ended(task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """A future of its own for the task's end: cancelling it leaves the task alone."""
    ended: asyncio.Future[None] = loop.create_future()

    def end(_: object) -> None:
        if not ended.done():
            ended.set_result(None)

    task.add_done_callback(end)
    return ended


async def _outcome(call: Callable[[], Awaitable[T]]) -> tuple[Any, BaseException | None]:
    """`call()`'s value or error: an error is a value here, so that no task is left unread."""
    try:
        return await call(), None
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:
        return None, error
