"""The clauses of the ledger about arrivals and the ends of passes, each as a check."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from ..ledger import Failure, State, ended, raised
from ..outcomes import Blocked, Completed, Sleeping
from ..values import Delivery, Ended, Pass
from .subject import (
    FAILURE,
    LONG,
    MINUTE,
    SECOND,
    UNSTORABLE,
    Opened,
    Subject,
    cancelled_in_every_turn,
    expect,
    expect_refused,
)

__all__ = [
    "check_l1_an_arrival_creates_the_row_or_makes_it_ready",
    "check_l2_what_arrives_for_a_cancelled_workflow_wakes_nobody",
    "check_l4_an_orderly_end_is_one_commit",
    "check_l5_an_error_is_kept_and_the_last_one_parks",
]

Arrival: TypeAlias = Callable[[Opened, str], Awaitable[object]]

ARRIVALS: dict[str, Arrival] = {
    "an arrive": lambda at, workflow: at.ledger.arrive(workflow, "go", 1),
    "an arrive of what is known": lambda at, workflow: at.ledger.arrive(workflow, "k", 2),
    "a deliver": lambda at, workflow: at.ledger.deliver(workflow, "message"),
}

WAKEUPS: dict[str, Arrival] = {
    **ARRIVALS,
    "a make_ready": lambda at, workflow: at.scheduler.make_ready(workflow),
}


async def check_l1_an_arrival_creates_the_row_or_makes_it_ready(subject: Subject) -> None:
    """L1: `arrive` and `deliver` create the row, `ready`, or make it so, in their own commit."""
    async with subject.opened() as at:
        for name, arrive in ARRIVALS.items():
            workflow = f"new to {name}"
            await arrive(at, workflow)
            row = await at.row(workflow)
            expect(row.state == "ready", f"{name} of a new workflow left it {row.state}")
            expect(row.attempts == 0, f"after {name} {row.attempts} attempts are counted")
            for moment in (row.created_at, row.updated_at):
                apart = abs(moment - at.clock.now())
                expect(apart < SECOND, f"{name} is dated {moment}, which is {apart} off")
            await at.scheduler.done(await at.taken(workflow))
            await _arrives_for_those_that_rest(at, name, arrive)
            await _arrives_for_one_that_died(at, name, arrive)
        await expect_refused(
            (TypeError, ValueError),
            at.ledger.arrive("refused", "k", UNSTORABLE),
            "a value that cannot be stored arrives",
        )
        expect(await at.ledger.status("refused") is None, "an arrival that was refused has a row")
        for name in ("an arrive", "a deliver"):
            await cancelled_in_every_turn(
                name, _as_call(at, name), lambda workflow, _: _arrived_whole(at, workflow)
            )
        if subject.reopen is not None:
            await at.ledger.arrive("kept", "k", 1)
            async with subject.reopened(at.clock) as after:
                row = await after.row("kept")
                expect(row.state == "ready", f"what had arrived is {row.state} after a crash")


async def _arrives_for_those_that_rest(at: Opened, name: str, arrive: Arrival) -> None:
    states: tuple[State, ...] = ("sleeping", "blocked", "completed", "failed")
    for state in states:
        workflow = f"{state} before {name}"
        before = await at.brought(workflow, state)
        at.clock.advance(SECOND)
        await arrive(at, workflow)
        row = await at.row(workflow)
        expect(row.state == "ready", f"after {name} a {state} workflow is {row.state}")
        expect(row.attempts == 0, f"{name} left a {state} workflow {row.attempts} attempts")
        same = (row.seq, row.created_at) == (before.seq, before.created_at)
        expect(same, f"{name} made a {state} workflow another one: {before}, {row}")
        expect(row.updated_at > before.updated_at, f"{name} did not move updated_at of {state}")
        await at.scheduler.done(await at.taken(workflow))


async def _arrives_for_one_that_died(at: Opened, name: str, arrive: Arrival) -> None:
    workflow = f"dead before {name}"
    await at.ledger.arrive(workflow, "k", 1)
    await at.begun(workflow)
    at.pass_lease()
    await arrive(at, workflow)
    attempts = (await at.row(workflow)).attempts
    expect(attempts == 1, f"of a pass that died {name} left {attempts} attempts")
    await at.scheduler.done(await at.taken(workflow))


def _as_call(at: Opened, name: str) -> Any:
    async def call(workflow: str) -> object:
        return await ARRIVALS[name](at, workflow)

    return call


async def _arrived_whole(at: Opened, workflow: str) -> None:
    """Record, row and wakeup are there together, or none of them."""
    await at.checkpointer.supply("another", "k", 1)  # whatever had begun is over
    row = await at.ledger.status(workflow)
    loaded = await at.checkpointer.load(workflow)
    queued = await at.take() is not None
    parts = (row is not None, loaded != {}, queued)
    expect(len({*parts}) == 1, f"{workflow} left a part: row, record, wakeup are {parts}")
    await at.ledger.delete(workflow)


async def check_l2_what_arrives_for_a_cancelled_workflow_wakes_nobody(subject: Subject) -> None:
    """L2: on a cancelled workflow `arrive` and `deliver` record and queue nothing."""
    async with subject.opened() as at:
        await at.brought("w", "cancelled")
        before = await at.row("w")
        answer = await at.ledger.arrive("w", "go", "given")
        expect(answer == "given", f"an arrive on a cancelled workflow answered {answer!r}")
        again = await at.ledger.arrive("w", "k", 2)
        expect(again == 1, f"an arrive of what is recorded answered {again!r}")
        entry = await at.ledger.deliver("w", "message")
        loaded = await at.checkpointer.load("w")
        expect(
            loaded == {"k": 1, "go": "given", entry.key: "message"},
            f"of what arrived for a cancelled workflow there is {loaded}",
        )
        after = await at.row("w")
        expect(after.state == "cancelled", f"an arrival made a cancelled workflow {after.state}")
        expect(after.reason == before.reason, f"an arrival made its reason {after.reason!r}")
        at.pass_lease()
        await at.expect_quiet("it was cancelled before that arrived")
        await at.ledger.retry("w")
        await at.scheduler.done(await at.taken("w"))
        await _arrives_again(at, "was retried")
        await at.ledger.cancel("w")
        await at.ledger.delete("w")
        await _arrives_again(at, "was deleted")


async def _arrives_again(at: Opened, since: str) -> None:
    await at.ledger.arrive("w", "more", 1)
    await at.scheduler.done(await at.taken("w"))
    state = (await at.row("w")).state
    expect(state == "ready", f"it was cancelled and {since}, and what arrives leaves it {state}")


async def check_l4_an_orderly_end_is_one_commit(subject: Subject) -> None:
    """L4: an end writes state and detail, answers and releases, if it is the newest's."""
    async with subject.opened() as at:
        await _ends_in_each_way(at)
        await _ends_late(at)
        await _ends_after_a_wakeup(at)
        passes: dict[str, tuple[Pass, Delivery]] = {}

        async def ends(workflow: str) -> None:
            await at.ledger.arrive(workflow, "k", 1)
            passes[workflow] = await at.begun(workflow)
            await at.ledger.end_pass(*passes[workflow], ended(Completed(1)))

        async def whole(workflow: str, _: None) -> None:
            await at.checkpointer.supply("another", "k", 1)  # whatever had begun is over
            if workflow in passes:
                row = await at.row(workflow)
                over = row.state == "completed"
                expect(over != row.running, f"{workflow} is {row.state}, running: {row.running}")
                at.pass_lease()
                delivered = await at.take() is not None
                expect(over != delivered, f"{workflow} is {row.state}, delivered: {delivered}")
            await at.ledger.delete(workflow)

        await cancelled_in_every_turn("an end", ends, whole)
        if subject.reopen is not None:
            await at.brought("kept", "completed")
            async with subject.reopened(at.clock) as after:
                row = await after.row("kept")
                expect(row.result == "value", f"what had ended is {row} after a crash")


