"""A worker over the ledger in memory, as an application's own tests run one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import without_durability as core
from gated import HANG
from without_durability import (
    MemoryCheckpointer,
    MemoryDurable,
    MemoryScheduler,
    Retry,
    WorkflowFailed,
    work,
)

pytestmark = pytest.mark.timeout(20)

NOW = timedelta(0)
WAIT = timedelta(seconds=HANG)


class NotMended(RuntimeError):
    pass


async def test_a_worker_parks_what_fails_and_an_arrival_gives_it_another_chance() -> None:
    durable = MemoryDurable(MemoryCheckpointer(), MemoryScheduler())
    passes: list[str] = []

    async def body(run: core.Run[Any]) -> str:
        passes.append(run.workflow)
        if "mend" not in run.recorded:
            raise NotMended("not mended")
        return "mended"

    retry = Retry(attempts=2, first=timedelta(milliseconds=1))
    worker = asyncio.create_task(work(durable, body, retry=retry, tick=timedelta(milliseconds=1)))
    try:
        await durable.arrive("w", "k", 1)
        with pytest.raises(WorkflowFailed, match="NotMended: not mended"):
            await durable.result("w", within=WAIT)
        assert passes == ["w", "w"]
        status = await durable.status("w")
        assert status is not None
        assert status.attempts == 2
        await durable.arrive("w", "mend", True)
        assert await durable.result("w", within=WAIT) == "mended"
        assert await durable.counts() == dict.fromkeys(core.STATES, 0) | {"completed": 1}
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


async def test_a_worker_that_is_stopped_gives_its_pass_back_uncounted() -> None:
    durable = MemoryDurable(MemoryCheckpointer(), MemoryScheduler())
    running = asyncio.Event()

    async def body(run: core.Run[Any]) -> None:
        running.set()
        await asyncio.Event().wait()

    worker = asyncio.create_task(work(durable, body))
    await durable.arrive("w", "k", 1)
    async with asyncio.timeout(HANG):
        await running.wait()
    status = await durable.status("w")
    assert status is not None
    assert (status.running, status.attempts) == (True, 1)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    status = await durable.status("w")
    assert status is not None
    assert (status.state, status.running, status.attempts) == ("ready", False, 0)
    assert await durable.scheduler.next_ready(NOW) is not None


async def test_a_cancelled_pass_ends_at_its_next_write_and_stays_cancelled() -> None:
    durable = MemoryDurable(MemoryCheckpointer(), MemoryScheduler())
    running, go_on = asyncio.Event(), asyncio.Event()

    async def body(run: core.Run[Any]) -> None:
        async def effect() -> int:
            running.set()
            await go_on.wait()
            return 1

        await run.step("step", effect, lambda stored: stored)

    worker = asyncio.create_task(work(durable, body, contended=timedelta(milliseconds=1)))
    try:
        await durable.arrive("w", "k", 1)
        async with asyncio.timeout(HANG):
            await running.wait()
            assert await durable.cancel("w", "enough")
            go_on.set()
            with pytest.raises(core.WorkflowCancelled, match="enough"):
                await durable.result("w", within=WAIT)
        await durable.arrive("other", "k", 1)
        assert await durable.result("other", within=WAIT) is None
        assert await durable.checkpointer.load("w") == {"k": 1}
        status = await durable.status("w")
        assert status is not None
        assert status.state == "cancelled"
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
