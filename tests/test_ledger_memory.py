"""The ledger in memory as its users build it, look inside, wait on it, and spoil it."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import logging
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

import without_durability as core
from gated import HANG, turns
from without_durability import (
    JSON,
    Clock,
    Completed,
    Delivery,
    MemoryCheckpointer,
    MemoryDurable,
    MemoryRun,
    MemoryScheduler,
    Pass,
)
from without_durability.ledger import Failure, ended, raised

pytestmark = pytest.mark.timeout(20)

NOW = timedelta(0)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
WAIT = timedelta(seconds=HANG)
FAILURE = Failure("ShopClosed", "no such card")


class Spoilt(RuntimeError):
    pass


class Ledger:
    """A ledger under a movable clock, with a codec of one's own."""

    def __init__(self, clock: Clock, codec: Any = JSON) -> None:
        self.clock = clock
        self.checkpointer = MemoryCheckpointer(codec=codec, clock=clock.seconds, now=clock.now)
        self.scheduler = MemoryScheduler(clock=clock.seconds)
        self.durable = MemoryDurable(self.checkpointer, self.scheduler)

    async def begun(self, workflow: str) -> tuple[Pass, Delivery]:
        delivery = await self.scheduler.next_ready(NOW)
        assert delivery is not None
        assert delivery.workflow == workflow
        started = await self.durable.start_pass(delivery, MINUTE)
        assert started.holder is not None
        return started.holder, delivery

    async def completed(self, workflow: str, value: object) -> None:
        await self.durable.arrive(workflow, "k", 1)
        await self.durable.end_pass(*await self.begun(workflow), ended(Completed(value)))

    def kept(self) -> Any:
        records, queue = self.checkpointer, self.scheduler
        return copy.deepcopy(
            (
                self.durable.runs,
                records.hashes,
                records.claims,
                queue.queue,
                queue.sleeping,
                queue.outstanding,
            )
        )


@pytest.fixture
def at(clock: Clock) -> Ledger:
    return Ledger(clock)


# --- the package ------------------------------------------------------------------------------

EXPORTED = {
    "interfaces": "Ended Started PassDurable PassesDurable",
    "ledger": """Failure Ledger Page Retry State Status STATES FINISHED WorkflowFailed
        WorkflowCancelled""",
    "memory_ledger": "MemoryDurable MemoryRun",
    "observing": """ClaimLost Event Observer Parked PassEnded PassFailed PassStarted RenewalLate
        StepRecorded""",
}


@pytest.mark.parametrize("module", EXPORTED)
def test_what_the_ledger_is_made_of_is_importable_from_the_package(module: str) -> None:
    owner = getattr(core, module)
    for name in EXPORTED[module].split():
        assert getattr(core, name) is getattr(owner, name)
        assert name in core.__all__


