"""A clock that moves when told to, and a `Run` without a worker around it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from ..checks import check_aware
from ..interfaces import Checkpointer, Effect
from ..stepwise import Run, extending
from ..values import Pass


class Clock:
    """The movable clock of every store: pass `clock.seconds` as its clock, `clock.now` as now.

    Starts at `start` (aware) and stands still until `advance`, which may be negative.
    """

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        check_aware("start", start)
        self._now = start.astimezone(UTC)

    def seconds(self) -> float:
        """The moment as Unix seconds."""
        return self._now.timestamp()

    def now(self) -> datetime:
        """The moment, aware, in UTC."""
        return self._now

    def advance(self, duration: timedelta) -> None:
        """Move by `duration`."""
        self._now += duration


def passing(
    holder: Pass,
    checkpointer: Checkpointer[Effect],
    recorded: Mapping[str, object] | None = None,
) -> Run[Effect]:
    """A `Run` as `resume` builds it, for testing one method over what is `recorded`."""
    return Run(holder, checkpointer, {} if recorded is None else recorded, extending(checkpointer))
