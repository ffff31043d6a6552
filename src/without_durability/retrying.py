"""How long to wait before trying again, and asking a store until it answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from .interfaces import Scheduler

T = TypeVar("T")

FIRST = timedelta(seconds=1)
CAP = timedelta(minutes=5)
"""The first and the longest pause after a workflow's failure."""

FACTOR = 2.0
"""How much longer each pause is than the one before it."""

STORE_FIRST = timedelta(milliseconds=100)
STORE_CAP = timedelta(seconds=30)
"""The first and the longest pause after a store's refusal."""

JITTER = 0.2
"""The part of a pause that is left to chance, either way."""

logger = logging.getLogger(__name__)


def pause_after(
    attempts: int,
    first: timedelta = FIRST,
    cap: timedelta = CAP,
    factor: float = FACTOR,
    jitter: float = JITTER,
) -> timedelta:
    """The pause after the `attempts`-th failure in a row: growing up to `cap`, give or take some.

    The jitter keeps what failed together from coming back together.
    """
    import random  # it costs a millisecond, and few programs come here

    try:
        pause = min(first * float(factor) ** (attempts - 1), cap)
    except OverflowError:
        pause = cap
    chance: float = random.uniform(1 - jitter, 1 + jitter)
    try:
        return pause * chance
    except OverflowError:
        return pause


def log_error(told: logging.Logger, message: str, *arguments: object, error: BaseException) -> None:
    """Log an error with its traceback, or by its type where its own code stands in the way.

    An exception alone would be asked for its truth, which is its own, and so may a traceback ask.
    """
    traced = type(error), error, error.__traceback__
    try:
        told.error(message, *arguments, exc_info=traced, stacklevel=2)
    except KeyboardInterrupt:
        raise
    except BaseException:
        name = type(error).__qualname__
        told.error(f"{message}: %s, which cannot be shown", *arguments, name, stacklevel=2)


def is_permanent(scheduler: Scheduler, error: Exception) -> bool:
    """Whether the store says that `error` will not go away by itself.

    A store that cannot tell is asked again: ending a worker over an outage is the worse mistake.
    """
    permanent = getattr(scheduler, "permanent", None)
    return permanent is not None and bool(permanent(error))


async def persist(
    scheduler: Scheduler,
    call: Callable[[], Awaitable[T]],
    doing: str,
    *,
    patience: timedelta | None = None,
) -> T:
    """`call()` until the store answers, logging each refusal and pausing longer after each.

    A permanent error is raised at once, and so is the one that outlasts `patience`.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    attempts = 0
    while True:
        try:
            return await call()
        except Exception as error:
            attempts += 1
            spent = loop.time() - started
            if is_permanent(scheduler, error):
                raise
            if patience is not None and spent >= patience.total_seconds():
                raise
            pause = pause_after(attempts, STORE_FIRST, STORE_CAP)
            if patience is not None:
                pause = min(pause, patience - timedelta(seconds=spent))
            logger.warning(
                "the store refused %s (attempt %d), asking again in %.1f s: %r",
                doing,
                attempts,
                pause.total_seconds(),
                error,
            )
        await asyncio.sleep(pause.total_seconds())
