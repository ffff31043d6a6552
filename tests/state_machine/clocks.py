"""Time: it passes, and the wall's clock is set ahead and back."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import rule

from state_machine.asking import QUEUES, TICK, Both, rounded
from state_machine.calls import NAMES, Queue, Records
from state_machine.calls import WORKFLOWS as ANY_WORKFLOW
from stores import Stores
from without_durability import BUDGET, LEASE, Claim, Delivery

# Some milliseconds that a float holds exactly: both stores then reach every end at once.
A_LITTLE = timedelta(seconds=1) / 64
HOUR = timedelta(hours=1)
BACK = [A_LITTLE, 5 * A_LITTLE, 63 * A_LITTLE, HOUR, 5 * HOUR]
TOUCHES = st.sampled_from(["nothing", "renew", "extend", "record", "release"])
ABOUT_NOTHING = 1e-5


class Clocks(Records, Queue):
    @rule(off=st.sampled_from([-1, 0, 1]))
    def reach_the_next_end(self, off: int) -> None:
        """Of a claim's life or budget, a lease or a sleep, give or take a little."""
        if self.ends:
            ahead = timedelta(seconds=min(self.ends)) - TICK + off * A_LITTLE
            self.pass_time(max(timedelta(0), ahead))
            self.ends = []

    @rule(hours=st.sampled_from([1, 5]))
    def hours_pass(self, hours: int) -> None:
        """Or the clock is set ahead, which looks the same."""
        self.pass_time(hours * HOUR)
        self.ends = []

    @rule(
        back=st.sampled_from(BACK),
        workflow=ANY_WORKFLOW,
        queue=NAMES,
        last=TOUCHES,
        first=TOUCHES,
        ready=st.booleans(),
        lapsed=st.booleans(),
    )
    def set_back(
        self,
        back: timedelta,
        workflow: str,
        queue: str,
        last: str,
        first: str,
        ready: bool,
        lapsed: bool,
    ) -> None:
        """Nothing ends early, nothing is kept for longer than one life or lease, all is found.

        What the stores then grant may differ by the time since they last heard of it: memory
        follows, and from there on they agree again.
        """
        self.moments = []
        if lapsed:
            self.pass_time(HOUR)
        with self.no_time_passes():
            for name in QUEUES:
                self.take(name)
            if ready:
                self.make_ready(workflow, queue)
            self.touch(workflow, last)
            self.clock.advance(-back)
            self.run(self.follow_claims(back.total_seconds()))
            for name in QUEUES:
                self.run(self.follow_wakeups(name, back.total_seconds()))
            for one in self.workflows:
                self.touch(one, first)
                self.claim(one, BUDGET, LEASE)
        self.ends = []

    def touch(self, workflow: str, first: str) -> None:
        """The last that is heard of a claim before the clock is set back, or the first after."""
        if first == "renew":
            self.renew(workflow, "newest", LEASE)
        elif first == "extend":
            self.extend_claim(workflow, "newest", BUDGET, LEASE)
        elif first == "record":
            self.record(workflow, "newest", "a", 1)
        elif first == "release":
            self.release(workflow, "newest")

    async def follow_claims(self, back: float) -> None:
        claims, _ = await self.databases[0].run(self.seconds_left)
        now, steady = self.clock.seconds(), self.steady.seconds()
        kept = self.memory["mail"].checkpointer.claims
        for workflow, alive, budget, alive_for, seen_at in claims:
            claim = kept.get(workflow)
            if claim is None:  # forgotten there, and kept here for its token
                assert rounded(budget) == 0
                continue
            longer = min(back, max(0.0, now + back - seen_at)) + ABOUT_NOTHING
            if claim.held_until > 0:
                ends = ((claim.alive_until - steady, alive), (claim.held_until - steady, budget))
                for before, after in ends:
                    assert before - ABOUT_NOTHING <= after <= before + longer
                assert alive <= alive_for + ABOUT_NOTHING
                kept[workflow] = Claim(claim.token, steady + budget, steady + alive, claim.alive)

    async def follow_wakeups(self, name: str, back: float) -> None:
        at = self.turns.randrange(2)
        memory, sqlite = self.memory[name], self.sqlite[at][name]
        found = Both(await self.drained(memory), await self.drained(sqlite))
        assert found.memory.keys() == found.sqlite.keys(), "what was made ready was not found"
        for workflow, delivery in found.memory.items():
            self.is_new(name, Both(delivery, found.sqlite[workflow]))
        _, wakeups = await self.databases[1 - at].run(self.seconds_left)
        out, steady = memory.scheduler.outstanding, self.steady.seconds()
        for queue, workflow, after, taken_for in wakeups:
            if queue == self.namespaces[name] and workflow in out:
                delivery, until = out[workflow]
                earliest = min(until - steady, taken_for) - ABOUT_NOTHING
                latest = min(until - steady + back, taken_for + 1) + ABOUT_NOTHING
                assert earliest <= after <= latest
                if not await self.is_held(
                    sqlite, self.deliveries[self.namespaces[name], workflow], delivery
                ):
                    delivery = Delivery(workflow, "taken before the clock was set back")
                out[workflow] = delivery, steady + after

    async def is_held(self, sqlite: Stores, given: list[Both], delivery: Delivery) -> bool:
        """Whether what memory has out still is, for SQLite."""
        for both in given:
            if both.memory == delivery:
                return await sqlite.scheduler.holds(both.sqlite)
        return False
