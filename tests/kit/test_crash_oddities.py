"""The crash kit over bodies that behave oddly: it tells the truth, and it comes to an end."""

from __future__ import annotations

import asyncio
import enum
import gc
import itertools
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from gated import HANG, turns
from kit.makes import memory
from stores import over_memory
from without_durability import Fenced, MemoryCheckpointer, MemoryScheduler, SplitDurable
from without_durability.testing import Unfinished, crash_everywhere, crashing


class Color(enum.IntEnum):
    RED = 1


async def nothing() -> int:
    return 0


async def test_an_effect_that_never_ended_is_said_to_have_begun_only(make: Any) -> None:
    async def body(run):
        never = asyncio.create_task(run.step("never", asyncio.Event().wait, bool))
        try:
            await run.step("a", nothing, int)
        finally:
            never.cancel()

    report = await crash_everywhere(body, make)
    assert report.equal, str(report)
    assert "step 'never': never to its end" in str(report)


async def test_a_cancellation_of_the_bodys_own_is_tried_again_as_by_a_worker() -> None:
    tries = itertools.count(1)

    async def body(run):
        if next(tries) % 2:
            raise asyncio.CancelledError
        return "done"

    report = await crash_everywhere(body, memory)
    assert (report.result, report.equal) == ("done", True)


async def test_a_result_that_cannot_be_compared_is_not() -> None:
    class Uncomparable:
        def __eq__(self, other):
            raise RuntimeError("ambiguous")

        __hash__ = None

    async def body(run):
        return Uncomparable()

    report = await crash_everywhere(body, memory)
    assert (report.equal, report.unsteady) == (False, ("the result",))


async def test_a_result_of_another_type_after_a_crash_is_found(make: Any) -> None:
    async def body(run):
        live: list[object] = []

        async def color():
            live.append(Color.RED)
            return Color.RED

        recorded = await run.step("color", color, int)
        return live[0] if live else recorded

    report = await crash_everywhere(body, make)
    assert report.differences[0].differences == ("the result was 1, not <Color.RED: 1>",)


async def test_a_workflow_that_deletes_itself_is_told_so() -> None:
    @asynccontextmanager
    async def make(clock):
        nonlocal durable
        durable = over_memory(clock).durable
        yield durable

    durable: Any = None

    async def body(run):
        await run.step("delete", lambda: durable.delete("w"), int)

    with pytest.raises(Unfinished, match="the workflow deleted itself") as unfinished:
        await crash_everywhere(body, make)
    assert isinstance(unfinished.value.__cause__, Fenced)


async def test_what_a_dead_process_left_running_ends_without_a_sound() -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))

    left = []

    async def body(run):
        async def later():
            await turns()
            await run.step("late", nothing, int)

        left.append(asyncio.create_task(later()))
        await run.step("a", nothing, int)
        await left[-1]

    report = await crash_everywhere(body, memory)
    await asyncio.wait(left)
    left.clear()
    gc.collect()
    assert report.equal, str(report)
    assert complaints == []


async def test_a_body_that_cannot_be_ended_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashing, "GRACE", 0.02)
    over = asyncio.Event()

    async def body(run):
        for attempt in itertools.count():
            with suppress(BaseException):
                await run.step(f"a{attempt}", nothing, int)
                break
            if over.is_set():
                break

    with pytest.raises(Unfinished, match="its body goes on: let cancellations propagate"):
        await crash_everywhere(body, memory)
    over.set()


async def test_a_call_that_is_not_written_as_a_coroutine_function_is_a_place_to_die_at() -> None:
    class Plain(MemoryCheckpointer):
        def load(self, workflow):
            return super().load(workflow)

    @asynccontextmanager
    async def make(clock):
        store = Plain(clock=clock.seconds, now=clock.now)
        yield SplitDurable(store, MemoryScheduler(clock=clock.seconds))

    async def body(run):
        await run.step("a", nothing, int)

    plain = await crash_everywhere(body, memory)
    assert (await crash_everywhere(body, make)).crashes == plain.crashes


async def test_a_body_that_waits_on_after_it_died_inside_a_transaction_is_ended_at_once(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The effect's thread cannot end the body, which has heard of its death and goes on."""
    monkeypatch.setattr(crashing, "GRACE", 10 * HANG)

    async def body(run):
        try:
            return await run.transact("t", lambda _: 1, int)
        except BaseException:
            await asyncio.Event().wait()

    async with asyncio.timeout(HANG):
        report = await crash_everywhere(body, make)
    assert (report.result, report.equal) == (1, True), str(report)
