"""`work(retry=)`: what is no attempt, and what a store refuses meanwhile."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from contract import write_lock
from gated import Overlay, completing, forever, listening
from ledgers import KINDS, Failing, Kept, each_ledger, one
from without_durability import (
    BUDGET,
    CONTENDED,
    LEASE,
    Clock,
    MemoryCheckpointer,
    MemoryDurable,
    MemoryScheduler,
    Milliseconds,
    Retry,
    Run,
)
from without_durability_sqlite import (
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    connect,
)

pytestmark = pytest.mark.timeout(40)

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)

kept = pytest.fixture(params=KINDS)(each_ledger)

no_chance = pytest.mark.usefixtures("_no_chance")


# --- what is no attempt -------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 1, 2])
async def test_a_deploy_in_the_middle_of_a_pass_is_no_attempt(kept: Kept, before: int):
    body = Failing()
    inside = asyncio.Event()

    async def hanging(run: Run[Any]) -> None:
        inside.set()
        await forever()

    await kept.durable.arrive("w", "begun", True)
    async with kept.working(body, retry=Retry(3)):
        for _ in range(before):
            kept.clock.advance(await kept.pause())
    for _ in range(4):
        inside.clear()
        async with kept.working(hanging, retry=Retry(3)):
            await inside.wait()
            status = await kept.status()
            assert (status.attempts, status.running) == (before + 1, True)
        status = await kept.status()
        assert (status.state, status.attempts, status.running) == ("ready", before, False)
        assert (status.error is None) is (before == 0), "it forgot what it had failed with"
    kept.noted.ends = asyncio.Queue()
    async with kept.working(body, retry=Retry(3)):
        for _ in range(3 - before - 1):
            kept.clock.advance(await kept.pause())
        assert (await kept.end()).state == "failed"
    assert body.runs == 3


async def test_a_worker_told_to_stop_counts_the_pass_it_lets_finish_as_any_other(kept: Kept):
    body, stopping = Failing(), asyncio.Event()
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(run: Run[Any]) -> None:
        inside.set()
        await go_on.wait()
        await body(run)

    await kept.durable.arrive("w", "begun", True)
    async with kept.working(slowly, retry=Retry(3), stopping=stopping) as worker:
        await inside.wait()
        stopping.set()
        go_on.set()
        await worker
    assert (await kept.status()).attempts == 1


async def test_contention_is_no_attempt(kept: Kept):
    store = kept.durable.checkpointer
    holder = await store.claim("w", BUDGET, LEASE)
    await kept.durable.arrive("w", "begun", True)
    async with kept.working(completing, retry=Retry(1)):
        for _ in range(3):
            while (await kept.status()).due is None:
                await asyncio.sleep(0.001)
            status = await kept.status()
            assert (status.state, status.attempts, status.error) == ("ready", 0, None)
            assert status.due == kept.clock.now() + CONTENDED
            kept.clock.advance(CONTENDED)
        await store.release(holder)
        while not kept.noted.ends.qsize():
            kept.clock.advance(CONTENDED)
            await asyncio.sleep(0.005)
        assert (await kept.end()).state == "completed"


async def test_a_pass_that_lost_its_claim_to_another_is_no_failure(kept: Kept):
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def losing(run: Run[Any]) -> None:
        inside.set()
        await go_on.wait()
        await run.step("late", one, int)

    await kept.durable.arrive("w", "begun", True)
    async with listening() as heard, kept.working(losing, retry=Retry(2), limit=1):
        await inside.wait()
        kept.clock.advance(LEASE)
        kept.noted.ends = asyncio.Queue()
        stopping = asyncio.Event()
        async with kept.working(completing, retry=Retry(2), stopping=stopping):
            assert (await kept.end()).state == "completed"
            stopping.set()
        go_on.set()
        assert (await kept.end()).state is None
        await heard.until("was taken from its pass")
        assert not any("failed" in message for message in heard.messages)
    status = await kept.status()
    assert (status.state, status.result, status.attempts) == ("completed", "done", 0)
    assert "late" not in await kept.durable.checkpointer.load("w")


@no_chance
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_pass_that_outran_its_budget_is_counted_and_tells_so(
    path: Path, migrated: Path, kind: str
):
    """The store's clock moves by hand; the worker's renewals come with the loop's own."""
    clock, short, budget = Clock(), timedelta(milliseconds=60), timedelta(milliseconds=10)

    async def body(run: Run[Any]) -> None:
        clock.advance(budget)
        await forever()

    async def outrun(kept: Kept) -> None:
        await kept.durable.arrive("w", "begun", True)
        async with listening() as heard, kept.working(body, budget=budget, retry=Retry(2)):
            for attempt in (1, 2):
                end = await kept.end()
                status = await kept.status()
                assert status.attempts == attempt
                assert status.error is not None
                assert status.error.type == "Fenced"
                assert str(budget) in status.error.message
                await heard.until("its own budget", f"(attempt {attempt})")
                if attempt == 1:
                    assert end.due == kept.clock.now() + Retry().pause(1)
                    kept.clock.advance(Retry().pause(1))
            assert (end.state, end.due) == ("failed", None), "its last attempt rests in the queue"
            await heard.until("is parked after 2 attempts")
        status = await kept.status()
        assert (status.attempts, status.error and status.error.type) == (2, "Fenced")
        assert await kept.delivered() is None

    if kind == "memory":
        memory = MemoryCheckpointer(clock=clock.seconds, now=clock.now)
        scheduler = MemoryScheduler(clock=clock.seconds, lease=short)
        await outrun(Kept(MemoryDurable(memory, scheduler), clock))
    else:
        path.write_bytes(migrated.read_bytes())
        async with connect(path, clock=clock.seconds) as database:
            stores = SqliteCheckpointer(database), SqliteScheduler(database, lease=short)
            await outrun(Kept(SqliteDurable(*stores), clock))


