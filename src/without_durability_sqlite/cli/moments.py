"""Moments and lengths of time, as they are typed and as they are read."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from without_durability.explaining import in_words

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(min|[smhdw])")


def span(typed: str) -> timedelta:
    """`30d`, `12h`, `90 min`, `1d12h`; `ValueError` for anything else."""
    seconds, at = 0.0, 0
    while at < len(typed):
        part = _PART.match(typed, at)
        if part is None:
            break
        seconds += float(part[1]) * _UNITS[part[2]]
        at = part.end()
    if not typed.strip() or at < len(typed.rstrip()):
        raise ValueError(f"{typed!r} is no length of time such as 30d, 12h, 90min or 45s")
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise ValueError(f"{typed!r} is longer than time is counted") from None


def ago(moment: datetime, now: datetime) -> str:
    """`3 min ago`, `in 2 h`."""
    if moment > now:
        return f"in {in_words(moment - now)}"
    return f"{in_words(now - moment)} ago"


def iso(moment: datetime | None) -> str | None:
    """ISO 8601 in UTC."""
    return None if moment is None else moment.astimezone(UTC).isoformat()


def written(moment: datetime, utc: bool) -> str:
    """A moment in the local zone, with its offset, or in UTC."""
    if not utc:
        try:
            return f"{moment.astimezone():%Y-%m-%d %H:%M:%S %z}"
        except (OverflowError, OSError, ValueError):  # at the ends of the calendar
            pass
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def size(count: int) -> str:
    """Bytes, in the unit that suits them."""
    amount, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        del units[0]
    exact = units[0] == "B" or amount >= 10
    return f"{amount:.0f} {units[0]}" if exact else f"{amount:.1f} {units[0]}"


def many(count: int, one: str, several: str = "") -> str:
    """`1 record`, `3 records`."""
    return f"{count} {one if count == 1 else several or one + 's'}"
