"""The clause of the ledger about the starts of passes, as a check."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from ..ledger import raised
from ..values import Delivery, Pass, Started
from .subject import (
    FAILURE,
    LONG,
    NOW,
    SECOND,
    Opened,
    Subject,
    cancelled_in_every_turn,
    eventually,
    expect,
    expect_fenced,
)

__all__ = ["check_l3_a_start_claims_and_counts"]

Start: TypeAlias = Callable[[str, int | None], Awaitable[Started]]
"""Takes the workflow that is ready and starts a pass on it, given the limit of attempts."""


def _starts(at: Opened) -> dict[str, Start]:
    """`start_pass`, and `start_passes` where it is offered, which does the same."""

    async def start_pass(workflow: str, attempts: int | None = None) -> Started:
        return await at.ledger.start_pass(await at.taken(workflow), LONG, attempts)

    async def start_passes(workflow: str, attempts: int | None = None) -> Started:
        durable: Any = at.durable

        async def look() -> Started | None:
            for started in await durable.start_passes(1, NOW, LONG, attempts):
                return started  # type: ignore[no-any-return]
            return None

        started = await eventually(look)
        expect(started is not None, f"{workflow!r} is ready, and start_passes starts nothing")
        assert started is not None
        found = started.delivery.workflow
        expect(found == workflow, f"start_passes took {found!r} where {workflow!r} was ready")
        return started

    starts: dict[str, Start] = {"start_pass": start_pass}
    if hasattr(at.durable, "start_passes"):
        starts["start_passes"] = start_passes
    return starts


async def check_l3_a_start_claims_and_counts(subject: Subject) -> None:
    """L3: a start claims and counts, on a delivery that is held and with attempts left."""
    async with subject.opened() as at:
        for by, start in _starts(at).items():
            await _counts_those_that_die(at, by, start)
            await _parks_with_the_last_error(at, by, start)
            await _leaves_a_held_one_alone(at, by, start)
            await _starts_none_that_is_cancelled(at, by, start)
            await at.scheduler.make_ready(f"never arrived, {by}")
            started = await start(f"never arrived, {by}", None)
            _expect_pass(started, 1, f"{by} of what never arrived")
            row = await at.row(f"never arrived, {by}")
            expect((row.state, row.attempts) == ("ready", 1), f"{by} of it left it {row}")
            await at.scheduler.done(started.delivery)
        await _starts_none_on_a_delivery_that_is_gone(at)
        await cancelled_in_every_turn(
            "a start", lambda workflow: _arrive_and_start(at, workflow), _given_back(at)
        )


def _expect_pass(started: Started, attempt: int, what: str) -> Pass:
    holder = started.holder
    expect(holder is not None and started.over is None, f"{what} starts no pass: {started}")
    assert holder is not None
    expect(started.attempt == attempt, f"{what} is attempt {started.attempt} and not {attempt}")
    return holder


def _expect_none(started: Started, over: str | None, what: str) -> None:
    holder = started.holder
    expect(holder is None, f"{what} starts a pass")
    expect(started.over == over, f"{what} is over as {started.over!r} and not {over!r}")


async def _counts_those_that_die(at: Opened, by: str, start: Start) -> None:
    workflow = f"dies, {by}"
    await at.ledger.arrive(workflow, "k", 1)
    first = _expect_pass(await start(workflow, None), 1, f"the first {by}")
    row = await at.row(workflow)
    expect((row.state, row.attempts) == ("ready", 1), f"a first {by} left the workflow {row}")
    expect(row.running, f"a pass began by {by} and does not count as running")
    await at.checkpointer.record(first, "step", "done")
    other = await at.checkpointer.claim(workflow, LONG, LONG)
    expect(other is None, f"{by} claims nothing: another holds {workflow!r} beside it")
    at.pass_lease()
    second = _expect_pass(await start(workflow, 2), 2, f"the second {by}")
    expect(second.token > first.token, f"{by} gave {second} after {first}")
    await expect_fenced(at, first, "a pass that a newer start outranked")
    at.pass_lease()
    third = await start(workflow, 2)
    _expect_none(third, "parked", f"the third {by} of two attempts")
    expect(third.attempt == 2, f"one that is parked after 2 attempts had {third.attempt}")
    row = await at.row(workflow)
    expect((row.state, row.attempts) == ("failed", 2), f"the third of two attempts left it {row}")
    expect(row.error is not None, "one that is parked has no error")
    loaded = await at.checkpointer.load(workflow)
    expect(loaded == {"k": 1, "step": "done"}, f"parked, it has of its records {loaded}")
    await at.expect_claimable(workflow, "it was parked")
    at.pass_lease()
    await at.expect_quiet("it was parked")
    await at.scheduler.make_ready(workflow)
    again = await start(workflow, 2)
    _expect_pass(again, 1, f"a {by} of what was parked and made ready by hand")
    row = await at.row(workflow)
    expect((row.state, row.attempts) == ("ready", 1), f"made ready by hand, it is {row}")
    await at.scheduler.done(again.delivery)


async def _parks_with_the_last_error(at: Opened, by: str, start: Start) -> None:
    workflow = f"fails and dies, {by}"
    await at.ledger.arrive(workflow, "k", 1)
    started = await start(workflow, 2)
    holder = _expect_pass(started, 1, f"a {by}")
    await at.ledger.end_pass(holder, started.delivery, raised(FAILURE, at.clock.now()))
    at.clock.advance(SECOND)
    _expect_pass(await start(workflow, 2), 2, f"a {by} after a failure")
    at.pass_lease()
    _expect_none(await start(workflow, 2), "parked", f"a {by} with no attempts left")
    error = (await at.row(workflow)).error
    expect(error == FAILURE, f"parked without a word, it keeps the error {error}")


async def _leaves_a_held_one_alone(at: Opened, by: str, start: Start) -> None:
    workflow = f"held, {by}"
    await at.ledger.arrive(workflow, "k", 1)
    holder = _expect_pass(await start(workflow, 1), 1, f"a {by}")
    await at.ledger.arrive(workflow, "more", 1)
    second = await start(workflow, 1)
    _expect_none(second, None, f"a {by} of what another pass holds")
    row = await at.row(workflow)
    counted = (row.state, row.attempts, row.running)
    expect(counted == ("ready", 1, True), f"a {by} that was refused left it {row}")
    await at.checkpointer.record(holder, "step", 1)
    at.pass_lease()
    third = await start(workflow, 5)  # a refused start answers for nothing
    _expect_pass(third, 2, f"a {by} after one that was refused")
    await at.scheduler.done(third.delivery)


async def _starts_none_that_is_cancelled(at: Opened, by: str, start: Start) -> None:
    workflow = f"cancelled, {by}"
    before = await at.brought(workflow, "cancelled")
    await at.scheduler.make_ready(workflow)
    _expect_none(await start(workflow, None), "cancelled", f"a {by} of what is cancelled")
    row = await at.row(workflow)
    same = (row.state, row.attempts) == (before.state, before.attempts)
    expect(same, f"a {by} of what is cancelled made it {row}")
    await at.expect_claimable(workflow, "it is cancelled")
    at.pass_lease()
    await at.expect_quiet("a start answered for it, as it is cancelled")


async def _starts_none_on_a_delivery_that_is_gone(at: Opened) -> None:
    async def cancel(delivery: Delivery) -> None:
        await at.scheduler.cancel(delivery.workflow)

    async def make_ready(delivery: Delivery) -> None:
        await at.scheduler.make_ready(delivery.workflow)

    for name, lose in {
        "cancelled": cancel,
        "answered": at.scheduler.done,
        "made ready again": make_ready,
    }.items():
        workflow = f"gone, {name}"
        await at.ledger.arrive(workflow, "k", 1)
        delivery = await at.taken(workflow)
        await lose(delivery)
        started = await at.ledger.start_pass(delivery, LONG, 1)
        _expect_none(started, "gone", f"a start on a delivery that was {name}")
        attempts = (await at.row(workflow)).attempts
        expect(attempts == 0, f"a start on a delivery that was {name} counts: {attempts}")
        await at.expect_claimable(workflow, f"its delivery was {name}")
        if name == "made ready again":
            await at.scheduler.done(await at.taken(workflow))
        at.pass_lease()
        await at.expect_quiet(f"its delivery was {name}")


async def _arrive_and_start(at: Opened, workflow: str) -> Started:
    await at.ledger.arrive(workflow, "k", 1)
    return await at.ledger.start_pass(await at.taken(workflow), LONG)


def _given_back(at: Opened) -> Callable[[str, Started | None], Awaitable[None]]:
    async def settled(workflow: str, started: Started | None) -> None:
        if started is None:
            holder = await eventually(lambda: at.checkpointer.claim(workflow, LONG, LONG))
            expect(holder is not None, f"{workflow} keeps a claim that nobody heard of")
        await at.ledger.delete(workflow)

    return settled