# --- what a store refuses -----------------------------------------------------------------------


def refusing(method: Any, times: int, error: Exception) -> Any:
    left = [times]

    async def call(*arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise error
        return await method(*arguments)

    return call


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("at", ["start", "end"])
async def test_a_store_that_refuses_for_a_while_makes_no_attempt(kept: Kept, at: str):
    fused = at == "start" and hasattr(kept.noted, "start_passes")
    name = f"{at}_passes" if fused else f"{at}_pass"
    full = OSError(28, "No space left on device")
    durable = Overlay(kept.noted, **{name: refusing(getattr(kept.noted, name), 3, full)})
    ran: list[int] = []

    async def body(run: Run[Any]) -> str:
        ran.append((await kept.status()).attempts)
        return "done"

    await kept.durable.arrive("w", "begun", True)
    async with listening() as heard, kept.working(body, durable, retry=Retry(1)):
        while not kept.noted.ends.qsize():
            kept.clock.advance(SECOND)
            await asyncio.sleep(0.001)
        await heard.until("No space left")
    assert ran == [1]
    status = await kept.status()
    assert (status.state, status.attempts) == ("completed", 0)


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("fused", [True, False])
async def test_a_file_that_another_process_holds_makes_no_attempt(
    path: Path, migrated: Path, clock: Clock, fused: bool
):
    path.write_bytes(migrated.read_bytes())
    async with connect(path, clock=clock.seconds, timeout=Milliseconds(1)) as database:
        durable = SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database))
        kept = Kept(durable, clock, *(() if fused else ("start_passes",)))
        await durable.arrive("w", "begun", True)
        locked = asyncio.Event()

        async def body(run: Run[Any]) -> str:
            held.append(write_lock(path))
            held[0].__enter__()
            locked.set()
            return "done"

        held: list[Any] = []
        async with listening() as heard, kept.working(body, retry=Retry(1)):
            await locked.wait()
            await heard.until("the store refused the end of workflow 'w'")
            held[0].__exit__(None, None, None)
            assert (await kept.end()).state == "completed"
        status = await kept.status()
        assert (status.state, status.attempts, status.result) == ("completed", 0, "done")


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_record_that_the_store_refuses_is_the_passs_own_failure(kept: Kept, attempts: int):
    """A body sees the refusal, and may catch it: what it lets through counts."""
    store = kept.durable.checkpointer
    error = sqlite3.OperationalError("database is locked")
    store = Overlay(store, record=refusing(store.record, 1, error))
    durable = Overlay(kept.noted, checkpointer=store)

    async def body(run: Run[Any]) -> int:
        return await run.step("a", one, int)

    await kept.durable.arrive("w", "begun", True)
    async with kept.working(body, durable, retry=Retry(attempts)):
        first = await kept.end()
        assert first.state == ("failed" if attempts == 1 else "ready")
        if attempts == 2:
            kept.clock.advance(HOUR)
            assert (await kept.end()).state == "completed"
