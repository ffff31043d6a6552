"""`work(observe=)`: what an observer is told, in what order, and that it can do no harm."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

import without_durability
from gated import (
    HANG,
    Overlay,
    completing,
    forever,
    listening,
    turns,
)
from ledgers import KINDS, SECRET, Kept, charging, each_ledger, one
from observed import memory, paired, untimed
from thread_gates import until
from without_durability import (
    BUDGET,
    LEASE,
    ClaimLost,
    Clock,
    Event,
    Fenced,
    MemoryCheckpointer,
    MemoryScheduler,
    Parked,
    PassEnded,
    PassFailed,
    PassStarted,
    RenewalLate,
    Retry,
    Run,
    SplitDurable,
    StepRecorded,
)

pytestmark = pytest.mark.timeout(40)

NOW, HOUR = timedelta(0), timedelta(hours=1)
SHORT_LEASE = timedelta(milliseconds=90)
EVENTS = get_args(Event)

kept = pytest.fixture(params=KINDS)(each_ledger)


# --- each event -------------------------------------------------------------------------------


async def test_a_pass_is_told_from_its_start_to_its_end_with_every_new_step(
    kept: Kept, told: list[Any]
):
    async def body(run: Run[Any]) -> str:
        await run.step("charge", one, int)
        await run.transact("book", lambda _: 1, int)
        await run.pending("glance")
        await run.receive("news")
        await run.sleep("no time", NOW)
        await run.sleep("nap", HOUR)
        return await run.awaiting("answer", str)

    await kept.durable.deliver("w", "hello")
    async with kept.working(body, observe=told.append):
        await kept.end()
        first, told[:] = [*told], []
        kept.clock.advance(HOUR)
        await kept.end()
        second, told[:] = [*told], []
        await kept.durable.arrive("w", "answer", "yes")
        await kept.end()
    token = first[0].token
    keys = ["charge", "book", "glance", "news", "no time", "nap"]
    assert untimed(first) == [
        PassStarted("w", token, 1),
        *(StepRecorded("w", token, key, NOW) for key in keys),
        PassEnded("w", token, "sleeping", NOW),
    ]
    later = second[0].token
    assert later > token
    assert untimed(second) == [
        PassStarted("w", later, 1),
        PassEnded("w", later, "blocked", NOW),
    ], "a replayed step was told"
    assert [getattr(event, "outcome", None) for event in told] == [None, "completed"]


async def test_a_failing_workflow_is_told_with_its_attempts_its_pauses_and_that_it_is_parked(
    kept: Kept, told: list[Any]
):
    errors: list[LookupError] = []

    async def body(run: Run[Any]) -> None:
        errors.append(LookupError(f"number {len(errors)}"))
        raise errors[-1]

    await kept.durable.arrive("w", "begun", True)
    async with kept.working(body, observe=told.append, retry=Retry(2)):
        pause = await kept.pause()
        kept.clock.advance(pause)
        await kept.end()
        await until(lambda: len(told) == 5)
    first, second = told[0].token, told[2].token
    assert second > first
    assert untimed(told) == [
        PassStarted("w", first, 1),
        PassFailed("w", first, 1, errors[0], pause, NOW),
        PassStarted("w", second, 2),
        PassFailed("w", second, 2, errors[1], None, NOW),
        Parked("w", 2, errors[1]),
    ]


async def test_what_is_parked_without_a_pass_is_told_without_one(kept: Kept, told: list[Any]):
    """As where every pass ended with its process: here their starts are never ended."""
    scheduler = kept.durable.scheduler
    await kept.durable.arrive("w", "begun", True)
    for _ in range(2):
        delivery = await scheduler.next_ready(NOW)
        await kept.durable.start_pass(delivery, BUDGET)
        kept.clock.advance(LEASE)
    async with kept.working(completing, observe=told.append, retry=Retry(2)):
        await until(lambda: bool(told))
        await turns()
    assert told == [Parked("w", 2, None)]
    status = await kept.status()
    assert status.error is not None
    assert (status.state, status.error.type) == ("failed", "Unfinished")


async def test_a_pass_that_lost_its_claim_is_told_so(kept: Kept, told: list[Any]):
    async def body(run: Run[Any]) -> None:
        await run.step("charge", one, int)
        await kept.durable.cancel("w")
        await run.step("late", one, int)

    await kept.durable.arrive("w", "begun", True)
    async with kept.working(body, observe=told.append):
        await kept.end()
        await until(lambda: len(told) == 3)
    token = told[0].token
    assert untimed(told) == [
        PassStarted("w", token, 1),
        StepRecorded("w", token, "charge", NOW),
        ClaimLost("w", token, NOW),
    ], "a refused record was told as a step, or the loss as a failure"


@pytest.mark.parametrize("attempts", [1, 5])
@pytest.mark.parametrize("act", ["cancel", "delete"])
async def test_what_a_body_raises_once_its_workflow_was_taken_from_it_is_told_as_a_loss(
    kept: Kept, told: list[Any], act: str, attempts: int
):
    async def body(run: Run[Any]) -> None:
        await getattr(kept.durable, act)("w")
        raise LookupError("too late")

    await kept.durable.arrive("w", "begun", True)
    async with (
        listening() as heard,
        kept.working(body, observe=told.append, retry=Retry(attempts)),
    ):
        await kept.end()
        await until(lambda: len(told) == 2)
        assert await kept.delivered() is None
    token = told[0].token
    assert untimed(told) == [PassStarted("w", token, 1), ClaimLost("w", token, NOW)]
    assert any("counts for nothing" in message for message in heard.messages)


async def test_a_pass_that_outran_its_budget_is_told_as_one_that_lost_its_claim(
    clock: Clock, told: list[Any]
):
    budget = timedelta(milliseconds=10)

    async def body(run: Run[Any]) -> None:
        clock.advance(budget)
        await forever()

    kept = Kept(memory(clock, SHORT_LEASE), clock)
    await kept.durable.arrive("w", "begun", True)
    async with kept.working(body, observe=told.append, budget=budget):
        await kept.end()
        await until(lambda: isinstance(told[-1], ClaimLost))
    started, *_, lost = told  # and that its renewal was late, where it was
    assert lost == ClaimLost("w", started.token, lost.took)
    assert timedelta(milliseconds=10) <= lost.took < timedelta(seconds=HANG)


async def test_a_pass_that_is_given_back_is_told_so(kept: Kept, told: list[Any]):
    inside = asyncio.Event()

    async def body(run: Run[Any]) -> None:
        inside.set()
        await forever()

    await kept.durable.arrive("w", "begun", True)
    async with kept.working(body, observe=told.append):
        await inside.wait()
    token = told[0].token
    assert untimed(told) == [
        PassStarted("w", token, 1),
        PassEnded("w", token, "given back", NOW),
    ]


async def test_a_step_whose_pass_is_cancelled_is_told_if_it_is_recorded(
    kept: Kept, told: list[Any]
):
    inside = asyncio.Event()

    async def effect() -> int:
        inside.set()
        return 1

    async def body(run: Run[Any]) -> None:
        await run.step("charge", effect, int)
        await forever()

    store = kept.durable.checkpointer
    recording, gate = asyncio.Event(), asyncio.Event()

    async def record(*arguments: Any) -> Any:
        recording.set()
        await gate.wait()
        return await store.record(*arguments)

    await kept.durable.arrive("w", "begun", True)
    durable = Overlay(kept.noted, checkpointer=Overlay(store, record=record))
    async with kept.working(body, durable, observe=told.append) as worker:
        await recording.wait()
        worker.cancel()
        await turns()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await worker
    token = told[0].token
    assert untimed(told) == [
        PassStarted("w", token, 1),
        StepRecorded("w", token, "charge", NOW),
        PassEnded("w", token, "given back", NOW),
    ]
    assert "charge" in await store.load("w")


async def test_a_step_that_raised_is_not_told(kept: Kept, told: list[Any]):
    async def effect() -> int:
        raise LookupError

    async def body(run: Run[Any]) -> None:
        await run.step("charge", effect, int)

    await kept.durable.arrive("w", "begun", True)
    async with kept.working(body, observe=told.append):
        await kept.end()
    assert not [event for event in told if isinstance(event, StepRecorded)]


async def test_a_blocked_loop_is_told_with_how_long_it_was(clock: Clock, told: list[Any]):
    async def body(run: Run[Any]) -> None:
        time.sleep(0.3)
        await asyncio.sleep(0.02)

    kept = Kept(memory(clock, SHORT_LEASE), clock)
    await kept.durable.arrive("w", "begun", True)
    async with kept.working(body, observe=told.append):
        await kept.end()
    late = [event for event in told if isinstance(event, RenewalLate)]
    assert late
    assert (late[0].workflow, late[0].token) == ("w", told[0].token)
    assert timedelta(seconds=0.2) <= late[0].late < timedelta(seconds=HANG)
    assert paired(told) == 1


async def test_took_is_the_time_that_it_took(kept: Kept, told: list[Any]):
    """At least what the loop's own clock says was spent, and no more than was there."""
    loop = asyncio.get_running_loop()
    spent: list[float] = []

    async def effect() -> None:
        began = loop.time()
        await asyncio.sleep(0.02)
        spent.append(loop.time() - began)

    async def body(run: Run[Any]) -> None:
        await run.step("slow", effect, lambda _: None)

    await kept.durable.arrive("w", "begun", True)
    began = loop.time()
    async with kept.working(body, observe=told.append):
        await until(lambda: len(told) == 3)
    _, step, end = told
    assert spent[0] <= step.took.total_seconds() + 1e-6
    assert step.took <= end.took
    assert end.took.total_seconds() <= loop.time() - began


