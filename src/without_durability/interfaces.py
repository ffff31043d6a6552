"""The contract: what a checkpointer, a scheduler and a durable promise, clause by clause.

The clauses are numbered (C1…, S1…, D1…) and stated here once; code, tests and documents cite
them. Durations are `timedelta`, moments timezone-aware `datetime`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Generic, Never, Protocol

from .checks import check_step_key
from .durations import check_duration
from .signals import Contended, Fenced, Interruption
from .values import (
    BUDGET,
    INBOX,
    INBOX_DIGITS,
    LEASE,
    Delivery,
    Ended,
    Entry,
    Pass,
    Recorded,
    Started,
    State,
    Written,
    inbox_key,
    refuse_assignment,
    shown,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar
else:
    from typing import TypeVar

__all__ = [
    "BUDGET",
    "INBOX",
    "INBOX_DIGITS",
    "LEASE",
    "Checkpointer",
    "Contended",
    "Delivery",
    "Durable",
    "Ended",
    "Entry",
    "Fenced",
    "Interruption",
    "Pass",
    "PassDurable",
    "PassesDurable",
    "Recorded",
    "Scheduler",
    "SplitDurable",
    "Started",
    "Written",
    "check_duration",
    "claimed",
    "inbox_key",
]

if TYPE_CHECKING or sys.version_info >= (3, 13):
    Effect = TypeVar("Effect", contravariant=True, default=Never)
else:
    Effect = TypeVar("Effect", contravariant=True)


class Checkpointer(Protocol[Effect]):
    """Keeps each workflow's records, and who may write them now.

    `Effect` is what `transact` can commit along with a record. Every value crosses the store's
    codec in both directions (C16), and what cannot be stored is refused, naming the workflow,
    the key and the type, before an effect runs where that can be known (C19). A workflow id is
    any string UTF-8 can hold; anything else is a `TypeError` or `ValueError`.
    """

    async def load(self, workflow: str) -> dict[str, object]:
        """Every record, in the order each key was *first* written; `{}` if there is none (C1).

        A losing write moves neither value nor position. `ValueError` naming workflow and key
        for a stored text that no longer decodes.
        """
        ...

    async def history(self, workflow: str) -> dict[str, Written]:
        """As `load`, each value with the store's own moment of the winning write (C2)."""
        ...

    async def claim(self, workflow: str, budget: timedelta, alive: timedelta) -> Pass | None:
        """The one live pass of the workflow, or `None` while another holds it (C3).

        Tokens strictly increase per workflow, across releases, lapses and discards, and in a
        store that outlives its process they never repeat, not even after a restore.

        The claim lapses at the *earlier* of `alive` after the holder's last sign of life and
        `budget` after it was granted or last extended (C4). `claim`, `extend`, `renew`,
        `record` and `transact` are signs of life; none carries a claim past its budget or past
        a `release` (C8). A claim granted to a caller cancelled meanwhile is given back (C17).
        """
        ...

    async def extend(self, holder: Pass, budget: timedelta, alive: timedelta) -> bool:
        """Grant `budget` from now, as a sign of life worth `alive` (C5).

        It never brings a granted budget forward, and works on a claim that lapsed but that
        nobody else took. `False` when `holder` is not the newest (C7) or has released (C8).
        """
        ...

    async def renew(self, holder: Pass, alive: timedelta) -> bool:
        """A sign of life worth `alive` and nothing more (C6).

        `False` once the budget has run out, when `holder` is not the newest (C7), or after
        its own `release` (C8).
        """
        ...

    async def record(self, holder: Pass, key: str, value: object) -> Recorded:
        """Write `value` under `key` unless the key is recorded; what is stored, either way (C9).

        Raises `Fenced` when `holder` is not exactly the newest, which renews nobody (C10), and
        `ValueError` for a key in the `INBOX` space (C18). Durable on return (C11).
        """
        ...

    async def transact(self, holder: Pass, key: str, effect: Effect) -> object:
        """Run `effect` and record its result together or not at all, at most once ever (C12).

        A recorded key returns its value without running anything; the fence is checked before
        the effect runs. Raises as `record` does, and whatever the effect raises. Durable on
        return (C11).
        """
        ...

    async def supply(self, workflow: str, key: str, value: object) -> object:
        """First writer wins, no claim needed; returns what is stored (C13). Durable (C11).

        A key in the `INBOX` space must be `inbox_key(n)` with 0 <= n < 2**62 (C18).
        """
        ...

    async def append(self, workflow: str, value: object) -> Entry:
        """File `value` under a key the *store* assigns in the `INBOX` space (C13).

        Keys are distinct for concurrent appends and sort as text in append order, after every
        well-formed inbox key the workflow already holds. Durable on return (C11).
        """
        ...

    async def discard(self, workflow: str) -> int:
        """Remove every record and raise the fence; how many records there were (C14).

        A live pass finds its next write `Fenced`; the workflow is claimable at once. One that
        was never claimed gets no claim row from this.
        """
        ...

    async def release(self, holder: Pass) -> None:
        """Let the workflow be claimed again at once; the token stays (C15).

        Does nothing when `holder` is no longer the newest.
        """
        ...


