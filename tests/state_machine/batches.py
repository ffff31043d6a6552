"""Calls that wait at once and so share a transaction, and what fails in it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias, get_args

from hypothesis import strategies as st
from hypothesis.stateful import rule

from batches import Interposed, waiting
from state_machine.asking import TICK, UNHEARD, Both, Call, answer, ranked
from state_machine.calls import (
    DURATIONS,
    KEYS,
    NAMES,
    VALUES,
    WHICH,
    WORKFLOWS,
    bump,
    failed_bump,
)
from state_machine.clocks import Clocks
from stores import Stores
from thread_gates import in_time
from without_durability import LEASE, Delivery, Ended, Entry, Pass, Written
from without_durability_sqlite.errors import operational_error

NOW = timedelta(0)
MANY = 10

member: ContextVar[int | None] = ContextVar("member", default=None)
"""Which call of a batch a statement is part of: a write runs in its caller's context."""


def conflicting(at: Any) -> object:
    """An effect that makes SQLite roll back the whole transaction it shares."""
    if isinstance(at, dict):
        raise sqlite3.IntegrityError
    bump(at)
    return at.execute("INSERT OR ROLLBACK INTO once VALUES (1)")


@dataclass(frozen=True)
class Wanted:
    """A call of a batch as it is drawn: each kind uses what it needs of the rest."""

    kind: str
    workflow: str
    queue: str
    which: str
    key: str
    value: object
    duration: timedelta
    effect: Callable[[Any], object]
    cancelled: bool


WANTED = st.builds(
    Wanted,
    st.sampled_from(
        [
            *("claim", "extend_claim", "renew", "release", "record", "transact", "transact"),
            *("supply", "append", "deliver", "arrive", "discard", "delete"),
            *("make_ready", "schedule", "done", "wake_at", "extend_delivery", "cancel"),
            "end_pass",
        ]
    ),
    WORKFLOWS,
    NAMES,
    WHICH,
    KEYS,
    VALUES,
    DURATIONS,
    st.sampled_from([bump, bump, failed_bump, conflicting]),
    st.integers(0, 4).map((4).__eq__),
)

Failing: TypeAlias = Literal["nothing", "a statement", "the first commit", "every commit with it"]
FAULTS: tuple[Failing, ...] = (*get_args(Failing), "a statement", "a statement", "a statement")


class Fault:
    """What fails in a batch: a statement of one call, a commit, or each commit it is part of."""

    def __init__(self, kind: Failing, victim: int, statement: int) -> None:
        self.kind, self.victim = kind, victim
        self.fired = 0
        self._left = statement
        self._taking_part: set[int] = set()
        self.alone: int | None = None
        """Whose commit failed although it was nobody else's."""

    def before(self, sql: str, _: object) -> None:
        whose = member.get()
        if sql == "BEGIN IMMEDIATE":
            self._taking_part.clear()
        if whose is not None:
            self._taking_part.add(whose)
        if self.kind == "a statement" and whose == self.victim:
            self._left -= 1
            if self._left <= 0:  # and when it runs again, at once
                self.fail()
        elif sql == "COMMIT" and (
            (self.kind == "the first commit" and not self.fired)
            or (self.kind == "every commit with it" and self.victim in self._taking_part)
        ):
            if len(self._taking_part) == 1:
                (self.alone,) = self._taking_part
            self.fail()

    def fail(self) -> None:
        self.fired += 1
        raise operational_error("disk I/O error", "SQLITE_IOERR")


@dataclass
class Member:
    """A call of a batch: what is called with what, and what must agree of the two answers."""

    call: Call
    its: Both
    queue: str
    check: Callable[[Both], None]
    cancelled: bool


def agree(both: Both) -> None:
    assert both.memory == both.sqlite


def agree_but_for_the_key(both: Both) -> None:
    assert isinstance(both.memory, Entry)
    assert both.memory.value == both.sqlite.value


async def end_pass(stores: Stores, holder: Pass, delivery: Delivery, due: datetime | None) -> None:
    """One call where the store has it, and the calls that it stands for where it has not."""
    if hasattr(stores.durable, "end_pass"):
        await stores.durable.end_pass(holder, delivery, Ended(due))
        return
    await stores.checkpointer.release(holder)
    if due is None:
        await stores.scheduler.done(delivery)
    else:
        await stores.scheduler.wake_at(delivery, due)


