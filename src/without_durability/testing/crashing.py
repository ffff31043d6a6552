"""Running a workflow once for every place where its process could die."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeVar

from ..interfaces import Durable, Effect
from ..ledger import ended, failure_of, raised
from ..outcomes import Blocked, Completed, InputNeeded, MessageNeeded, Sleeping, Suspended
from ..signals import Contended, Fenced
from ..stepwise import Outcome, Run, extending, resume_from
from ..values import INBOX, LEASE, Ended, shown
from .basics import Clock
from .crash_report import RESULT, Crashed, CrashReport, StepReport
from .mortal import TOGETHER, MortalDurable, MortalRun, Process, Seen
from .subject import is_told_to_end

T = TypeVar("T")

SECOND = timedelta(seconds=1)
PAUSE = SECOND
"""After a body that raised, as a worker's first pause."""

_UNDER_ANOTHER_CLOCK = (
    "either the store loses wakeups, or `make` does not give it the clock it was handed, "
    "or the workflow deleted itself, or was cancelled"
)

GRACE = 5.0
"""Seconds of real time in which the body of a dead process must end, once it is cancelled."""


HANG = 60.0
"""Seconds of real time that a pass may take: an effect that never returns hangs for that long."""


class Unfinished(Exception):
    """The workflow does not end; the text says why, and the cause is what its body raised last."""


class Immortal(Unfinished):
    """A body that does not end: nothing that is tried beside it would be true."""


async def crash_everywhere(
    body: Callable[[Run[Effect]], Awaitable[object]],
    make: Callable[[Clock], AbstractAsyncContextManager[Durable[Effect]]],
    *,
    workflow: str = "w",
    answers: Mapping[str, object] = MappingProxyType({}),
    messages: Sequence[object] = (),
    passes: int = 100,
) -> CrashReport:
    """Run the workflow to its end, then once more for every place where its process could die.

    It can die before and after each call of a store, and after each effect before its record. A
    new process then takes over what is left, once the leases are over, and goes on to the end. A
    durable that keeps a ledger is called as workers call it, in either way that it offers, and its
    ledger must know the end.
    `make(clock)` is entered for each run: it opens an empty store under the clock, and is the
    place to set up a new outside world for the effects.

    Sleeps end when the clock has moved to their deadline. `answers` are supplied by their keys,
    and `messages` delivered one by one, when the workflow waits for them. A body that raises is
    tried again, as by a worker.

    Raises `Unfinished` when the run without a crash does not end within `passes` passes, or waits
    for what nobody answers; and when a pass takes a minute of real time, or goes on after its
    process died. What else happens after a crash is never raised, but reported.
    """
    runs = _Runs(body, make, workflow, dict(answers), tuple(messages), passes)
    plain, again = [await runs.without_a_crash(many=many) for many in (False, True)]
    steps = {
        key: StepReport(key, kind, plain.seen.effects[key], "")
        for key, kind in plain.seen.kinds.items()
    }
    unsteady = {what for what, _ in _differences(plain, again)}
    differences = [Crashed("nowhere", (plain.ledger,))] if plain.ledger is not None else []
    crashes = 0
    places = [(False, place) for place in range(len(plain.places))]
    # Between a take and its answer both ways are the same.
    places += ((True, at) for at, name in enumerate(again.places) if name.endswith(TOGETHER))
    for many, place in places:
        ended = await runs.dying_at(place, many=many)
        if ended.crash is None:
            continue
        crashes += 1
        for key, kind in ended.seen.kinds.items():
            count = ended.seen.effects[key]
            if key not in steps or steps[key].runs < count:
                steps[key] = StepReport(key, kind, count, ended.crash)
        changed = [text for what, text in _differences(plain, ended) if what not in unsteady]
        if ended.ledger is not None:
            changed.append(ended.ledger)
        if changed:
            differences.append(Crashed(ended.crash, tuple(changed)))
    return CrashReport(
        plain.result,
        plain.records,
        crashes,
        tuple(steps.values()),
        tuple(differences),
        tuple(sorted(unsteady)),
    )


@dataclass(slots=True)
class _Ended:
    """What a run came to, and the crash on the way there."""

    many: bool = False
    """Whether deliveries are taken and their passes started at one go, where that is offered."""
    seen: Seen = field(default_factory=Seen)
    places: list[str] = field(default_factory=list)
    crash: str | None = None
    result: object = None
    records: dict[str, object] = field(default_factory=dict)
    ledger: str | None = None
    """What the ledger says of the end, where it is not that."""
    unfinished: str | None = None


