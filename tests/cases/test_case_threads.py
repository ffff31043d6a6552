"""K25: the store has a thread of its own, whatever the loop's default executor is busy with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from without_durability import Run, work
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    connect,
    migrate,
)

MIN = timedelta(minutes=1)


@pytest.fixture
async def full() -> AsyncIterator[list[asyncio.Future[bool]]]:
    """The loop's default executor with every thread blocked until the test is over."""
    leave = threading.Event()
    executor = ThreadPoolExecutor(4)
    asyncio.get_running_loop().set_default_executor(executor)
    blocked = [asyncio.ensure_future(asyncio.to_thread(leave.wait, 10)) for _ in range(8)]
    await asyncio.sleep(0)
    yield blocked
    leave.set()
    await asyncio.gather(*blocked)
    executor.shutdown()


async def test_k25_blocking_jobs_that_wait_for_the_store_all_return(
    checkpointer: SqliteCheckpointer,
) -> None:
    loop = asyncio.get_running_loop()
    executor = ThreadPoolExecutor(4)
    loop.set_default_executor(executor)

    def job(number: int) -> object:
        supplying = checkpointer.supply("w", str(number), number)
        return asyncio.run_coroutine_threadsafe(supplying, loop).result(timeout=3)

    numbers = await asyncio.gather(*(asyncio.to_thread(job, n) for n in range(4)))
    assert numbers == [0, 1, 2, 3]
    assert len(await checkpointer.load("w")) == 4
    executor.shutdown()


async def test_k25_every_call_is_served_while_the_default_executor_is_full(
    path: Path, full: list[asyncio.Future[bool]]
) -> None:
    async with asyncio.timeout(5):
        database = connect(path)
        await migrate(database)
        durable = SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database))
        store, scheduler = durable.checkpointer, durable.scheduler
        await durable.arrive("w", "k", 1)
        await durable.deliver("w", 1)
        delivery = await scheduler.next_ready(MIN)
        assert delivery is not None
        holder = await store.claim("w", MIN, MIN)
        assert holder is not None
        await store.record(holder, "l", 1)
        await store.transact(holder, "m", lambda cursor: 1)
        assert await store.renew(holder, MIN)
        assert await store.extend(holder, MIN, MIN)
        await scheduler.extend(delivery, MIN)
        await database.run(lambda connection: None)
        assert len(await store.history("w")) == 4
        await durable.delete("w")
        await database.aclose()
    assert not any(one.done() for one in full), "the executor was not full all the while"


@pytest.mark.usefixtures("full")
async def test_k25_a_lease_is_renewed_while_the_default_executor_is_full(path: Path) -> None:
    lease = timedelta(milliseconds=300)
    starts: list[str] = []
    ended = asyncio.Event()

    async def body(run: Run[Any]) -> None:
        starts.append(run.workflow)
        await asyncio.sleep(3 * lease.total_seconds())
        ended.set()

    async with connect(path) as database, asyncio.timeout(10):
        await migrate(database)
        scheduler = SqliteScheduler(database, lease=lease)
        durable = SqliteDurable(SqliteCheckpointer(database), scheduler)
        await scheduler.make_ready("w")
        workers = [asyncio.create_task(work(durable, body)) for _ in range(2)]
        await ended.wait()
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)
    assert starts == ["w"], "the lease lapsed and the work was done twice"


async def test_k25_every_call_to_the_driver_is_made_on_the_stores_own_thread(
    database: Database,
) -> None:
    names = {await database.run(lambda _: threading.current_thread().name) for _ in range(3)}
    assert names == {"without_durability_sqlite"}