async def _ends_in_each_way(at: Opened) -> None:
    due = at.clock.now() + 5 * at.scheduler.lease + MINUTE
    waiting, listening = frozenset({"key"}), frozenset({"mail", "post"})
    ends: dict[State, tuple[Ended, dict[str, object]]] = {
        "sleeping": (ended(Sleeping("nap", due)), {"due": due}),
        "blocked": (
            ended(Blocked(waiting, listening)),
            {"waiting": waiting, "listening": listening},
        ),
        "completed": (ended(Completed({"n": [1, 2]})), {"result": {"n": [1, 2]}}),
    }
    for state, (end, told) in ends.items():
        await at.ledger.arrive(state, "k", 1)
        if state == "completed":
            await at.begun(state)
            at.pass_lease()  # that pass died: the one that ends is the second attempt
        await at.ended(state, end)
        row = await at.row(state)
        expect(row.state == state, f"an end that is {state} left the workflow {row.state}")
        expect(row.attempts == 0, f"an end that is {state} left {row.attempts} attempts")
        expect(not row.running, f"a workflow whose pass ended {state} counts as running")
        for name, value in told.items():
            kept = getattr(row, name)
            expect(kept == value, f"an end that is {state} has the {name} {kept!r}, not {value!r}")
        await at.expect_claimable(state, f"its pass ended {state}")
        at.pass_lease()
        await at.expect_quiet(f"a pass ended {state}")
    at.clock.advance(due - at.clock.now())
    row = await at.row("sleeping")
    expect(row.due is None, f"the moment has come, and it is due at {row.due}")
    await at.scheduler.done(await at.taken("sleeping"))


