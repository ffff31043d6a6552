"""The clauses of the ledger's calls that steer a workflow, each as a check."""

from __future__ import annotations

from typing import Any

from ..interfaces import claimed
from ..ledger import FINISHED, STATES, State, ended
from ..outcomes import Completed
from ..values import Pass
from .subject import (
    LONG,
    MINUTE,
    SECOND,
    Opened,
    Subject,
    cancelled_in_every_turn,
    expect,
    expect_fenced,
    expect_refused,
    together,
)

__all__ = [
    "check_l9_retry_starts_it_again",
    "check_l10_cancel_stops_it_for_good",
    "check_l11_rewind_forgets_a_step_and_what_followed",
    "check_l12_fork_copies_into_a_new_workflow",
    "check_l13_sweep_deletes_what_finished_long_ago",
    "check_l16_delete_removes_the_row",
]

OLD = 100 * LONG
"""Long enough ago to be swept."""


async def check_l9_retry_starts_it_again(subject: Subject) -> None:
    """L9: `retry` makes a failed or cancelled workflow ready, for one caller of several."""
    async with subject.opened() as at:
        for state in STATES:
            before = await at.brought(state, state)
            await at.scheduler.cancel(state)
            answers = await together(*(at.ledger.retry(state) for _ in range(5)))
            row = await at.row(state)
            if state not in ("failed", "cancelled"):
                expect(not any(answers), f"retry of a {state} workflow answered {answers}")
                expect(row == before or state == "sleeping", f"retry made {before} {row}")
                expect(row.state == state, f"retry of a {state} workflow left it {row.state}")
                await at.expect_quiet(f"retry of a {state} workflow was refused")
                continue
            expect(answers.count(True) == 1, f"of 5 at once retry answered {answers}")
            expect((row.state, row.attempts) == ("ready", 0), f"after retry it is {row}")
            expect(row.detail is None, f"after retry there is still {row.detail} of a {state} one")
            loaded = await at.checkpointer.load(state)
            expect(loaded == {"k": 1}, f"of its records retry left {loaded}")
            await at.ended(state, ended(Completed("again")))
            expect((await at.row(state)).state == "completed", f"{state}, it does not run again")


async def check_l10_cancel_stops_it_for_good(subject: Subject) -> None:
    """L10: `cancel` stops what has not completed, a pass in flight included, and keeps the rest."""
    async with subject.opened() as at:
        for state in STATES:
            before = await at.brought(state, state)
            answers = await together(*(at.ledger.cancel(state, "too late") for _ in range(3)))
            row = await at.row(state)
            if state in ("completed", "cancelled"):
                expect(not any(answers), f"cancel of a {state} workflow answered {answers}")
                expect(row == before, f"cancel of a {state} workflow made it {row}")
            else:
                expect(answers.count(True) == 1, f"of 3 at once cancel answered {answers}")
                expect(row.state == "cancelled", f"cancelled while {state}, it is {row.state}")
                expect(row.reason == "too late", f"the reason is {row.reason!r}")
                same = (row.seq, row.created_at) == (before.seq, before.created_at)
                expect(same, f"cancel made another row of it: {before}, {row}")
                expect(row.due is None, f"cancelled while {state}, it is due at {row.due}")
            loaded = await at.checkpointer.load(state)
            expect(loaded == {"k": 1}, f"of the records of a {state} one cancel left {loaded}")
            at.pass_lease()
            await at.expect_quiet(f"it was cancelled while {state}")
        at.clock.advance(LONG)
        await at.expect_quiet("it was cancelled while it slept")

        for workflow in ("runs", "dies"):
            await at.ledger.arrive(workflow, "k", 1)
            holder, delivery = await at.begun(workflow)
            expect(await at.ledger.cancel(workflow), "cancel of one that runs answered False")
            await expect_fenced(at, holder, "a pass whose workflow was cancelled")
            expect(not (await at.row(workflow)).running, "cancelled, it counts as running")
            if workflow == "runs":
                await at.ledger.end_pass(holder, delivery, ended(Completed("too late")))
            state = (await at.row(workflow)).state
            expect(state == "cancelled", f"cancelled, its pass ended and left it {state}")
            await at.expect_claimable(workflow, "it was cancelled")
            at.pass_lease()
            await at.expect_quiet("it was cancelled while it ran")

        await at.ledger.arrive("never claimed", "k", 1)
        await at.ledger.cancel("never claimed")
        for token in (0, 1, 2):
            await expect_fenced(at, Pass("never claimed", token), "a pass nobody was granted")

        async def arrives_and_cancels(workflow: str) -> bool:
            await at.ledger.arrive(workflow, "k", 1)
            return await at.ledger.cancel(workflow)

        async def whole(workflow: str, _: bool | None) -> None:
            await at.checkpointer.supply("another", "k", 1)  # whatever had begun is over
            row = await at.ledger.status(workflow)
            queued = await at.take() is not None
            ready = row is not None and row.state == "ready"
            expect(queued == ready, f"{workflow} left the row {row}, queued: {queued}")
            await at.ledger.delete(workflow)

        await cancelled_in_every_turn("a cancel", arrives_and_cancels, whole)


