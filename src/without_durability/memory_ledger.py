"""The ledger over the in-memory stores, so that a test lists and steers without a file."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from .checks import (
    check_attempts,
    check_aware,
    check_delivery,
    check_limit,
    check_step_key,
    check_text,
)
from .codec import decoded, encoded
from .durations import check_duration, check_wait
from .explaining import Standing, Waiting, explained
from .ledger import (
    FINISHED,
    STATES,
    Page,
    State,
    Status,
    check_listing,
    check_states,
    due_of,
    kept,
    outcome,
    raised,
    readable,
    used_up,
)
from .memory import MemoryCheckpointer, MemoryScheduler, Stored, wake
from .values import (
    COMPLETED,
    INBOX,
    PAGE,
    SWEPT,
    Delivery,
    Ended,
    Entry,
    Pass,
    Started,
    shown,
)

NAMESPACE = "workflow"
"""The one queue of a memory store."""


@dataclass(frozen=True, slots=True)
class MemoryRun:
    """A workflow's row in the ledger; `detail` is encoded, `None` where there is none."""

    seq: int
    workflow: str
    namespace: str
    state: State
    detail: Any
    attempts: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class MemoryDurable:
    """A `Ledger[MemoryEffect]` over a checkpointer and a scheduler in memory.

    Each call is one commit: whatever it may refuse comes before the first change, and nothing is
    awaited in between. `runs` holds the rows by workflow, in the order they were created. Moments
    come from the checkpointer's `now`, claims and leases from the stores' clocks.
    """

    checkpointer: MemoryCheckpointer
    scheduler: MemoryScheduler
    runs: dict[str, MemoryRun] = field(default_factory=dict)
    _awaited: dict[str, set[asyncio.Future[None]]] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )

    # --- arrivals -------------------------------------------------------------------------------

    async def arrive(self, workflow: str, key: str, value: object) -> object:
        check_text("workflow", workflow)
        check_step_key(key)
        store = self.checkpointer
        encoding, _ = encoded(store.codec, workflow, key, value)
        known = store.hashes.get(workflow, {}).get(key)
        answer = decoded(store.codec, workflow, key, known.encoded if known else encoding)
        now = store._moment()
        store._written(workflow, key, encoding, supplied=True)
        self._arrived(workflow, now)
        return answer

    async def deliver(self, workflow: str, value: object) -> Entry:
        check_text("workflow", workflow)
        encoding, back = encoded(self.checkpointer.codec, workflow, INBOX, value)
        now = self.checkpointer._moment()
        entry = Entry(self.checkpointer._filed(workflow, encoding), back)
        self._arrived(workflow, now)
        return entry

    async def delete(self, workflow: str) -> int:
        check_text("workflow", workflow)
        self.scheduler._unqueue(workflow)
        self.checkpointer._raise_fence(workflow)
        self.runs.pop(workflow, None)
        return len(self.checkpointer.hashes.pop(workflow, {}))

    # --- passes ---------------------------------------------------------------------------------

    async def start_pass(
        self, delivery: Delivery, budget: timedelta, attempts: int | None = None
    ) -> Started:
        check_delivery(delivery)
        check_duration("budget", budget)
        check_attempts(attempts)
        workflow = delivery.workflow
        run = self.runs.get(workflow)
        now = self.checkpointer._moment()
        if not self.scheduler._out(delivery):
            return Started(delivery, None, over="gone")
        holder = self.checkpointer._claimed(workflow, budget, self.scheduler.lease)
        if holder is None:
            return Started(delivery, None)
        if run is not None and run.state == "cancelled":
            self.checkpointer._released(holder)
            self.scheduler._answer(delivery, None)
            return Started(delivery, None, over="cancelled")
        if run is not None and _is_spent(run, attempts):
            self.checkpointer._released(holder)
            self.scheduler._answer(delivery, None)
            detail = run.detail
            if detail is None:
                detail = self._kept(workflow, raised(used_up(run.attempts), None))
            self._put(workflow, now, "failed", detail, run.attempts)
            return Started(delivery, None, attempt=run.attempts, over="parked")
        before = run.attempts if run is not None and run.state != "failed" else 0
        self._put(workflow, now, "ready", _last_error(run), before + 1)
        return Started(delivery, holder, attempt=before + 1)

    async def end_pass(self, holder: Pass, delivery: Delivery, ended: Ended) -> State | None:
        check_text("workflow", holder.workflow)
        check_delivery(delivery)
        if ended.due is not None:
            check_aware("due", ended.due)
        workflow = holder.workflow
        detail = self._kept(workflow, ended)
        now = self.checkpointer._moment()
        newest = self.checkpointer._unreleased(holder)
        answered = self.scheduler._out(delivery)
        if answered:
            self.scheduler._answer(delivery, ended.due)
        if not newest:
            return None
        self.checkpointer._released(holder)
        run = self.runs.get(workflow)
        if run is None or run.state == "cancelled":
            return None
        if ended.state is None and ended.attempts is None:
            return run.state
        state = run.state if ended.state is None else ended.state
        detail = run.detail if ended.state is None else detail
        attempts = run.attempts if ended.attempts is None else ended.attempts
        if not answered and state != "ready" and self.scheduler._queued(workflow):
            # Made ready meanwhile: a new chance, of which a failed one keeps its error.
            if state != "failed":
                detail = None
            elif workflow not in self.scheduler.outstanding:  # which a mere take is not
                attempts = 0
            state = "ready"
        self._put(workflow, now, state, detail, attempts)
        return state

    # --- looking --------------------------------------------------------------------------------

    async def status(self, workflow: str) -> Status | None:
        check_text("workflow", workflow)
        run = self.runs.get(workflow)
        return None if run is None else self._status(run)

    async def list(
        self,
        *,
        state: State | None = None,
        namespace: str | None = None,
        prefix: str | None = None,
        after: int | None = None,
        limit: int = PAGE,
    ) -> Page:
        check_listing(state, namespace, prefix, after, limit)
        found: _Statuses = []
        for run in reversed(self.runs.values()):
            if (
                (state is None or run.state == state)
                and (namespace is None or run.namespace == namespace)
                and (prefix is None or run.workflow.startswith(prefix))
                and (after is None or run.seq < after)
            ):
                if len(found) == limit:
                    return Page(tuple(found), found[-1].seq)
                found.append(self._status(run))
        return Page(tuple(found), None)

    async def counts(self, namespace: str | None = None) -> dict[State, int]:
        if namespace is not None:
            check_text("namespace", namespace)
        counts = dict.fromkeys(STATES, 0)
        for run in self.runs.values():
            if namespace is None or run.namespace == namespace:
                counts[run.state] += 1
        return counts

    async def why(self, workflow: str) -> str:
        status = await self.status(workflow)
        now = self.checkpointer._moment()
        standing = self._standing(workflow, status, now)
        if status is None and self.scheduler._queued(workflow):
            waiting = Waiting(NAMESPACE, standing.visible_at, standing.taken)
            return explained(workflow, None, waiting, now)
        return explained(workflow, status, standing, now)

    async def result(self, workflow: str, *, within: timedelta) -> object:
        check_text("workflow", workflow)
        check_wait("within", within)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within.total_seconds()
        while (run := self.runs.get(workflow)) is None or run.state not in FINISHED:
            remaining = deadline - loop.time()
            if remaining <= 0:
                raise TimeoutError(f"workflow {shown(workflow)} has not ended")
            end = loop.create_future()
            waiting = self._awaited.setdefault(workflow, set())
            waiting.add(end)
            try:
                await asyncio.wait((end,), timeout=remaining)
            finally:
                waiting.discard(end)
                if not waiting and self._awaited.get(workflow) is waiting:
                    del self._awaited[workflow]
        return outcome(self._status(run))

    # --- steering -------------------------------------------------------------------------------

    async def retry(self, workflow: str) -> bool:
        check_text("workflow", workflow)
        run = self.runs.get(workflow)
        if run is None or run.state not in ("failed", "cancelled"):
            return False
        self._begun_again(workflow, self.checkpointer._moment())
        return True

    async def cancel(self, workflow: str, reason: str = "") -> bool:
        check_text("workflow", workflow)
        check_text("reason", reason)
        run = self.runs.get(workflow)
        ended = run is not None and run.state in ("completed", "cancelled")
        if ended or (run is None and not self.scheduler._queued(workflow)):
            return False
        detail = self._kept(workflow, Ended(state="cancelled", detail={"reason": reason}))
        now = self.checkpointer._moment()
        self.checkpointer._raise_fence(workflow)
        self.scheduler._unqueue(workflow)
        self._put(workflow, now, "cancelled", detail, run.attempts if run is not None else 0)
        return True

    async def rewind(self, workflow: str, to: str) -> int:
        check_text("workflow", workflow)
        check_text("to", to)
        records = self.checkpointer.hashes.get(workflow, {})
        if not self._is_known(workflow):
            return 0
        if to not in records:
            raise ValueError(f"workflow {shown(workflow)} has not recorded a step {shown(to)}")
        if _from_outside(to, records[to]):
            raise ValueError(
                f"{shown(to)} of workflow {shown(workflow)} is no step: it came from outside, "
                "and stays"
            )
        now = self.checkpointer._moment()
        keys = [*records]
        forgotten = [key for key in keys[keys.index(to) :] if not _from_outside(key, records[key])]
        for key in forgotten:
            del records[key]
        self.checkpointer._raise_fence(workflow)
        self._begun_again(workflow, now)
        return len(forgotten)

    async def fork(self, workflow: str, into: str, *, before: str | None = None) -> int:
        check_text("workflow", workflow)
        check_text("into", into)
        if before is not None:
            check_text("before", before)
        store = self.checkpointer
        records = store.hashes.get(workflow, {})
        if not self._is_known(workflow):
            return 0
        if self._is_known(into):
            raise ValueError(
                f"workflow {shown(into)} exists: a fork begins under an id that is new"
            )
        if before is not None and before not in records:
            raise ValueError(f"workflow {shown(workflow)} has not recorded a step {shown(before)}")
        now = store._moment()
        keys = [*records]
        copied = keys if before is None else keys[: keys.index(before)]
        if copied:
            store.hashes[into] = {key: records[key] for key in copied}
        self._begun_again(into, now)
        return len(copied)

    async def sweep(
        self,
        *,
        older: timedelta,
        states: Collection[State] = COMPLETED,
        limit: int = SWEPT,
    ) -> int:
        check_wait("older", older)
        check_limit(limit)
        swept = check_states(states)
        try:
            until = self.checkpointer._moment() - older
        except OverflowError:  # nothing is as old as that
            return 0
        old = sorted(
            (run.updated_at, run.seq, run.workflow)
            for run in self.runs.values()
            if run.state in swept and run.updated_at <= until and self._at_rest(run.workflow)
        )[:limit]
        for _, _, workflow in old:
            self.checkpointer.hashes.pop(workflow, None)
            self.checkpointer._forget_claim(workflow)
            del self.runs[workflow]
        return len(old)

    # --- rows -----------------------------------------------------------------------------------

    def _put(self, workflow: str, now: datetime, state: State, detail: Any, attempts: int) -> None:
        """Write the row, and create it where there is none."""
        run = self.runs.get(workflow)
        if run is None:
            last = next(reversed(self.runs.values()), None)
            seq = 1 if last is None else last.seq + 1
            run = MemoryRun(seq, workflow, NAMESPACE, state, detail, attempts, now, now)
        self.runs[workflow] = dataclasses.replace(
            run, state=state, detail=detail, attempts=attempts, updated_at=now
        )
        if state in FINISHED:
            wake(self._awaited.get(workflow, ()))

    def _arrived(self, workflow: str, now: datetime) -> None:
        """Make ready what is not cancelled (L1, L2)."""
        run = self.runs.get(workflow)
        if run is not None and run.state == "cancelled":
            return
        attempts = 0 if run is None or run.state == "failed" else run.attempts
        self._put(workflow, now, "ready", _last_error(run), attempts)
        self.scheduler._queue(workflow)

    def _begun_again(self, workflow: str, now: datetime) -> None:
        self._put(workflow, now, "ready", None, 0)
        self.scheduler._queue(workflow)

    def _kept(self, workflow: str, ended: Ended) -> Any:
        """The encoding of what goes with a state, as far as it can be kept."""
        codec = self.checkpointer.codec
        return kept(
            workflow, ended, lambda told: encoded(codec, workflow, "the ledger's detail", told)[0]
        )

    def _at_rest(self, workflow: str) -> bool:
        """Neither queued nor running."""
        alive = self.checkpointer._alive(workflow)
        return alive is None and not self.scheduler._queued(workflow)

    def _is_known(self, workflow: str) -> bool:
        """Whether there is a row, a record, a live claim or a wakeup."""
        recorded = bool(self.checkpointer.hashes.get(workflow))
        return workflow in self.runs or recorded or not self._at_rest(workflow)

    def _status(self, run: MemoryRun) -> Status:
        detail = run.detail
        if detail is not None:
            detail = readable(partial(self.checkpointer.codec.decode, detail))
        due = self.scheduler.sleeping.get(run.workflow)
        if run.state == "sleeping" and not self.scheduler._queued(run.workflow):
            due = due_of(detail)
        return Status(
            seq=run.seq,
            workflow=run.workflow,
            namespace=run.namespace,
            state=run.state,
            detail=detail,
            attempts=run.attempts,
            created_at=run.created_at,
            updated_at=run.updated_at,
            running=run.state == "ready" and self.checkpointer._alive(run.workflow) is not None,
            due=due if due is not None and due > self.checkpointer._moment() else None,
        )

    def _standing(self, workflow: str, status: Status | None, now: datetime) -> Standing:
        """What claim and queue say. Of a queued one the row tells since when, as near as can be."""
        store, queue = self.checkpointer, self.scheduler
        visible_at = queue.sleeping.get(workflow)
        taken = queue.outstanding.get(workflow)
        if taken is not None:
            visible_at = _ahead(now, taken[1] - queue.clock())
        elif workflow in queue.queue and status is not None:
            visible_at = min(now, due_of(status.detail) or status.updated_at)
        claim = store._alive(workflow)
        if claim is None:
            return Standing(visible_at, taken is not None)
        seconds = store.clock()
        return Standing(
            visible_at,
            taken is not None,
            claim.token,
            _ahead(now, claim.alive_until - seconds),
            _ahead(now, claim.held_until - seconds),
        )


_Statuses = list[Status]


def _is_spent(run: MemoryRun, attempts: int | None) -> bool:
    """Whether its attempts are used up (L3)."""
    return run.state != "failed" and attempts is not None and run.attempts >= attempts


def _last_error(run: MemoryRun | None) -> Any:
    """The detail of a workflow that becomes ready: what it failed with last, if it was ready."""
    return run.detail if run is not None and run.state == "ready" else None


def _from_outside(key: str, record: Stored) -> bool:
    return record.supplied or key.startswith(INBOX)


def _ahead(now: datetime, seconds: float) -> datetime:
    try:
        return now + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
