"""A program of the published design goes on working on a file that has a ledger by now."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from older_files import PUBLISHED, VERSION_1
from published_program import Published
from stores import Stores
from thread_gates import HANG, plain
from upgraded_files import odd, upgraded
from without_durability import BUDGET, LEASE, Blocked, Clock, Completed, Fenced, Sleeping
from without_durability.ledger import ended

AT_ONCE = timedelta(0)
HOUR = timedelta(hours=1)

OLDER = {"the release before": VERSION_1, "the published design": PUBLISHED}
"""Who made the file."""


@pytest.fixture(params=OLDER.values(), ids=OLDER)
async def ours(request: pytest.FixtureRequest, path: Path, clock: Clock) -> AsyncIterator[Stores]:
    """Our stores over an older file that was brought up to date; it holds no workflow."""
    with closing(plain(path)) as other:
        other.execute("PRAGMA journal_mode = WAL").fetchall()
        other.executescript(request.param)
    async with upgraded(path, clock) as stores:
        yield stores


@pytest.fixture
def theirs(ours: Stores, other: sqlite3.Connection) -> Published:
    return Published(other, ours.clock)


async def started_on(stores: Stores, workflow: str) -> Any:
    """The pass that our worker starts, which is one on that workflow."""
    (one,) = await stores.durable.start_passes(1, AT_ONCE, BUDGET)
    assert one.delivery.workflow == workflow
    assert one.holder is not None
    return one


async def state_of(stores: Stores, workflow: str) -> str | None:
    status = await stores.durable.status(workflow)
    return None if status is None else str(status.state)


async def test_both_see_each_others_records_and_wakeups(ours: Stores, theirs: Published):
    await ours.checkpointer.supply("w", "ours", 1)
    theirs.make_ready("w")
    workflow, receipt = theirs.take() or ("nothing", 0.0)
    assert workflow == "w"
    assert await ours.scheduler.next_ready(AT_ONCE) is None, "it is out with them"
    token = theirs.claim("w")
    assert token is not None
    assert await ours.checkpointer.claim("w", LEASE, LEASE) is None
    assert theirs.load("w") == {"ours": 1}
    assert theirs.record("w", token, "theirs", 2)
    assert await ours.checkpointer.load("w") == {"ours": 1, "theirs": 2}
    theirs.release("w", token)
    theirs.wake_at("w", receipt, 3600)
    assert await ours.durable.status("w") is None, "they know of no ledger"
    assert await ours.scheduler.next_ready(AT_ONCE) is None, "it sleeps"

    ours.clock.advance(HOUR)
    one = await started_on(ours, "w")
    assert one.recorded == {"ours": 1, "theirs": 2}
    assert theirs.take() is None
    assert theirs.claim("w") is None
    assert not theirs.record("w", token, "late", 1), "the fence let an old pass through"
    assert (await ours.checkpointer.record(one.holder, "ours too", 3)).first
    due = ours.clock.now() + HOUR
    await ours.durable.end_pass(one.holder, one.delivery, ended(Sleeping("nap", due)))
    assert (await ours.durable.status("w")).due == due
    assert theirs.take() is None

    ours.clock.advance(HOUR)
    workflow, receipt = theirs.take() or ("nothing", 0.0)
    assert workflow == "w"
    newer = theirs.claim("w")
    assert newer is not None
    assert newer > one.holder.token
    with pytest.raises(Fenced):
        await ours.checkpointer.record(one.holder, "late", 1)
    assert theirs.load("w") == {"ours": 1, "theirs": 2, "ours too": 3}
    theirs.release("w", newer)
    theirs.done("w", receipt)
    assert await ours.scheduler.next_ready(AT_ONCE) is None


async def test_what_we_made_ready_and_they_took_may_come_to_both_and_one_runs_it(
    ours: Stores, theirs: Published
):
    """A row of ours says how far ahead it may lie, and their take knows nothing of that."""
    await ours.durable.arrive("w", "k", 1)
    assert (theirs.take() or ("nothing",))[0] == "w"
    token = theirs.claim("w")
    assert token is not None
    for one in await ours.durable.start_passes(1, AT_ONCE, BUDGET):
        assert (one.holder, one.over) == (None, None), "two passes run"
        await ours.scheduler.wake_at(one.delivery, ours.clock.now() + LEASE)
    assert theirs.record("w", token, "a", 1)
    theirs.release("w", token)
    ours.clock.advance(LEASE)
    one = await started_on(ours, "w")
    assert one.recorded == {"k": 1, "a": 1}


async def test_messages_of_both_are_numbered_in_one_row(ours: Stores, theirs: Published):
    keys = []
    for number in range(3):
        keys.append(theirs.deliver("w", f"theirs {number}"))
        keys.append((await ours.durable.deliver("w", f"ours {number}")).key)
    assert keys == sorted(keys)
    assert len({*keys}) == 6
    assert [*await ours.checkpointer.load("w")] == keys
    assert [*theirs.load("w")] == keys


async def test_what_they_discard_and_cancel_is_gone_for_us_and_the_other_way_round(
    ours: Stores, theirs: Published
):
    await ours.durable.arrive("w", "k", 1)
    one = await started_on(ours, "w")
    theirs.discard("w")
    theirs.cancel("w")
    with pytest.raises(Fenced):
        await ours.checkpointer.record(one.holder, "late", 1)
    assert await ours.checkpointer.load("w") == {}
    assert not await ours.scheduler.holds(one.delivery)
    theirs.arrive("v", "k", 1)
    _, receipt = theirs.take() or ("nothing", 0.0)
    token = theirs.claim("v")
    assert token is not None
    assert await ours.durable.delete("v") == 1
    assert not theirs.record("v", token, "late", 1)
    theirs.wake_at("v", receipt, 0)
    assert theirs.take() is None, "a cancelled one was revived"


async def test_what_only_they_made_ready_is_in_the_ledger_once_we_start_a_pass_on_it(
    ours: Stores, theirs: Published
):
    theirs.arrive("w", "k", 1)
    assert await ours.durable.status("w") is None
    one = await started_on(ours, "w")
    status = await ours.durable.status("w")
    assert (status.state, status.attempts, status.running) == ("ready", 1, True)
    await ours.durable.end_pass(one.holder, one.delivery, ended(Completed(1)))
    assert await ours.durable.result("w", within=AT_ONCE) == 1
    assert await odd(ours) == []


AT_REST = {
    "blocked": Blocked(frozenset({"more"}), frozenset()),
    "completed": Completed(1),
}


@pytest.mark.parametrize("outcome", AT_REST.values(), ids=AT_REST)
async def test_what_they_wake_is_ready_in_the_ledger_once_we_start_a_pass_on_it(
    ours: Stores, theirs: Published, outcome: Any
):
    await ours.durable.arrive("w", "k", 1)
    one = await started_on(ours, "w")
    await ours.durable.end_pass(one.holder, one.delivery, ended(outcome))
    theirs.arrive("w", "more", 2)
    assert await state_of(ours, "w") == ended(outcome).state, "they know of no ledger"
    one = await started_on(ours, "w")
    assert one.recorded == {"k": 1, "more": 2}
    status = await ours.durable.status("w")
    assert (status.state, status.attempts, status.detail) == ("ready", 1, None)
    await ours.durable.end_pass(one.holder, one.delivery, ended(Completed(2)))
    assert await ours.durable.result("w", within=AT_ONCE) == 2
    assert await odd(ours) == []


async def test_a_pass_of_theirs_leaves_the_ledger_behind_until_the_next_one_of_ours(
    ours: Stores, theirs: Published
):
    await ours.durable.arrive("w", "k", 1)
    workflow, receipt = theirs.take() or ("nothing", 0.0)
    token = theirs.claim(workflow)
    assert token is not None
    assert (await ours.durable.status("w")).running, "whoever holds it"
    theirs.release("w", token)
    theirs.done("w", receipt)
    assert await state_of(ours, "w") == "ready"
    assert "not in the queue" in await ours.durable.why("w")
    assert [one.workflow for one in await odd(ours)] == ["w"]
    await ours.scheduler.make_ready("w")
    one = await started_on(ours, "w")
    await ours.durable.end_pass(one.holder, one.delivery, ended(Completed(1)))
    assert await state_of(ours, "w") == "completed"
    assert await odd(ours) == []


async def test_what_we_cancelled_runs_no_pass_of_ours_although_they_make_it_ready(
    ours: Stores, theirs: Published
):
    await ours.durable.arrive("w", "k", 1)
    assert await ours.durable.cancel("w", "enough")
    theirs.arrive("w", "more", 1)
    (one,) = await ours.durable.start_passes(1, AT_ONCE, BUDGET)
    assert (one.holder, one.over) == (None, "cancelled")
    assert await state_of(ours, "w") == "cancelled"
    assert theirs.take() is None, "its delivery was not answered for"
    assert await odd(ours) == []


async def test_a_file_that_they_made_meanwhile_is_brought_up_to_date_while_they_use_it(
    path: Path, clock: Clock
):
    with closing(plain(path)) as other:
        other.execute("PRAGMA journal_mode = WAL").fetchall()
        other.executescript(PUBLISHED)
        theirs = Published(other, clock)
        theirs.arrive("w", "k", 1)
        workflow, receipt = theirs.take() or ("nothing", 0.0)
        token = theirs.claim("w")
        assert token is not None
        async with upgraded(path, clock) as ours:
            status = await ours.durable.status("w")
            assert (status.state, status.running) == ("ready", True)
            assert theirs.record("w", token, "a", 1), "the upgrade fenced a pass of theirs"
            theirs.wake_at(workflow, receipt, 60)
            theirs.release("w", token)
            assert await ours.scheduler.next_ready(AT_ONCE) is None
            clock.advance(LEASE)
            one = await asyncio.wait_for(started_on(ours, "w"), HANG)
            assert one.recorded == {"k": 1, "a": 1}