class Scheduler(Protocol):
    """Keeps when each workflow should run next.

    A wakeup is never lost (S1): what was made ready is delivered, even if the worker holding
    it dies, and even if the wakeup arrives while a pass on that workflow is running. One
    workflow may be delivered to two workers: exclusion is `Checkpointer.claim`'s job.

    A scheduler may also offer `async holds(delivery) -> bool`, whether the delivery is still
    out under its receipt, and `permanent(error) -> bool`, whether a store error will not go
    away by itself; `work` uses each where it is offered.
    """

    @property
    def lease(self) -> timedelta:
        """How long a delivered workflow is invisible to others."""
        ...

    async def prepare(self) -> None:
        """Make the store fit for use; as often as one likes, from every process."""
        ...

    async def make_ready(self, workflow: str) -> None:
        """Deliver the workflow soon. What is ready already never becomes later (S10)."""
        ...

    async def wake_at(self, delivery: Delivery, when: datetime) -> None:
        """Answer for `delivery` and set the next wakeup in one step (S4).

        Never overwrites a wakeup that arrived since the delivery was taken, and never revives
        a cancelled workflow. `ValueError` for a naive moment.
        """
        ...

    async def wake_due(self, now: datetime) -> tuple[str, ...]:
        """Move every due sleeper and report it, each in one durable step (S7).

        A store whose due rows are simply visible returns `()`.
        """
        ...

    async def next_ready(self, within: timedelta) -> Delivery | None:
        """One delivery, waiting up to `within` for it, or `None` (S2).

        What was made ready before the call is found even with `within` zero (S11). A delivery
        taken for a caller that was cancelled meanwhile becomes visible at once (S9).
        """
        ...

    async def reclaim(self, idle: timedelta) -> Delivery | None:
        """A delivery whose taker let it lapse and has been silent for `idle`, or `None` (S2)."""
        ...

    async def extend(self, delivery: Delivery, within: timedelta) -> Delivery:
        """Keep a delivery its taker's for `within` from now; the delivery to use next (S5).

        For one no longer held it returns its argument, silently.
        """
        ...

    async def cancel(self, workflow: str) -> None:
        """Remove every wakeup: ready, sleeping, or out with a worker (S6)."""
        ...

    async def done(self, delivery: Delivery) -> None:
        """Remove the wakeup its delivery names and nothing newer (S3).

        Answering twice, or for a delivery no longer held, is silent.
        """
        ...