@dataclass(slots=True)
class _Left:
    """What the next process may find: how the last pass ended, and what it waited for."""

    outcome: Outcome[object] | None = None
    reached: tuple[Suspended, ...] = ()
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Runs:
    body: Callable[[Run[Any]], Awaitable[object]]
    make: Callable[[Clock], AbstractAsyncContextManager[Durable[Any]]]
    workflow: str
    answers: dict[str, object]
    messages: tuple[object, ...]
    passes: int

    async def without_a_crash(self, *, many: bool) -> _Ended:
        ended = _Ended(many)
        await self._run(ended, None)
        return ended

    async def dying_at(self, place: int, *, many: bool) -> _Ended:
        ended = _Ended(many)
        try:
            await self._run(ended, place)
        except Immortal:
            raise
        except Unfinished as unfinished:
            ended.unfinished = str(unfinished)
        return ended

    async def _run(self, ended: _Ended, dying_at: int | None) -> None:
        clock = Clock()
        async with self.make(clock) as durable:
            await durable.scheduler.prepare()
            await durable.scheduler.make_ready(self.workflow)
            process = Process(ended.seen, dying_at)
            mortal = MortalDurable(durable, process, many=ended.many)
            left, answered = _Left(), _Answered(self, durable)
            passes = 0
            while passes < self.passes:
                made = await self._lived(process, mortal, clock, left)
                if process.died is not None:
                    ended.crash = process.died
                    process = Process(ended.seen)
                    mortal = MortalDurable(durable, process, many=ended.many)
                    clock.advance(max(durable.scheduler.lease, LEASE) + SECOND)
                elif made:
                    passes += 1
                elif isinstance(left.outcome, Completed):
                    ended.places = process.places
                    ended.result = left.outcome.value
                    ended.records = await self._records(durable, ended.seen)
                    ended.ledger = await self._disagreement(durable)
                    return
                elif not await answered.by(left.reached):
                    _wait(clock, left)
        why = f": {left.error!r}" if left.error is not None else ""
        raise Unfinished(f"it did not end within {self.passes} passes{why}") from left.error

    async def _lived(
        self, process: Process, mortal: MortalDurable, clock: Clock, left: _Left
    ) -> bool:
        """One pass of a process that may die in it; whether there was anything to do."""
        process.task = asyncio.ensure_future(self._passed(process, mortal, clock, left))
        warned = False
        loop = asyncio.get_running_loop()
        until = loop.time() + HANG
        try:
            while not process.task.done():
                await asyncio.wait((process.task,), timeout=GRACE)
                if process.died is None and not process.task.done() and loop.time() >= until:
                    raise Immortal(f"a pass did not end within {HANG:g} s of real time")
                if process.died is not None and not process.task.done():
                    if warned:
                        raise Immortal(
                            f"the process died {process.died}, and its body goes on: let "
                            "cancellations propagate"
                        )
                    warned = process.task.cancel()
        finally:
            process.task.cancel()
        if process.died is None:
            return bool(process.task.result())
        if not process.task.cancelled():
            process.task.exception()  # whatever a dying process raised is nobody's concern
        return False

    async def _passed(
        self, process: Process, mortal: MortalDurable, clock: Clock, left: _Left
    ) -> bool:
        """A delivery's way through a worker, from its take to its answer."""
        started = await mortal.start(self.workflow, clock.now())
        if started is None:
            return False
        if started.delivery.workflow != self.workflow or started.over is not None:
            return True  # an effect's own doing
        holder = started.holder
        if holder is None:
            left.error = Contended(
                "the claim of a dead process does not lapse: does `make` give "
                "the store the clock it was handed?",
                workflow=self.workflow,
            )
            await mortal.end(started, Ended(clock.now() + PAUSE))
            return True
        runs: list[MortalRun] = []
        store = mortal.checkpointer

        async def body(run: Run[Any]) -> object:
            runs.append(MortalRun.over(run, process))
            return await self.body(runs[0])

        try:
            recorded = started.recorded
            if recorded is None:
                recorded = await store.load(self.workflow)
            buy = extending(store, now=clock.now)
            left.outcome = await resume_from(
                recorded, holder, store, body, extend=buy, now=clock.now
            )
            how = ended(left.outcome)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if process.died is not None or _was_cancelled(error):
                raise
            due = clock.now() + PAUSE
            left.outcome, left.error = Sleeping("", due), error
            lost = isinstance(error, (Fenced, Contended))
            how = Ended(due) if lost else raised(failure_of(error), due)
        left.reached = tuple(runs[0].reached) if runs else ()
        await mortal.end(started, how)
        return True

    async def _records(self, durable: Durable[Any], seen: Seen) -> dict[str, object]:
        """What is recorded, as far as two runs can be compared.

        A deadline follows the clock, and a message's number what else was written: they stand as
        what they are.
        """
        loaded = await durable.checkpointer.load(self.workflow)
        inbox = sorted(key for key in loaded if key.startswith(INBOX))
        names = {key: f"message {number}" for number, key in enumerate(inbox, 1)}
        records: dict[str, object] = {}
        for key, value in loaded.items():
            kind = seen.kinds.get(key)
            if kind == "sleep":
                value = "a deadline"
            elif kind in ("receive", "pending") and isinstance(value, str):
                value = names.get(value, value)
            records[names.get(key, key)] = value
        return records

    async def _disagreement(self, durable: Any) -> str | None:
        """What a ledger says of a workflow that has completed, unless it says just that."""
        if not all(hasattr(durable, call) for call in ("start_pass", "end_pass", "status")):
            return None
        status = await durable.status(self.workflow)
        if status is None:
            return "the ledger knows nothing of it"
        if (status.state, status.attempts) == ("completed", 0):
            return None
        counted = f" with {status.attempts} attempts" if status.attempts else ""
        return f"the ledger says that it is {status.state}{counted}"