async def test_what_starts_no_pass_is_not_told(kept: Kept, told: list[Any]):
    """A cancelled one, one that another pass holds, a delivery that is gone."""
    await kept.durable.arrive("cancelled", "begun", True)
    await kept.durable.cancel("cancelled")
    await kept.durable.checkpointer.claim("held", BUDGET, LEASE)
    for workflow in ("cancelled", "held"):
        await kept.durable.scheduler.make_ready(workflow)
        kept.clock.advance(timedelta(milliseconds=1))
    await kept.durable.arrive("done", "begun", True)
    async with kept.working(completing, observe=told.append, limit=1):
        await kept.end("done")
        await until(lambda: len(told) == 2)
    assert {event.workflow for event in told} == {"done"}


async def test_an_observer_hears_of_two_stores_as_well(clock: Clock, told: list[Any]):
    """Attempts are then counted in the worker, and nothing is ever parked."""
    store = MemoryCheckpointer(clock=clock.seconds, now=clock.now)
    split = SplitDurable(store, MemoryScheduler(clock=clock.seconds))
    kept = Kept(split, clock)
    failures = iter([True, True, False])

    async def body(run: Run[Any]) -> None:
        if next(failures):
            raise LookupError("on purpose")

    await split.scheduler.make_ready("w")
    async with kept.working(body, split, observe=told.append):
        for count in (2, 4):
            await until(lambda count=count: len(told) == count)  # type: ignore[misc]
            kept.clock.advance(told[-1].pause)
        await until(lambda: len(told) == 6)
    assert [event.attempt for event in told if isinstance(event, PassStarted)] == [1, 2, 3]
    assert [event.attempt for event in told if isinstance(event, PassFailed)] == [1, 2]
    assert told[-1].outcome == "completed"
    assert paired(told) == 3


