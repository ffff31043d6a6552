"""What a worker survives of its bodies: whatever they raise, overrun or block."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import time
from datetime import datetime, timedelta

import pytest

from gated import (
    Bench,
    Overlay,
    about,
    completing,
    forever,
    listening,
    turns,
)
from without_durability import (
    CONTENDED,
    ScheduledWakeup,
    SplitDurable,
    work,
)

pytestmark = pytest.mark.timeout(30)

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
MILLISECOND = timedelta(milliseconds=1)
SHORT_LEASE = timedelta(milliseconds=90)


# --- bodies that misbehave --------------------------------------------------------------------


class Bare(BaseException):
    """Not an `Exception`, and nobody's."""


async def cancelled_by_nobody(run):
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task


async def raising_cancelled(run):
    raise asyncio.CancelledError


async def exiting(run):
    raise SystemExit(3)


async def raising_bare(run):
    raise Bare


async def closing(run):
    raise GeneratorExit


async def bare_in_a_task_group(run):
    async with asyncio.TaskGroup() as group:
        group.create_task(raising_bare(run))


async def cancelling_itself(run):
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    "misbehaving",
    [
        cancelled_by_nobody,
        raising_cancelled,
        cancelling_itself,
        exiting,
        raising_bare,
        bare_in_a_task_group,
        closing,
        lambda run: None,
    ],
)
async def test_k13_whatever_a_body_raises_concerns_its_workflow_alone(bench: Bench, misbehaving):
    def body(run):
        return (misbehaving if run.workflow == "bad" else completing)(run)

    await bench.queue.make_ready("bad")
    for number in range(5):
        await bench.queue.make_ready(str(number))
    async with bench.working(body, limit=2) as worker:
        answers = dict([await bench.answers.get() for _ in range(6)])
        assert about(answers.pop("bad") - bench.clock.now(), SECOND)
        assert answers == dict.fromkeys("01234")
        await turns()
        assert not worker.done(), "the worker ended"
        bench.clock.advance(2 * SECOND)
        assert about(await bench.pause("bad"), 2 * SECOND)


def test_a_keyboard_interrupt_stops_the_worker(caplog):
    bench = Bench()

    async def body(run):
        if run.workflow == "other":
            await forever()
        raise KeyboardInterrupt

    async def main():
        for workflow in ("other", "w"):
            await bench.queue.make_ready(workflow)
        await work(bench.durable, body, now=bench.clock.now)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    gc.collect()
    assert "never retrieved" not in caplog.text
    assert bench.queue.outstanding == {}, "a delivery waits for its lease"


async def test_k14_a_failing_workflow_is_retried_after_growing_pauses(bench: Bench):
    failing = True

    async def body(run):
        if failing:
            raise LookupError("no such card")

    await bench.queue.make_ready("w")
    async with listening() as heard, bench.working(body):
        for attempt in range(1, 13):
            pause = await bench.pause("w")
            expected = min(2 ** (attempt - 1) * SECOND, 5 * MINUTE)
            assert about(pause, expected), f"attempt {attempt}: {pause}"
            await heard.until("'w'", f"attempt {attempt})", "no such card")
            bench.clock.advance(pause)
        failing = False
        while (await bench.answers.get())[1] is not None:
            bench.clock.advance(6 * MINUTE)


async def test_k14_failing_workflows_do_not_delay_a_good_one(bench: Bench):
    async def body(run):
        if run.workflow != "good":
            raise LookupError(run.workflow)

    for number in range(20):
        await bench.queue.make_ready(str(number))
    await bench.queue.make_ready("good")
    async with bench.working(body, limit=4):
        answers = dict([await bench.answers.get() for _ in range(21)])
        assert answers.pop("good") is None
        pauses = {(when - bench.clock.now()) for when in answers.values()}
        assert all(about(pause, SECOND) for pause in pauses)
        assert len(pauses) > 1, "what failed together comes back together"


async def test_a_success_ends_the_row_of_failures(bench: Bench):
    failures = iter([True, True, False, True])

    async def body(run):
        if next(failures):
            raise LookupError
        await run.sleep("nap", HOUR)

    await bench.queue.make_ready("w")
    async with bench.working(body):
        pauses = []
        for _ in range(4):
            pauses.append(await bench.pause("w"))
            bench.clock.advance(pauses[-1])
    assert all(map(about, pauses, [SECOND, 2 * SECOND, HOUR, SECOND]))


# --- budgets and blocked loops ----------------------------------------------------------------


async def test_k18_a_pass_that_outruns_its_budget_is_a_warning_and_waits_longer_each_time():
    bench = Bench(lease=SHORT_LEASE)
    budget = timedelta(milliseconds=150)
    starts = []

    async def body(run):
        async def effect():
            starts.append(run.holder.token)
            await forever()

        await run.step("slow", effect, str)

    await bench.queue.make_ready("w")
    async with listening() as heard, bench.working(body, budget=budget):
        for attempt in (1, 2, 3):
            pause = await bench.pause("w")
            assert about(pause, 2 ** (attempt - 1) * SECOND)
            message = await heard.until("'w'", str(budget), f"attempt {attempt})")
            assert 0.15 <= float(re.search(r"ran for (\d+\.\d+) s", message)[1]) < 2
            assert len(starts) == attempt, "the effect was started again before its pause"
            bench.clock.advance(pause)


