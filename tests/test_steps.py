"""Steps: run once, recorded whatever cancels them, stretched before they run."""

from __future__ import annotations

import asyncio
from dataclasses import FrozenInstanceError, fields
from datetime import timedelta

import pytest

from gated import Overlay, cancel_every_task, passed, turns
from stores import Stores
from without_durability import (
    BUDGET,
    LEASE,
    Clock,
    Completed,
    Fenced,
    InputNeeded,
    MemoryCheckpointer,
    Pass,
    Run,
    claimed,
    extending,
    passing,
    resume,
)

pytestmark = pytest.mark.timeout(20)

MINUTE = timedelta(minutes=1)


class Gated:
    """A memory store whose `record` says when it was reached and waits to be let through."""

    def __init__(self) -> None:
        self.store = MemoryCheckpointer()
        self.reached = asyncio.Event()
        self.open = asyncio.Event()
        self.checkpointer = Overlay(self.store, record=self._record)

    async def _record(self, *arguments):
        self.reached.set()
        await self.open.wait()
        return await self.store.record(*arguments)


def counted(value: object = 7):
    """An effect returning `value`, and the list it adds to on each run."""
    runs: list[object] = []

    async def effect() -> object:
        runs.append(value)
        return value

    return effect, runs


async def test_a_step_runs_once_and_every_later_pass_gets_its_recorded_value(stores: Stores):
    effect, runs = counted()

    async def body(run):
        return await run.step("charge", effect, lambda stored: ("parsed", stored))

    assert await passed(stores, body) == Completed(("parsed", 7))
    assert await passed(stores, body) == Completed(("parsed", 7))
    assert len(runs) == 1, "the recorded step ran again"


async def test_a_step_returns_what_the_codec_gives_back_on_its_first_pass_too(stores: Stores):
    async def effect():
        return {1: (2, 3)}

    async def body(run):
        return await run.step("k", effect, lambda stored: stored)

    first, later = await passed(stores, body), await passed(stores, body)
    assert first == later == Completed({"1": [2, 3]})


async def test_a_step_whose_record_lost_returns_what_the_store_holds(stores: Stores):
    async def effect():
        await stores.checkpointer.supply("w", "k", "theirs")
        return "ours"

    async def body(run):
        return await run.step("k", effect, str)

    assert await passed(stores, body) == Completed("theirs")


async def test_an_effect_that_raises_leaves_its_step_unrecorded(stores: Stores):
    async def effect():
        raise LookupError("no such card")

    async def body(run):
        await run.step("k", effect, str)

    with pytest.raises(LookupError, match="no such card"):
        await passed(stores, body)
    assert await stores.checkpointer.load("w") == {}


async def test_a_value_that_cannot_be_stored_fails_naming_workflow_key_and_type(stores: Stores):
    async def effect():
        return {1, 2}

    async def body(run):
        await run.step("numbers", effect, str)

    with pytest.raises(TypeError, match=r"'w'.*'numbers'.*set"):
        await passed(stores, body)
    assert await stores.checkpointer.load("w") == {}


@pytest.mark.parametrize("key", ["inbox:", "inbox:00000000000000000001", "inbox:x", "k\ud800"])
async def test_a_key_that_cannot_be_a_step_is_refused_before_the_effect_runs(key: str):
    store = MemoryCheckpointer()
    run = passing(await claimed(store, "w"), store)
    effect, runs = counted()
    with pytest.raises(ValueError, match=r"inbox|UTF-8"):
        await run.step(key, effect, str)
    with pytest.raises(ValueError, match=r"inbox|UTF-8"):
        await run.transact(key, lambda data: runs.append(1), str)
    assert runs == []
    assert store.hashes == {}


async def test_a_key_that_is_no_text_is_a_type_error():
    store = MemoryCheckpointer()
    run = passing(await claimed(store, "w"), store)
    effect, runs = counted()
    with pytest.raises(TypeError, match="int"):
        await run.step(7, effect, str)
    assert runs == []


