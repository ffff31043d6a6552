"""Durations and moments: milliseconds, the check every duration goes through, and now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_MILLISECOND = timedelta(milliseconds=1)


def now_utc() -> datetime:
    """The present moment, aware, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Milliseconds:
    """A whole count of milliseconds, for interfaces that take no finer one."""

    count: int

    @property
    def duration(self) -> timedelta:
        """The same length as a `timedelta`."""
        return self.count * _MILLISECOND

    @classmethod
    def of(cls, duration: timedelta) -> Milliseconds:
        """`duration` as a count; `ValueError` when it is not a whole number of them."""
        count, rest = divmod(duration, _MILLISECOND)
        if rest:
            raise ValueError(f"{duration!r} is not a whole number of milliseconds")
        return cls(count)


def check_duration(name: str, duration: timedelta) -> None:
    """`ValueError` naming `name` when `duration` is not positive, `TypeError` for no duration."""
    check_timedelta(name, duration)
    if duration <= timedelta(0):
        raise ValueError(f"{name} must be positive, not {duration!r}")


def check_wait(name: str, duration: timedelta) -> None:
    """`ValueError` naming `name` when `duration` is negative: a wait may be zero."""
    check_timedelta(name, duration)
    if duration < timedelta(0):
        raise ValueError(f"{name} must not be negative, not {duration!r}")


def check_timedelta(name: str, duration: object) -> None:
    """`TypeError` naming `name` for what is no `timedelta`."""
    if not isinstance(duration, timedelta):
        raise TypeError(f"{name} must be a timedelta, not {type(duration).__name__}")