async def test_a_step_that_buys_time_outlives_the_budget():
    bench = Bench(lease=SHORT_LEASE)
    renewed = asyncio.Queue()

    async def renew(*arguments):
        renewed.put_nowait(await bench.memory.renew(*arguments))
        return True

    async def body(run):
        async def effect():
            return [await renewed.get() for _ in range(5)]

        return await run.step("slow", effect, list, within=HOUR)

    await bench.queue.make_ready("w")
    durable = SplitDurable(Overlay(bench.memory, renew=renew), bench.watched)
    async with bench.working(body, durable, budget=timedelta(milliseconds=100)):
        assert await bench.answers.get() == ("w", None)
    assert await bench.memory.load("w") == {"slow": [True] * 5}


async def test_a_claim_lost_within_bought_time_was_not_lost_to_the_budget():
    bench = Bench(lease=SHORT_LEASE)
    renewed = asyncio.Event()

    async def renew(*arguments):
        renewed.set()
        return await bench.memory.renew(*arguments)

    async def body(run):
        await run.step("slow", renewed.wait, bool, within=HOUR)
        await bench.memory.discard("w")
        await run.step("refused", renewed.wait, bool)

    await bench.queue.make_ready("w")
    durable = SplitDurable(Overlay(bench.memory, renew=renew), bench.watched)
    async with listening() as heard, bench.working(body, durable, budget=MILLISECOND):
        assert await bench.pause("w") == CONTENDED
    assert not any("budget" in message for message in heard.messages)


async def test_k19_a_blocked_event_loop_is_a_warning_naming_workflow_and_length():
    bench = Bench(lease=SHORT_LEASE)

    async def body(run):
        async def effect():
            time.sleep(0.3)

        await run.step("blocking", effect, str)

    await bench.queue.make_ready("w")
    async with listening() as heard, bench.working(body):
        message = await heard.until("blocked", "'w'")
        assert 0.2 <= float(re.search(r"(\d+\.\d+) s", message)[1]) < 2


async def test_k19_a_loop_blocked_while_a_renewal_is_under_way_is_a_warning_too():
    bench = Bench(lease=SHORT_LEASE)
    renewing = asyncio.Event()

    async def renew(*arguments):
        answer = await bench.memory.renew(*arguments)
        renewing.set()
        await turns(5)
        return answer

    async def body(run):
        await renewing.wait()
        time.sleep(0.3)

    await bench.queue.make_ready("w")
    durable = SplitDurable(Overlay(bench.memory, renew=renew), bench.watched)
    async with listening() as heard, bench.working(body, durable):
        assert await bench.answers.get() == ("w", None)
    assert any("blocked" in message and "'w'" in message for message in heard.messages)


async def test_a_pass_on_a_loop_that_is_not_blocked_warns_of_nothing():
    bench = Bench(lease=timedelta(milliseconds=900))
    renewed = asyncio.Event()

    async def renew(*arguments):
        renewed.set()
        return await bench.memory.renew(*arguments)

    async def body(run):
        await renewed.wait()

    await bench.queue.make_ready("w")
    durable = SplitDurable(Overlay(bench.memory, renew=renew), bench.watched)
    async with listening() as heard, bench.working(body, durable):
        await bench.answers.get()
    assert heard.messages == []


class Falsy(Exception):
    """As an error over an empty list of errors would be."""

    def __len__(self) -> int:
        return 0


class Truthless(Exception):
    def __bool__(self) -> bool:
        raise LookupError("no truth in it")


@pytest.mark.parametrize("error", [Falsy, Truthless])
async def test_an_error_is_logged_whatever_its_truth_is(bench: Bench, caplog, monkeypatch, error):
    monkeypatch.setattr(logging, "raiseExceptions", False)  # the traceback module asks as well

    async def body(run):
        if run.workflow == "bad":
            raise error("of its own")

    async with bench.working(body):
        await bench.queue.make_ready("bad")
        await bench.pause("bad")
        await bench.queue.make_ready("good")
        assert await bench.answers.get() == ("good", None)
    if error is Falsy:
        (record,) = [one for one in caplog.records if "'bad' failed" in one.getMessage()]
        assert record.exc_info[0] is error


async def test_a_wait_of_ones_own_until_a_naive_moment_is_its_workflows_own_failure(bench: Bench):
    async def body(run):
        if run.workflow == "bad":
            raise run.note(ScheduledWakeup("wait", datetime(2030, 1, 1)))  # noqa: DTZ001

    async with bench.working(body, limit=1):
        await bench.queue.make_ready("bad")
        assert about(await bench.pause("bad"), timedelta(seconds=1))
        await bench.queue.make_ready("good")
        assert await bench.answers.get() == ("good", None)
