"""What a worker tells an observer: one small event for each thing that happens to a pass."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeAlias

from .retrying import log_error
from .values import State

__all__ = [
    "ClaimLost",
    "Event",
    "Observer",
    "Parked",
    "PassEnded",
    "PassFailed",
    "PassStarted",
    "RenewalLate",
    "StepRecorded",
]

logger = logging.getLogger("without_durability.worker")


@dataclass(frozen=True, slots=True)
class PassStarted:
    """A pass began: the `attempt`-th since the last orderly end.

    One `PassEnded`, `PassFailed` or `ClaimLost` with the same `token` follows.
    """

    workflow: str
    token: int
    attempt: int


@dataclass(frozen=True, slots=True)
class StepRecorded:
    """A step's result, or a sleep's deadline, or an inbox read's cursor, is on record now.

    `took` is the time of its effect and its record together.
    """

    workflow: str
    token: int
    key: str
    took: timedelta


@dataclass(frozen=True, slots=True)
class PassEnded:
    """A pass came to an orderly end, or was given back by a worker that is being stopped.

    `outcome` is what this pass came to: what arrived meanwhile may have made it ready again.
    """

    workflow: str
    token: int
    outcome: State | Literal["given back"]
    took: timedelta


@dataclass(frozen=True, slots=True)
class PassFailed:
    """A body raised `error`: it is tried again after `pause`, or parked where that is `None`."""

    workflow: str
    token: int
    attempt: int
    error: BaseException
    pause: timedelta | None
    took: timedelta


@dataclass(frozen=True, slots=True)
class Parked:
    """A workflow has used its attempts up and is `failed` now.

    `error` is `None` where the last pass ended with its process and told nothing.
    """

    workflow: str
    attempts: int
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class ClaimLost:
    """A pass lost its claim: to a newer pass, to its budget, or by `cancel`, `delete` or `rewind`.

    What its body came to or raised then counts for nothing.
    """

    workflow: str
    token: int
    took: timedelta


@dataclass(frozen=True, slots=True)
class RenewalLate:
    """The event loop was blocked for `late` at least, and the pass renewed that much later."""

    workflow: str
    token: int
    late: timedelta


Event: TypeAlias = (
    PassStarted | StepRecorded | PassEnded | PassFailed | Parked | ClaimLost | RenewalLate
)
"""Everything that an observer is told. None carries what a step returned."""

Observer: TypeAlias = Callable[[Event], object]
"""Called on the worker's loop for each event, in order: it returns soon and awaits nothing.

What it raises is logged, and the worker goes on.
"""


class Telling:
    """Tells an observer about one pass: that it began and, once, how it ended."""

    def __init__(self, observe: Observer, workflow: str) -> None:
        self._observe = observe
        self._workflow = workflow
        self._loop = asyncio.get_running_loop()
        self._token: int | None = None  # while a pass is under way
        self._began = 0.0

    def started(self, token: int, attempt: int) -> None:
        self._token = token
        self._began = self._loop.time()
        self._tell(PassStarted(self._workflow, token, attempt))

    def recorded(self, key: str, seconds: float) -> None:
        if self._token is not None:
            took = timedelta(seconds=seconds)
            self._tell(StepRecorded(self._workflow, self._token, key, took))

    def late(self, seconds: float) -> None:
        if self._token is not None:
            late = timedelta(seconds=seconds)
            self._tell(RenewalLate(self._workflow, self._token, late))

    def ended(self, state: State | None) -> None:
        if self._token is not None:
            outcome = state or "given back"
            self._tell(PassEnded(self._workflow, self._token, outcome, self._took()))
            self._token = None

    def failed(self, attempt: int, error: BaseException, pause: timedelta | None) -> None:
        if self._token is not None:
            took = self._took()
            self._tell(PassFailed(self._workflow, self._token, attempt, error, pause, took))
            self._token = None

    def parked(self, attempts: int, error: BaseException | None) -> None:
        self._tell(Parked(self._workflow, attempts, error))

    def lost(self) -> None:
        if self._token is not None:
            self._tell(ClaimLost(self._workflow, self._token, self._took()))
            self._token = None

    def _took(self) -> timedelta:
        return timedelta(seconds=self._loop.time() - self._began)

    def _tell(self, event: Event) -> None:
        try:
            self._observe(event)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            log_error(logger, "the observer failed at %s", type(event).__name__, error=error)