# --- order ------------------------------------------------------------------------------------


async def test_events_come_in_order_and_steps_of_many_passes_within_their_own(
    kept: Kept, told: list[Any]
):
    async def body(run: Run[Any]) -> None:
        for number in range(3):
            await run.step(f"{run.workflow} {number}", one, int)
        if run.workflow == "3":
            raise LookupError
        await asyncio.gather(*(run.step(f"{run.workflow} b {n}", one, int) for n in range(3)))

    for number in range(8):
        await kept.durable.arrive(str(number), "begun", True)
    async with kept.working(body, observe=told.append, limit=4):
        await until(lambda: kept.noted.ends.qsize() == 8)
        await turns()
    assert paired(told) == 8
    for number in range(8):
        mine = [event for event in told if event.workflow == str(number)]
        assert isinstance(mine[0], PassStarted)
        assert isinstance(mine[-1], PassFailed if number == 3 else PassEnded)
        keys = [event.key for event in mine[1:-1]]
        assert keys[:3] == [f"{number} {n}" for n in range(3)]
        assert sorted(keys[3:]) == ([] if number == 3 else [f"{number} b {n}" for n in range(3)])


# --- an observer that does harm -----------------------------------------------------------------


@pytest.mark.parametrize(
    "harm", [LookupError, Fenced, asyncio.CancelledError, SystemExit, GeneratorExit]
)
async def test_an_observer_that_raises_changes_nothing_but_the_log(
    kept: Kept, harm: type[BaseException]
):
    raised: list[str] = []

    def observe(event: Any) -> None:
        raised.append(type(event).__name__)
        raise harm("of the observer's own")

    async def body(run: Run[Any]) -> str:
        if run.workflow == "bad":
            raise ValueError("on purpose")
        return await charging(run)

    await kept.durable.arrive("w", "begun", True)
    await kept.durable.arrive("bad", "begun", True)
    async with (
        listening() as heard,
        kept.working(body, observe=observe, retry=Retry(1)) as worker,
    ):
        await until(lambda: kept.noted.ends.qsize() == 2)
        await until(lambda: "Parked" in raised and "PassEnded" in raised)
        await turns()
        assert not worker.done()
        for name in ("PassStarted", "StepRecorded", "PassEnded", "PassFailed", "Parked"):
            message = await heard.until(f"the observer failed at {name}")
            assert "of the observer's own" in message, "it was logged without the error"
    assert (await kept.status()).result == SECRET
    status = await kept.status("bad")
    assert (status.state, status.error and status.error.type) == ("failed", "ValueError")
    assert not any(SECRET in message for message in heard.messages)


