"""What an observer was told, as the tests compare it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from without_durability import (
    LEASE,
    ClaimLost,
    Clock,
    MemoryCheckpointer,
    MemoryDurable,
    MemoryScheduler,
    PassEnded,
    PassFailed,
    PassStarted,
    RenewalLate,
    StepRecorded,
)

NOW = timedelta(0)
ENDS = (PassEnded, PassFailed, ClaimLost)


def untimed(events: Iterable[Any]) -> list[Any]:
    """The events with every `took` at zero."""
    return [
        dataclasses.replace(event, took=NOW) if hasattr(event, "took") else event
        for event in events
    ]


def paired(events: list[Any]) -> int:
    """How many passes there were: each began once and, with the same token, ended once."""
    begun = [event for event in events if isinstance(event, PassStarted)]
    ends = [event for event in events if isinstance(event, ENDS)]
    passes = [(event.workflow, event.token) for event in begun]
    assert len({*passes}) == len(passes)
    assert sorted(passes) == sorted((event.workflow, event.token) for event in ends), events
    for index, event in enumerate(events):
        if isinstance(event, (StepRecorded, RenewalLate)):
            mine = [one for one in events if getattr(one, "token", None) == event.token]
            mine = [one for one in mine if one.workflow == event.workflow]
            first, last = events.index(mine[0]), events.index(mine[-1])
            assert first < index < last, "it was told outside its pass"
    return len(begun)


def memory(clock: Clock, lease: timedelta = LEASE) -> MemoryDurable:
    return MemoryDurable(
        MemoryCheckpointer(clock=clock.seconds, now=clock.now),
        MemoryScheduler(clock=clock.seconds, lease=lease),
    )
