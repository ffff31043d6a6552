"""The ledger: where every workflow stands, and the calls that list, explain and steer them.

The clauses are numbered L1… and stated once, at the `Ledger` protocol.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, get_args

from .checks import check_count, check_limit, check_text
from .codec import Encoded
from .durations import check_duration
from .interfaces import Effect, PassDurable
from .outcomes import Blocked, Completed, Sleeping
from .retrying import CAP, FACTOR, FIRST, JITTER, pause_after
from .values import COMPLETED, PAGE, SWEPT, Ended, State, message_of, said, shown

__all__ = [
    "FINISHED",
    "STATES",
    "Failure",
    "Ledger",
    "Page",
    "Retry",
    "State",
    "Status",
    "WorkflowCancelled",
    "WorkflowFailed",
]

STATES: tuple[State, ...] = get_args(State)
"""Every state a workflow can be in."""

FINISHED: tuple[State, ...] = ("completed", "failed", "cancelled")
"""The states that no worker takes a workflow out of by itself: what `sweep` may remove."""

logger = logging.getLogger("without_durability.ledger")

_MESSAGE = 2_000
_TRACEBACK = 8_000
"""How many characters of an error's message and of its traceback, from its end, are kept."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as the ledger keeps it: its class's name, its message, its traceback trimmed."""

    type: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(frozen=True, slots=True)
class Status:
    """A workflow's row in the ledger, and what its detail, its claim and its queue row say.

    `attempts` counts the passes started since the last orderly end of one. `running`: a pass holds
    it now. `due` is when it is looked at next, if that lies ahead. `waiting` are the keys and
    `listening` the inbox reads that a blocked one waits at, `result` is what a completed one's body
    returned, `error` the last error of a failed one, or of a ready one that is being retried.
    """

    seq: int
    workflow: str
    namespace: str
    state: State
    detail: object
    attempts: int
    created_at: datetime
    updated_at: datetime
    running: bool = False
    due: datetime | None = None

    @property
    def waiting(self) -> frozenset[str]:
        """The keys that a blocked workflow waits for: `arrive` under one of them goes on."""
        return frozenset(_texts(self._told("blocked", "waiting")))

    @property
    def listening(self) -> frozenset[str]:
        """The steps at which a blocked workflow waits for a message: `deliver` goes on."""
        return frozenset(_texts(self._told("blocked", "listening")))

    @property
    def result(self) -> object:
        """What a completed workflow's body returned; `None` for any other, as for no result."""
        return self._told("completed", "result")

    @property
    def unstored(self) -> str | None:
        """The type of a completed workflow's result, where that could not be stored."""
        told = self._told("completed", "unstored")
        return None if told is None else str(told)

    @property
    def error(self) -> Failure | None:
        """What a failed workflow failed with, and what a ready one failed with last."""
        told = self._told("failed", "error") or self._told("ready", "error")
        if not isinstance(told, Mapping):
            return None
        return Failure(*(str(told.get(fact, "")) for fact in ("type", "message", "traceback")))

    @property
    def reason(self) -> str:
        """Why a cancelled workflow was."""
        return str(self._told("cancelled", "reason") or "")

    def _told(self, state: State, name: str) -> Any:
        if self.state != state or not isinstance(self.detail, Mapping):
            return None
        return self.detail.get(name)


