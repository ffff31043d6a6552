"""The step runner: an ordinary `async` function whose effects are named steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeAlias, TypeVar

from .checks import check_aware, check_limit, check_step_key, check_text
from .durations import check_duration, check_timedelta, now_utc
from .interfaces import Checkpointer, Effect
from .outcomes import (
    Blocked,
    Completed,
    InputNeeded,
    MessageNeeded,
    ScheduledWakeup,
    Sleeping,
    Suspended,
    Swallowed,
    outcome_of,
)
from .settling import settle
from .signals import Fenced, Interruption
from .underway import Reached
from .values import INBOX, LEASE, Entry, Pass, inbox_position, refuse_assignment, shown

__all__ = [
    "Blocked",
    "Completed",
    "Extend",
    "InputNeeded",
    "MessageNeeded",
    "Outcome",
    "Parse",
    "Run",
    "ScheduledWakeup",
    "Sleeping",
    "StepKey",
    "Suspended",
    "Swallowed",
    "extending",
    "now_utc",
    "parse_bound",
    "parse_deadline",
    "resume",
]

T = TypeVar("T")

StepKey: TypeAlias = str
"""A step's name: unique within a pass, and outside the inbox space (C18)."""

Parse: TypeAlias = Callable[[object], T]
"""From what is stored to what the body wants; called on every pass, so it has no effects."""

Extend: TypeAlias = Callable[[Pass, timedelta], Awaitable[bool]]
"""Keeps a claim for that long from now; `False` when it is no longer this pass's (C7)."""

Outcome: TypeAlias = Completed[T] | Sleeping | Blocked
"""How a pass ended that raised nothing."""