class Batches(Clocks):
    """Calls on one database that wait at once, and those that stand for several."""

    @rule(
        wanted=st.lists(WANTED, min_size=2, max_size=7),
        fault=st.sampled_from(FAULTS),
        victim=st.integers(0, 6),
        statement=st.integers(1, 3),
    )
    def write_together(
        self, wanted: list[Wanted], fault: Failing, victim: int, statement: int
    ) -> None:
        with self.undisturbed():
            members = [self.member(one) for one in wanted]
        wanted_still = [at for at, one in enumerate(members) if not one.cancelled] or [0]
        failing = Fault(fault, wanted_still[victim % len(wanted_still)], statement)
        self.run(self.shared(members, failing))
        self.pass_time(TICK)

    def member(self, wanted: Wanted) -> Member:
        call, its, check = self.made(wanted)
        return Member(call, its, wanted.queue, check, wanted.cancelled)

    def made(self, wanted: Wanted) -> tuple[Call, Both, Callable[[Both], None]]:
        w, key, value = wanted.workflow, wanted.key, wanted.value
        when = self.clock.now() + wanted.duration
        for_ = wanted.duration
        of_nobody: dict[str, tuple[Call, Callable[[Both], None]]] = {
            "claim": (lambda s, _: s.checkpointer.claim(w, for_, for_), self.is_claimed),
            "supply": (lambda s, _: s.checkpointer.supply(w, key, value), agree),
            "append": (lambda s, _: s.checkpointer.append(w, value), agree_but_for_the_key),
            "deliver": (lambda s, _: s.durable.deliver(w, value), agree_but_for_the_key),
            "arrive": (lambda s, _: s.durable.arrive(w, key, value), agree),
            "discard": (lambda s, _: s.checkpointer.discard(w), agree),
            "delete": (lambda s, _: s.durable.delete(w), agree),
            "make_ready": (lambda s, _: s.scheduler.make_ready(w), agree),
            "schedule": (lambda s, _: s.scheduler.schedule(w, when), agree),
            "cancel": (lambda s, _: s.scheduler.cancel(w), agree),
        }
        if wanted.kind in of_nobody:
            call, check = of_nobody[wanted.kind]
            return call, Both(), check
        of_a_pass: dict[str, Call] = {
            "extend_claim": lambda s, holder: s.checkpointer.extend(holder, for_, LEASE),
            "renew": lambda s, holder: s.checkpointer.renew(holder, for_),
            "release": lambda s, holder: s.checkpointer.release(holder),
            "record": lambda s, holder: s.checkpointer.record(holder, key, value),
            "transact": lambda s, holder: s.checkpointer.transact(holder, key, wanted.effect),
        }
        if wanted.kind in of_a_pass:
            return of_a_pass[wanted.kind], self.holder(w, wanted.which), agree
        delivery = self.delivery(w, wanted.queue, wanted.which)
        of_a_delivery: dict[str, tuple[Call, Callable[[Both], None]]] = {
            "done": (lambda s, its: s.scheduler.done(its), agree),
            "wake_at": (lambda s, its: s.scheduler.wake_at(its, when), agree),
            "extend_delivery": (
                lambda s, its: s.scheduler.extend(its, for_),
                lambda both: self.is_extended(wanted.queue, delivery, both),
            ),
        }
        if wanted.kind in of_a_delivery:
            call, check = of_a_delivery[wanted.kind]
            return call, delivery, check
        holder = self.holder(w, wanted.which)
        due = when if value else None
        its = Both((holder.memory, delivery.memory), (holder.sqlite, delivery.sqlite))
        return lambda s, its: end_pass(s, *its, due), its, agree

    def is_claimed(self, both: Both) -> None:
        assert (both.memory is None) == (both.sqlite is None)
        if both.memory is not None:
            self.is_newest(both)

    def is_newest(self, both: Both) -> None:
        earlier = self.passes[both.memory.workflow]
        for one in earlier:
            assert both.memory.token > one.memory.token
            assert both.sqlite.token > one.sqlite.token
        earlier.append(both)

    def is_extended(self, queue: str, delivery: Both, both: Both) -> None:
        kept = both.memory != delivery.memory
        assert kept == (both.sqlite != delivery.sqlite)
        if kept:
            self.is_new(queue, both)

    async def shared(self, members: list[Member], fault: Fault) -> None:
        """The members on one database at once, and on memory in their order, but for who failed."""
        at = self.turns.randrange(2)
        connection = self.databases[at].connection
        assert isinstance(connection, Interposed)

        async def of_sqlite(index: int, one: Member) -> Any:
            member.set(index)
            return await answer(lambda: one.call(self.sqlite[at][one.queue], one.its.sqlite))

        calls = (of_sqlite(index, one) for index, one in enumerate(members))
        async with waiting(self.databases[at], *calls) as tasks:
            for task, one in zip(tasks, members, strict=True):
                if one.cancelled:
                    task.cancel()
            await asyncio.sleep(0)
            connection.before = fault.before
        outcomes = await in_time(asyncio.gather(*tasks, return_exceptions=True))
        connection.before = None
        for index, (one, outcome) in enumerate(zip(members, outcomes, strict=True)):
            if one.cancelled:
                assert isinstance(outcome, asyncio.CancelledError)
                continue
            if isinstance(outcome, sqlite3.OperationalError):
                assert fault.fired, f"nothing had failed: {outcome}"
                its_own = fault.victim if fault.kind == "a statement" else fault.alone
                assert index == its_own, f"another's failure: {outcome}"
                continue
            assert not isinstance(outcome, BaseException), outcome
            if index == fault.victim and fault.kind == "a statement":
                assert not fault.fired, "it failed, and its caller did not hear of it"
            memory = self.memory[one.queue]
            one.check(Both(await answer(lambda: one.call(memory, one.its.memory)), outcome))  # noqa: B023
        await self.check_records(1 - at)
        await self.check_deadlines(1 - at)

    # --- passes that are started and ended at one go ---

    @rule(queue=NAMES, budget=DURATIONS)
    def start_passes(self, queue: str, budget: timedelta) -> None:
        async def start(stores: Stores, _: object) -> dict[str, tuple[Any, Any, Any]]:
            if hasattr(stores.durable, "start_passes"):
                started = await stores.durable.start_passes(MANY, NOW, budget)
                assert len({one.delivery.workflow for one in started}) == len(started)
                return {
                    one.delivery.workflow: (one.delivery, one.holder, one.recorded)
                    for one in started
                }
            passes: dict[str, tuple[Any, Any, Any]] = {}
            for workflow, delivery in (await self.drained(stores)).items():
                holder = await stores.checkpointer.claim(workflow, budget, LEASE)
                recorded = await stores.checkpointer.load(workflow) if holder else None
                passes[workflow] = delivery, holder, recorded
            return passes

        async def give_back(stores: Stores, passes: dict[str, tuple[Any, Any, Any]]) -> None:
            for delivery, holder, _ in passes.values():
                if holder is not None:
                    await stores.checkpointer.release(holder)
                await stores.scheduler.wake_at(delivery, self.clock.now())

        both = self.ask(start, queue=queue, give_back=give_back)
        if both is UNHEARD:
            return
        assert both.memory.keys() == both.sqlite.keys()
        for workflow, of_memory in both.memory.items():
            delivery, holder, recorded = (
                Both(*pair) for pair in zip(of_memory, both.sqlite[workflow], strict=True)
            )
            self.is_new(queue, delivery)
            self.is_claimed(holder)
            assert (recorded.memory is None) == (recorded.sqlite is None)
            if recorded.memory is not None:
                assert self.dated(recorded.memory) == self.dated(recorded.sqlite)

    def dated(self, recorded: dict[str, object]) -> list[tuple[str, Any, Any]]:
        now = self.clock.now()
        return ranked({key: Written(value, now) for key, value in recorded.items()})

    @rule(
        workflow=WORKFLOWS,
        queue=NAMES,
        which=WHICH,
        whose=WHICH,
        step=st.one_of(st.none(), DURATIONS),
    )
    def end_pass(
        self, workflow: str, queue: str, which: str, whose: str, step: timedelta | None
    ) -> None:
        delivery = self.delivery(workflow, queue, which)
        holder = self.holder(workflow, whose)
        due = None if step is None else self.clock.now() + step
        self.same(
            lambda stores, its: end_pass(stores, *its, due),
            Both((holder.memory, delivery.memory), (holder.sqlite, delivery.sqlite)),
            queue,
        )