@dataclass(frozen=True, slots=True)
class Page:
    """Workflows in a row, newest first; `next` is the `after` of the page that follows, if any."""

    items: tuple[Status, ...]
    next: int | None


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failing workflow is tried, and the pauses between: then it is parked (L5).

    The pause after the n-th failure is `first` times `factor` to the n-1, at most `cap`, give or
    take the part `jitter` of it. `ValueError` or `TypeError` for values that make no policy.
    """

    attempts: int = 20
    first: timedelta = FIRST
    factor: float = FACTOR
    cap: timedelta = CAP
    jitter: float = JITTER

    def __post_init__(self) -> None:
        check_count("attempts", self.attempts)
        check_duration("first", self.first)
        check_duration("cap", self.cap)
        if not 1 <= self.factor < float("inf"):
            raise ValueError(f"factor must be a number from 1 on, not {self.factor!r}")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter must lie within 0 and 1, not {self.jitter!r}")

    def pause(self, attempt: int) -> timedelta:
        """How long to wait after the failure of the `attempt`-th pass in a row."""
        return pause_after(attempt, self.first, self.cap, self.factor, self.jitter)


class WorkflowFailed(Exception):
    """The workflow failed and was parked; `failure` is what its body raised last."""

    def __init__(self, workflow: str, failure: Failure) -> None:
        super().__init__(f"workflow {shown(workflow)} failed: {failure}")
        self.workflow = workflow
        self.failure = failure

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.workflow, self.failure)


class WorkflowCancelled(Exception):
    """The workflow was cancelled, for `reason`."""

    def __init__(self, workflow: str, reason: str = "") -> None:
        super().__init__(
            f"workflow {shown(workflow)} was cancelled" + (f": {reason}" if reason else "")
        )
        self.workflow = workflow
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.workflow, self.reason)


class Ledger(PassDurable[Effect], Protocol[Effect]):
    """A durable that keeps where each workflow stands, and lets one see and steer it.

    - **L1** `arrive` and `deliver` create a workflow's row, `ready`, or move a sleeping, blocked,
      completed or failed one to `ready`, a failed one with its attempts at 0: in their own commit.
    - **L2** On a cancelled workflow they record and queue nothing: only `retry`, `rewind` and
      `delete` end that.
    - **L3** A pass starts only on a delivery that is still held, over a workflow that is not
      cancelled and has attempts left: its claim and `attempts + 1` are one commit. One whose
      attempts are used up is parked instead, so that a body that kills its process is counted too;
      what arrived before that waits for its `retry`.
    - **L4** An orderly end writes state and detail, attempts 0, answers the delivery and releases
      the claim in one commit, unless the pass is no longer the newest: then it says nothing. What
      was made ready meanwhile stays `ready`.
    - **L5** A body that raised leaves its error in the detail. Below the limit the workflow stays
      `ready` and is due after the policy's pause; at the limit it is `failed`: out of the queue,
      its records kept. A pass that was given back, as by a worker that is stopped, was no attempt.
    - **L6** `status` is the row with `running` and `due`; `None` for an id that has none.
    - **L7** `list` gives the rows that all of its filters fit, newest first, `limit` at a time;
      going on after a page's `next` shows each row that stays once, whatever arrives meanwhile.
    - **L8** `counts` names every state and agrees with `list`.
    - **L9** `retry` makes a failed or cancelled workflow `ready`, its attempts 0; of several at
      once one is answered `True`.
    - **L10** `cancel` stops a workflow that has not completed, for good: no pass starts, and one in
      flight finds its next write `Fenced`. Records and row stay; one that is queued and has no row
      yet gets it.
    - **L11** `rewind` forgets the step `to` and every step recorded after it, keeps what came from
      outside, raises the fence, makes ready, and says how many records went.
    - **L12** `fork` copies the records, those before the step `before` where one is named, to an id
      that nothing is known of, and makes that ready: in one commit.
    - **L13** `sweep` deletes finished workflows whose row has not changed for `older`, the longest
      unchanged first and at most `limit`; claims go with them, and what is queued does not.
    - **L14** `result` waits for the end. An end need not be on the disk yet: after a power cut that
      took it the pass is made again, from its records.
    - **L15** `why` is one sentence for every state.
    - **L16** `delete` removes the row with the rest.

    Ids and namespaces are text as elsewhere. What is unknown answers `None`, `False` or 0.
    """

    async def status(self, workflow: str) -> Status | None:
        """Where the workflow stands; `None` for one that never arrived or started (L6)."""
        ...

    async def list(
        self,
        *,
        state: State | None = None,
        namespace: str | None = None,
        prefix: str | None = None,
        after: int | None = None,
        limit: int = PAGE,
    ) -> Page:
        """A page of workflows, newest first, of a state, a queue, and ids that begin so (L7)."""
        ...

    async def counts(self, namespace: str | None = None) -> dict[State, int]:
        """How many workflows are in each state, in one queue or in all (L8)."""
        ...

    async def why(self, workflow: str) -> str:
        """One plain sentence: what the workflow does, waits for, or ended with (L15)."""
        ...

    async def result(self, workflow: str, *, within: timedelta) -> object:
        """What the body returned, waiting up to `within` for it (L14).

        `WorkflowFailed`, `WorkflowCancelled`, or `TimeoutError` when it has not ended by then, as
        an id that is unknown has not. `TypeError` for a result that could not be stored.
        """
        ...

    async def retry(self, workflow: str) -> bool:
        """Start a failed or cancelled workflow again (L9); whether this call did."""
        ...

    async def cancel(self, workflow: str, reason: str = "") -> bool:
        """Stop a workflow for good and keep its history (L10); whether this call did."""
        ...

    async def rewind(self, workflow: str, to: str) -> int:
        """Forget a step and all after it, and run again from there (L11); the records forgotten.

        `ValueError` for a step that is not recorded.
        """
        ...

    async def fork(self, workflow: str, into: str, *, before: str | None = None) -> int:
        """Start a new workflow from another's records (L12); how many were copied.

        `ValueError` for an `into` that exists and a step `before` that is not recorded.
        """
        ...

    async def sweep(
        self,
        *,
        older: timedelta,
        states: Collection[State] = COMPLETED,
        limit: int = SWEPT,
    ) -> int:
        """Delete what finished long ago (L13); how many workflows went. Ask again until 0.

        `ValueError` for a state that is not one of `FINISHED`.
        """
        ...


def ended(outcome: Completed[Any] | Sleeping | Blocked) -> Ended:
    """An orderly end, as the ledger writes it down (L4)."""
    if isinstance(outcome, Sleeping):
        detail = {"key": outcome.key, "due": outcome.due.isoformat()}
        return Ended(outcome.due, "sleeping", detail, 0)
    if isinstance(outcome, Blocked):
        waits = {"waiting": sorted(outcome.waiting), "listening": sorted(outcome.listening)}
        return Ended(None, "blocked", waits, 0)
    return Ended(None, "completed", None if outcome.value is None else {"result": outcome.value}, 0)


def raised(failure: Failure, due: datetime | None) -> Ended:
    """A body's error: to be tried again when `due`, or parked where there is no such moment."""
    state: State = "ready" if due is not None else "failed"
    told = {"type": failure.type, "message": failure.message, "traceback": failure.traceback}
    return Ended(due, state, {"error": told})