@dataclass(frozen=True, slots=True)
class Run(Generic[Effect]):
    """One pass over a workflow: what its body calls to take steps and to wait.

    `recorded` is what the store held when the pass began. `claimed` are the step names this
    pass has used, `reached` the suspensions it came to; both are the runner's own.
    """

    holder: Pass
    checkpointer: Checkpointer[Effect]
    recorded: Mapping[str, object]
    extend: Extend
    now: Callable[[], datetime] = now_utc
    claimed: set[str] = field(default_factory=set)
    reached: list[Suspended] = field(default_factory=list)

    @property
    def workflow(self) -> str:
        """The id of the workflow this is a pass over."""
        return self.holder.workflow

    async def step(
        self,
        key: StepKey,
        effect: Callable[[], Awaitable[object]],
        parse: Parse[T],
        *,
        within: timedelta | None = None,
    ) -> T:
        """`parse` of what is recorded under `key`, running `effect` and recording it if nothing is.

        At least once: a crash after `effect` and before its record runs it again. Once it has
        returned, its record is written even if the caller is cancelled meanwhile. `within`
        stretches the claim before the effect runs; refused, it raises `Fenced`, as does a
        record by a superseded pass.
        """
        self._begin(key, effect, parse, within)
        if key in self.recorded:
            return parse(self.recorded[key])
        with self._under_way(key) as recorded:
            await self._stretch(within)
            value = await effect()
            settled = await settle(lambda: self.checkpointer.record(self.holder, key, value))
            if settled.value is not None:
                recorded()
        return parse(settled.result().value)

    async def transact(
        self,
        key: StepKey,
        effect: Effect,
        parse: Parse[T],
        *,
        within: timedelta | None = None,
    ) -> T:
        """As `step`, `effect` and record committed together by the store: exactly once (C12)."""
        self._begin(key, effect, parse, within)
        if key in self.recorded:
            return parse(self.recorded[key])
        with self._under_way(key) as recorded:
            await self._stretch(within)
            stored = await self.checkpointer.transact(self.holder, key, effect)
            recorded()
        return parse(stored)

    async def sleep(self, key: StepKey, duration: timedelta) -> None:
        """Wait until `duration` after the first pass got here, across restarts.

        The *deadline* is recorded, computed in UTC: 24 hours are 24 hours across a clock
        change. Zero or less records and passes at once. `OverflowError` naming the duration
        where the deadline is beyond what `datetime` holds.
        """
        check_timedelta("duration", duration)
        self.claim(key)
        now = self._now()
        if key in self.recorded:
            due = parse_deadline(key, self.recorded[key])
            if due > now:
                raise self.note(ScheduledWakeup(key, due))
            return
        try:
            deadline = (now + max(duration, timedelta(0))).isoformat()
        except OverflowError:
            raise OverflowError(
                f"step {shown(key)} cannot sleep for {duration!r}: no datetime is that late"
            ) from None
        with self._under_way(key) as recorded:
            settled = await settle(lambda: self.checkpointer.record(self.holder, key, deadline))
            if settled.value is not None:
                recorded()
        suspension = None
        if settled.value is not None:
            due = parse_deadline(key, settled.value.value)
            suspension = self.note(ScheduledWakeup(key, due)) if due > now else None
        settled.result()
        if suspension is not None:
            raise suspension

    async def awaiting(self, key: StepKey, parse: Parse[T]) -> T:
        """The value someone supplied under `key`; suspends until there is one."""
        self.claim(key)
        if key not in self.recorded:
            raise self.note(InputNeeded(key))
        return parse(self.recorded[key])

    async def receive(
        self, key: StepKey, *, after: str | None = None, limit: int | None = None
    ) -> tuple[Entry, ...]:
        """Messages past the cursor `after`, at most `limit`; suspends while there are none.

        Records the last key taken, so that a replay returns the same messages. The next
        `receive` goes on from the last entry's `key`.
        """
        return await self._taken(key, after, limit, or_suspend=True)

    async def pending(
        self, key: StepKey, *, after: str | None = None, limit: int | None = None
    ) -> tuple[Entry, ...]:
        """As `receive` without waiting: what is there now, possibly nothing, on every replay."""
        return await self._taken(key, after, limit, or_suspend=False)

    def claim(self, key: StepKey) -> None:
        """Reserve a step name for this pass.

        `ValueError` for one already used in it, one in the inbox space (C18), or one that
        UTF-8 cannot hold; `TypeError` for what is not text.
        """
        check_step_key(key)
        if key in self.claimed:
            raise ValueError(f"step {shown(key)} is used twice in one pass")
        self.claimed.add(key)

    def note(self, suspension: Suspended) -> Suspended:
        """Write a suspension down and return it to be raised, for waits of one's own."""
        self.reached.append(suspension)
        return suspension

    def _now(self) -> datetime:
        now = self.now()
        check_aware("now", now)
        return now.astimezone(UTC)

    def _begin(self, key: StepKey, effect: object, parse: object, within: timedelta | None) -> None:
        """Refuse what would fail after the effect has run, and reserve the step's name."""
        for name, what in (("effect", effect), ("parse", parse)):
            if not callable(what):
                raise TypeError(f"step {shown(key)}: {name} must be callable, not {shown(what)}")
        if within is not None:
            check_duration("within", within)
        self.claim(key)

    def _under_way(self, key: StepKey) -> AbstractContextManager[Callable[[], None]]:
        """Around a step's effect and record, and what to call once it is on record.

        For a run that no `resume` made it does nothing.
        """
        if isinstance(self.reached, Reached):
            return self.reached.step(self.holder, key)
        return nullcontext(_nobody_is_told)

    async def _stretch(self, within: timedelta | None) -> None:
        if within is not None and not await self.extend(self.holder, within):
            raise Fenced(
                f"workflow {shown(self.workflow)} is no longer this pass's: it gets no more time",
                workflow=self.workflow,
                token=self.holder.token,
            )

    async def _taken(
        self, key: StepKey, after: str | None, limit: int | None, *, or_suspend: bool
    ) -> tuple[Entry, ...]:
        if limit is not None:
            check_limit(limit)
        if after is not None:
            check_text("after", after)
        self.claim(key)
        past = sorted(name for name in self.recorded if _follows(name, after))
        if key in self.recorded:
            bound = parse_bound(key, self.recorded[key])
        elif not past and or_suspend:
            raise self.note(MessageNeeded(key))
        else:
            last = past[:limit][-1] if past else after
            with self._under_way(key) as recorded:
                stored = await self.checkpointer.record(self.holder, key, last)
                recorded()
            bound = parse_bound(key, stored.value)
        return tuple(
            Entry(name, self.recorded[name]) for name in past if bound is not None and name <= bound
        )


Run.__setattr__ = refuse_assignment  # type: ignore[method-assign]


def _nobody_is_told() -> None:
    pass


def _follows(name: str, after: str | None) -> bool:
    """Whether `name` is a message past the cursor; what no store numbered is none (C18)."""
    return (
        name.startswith(INBOX)
        and inbox_position(name) is not None
        and (after is None or name > after)
    )