async def _history(at: Opened, workflow: str) -> tuple[Pass, str]:
    """A pass over a workflow with steps, and with what came from outside in between.

    "k", a, given, b, a message, c: the last pass is under way. The message's key.
    """
    await at.ledger.arrive(workflow, "k", 1)
    holder, _ = await at.begun(workflow)
    await at.checkpointer.record(holder, "a", "a")
    at.clock.advance(SECOND)
    await at.checkpointer.supply(workflow, "given", "given")
    await at.checkpointer.record(holder, "given", "lost")
    await at.checkpointer.record(holder, "b", "b")
    await at.checkpointer.supply(workflow, "b", "lost")
    at.clock.advance(SECOND)
    entry = await at.checkpointer.append(workflow, "message")
    await at.ledger.arrive(workflow, "late", "late")
    holder, _ = await _again(at, workflow, holder)
    await at.checkpointer.record(holder, "c", "c")
    return holder, entry.key


async def _again(at: Opened, workflow: str, holder: Pass) -> tuple[Pass, Any]:
    await at.checkpointer.release(holder)
    return await at.begun(workflow)


async def check_l11_rewind_forgets_a_step_and_what_followed(subject: Subject) -> None:
    """L11: `rewind` forgets a step and those after it, and keeps what came from outside."""
    async with subject.opened() as at:
        holder, message = await _history(at, "w")
        before = await at.checkpointer.history("w")
        kept = {"k": 1, "a": "a", "given": "given", "b": "b", message: "message", "late": "late"}
        loaded = await at.checkpointer.load("w")
        expect([*loaded] == [*kept, "c"], f"what was recorded is {loaded}")
        for to in ("unknown", "given", "k", "late", message):
            await expect_refused(
                ValueError, at.ledger.rewind("w", to), f"rewind to {to!r}, which no pass recorded"
            )
        await at.checkpointer.record(holder, "c", "c")  # a refused rewind raised no fence
        expect(await at.checkpointer.history("w") == before, "a refused rewind forgot something")
        count = await at.ledger.rewind("w", "b")
        expect(count == 2, f"rewind forgot b and c, and answered {count}")
        del before["b"], before["c"]
        after = await at.checkpointer.history("w")
        same = [*after.items()] == [*before.items()]
        expect(same, f"rewound to b, its history is {after} and not {before}")
        await expect_fenced(at, holder, "a pass whose workflow was rewound")
        row = await at.row("w")
        expect((row.state, row.attempts) == ("ready", 0), f"rewound, it is {row}")
        holder, _ = await at.begun("w")
        await at.checkpointer.record(holder, "b", "new")
        loaded = await at.checkpointer.load("w")
        expect(loaded["b"] == "new", f"recorded again after a rewind, b is {loaded['b']!r}")
        expect(await at.ledger.rewind("w", "a") == 2, "a second rewind does not count a and b")
        await at.scheduler.done(await at.taken("w"))
        for state in STATES:
            await _rewound_from(at, state)


