"""K13 and K14: bodies that end badly, over every store and across a restart of the worker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from gated import Watched, about, listening, working
from without_durability import Run, SplitDurable
from without_durability_sqlite import SqliteScheduler

SECOND = timedelta(seconds=1)
STEP = timedelta(milliseconds=250)

Body = Callable[[Run[Any]], Awaitable[object]]


def as_is(value: object) -> object:
    return value


class Bare(BaseException):
    """Not an `Exception`, and nobody's."""


def raising(error: BaseException) -> Any:
    raise error


async def awaiting_a_cancelled_task(run: Run[Any]) -> None:
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task


async def exiting(run: Run[Any]) -> None:
    raise SystemExit(3)


async def bare_in_a_task_group(run: Run[Any]) -> None:
    async def branch() -> None:
        raise Bare

    async with asyncio.TaskGroup() as group:
        group.create_task(branch())


def in_a_step(error: BaseException) -> Body:
    async def body(run: Run[Any]) -> None:
        async def effect() -> None:
            raise error

        await run.step("spoilt", effect, as_is)

    return body


def in_a_transaction(error: BaseException) -> Body:
    async def body(run: Run[Any]) -> None:
        await run.transact("spoilt", lambda _: raising(error), as_is)

    return body


def in_a_parse(error: BaseException) -> Body:
    async def body(run: Run[Any]) -> None:
        await run.transact("read", lambda _: 1, lambda _: raising(error))

    return body


MISBEHAVING: dict[str, Body] = {
    "awaiting a cancelled task": awaiting_a_cancelled_task,
    "SystemExit": exiting,
    "a bare error in a task group": bare_in_a_task_group,
    "SystemExit in a step": in_a_step(SystemExit(3)),
    "a cancellation in a step": in_a_step(asyncio.CancelledError()),
    "SystemExit in a transaction": in_a_transaction(SystemExit(3)),
    "a bare error in a transaction": in_a_transaction(Bare()),
    "a cancellation in a transaction": in_a_transaction(asyncio.CancelledError()),
    "a cancellation in a parse": in_a_parse(asyncio.CancelledError()),
    "GeneratorExit in a parse": in_a_parse(GeneratorExit()),
}


def watched(stores: Any) -> SplitDurable[Any]:
    """The stores, polled often, with their answers watched."""
    scheduler = stores.scheduler
    if isinstance(scheduler, SqliteScheduler):
        scheduler = replace(scheduler, poll=timedelta(milliseconds=5))
    return SplitDurable(stores.checkpointer, Watched(scheduler))


@pytest.mark.parametrize("misbehaving", MISBEHAVING.values(), ids=MISBEHAVING)
async def test_k13_a_restarted_worker_tries_the_bad_one_again_and_ran_every_other_once(
    stores: Any, misbehaving: Body
) -> None:
    durable: Any = watched(stores)
    answers = durable.scheduler.answers
    runs: Counter[str] = Counter()
    options: dict[str, Any] = {"limit": 2, "now": stores.clock.now, "tick": STEP / 50}

    async def body(run: Run[Any]) -> None:
        runs[run.workflow] += 1
        if run.workflow == "bad" and runs["bad"] < 3:
            await misbehaving(run)

    for workflow in ("bad", *"01234"):
        await stores.scheduler.make_ready(workflow)
        stores.clock.advance(STEP / 250)
    async with working(durable, body, **options) as worker:
        answered = dict([await answers.get() for _ in range(6)])
        assert about(answered.pop("bad") - stores.clock.now(), SECOND), "it is not retried later"
        assert answered == dict.fromkeys("01234")
        assert not worker.done(), "the worker ended"
    async with working(durable, body, **options) as worker:
        stores.clock.advance(2 * SECOND)
        workflow, when = await answers.get()
        assert workflow == "bad"
        assert about(when - stores.clock.now(), SECOND)
        stores.clock.advance(2 * SECOND)
        assert await answers.get() == ("bad", None)
        assert not worker.done()
    assert runs == Counter("01234") + Counter({"bad": 3})


async def test_k14_bad_workflows_run_seldom_and_never_keep_a_good_one_waiting(stores: Any) -> None:
    """Five seconds of twenty that always raise, four slots, and a good one every quarter."""
    durable: Any = watched(stores)
    clock = stores.clock
    runs: Counter[str] = Counter()
    due: dict[str, datetime] = {f"bad {number}": clock.now() for number in range(20)}

    async def body(run: Run[Any]) -> None:
        runs[run.workflow] += 1
        if run.workflow != "good":
            raise LookupError(run.workflow)

    for workflow in due:
        await stores.scheduler.make_ready(workflow)
    options: dict[str, Any] = {"limit": 4, "now": clock.now, "tick": STEP / 50}
    async with listening() as heard, working(durable, body, **options):
        for turn in range(20):
            expected = [workflow for workflow, when in due.items() if when <= clock.now()]
            await stores.scheduler.make_ready("good")
            answered = dict(
                [await durable.scheduler.answers.get() for _ in range(len(expected) + 1)]
            )
            assert answered.pop("good") is None, f"turn {turn}: the good one waits"
            assert sorted(answered) == sorted(expected)
            due |= answered
            clock.advance(STEP)
        await heard.until("'bad 0'", "attempt 3)")
    assert runs.pop("good") == 20
    assert set(runs.values()) == {3}, "a bad one is tried at a fixed pace"