def failure_of(error: BaseException) -> Failure:
    """What the ledger keeps of an error."""
    import traceback

    kind, frames = type(error), error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next  # the runner's own, above the body

    name = kind.__qualname__ if kind.__module__ == "builtins" else _full_name(kind)
    message = message_of(error)
    if message is None:
        message = "(its message could not be made)"
    try:
        trace = "".join(traceback.format_exception(kind, error, frames or error.__traceback__))
    except KeyboardInterrupt:
        raise
    except BaseException:  # the error is asked for its truth, which is its own
        trace = "".join(traceback.format_tb(frames or error.__traceback__))
    if len(message) > _MESSAGE:
        message = message[:_MESSAGE] + "…"
        trace = "".join(traceback.format_tb(frames or error.__traceback__)) + f"{name}: {message}\n"
    if len(trace) > _TRACEBACK:
        trace = "…\n" + trace[-_TRACEBACK:].partition("\n")[2]
    return Failure(_storable(name), _storable(message), _storable(trace))


_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


def used_up(attempts: int) -> Failure:
    """Why a workflow is parked whose last pass never got to say what was wrong with it."""
    return Failure(
        "Unfinished",
        f"{attempts} passes were started and none came to an end: they lost their claim, or ended "
        "with their process, which another workflow may have ended",
    )