async def _rewound_from(at: Opened, state: State) -> None:
    holder = await claimed(at.checkpointer, state, MINUTE, MINUTE)
    await at.checkpointer.record(holder, "step", 1)
    await at.checkpointer.release(holder)
    await at.brought(state, state)
    count = await at.ledger.rewind(state, "step")
    expect(count == 1, f"rewind of a {state} workflow answered {count}")
    row = await at.row(state)
    told = (row.state, row.attempts, row.detail, row.due)
    expect(told == ("ready", 0, None, None), f"rewound while {state}, it is {row}")
    expect(await at.checkpointer.load(state) == {"k": 1}, f"rewound while {state}, it has steps")
    await at.ended(state, ended(Completed(1)))
    expect((await at.row(state)).state == "completed", f"rewound while {state}, it does not run")


async def check_l12_fork_copies_into_a_new_workflow(subject: Subject) -> None:
    """L12: `fork` copies the records to an id of which nothing is known, and makes that ready."""
    async with subject.opened() as at:
        holder, message = await _history(at, "w")
        source, row = await at.checkpointer.history("w"), await at.row("w")
        await _refuses_to_fork(at)
        expect(await at.checkpointer.history("w") == source, "a refused fork touched its source")
        at.clock.advance(SECOND)
        for into, before in (("whole", None), ("part", "b"), ("none", "k")):
            keys = [*source][: None if before is None else [*source].index(before)]
            count = await at.ledger.fork("w", into, before=before)
            expect(count == len(keys), f"a fork of {keys} answered {count}")
            copy = await at.checkpointer.history(into)
            same = [*copy.items()] == [(key, source[key]) for key in keys]
            expect(same, f"a fork of {source} before {before} is {copy}")
            forked = await at.row(into)
            told = (forked.state, forked.attempts, forked.detail)
            expect(told == ("ready", 0, None), f"what was forked is {forked}")
            expect(forked.seq > row.seq, f"forked later, it is numbered {forked.seq}")
            await at.scheduler.done(await at.taken(into))
        expect(await at.checkpointer.history("w") == source, "a fork touched its source")
        expect(await at.row("w") == row, "a fork touched the row of its source")
        await at.checkpointer.record(holder, "d", "d")
        entry = await at.checkpointer.append("whole", "next")
        expect(entry.key > message, "a message to a fork sorts before those it was copied with")
        count = await at.ledger.rewind("whole", "a")
        kept = [*await at.checkpointer.load("whole")]
        outside = ["k", "given", message, "late", entry.key]
        expect((count, kept) == (3, outside), f"a fork that was rewound forgot {count}: {kept}")
        await at.scheduler.done(await at.taken("whole"))

        await at.brought("cancelled", "cancelled")
        await at.ledger.fork("cancelled", "of one cancelled")
        await at.scheduler.done(await at.taken("of one cancelled"))
        expect((await at.row("cancelled")).state == "cancelled", "a fork woke its source")
        await _moves_no_history_back(at)

        async def forks(workflow: str) -> int:
            return await at.ledger.fork("w", workflow)

        async def whole(workflow: str, _: int | None) -> None:
            await at.checkpointer.supply("another", "k", 1)  # whatever had begun is over
            copied = len(await at.checkpointer.load(workflow))
            queued = await at.take() is not None
            known = await at.ledger.status(workflow) is not None
            parts = (copied, known, queued)
            expect(
                parts in ((0, False, False), (len(source) + 1, True, True)),
                f"{workflow} left {parts}",
            )
            await at.ledger.delete(workflow)

        await cancelled_in_every_turn("a fork", forks, whole)


async def _moves_no_history_back(at: Opened) -> None:
    """Old records that were copied are not the newest by which a clock set back is noticed."""
    await at.checkpointer.supply("long ago", "k", 1)
    at.clock.advance(3 * SECOND)
    await at.checkpointer.supply("by then", "k", 1)
    await at.ledger.fork("long ago", "a late copy")
    at.clock.advance(-SECOND)
    await at.checkpointer.supply("by then", "l", 2)
    moments = [one.at for one in (await at.checkpointer.history("by then")).values()]
    expect(moments == sorted(moments), f"after a fork another's history runs backwards: {moments}")
    await at.scheduler.done(await at.taken("a late copy"))