class Durable(Protocol[Effect]):
    """A checkpointer and a scheduler, and the calls that touch both.

    One commit where both are one datastore; otherwise ordered so that a crash in between is
    recoverable by asking again (D4).
    """

    @property
    def checkpointer(self) -> Checkpointer[Effect]: ...

    @property
    def scheduler(self) -> Scheduler: ...

    async def arrive(self, workflow: str, key: str, value: object) -> object:
        """`supply` and make ready (D1); what is stored. The inbox space is refused (C18)."""
        ...

    async def deliver(self, workflow: str, value: object) -> Entry:
        """`append` and make ready (D2)."""
        ...

    async def delete(self, workflow: str) -> int:
        """`cancel` and `discard`; how many records there were (D3).

        Cancels in its own scheduler's namespace: a wakeup in another starts the id afresh.
        """
        ...


class PassDurable(Durable[Effect], Protocol[Effect]):
    """A durable over one datastore that starts and ends whole passes, each in one commit.

    It is optional: `work` uses these where its durable offers them, and `claim`, `holds`,
    `release`, `done` and `wake_at` where it does not. One that keeps a ledger writes it here
    (`without_durability.ledger`, L3 to L5). A wrapper that changes what the single calls do must
    not pass these on.
    """

    async def start_pass(
        self, delivery: Delivery, budget: timedelta, attempts: int | None = None
    ) -> Started:
        """Claim the workflow of a delivery for `budget`, alive for the lease, to run a pass.

        No pass starts, and `over` says so, on a delivery that is no longer held, over a workflow
        that was cancelled, or after `attempts` passes without an orderly end (L3). What was granted
        to a caller that was cancelled meanwhile is given back (C17).
        """
        ...

    async def end_pass(self, holder: Pass, delivery: Delivery, ended: Ended) -> State | None:
        """`release`, and the answer: `wake_at` where `ended` names a moment, else `done`.

        What it tells of the workflow counts while `holder` is the newest (L4): where the workflow
        stands then, which is `ready` if something arrived meanwhile; else `None`.
        """
        ...


class PassesDurable(PassDurable[Effect], Protocol[Effect]):
    """A `PassDurable` that also takes deliveries, many at a time, and starts their passes.

    Due sleepers and abandoned deliveries become visible in it by themselves: `work` asks it for
    no `wake_due` and no `reclaim`.
    """

    async def start_passes(
        self, limit: int, within: timedelta, budget: timedelta, attempts: int | None = None
    ) -> Sequence[Started]:
        """Up to `limit` deliveries, each as `start_pass` answers; waits up to `within` for one.

        What was taken for a caller that was cancelled meanwhile is given back (C17, S9).
        """
        ...


@dataclass(frozen=True, slots=True)
class SplitDurable(Generic[Effect]):
    """A `Durable` over two datastores: record before queueing, cancel before discarding (D4)."""

    checkpointer: Checkpointer[Effect]
    scheduler: Scheduler

    async def arrive(self, workflow: str, key: str, value: object) -> object:
        check_step_key(key)
        stored = await self.checkpointer.supply(workflow, key, value)
        await self.scheduler.make_ready(workflow)
        return stored

    async def deliver(self, workflow: str, value: object) -> Entry:
        entry = await self.checkpointer.append(workflow, value)
        await self.scheduler.make_ready(workflow)
        return entry

    async def delete(self, workflow: str) -> int:
        await self.scheduler.cancel(workflow)
        return await self.checkpointer.discard(workflow)


SplitDurable.__setattr__ = refuse_assignment  # type: ignore[method-assign]


async def claimed(
    checkpointer: Checkpointer[Effect],
    workflow: str,
    budget: timedelta = BUDGET,
    alive: timedelta = LEASE,
) -> Pass:
    """Claim the workflow, or raise `Contended` while another pass holds it (C3)."""
    holder = await checkpointer.claim(workflow, budget, alive)
    if holder is None:
        raise Contended(f"workflow {shown(workflow)} is held by another pass", workflow=workflow)
    return holder
