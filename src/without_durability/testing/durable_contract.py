"""The clauses of the calls that touch both stores, each as a check."""

from __future__ import annotations

from ..interfaces import claimed
from ..signals import Fenced
from ..values import Entry
from .subject import (
    LONG,
    Opened,
    Subject,
    cancelled_in_every_turn,
    expect,
    expect_never_claimed,
    expect_refused,
)

__all__ = [
    "check_d1_arrive_supplies_and_makes_ready",
    "check_d2_deliver_appends_and_makes_ready",
    "check_d3_delete_cancels_and_discards",
    "check_d4_what_is_half_done_can_be_asked_for_again",
]


async def check_d1_arrive_supplies_and_makes_ready(subject: Subject) -> None:
    """D1: `arrive` is `supply`, and makes ready each time."""
    async with subject.opened() as at:
        for value in ("first", "second"):
            answer = await at.durable.arrive("w", "k", value)
            expect(answer == "first", f"arrive of {value!r} after 'first' answered {answer!r}")
            await at.scheduler.done(await at.taken("w"))
        expect(await at.checkpointer.load("w") == {"k": "first"}, "arrive did not keep the first")


async def check_d2_deliver_appends_and_makes_ready(subject: Subject) -> None:
    """D2: `deliver` is `append`, and makes ready each time."""
    async with subject.opened() as at:
        entries: list[Entry] = []
        for value in ("first", "second"):
            entries.append(await at.durable.deliver("w", value))
            await at.scheduler.done(await at.taken("w"))
        loaded = list((await at.checkpointer.load("w")).items())
        filed = [(entry.key, entry.value) for entry in entries]
        expect(loaded == filed, f"deliver answered {filed}, and load gives {loaded}")
        expect(filed[0][0] < filed[1][0], "the later of two messages sorts first")


async def check_d3_delete_cancels_and_discards(subject: Subject) -> None:
    """D3: `delete` is `cancel` and `discard`, of that workflow alone."""
    async with subject.opened() as at:
        await at.durable.arrive("w", "k", 1)
        await at.durable.deliver("w", "message")
        holder = await claimed(at.checkpointer, "w", LONG, LONG)
        count = await at.durable.delete("w")
        expect(count == 2, f"delete of two records answered {count}")
        expect(await at.checkpointer.load("w") == {}, "delete left records behind")
        await at.expect_quiet("it was deleted")
        await expect_refused(
            Fenced,
            at.checkpointer.record(holder, "k", 1),
            "a pass whose workflow was deleted still writes",
        )
        expect(await at.durable.delete("unknown") == 0, "delete of nothing counts something")
        await expect_never_claimed(at, "unknown")
        for state in ("ready", "out with a worker", "asleep"):
            await at.scheduler.make_ready("w")
            if state != "ready":
                delivery = await at.taken("w")
            if state == "asleep":
                await at.scheduler.wake_at(delivery, at.clock.now() + LONG)
            count = await at.durable.delete("w")
            expect(count == 0, f"delete of no records answered {count}")
            at.clock.advance(LONG)
            at.pass_lease()
            await at.expect_quiet(f"it was deleted while it was {state}")


async def check_d4_what_is_half_done_can_be_asked_for_again(subject: Subject) -> None:
    """D4: nothing is queued before it is recorded, or discarded while its wakeup stands.

    A caller cancelled in any turn stands for a crash between the two stores' parts.
    """
    async with subject.opened() as at:
        await cancelled_in_every_turn(
            "an arrive",
            lambda workflow: at.durable.arrive(workflow, "k", 1),
            lambda workflow, _: _arrived(at, workflow),
        )
        await cancelled_in_every_turn(
            "a deliver",
            lambda workflow: at.durable.deliver(workflow, 1),
            lambda workflow, _: _arrived(at, workflow),
        )

        async def arrived_and_deleted(workflow: str) -> int:
            await at.durable.arrive(workflow, "k", 1)
            return await at.durable.delete(workflow)

        await cancelled_in_every_turn(
            "a delete", arrived_and_deleted, lambda workflow, _: _deleted(at, workflow)
        )
        if subject.reopen is not None:
            await at.durable.arrive("w", "k", 1)
            async with subject.reopened(at.clock) as after:
                loaded = await after.checkpointer.load("w")
                expect(loaded == {"k": 1}, f"of what had arrived there is {loaded} after a crash")
                await after.taken("w")
            await at.durable.delete("w")
            async with subject.reopened(at.clock) as after:
                loaded = await after.checkpointer.load("w")
                expect(loaded == {}, f"of what was deleted there is {loaded} after a crash")
                at.pass_lease()
                await after.expect_quiet("it was deleted before the crash")
            entry = await at.durable.deliver("w", 1)
            async with subject.reopened(at.clock) as after:
                loaded = await after.checkpointer.load("w")
                expect(loaded == {entry.key: 1}, f"of a message there is {loaded} after a crash")
                await after.taken("w")


async def _arrived(at: Opened, workflow: str) -> None:
    """Nothing is queued before it is recorded, and asking again completes it."""
    delivery = await _settled_take(at)
    if delivery:
        loaded = await at.checkpointer.load(workflow)
        expect(loaded != {}, f"{workflow} queued what it had not recorded")
    await at.durable.arrive(workflow, "k", 1)
    await at.taken(workflow)
    await at.durable.delete(workflow)


async def _deleted(at: Opened, workflow: str) -> None:
    """Nothing is discarded while its wakeup stands, and asking again completes it."""
    delivered = await _settled_take(at)
    loaded = await at.checkpointer.load(workflow)
    expect(
        not (delivered and loaded == {}),
        f"{workflow} discarded the records and left a wakeup that starts afresh",
    )
    await at.durable.delete(workflow)
    at.pass_lease()
    await at.expect_quiet("it was deleted")


async def _settled_take(at: Opened) -> bool:
    """Whether a workflow is ready, once whatever a cancelled call had begun is over."""
    await at.checkpointer.supply("another", "k", 1)
    return await at.take() is not None
