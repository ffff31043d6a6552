"""The calls of a ledger as rules, among those of the stores it is kept over."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import rule

from state_machine.asking import UNHEARD, Both
from state_machine.calls import DURATIONS, KEYS, WHICH, WORKFLOWS
from state_machine.clocks import Clocks
from stores import Stores
from without_durability import (
    LEASE,
    Blocked,
    Completed,
    Delivery,
    Ended,
    MemoryCheckpointer,
    MemoryDurable,
    MemoryScheduler,
    Sleeping,
    Started,
    Status,
)
from without_durability.ledger import FINISHED, STATES, Failure, ended, raised
from without_durability_sqlite.checking import oddities

MANY = 10
NOW = timedelta(0)
FAILURE = Failure("KeyError", "'no such thing'", "a traceback")
STANDING = ("not queued", "queued", "claimed")
"""The oddities that callers make who go behind the ledger's back; both stores must have them."""

IDS = st.sampled_from(["u", "v", "w", "w"])
PREFIXES = st.sampled_from([None, "", "w", "v", "x", "\U0010ffff"])
STEPS = st.one_of(KEYS, st.sampled_from(["received", "looked", "nothing"]))
ATTEMPTS = st.sampled_from([None, None, 1, 2, 3])
ENDS = st.sampled_from(
    [
        *("completed", "completed with nothing", "unstorable", "sleeping", "blocked"),
        *("raised", "raised for the last time", "given back", "looked at again"),
    ]
)


