"""The clauses of the ledger's calls that change nothing, each as a check."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from ..ledger import STATES, Status, WorkflowCancelled, WorkflowFailed, ended, raised
from ..outcomes import Blocked, Completed
from .subject import (
    FAILURE,
    LONG,
    MINUTE,
    NOW,
    SECOND,
    UNSTORABLE,
    Opened,
    Subject,
    expect,
    expect_refused,
    together,
)

__all__ = [
    "check_l6_status_is_the_row",
    "check_l7_pages_show_each_row_once",
    "check_l8_counts_agree_with_the_list",
    "check_l14_result_waits_for_the_end",
    "check_l15_why_is_a_sentence_for_every_state",
]

SOON = timedelta(milliseconds=10)


async def check_l6_status_is_the_row(subject: Subject) -> None:
    """L6: `status` is the row with `running` and `due`; `None` for an id that has none."""
    async with subject.opened() as at:
        expect(await at.ledger.status("unknown") is None, "there is a status of what is unknown")
        seqs: list[int] = []
        for state in STATES:
            row = await at.brought(state, state)
            due = at.clock.now() + LONG if state == "sleeping" else None
            expect(row.due == due, f"a {state} workflow is due at {row.due} and not at {due}")
            expect(not row.running, f"a {state} workflow without a pass counts as running")
            seqs.append(row.seq)
            if state == "ready":
                await _runs(at, row)
        await at.ledger.delete("blocked")
        seqs.append((await at.brought("created last", "blocked")).seq)
        expect(seqs == sorted({*seqs}), f"in the order they were created they are numbered {seqs}")
        await at.checkpointer.supply("only supplied", "k", 1)
        row_of_it = await at.ledger.status("only supplied")
        expect(row_of_it is None, f"what neither arrived nor started has the row {row_of_it}")
        await _knows_nothing_of("unknown", at)
        await _refuses_what_is_no_id(at)


async def _runs(at: Opened, before: Status) -> None:
    at.clock.advance(SECOND)
    holder, delivery = await at.begun("ready")
    row = await at.row("ready")
    expect(row.running, "a workflow under a pass does not count as running")
    expect(row.updated_at > before.updated_at, "a start did not move updated_at")
    expect(row.created_at == before.created_at, "a start moved created_at")
    await at.ledger.end_pass(holder, delivery, ended(Completed(1)))
    expect(not (await at.row("ready")).running, "a workflow whose pass ended counts as running")
    await at.ledger.arrive("dies", "k", 1)
    await at.begun("dies")
    at.pass_lease()
    expect(not (await at.row("dies")).running, "a pass whose claim lapsed counts as running")
    await at.ledger.delete("dies")


async def _knows_nothing_of(workflow: str, at: Opened) -> None:
    calls: dict[str, tuple[Callable[[], Awaitable[object]], object]] = {
        "retry": (lambda: at.ledger.retry(workflow), False),
        "cancel": (lambda: at.ledger.cancel(workflow), False),
        "rewind": (lambda: at.ledger.rewind(workflow, "step"), 0),
        "fork": (lambda: at.ledger.fork(workflow, "into"), 0),
    }
    for name, (call, expected) in calls.items():
        answer = await call()
        expect(answer is expected, f"{name} of what is unknown answered {answer!r}")
        for one in (workflow, "into"):
            row = await at.ledger.status(one)
            expect(row is None, f"{name} of what is unknown made a row of {one!r}: {row}")
    await at.expect_quiet("nothing is known of it")


async def _refuses_what_is_no_id(at: Opened) -> None:
    await at.brought("known", "failed")
    ledger = at.ledger
    for bad in ("\ud800", 7, None):
        calls: dict[str, Callable[[str], Awaitable[object]]] = {
            "status": ledger.status,
            "why": ledger.why,
            "result": lambda one: ledger.result(one, within=NOW),
            "retry": ledger.retry,
            "cancel": ledger.cancel,
            "rewind": lambda one: ledger.rewind(one, "step"),
            "fork": lambda one: ledger.fork(one, "into"),
            "fork into": lambda one: ledger.fork("known", one),
            "delete": ledger.delete,
            "deliver": lambda one: ledger.deliver(one, 1),
            "arrive": lambda one: ledger.arrive(one, "k", 1),
        }
        for name, call in calls.items():
            await expect_refused(
                (TypeError, ValueError),
                call(bad),  # type: ignore[arg-type]
                f"{name} takes {bad!r} for an id",
            )


async def check_l7_pages_show_each_row_once(subject: Subject) -> None:
    """L7: pages give what all filters fit, newest first, each row that stays once."""
    async with subject.opened() as at:
        ids = ["a%1", "a_2", "A_3", "ab4", "a_5", "\U0010ffff6", "a\U0010ffff7", "a_8"]
        for workflow in ids:
            await at.ledger.arrive(workflow, "k", 1)
            await at.scheduler.done(await at.taken(workflow))
        await at.ledger.cancel("a_2")
        await at.ledger.cancel("ab4")
        here = (await at.row("a_5")).namespace
        newest = ids[::-1]
        await _expect_listed(at, newest, "no filter")
        await _expect_listed(at, ["ab4", "a_2"], "the cancelled", state="cancelled")
        await _expect_listed(at, [], "the sleeping", state="sleeping")
        await _expect_listed(at, newest, "its own queue", namespace=here)
        await _expect_listed(at, [], "another queue", namespace=here + " ")
        for prefix in ("a_", "a%", "a", "A", "a_5", "\U0010ffff", "a\U0010ffff", "", "_", "z"):
            fitting = [one for one in newest if one.startswith(prefix)]
            await _expect_listed(at, fitting, f"prefix {prefix!r}", prefix=prefix)
        await _expect_listed(
            at, ["a_2"], "all filters", state="cancelled", namespace=here, prefix="a_"
        )
        for row in (await at.ledger.list()).items:
            expect(row == await at.row(row.workflow), f"list and status differ on {row}")
        await _goes_on_beside_others(at, newest)
        refused: dict[str, Callable[[], Awaitable[object]]] = {
            "a limit of 0": lambda: at.ledger.list(limit=0),
            "a state there is not": lambda: at.ledger.list(state="done"),  # type: ignore[arg-type]
            "a prefix that is no text": lambda: at.ledger.list(prefix=7),  # type: ignore[arg-type]
            "a queue that is no text": lambda: at.ledger.list(namespace="\ud800"),
        }
        for name, call in refused.items():
            await expect_refused((TypeError, ValueError), call(), f"list takes {name}")


async def _expect_listed(at: Opened, expected: list[str], what: str, **filters: str) -> None:
    """One page shows them, and so do pages of every size."""
    for limit in (100, 1, 2, 3, len(expected) or 1):
        listed: list[str] = []
        after: int | None = None
        for _ in range(len(expected) + 2):
            page = await at.ledger.list(limit=limit, after=after, **filters)  # type: ignore[arg-type]
            expect(len(page.items) <= limit, f"a page of {limit} has {len(page.items)} rows")
            listed += [row.workflow for row in page.items]
            after = page.next
            if after is None:
                break
            expect(page.items != (), f"with {what}, a page names a next one and shows nothing")
        expect(after is None, f"with {what}, pages of {limit} have no end")
        expect(listed == expected, f"with {what}, pages of {limit} show {listed}, not {expected}")


async def _goes_on_beside_others(at: Opened, newest: list[str]) -> None:
    page = await at.ledger.list(limit=2)
    for later in ("later", "last"):
        await at.ledger.arrive(later, "k", 1)
    await at.ledger.arrive(newest[-1], "k", 1)  # what is old and still to be shown is ready again
    await at.ledger.arrive(newest[0], "k", 1)
    await at.ledger.delete(newest[1])  # what the page ended with
    await at.ledger.delete(newest[4])
    listed = [row.workflow for row in page.items]
    while page.next is not None:
        page = await at.ledger.list(limit=2, after=page.next)
        listed += [row.workflow for row in page.items]
    expected = [one for one in newest if one != newest[4]]
    expect(listed == expected, f"while others came and went, pages showed {listed}")
    exact = await at.ledger.list(limit=len(newest))
    expect(exact.next is None, "a page that shows the last row names a next one")


async def check_l8_counts_agree_with_the_list(subject: Subject) -> None:
    """L8: `counts` names every state, and agrees with `list`."""
    async with subject.opened() as at:
        counts = await at.ledger.counts()
        expect(counts == dict.fromkeys(STATES, 0), f"where there is nothing, counts are {counts}")
        for state in STATES[::-1]:
            for number in range(1 + STATES.index(state) % 3):
                row = await at.brought(f"{state} {number}", state)
                await at.scheduler.cancel(row.workflow)
        await at.ledger.delete("blocked 0")
        listed = dict.fromkeys(STATES, 0)
        for row in (await at.ledger.list()).items:
            listed[row.state] += 1
        for name, counted in {
            "counts": await at.ledger.counts(),
            "counts of their queue": await at.ledger.counts(row.namespace),
        }.items():
            expect(counted == listed, f"list shows {listed}, and {name} says {counted}")
            filtered = {one: len((await at.ledger.list(state=one)).items) for one in STATES}
            expect(counted == filtered, f"list by state shows {filtered}, and {name} {counted}")
        elsewhere = await at.ledger.counts(row.namespace + " ")
        expect(elsewhere == dict.fromkeys(STATES, 0), f"counts of another queue: {elsewhere}")


async def check_l14_result_waits_for_the_end(subject: Subject) -> None:
    """L14: `result` gives what the body returned, or its error, and waits for that."""
    async with subject.opened() as at:
        for state in ("ready", "sleeping", "blocked"):
            await at.brought(state, state)
            await at.scheduler.cancel(state)
        for workflow in ("ready", "sleeping", "blocked", "unknown"):
            for within in (NOW, SOON):
                await expect_refused(
                    TimeoutError,
                    at.ledger.result(workflow, within=within),
                    f"the result of what is {workflow} is there within {within}",
                )
        for workflow, value in (("a value", {"n": [1]}), ("nothing", None), ("a zero", 0)):
            await at.ledger.arrive(workflow, "k", 1)
            await at.ended(workflow, ended(Completed(value)))
            result = await at.ledger.result(workflow, within=NOW)
            expect(result == value, f"the result {value!r} is {result!r}")
        await _tells_of_no_result(at)
        await _waits_for(at)
        await at.ledger.arrive("a value", "k", 1)
        await expect_refused(
            TimeoutError,
            at.ledger.result("a value", within=NOW),
            "what arrived after the end leaves its result standing",
        )


async def _tells_of_no_result(at: Opened) -> None:
    await at.brought("failed", "failed")
    await at.brought("cancelled", "cancelled")
    try:
        await at.ledger.result("failed", within=NOW)
        raise AssertionError("a failed workflow has a result")
    except WorkflowFailed as error:
        expect(error.failure == FAILURE, f"it failed with {FAILURE}, and says {error.failure}")
        expect(error.workflow == "failed", f"the failure is that of {error.workflow!r}")
    try:
        await at.ledger.result("cancelled", within=NOW)
        raise AssertionError("a cancelled workflow has a result")
    except WorkflowCancelled as error:
        expect(error.reason == "enough", f"it was cancelled: enough, and says {error.reason!r}")
    await at.ledger.arrive("unstorable", "k", 1)
    await at.ended("unstorable", ended(Completed(UNSTORABLE)))
    state = (await at.row("unstorable")).state
    expect(state == "completed", f"with a result that cannot be stored it is {state}")
    await expect_refused(
        TypeError,
        at.ledger.result("unstorable", within=NOW),
        "a result that could not be stored is not a TypeError",
    )
    at.pass_lease()
    await at.expect_quiet("it completed, with a result that cannot be stored")


async def _waits_for(at: Opened) -> None:
    async def completes() -> None:
        await at.ledger.arrive("awaited", "k", 1)
        await at.ended("awaited", ended(Blocked(frozenset({"key"}), frozenset())))
        await at.ledger.arrive("awaited", "key", 1)
        holder, delivery = await at.begun("awaited")
        await at.ledger.deliver("awaited", "meanwhile")
        await at.ledger.end_pass(holder, delivery, ended(Completed("too soon")))
        await at.ended("awaited", ended(Completed("at last")))

    async def fails() -> None:
        await at.ledger.arrive("awaited", "k", 1)
        await at.ended("awaited", raised(FAILURE, at.clock.now()))
        await at.ended("awaited", raised(FAILURE, None))

    async def is_parked() -> None:
        await at.ledger.arrive("awaited", "k", 1)
        await at.ended("awaited", raised(FAILURE, at.clock.now()))
        await at.ledger.start_pass(await at.taken("awaited"), LONG, 1)

    async def is_cancelled() -> None:
        await at.ledger.arrive("awaited", "k", 1)
        await at.ledger.cancel("awaited", "enough")

    for name, comes_to_it in {
        "completes": completes,
        "fails": fails,
        "is parked": is_parked,
        "is cancelled": is_cancelled,
    }.items():
        waiting = [asyncio.ensure_future(_answer(at)) for _ in range(3)]
        await asyncio.sleep(0)
        try:
            await comes_to_it()
            answers = await together(*waiting)
        finally:
            for one in waiting:
                one.cancel()
        expected = "'at last'" if name == "completes" else await _answer(at)
        for answer in answers:
            expect(answer == expected, f"it {name}, and one that waited heard {answer}")
        await at.ledger.delete("awaited")


async def _answer(at: Opened) -> str:
    """What `result` comes to, as text."""
    try:
        return repr(await at.ledger.result("awaited", within=MINUTE))
    except (WorkflowFailed, WorkflowCancelled) as error:
        return str(error)


async def check_l15_why_is_a_sentence_for_every_state(subject: Subject) -> None:
    """L15: `why` is one sentence for every state, and names what matters in it."""
    async with subject.opened() as at:
        sentences: dict[str, str] = {}

        async def ask(what: str, *told: str) -> None:
            sentence = sentences[what] = await at.ledger.why("w-17")
            for part in ("w-17", *told):
                expect(
                    part in sentence, f"of what is {what}, why does not tell {part!r}: {sentence}"
                )
            one = sentence == sentence.strip() and "\n" not in sentence and sentence.endswith(".")
            expect(one, f"of what is {what}, why is no sentence: {sentence!r}")

        await ask("unknown")
        for state, told in {
            "ready": (),
            "sleeping": ("nap",),
            "blocked": ("key", "mail"),
            "completed": (),
            "failed": (FAILURE.type, FAILURE.message),
            "cancelled": ("enough",),
        }.items():
            await at.brought("w-17", state)  # type: ignore[arg-type]
            await ask(state, *told)
            await at.ledger.delete("w-17")
        await at.ledger.arrive("w-17", "k", 1)
        holder, delivery = await at.begun("w-17")
        await ask("running", str(holder.token))
        await at.ledger.end_pass(holder, delivery, raised(FAILURE, at.clock.now() + LONG))
        await ask("to be tried again", FAILURE.type, FAILURE.message)
        alike = len(sentences) - len({*sentences.values()})
        expect(alike == 0, f"why says the same of different states: {sentences}")
