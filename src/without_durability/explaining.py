"""One plain sentence about a workflow (L15)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from .ledger import Failure, Status, due_of
from .values import shown

__all__ = ["Standing", "Waiting", "explained", "in_utc", "in_words"]


class Standing(NamedTuple):
    """What a workflow's claim and its queue row say at a moment, beside its row in the ledger.

    `visible_at` is when it is delivered next, `None` where nothing is queued; `taken` says that it
    is out with a worker until then. `token` is that of the pass that holds it, if one does:
    `alive_until` unless more is heard of it, and `held_until` at the most.
    """

    visible_at: datetime | None = None
    taken: bool = False
    token: int | None = None
    alive_until: datetime | None = None
    held_until: datetime | None = None


class Waiting(NamedTuple):
    """What is queued for a workflow that the ledger has no row of: only the scheduler was told."""

    namespace: str
    visible_at: datetime | None
    taken: bool = False


def in_utc(moment: datetime) -> str:
    """A moment as an operator reads it."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def explained(
    workflow: str,
    status: Status | None,
    standing: Standing | Waiting | None,
    now: datetime,
    moment: Callable[[datetime], str] = in_utc,
) -> str:
    """What the workflow does, waits for, or ended with."""
    if status is None:
        if isinstance(standing, Waiting):
            return f"{shown(workflow)} {_not_started(standing, now, moment)}"
        return f"Nothing is known of workflow {shown(workflow)}: it never arrived or started here."
    assert isinstance(standing, Standing)
    told = _STATES.get(status.state, _unknown)(status, standing, now, moment)
    return f"{shown(workflow)} {_printable(told)}"


def in_words(span: timedelta) -> str:
    """A length of time in its two largest units: `3 d 4 h`, `12 s`."""
    seconds = abs(span.total_seconds())
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part)


_Moment = Callable[[datetime], str]


def _not_started(waiting: Waiting, now: datetime, moment: _Moment) -> str:
    queue = f"in {shown(waiting.namespace)}"
    if waiting.visible_at is None or waiting.taken:
        return f"is queued {queue}, and no pass on it has started yet."
    if waiting.visible_at > now:
        return f"is scheduled {queue} for {moment(waiting.visible_at)}, its first pass."
    waits = in_words(now - waiting.visible_at)
    return f"is queued {queue} for its first pass, and has waited {waits} for a worker to take it."


def _ready(status: Status, standing: Standing, now: datetime, moment: _Moment) -> str:
    failed = f"it failed last with {_short(status.error)}" if status.error else ""
    if standing.token is not None:
        until = ""
        if standing.alive_until is not None and standing.held_until is not None:
            until = (
                f" until {moment(standing.alive_until)} unless it is heard from again, "
                f"and until {moment(standing.held_until)} at the most"
            )
        which = f"attempt {status.attempts}" + (f", {failed}" if failed else "")
        return f"is running: the pass with token {standing.token} holds it{until} ({which})."
    if standing.visible_at is None:
        return (
            "is marked ready and is not in the queue: something else took it out. "
            "A new arrival queues it again."
        )
    if standing.taken and standing.visible_at > now:
        return (
            f"is out with a worker that holds no claim on it, until {moment(standing.visible_at)}: "
            "it was just taken, or its worker is gone and it is delivered again then."
        )
    if standing.visible_at > now:
        when = f"{moment(standing.visible_at)}, in {in_words(standing.visible_at - now)}"
        if failed:
            return f"is tried again at {when}: {failed} (attempt {status.attempts})."
        return f"is due at {when}."
    waits = in_words(now - standing.visible_at)
    after = f"; {failed} (attempt {status.attempts})" if failed else ""
    return (
        f"is queued in {shown(status.namespace)} and has waited {waits} for a worker to take it"
        f"{after}."
    )


def _sleeping(status: Status, standing: Standing, now: datetime, moment: _Moment) -> str:
    due = standing.visible_at or due_of(status.detail)
    key = status.detail.get("key") if isinstance(status.detail, dict) else None
    step = f" in step {shown(key)}" if isinstance(key, str) else ""
    if due is None:
        return f"sleeps{step}."
    if due > now:
        return f"sleeps{step} until {moment(due)}, {in_words(due - now)} from now."
    return f"slept{step} until {moment(due)}, and waits for a worker since {in_words(now - due)}."


def _blocked(status: Status, standing: Standing, now: datetime, moment: _Moment) -> str:
    waits = []
    if status.waiting:
        waits.append(f"for a value under {_listed(status.waiting)} (arrive)")
    if status.listening:
        waits.append(f"for a message at {_listed(status.listening)} (deliver)")
    since = f" since {moment(status.updated_at)}"
    if not waits:
        return (
            f"was at rest{since} when the ledger began: it waits for something, or has completed. "
            "Making it ready tells."
        )
    return f"waits {' and '.join(waits)}{since}."


def _completed(status: Status, standing: Standing, now: datetime, moment: _Moment) -> str:
    lost = ""
    if status.unstored:
        lost = f"; its result, of type {status.unstored}, could not be stored"
    return f"completed at {moment(status.updated_at)}{lost}."


def _failed(status: Status, standing: Standing, now: datetime, moment: _Moment) -> str:
    error = _short(status.error) if status.error else "an error that was not written down"
    return (
        f"was parked at {moment(status.updated_at)} after {_passes(status.attempts)}: {error}. "
        "It runs again after retry, after rewind, or when something arrives for it."
    )


def _cancelled(status: Status, standing: Standing, now: datetime, moment: _Moment) -> str:
    reason = f": {status.reason}" if status.reason else ""
    return f"was cancelled at {moment(status.updated_at)}{reason}."


def _unknown(status: Status, standing: Standing, now: datetime, moment: _Moment) -> str:
    return f"is in state {shown(status.state)}, which this release does not know."


_STATES = {
    "ready": _ready,
    "sleeping": _sleeping,
    "blocked": _blocked,
    "completed": _completed,
    "failed": _failed,
    "cancelled": _cancelled,
}


def _short(error: Failure) -> str:
    """The error in one line."""
    line = " ".join(str(error).split())
    return line if len(line) <= 200 else line[:200] + "…"


def _printable(text: str) -> str:
    """The text with whatever could drive a terminal spelled out."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def _passes(count: int) -> str:
    return "1 pass" if count == 1 else f"{count} passes"


def _listed(keys: Collection[str]) -> str:
    return " or ".join(shown(key) for key in sorted(keys))
