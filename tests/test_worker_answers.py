"""What a worker does when its store will not take its answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest

from gated import Bench, Overlay, completing, forever, listening
from without_durability import (
    Fenced,
    MemoryScheduler,
    Run,
    SplitDurable,
    attempt,
    retrying,
    work,
)
from without_durability.retrying import persist

pytestmark = pytest.mark.timeout(30)

MILLISECOND = timedelta(milliseconds=1)
SHORT = timedelta(milliseconds=60)


class Refusal(Exception):
    """What a store says that will not take something now."""


class Gone(Exception):
    """What a store says whose file is gone."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "STORE_FIRST", MILLISECOND)
    monkeypatch.setattr(retrying, "STORE_CAP", MILLISECOND)


def refusing(error: type[Exception]):
    async def refuse(*_: object) -> None:
        raise error

    return refuse


async def test_an_answer_is_asked_for_as_long_as_the_lease_lasts_and_then_given_up():
    bench = Bench(lease=SHORT)
    scheduler = Overlay(bench.queue, done=refusing(Refusal))
    durable = SplitDurable(bench.memory, scheduler)
    await bench.queue.make_ready("w")
    async with listening() as heard, bench.working(completing, durable):
        await heard.until("the answer of workflow 'w' failed", "lease")
        await heard.until("the answer of workflow 'w' failed", "lease", "Refusal")
    assert await bench.memory.claim("w", SHORT, SHORT) is not None, "the claim was kept"


async def test_a_permanent_error_while_handing_back_is_logged_and_ends_nothing_else():
    bench = Bench()
    scheduler = Overlay(
        bench.queue, wake_at=refusing(Gone), permanent=lambda error: isinstance(error, Gone)
    )
    durable = SplitDurable(bench.memory, scheduler)
    started = asyncio.Event()

    async def body(run: Run) -> None:
        started.set()
        await forever()

    await bench.queue.make_ready("w")
    async with listening() as heard:
        async with bench.working(body, durable) as worker:
            await started.wait()
            worker.cancel()
            with pytest.raises(asyncio.CancelledError):
                await worker
        assert any("was not handed back" in message for message in heard.messages)
    assert await bench.memory.claim("w", SHORT, SHORT) is not None, "the claim was kept"


async def test_a_step_that_gets_no_more_time_looks_again_without_running():
    bench = Bench()
    ran = []

    async def extend(*_: object) -> bool:
        return False

    async def effect() -> None:
        ran.append(1)

    async def body(run: Run) -> None:
        await run.step("long", effect, lambda value: value, within=timedelta(hours=1))

    await bench.queue.make_ready("w")
    async with bench.working(body, bench.over(extend=extend)):
        assert await bench.pause("w") == timedelta(seconds=1)
    assert ran == []


async def test_time_that_a_step_bought_counts_before_a_pass_is_said_to_outrun_its_budget():
    bench = Bench(lease=SHORT)
    bought = asyncio.Event()

    async def effect() -> None:
        bought.set()
        await forever()

    async def renew(*_: object) -> bool:
        return not bought.is_set()

    async def body(run: Run) -> None:
        await run.step("long", effect, lambda value: value, within=timedelta(hours=1))

    await bench.queue.make_ready("w")
    async with listening() as heard, bench.working(body, bench.over(renew=renew), budget=SHORT):
        assert await bench.pause("w") == timedelta(seconds=1)
        assert not any("its own budget" in message for message in heard.messages)


async def test_a_body_fenced_by_its_store_is_not_a_failure():
    bench = Bench()

    async def body(run: Run) -> None:
        raise Fenced("superseded")

    await bench.queue.make_ready("w")
    async with listening() as heard, bench.working(body):
        assert await bench.pause("w") == timedelta(seconds=1)
        assert not any("failed" in message for message in heard.messages)


async def test_patience_ends_with_the_last_refusal():
    with pytest.raises(Refusal):
        await persist(MemoryScheduler(), refusing(Refusal), "a call", patience=timedelta(0))


async def test_a_claim_lost_on_another_workflow_is_a_failure_of_this_one():
    bench = Bench()

    async def body(run: Run) -> None:
        raise Fenced("superseded", workflow="other", token=1)

    await bench.queue.make_ready("w")
    async with listening() as heard, bench.working(body):
        await heard.until("workflow 'w' failed (attempt 1)")


async def test_a_body_that_swallows_its_cancellation_is_reported(monkeypatch):
    monkeypatch.setattr(attempt, "PARTING", SHORT)
    bench = Bench()
    started, leave = asyncio.Event(), asyncio.Event()

    async def body(run: Run) -> None:
        started.set()
        while not leave.is_set():
            with suppress(asyncio.CancelledError):
                await leave.wait()

    await bench.queue.make_ready("w")
    async with listening() as heard, bench.working(body) as worker:
        await started.wait()
        worker.cancel()
        await heard.until("workflow 'w' was cancelled and does not end")
        leave.set()


async def test_handing_many_passes_back_takes_no_longer_than_one(monkeypatch):
    """A store that refuses is asked for `PARTING` once per pass, all passes side by side."""
    monkeypatch.setattr(attempt, "PARTING", timedelta(milliseconds=200))
    bench = Bench()
    started = asyncio.Semaphore(0)

    async def body(run: Run) -> None:
        started.release()
        await forever()

    scheduler = Overlay(bench.queue, wake_at=refusing(Refusal))
    durable = SplitDurable(Overlay(bench.memory, release=refusing(Refusal)), scheduler)
    for number in range(20):
        await bench.queue.make_ready(f"w{number}")
    async with bench.working(body, durable) as worker:
        for _ in range(20):
            await started.acquire()
        worker.cancel()
        async with asyncio.timeout(4):
            with pytest.raises(asyncio.CancelledError):
                await worker


async def test_a_permanent_error_of_the_scheduler_leaves_no_claim_behind():
    bench = Bench()
    scheduler = Overlay(bench.queue, done=refusing(Gone), permanent=lambda error: True)
    await bench.queue.make_ready("w")
    with pytest.raises(Gone):
        await work(SplitDurable(bench.memory, scheduler), completing, now=bench.clock.now)
    assert await bench.memory.claim("w", SHORT, SHORT) is not None
