"""The values stores and runners hand each other, and the shape of an inbox key."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, TypeAlias

LEASE = timedelta(minutes=1)
"""How long a delivery stays its taker's, and how long a claim outlives a sign of life."""

BUDGET = timedelta(minutes=5)
"""How long one pass may hold its workflow unless it asks for more."""

INBOX = "inbox:"
"""The prefix of the keys that stores give to messages."""

INBOX_DIGITS = 20
"""How many digits follow `INBOX`: as many as sort every 64-bit position as text."""

INBOX_SUPPLIED = 2**62
"""Every position `supply` accepts lies below this one (C18)."""

INBOX_COUNTED = 3 * 2**61
"""Positions from here on are no store's numbering: malformed, whoever wrote them (C18).

Half as far again as `supply` reaches, so that no supplied key leaves `append` without room."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The right to run one pass: `token` rises with every claim on `workflow` (C3)."""

    workflow: str
    token: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the store holds after a `record`: its decoded value, and whether this call won.

    `first` is true when what is stored is this caller's encoding, a tie included.
    """

    value: object
    first: bool


@dataclass(frozen=True, slots=True)
class Written:
    """A record's decoded value and the store's moment of the winning write (aware, UTC)."""

    value: object
    at: datetime


@dataclass(frozen=True, slots=True)
class Entry:
    """One inbox message and the key the store filed it under."""

    key: str
    value: object


@dataclass(frozen=True, slots=True)
class Delivery:
    """One wakeup taken and not yet answered for; `receipt` is opaque and never repeats (S8)."""

    workflow: str
    receipt: str


State: TypeAlias = Literal["ready", "sleeping", "blocked", "completed", "failed", "cancelled"]
"""Where a workflow stands (L1). Whether a ready one is running is not stored."""


COMPLETED: tuple[State, ...] = ("completed",)
"""What `sweep` deletes unless it is told otherwise (L13)."""

SWEPT = 1000
"""How many workflows one `sweep` deletes at the most."""

PAGE = 100
"""How many workflows a page of `list` holds."""


class Started(NamedTuple):
    """A delivery taken and its workflow claimed at one go, to run a pass with.

    `holder` is `None` where another pass holds the workflow. `recorded` is what `load` gives;
    `None` where that is left to the runner. `attempt` counts the passes since the last orderly end,
    this one included. Where there is no pass to run, `over` says why, and the delivery is answered
    for: the workflow was "cancelled", its attempts were used up and it is "parked" now, or the
    delivery was "gone".
    """

    delivery: Delivery
    holder: Pass | None
    recorded: Mapping[str, object] | None = None
    attempt: int = 0
    over: Literal["cancelled", "parked", "gone"] | None = None


class Ended(NamedTuple):
    """How a pass ended: what one commit writes down, answers and releases (L4, L5).

    `due` is when the workflow is looked at again: `None` for no sooner than something arrives.
    `state` is where it stands and `detail` what goes with that; `None` leaves both as they are.
    `attempts` is the count from here on; `None` leaves it.
    """

    due: datetime | None = None
    state: State | None = None
    detail: object = None
    attempts: int | None = None


def inbox_key(position: int) -> str:
    """The inbox key of `position`: keys sort as text as their positions do as numbers."""
    return f"{INBOX}{position:0{INBOX_DIGITS}d}"


def inbox_position(key: str) -> int | None:
    """The position `key` was made from, or `None` for one that no store's numbering made."""
    digits = key.removeprefix(INBOX)
    if len(key) != len(INBOX) + INBOX_DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    position = int(digits)
    return position if key == inbox_key(position) and position < INBOX_COUNTED else None


def refuse_assignment(self: object, name: str, value: object) -> None:
    """The `__setattr__` of frozen, slotted generic dataclasses.

    Before Python 3.13 their own raises a `TypeError` where `typing` expects an `AttributeError`,
    and `Completed[int](1)` fails.
    """
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def message_of(error: BaseException) -> str | None:
    """What an error says; `None` where its own `__str__` stands in the way."""
    try:
        return str.__str__(str(error))  # which may be a str of their own kind
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def said(error: BaseException) -> str:
    """What an error says, or the name of its type where that is nothing or cannot be made."""
    return message_of(error) or type(error).__name__


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120


def shown(value: object) -> str:
    """`repr` for an error's text, shortened in the middle: ids may be a megabyte long."""
    try:
        return _SHORT.repr(value)
    except KeyboardInterrupt:
        raise
    except BaseException:  # an int beyond what Python prints, somebody's own __repr__
        return f"<{type(value).__name__}>"