async def _ends_late(at: Opened) -> None:
    await at.ledger.arrive("outranked", "k", 1)
    old = await at.begun("outranked")
    at.pass_lease()
    new = await at.begun("outranked")
    await at.ledger.end_pass(*old, ended(Completed("the old one's")))
    row = await at.row("outranked")
    counted = (row.state, row.attempts, row.running)
    expect(counted == ("ready", 2, True), f"a pass that was outranked ended, and left it {row}")
    await at.checkpointer.record(new[0], "step", 1)
    await at.ledger.end_pass(*new, ended(Completed("the new one's")))
    await at.ledger.end_pass(*new, ended(Blocked(frozenset({"key"}), frozenset())))
    row = await at.row("outranked")
    expect(row.result == "the new one's", f"a pass ended a second time, and left it {row}")
    at.pass_lease()
    await at.expect_quiet("the newest pass completed")

    await at.ledger.arrive("taken over", "k", 1)
    holder, delivery = await at.begun("taken over")
    delivery = await at.scheduler.extend(delivery, LONG)
    at.pass_lease()
    other = await at.checkpointer.claim("taken over", LONG, LONG)
    await at.ledger.end_pass(holder, delivery, ended(Completed("late")))
    row = await at.row("taken over")
    expect((row.state, row.running) == ("ready", True), f"a late end left it {row}")
    assert other is not None
    await at.checkpointer.record(other, "step", 1)
    at.clock.advance(LONG)
    await at.expect_quiet("a late end answers for the delivery it still holds")


async def _ends_after_a_wakeup(at: Opened) -> None:
    rest = ended(Sleeping("nap", at.clock.now() + 10 * LONG))
    for name, wake in WAKEUPS.items():
        for end in (ended(Completed(1)), rest):
            workflow = f"{name} before it ended {end.state}"
            await at.ledger.arrive(workflow, "k", 1)
            ending = await at.begun(workflow)
            await wake(at, workflow)
            await at.ledger.end_pass(*ending, end)
            row = await at.row(workflow)
            expect(row.state == "ready", f"{name} during a pass, and it ended {row.state}")
            expect(row.attempts == 0, f"{name} during a pass left it {row.attempts} attempts")
            expect(not row.running, f"{name} during a pass, and its end did not release")
            await at.scheduler.done(await at.taken(workflow))
    await at.ledger.arrive("out of the queue", "k", 1)
    ending = await at.begun("out of the queue")
    await at.scheduler.cancel("out of the queue")
    await at.ledger.end_pass(*ending, ended(Completed(1)))
    row = await at.row("out of the queue")
    expect(row.state == "completed", f"with nothing queued, a pass completed and left it {row}")


async def check_l5_an_error_is_kept_and_the_last_one_parks(subject: Subject) -> None:
    """L5: an error is kept; below the limit it is tried again when due, at the limit it parks."""
    async with subject.opened() as at:
        await at.ledger.arrive("w", "k", 1)
        holder, delivery = await at.begun("w")
        await at.checkpointer.record(holder, "step", "done")
        due = at.clock.now() + at.scheduler.lease + MINUTE
        await at.ledger.end_pass(holder, delivery, raised(FAILURE, due))
        row = await at.row("w")
        expect(row.state == "ready", f"a body raised below the limit and is {row.state}")
        expect(row.error == FAILURE, f"of {FAILURE} there is {row.error}")
        expect(row.attempts == 1, f"after one failure {row.attempts} attempts are counted")
        expect(row.due == due, f"to be tried again at {due}, it is due at {row.due}")
        at.pass_lease()
        await at.expect_quiet("it is to be tried again later")
        at.clock.advance(MINUTE)
        holder, delivery = await at.begun("w")
        row = await at.row("w")
        expect(row.attempts == 2, f"after a failure the second pass is attempt {row.attempts}")
        await at.ledger.end_pass(holder, delivery, Ended(at.clock.now(), attempts=1))
        row = await at.row("w")
        expect(row.state == "ready", f"a pass that was given back left it {row.state}")
        expect(row.attempts == 1, f"a pass that was given back counts: {row.attempts} attempts")
        expect(row.error == FAILURE, f"a pass that was given back left the error {row.error}")
        holder, delivery = await at.begun("w")
        last = Failure("StillClosed", "no such card")
        await at.ledger.end_pass(holder, delivery, raised(last, None))
        row = await at.row("w")
        expect(row.state == "failed", f"a body raised at the limit and is {row.state}")
        expect(row.error == last, f"of the last error {last} there is {row.error}")
        expect(row.attempts == 2, f"parked after 2 attempts, it has {row.attempts}")
        expect(row.due is None, f"what is parked is due at {row.due}")
        loaded = await at.checkpointer.load("w")
        expect(loaded == {"k": 1, "step": "done"}, f"parked, it has of its records {loaded}")
        await at.expect_claimable("w", "it was parked")
        at.clock.advance(LONG)
        await at.expect_quiet("it was parked")
