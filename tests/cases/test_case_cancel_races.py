"""K20: cancelling a workflow that is just about to act."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from without_durability import Run, SplitDurable, work

MIN = timedelta(minutes=1)
SOON = timedelta(milliseconds=20)
FAR = 24 * 60 * MIN


def as_is(value: object) -> object:
    return value


class Intercepted:
    """A checkpointer that lets something happen around a claim of "w"."""

    def __init__(self, checkpointer: Any, around: Callable[[], Awaitable[object]], when: str):
        self._checkpointer = checkpointer
        self._around = around
        self._when = when

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checkpointer, name)

    async def claim(self, workflow: str, *terms: Any) -> Any:
        if workflow == "w" and self._when == "before the claim":
            await self._around()
        holder = await self._checkpointer.claim(workflow, *terms)
        if workflow == "w" and self._when == "after the claim":
            await self._around()
        return holder


async def worked(stores: Any, checkpointer: Any, body: Callable[[Run[Any]], Any]) -> None:
    """Have a worker with one slot answer for "w", which is ready, and then for "last"."""
    ended = asyncio.Event()

    async def either(run: Run[Any]) -> object:
        if run.workflow != "last":
            return await body(run)
        ended.set()
        return None

    await stores.scheduler.make_ready("w")
    stores.clock.advance(SOON)
    await stores.scheduler.make_ready("last")
    durable = SplitDurable(checkpointer, stores.scheduler)
    async with asyncio.timeout(5):
        worker = asyncio.create_task(
            work(durable, either, limit=1, within=SOON, now=stores.clock.now)
        )
        await ended.wait()
        worker.cancel()
        await asyncio.wait([worker])


async def assert_gone(stores: Any) -> None:
    """ "w" holds nothing, comes back never, and could be claimed at once."""
    assert await stores.checkpointer.load("w") == {}
    await stores.scheduler.cancel("last")
    stores.clock.advance(FAR)
    await stores.scheduler.wake_due(stores.clock.now())
    assert await stores.scheduler.next_ready(timedelta(0)) is None, "it came back by itself"
    assert await stores.scheduler.reclaim(timedelta(0)) is None
    assert await stores.checkpointer.claim("w", MIN, MIN)


async def test_k20_after_a_delete_the_raw_calls_are_a_new_pass_that_queues_nothing(
    stores: Any,
) -> None:
    first = await stores.checkpointer.claim("w", 5 * MIN, MIN)
    await stores.checkpointer.record(first, "charge", "first")
    await stores.checkpointer.release(first)
    await stores.scheduler.make_ready("w")
    delivery = await stores.scheduler.next_ready(timedelta(0))
    assert await stores.durable.delete("w") == 1
    assert await stores.checkpointer.load("w") == {}
    second = await stores.checkpointer.claim("w", 5 * MIN, MIN)
    await stores.checkpointer.record(second, "charge", "second")
    await stores.scheduler.wake_at(delivery, stores.clock.now())
    assert await stores.scheduler.next_ready(timedelta(0)) is None
    assert await stores.checkpointer.load("w") == {"charge": "second"}


@pytest.mark.parametrize("when", ["before the claim", "after the claim"])
@pytest.mark.parametrize("through", ["delete", "cancel"])
async def test_k20_a_delivery_cancelled_after_its_take_starts_no_pass(
    stores: Any, through: str, when: str
) -> None:
    started: list[str] = []
    cancelling = stores.durable.delete if through == "delete" else stores.scheduler.cancel

    async def body(run: Run[Any]) -> None:
        started.append(run.workflow)

    intercepted = Intercepted(stores.checkpointer, lambda: cancelling("w"), when)
    await worked(stores, intercepted, body)
    assert started == [], "a cancelled workflow acted"
    await assert_gone(stores)


async def test_k20_a_wakeup_after_the_delete_is_a_new_start(stores: Any) -> None:
    started: list[str] = []
    acted = asyncio.Event()

    async def body(run: Run[Any]) -> None:
        if run.workflow == "w":
            started.append(run.workflow)
            acted.set()

    async def deleted_and_started_afresh() -> None:
        if not started and await stores.durable.delete("w") is not None:
            intercepted._when = "no more"
            await stores.scheduler.make_ready("w")

    intercepted = Intercepted(stores.checkpointer, deleted_and_started_afresh, "before the claim")
    await worked(stores, intercepted, body)
    async with asyncio.timeout(5):
        worker = asyncio.create_task(
            work(SplitDurable(stores.checkpointer, stores.scheduler), body, now=stores.clock.now)
        )
        await acted.wait()
        worker.cancel()
        await asyncio.wait([worker])
    assert started == ["w"], "the wakeup that came after the delete was lost or doubled"


async def record_on(run: Run[Any]) -> None:
    async def charge() -> int:
        return 1

    await run.step("charge", charge, as_is)


async def transact_on(run: Run[Any]) -> None:
    await run.transact("charge", lambda _: 1, as_is)


async def sleep_on(run: Run[Any]) -> None:
    await run.sleep("nap", MIN)


async def await_on(run: Run[Any]) -> None:
    await run.awaiting("answer", as_is)


async def fail_on(run: Run[Any]) -> None:
    raise LookupError("the body's own")


async def return_on(run: Run[Any]) -> None:
    return


@pytest.mark.parametrize(
    "goes_on", [record_on, transact_on, sleep_on, await_on, fail_on, return_on]
)
async def test_k20_a_workflow_deleted_in_the_middle_of_its_pass_does_not_come_back(
    stores: Any, goes_on: Callable[[Run[Any]], Awaitable[None]]
) -> None:
    async def body(run: Run[Any]) -> None:
        await stores.durable.delete("w")
        await goes_on(run)

    await worked(stores, stores.checkpointer, body)
    await assert_gone(stores)