@dataclass(slots=True)
class _Answered:
    """The world outside, which answers what the workflow waits for; it does not die."""

    runs: _Runs
    durable: Durable[Any]
    keys: set[str] = field(default_factory=set)
    messages: int = 0

    async def by(self, reached: tuple[Suspended, ...]) -> bool:
        """Whether anything was there to answer with."""
        before = len(self.keys) + self.messages
        for wait in reached:
            if isinstance(wait, InputNeeded) and wait.key in self.runs.answers.keys() - self.keys:
                self.keys.add(wait.key)
                answer = self.runs.answers[wait.key]
                await self.durable.arrive(self.runs.workflow, wait.key, answer)
        listening = any(isinstance(wait, MessageNeeded) for wait in reached)
        if listening and self.messages < len(self.runs.messages):
            self.messages += 1
            message = self.runs.messages[self.messages - 1]
            await self.durable.deliver(self.runs.workflow, message)
        return len(self.keys) + self.messages > before


def _wait(clock: Clock, left: _Left) -> None:
    """Until the workflow's deadline; `Unfinished` when there is nothing to wait for."""
    if isinstance(left.outcome, Sleeping) and left.outcome.due > clock.now():
        clock.advance(left.outcome.due - clock.now())
    elif isinstance(left.outcome, Blocked):
        keys = ", ".join(map(shown, left.outcome.keys))
        raise Unfinished(f"it waits for {keys}, and neither answers nor messages hold more")
    else:
        why = f": {left.error!r}" if left.error is not None else ""
        raise Unfinished(
            f"nothing is ready although it has not ended: {_UNDER_ANOTHER_CLOCK}{why}"
        ) from left.error


def _was_cancelled(error: BaseException) -> bool:
    """Whether somebody cancelled this pass; a body can raise the same of its own accord."""
    return isinstance(error, asyncio.CancelledError) and is_told_to_end()


def _unlike(one: object, other: object) -> bool:
    """Whether two results differ, if only in type; so do two that cannot be compared."""
    try:
        return type(one) is not type(other) or bool(one != other)
    except Exception:
        return True


def _differences(plain: _Ended, other: _Ended) -> list[tuple[str, str]]:
    """What came out differently, and the sentence about it."""
    if other.unfinished is not None:
        return [("the end", other.unfinished)]
    differences = []
    if _unlike(other.result, plain.result):
        differences.append(
            (RESULT, f"the result was {shown(other.result)}, not {shown(plain.result)}")
        )
    for key in {**plain.records, **other.records}:
        if key not in other.records:
            differences.append((key, f"nothing was recorded under {shown(key)}"))
        elif key not in plain.records:
            differences.append((key, f"{shown(key)} was recorded, which is not without a crash"))
        elif other.records[key] != plain.records[key]:
            value, expected = shown(other.records[key]), shown(plain.records[key])
            differences.append((key, f"{shown(key)} held {value}, not {expected}"))
    return differences
