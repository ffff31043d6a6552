"""How a pass ends, and the suspensions it may reach on the way."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from .checks import check_aware
from .signals import Interruption
from .values import refuse_assignment

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Completed(Generic[T_co]):
    """The body returned `value`."""

    value: T_co


Completed.__setattr__ = refuse_assignment  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class Sleeping:
    """The body waits until `due`, the earliest deadline among all it reached; `key` set it."""

    key: str
    due: datetime


@dataclass(frozen=True, slots=True)
class Blocked:
    """The body waits for input under the keys in `waiting` or for messages, `listening`."""

    waiting: frozenset[str]
    listening: frozenset[str]

    def __post_init__(self) -> None:
        if not self.waiting and not self.listening:
            raise ValueError("a blocked pass waits for at least one key")

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key waited for, sorted."""
        return tuple(sorted(self.waiting | self.listening))


class Suspended(Interruption):
    """The pass can go no further on this branch; `waiting` says in words what it waits for.

    The base of three kinds and no outcome by itself: raise one of those.
    """

    def __init__(self, key: str, waiting: str) -> None:
        super().__init__(f"{key!r} is waiting for {waiting}")
        self.key = key
        self.waiting = waiting


class InputNeeded(Suspended):
    """Nobody has supplied a value under `key` yet."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "an input")


class MessageNeeded(Suspended):
    """The step `key` found no message past its cursor."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "a message")


class ScheduledWakeup(Suspended):
    """The step `key` sleeps until `due`, which is aware: `ValueError` for a naive moment."""

    def __init__(self, key: str, due: datetime) -> None:
        check_aware("due", due)
        super().__init__(key, f"{due.isoformat()}")
        self.due = due


class Swallowed(Exception):
    """The body returned normally although it had reached suspensions, under `keys` (sorted)."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        super().__init__(
            f"the workflow returned although it was suspended at {', '.join(map(repr, keys))}: "
            "let suspensions propagate"
        )
        self.keys = keys

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.keys,)


def outcome_of(reached: list[Suspended]) -> Sleeping | Blocked:
    """What a pass that reached these suspensions comes to: a deadline outranks other waits.

    `TypeError` for a suspension of no known kind.
    """
    wakeups = [one for one in reached if isinstance(one, ScheduledWakeup)]
    waiting = frozenset(one.key for one in reached if isinstance(one, InputNeeded))
    listening = frozenset(one.key for one in reached if isinstance(one, MessageNeeded))
    for one in reached:
        if not isinstance(one, (ScheduledWakeup, InputNeeded, MessageNeeded)):
            raise TypeError(
                f"{type(one).__name__} at {one.key!r} is no outcome: raise InputNeeded, "
                "MessageNeeded or ScheduledWakeup"
            ) from one
    if wakeups:
        first = min(wakeups, key=lambda one: one.due)
        return Sleeping(first.key, first.due)
    return Blocked(waiting, listening)
