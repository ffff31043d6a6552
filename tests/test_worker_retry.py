"""`work(retry=)`: how long a failing workflow rests, what is an attempt, and when it is parked."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from children import ended
from gated import completing, listening
from ledgers import KINDS, Failing, Kept, each_ledger
from spied import SpiedDurable
from systems import posix_signals
from thread_gates import in_time, until
from without_durability import (
    CONTENDED,
    Clock,
    MemoryCheckpointer,
    MemoryDurable,
    MemoryScheduler,
    Retry,
    Run,
    SplitDurable,
    passes,
    ready,
    work,
)
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
)

pytestmark = pytest.mark.timeout(40)

NOW, SECOND, MINUTE, HOUR = (timedelta(seconds=seconds) for seconds in (0, 1, 60, 3600))
MILLISECOND = timedelta(milliseconds=1)

kept = pytest.fixture(params=KINDS)(each_ledger)


no_chance = pytest.mark.usefixtures("_no_chance")


async def parked(kept: Kept, body: Any, attempts: int) -> None:
    """Have the body fail as often as it may."""
    async with kept.working(body, retry=Retry(attempts)):
        for _ in range(attempts - 1):
            kept.clock.advance(await kept.pause())
        assert (await kept.end()).state == "failed"


# --- the policy -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *(("attempts", bad) for bad in (0, -1, 1.0, True, "3", None, math.inf)),
        *(("first", bad) for bad in (NOW, -SECOND, 1, None)),
        *(("cap", bad) for bad in (NOW, -SECOND, 1.5, None)),
        *(("factor", bad) for bad in (0, 0.99, -2, math.inf, math.nan, "2", None)),
        *(("jitter", bad) for bad in (-0.1, 1, 1.5, math.inf, math.nan, "0.2", None)),
    ],
)
def test_a_retry_that_makes_no_policy_is_refused(name: str, bad: object):
    with pytest.raises((ValueError, TypeError)):
        Retry(**{name: bad})  # type: ignore[arg-type]


def test_a_refusal_names_what_is_wrong():
    for name, bad in {"attempts": 0, "first": NOW, "cap": NOW, "factor": 0, "jitter": 1}.items():
        with pytest.raises(ValueError, match=name):
            Retry(**{name: bad})  # type: ignore[arg-type]


def test_a_retry_is_a_value():
    retry = Retry()
    assert retry == Retry(20, SECOND, 2, 5 * MINUTE, 0.2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        retry.attempts = 3  # type: ignore[misc]


@no_chance
def test_the_pauses_grow_by_the_factor_up_to_the_cap():
    assert [Retry().pause(n).total_seconds() for n in range(1, 12)] == [
        *(1, 2, 4, 8, 16, 32, 64, 128, 256),
        *(300, 300),
    ]
    retry = Retry(first=10 * SECOND, factor=1.5, cap=20 * SECOND)
    assert [retry.pause(n) for n in (1, 2, 3)] == [10 * SECOND, 15 * SECOND, 20 * SECOND]
    assert {Retry(factor=1).pause(n) for n in (1, 2, 100)} == {SECOND}
    assert Retry(first=HOUR, cap=MINUTE).pause(1) == MINUTE


@no_chance
@pytest.mark.parametrize("attempt", [2000, 10**9])
@pytest.mark.parametrize("factor", [2, 2.0, 1e300])
def test_a_pause_that_no_timedelta_holds_is_the_cap(attempt: int, factor: float):
    assert Retry(factor=factor).pause(attempt) == 5 * MINUTE
    assert Retry(first=timedelta.max, cap=timedelta.max).pause(attempt) == timedelta.max


@pytest.mark.parametrize("jitter", [0, 0.2, 0.9])
def test_the_jitter_bounds_the_pause_and_takes_the_whole_of_it(
    jitter: float, monkeypatch: pytest.MonkeyPatch
):
    retry = Retry(first=100 * SECOND, jitter=jitter)
    pauses = [retry.pause(1).total_seconds() for _ in range(300)]
    low, high = 100 * (1 - jitter), 100 * (1 + jitter)
    assert all(low <= pause <= high for pause in pauses)
    assert (max(pauses) - min(pauses) > (high - low) / 2) or jitter == 0
    for end, expected in ((min, low), (max, high)):
        monkeypatch.setattr(random, "uniform", lambda *bounds, end=end: end(bounds))
        assert retry.pause(1).total_seconds() == pytest.approx(expected)


def test_the_longest_pause_with_the_most_jitter_overflows_nothing():
    retry = Retry(first=timedelta.max, cap=timedelta.max, jitter=0.99)
    for _ in range(50):
        assert retry.pause(1) > NOW


# --- who may park -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hidden", [("start_pass",), ("end_pass",), ("start_pass", "end_pass", "start_passes")]
)
async def test_a_retry_over_a_durable_without_a_ledger_is_refused_by_the_call_itself(
    kept: Kept, hidden: tuple[str, ...]
):
    split = SplitDurable(kept.durable.checkpointer, kept.durable.scheduler)
    for durable in (split, SpiedDurable(kept.durable, without={*hidden})):
        coroutine = None
        try:
            with pytest.raises(ValueError, match="ledger"):
                coroutine = work(durable, completing, retry=Retry())
        finally:
            if coroutine is not None:
                coroutine.close()


def test_a_retry_over_whole_passes_without_a_ledger_is_refused_too(clock: Clock):
    """It would drop what it cannot park."""

    class Whole:
        def __init__(self, durable: Any) -> None:
            self.checkpointer, self.scheduler = durable.checkpointer, durable.scheduler
            self.start_pass, self.end_pass = durable.start_pass, durable.end_pass

    ledger = MemoryDurable(MemoryCheckpointer(), MemoryScheduler())
    with pytest.raises(ValueError, match="a ledger"):
        work(cast("Any", Whole(ledger)), completing, retry=Retry())
    work(cast("Any", Whole(ledger)), completing).close()


async def test_without_its_passes_a_durable_is_worked_as_two_stores(kept: Kept):
    """Failures are then counted in the worker, and the row tells no more than the arrival."""
    body = Failing()
    durable = SpiedDurable(kept.durable, without={"start_pass", "end_pass", "start_passes"})
    await kept.durable.arrive("w", "begun", True)
    async with listening() as heard, kept.working(body, durable):
        for attempt in (1, 2):
            await heard.until(f"failed (attempt {attempt})")
            await durable.answers(attempt)
            status = await kept.status()
            assert (status.state, status.attempts, status.error) == ("ready", 0, None)
            kept.clock.advance(5 * MINUTE)
        body.fails = False
        await durable.answers(3)
    assert not {"start_pass", "end_pass", "start_passes"} & {*durable.calls}
    assert (await kept.status()).state == "ready"


# --- for ever ---------------------------------------------------------------------------------


@no_chance
async def test_with_no_retry_it_is_tried_for_ever_after_the_pauses_of_a_retry(kept: Kept):
    body = Failing()
    await kept.durable.arrive("w", "begun", True)
    async with kept.working(body):
        for attempt in range(1, Retry().attempts + 6):
            pause = await kept.pause()
            assert pause == Retry().pause(attempt)
            status = await kept.status()
            assert (status.state, status.attempts) == ("ready", attempt)
            assert status.error is not None
            assert status.error.message == f"run {attempt}"
            kept.clock.advance(pause)
        await kept.end()
        body.fails = False
        kept.clock.advance(5 * MINUTE)
        assert (await kept.end()).state == "completed"
    assert body.steps == 1
    assert (await kept.status()).attempts == 0


async def test_passes_over_ready_count_in_the_ledger_and_park_nothing(kept: Kept):
    body = Failing()
    scheduler = kept.durable.scheduler
    await kept.durable.arrive("w", "begun", True)
    deliveries = ready(scheduler, MILLISECOND)
    pool = passes(kept.noted, body, now=kept.clock.now)
    task = asyncio.create_task(pool(deliveries))
    try:
        for attempt in range(1, 25):
            ended = await kept.end()
            status = await kept.status()
            assert (ended.state, status.state, status.attempts) == ("ready", "ready", attempt)
            kept.clock.advance(6 * MINUTE)
            await scheduler.wake_due(kept.clock.now())
        await kept.end()
        body.fails = False
        kept.clock.advance(6 * MINUTE)
        await scheduler.wake_due(kept.clock.now())
        assert (await kept.end()).state == "completed"
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await deliveries.aclose()
    assert (await kept.status()).result == "done"


# --- parking ----------------------------------------------------------------------------------


@no_chance
@pytest.mark.parametrize("attempts", [1, 2, 5])
async def test_a_failing_workflow_is_parked_at_the_limit_exactly(kept: Kept, attempts: int):
    body = Failing()
    retry = Retry(attempts, first=3 * SECOND, factor=3, cap=20 * SECOND)
    await kept.durable.arrive("w", "begun", True)
    async with listening() as heard, kept.working(body, retry=retry):
        for attempt in range(1, attempts):
            pause = await kept.pause()
            assert pause == retry.pause(attempt)
            status = await kept.status()
            assert (status.state, status.attempts) == ("ready", attempt)
            kept.clock.advance(pause)
        ended = await kept.end()
        assert (ended.state, ended.due) == ("failed", None)
        status = await kept.status()
        assert (status.state, status.attempts, status.due) == ("failed", attempts, None)
        assert status.running is False
        assert status.error is not None
        assert str(status.error) == f"LookupError: run {attempts}"
        assert await kept.delivered() is None, "a parked one is queued"
        await heard.until("its attempts are used up", f"run {attempts}")
        await heard.until(f"is parked after {attempts} attempts")
    assert (body.runs, body.steps) == (attempts, 1)
    records = await kept.durable.checkpointer.load("w")
    assert records == {"begun": True, "kept": 1}, "parking lost a record"


async def test_a_parked_workflow_runs_again_after_a_retry_and_goes_on_where_it_was(kept: Kept):
    body = Failing()
    await kept.durable.arrive("w", "begun", True)
    await parked(kept, body, attempts=2)
    assert await kept.durable.retry("w") is True
    assert await kept.durable.retry("w") is False
    status = await kept.status()
    assert (status.state, status.attempts, status.error) == ("ready", 0, None)
    await parked(kept, body, attempts=2)
    assert await kept.durable.retry("w") is True
    body.fails = False
    async with kept.working(body, retry=Retry(2)):
        assert (await kept.end()).state == "completed"
    assert (body.runs, body.steps) == (5, 1)
    assert await kept.durable.result("w", within=NOW) == "done"


@pytest.mark.parametrize("arrive", [True, False])
async def test_what_arrives_for_a_parked_workflow_is_a_new_chance(kept: Kept, arrive: bool):
    body = Failing()
    await kept.durable.arrive("w", "begun", True)
    await parked(kept, body, attempts=2)
    if arrive:
        await kept.durable.arrive("w", "news", 1)
    else:
        await kept.durable.deliver("w", 1)
    status = await kept.status()
    assert (status.state, status.attempts) == ("ready", 0)
    await parked(kept, body, attempts=2)
    assert body.runs == 4, "the old attempts counted against it, or the new ones did not"


async def test_a_parked_workflow_that_is_made_ready_is_a_new_chance_as_well(kept: Kept):
    body = Failing()
    await kept.durable.arrive("w", "begun", True)
    await parked(kept, body, attempts=2)
    await kept.durable.scheduler.make_ready("w")
    await parked(kept, body, attempts=2)
    assert body.runs == 4


async def test_what_arrives_between_failures_is_no_new_chance(kept: Kept):
    """Or a busy inbox would keep a poisoned workflow running for ever."""
    body = Failing()
    await kept.durable.arrive("w", "begun", True)
    async with kept.working(body, retry=Retry(3)):
        await kept.end()
        await kept.durable.deliver("w", "one")
        await kept.end()
        await kept.durable.deliver("w", "two")
        assert (await kept.end()).state == "failed"
    assert body.runs == 3


async def test_what_arrives_during_the_last_failing_pass_is_a_new_chance(kept: Kept):
    seen: list[int] = []

    async def body(run: Run[Any]) -> None:
        seen.append((await kept.status()).attempts)
        if len(seen) == 2:
            await kept.durable.deliver("w", "news")
        raise LookupError(f"run {len(seen)}")

    await kept.durable.scheduler.make_ready("w")
    async with kept.working(body, retry=Retry(2), limit=1):
        kept.clock.advance(await kept.pause())
        await kept.end()
        await kept.end()
        await until(lambda: len(seen) == 3)
    assert seen == [1, 2, 1]


async def test_what_arrives_then_is_a_new_chance_also_where_a_free_slot_finds_the_workflow_held(
    kept: Kept,
):
    body_ends, seen = asyncio.Event(), []

    async def body(run: Run[Any]) -> str:
        seen.append((await kept.status()).attempts)
        if len(seen) == 1:
            await kept.durable.arrive("w", "fix", 7)
            await body_ends.wait()
            raise LookupError("what the fix is for")
        return str(await run.awaiting("fix", int))

    await kept.durable.arrive("w", "begun", True)
    async with kept.working(body, retry=Retry(1)):
        while (await kept.status()).due is None:  # put off, since the workflow is held
            await asyncio.sleep(0.001)
        body_ends.set()
        failed = await kept.end("w")
        while failed.state != "failed":  # the end of a pass, and not of the put-off delivery
            failed = await kept.end("w")
        kept.clock.advance(CONTENDED)
        assert await kept.durable.result("w", within=MINUTE) == "7"
    assert seen == [1, 1]


async def test_an_orderly_end_between_failures_starts_the_count_anew(kept: Kept):
    outcomes = iter([LookupError, None, LookupError, LookupError])

    async def body(run: Run[Any]) -> None:
        error = next(outcomes)
        if error is not None:
            raise error

    await kept.durable.scheduler.make_ready("w")
    async with kept.working(body, retry=Retry(2)):
        kept.clock.advance(await kept.pause())
        assert (await kept.end()).state == "completed"
        await kept.durable.deliver("w", 1)
        pause = await kept.pause()
        assert (await kept.status()).attempts == 1
        kept.clock.advance(pause)
        assert (await kept.end()).state == "failed"


async def test_a_lower_limit_parks_at_the_next_take_what_has_used_it_up(kept: Kept):
    """With the error it failed with last, and no further pass."""
    body = Failing()
    await kept.durable.arrive("w", "begun", True)
    async with kept.working(body, retry=Retry(10)):
        kept.clock.advance(await kept.pause())
        kept.clock.advance(await kept.pause())
        kept.clock.advance(await kept.pause())
    runs = body.runs
    await kept.durable.scheduler.make_ready("w")
    async with listening(), kept.working(body, retry=Retry(2)):
        await _has(kept, "failed")
    status = await kept.status()
    assert status.error is not None
    assert status.error.message.startswith("run ")
    assert body.runs == runs
    assert await kept.delivered() is None


async def _has(kept: Kept, state: str, workflow: str = "w") -> None:
    async def has() -> None:
        while (await kept.durable.status(workflow)).state != state:
            await asyncio.sleep(0.001)

    await in_time(has())


async def test_a_failing_workflow_delays_no_other(kept: Kept):
    async def body(run: Run[Any]) -> str:
        if run.workflow.startswith("bad"):
            raise LookupError(run.workflow)
        return "done"

    bad, good = [f"bad {n}" for n in range(6)], [f"good {n}" for n in range(6)]
    for pair in zip(bad, good, strict=True):
        for workflow in pair:
            await kept.durable.arrive(workflow, "begun", True)
    async with kept.working(body, retry=Retry(3), limit=2):
        for workflow in good:
            assert await kept.durable.result(workflow, within=timedelta(seconds=5)) == "done"
        for round_ in range(1, 4):
            await until(lambda n=round_: kept.noted.ends.qsize() >= 6 * (n + 1))  # type: ignore[misc]
            kept.clock.advance(HOUR)
    assert await kept.durable.counts() == {
        "ready": 0,
        "sleeping": 0,
        "blocked": 0,
        "completed": 6,
        "failed": 6,
        "cancelled": 0,
    }


# --- what outlives a worker and a process -------------------------------------------------------


async def test_attempts_outlive_the_worker(kept: Kept):
    body = Failing()
    await kept.durable.arrive("w", "begun", True)
    for attempt in (1, 2):
        async with kept.working(body, retry=Retry(3)):
            pause = await kept.pause()
            assert (await kept.status()).attempts == attempt
        kept.clock.advance(pause)
    async with kept.working(body, retry=Retry(3)):
        assert (await kept.end()).state == "failed"
    assert body.runs == 3


DIES = """
how, ahead, attempts = arguments
parked = asyncio.Event()