class Ledgers(Clocks):
    """One queue, over which memory keeps a ledger too; either name of it means that one."""

    namespaces: ClassVar[dict[str, str]] = {"mail": "workflow", "post": "workflow"}
    workflows = ("u", "v", "w")

    def over_memory(self, records: MemoryCheckpointer) -> dict[str, Stores]:
        queue = MemoryScheduler(clock=self.steady.seconds)
        stores = Stores(MemoryDurable(records, queue), self.clock)
        return dict.fromkeys(self.namespaces, stores)

    def standing_claims(self, claims: dict[str, tuple[float, float]]) -> dict[str, Any]:
        """A sweep forgets a dead claim or keeps it, as its token has it."""
        return {workflow: ends for workflow, ends in claims.items() if any(ends)}

    # --- what must agree ---

    async def check_ledger(self, at: int) -> None:
        """The rows, in order, their counts, and what disagrees with queue and claims."""
        durables = self.memory["mail"].durable, self.sqlite[at]["mail"].durable
        pages = [await durable.list() for durable in durables]
        assert self.in_order(pages[0].items) == self.in_order(pages[1].items)
        counts = [await durable.counts() for durable in durables]
        assert counts[0] == counts[1]
        odd = await self.databases[at].run(lambda c: oddities(c, self.clock.seconds()))
        assert [one for one in odd if one.kind == "count"] == []
        of_sqlite = {(one.kind, one.workflow) for one in odd if one.kind in STANDING}
        assert of_sqlite == {*self.odd_in_memory()}

    def odd_in_memory(self) -> list[tuple[str, str]]:
        durable = self.memory["mail"].durable
        odd = []
        for one, run in durable.runs.items():
            queued = durable.scheduler._queued(one)
            if run.state in ("ready", "sleeping") and not queued:
                odd.append(("not queued", one))
            if run.state in FINISHED and queued:
                odd.append(("queued", one))
            if run.state != "ready" and durable.checkpointer._alive(one):
                odd.append(("claimed", one))
        return odd

    def in_order(self, found: Iterable[Status]) -> list[Any]:
        """Of those that were new at one moment, in one call, each store chooses the first."""
        alike = itertools.groupby(found, lambda one: round(one.created_at.timestamp(), 5))
        return [
            self.comparable(one)
            for _, some in alike
            for one in sorted(some, key=lambda one: one.workflow)
        ]

    def comparable(self, status: Status | None) -> Any:
        """All but the number of the row, whose order is compared, and what a float takes off."""
        if status is None:
            return None
        moments = (status.created_at, status.updated_at, status.due)
        now = self.clock.now()
        facts = dataclasses.replace(status, seq=0, created_at=now, updated_at=now, due=None)
        return facts, [None if one is None else round(one.timestamp(), 5) for one in moments]

    # --- looks ---

    @rule(
        state=st.sampled_from([None, *STATES]),
        prefix=PREFIXES,
        named=st.sampled_from([None, "workflow", "another"]),
        limit=st.integers(1, 3),
    )
    def list_all(self, state: Any, prefix: str | None, named: str | None, limit: int) -> None:
        filters: dict[str, Any] = {"state": state, "prefix": prefix, "namespace": named}

        async def listed(stores: Stores, _: object) -> tuple[list[int], list[Any]]:
            page = await stores.durable.list(**filters, limit=limit)
            pages = [page]
            while page.next is not None:
                page = await stores.durable.list(**filters, limit=limit, after=page.next)
                pages.append(page)
            items = [one for page in pages for one in page.items]
            return [len(page.items) for page in pages], self.in_order(items)

        self.same(listed)

    @rule(workflow=IDS, named=st.sampled_from([None, "workflow", "another"]))
    def look(self, workflow: str, named: str | None) -> None:
        async def looked(stores: Stores, _: object) -> Any:
            durable = stores.durable
            status = await durable.status(workflow)
            sentence = await durable.why(workflow)
            # Moments and tokens are each store's own, and what follows them.
            begins = re.split(r"\d", sentence)[0]
            if sentence.startswith(f"{workflow!r} is queued in"):
                begins = "is queued"
            return self.comparable(status), begins, await durable.counts(named)

        self.same(looked)

    @rule(workflow=IDS)
    def result(self, workflow: str) -> None:
        self.same(lambda stores, _: stores.durable.result(workflow, within=NOW))

    # --- passes ---

    @rule(budget=DURATIONS, attempts=ATTEMPTS)
    def start_passes(self, budget: timedelta, attempts: int | None) -> None:
        async def start(stores: Stores, _: object) -> dict[str, Started]:
            if hasattr(stores.durable, "start_passes"):
                passes = await stores.durable.start_passes(MANY, NOW, budget, attempts)
                return {one.delivery.workflow: one for one in passes}
            taken = (await self.drained(stores)).values()
            passes = [await start_on(stores.durable, one, budget, attempts) for one in taken]
            return {one.delivery.workflow: one for one in passes}

        async def give_back(stores: Stores, passes: dict[str, Started]) -> None:
            for one in passes.values():
                if one.holder is not None:
                    again = Ended(self.clock.now(), attempts=one.attempt - 1)
                    await stores.durable.end_pass(one.holder, one.delivery, again)
                elif one.over is None:
                    await stores.scheduler.wake_at(one.delivery, self.clock.now())

        both = self.ask(start, give_back=give_back)
        if both is UNHEARD:
            return
        assert both.memory.keys() == both.sqlite.keys()
        for workflow, of_memory in both.memory.items():
            of_sqlite = both.sqlite[workflow]
            self.is_new("mail", Both(of_memory.delivery, of_sqlite.delivery))
            self.is_started(Both(of_memory, of_sqlite))

    @rule(workflow=WORKFLOWS, which=WHICH, budget=DURATIONS, attempts=ATTEMPTS)
    def start_pass(
        self, workflow: str, which: str, budget: timedelta, attempts: int | None
    ) -> None:
        async def start(stores: Stores, delivery: Delivery) -> Any:
            return await start_on(stores.durable, delivery, budget, attempts)

        async def give_back(stores: Stores, started: Started) -> None:
            if started.holder is not None:
                await stores.checkpointer.release(started.holder)
                runs = stores.durable.runs
                runs[workflow] = dataclasses.replace(
                    runs[workflow], attempts=started.attempt - 1, updated_at=self.clock.now()
                )

        both = self.ask(start, self.delivery(workflow, "mail", which), give_back=give_back)
        if both is not UNHEARD:
            self.is_started(both)

    def is_started(self, both: Both) -> None:
        facts = [(one.attempt, one.over, one.holder is None) for one in (both.memory, both.sqlite)]
        assert facts[0] == facts[1]
        if both.memory.holder is None:
            return
        holder = Both(both.memory.holder, both.sqlite.holder)
        for earlier in self.passes[holder.memory.workflow]:
            assert holder.memory.token > earlier.memory.token
            assert holder.sqlite.token > earlier.sqlite.token
        self.passes[holder.memory.workflow].append(holder)

    @rule(workflow=WORKFLOWS, which=WHICH, whose=WHICH, how=ENDS, step=DURATIONS)
    def end_pass(self, workflow: str, which: str, whose: str, how: str, step: timedelta) -> None:
        delivery = self.delivery(workflow, "mail", which)
        holder = self.holder(workflow, whose)
        due = self.clock.now() + step
        end = {
            "completed": ended(Completed({"of": how})),
            "completed with nothing": ended(Completed(None)),
            "unstorable": ended(Completed({1})),
            "sleeping": ended(Sleeping("c", due)),
            "blocked": ended(Blocked(frozenset("d"), frozenset(["received"]))),
            "raised": raised(FAILURE, due),
            "raised for the last time": raised(FAILURE, None),
            "given back": Ended(self.clock.now(), attempts=0),
            "looked at again": Ended(due),
        }[how]
        answers = self.ask(
            lambda stores, its: stores.durable.end_pass(*its, end),
            Both((holder.memory, delivery.memory), (holder.sqlite, delivery.sqlite)),
        )
        if end.state is not None:  # else it leaves the state as it is
            assert answers.memory == answers.sqlite

    @rule(workflow=WORKFLOWS, how=ENDS, step=DURATIONS, woken=st.booleans())
    def pass_through(self, workflow: str, how: str, step: timedelta, woken: bool) -> None:
        """A pass from its start to its end, as a worker makes it."""
        self.moments = []
        self.arrive(workflow, "mail", "e", 1)
        self.start_passes(LEASE, None)
        if woken:
            self.append(workflow, "mail", 1, deliver=True)
        self.end_pass(workflow, "newest", "newest", how, step)

    # --- steering ---

    @rule(workflow=IDS)
    def retry(self, workflow: str) -> None:
        self.same(lambda stores, _: stores.durable.retry(workflow))

    @rule(workflow=IDS, reason=st.sampled_from(["", "enough"]))
    def cancel_for_good(self, workflow: str, reason: str) -> None:
        self.same(lambda stores, _: stores.durable.cancel(workflow, reason))

    @rule(workflow=IDS, to=STEPS)
    def rewind(self, workflow: str, to: str) -> None:
        self.same(lambda stores, _: stores.durable.rewind(workflow, to))

    @rule(workflow=IDS, into=IDS, before=st.one_of(st.none(), STEPS))
    def fork(self, workflow: str, into: str, before: str | None) -> None:
        self.same(lambda stores, _: stores.durable.fork(workflow, into, before=before))

    @rule(
        older=st.sampled_from([NOW, LEASE, 100 * LEASE]),
        states=st.sets(st.sampled_from(FINISHED), min_size=1),
        limit=st.sampled_from([1, 2, 1000]),
    )
    def sweep(self, older: timedelta, states: set[Any], limit: int) -> None:
        """Several commits: it is not whole. Tokens follow time alone from there on (C3)."""
        swept = self.ask(
            lambda stores, _: stores.durable.sweep(older=older, states=states, limit=limit),
            whole=False,
        )
        assert swept.memory == swept.sqlite
        for gone in self.workflows:
            if gone not in self.memory["mail"].durable.runs:
                self.passes[gone].clear()


async def start_on(
    durable: Any, delivery: Delivery, budget: timedelta, attempts: int | None
) -> Started:
    """Of a cancelled workflow that somebody claimed all the same, either may be said: it is held.

    Only who goes behind the ledger's back claims one.
    """
    if isinstance(durable, MemoryDurable) and durable.scheduler._out(delivery):
        run = durable.runs.get(delivery.workflow)
        held = durable.checkpointer._alive(delivery.workflow) is not None
        if run is not None and run.state == "cancelled" and held:
            return Started(delivery, None)
    return await durable.start_pass(delivery, budget, attempts)