USES = {
    "step": lambda run: run.step("k", counted()[0], str),
    "transact": lambda run: run.transact("k", lambda data: 1, str),
    "sleep": lambda run: run.sleep("k", timedelta(0)),
    "awaiting": lambda run: run.awaiting("k", str),
    "receive": lambda run: run.receive("k"),
    "pending": lambda run: run.pending("k"),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("recorded", [{}, {"k": "2030-01-01T00:00:00+00:00"}])
async def test_a_key_used_twice_in_one_pass_is_refused_at_the_second_use(use, recorded):
    store = MemoryCheckpointer()
    run = passing(await claimed(store, "w"), store, recorded)
    run.claim("k")
    with pytest.raises(ValueError, match="'k' is used twice"):
        await USES[use](run)
    assert store.hashes == {}, "the second use wrote"


async def test_a_superseded_pass_is_fenced_at_its_next_step(stores: Stores):
    async def effect():
        await stores.checkpointer.discard("w")

    async def body(run):
        await run.step("k", effect, str)

    with pytest.raises(Fenced):
        await passed(stores, body)
    assert await stores.checkpointer.load("w") == {}


async def test_an_effect_and_its_record_are_one_transaction():
    store = MemoryCheckpointer()
    runs = []

    def effect(data):
        runs.append(1)
        data["paid"] = True
        return (1, 2)

    async def body(run):
        return await run.transact("k", effect, tuple)

    holder = await claimed(store, "w")
    assert await resume(holder, store, body) == Completed((1, 2))
    assert await resume(holder, store, body) == Completed((1, 2))
    assert (runs, store.data) == ([1], {"paid": True})


async def test_a_run_is_frozen_and_its_fields_are_in_the_published_order():
    store = MemoryCheckpointer()
    run = passing(await claimed(store, "w"), store)
    assert [one.name for one in fields(Run)] == [
        "holder",
        "checkpointer",
        "recorded",
        "extend",
        "now",
        "claimed",
        "reached",
    ]
    assert run.workflow == "w"
    with pytest.raises(FrozenInstanceError):
        run.now = None


async def test_a_wait_of_ones_own_claims_its_name_and_is_reported(stores: Stores):
    async def body(run):
        run.claim("mine")
        raise run.note(InputNeeded("mine"))

    assert (await passed(stores, body)).keys == ("mine",)


# --- cancellation while a record is written ---------------------------------------------------


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_a_step_is_recorded_though_its_caller_is_cancelled_while_it_is_written(times: int):
    gated = Gated()
    run = passing(await claimed(gated.store, "w"), gated.checkpointer)
    effect, runs = counted()
    step = asyncio.create_task(run.step("k", effect, str))
    await gated.reached.wait()
    for _ in range(times):
        step.cancel()
        await turns(5)
        assert not step.done(), "the step ended before its record had settled"
    gated.open.set()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert await gated.store.load("w") == {"k": 7}
    assert runs == [7]


async def test_a_step_is_recorded_though_every_task_of_the_loop_is_cancelled():
    gated = Gated()
    run = passing(await claimed(gated.store, "w"), gated.checkpointer)
    step = asyncio.create_task(run.step("k", counted()[0], str))
    await gated.reached.wait()
    for _ in range(3):
        cancel_every_task()
        await turns(5)
    gated.open.set()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert await gated.store.load("w") == {"k": 7}


def test_a_step_is_recorded_though_the_loop_is_torn_down_while_it_is_written():
    store = MemoryCheckpointer()

    async def main():
        reached = asyncio.Event()

        async def record(*arguments):
            reached.set()
            await turns(5)
            return await store.record(*arguments)

        run = passing(await claimed(store, "w"), Overlay(store, record=record))
        step = asyncio.create_task(run.step("k", counted()[0], str))
        await reached.wait()
        return step

    assert asyncio.run(main()).cancelled()
    assert set(store.hashes["w"]) == {"k"}


async def test_a_cancellation_during_the_effect_records_nothing():
    store = MemoryCheckpointer()
    run = passing(await claimed(store, "w"), store)
    started = asyncio.Event()

    async def effect():
        started.set()
        await asyncio.Event().wait()

    step = asyncio.create_task(run.step("k", effect, str))
    await started.wait()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert store.hashes == {}


async def test_a_cancellation_outranks_the_error_of_the_record_it_interrupted():
    gated = Gated()
    run = passing(await claimed(gated.store, "w"), gated.checkpointer)
    step = asyncio.create_task(run.step("k", counted()[0], str))
    await gated.reached.wait()
    await gated.store.discard("w")
    step.cancel()
    gated.open.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await step
    assert isinstance(caught.value.__cause__, Fenced)


# --- buying time ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["step", "transact"])
async def test_time_refused_is_fenced_before_the_effect_runs(kind: str):
    store = MemoryCheckpointer()
    holder = await claimed(store, "w")
    await store.discard("w")
    run = passing(holder, store)
    effect, runs = counted()
    call = {
        "step": lambda: run.step("k", effect, str, within=MINUTE),
        "transact": lambda: run.transact("k", lambda data: runs.append(1), str, within=MINUTE),
    }[kind]
    with pytest.raises(Fenced) as caught:
        await call()
    assert runs == []
    assert (caught.value.workflow, caught.value.token) == ("w", holder.token)


@pytest.mark.parametrize("kind", ["step", "transact"])
async def test_time_is_bought_before_the_effect_runs_and_not_at_all_for_a_recorded_step(kind):
    store = MemoryCheckpointer()
    holder = await claimed(store, "w")
    order = []

    async def extend(holder, within):
        order.append(within)
        return True

    async def effect():
        order.append("effect")

    async def body(run):
        if kind == "step":
            await run.step("k", effect, str, within=MINUTE)
        else:
            await run.transact("k", lambda data: order.append("effect"), str, within=MINUTE)

    await resume(holder, store, body, extend=extend)
    await resume(holder, store, body, extend=extend)
    assert order == [MINUTE, "effect"]


@pytest.mark.parametrize("within", [timedelta(0), timedelta(seconds=-1)])
async def test_no_time_at_all_cannot_be_bought(within: timedelta):
    store = MemoryCheckpointer()
    run = passing(await claimed(store, "w"), store)
    effect, runs = counted()
    with pytest.raises(ValueError, match="within must be positive"):
        await run.step("k", effect, str, within=within)
    assert runs == []


class Counter:
    """What `extending` asks a store for."""

    def __init__(self, answer: bool = True) -> None:
        self.asked: list[tuple[timedelta, timedelta]] = []
        self.answer = answer

    async def extend(self, holder: Pass, budget: timedelta, alive: timedelta) -> bool:
        self.asked.append((budget, alive))
        return self.answer


HOLDER = Pass("w", 1)


async def test_with_nothing_known_the_first_time_is_always_bought(clock: Clock):
    store = Counter()
    extend = extending(store, now=clock.now)
    assert await extend(HOLDER, timedelta(microseconds=1))
    assert store.asked == [(timedelta(microseconds=1), LEASE)]


@pytest.mark.parametrize(
    ("wanted", "later", "asks"),
    [
        (BUDGET - MINUTE, timedelta(0), 0),
        (BUDGET - MINUTE, timedelta(seconds=1), 1),
        (BUDGET - 2 * MINUTE, MINUTE, 0),
        (BUDGET - 2 * MINUTE, MINUTE + timedelta(seconds=1), 1),
        (MINUTE, timedelta(seconds=-1), 1),
    ],
)
async def test_time_already_granted_is_not_bought_again_with_one_window_to_spare(
    clock: Clock, wanted: timedelta, later: timedelta, asks: int
):
    store = Counter()
    extend = extending(store, BUDGET, MINUTE, clock.now)
    clock.advance(later)
    assert await extend(HOLDER, wanted)
    assert store.asked == [(wanted, MINUTE)] * asks


async def test_time_bought_covers_later_requests_until_it_is_spent(clock: Clock):
    store = Counter()
    extend = extending(store, alive=MINUTE, now=clock.now)
    assert await extend(HOLDER, 10 * MINUTE)
    clock.advance(4 * MINUTE)
    assert await extend(HOLDER, 5 * MINUTE)
    assert len(store.asked) == 1
    assert await extend(HOLDER, 6 * MINUTE)
    assert len(store.asked) == 2


async def test_a_refusal_is_passed_on_and_buys_nothing(clock: Clock):
    store = Counter(answer=False)
    extend = extending(store, now=clock.now)
    assert not await extend(HOLDER, MINUTE)
    assert not await extend(HOLDER, MINUTE)
    assert len(store.asked) == 2
