"""The crash kit: every place a process can die at, and what a workflow makes of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from kit.makes import memory, over_file
from stores import over_memory
from without_durability import (
    Ended,
    Fenced,
    MemoryCheckpointer,
    MemoryDurable,
    MemoryScheduler,
    SplitDurable,
)
from without_durability.testing import CrashReport, Unfinished, crash_everywhere, crashing

DAY = timedelta(days=1)


async def nothing() -> int:
    return 0


def runs(report: CrashReport) -> dict[str, int]:
    return {step.key: step.runs for step in report.steps}


def crashes(report: CrashReport) -> list[str]:
    return [one.crash for one in report.differences]


async def test_a_sound_workflow_comes_to_the_same_end_wherever_it_dies(make: Any) -> None:
    async def order(run):
        total = await run.step("price", nothing, int)
        await run.sleep("cooling off", 3 * DAY)
        by = await run.awaiting("approved by", str)
        (first,) = await run.receive("first message")
        (second,) = await run.receive("second message", after=first.key)
        rest = await run.pending("the rest", after=second.key)
        async with asyncio.TaskGroup() as group:
            group.create_task(run.step("pack", nothing, int))
            group.create_task(run.step("label", nothing, int, within=DAY))
        await run.transact("book", lambda _: 1, int)
        return total, by, first.value, second.value, rest

    report = await crash_everywhere(
        order, make, answers={"approved by": "Ada"}, messages=["a", "b"]
    )
    assert report.result == (0, "Ada", "a", "b", ())
    assert report.equal, str(report)
    assert report.unsteady == ()
    assert report.crashes > 90
    assert report.at_least_once == ("price", "pack", "label")
    assert runs(report)["book"] == 1
    assert report.records["cooling off"] == "a deadline"
    assert report.records["second message"] == "message 2"
    kinds = {step.key: step.kind for step in report.steps}
    assert list(kinds.values()) == [
        *("step", "sleep", "awaiting", "receive", "receive", "pending", "step", "step", "transact")
    ]


async def test_the_process_dies_before_and_after_every_call_and_between_effect_and_record() -> None:
    passes = itertools.count(1)

    @asynccontextmanager
    async def make(clock):
        nonlocal passes
        passes = itertools.count(1)
        yield over_memory(clock).durable

    async def body(run):
        number = next(passes)
        await run.step("a", nothing, int, within=DAY)
        await run.transact("b", lambda _: 1, int)
        return number

    report = await crash_everywhere(body, make)
    assert crashes(report) == [  # where another pass was made after it
        "before extend",
        "after extend",
        "after the effect of 'a' and before its record",
        "after record of 'a'",
        "before transact of 'b'",
        "after the effect of 'b' and before its commit",
        "after transact of 'b'",
        "before release",
        "after release",
        "before done",
    ]
    elsewhere = ["wake_due", "next_ready", "claim", "wake_due", "next_ready", "reclaim"]
    assert report.crashes == len(crashes(report)) + 2 * len(elsewhere) + len(
        ["before load", "after load", "after done"]
    )


async def test_a_key_made_outside_a_step_charges_twice_and_is_found(make: Any) -> None:
    numbers = itertools.count()
    charged: dict[int, int] = {}

    @asynccontextmanager
    async def world(clock):
        charged.clear()
        async with make(clock) as durable:
            yield durable

    async def order(run):
        key = next(numbers)

        async def charge():
            charged[key] = 100

        await run.step("charge", charge, str)
        return sum(charged.values())

    report = await crash_everywhere(order, world)
    assert crashes(report) == ["after the effect of 'charge' and before its record"]
    assert report.differences[0].differences == ("the result was 200, not 100",)
    assert report.at_least_once == ("charge",)
    assert str(report).splitlines() == [
        f"{report.crashes} crashes, 1 with another end",
        "  step 'charge': up to twice, so it must be idempotent (the process died after the "
        "effect of 'charge' and before its record)",
        "  the process died after the effect of 'charge' and before its record: the result was "
        "200, not 100",
    ]


async def test_a_transact_that_is_two_commits_is_found() -> None:
    class TwoCommits(MemoryCheckpointer):
        async def transact(self, holder, key, effect):
            value = effect(self.data)
            return (await super().record(holder, key, value)).value

    @asynccontextmanager
    async def make(clock):
        store = TwoCommits(clock=clock.seconds, now=clock.now)
        yield SplitDurable(store, MemoryScheduler(clock=clock.seconds))

    async def body(run):
        def book(data):
            data["stock"] = data.get("stock", 0) + 1
            return data["stock"]

        return await run.transact("book", book, int)

    report = await crash_everywhere(body, make)
    assert "after the effect of 'book' and before its commit" in crashes(report)
    assert not report.equal


async def test_an_effect_is_rolled_back_when_the_process_dies_in_its_transaction() -> None:
    async def body(run):
        def book(cursor):
            cursor.execute("INSERT INTO mark VALUES ('booked')")
            return cursor.execute("SELECT count(*) FROM mark").fetchone()[0]

        return await run.transact("book", book, int)

    report = await crash_everywhere(body, lambda clock: over_file(":memory:", clock))
    assert (report.result, report.equal, runs(report)) == (1, True, {"book": 1})


async def test_what_differs_without_a_crash_is_not_held_against_a_crash() -> None:
    numbers = itertools.count()

    async def number():
        return next(numbers)

    async def body(run):
        await run.step("random", number, int)
        return await run.step("steady", nothing, int)

    report = await crash_everywhere(body, memory)
    assert report.equal, str(report)
    assert report.unsteady == ("random",)
    assert "not compared, differs without a crash: random" in str(report)


async def test_a_step_named_at_random_is_found() -> None:
    names = itertools.count()

    async def body(run):
        await run.step(f"charge {next(names)}", nothing, int)
        return "charged"

    report = await crash_everywhere(body, memory)
    assert not report.equal


@pytest.mark.parametrize("waits_for", ["awaiting", "receive"])
async def test_a_wait_that_nobody_answers_is_named(waits_for: str) -> None:
    async def body(run):
        if waits_for == "awaiting":
            await run.awaiting("approved by", str)
        else:
            await run.receive("approved by")

    with pytest.raises(Unfinished, match="waits for 'approved by'"):
        await crash_everywhere(body, memory, answers={"another": 1})


async def test_an_answer_comes_before_a_deadline_it_races_with() -> None:
    async def body(run):
        async with asyncio.TaskGroup() as group:
            group.create_task(run.sleep("deadline", DAY))
            approved = group.create_task(run.awaiting("approved by", str))
        return approved.result()

    report = await crash_everywhere(body, memory, answers={"approved by": "Ada"})
    assert (report.result, report.equal) == ("Ada", True)


async def test_a_body_that_always_raises_is_unfinished_because_of_that() -> None:
    tries = itertools.count(1)

    async def body(run):
        raise LookupError(f"try {next(tries)}")

    with pytest.raises(Unfinished, match="within 5 passes") as unfinished:
        await crash_everywhere(body, memory, passes=5)
    assert str(unfinished.value.__cause__) == "try 5"


async def test_a_body_that_raises_for_a_while_is_tried_again_as_by_a_worker(make: Any) -> None:
    tries = itertools.count(1)

    async def flaky():
        if next(tries) % 3:
            raise ConnectionError("not yet")
        return 1

    async def body(run):
        return await run.step("flaky", flaky, int)

    report = await crash_everywhere(body, make)
    assert (report.result, report.equal) == (1, True)


async def test_a_body_that_raises_only_after_a_crash_is_reported() -> None:
    begun: set[str] = set()

    @asynccontextmanager
    async def make(clock):
        begun.clear()
        yield over_memory(clock).durable

    async def body(run):
        async def once_only():
            if "parcel" in begun:
                raise FileExistsError("parcel")
            begun.add("parcel")

        await run.step("ship", once_only, str)

    report = await crash_everywhere(body, make, passes=3)
    assert crashes(report) == ["after the effect of 'ship' and before its record"]
    assert "did not end within 3 passes: FileExistsError" in report.differences[0].differences[0]


async def test_a_body_that_swallows_its_death_is_dead_all_the_same() -> None:
    async def body(run):
        try:
            await run.step("a", nothing, int)
        except BaseException:
            await run.step("b", nothing, int)

    report = await crash_everywhere(body, memory)
    assert report.equal, str(report)
    assert runs(report)["a"] == 2


async def test_what_runs_beside_a_death_does_not_go_on() -> None:
    async def forever():
        await asyncio.Event().wait()

    async def body(run):
        if "a" not in run.recorded:
            await asyncio.gather(run.step("a", nothing, int), run.step("never", forever, int))
        return "on the second pass"

    @asynccontextmanager
    async def make(clock):
        yield over_memory(clock).durable

    async with asyncio.timeout(5):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):  # without a crash it hangs, and can be cancelled
                await crash_everywhere(body, make)


async def test_a_store_that_loses_a_wakeup_is_reported() -> None:
    class Forgetful(MemoryScheduler):
        async def wake_at(self, delivery, when):
            await self.done(delivery)

    @asynccontextmanager
    async def make(clock):
        yield SplitDurable(
            MemoryCheckpointer(clock=clock.seconds, now=clock.now),
            Forgetful(clock=clock.seconds),
        )

    async def body(run):
        await run.sleep("nap", DAY)

    with pytest.raises(Unfinished, match="loses wakeups"):
        await crash_everywhere(body, make)


@pytest.mark.parametrize("under_real_time", ["checkpointer", "scheduler"])
async def test_a_store_under_another_clock_is_reported(under_real_time: str) -> None:
    @asynccontextmanager
    async def make(clock):
        real = under_real_time == "checkpointer"
        yield SplitDurable(
            MemoryCheckpointer() if real else MemoryCheckpointer(clock=clock.seconds),
            MemoryScheduler(clock=clock.seconds) if real else MemoryScheduler(),
        )

    report = await crash_everywhere(lambda run: nothing(), make, passes=3)
    assert not report.equal
    assert all("clock it was handed" in one.differences[0] for one in report.differences)


async def test_another_workflow_that_an_effect_wakes_is_left_alone() -> None:
    @asynccontextmanager
    async def make(clock):
        nonlocal queue
        durable = over_memory(clock).durable
        queue = durable.scheduler
        yield durable

    queue: Any = None

    async def body(run):
        await run.step("signal", lambda: queue.make_ready("another"), str)
        await run.sleep("nap", DAY)
        return "done"

    report = await crash_everywhere(body, make)
    assert (report.result, report.equal) == ("done", True)


async def test_what_is_no_effect_is_refused_as_the_runner_refuses_it() -> None:
    async def body(run):
        await run.step("a", None, int)

    with pytest.raises(Unfinished) as unfinished:
        await crash_everywhere(body, memory, passes=1)
    assert "effect must be callable" in str(unfinished.value.__cause__)


async def test_a_result_that_cannot_be_compared_is_not_equal() -> None:
    results = itertools.count()

    async def body(run):
        await run.step("a", nothing, int)
        return next(results)

    report = await crash_everywhere(body, memory)
    assert (report.differences, report.unsteady) == ((), ("the result",))
    assert not report.equal


async def test_a_pass_that_never_ends_is_unfinished(monkeypatch) -> None:
    async def body(run):
        await run.step("a", asyncio.Event().wait, str)

    monkeypatch.setattr(crashing, "HANG", 0.05)
    monkeypatch.setattr(crashing, "GRACE", 0.02)
    with pytest.raises(Unfinished, match=r"a pass did not end within 0\.05 s"):
        await crash_everywhere(body, memory)


async def test_what_a_body_raised_is_in_the_text_about_it() -> None:
    async def body(run):
        raise LookupError("the reason")

    with pytest.raises(Unfinished, match=r"within 2 passes: LookupError\('the reason'\)"):
        await crash_everywhere(body, memory, passes=2)


# --- over a ledger ------------------------------------------------------------------------------

Ends = list[tuple[str, int, object, object]]


def watched(make: Any, ends: Ends, *, over: Callable[[Any], Any] = lambda durable: durable) -> Any:
    """As `make`, and note how each run has left the ledger."""

    @asynccontextmanager
    async def watching(clock):
        async with make(clock) as durable:
            yield over(durable)
            status = await durable.status("w")
            queued = await durable.scheduler.next_ready(timedelta(0))
            ends.append((status.state, status.attempts, status.result, queued))

    return watching


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request: pytest.FixtureRequest) -> Any:
    @asynccontextmanager
    async def in_memory(clock):
        yield MemoryDurable(
            MemoryCheckpointer(clock=clock.seconds, now=clock.now),
            MemoryScheduler(clock=clock.seconds),
        )

    return in_memory if request.param == "memory" else partial(over_file, ":memory:")


async def test_a_ledger_knows_the_end_wherever_the_process_dies(ledger: Any) -> None:
    ends: Ends = []

    async def flaky():
        if next(tries) % 3 == 0:
            raise ConnectionError("not yet")
        return 1

    tries = itertools.count()

    async def body(run):
        await run.step("price", nothing, int)
        await run.sleep("cooling off", DAY)
        by = await run.awaiting("approved by", str)
        await run.step("pay", flaky, int)
        (said,) = await run.receive("said")
        return [by, said.value]

    report = await crash_everywhere(
        body, watched(ledger, ends), answers={"approved by": "Ada"}, messages=["yes"]
    )
    assert report.equal, str(report)
    assert len(ends) > report.crashes > 60
    assert {*map(str, ends)} == {str(("completed", 0, ["Ada", "yes"], None))}


async def test_a_pass_over_a_ledger_dies_before_and_after_each_call_of_either_way() -> None:
    passes = itertools.count(1)

    @asynccontextmanager
    async def make(clock):
        nonlocal passes
        passes = itertools.count(1)
        async with over_file(":memory:", clock) as durable:
            yield durable

    async def body(run):
        return next(passes)

    report = await crash_everywhere(body, make)
    assert crashes(report) == ["before end_pass"]  # where another pass was made after it
    calls = ["wake_due", "next_ready", "start_pass", "end_pass"]
    when_idle = ["wake_due", "next_ready", "reclaim"]
    together = ["start_passes", "start_passes"]
    assert report.crashes == 2 * len(calls + when_idle + together)


async def test_a_ledger_that_does_not_hear_of_the_end_is_reported() -> None:
    class Deaf:
        """Ends no pass as a ledger must."""

        def __init__(self, durable):
            self._durable = durable

        def __getattr__(self, name):
            return getattr(self._durable, name)

        async def end_pass(self, holder, delivery, ended):
            await self._durable.end_pass(holder, delivery, Ended(ended.due))

    async def body(run):
        await run.step("a", nothing, int)

    make = watched(partial(over_file, ":memory:"), [], over=Deaf)
    report = await crash_everywhere(body, make)
    assert not report.equal
    assert report.differences[0].crash == "nowhere"
    assert report.differences[0].differences == (
        "the ledger says that it is ready with 1 attempts",
    )
    assert "before start_pass" in crashes(report)


async def test_a_workflow_that_cancels_itself_is_told_so(ledger: Any) -> None:
    @asynccontextmanager
    async def make(clock):
        nonlocal durable
        async with ledger(clock) as durable:
            yield durable

    durable: Any = None

    async def body(run):
        await run.step("cancel", lambda: durable.cancel("w"), bool)

    with pytest.raises(Unfinished, match="or was cancelled") as unfinished:
        await crash_everywhere(body, make)
    assert isinstance(unfinished.value.__cause__, Fenced)