async def _refuses_to_fork(at: Opened) -> None:
    await at.brought("has a row", "completed")
    await at.scheduler.make_ready("has only a row")
    await at.ended("has only a row", ended(Completed(1)))
    await at.checkpointer.supply("has records", "k", 1)
    await claimed(at.checkpointer, "is held", LONG, LONG)
    for into in ("w", "has a row", "has only a row", "has records", "is held"):
        why = f"a fork into {into!r}, which exists"
        await expect_refused(ValueError, at.ledger.fork("w", into), why)
    why = "a fork before a step that is not recorded"
    await expect_refused(ValueError, at.ledger.fork("w", "new", before="unknown"), why)
    expect(await at.ledger.status("new") is None, "a refused fork left a row")
    expect(await at.checkpointer.load("new") == {}, "a refused fork left records")
    await at.expect_quiet("a fork was refused")


async def check_l13_sweep_deletes_what_finished_long_ago(subject: Subject) -> None:
    """L13: `sweep` deletes what finished and has not changed for `older`, the oldest first."""
    async with subject.opened() as at:
        tokens = await _finished(at)
        # All that follows is as old as OLD, or a little younger.
        changed = (await at.row("failed 0")).updated_at
        at.clock.advance(changed + OLD - SECOND - at.clock.now())
        await _sweeps(at, [], tokens, "is too young", states=FINISHED)
        at.clock.advance(2 * SECOND)
        await _sweeps(at, [], tokens, "has changed since it was old, or is no completed one")
        await _sweeps(at, ["failed 0"], tokens, "has failed", states=("failed",))
        await _sweeps(at, ["cancelled 0"], tokens, "may be", states=FINISHED)
        at.clock.advance(OLD)
        await at.scheduler.make_ready("completed 1")
        await claimed(at.checkpointer, "failed 1", 10 * LONG, 10 * LONG)
        for oldest in (["cancelled 1", "completed 2"], ["failed 2", "cancelled 2"]):
            await _sweeps(at, oldest, tokens, "is the oldest", states=FINISHED, limit=2)
        await _sweeps(at, ["completed 0"], tokens, "is left", states=FINISHED)
        await at.scheduler.cancel("completed 1")
        await _sweeps(at, ["completed 1"], tokens, "was queued")
        at.clock.advance(10 * LONG + SECOND)
        await _sweeps(at, ["failed 1"], tokens, "was held", states=FINISHED)
        left = sorted(row.workflow for row in (await at.ledger.list()).items)
        resting = sorted(f"{state} {n}" for state in STATES[:3] for n in range(3))
        expect(left == resting, f"of what has not finished sweep left {left}")
        refused: dict[str, dict[str, Any]] = {
            "what is ready": {"states": ("ready",)},
            "what sleeps among others": {"states": ("completed", "sleeping")},
            "a state there is not": {"states": ("done",)},
            "a limit of 0": {"limit": 0},
            "an age that is negative": {"older": -SECOND},
        }
        for name, options in refused.items():
            call = at.ledger.sweep(**({"older": OLD} | options))
            await expect_refused((TypeError, ValueError), call, f"sweep takes {name}")
        await _repeats_no_token(at)


async def _repeats_no_token(at: Opened) -> None:
    """Not even where the clock is set back once the claims are gone (C3)."""
    await at.ledger.arrive("again", "k", 1)
    holder, delivery = await at.begun("again")
    await at.ledger.end_pass(holder, delivery, ended(Completed("once")))
    at.clock.advance(OLD)
    await at.ledger.sweep(older=OLD)
    expect(await at.ledger.status("again") is None, "what is old enough was not swept")
    at.clock.advance(-OLD - SECOND)
    newer = await claimed(at.checkpointer, "again", MINUTE, MINUTE)
    expect(
        newer.token > holder.token,
        f"swept before the clock was set back, token {holder.token} came back as {newer.token}",
    )


