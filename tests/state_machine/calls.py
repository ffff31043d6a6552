"""The calls of every store, as rules: claims, records, passes, and the queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from state_machine.asking import UNHEARD, Asking, Both
from state_machine.cutting import MOMENTS, Moment
from stores import Stores
from without_durability import (
    BUDGET,
    INBOX,
    LEASE,
    Completed,
    Delivery,
    Entry,
    Pass,
    Run,
    inbox_key,
    resume,
)

NEVER_ISSUED = 10**15
A_WAIT = timedelta(milliseconds=3)

WORKFLOWS = st.sampled_from(["w", "w", "w", "v"])
NAMES = st.sampled_from(["mail", "mail", "post"])
# Which pass or delivery a call is made with.
WHICH = st.sampled_from(["fresh", "fresh", "newest", "newest", "older", "nobody's"])
KEYS = st.sampled_from(["a", "b", "c", "d", "e"])
VALUES = st.sampled_from([None, 0, 1, "x", (1, 2), {"b": 1, "a": [2]}])
DURATIONS = st.sampled_from([timedelta(seconds=seconds) for seconds in (20, 60, 150)])
# Where neither store numbers by itself: below the first message, or far ahead of any.
POSITIONS = st.sampled_from([0, 2**40, 2**40 + 1, 2**40 + 2, 2**62 - 1])


def bump(at: Any) -> object:
    """An effect on either store."""
    if isinstance(at, dict):
        at["count"] = at.get("count", 0) + 1
        return at["count"]
    return at.execute("UPDATE app SET count = count + 1 RETURNING count").fetchall()[0][0]


def failed_bump(at: Any) -> object:
    bump(at)
    raise LookupError


async def one() -> int:
    return 1


async def in_vain(call: Awaitable[Any]) -> str:
    """A step whose failure the body does not mind."""
    with suppress(LookupError):
        await call
    return "in vain"


def as_is(value: object) -> object:
    return value


STEPS: dict[str, Callable[[Run[Any]], Awaitable[Any]]] = {
    "step": lambda run: run.step("a", one, as_is, within=LEASE),
    "transact": lambda run: run.transact("b", bump, as_is),
    "transact in vain": lambda run: in_vain(run.transact("vain", failed_bump, as_is)),
    "sleep": lambda run: run.sleep("c", LEASE),
    "awaiting": lambda run: run.awaiting("d", as_is),
    "receive": lambda run: run.receive("received", limit=2),
    "pending": lambda run: run.pending("looked"),
    "pending past 0": lambda run: run.pending("past 0", after=inbox_key(0), limit=1),
}


def chosen(given: list[Both], which: str, nobody: Both) -> Both:
    if which == "older":
        given = given[:-1]
    return given[-1] if given and which != "nobody's" else nobody


class Records(Asking):
    """Claims, what a pass writes, what others supply."""

    def holder(self, workflow: str, which: str) -> Both:
        if which == "fresh":
            with self.undisturbed():
                self.claim(workflow, BUDGET, LEASE)
        nobody = Both(Pass(workflow, NEVER_ISSUED), Pass(workflow, NEVER_ISSUED))
        return chosen(self.passes[workflow], which, nobody)

    @rule(workflow=WORKFLOWS, budget=DURATIONS, alive=DURATIONS)
    def claim(self, workflow: str, budget: timedelta, alive: timedelta) -> None:
        both = self.ask(
            lambda stores, _: stores.checkpointer.claim(workflow, budget, alive),
            give_back=lambda stores, holder: stores.checkpointer.release(holder),
        )
        if both is UNHEARD:
            return
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

    @rule(workflow=WORKFLOWS, which=WHICH, key=KEYS, value=VALUES)
    def record(self, workflow: str, which: str, key: str, value: object) -> None:
        self.same(
            lambda stores, holder: stores.checkpointer.record(holder, key, value),
            self.holder(workflow, which),
        )

    @rule(workflow=WORKFLOWS, which=WHICH, key=KEYS, effect=st.sampled_from([bump, failed_bump]))
    def transact(self, workflow: str, which: str, key: str, effect: Any) -> None:
        self.same(
            lambda stores, holder: stores.checkpointer.transact(holder, key, effect),
            self.holder(workflow, which),
        )

    @rule(workflow=WORKFLOWS, key=st.one_of(KEYS, POSITIONS.map(inbox_key)), value=VALUES)
    def supply(self, workflow: str, key: str, value: object) -> None:
        self.same(lambda stores, _: stores.checkpointer.supply(workflow, key, value))

    @rule(workflow=WORKFLOWS, queue=NAMES, value=VALUES, deliver=st.booleans())
    def append(self, workflow: str, queue: str, value: object, deliver: bool) -> None:
        def file(stores: Stores, _: object) -> Awaitable[Any]:
            call = stores.durable.deliver if deliver else stores.checkpointer.append
            return call(workflow, value)

        entry = self.ask(file, queue=queue)
        if entry is UNHEARD:
            return
        loaded = self.ask(lambda stores, _: stores.checkpointer.load(workflow), whole=False)
        assert entry.memory.value == entry.sqlite.value
        for key, records in (
            (entry.memory.key, loaded.memory),
            (entry.sqlite.key, loaded.sqlite),
        ):
            assert key == max(name for name in records if name.startswith(INBOX))

    @rule(workflow=WORKFLOWS, queue=NAMES, key=KEYS, value=VALUES)
    def arrive(self, workflow: str, queue: str, key: str, value: object) -> None:
        self.same(lambda stores, _: stores.durable.arrive(workflow, key, value), queue=queue)

    @rule(workflow=WORKFLOWS, queue=NAMES, delete=st.booleans())
    def discard(self, workflow: str, queue: str, delete: bool) -> None:
        def forget(stores: Stores, _: object) -> Awaitable[Any]:
            call = stores.durable.delete if delete else stores.checkpointer.discard
            return call(workflow)

        self.same(forget, queue=queue)

    @rule()
    def records(self) -> None:
        self.run(self.check_records(self.turns.randrange(2)))

    @rule(workflow=WORKFLOWS)
    def load(self, workflow: str) -> None:
        """Inboxes apart, which `check_records` compares: something to be cancelled."""

        async def named(stores: Stores, _: object) -> list[str]:
            loaded = await stores.checkpointer.load(workflow)
            return [key for key in loaded if not key.startswith(INBOX)]

        self.same(named)

    @rule(workflow=WORKFLOWS, which=WHICH, steps=st.lists(st.sampled_from([*STEPS]), unique=True))
    def run_a_pass(self, workflow: str, which: str, steps: list[str]) -> None:
        async def body(run: Run[Any]) -> list[Any]:
            return [await STEPS[step](run) for step in steps]

        async def passed(stores: Stores, holder: Pass) -> object:
            outcome = await resume(holder, stores.checkpointer, body, now=self.clock.now)
            return unnumbered(outcome) if isinstance(outcome, Completed) else outcome

        both = self.ask(passed, self.holder(workflow, which), whole=False)
        assert both.memory == both.sqlite


def unnumbered(outcome: Completed[list[Any]]) -> list[Any]:
    """What the steps came to, without the keys of messages, which stores choose."""
    return [
        tuple(entry.value for entry in value)
        if isinstance(value, tuple) and all(isinstance(one, Entry) for one in value)
        else value
        for value in outcome.value
    ]


class Queue(Asking):
    """What waits, sleeps and is out, in each namespace."""

    def delivery(self, workflow: str, queue: str, which: str) -> Both:
        if which == "fresh":
            with self.undisturbed():
                self.make_ready(workflow, queue)
                self.take(queue)
        nobody = Both(Delivery(workflow, "nobody's"), Delivery(workflow, "nobody's"))
        return chosen(self.deliveries[self.namespaces[queue], workflow], which, nobody)

    @rule(workflow=WORKFLOWS, queue=NAMES)
    def make_ready(self, workflow: str, queue: str) -> None:
        self.same(lambda stores, _: stores.scheduler.make_ready(workflow), queue=queue)

    @rule(workflow=WORKFLOWS, queue=NAMES, step=DURATIONS, past=st.booleans())
    def schedule(self, workflow: str, queue: str, step: timedelta, past: bool) -> None:
        when = self.clock.now() + (-step if past else step)
        self.same(lambda stores, _: stores.scheduler.schedule(workflow, when), queue=queue)

    @rule(queue=NAMES)
    def take(self, queue: str) -> None:
        """Everything that is ready: which of two comes first is each store's own choice."""
        taken = self.ask(lambda stores, _: self.drained(stores), queue=queue, whole=False)
        assert taken.memory.keys() == taken.sqlite.keys()
        for workflow, delivery in taken.memory.items():
            self.is_new(queue, Both(delivery, taken.sqlite[workflow]))

    async def drained(self, stores: Stores) -> dict[str, Delivery]:
        taken: dict[str, Delivery] = {}
        await stores.scheduler.wake_due(self.clock.now())
        while delivery := await stores.scheduler.next_ready(timedelta(0)):
            assert delivery.workflow not in taken, "one wakeup was delivered twice"
            taken[delivery.workflow] = delivery
        return taken

    def is_new(self, queue: str, delivery: Both) -> None:
        earlier = self.deliveries[self.namespaces[queue], delivery.memory.workflow]
        for one in earlier:
            assert one.memory.receipt != delivery.memory.receipt
            assert one.sqlite.receipt != delivery.sqlite.receipt
        earlier.append(delivery)

    @rule(workflow=WORKFLOWS, queue=NAMES, moment=st.sampled_from(MOMENTS), ready=st.booleans())
    def take_and_go_away(self, workflow: str, queue: str, moment: Moment, ready: bool) -> None:
        """Cancelled with one thing to take, or with nothing and a wait."""
        with self.no_time_passes():
            with self.undisturbed():
                self.take(queue)
                if ready:
                    self.make_ready(workflow, queue)
            self.moments.append(moment)
            taken = self.ask(
                lambda stores, _: stores.scheduler.next_ready(timedelta(0) if ready else A_WAIT),
                queue=queue,
                give_back=lambda stores, _: stores.scheduler.make_ready(workflow),
            )
        if taken is not UNHEARD and ready:
            self.is_new(queue, taken)

    @rule(
        workflow=WORKFLOWS,
        queue=NAMES,
        which=WHICH,
        within=DURATIONS,
        moments=st.lists(st.sampled_from(MOMENTS), max_size=1),
    )
    def extend_delivery(
        self, workflow: str, queue: str, which: str, within: timedelta, moments: list[Moment]
    ) -> None:
        delivery = self.delivery(workflow, queue, which)
        self.moments += moments
        both = self.ask(
            lambda stores, its: stores.scheduler.extend(its, within), delivery, queue, undone=True
        )
        if both is UNHEARD:
            return
        kept = both.memory != delivery.memory
        assert kept == (both.sqlite != delivery.sqlite)
        if kept:
            self.is_new(queue, both)

    @rule(workflow=WORKFLOWS, queue=NAMES, which=WHICH)
    def done(self, workflow: str, queue: str, which: str) -> None:
        delivery = self.delivery(workflow, queue, which)
        held = self.ask(
            lambda stores, its: stores.scheduler.holds(its), delivery, queue, whole=False
        )
        assert held.memory == held.sqlite
        self.same(lambda stores, its: stores.scheduler.done(its), delivery, queue)

    @rule(workflow=WORKFLOWS, queue=NAMES, which=WHICH, step=DURATIONS)
    def wake_at(self, workflow: str, queue: str, which: str, step: timedelta) -> None:
        when = self.clock.now() + step
        self.same(
            lambda stores, its: stores.scheduler.wake_at(its, when),
            self.delivery(workflow, queue, which),
            queue,
        )

    @rule(workflow=WORKFLOWS, queue=NAMES)
    def cancel(self, workflow: str, queue: str) -> None:
        self.same(lambda stores, _: stores.scheduler.cancel(workflow), queue=queue)
