"""One `Database` and several event loops: one after another, torn down, or at once (sqlite.md)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from thread_gates import THREAD, Gate, fail, in_time, own_guard_only, stays_outside, twenty
from without_durability import LEASE
from without_durability_sqlite import SqliteCheckpointer


@contextmanager
def new_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        loop.close()


def test_a_loop_that_merely_stopped_counts_as_ended(loopless):
    with new_loop() as first, new_loop() as second:
        assert first.run_until_complete(twenty(loopless, "a")) == 20
        assert second.run_until_complete(twenty(loopless, "b")) == 20
        assert first.run_until_complete(twenty(loopless, "c")) == 20


def test_a_loop_stopped_with_a_thread_inside_keeps_no_later_one_waiting(loopless):
    gate = Gate()
    with new_loop() as first:
        task = first.create_task(loopless.run(gate))
        first.run_until_complete(gate.reached())
        gate.opened.set()
        assert asyncio.run(twenty(loopless, "b")) == 20
        assert first.run_until_complete(task) == "done", "what it had begun is still heard of"


def test_a_loop_stopped_while_tasks_stand_in_line_keeps_no_later_one_waiting(loopless):
    gate = Gate()
    with new_loop() as first:
        task = first.create_task(loopless.run(gate))
        waiting = [
            first.create_task(SqliteCheckpointer(loopless).supply(f"a{n}", "k", 1))
            for n in range(3)
        ]
        first.run_until_complete(gate.reached())
        gate.opened.set()
        assert asyncio.run(twenty(loopless, "b")) == 20
        first.run_until_complete(asyncio.gather(task, *waiting))


@own_guard_only
def test_a_guard_of_a_stopped_loop_is_over(loopless):
    with new_loop() as first:
        first.run_until_complete(loopless.guard.acquire())
        assert asyncio.run(twenty(loopless, "b")) == 20


def test_the_guard_keeps_others_out_in_a_later_loop_too(loopless):
    async def guards() -> None:
        async with loopless.guard:
            task = asyncio.create_task(loopless.run(lambda connection: 1))
            await stays_outside(task)
        assert await in_time(task) == 1

    asyncio.run(guards())
    asyncio.run(guards())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_closed_without_cancelling_anything_leaves_the_database_usable(loopless, caplog):
    gate = Gate()
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(loopless.run(gate))]
    tasks += [loop.create_task(loopless.run(lambda connection: 1)) for _ in range(3)]
    loop.run_until_complete(gate.reached())
    with caplog.at_level(logging.CRITICAL, "asyncio"):
        loop.close()
        gate.opened.set()
        assert asyncio.run(twenty(loopless, "b")) == 20
        del tasks


def test_an_error_after_the_loop_was_closed_is_logged(loopless, caplog):
    error = LookupError("too late for anybody")
    gate = Gate(fail(error))

    async def begins() -> None:
        begins.task = asyncio.ensure_future(loopless.run(gate))
        await gate.reached()

    asyncio.run(begins())
    with caplog.at_level(logging.ERROR, THREAD):
        gate.opened.set()
        assert asyncio.run(twenty(loopless, "b")) == 20
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error]


@own_guard_only
def test_a_claim_granted_after_its_loop_was_closed_is_given_back(loopless):
    gate = Gate()

    async def asks() -> None:
        asks.first = asyncio.ensure_future(loopless.run(gate))
        await gate.reached()
        asks.claim = asyncio.ensure_future(SqliteCheckpointer(loopless).claim("w", LEASE, LEASE))
        await asyncio.sleep(0)

    async def claims() -> object:
        try:
            return await in_time(SqliteCheckpointer(loopless).claim("w", LEASE, LEASE))
        finally:
            await in_time(loopless.aclose())

    asyncio.run(asks())
    gate.opened.set()
    assert asyncio.run(claims()) is not None


def test_closing_from_a_later_loop_waits_for_the_thread(loopless):
    gate = Gate()

    async def begins() -> None:
        begins.task = asyncio.ensure_future(loopless.run(gate))
        await gate.reached()

    async def closes() -> None:
        close = asyncio.create_task(loopless.aclose())
        await stays_outside(close)
        gate.opened.set()
        await in_time(close)

    asyncio.run(begins())
    asyncio.run(closes())
