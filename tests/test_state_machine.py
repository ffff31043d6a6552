"""Hunts for a difference between the memory store and the SQLite store: same calls, one clock.

The SQLite store is in memory: what a disk keeps is for other tests to say, and these make
thousands of commits.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from stores import Stores, over_memory, over_sqlite
from without_durability import BUDGET, INBOX, LEASE, Delivery, Fenced, Pass, Written, inbox_key
from without_durability.testing import Clock
from without_durability_sqlite import connect, migrate

MILLISECOND = timedelta(milliseconds=1)
TICK = timedelta(seconds=1)
NEVER_ISSUED = 10**15
BOTH_WORKFLOWS = ("v", "w")

WORKFLOWS = st.sampled_from(["w", "w", "w", "v"])
# Which pass or delivery a call is made with.
WHICH = st.sampled_from(["fresh", "fresh", "newest", "newest", "older", "nobody's"])
KEYS = st.sampled_from(["a", "b", "c", "d", "e"])
VALUES = st.sampled_from([None, 0, 1, "x", (1, 2), {"b": 1, "a": [2]}])
DURATIONS = st.sampled_from([timedelta(seconds=seconds) for seconds in (20, 60, 150)])
# Where neither store numbers by itself: below the first message, or far ahead of any.
POSITIONS = st.sampled_from([0, 2**40, 2**40 + 1, 2**40 + 2, 2**62 - 1])


@dataclass(frozen=True)
class Both:
    """The same thing as each store names it: a pass, a delivery, an answer."""

    memory: Any = None
    sqlite: Any = None


Call = Callable[[Stores, Any], Awaitable[Any]]
NOTHING = Both()


def bump_memory(data: dict[str, Any]) -> object:
    data["count"] = data.get("count", 0) + 1
    return data["count"]


def bump_sqlite(cursor: Any) -> object:
    return cursor.execute("UPDATE app SET count = count + 1 RETURNING count").fetchall()[0][0]


def chosen(given: list[Both], which: str, nobody: Both) -> Both:
    if which == "older":
        given = given[:-1]
    return given[-1] if given and which != "nobody's" else nobody


Deadlines: TypeAlias = tuple[list[Any], list[Any]]


def deadlines(connection: sqlite3.Connection) -> Deadlines:
    """Of the claims and of the wakeups, as the file holds them."""
    claims = connection.execute("SELECT workflow, alive_until, held_until FROM workflow_claim")
    wakeups = connection.execute("SELECT workflow, visible_at FROM workflow_queue")
    return claims.fetchall(), wakeups.fetchall()


class Stepping(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        self.database = connect(":memory:", clock=self.clock.seconds)
        self.memory = over_memory(self.clock)
        self.sqlite = over_sqlite(self.database, self.clock)
        self.run(migrate(self.database))
        self.rows("CREATE TABLE app AS SELECT 0 AS count")
        self.passes: defaultdict[str, list[Both]] = defaultdict(list)
        self.deliveries: defaultdict[str, list[Both]] = defaultdict(list)
        self.may_set_back = True
        self.ends: list[float] = []

    def teardown(self) -> None:
        try:
            for workflow in BOTH_WORKFLOWS:
                self.history(workflow)
            count = self.memory.checkpointer.data.get("count", 0)
            assert self.rows("SELECT count FROM app") == [(count,)]
        finally:
            self.run(self.database.aclose())
            self.loop.close()

    # --- asking both ---

    def run(self, awaitable: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(awaitable)

    def ask(self, call: Call, its: Both = NOTHING) -> Both:
        """One call on each store; a refusal is an answer too. Then time has passed."""
        answers = self.run(self.asked(call, its))
        self.clock.advance(TICK)
        return answers

    async def asked(self, call: Call, its: Both) -> Both:
        answers = Both(
            await self.answer(call(self.memory, its.memory)),
            await self.answer(call(self.sqlite, its.sqlite)),
        )
        self.both_let_go_at_the_same_moment(await self.database.run(deadlines))
        return answers

    async def answer(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except (Fenced, ValueError, LookupError) as error:
            return type(error).__name__

    def same(self, call: Call, its: Both = NOTHING) -> None:
        answers = self.ask(call, its)
        assert answers.memory == answers.sqlite

    def rows(self, query: str) -> list[Any]:
        return self.run(self.database.run(lambda c: c.execute(query).fetchall()))

    def holder(self, workflow: str, which: str) -> Both:
        if which == "fresh":
            self.claim(workflow, BUDGET, LEASE)
        nobody = Both(Pass(workflow, NEVER_ISSUED), Pass(workflow, NEVER_ISSUED))
        return chosen(self.passes[workflow], which, nobody)

    def delivery(self, workflow: str, which: str) -> Both:
        if which == "fresh":
            self.make_ready(workflow)
            self.take()
        nobody = Both(Delivery(workflow, "nobody's"), Delivery(workflow, "nobody's"))
        return chosen(self.deliveries[workflow], which, nobody)

    def both_let_go_at_the_same_moment(self, stored: Deadlines) -> None:
        """Seconds left of every claim, liveness and budget, and of every wakeup."""
        now = self.clock.seconds()

        def left(until: float) -> float:
            return round(max(0.0, until - now), 6)

        queue = self.memory.scheduler
        claims = self.memory.checkpointer.claims.items()
        held = {(name, left(one.alive_until), left(one.held_until)) for name, one in claims}
        wakeups = {
            **dict.fromkeys(queue.queue, 0.0),
            **{name: left(when.timestamp()) for name, when in queue.sleeping.items()},
            **{name: left(until) for name, (_, until) in queue.outstanding.items()},
        }
        of_claims, of_wakeups = stored
        assert {(name, left(alive), left(budget)) for name, alive, budget in of_claims} == held
        assert {name: left(until) for name, until in of_wakeups} == wakeups
        self.ends = [one for ends in (*held, *wakeups.items()) for one in ends[1:] if one]

    # --- claims ---

    @rule(workflow=WORKFLOWS, budget=DURATIONS, alive=DURATIONS)
    def claim(self, workflow: str, budget: timedelta, alive: timedelta) -> None:
        both = self.ask(lambda stores, _: stores.checkpointer.claim(workflow, budget, alive))
        assert (both.memory is None) == (both.sqlite is None)
        if both.memory is not None:
            for earlier in self.passes[workflow]:
                assert both.memory.token > earlier.memory.token
                assert both.sqlite.token > earlier.sqlite.token
            self.passes[workflow].append(both)

    @rule(workflow=WORKFLOWS, which=WHICH, budget=DURATIONS, alive=DURATIONS)
    def extend_claim(self, workflow: str, which: str, budget: timedelta, alive: timedelta) -> None:
        self.same(
            lambda stores, holder: stores.checkpointer.extend(holder, budget, alive),
            self.holder(workflow, which),
        )

    @rule(workflow=WORKFLOWS, which=WHICH, alive=DURATIONS)
    def renew(self, workflow: str, which: str, alive: timedelta) -> None:
        self.same(
            lambda stores, holder: stores.checkpointer.renew(holder, alive),
            self.holder(workflow, which),
        )

    @rule(workflow=WORKFLOWS, which=WHICH)
    def release(self, workflow: str, which: str) -> None:
        self.same(
            lambda stores, holder: stores.checkpointer.release(holder),
            self.holder(workflow, which),
        )

    # --- records ---

    @rule(workflow=WORKFLOWS, which=WHICH, key=KEYS, value=VALUES)
    def record(self, workflow: str, which: str, key: str, value: object) -> None:
        self.same(
            lambda stores, holder: stores.checkpointer.record(holder, key, value),
            self.holder(workflow, which),
        )

    @rule(workflow=WORKFLOWS, which=WHICH, key=KEYS, fails=st.booleans())
    def transact(self, workflow: str, which: str, key: str, fails: bool) -> None:
        def effect_of(stores: Stores) -> Callable[[Any], object]:
            bump = bump_memory if stores is self.memory else bump_sqlite

            def failed(at: Any) -> object:
                bump(at)
                raise LookupError

            return failed if fails else bump

        self.same(
            lambda stores, holder: stores.checkpointer.transact(holder, key, effect_of(stores)),
            self.holder(workflow, which),
        )

    @rule(workflow=WORKFLOWS, key=st.one_of(KEYS, POSITIONS.map(inbox_key)), value=VALUES)
    def supply(self, workflow: str, key: str, value: object) -> None:
        self.same(lambda stores, _: stores.checkpointer.supply(workflow, key, value))

    @rule(workflow=WORKFLOWS, value=VALUES, deliver=st.booleans())
    def append(self, workflow: str, value: object, deliver: bool) -> None:
        def file(stores: Stores, _: object) -> Awaitable[Any]:
            call = stores.durable.deliver if deliver else stores.checkpointer.append
            return call(workflow, value)

        entry = self.ask(file)
        loaded = self.ask(lambda stores, _: stores.checkpointer.load(workflow))
        assert entry.memory.value == entry.sqlite.value
        for key, records in (
            (entry.memory.key, loaded.memory),
            (entry.sqlite.key, loaded.sqlite),
        ):
            assert key == max(name for name in records if name.startswith(INBOX))

    @rule(workflow=WORKFLOWS, key=KEYS, value=VALUES)
    def arrive(self, workflow: str, key: str, value: object) -> None:
        self.same(lambda stores, _: stores.durable.arrive(workflow, key, value))

    @rule(workflow=WORKFLOWS, delete=st.booleans())
    def discard(self, workflow: str, delete: bool) -> None:
        def forget(stores: Stores, _: object) -> Awaitable[Any]:
            call = stores.durable.delete if delete else stores.checkpointer.discard
            return call(workflow)

        self.same(forget)

    @rule(workflow=WORKFLOWS)
    def history(self, workflow: str) -> None:
        """Keys, values, moments and order; inbox keys are compared by their rank."""

        def ranked(history: dict[str, Written]) -> list[tuple[str, Written]]:
            inbox = sorted(key for key in history if key.startswith(INBOX))
            ranks = {key: f"message {rank}" for rank, key in enumerate(inbox)}
            return [(ranks.get(key, key), written) for key, written in history.items()]

        history = self.ask(lambda stores, _: stores.checkpointer.history(workflow))
        loaded = self.ask(lambda stores, _: stores.checkpointer.load(workflow))
        assert ranked(history.memory) == ranked(history.sqlite)
        for values, written in (
            (loaded.memory, history.memory),
            (loaded.sqlite, history.sqlite),
        ):
            assert list(values.items()) == [(key, one.value) for key, one in written.items()]

    # --- the queue ---

    @rule(workflow=WORKFLOWS)
    def make_ready(self, workflow: str) -> None:
        self.same(lambda stores, _: stores.scheduler.make_ready(workflow))

    @rule(workflow=WORKFLOWS, step=DURATIONS, past=st.booleans())
    def schedule(self, workflow: str, step: timedelta, past: bool) -> None:
        when = self.clock.now() + (-step if past else step)
        self.same(lambda stores, _: stores.scheduler.schedule(workflow, when))

    @rule()
    def take(self) -> None:
        """Everything that is ready: which of two comes first is each store's own choice."""
        taken = self.ask(lambda stores, _: self.drained(stores))
        assert taken.memory.keys() == taken.sqlite.keys()
        for workflow, delivery in taken.memory.items():
            self.is_new(Both(delivery, taken.sqlite[workflow]))

    async def drained(self, stores: Stores) -> dict[str, Delivery]:
        taken: dict[str, Delivery] = {}
        await stores.scheduler.wake_due(self.clock.now())
        while delivery := await stores.scheduler.next_ready(timedelta(0)):
            assert delivery.workflow not in taken, "one wakeup was delivered twice"
            taken[delivery.workflow] = delivery
        return taken

    def is_new(self, delivery: Both) -> None:
        earlier = self.deliveries[delivery.memory.workflow]
        for one in earlier:
            assert one.memory.receipt != delivery.memory.receipt
            assert one.sqlite.receipt != delivery.sqlite.receipt
        earlier.append(delivery)

    @rule(workflow=WORKFLOWS, which=WHICH, within=DURATIONS)
    def extend_delivery(self, workflow: str, which: str, within: timedelta) -> None:
        delivery = self.delivery(workflow, which)
        both = self.ask(lambda stores, its: stores.scheduler.extend(its, within), delivery)
        kept = both.memory != delivery.memory
        assert kept == (both.sqlite != delivery.sqlite)
        if kept:
            self.is_new(both)

    @rule(workflow=WORKFLOWS, which=WHICH)
    def done(self, workflow: str, which: str) -> None:
        delivery = self.delivery(workflow, which)
        self.same(lambda stores, its: stores.scheduler.holds(its), delivery)
        self.same(lambda stores, its: stores.scheduler.done(its), delivery)

    @rule(workflow=WORKFLOWS, which=WHICH, step=DURATIONS)
    def wake_at(self, workflow: str, which: str, step: timedelta) -> None:
        when = self.clock.now() + step
        self.same(
            lambda stores, its: stores.scheduler.wake_at(its, when),
            self.delivery(workflow, which),
        )

    @rule(workflow=WORKFLOWS)
    def cancel(self, workflow: str) -> None:
        self.same(lambda stores, _: stores.scheduler.cancel(workflow))

    # --- time ---

    @precondition(lambda self: self.ends)
    @rule(off=st.sampled_from([-1, 0, 1]))
    def reach_the_next_end(self, off: int) -> None:
        """Of a claim's life or budget, a lease or a sleep, give or take a millisecond."""
        self.clock.advance(timedelta(seconds=min(self.ends)) - TICK + off * MILLISECOND)
        self.ends = []

    @precondition(lambda self: self.may_set_back)
    @rule(step=DURATIONS)
    def set_back(self, step: timedelta) -> None:
        """With nothing held or queued: only SQLite's clock, and not a monotonic one, does this."""
        self.may_set_back = False
        for workflow in BOTH_WORKFLOWS:
            self.release(workflow, "newest")
            self.cancel(workflow)
        self.clock.advance(-step)
        self.ends = []


TestStepping = Stepping.TestCase
TestStepping.settings = settings(
    deadline=None,
    max_examples=150,
    stateful_step_count=50,
    suppress_health_check=[HealthCheck.too_slow],
)