@pytest.mark.parametrize("asked", ["work", "MemoryCheckpointer", "Run", "claimed"])
def test_a_program_that_asks_for_no_ledger_imports_none(asked: str) -> None:
    later = ["ledger", "observing", "memory_ledger", "explaining"]
    code = (
        f"import sys, without_durability as core; core.{asked}\n"
        f"loaded = [one for one in {later} if 'without_durability.' + one in sys.modules]\n"
        "assert not loaded, loaded\n"
        "core.MemoryDurable\n"
        "assert 'without_durability.memory_ledger' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- what there is to see ---------------------------------------------------------------------


async def test_its_rows_can_be_looked_at(at: Ledger) -> None:
    began = at.clock.now()
    await at.durable.arrive("w", "k", 1)
    row = MemoryRun(1, "w", "workflow", "ready", None, 0, began, began)
    assert at.durable.runs == {"w": row}
    holder, delivery = await at.begun("w")
    at.clock.advance(SECOND)
    await at.durable.end_pass(holder, delivery, ended(Completed([1])))
    assert at.durable.runs["w"] == dataclasses.replace(
        row, state="completed", detail='{"result": [1]}', updated_at=began + SECOND
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        at.durable.runs["w"].state = "ready"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        at.durable.runs = {}  # type: ignore[misc]


async def test_it_goes_on_with_the_rows_it_is_given(at: Ledger) -> None:
    await at.durable.arrive("w", "k", 1)
    rows = dict(at.durable.runs)
    other = MemoryDurable(at.checkpointer, at.scheduler, rows)
    await other.arrive("new", "k", 1)
    assert [one.workflow for one in (await other.list()).items] == ["new", "w"]
    assert rows["new"].seq > rows["w"].seq
    assert "new" not in at.durable.runs


async def test_records_say_whether_they_came_from_outside(at: Ledger) -> None:
    await at.durable.arrive("w", "arrived", 1)
    await at.checkpointer.supply("w", "supplied", 1)
    delivered = await at.durable.deliver("w", 1)
    appended = await at.checkpointer.append("w", 1)
    holder, _ = await at.begun("w")
    await at.checkpointer.record(holder, "recorded", 1)
    await at.checkpointer.transact(holder, "transacted", lambda data: 1)
    await at.checkpointer.record(holder, "arrived", 1)
    supplied = {key for key, one in at.checkpointer.hashes["w"].items() if one.supplied}
    assert supplied == {"arrived", "supplied", delivered.key, appended.key}
    assert {*at.checkpointer.hashes["w"]} - supplied == {"recorded", "transacted"}


async def test_a_page_is_of_its_own_moment(at: Ledger) -> None:
    await at.completed("w", [1])
    page, status = await at.durable.list(), await at.durable.status("w")
    assert status is not None
    assert isinstance(status.result, list)
    status.result.append(2)
    await at.durable.delete("w")
    assert [one.result for one in page.items] == [[1]]


async def test_a_fork_and_its_source_forget_apart(at: Ledger) -> None:
    await at.durable.arrive("w", "k", 1)
    holder, _ = await at.begun("w")
    await at.checkpointer.record(holder, "step", 1)
    assert await at.durable.fork("w", "copy") == 2
    await at.durable.rewind("w", "step")
    assert await at.checkpointer.load("copy") == {"k": 1, "step": 1}


async def test_a_fork_may_take_the_id_of_what_was_deleted(at: Ledger) -> None:
    await at.completed("w", 1)
    await at.completed("old", 1)
    await at.durable.delete("old")
    assert await at.durable.fork("w", "old") == 1


# --- ends -------------------------------------------------------------------------------------


async def test_what_fails_for_good_during_an_arrival_is_ready_and_keeps_its_error(
    at: Ledger,
) -> None:
    await at.durable.arrive("w", "k", 1)
    failing = await at.begun("w")
    await at.durable.arrive("w", "mend", 1)
    await at.durable.end_pass(*failing, raised(FAILURE, None))
    status = await at.durable.status("w")
    assert status is not None
    assert (status.state, status.attempts, status.error) == ("ready", 0, FAILURE)


async def test_an_orderly_end_during_an_arrival_forgets_the_error_before_it(at: Ledger) -> None:
    await at.durable.arrive("w", "k", 1)
    await at.durable.end_pass(*await at.begun("w"), raised(FAILURE, at.clock.now()))
    await at.scheduler.wake_due(at.clock.now())
    ending = await at.begun("w")
    await at.durable.arrive("w", "more", 1)
    await at.durable.end_pass(*ending, ended(Completed(1)))
    status = await at.durable.status("w")
    assert status is not None
    assert (status.state, status.attempts, status.detail) == ("ready", 0, None)


async def test_a_pass_that_only_looks_again_is_no_change_of_the_row(at: Ledger) -> None:
    await at.durable.arrive("w", "k", 1)
    looking = await at.begun("w")
    row = at.durable.runs["w"]
    at.clock.advance(SECOND)
    await at.durable.end_pass(*looking, core.Ended(at.clock.now() + MINUTE))
    assert at.durable.runs["w"] == row
    assert {*at.scheduler.sleeping} == {"w"}


async def test_a_claim_taken_by_hand_neither_runs_nor_ends_what_is_cancelled(at: Ledger) -> None:
    await at.durable.arrive("w", "k", 1)
    await at.durable.cancel("w", "enough")
    holder = await core.claimed(at.checkpointer, "w")
    status = await at.durable.status("w")
    assert status is not None
    assert not status.running
    await at.durable.end_pass(holder, Delivery("w", "gone"), ended(Completed(1)))
    assert await at.durable.status("w") == status


async def test_a_sleeper_taken_out_of_the_queue_tells_when_it_was_due(at: Ledger) -> None:
    await at.durable.arrive("w", "k", 1)
    due = at.clock.now() + MINUTE
    await at.durable.end_pass(*await at.begun("w"), ended(core.Sleeping("nap", due)))
    await at.scheduler.cancel("w")
    status = await at.durable.status("w")
    assert status is not None
    assert status.due == due


async def test_a_message_put_there_by_hand_is_no_step_to_forget(at: Ledger) -> None:
    await at.durable.arrive("w", "k", 1)
    holder, _ = await at.begun("w")
    await at.checkpointer.record(holder, "step", 1)
    key = core.inbox_key(7)
    at.checkpointer.hashes["w"][key] = core.Stored("1", at.clock.now())
    assert await at.durable.rewind("w", "step") == 1
    assert [*await at.checkpointer.load("w")] == ["k", key]


async def test_a_reason_that_is_no_text_cancels_nothing(at: Ledger) -> None:
    await at.durable.arrive("w", "k", 1)
    before = at.kept()
    with pytest.raises(ValueError, match="reason"):
        await at.durable.cancel("w", "\ud800")
    assert at.kept() == before


# --- one commit -------------------------------------------------------------------------------

CALLS: dict[str, Callable[[MemoryDurable], Any]] = {
    "arrive": lambda durable: durable.arrive("failed", "new", 1),
    "arrive of a new one": lambda durable: durable.arrive("new", "k", 1),
    "deliver": lambda durable: durable.deliver("failed", 1),
    "retry": lambda durable: durable.retry("failed"),
    "cancel": lambda durable: durable.cancel("failed"),
    "rewind": lambda durable: durable.rewind("failed", "step"),
    "fork": lambda durable: durable.fork("failed", "new"),
    "sweep": lambda durable: durable.sweep(older=NOW, states=("failed",)),
}


async def a_failed_one(at: Ledger) -> None:
    await at.durable.arrive("failed", "k", 1)
    holder, delivery = await at.begun("failed")
    await at.checkpointer.record(holder, "step", 1)
    await at.durable.end_pass(holder, delivery, raised(FAILURE, None))


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_without_a_moment_changes_nothing(at: Ledger, call: str) -> None:
    await a_failed_one(at)
    before = at.kept()
    clock = at.checkpointer.now

    def naive() -> datetime:
        return clock().replace(tzinfo=None)

    durable = MemoryDurable(
        dataclasses.replace(at.checkpointer, now=naive), at.scheduler, at.durable.runs
    )
    with pytest.raises(ValueError, match="timezone-aware"):
        await CALLS[call](durable)
    assert at.kept() == before
    await CALLS[call](at.durable)
    assert at.kept() != before


# --- what cannot be stored or read ------------------------------------------------------------


class Card:
    """What no codec can hold, and nobody may log."""

    def __repr__(self) -> str:
        return "4111 1111 1111 1111"


async def test_a_result_that_cannot_be_stored_is_a_warning_without_the_value(
    at: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await at.completed("w-17", Card())
    (record,) = caplog.records
    told = record.getMessage()
    assert "w-17" in told
    assert "Card" in told
    assert "4111" not in told
    with pytest.raises(TypeError, match="'w-17' completed with a value of type Card, "):
        await at.durable.result("w-17", within=NOW)
    assert await at.durable.why("w-17") == (
        "'w-17' completed at 2030-01-01 00:00:00 UTC; "
        "its result, of type Card, could not be stored."
    )


async def test_a_row_that_cannot_be_read_is_nobody_elses_harm(at: Ledger) -> None:
    await at.completed("spoilt", 1)
    await at.completed("w", 1)
    at.durable.runs["spoilt"] = dataclasses.replace(at.durable.runs["spoilt"], detail="{")
    assert [one.result for one in (await at.durable.list()).items] == [1, None]
    with pytest.raises(ValueError, match="cannot be decoded"):
        await at.durable.result("spoilt", within=NOW)
    assert "completed" in await at.durable.why("spoilt")


# --- times ------------------------------------------------------------------------------------


async def test_why_tells_since_when_it_is_queued_and_until_when_it_is_out(at: Ledger) -> None:
    await at.durable.arrive("w", "k", 1)
    at.clock.advance(3 * MINUTE)
    assert "has waited 3 min" in await at.durable.why("w")
    assert await at.scheduler.next_ready(NOW) is not None
    assert "out with a worker" in await at.durable.why("w")
    assert "until 2030-01-01 00:04:00 UTC" in await at.durable.why("w")


async def test_a_sleeper_that_was_woken_is_late_since_it_was_due(at: Ledger) -> None:
    await at.durable.arrive("w", "k", 1)
    due = at.clock.now() + MINUTE
    sleeping = ended(core.Sleeping("nap", due))
    await at.durable.end_pass(*await at.begun("w"), sleeping)
    assert "sleeps in step 'nap' until 2030-01-01 00:01:00 UTC" in await at.durable.why("w")
    at.clock.advance(3 * MINUTE)
    assert await at.scheduler.wake_due(at.clock.now()) == ("w",)
    assert "waits for a worker since 2 min" in await at.durable.why("w")


async def test_spans_past_the_end_of_time_are_no_error(at: Ledger) -> None:
    await at.durable.arrive("w", "k", 1)
    delivery = await at.scheduler.next_ready(NOW)
    assert delivery is not None
    await at.scheduler.extend(delivery, timedelta.max)
    assert "9999" in await at.durable.why("w")
    await at.durable.arrive("w", "more", 1)
    delivery = await at.scheduler.next_ready(NOW)
    assert delivery is not None
    await at.durable.start_pass(delivery, timedelta.max)
    assert "until 9999" in await at.durable.why("w")
    assert await at.durable.sweep(older=timedelta.max) == 0


# --- waiting ----------------------------------------------------------------------------------


async def test_all_that_wait_are_woken_and_nothing_of_them_is_left(at: Ledger) -> None:
    waiting = [asyncio.ensure_future(at.durable.result("w", within=WAIT)) for _ in range(3)]
    await turns()
    waiting.pop().cancel()
    await at.completed("w", "value")
    assert await asyncio.gather(*waiting) == ["value", "value"]
    await turns()
    assert at.durable._awaited == {}


async def test_waiting_takes_no_turn_of_the_loop(at: Ledger) -> None:
    waiting = asyncio.ensure_future(at.durable.result("w", within=WAIT))
    await turns()
    (end,) = at.durable._awaited["w"]
    await turns(300)
    assert at.durable._awaited["w"] == {end}, "it looked again, though nothing had happened"
    waiting.cancel()


async def test_what_is_deleted_while_awaited_is_awaited_as_if_unknown(at: Ledger) -> None:
    await at.durable.arrive("w", "k", 1)
    brief = asyncio.ensure_future(at.durable.result("w", within=timedelta(milliseconds=20)))
    waiting = asyncio.ensure_future(at.durable.result("w", within=WAIT))
    await turns()
    await at.durable.delete("w")
    with pytest.raises(TimeoutError, match="'w' has not ended"):
        await brief
    assert not waiting.done()
    await at.completed("w", "the next one's")
    assert await waiting == "the next one's"


async def test_an_end_that_is_undone_before_the_waiter_looks_is_none(at: Ledger) -> None:
    waiting = asyncio.ensure_future(at.durable.result("w", within=WAIT))
    await turns()
    await at.completed("w", "undone")
    await at.durable.arrive("w", "more", 1)
    await turns()
    assert not waiting.done()
    await at.durable.end_pass(*await at.begun("w"), ended(Completed("at last")))
    assert await waiting == "at last"


def test_a_loop_that_was_closed_while_it_waited_stands_in_nobodys_way(at: Ledger) -> None:
    loop = asyncio.new_event_loop()
    abandoned = loop.create_task(at.durable.result("w", within=WAIT))
    loop.run_until_complete(turns())
    loop.close()
    assert at.durable._awaited["w"]

    async def ends_while_another_waits() -> object:
        waiting = asyncio.ensure_future(at.durable.result("w", within=WAIT))
        await turns()
        await at.completed("w", "value")
        return await waiting

    assert asyncio.run(ends_while_another_waits()) == "value"
    assert not abandoned.done()
    abandoned._log_destroy_pending = False  # type: ignore[attr-defined]
    abandoned.get_coro().close()  # type: ignore[union-attr]