def parse_deadline(key: StepKey, recorded: object) -> datetime:
    """The deadline a `sleep` recorded, in UTC; `TypeError` for anything it did not write."""
    if isinstance(recorded, str):
        with suppress(ValueError, OverflowError):
            due = datetime.fromisoformat(recorded)
            if due.utcoffset() is not None:
                return due.astimezone(UTC)
    raise TypeError(f"step {shown(key)} holds {shown(recorded)}, which is no recorded deadline")


def parse_bound(key: StepKey, recorded: object) -> str | None:
    """The cursor an inbox read recorded; `TypeError` for anything it did not write."""
    if recorded is None or isinstance(recorded, str):
        return recorded
    raise TypeError(f"step {shown(key)} holds {shown(recorded)}, which is no recorded inbox cursor")


def extending(
    checkpointer: Checkpointer[Effect],
    granted: timedelta | None = None,
    alive: timedelta | None = None,
    now: Callable[[], datetime] = now_utc,
) -> Extend:
    """An `Extend` that buys claim time from the store, and only when it must.

    The round trip is skipped while what was granted (`granted`, from now on) still covers the
    request with one liveness window (`alive`, by default `LEASE`) to spare. With nothing
    known it always buys the first.
    """
    window = (LEASE if alive is None else alive).total_seconds()
    bought_at = now()
    covered = None if granted is None else granted.total_seconds()
    buyer: Pass | None = None

    async def extend(holder: Pass, within: timedelta) -> bool:
        nonlocal bought_at, covered, buyer
        if buyer is not None and holder != buyer:
            covered = None  # what was bought for one pass is nothing to another
        buyer = holder
        moment = now()
        elapsed = (moment - bought_at).total_seconds()
        wanted = within.total_seconds()
        if covered is not None and 0 <= elapsed <= covered - wanted - window:
            return True
        if not await checkpointer.extend(holder, within, timedelta(seconds=window)):
            return False
        if covered is None or elapsed < 0:  # a clock set back tells nothing of what is left
            covered = wanted
        covered = max(wanted, covered - max(elapsed, 0))
        bought_at = moment
        return True

    return extend


async def resume(
    holder: Pass,
    checkpointer: Checkpointer[Effect],
    body: Callable[[Run[Effect]], Awaitable[T]],
    *,
    extend: Extend | None = None,
    now: Callable[[], datetime] = now_utc,
) -> Outcome[T]:
    """Run `body` from the top over what is recorded, and say how the pass ended.

    `Completed`, or `Sleeping`, or `Blocked`: a suspension counts once it was *reached*, even if
    its branch was cancelled or its exception captured. Whatever else the body raises
    propagates; a lost claim inside an exception group comes out bare, and a group's failures
    without its suspensions. `Swallowed` when the body returned past a suspension, `TypeError`
    for a suspension of no known kind.
    """
    recorded = await checkpointer.load(holder.workflow)
    buy = extend or extending(checkpointer, now=now)
    return await resume_from(recorded, holder, checkpointer, body, extend=buy, now=now)


async def resume_from(
    recorded: Mapping[str, object],
    holder: Pass,
    checkpointer: Checkpointer[Effect],
    body: Callable[[Run[Effect]], Awaitable[T]],
    *,
    extend: Extend,
    now: Callable[[], datetime],
    on_step: Callable[[str, float], None] | None = None,
) -> Outcome[T]:
    """`resume` from records that are loaded already; `on_step` is told of each new record."""
    reached = Reached(on_step)
    run = Run(holder, checkpointer, recorded, extend, now, reached=reached)
    try:
        async with reached:
            value = await body(run)
    except Suspended as suspension:
        return outcome_of([*reached, suspension])
    except BaseExceptionGroup as group:
        _raise_beyond_suspensions(group)
        return outcome_of([*reached, *_leaves(group)])
    if reached:
        raise Swallowed(tuple(sorted({suspension.key for suspension in reached})))
    return Completed(value)


def _raise_beyond_suspensions(group: BaseExceptionGroup[BaseException]) -> None:
    """Raise what a group holds besides suspensions: a lost claim bare, failures as a group."""
    _, failures = group.split(Suspended)
    if failures is None:
        return
    lost, _ = failures.split(Interruption)
    if lost is not None:
        raise _leaves(lost)[0] from group
    raise failures


def _leaves(group: BaseExceptionGroup[T]) -> list[T]:  # type: ignore[type-var]
    leaves: list[T] = []
    for one in group.exceptions:
        leaves.extend(_leaves(one) if isinstance(one, BaseExceptionGroup) else [one])
    return leaves