async def _finished(at: Opened) -> dict[str, int]:
    """Three workflows in each state, a second apart, and the token of a pass over each.

    "completed 0" has changed once more, after all others.
    """
    tokens: dict[str, int] = {}
    for number in range(3):
        for state in STATES:
            workflow = f"{state} {number}"
            await at.brought(workflow, state)
            await at.scheduler.cancel(workflow)
            holder = await claimed(at.checkpointer, workflow, MINUTE, MINUTE)
            await at.checkpointer.release(holder)
            tokens[workflow] = holder.token
            at.clock.advance(SECOND)
        at.clock.advance(MINUTE)
    await at.ledger.arrive("completed 0", "k", 1)
    holder, delivery = await at.begun("completed 0")
    await at.ledger.end_pass(holder, delivery, ended(Completed("again")))
    tokens["completed 0"] = holder.token
    return tokens


async def _sweeps(
    at: Opened, gone: list[str], tokens: dict[str, int], why: str, **options: Any
) -> None:
    """These and no others go, with their records and claims."""
    before = {row.workflow for row in (await at.ledger.list()).items}
    count = await at.ledger.sweep(older=OLD, **options)
    after = {row.workflow for row in (await at.ledger.list()).items}
    swept = sorted(before - after)
    expect(swept == sorted(gone), f"what {why} is {gone}, and sweep deleted {swept}")
    expect(count == len(gone), f"sweep deleted {len(gone)} workflows and answered {count}")
    for workflow in gone:
        loaded = await at.checkpointer.load(workflow)
        expect(loaded == {}, f"{workflow!r} was swept, and of its records there is {loaded}")
        for token in (tokens[workflow], tokens[workflow] + 1):
            await expect_fenced(at, Pass(workflow, token), f"a pass over {workflow!r}, swept,")
        holder = await claimed(at.checkpointer, workflow, MINUTE, MINUTE)
        expect(
            holder.token > tokens[workflow],
            f"{workflow!r} was swept, and its token {tokens[workflow]} came back as {holder.token}",
        )
        await at.checkpointer.release(holder)


async def check_l16_delete_removes_the_row(subject: Subject) -> None:
    """L16: `delete` removes the row with the rest; what arrives then is a new workflow."""
    async with subject.opened() as at:
        for state in (*STATES, "running"):
            await at.ledger.arrive(f"beside {state}", "k", 1)
            await at.scheduler.done(await at.taken(f"beside {state}"))
            if state == "running":
                await at.ledger.arrive(state, "k", 1)
                holder, delivery = await at.begun(state)
            else:
                await at.brought(state, state)  # type: ignore[arg-type]
            count = await at.ledger.delete(state)
            expect(count == 1, f"delete of a {state} workflow with one record answered {count}")
            row = await at.ledger.status(state)
            expect(row is None, f"deleted while {state}, it has the row {row}")
            listed = [row.workflow for row in (await at.ledger.list()).items]
            expect(state not in listed, f"deleted while {state}, it is listed")
            expect(f"beside {state}" in listed, "delete of a workflow took another")
            total = sum((await at.ledger.counts()).values())
            expect(total == len(listed), f"deleted while {state}, it is counted")
            await at.expect_quiet(f"it was deleted while {state}")
            if state == "running":
                await expect_fenced(at, holder, "a pass whose workflow was deleted")
                await at.ledger.end_pass(holder, delivery, ended(Completed(1)))
                row = await at.ledger.status(state)
                expect(row is None, f"a pass ended late, and its deleted workflow is back: {row}")
            at.clock.advance(SECOND)
            await at.ledger.arrive(state, "k", "new")
            row = await at.row(state)
            new = (row.state, row.attempts, row.created_at == row.updated_at)
            expect(new == ("ready", 0, True), f"deleted while {state}, it arrived as {row}")
            await at.ended(state, ended(Completed(1)))
