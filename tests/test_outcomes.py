"""How a pass ends: outcomes, what is raised instead, and branches."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from gated import Overlay, passed
from stores import Stores
from without_durability import (
    Blocked,
    Completed,
    Contended,
    Fenced,
    InputNeeded,
    Interruption,
    MessageNeeded,
    ScheduledWakeup,
    Sleeping,
    Suspended,
    Swallowed,
    claimed,
    resume,
)

pytestmark = pytest.mark.timeout(20)

HOUR = timedelta(hours=1)
START = datetime(2030, 1, 1, tzinfo=UTC)


async def forever():
    await asyncio.Event().wait()


async def test_a_body_that_returns_is_completed_with_its_value(stores: Stores):
    async def body(run):
        return "value"

    assert await passed(stores, body) == Completed("value")


@pytest.mark.parametrize(
    "error",
    [
        LookupError("x"),
        Fenced("lost"),
        Contended("held"),
        SystemExit(3),
        asyncio.CancelledError(),
        BaseException("bare"),
        Interruption("other"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_a_body_raises_comes_out_as_it_is(stores: Stores, error: BaseException):
    async def body(run):
        raise error

    with pytest.raises(type(error)) as caught:
        await passed(stores, body)
    assert caught.value is error


async def test_a_failure_outranks_suspensions_reached_on_the_way(stores: Stores):
    async def body(run):
        await asyncio.gather(run.awaiting("a", str), return_exceptions=True)
        raise LookupError("x")

    with pytest.raises(LookupError):
        await passed(stores, body)


@pytest.mark.parametrize("kind", [Suspended, type("Mine", (Suspended,), {})])
async def test_a_suspension_of_no_known_kind_is_a_type_error(stores: Stores, kind):
    async def body(run):
        raise kind("k", "the moon")

    with pytest.raises(TypeError, match="'k'"):
        await passed(stores, body)


async def test_a_noted_suspension_of_no_known_kind_is_a_type_error_in_a_group_too(stores: Stores):
    async def body(run):
        async with asyncio.TaskGroup() as group:
            group.create_task(raising(run.note(Suspended("k", "the moon"))))

    with pytest.raises(TypeError, match="'k'"):
        await passed(stores, body)


async def raising(error: BaseException):
    raise error


async def test_a_suspension_raised_without_a_note_counts(stores: Stores):
    async def body(run):
        raise MessageNeeded("mine")

    assert await passed(stores, body) == Blocked(frozenset(), frozenset({"mine"}))


# --- branches ---------------------------------------------------------------------------------


async def test_every_branch_of_a_task_group_is_reported(stores: Stores):
    async def body(run):
        async with asyncio.TaskGroup() as group:
            group.create_task(run.awaiting("a", str))
            group.create_task(run.receive("b"))
            group.create_task(run.awaiting("c", str))

    outcome = await passed(stores, body)
    assert outcome == Blocked(frozenset({"a", "c"}), frozenset({"b"}))
    assert outcome.keys == ("a", "b", "c")


async def test_the_earliest_deadline_of_all_branches_outranks_every_other_wait(stores: Stores):
    async def body(run):
        async with asyncio.TaskGroup() as group:
            group.create_task(run.awaiting("a", str))
            group.create_task(run.sleep("late", 2 * HOUR))
            group.create_task(run.sleep("soon", HOUR))

    for _ in range(2):
        assert await passed(stores, body) == Sleeping("soon", START + HOUR)


async def test_a_suspension_of_a_cancelled_branch_is_reported(stores: Stores):
    """The sleep is reached, caught by its branch, and that branch is then cancelled."""

    async def body(run):
        reached = asyncio.Event()

        async def branch():
            try:
                await run.sleep("nap", HOUR)
            except Suspended:
                reached.set()
                await forever()

        async with asyncio.TaskGroup() as group:
            group.create_task(branch())
            await reached.wait()
            await run.awaiting("a", str)

    assert await passed(stores, body) == Sleeping("nap", START + HOUR)


@pytest.mark.parametrize("order", [("nap", "a"), ("a", "nap")])
async def test_an_exception_captured_as_a_value_is_reported(stores: Stores, order):
    async def body(run):
        waits = {"nap": lambda: run.sleep("nap", HOUR), "a": lambda: run.awaiting("a", str)}
        values = await asyncio.gather(*(waits[key]() for key in order), return_exceptions=True)
        raise next(value for value in values if isinstance(value, InputNeeded))

    assert await passed(stores, body) == Sleeping("nap", START + HOUR)


async def test_a_gather_that_raises_its_first_suspension_is_an_outcome(stores: Stores):
    async def body(run):
        await asyncio.gather(run.awaiting("b", str), run.awaiting("a", str))

    assert await passed(stores, body) == Blocked(frozenset({"a", "b"}), frozenset())


@pytest.mark.parametrize("order", [("nap", "a"), ("a", "nap")])
async def test_a_sleep_beside_another_wait_of_a_gather_is_reported(stores: Stores, order):
    """An approval with a timeout: reported as blocked, nothing would ever wake it."""

    branches = []

    async def body(run):
        waits = {"nap": run.sleep("nap", HOUR), "a": run.awaiting("a", str)}
        branches.extend(asyncio.ensure_future(waits[key]) for key in order)
        await asyncio.gather(*branches)

    outcome = await passed(stores, body)
    await asyncio.wait(branches)
    assert outcome == Sleeping("nap", START + HOUR)


async def test_a_body_that_returns_past_suspensions_has_swallowed_them(stores: Stores):
    async def body(run):
        await asyncio.gather(
            run.awaiting("b", str),
            run.awaiting("a", str),
            run.receive("c"),
            return_exceptions=True,
        )

    with pytest.raises(Swallowed) as caught:
        await passed(stores, body)
    assert caught.value.keys == ("a", "b", "c")
    assert isinstance(caught.value, Exception)


async def test_except_exception_catches_no_suspension_and_no_lost_claim(stores: Stores):
    async def body(run):
        try:
            await run.awaiting("a", str)
        except Exception:
            return "caught"

    assert (await passed(stores, body)).keys == ("a",)
    assert not any(issubclass(kind, Exception) for kind in (Suspended, Fenced, Contended))


# --- groups -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [Fenced("lost"), Contended("held")])
@pytest.mark.parametrize("nested", [False, True])
async def test_a_lost_claim_comes_out_of_a_group_bare(stores: Stores, lost, nested: bool):
    members = [LookupError("x"), InputNeeded("a"), lost]

    async def body(run):
        inner = BaseExceptionGroup("inner", members)
        raise BaseExceptionGroup("outer", [inner]) if nested else inner

    with pytest.raises(type(lost)) as caught:
        await passed(stores, body)
    assert caught.value is lost


async def test_failures_come_out_of_a_group_without_the_suspensions(stores: Stores):
    async def body(run):
        raise BaseExceptionGroup(
            "outer",
            [
                InputNeeded("a"),
                LookupError("x"),
                BaseExceptionGroup("inner", [ScheduledWakeup("nap", START), KeyError("y")]),
                BaseExceptionGroup("only suspensions", [MessageNeeded("m")]),
            ],
        )

    with pytest.raises(ExceptionGroup) as caught:
        await passed(stores, body)
    outer, inner = caught.value.exceptions
    assert isinstance(outer, LookupError)
    assert isinstance(inner, ExceptionGroup)
    assert [type(one) for one in inner.exceptions] == [KeyError]


@pytest.mark.parametrize("noted", [False, True])
async def test_a_group_of_suspensions_only_is_an_outcome(stores: Stores, noted: bool):
    async def body(run):
        one = InputNeeded("a")
        inner = BaseExceptionGroup("inner", [run.note(one) if noted else one])
        raise BaseExceptionGroup("outer", [inner, MessageNeeded("m")])

    assert await passed(stores, body) == Blocked(frozenset({"a"}), frozenset({"m"}))


async def test_a_real_task_group_with_a_failure_raises_the_failure_only(stores: Stores):
    async def body(run):
        async with asyncio.TaskGroup() as group:
            group.create_task(run.awaiting("a", str))
            group.create_task(raising(LookupError("x")))

    with pytest.raises(ExceptionGroup) as caught:
        await passed(stores, body)
    assert [type(one) for one in caught.value.exceptions] == [LookupError]


async def test_the_records_are_loaded_once_per_pass(stores: Stores):
    loads = []

    async def load(workflow):
        loads.append(workflow)
        return await stores.checkpointer.load(workflow)

    async def body(run):
        await run.pending("a")
        await run.pending("b")

    holder = await claimed(stores.checkpointer, "w")
    assert await resume(holder, Overlay(stores.checkpointer, load=load), body) == Completed(None)
    assert loads == ["w"]