async def test_an_observer_that_returns_something_is_not_awaited(kept: Kept):
    awaited: list[object] = []

    class Later:
        def __await__(self) -> Any:
            awaited.append(self)
            yield

    await kept.durable.arrive("w", "begun", True)
    async with kept.working(completing, observe=lambda event: Later()):
        await kept.end()
    assert awaited == []


# --- what events hold -------------------------------------------------------------------------


async def test_no_event_holds_what_a_step_returned_or_what_arrived(kept: Kept, told: list[Any]):
    async def body(run: Run[Any]) -> object:
        await charging(run)
        await run.transact("book", lambda _: SECRET, str)
        await run.receive("news")
        if run.workflow == "bad":
            raise LookupError("without it")
        return SECRET

    for workflow in ("w", "bad"):
        await kept.durable.arrive(workflow, "order", SECRET)
        await kept.durable.deliver(workflow, SECRET)
    async with kept.working(body, observe=told.append, retry=Retry(1)):
        await until(lambda: kept.noted.ends.qsize() == 2)
        await until(lambda: any(isinstance(event, Parked) for event in told))
    assert {type(event) for event in told} >= {PassStarted, StepRecorded, PassFailed, Parked}
    for event in told:
        for field in dataclasses.fields(event):
            assert SECRET not in repr(getattr(event, field.name)), event


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_an_event_is_frozen_slotted_and_public(event: Any):
    names = [field.name for field in dataclasses.fields(event)]
    made = event(*names)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.workflow = "other"
    assert not hasattr(made, "__dict__")
    assert names[0] == "workflow"
    assert len(names) <= 6
    assert made == event(*names)
    assert getattr(without_durability, event.__name__) is event


# --- a program that does not observe -----------------------------------------------------------


WORKS = """
import asyncio, sys
from without_durability import work
from without_durability_sqlite import (
    SqliteCheckpointer, SqliteDurable, SqliteScheduler, connect, migrate
)

async def body(run):
    stopping.set()
    return 1

stopping = asyncio.Event()

async def main(path, observe):
    async with connect(path) as database:
        await migrate(database)
        durable = SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database))
        await durable.arrive("w", "begun", True)
        seen = []
        options = {"observe": seen.append} if observe == "True" else {}
        await work(durable, body, stopping=stopping, **options)
        print("without_durability.observing" in sys.modules, len(seen))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(("observe", "said"), [(False, "False 0"), (True, "True 2")])
def test_a_worker_that_nobody_observes_imports_nothing_for_it(path: Path, observe: bool, said: str):
    child = subprocess.run(
        [sys.executable, "-c", WORKS, path, str(observe)],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (child.stdout.strip(), child.stderr) == (said, "")


def test_no_log_of_a_worker_names_what_a_step_returned(caplog: pytest.LogCaptureFixture):
    """With everything logged that can be: nothing of `SECRET` is in it."""
    caplog.set_level(logging.DEBUG)
    clock = Clock()
    kept = Kept(memory(clock), clock)

    async def main() -> None:
        await kept.durable.arrive("w", "order", SECRET)
        async with kept.working(charging, observe=lambda event: 1 / 0):
            await kept.end()

    asyncio.run(main())
    assert "the observer failed" in caplog.text
    assert SECRET not in caplog.text