def unstored(value: object) -> dict[str, object]:
    """The detail of a workflow that completed with a result that the codec cannot hold."""
    return {"unstored": type(value).__qualname__}


def kept(workflow: str, ended: Ended, encode: Callable[[object], Encoded]) -> Encoded | None:
    """What goes with a state, encoded; what cannot be keeps no workflow from ending (L4).

    Of a result that cannot be its type is kept, and of anything else nothing.
    """
    if ended.detail is None:
        return None
    try:
        return encode(ended.detail)
    except (TypeError, ValueError):
        if ended.state != "completed":
            what = "that workflow %s is %s is kept, and what goes with that cannot be stored"
            logger.warning(what, shown(workflow), ended.state)
            return None
    value = ended.detail.get("result") if isinstance(ended.detail, dict) else ended.detail
    logger.warning(
        "what workflow %s came to, of type %s, cannot be stored and is not kept",
        shown(workflow),
        type(value).__qualname__,
    )
    with suppress(TypeError, ValueError):
        return encode(unstored(value))
    return None


def readable(read: Callable[[], object]) -> object:
    """A detail, or why it cannot be read: one bad row is nobody else's harm."""
    try:
        return read()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return {"unreadable": said(error)}


def outcome(status: Status) -> object:
    """A finished workflow's result, or the error that says it has none (L14)."""
    if status.state == "failed":
        raise WorkflowFailed(status.workflow, status.error or Failure("Error", ""))
    if status.state == "cancelled":
        raise WorkflowCancelled(status.workflow, status.reason)
    told = status.detail if isinstance(status.detail, Mapping) else {}
    if status.unstored is not None:
        raise TypeError(
            f"workflow {shown(status.workflow)} completed with a value of type {status.unstored}, "
            "which could not be stored"
        )
    if "unreadable" in told:
        raise ValueError(
            f"workflow {shown(status.workflow)} completed, and its result cannot be decoded: "
            f"{told['unreadable']}"
        )
    return status.result


def check_states(states: Collection[State]) -> tuple[State, ...]:
    """The states, each once; `ValueError` for one that is not finished."""
    if isinstance(states, str):
        raise TypeError(f"states must be a collection of states, not the text {states!r}")
    for state in states:
        if state not in FINISHED:
            raise ValueError(f"only {', '.join(FINISHED)} workflows are swept, not {state!r}")
    return tuple(dict.fromkeys(states))


def check_listing(
    state: State | None,
    namespace: str | None,
    prefix: str | None,
    after: int | None,
    limit: int,
) -> None:
    """`ValueError` or `TypeError` for filters that no row could be asked about."""
    if state is not None and state not in STATES:
        raise ValueError(f"state must be one of {', '.join(STATES)}, not {state!r}")
    for name, text in (("namespace", namespace), ("prefix", prefix)):
        if text is not None:
            check_text(name, text)
    if after is not None and type(after) is not int:
        raise TypeError(f"after must be a page's next, not {after!r}")
    check_limit(limit)


def due_of(detail: object) -> datetime | None:
    """The moment that a sleeping workflow's detail names, in UTC."""
    told = detail.get("due") if isinstance(detail, Mapping) else None
    try:
        due = datetime.fromisoformat(told) if isinstance(told, str) else None
    except ValueError:
        return None
    return due.astimezone(UTC) if due is not None and due.utcoffset() is not None else None


def _texts(told: object) -> list[str]:
    return [one for one in told if isinstance(one, str)] if isinstance(told, list) else []


def _full_name(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _storable(text: str) -> str:
    """The text with what UTF-8 cannot hold spelled out."""
    return text.encode(errors="backslashreplace").decode()