def told(event):
    print(type(event).__name__, *(getattr(event, name, "-") for name in ("attempt", "attempts")))
    sys.stdout.flush()
    if isinstance(event, Parked):
        parked.set()

async def kept():
    print("step")
    return 1

async def body(run):
    await run.step("kept", kept, int)
    if how == "exit":
        os._exit(9)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "raise":
        raise LookupError("no such card")

async def main():
    await opened(clock=lambda: time.time() + float(ahead))
    await work(
        d, body, retry=Retry(int(attempts)), stopping=parked, observe=told,
        within=timedelta(milliseconds=20),
        now=lambda: datetime.fromtimestamp(time.time() + float(ahead), UTC),
    )
    print("stopped")
    await db.aclose()

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["exit", pytest.param("kill", marks=posix_signals)])
async def test_a_body_that_ends_its_process_is_counted_when_it_starts_and_parked(
    path: Path, filed: Database, how: str
):
    """Every process dies in the same workflow: after two starts the third takes it and parks it."""
    durable = SqliteDurable(SqliteCheckpointer(filed), SqliteScheduler(filed))
    await durable.arrive("w", "begun", True)
    for start in (1, 2):
        child = await asyncio.to_thread(ended, DIES, path, how, 120 * start, 2)
        assert child.code in (9, -9), child.err
        assert f"PassStarted {start}" in child.out
        assert ("step" in child.out) is (start == 1), "a recorded step ran again"
        status = await durable.status("w")
        assert status is not None
        assert (status.state, status.attempts, status.error) == ("ready", start, None)
    last = await asyncio.to_thread(ended, DIES, path, how, 400, 2)
    assert (last.code, last.out.splitlines()) == (0, ["Parked - 2", "stopped"]), last.err
    status = await durable.status("w")
    assert status is not None
    assert (status.state, status.attempts) == ("failed", 2)
    assert status.error is not None
    assert status.error.type == "Unfinished"
    assert "2 passes were started" in status.error.message
    assert await durable.checkpointer.load("w") == {"begun": True, "kept": 1}
    assert await durable.scheduler.next_ready(NOW) is None
    assert await durable.retry("w") is True
    done = await asyncio.to_thread(ended, DIES, path, "exit", 500, 2)
    assert "PassStarted 1" in done.out, "the row of attempts did not begin anew"


async def test_failures_and_deaths_of_processes_count_together(path: Path, filed: Database):
    durable = SqliteDurable(SqliteCheckpointer(filed), SqliteScheduler(filed))
    await durable.arrive("w", "begun", True)
    died = await asyncio.to_thread(ended, DIES, path, "exit", 120, 2)
    assert "PassStarted 1" in died.out
    last = await asyncio.to_thread(ended, DIES, path, "raise", 240, 2)
    assert last.code == 0, last.err
    assert last.out.split("\n") == [
        "PassStarted 2 -",
        "PassFailed 2 -",
        "Parked - 2",
        "stopped",
        "",
    ]
    status = await durable.status("w")
    assert status is not None
    assert status.error is not None
    assert (status.state, status.error.message) == ("failed", "no such card")
