"""What is SQLite's own about the ledger: queues, processes, locks, clocks, any text."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from batches import Interposed, statements, together
from children import ended as child_ended
from children import started as child_started
from contract import rows, write_lock
from ledgers import AT_REST, DONE, FAILURE, began, came_to, listed, state_of
from thread_gates import HANG, in_time, plain
from without_durability import (
    LEASE,
    Clock,
    Ended,
    Fenced,
    Sleeping,
    WorkflowCancelled,
    WorkflowFailed,
)
from without_durability.ledger import STATES, ended, raised
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    connect,
    store,
)
from without_durability_sqlite.checking import oddities

NOW = timedelta(0)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


def over(database: Database, queue: str = "workflow", **settings: Any) -> SqliteDurable:
    return SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database, queue, **settings))


@pytest.fixture
def durable(database: Database) -> SqliteDurable:
    return over(database)


@pytest.fixture
async def neighbour(path: Path, database: Database, clock: Clock) -> AsyncIterator[SqliteDurable]:
    """Another database on the same file, as another process has one."""
    async with connect(path, clock=clock.seconds) as other:
        yield over(other)


async def parked(durable: SqliteDurable, workflow: str) -> None:
    await came_to(durable, workflow, raised(FAILURE, None))


def queued(path: Path) -> list[tuple[str, str]]:
    return rows(path, "SELECT namespace, workflow FROM workflow_queue ORDER BY 1, 2")


def odd(path: Path, clock: Clock) -> list[Any]:
    with closing(plain(path)) as looking:
        return oddities(looking, clock.seconds())


# --- several queues in one file -----------------------------------------------------------------


async def test_a_workflow_is_listed_and_counted_in_the_queue_it_was_last_made_ready_in(
    database: Database, path: Path, clock: Clock
):
    mail, post = over(database, "mail"), over(database, "post")
    await mail.arrive("a", "k", 1)
    await came_to(post, "b")
    await post.arrive("c", "k", 1)
    await mail.arrive("d", "k", 1)
    await post.arrive("d", "k", 2)
    for asked in (mail, post):  # whichever is asked
        assert await listed(asked) == ["d", "c", "b", "a"]
        assert await listed(asked, namespace="mail") == ["a"]
        assert await listed(asked, namespace="post") == ["d", "c", "b"]
        assert await listed(asked, namespace="post", state="ready") == ["d", "c"]
        assert await listed(asked, namespace="nobody's") == []
        assert await asked.counts("mail") == dict.fromkeys(STATES, 0) | {"ready": 1}
        assert await asked.counts("post") == dict.fromkeys(STATES, 0) | {"ready": 2, "completed": 1}
        assert await asked.counts() == dict.fromkeys(STATES, 0) | {"ready": 3, "completed": 1}
        assert await asked.counts("nobody's") == dict.fromkeys(STATES, 0)
    assert odd(path, clock) == []


@pytest.mark.parametrize("before", ["failed", "cancelled"])
async def test_a_retry_queues_it_where_it_was_and_not_where_it_was_asked_for(
    database: Database, path: Path, before: str
):
    mail, post = over(database, "mail"), over(database, "post")
    await parked(mail, "w")
    if before == "cancelled":
        assert await post.cancel("w")
    assert queued(path) == []
    assert await post.retry("w")
    assert queued(path) == [("mail", "w")]
    assert await post.start_passes(1, NOW, LEASE) == ()
    assert len(await mail.start_passes(1, NOW, LEASE)) == 1


async def test_a_rewind_and_a_fork_go_on_in_the_queue_of_the_workflow(
    database: Database, path: Path
):
    mail, post = over(database, "mail"), over(database, "post")
    started = await began(mail, "w")
    assert started.holder is not None
    await mail.checkpointer.record(started.holder, "step", 1)
    await mail.end_pass(started.holder, started.delivery, ended(DONE))
    assert await post.fork("w", "v") == 2
    assert await post.rewind("w", "step") == 1
    assert queued(path) == [("mail", "v"), ("mail", "w")]
    assert await listed(post, namespace="mail") == ["v", "w"]


async def test_a_cancel_leaves_no_wakeup_in_its_own_queue_nor_in_the_workflows(
    database: Database, path: Path, clock: Clock
):
    mail, post = over(database, "mail"), over(database, "post")
    await post.arrive("w", "k", 1)
    await mail.arrive("w", "k", 1)
    assert queued(path) == [("mail", "w"), ("post", "w")]
    assert await post.cancel("w", "enough")
    assert queued(path) == []
    assert odd(path, clock) == []
    await post.arrive("w", "k", 2)
    await mail.deliver("w", 2)
    assert queued(path) == [], "what arrives for a cancelled one is queued"


async def test_a_delete_through_another_queue_takes_the_row_with_it(
    database: Database, path: Path, clock: Clock
):
    mail, post = over(database, "mail"), over(database, "post")
    await came_to(mail, "w")
    assert await post.delete("w") == 1
    assert await mail.status("w") is None
    assert await mail.counts("mail") == dict.fromkeys(STATES, 0)
    assert odd(path, clock) == []


# --- several processes --------------------------------------------------------------------------

CANCELS = """
async def main():
    await opened()
    print(await d.cancel("w", "told so"), (await d.status("w")).state)
    await db.aclose()
asyncio.run(main())
"""


async def test_a_cancel_in_another_process_fences_the_pass_in_this_one(filed: Database, path: Path):
    durable = over(filed)
    started = await began(durable, "w")
    assert started.holder is not None
    child = await asyncio.to_thread(child_ended, CANCELS, path)
    assert child.out == "True cancelled\n", child.err
    with pytest.raises(Fenced):
        await durable.checkpointer.record(started.holder, "step", 1)
    await durable.end_pass(started.holder, started.delivery, ended(DONE))
    assert await state_of(durable, "w") == "cancelled"
    with pytest.raises(WorkflowCancelled, match="told so"):
        await durable.result("w", within=NOW)
    assert queued(path) == []


ENDS = """
async def main():
    await opened()
    print("ready", flush=True)
    sys.stdin.readline()
    (one,) = await d.start_passes(1, timedelta(0), MIN)
    await d.end_pass(one.holder, one.delivery, Ended(None, "completed", {"result": [1]}, 0))
    await db.aclose()
asyncio.run(main())
"""


async def test_a_result_that_comes_in_another_process_is_heard_of_in_this_one(
    filed: Database, path: Path
):
    durable = over(filed)
    await durable.arrive("w", "k", 1)
    with child_started(ENDS, path) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert await asyncio.to_thread(child.stdout.readline) == "ready\n"
        waiting = asyncio.create_task(durable.result("w", within=timedelta(seconds=HANG)))
        await asyncio.sleep(0)
        child.stdin.write("\n")
        child.stdin.flush()
        assert await in_time(waiting) == [1]
        assert await asyncio.to_thread(child.wait, HANG) == 0


async def test_a_result_is_heard_of_at_once_however_seldom_one_polls(
    database: Database,
):
    durable = over(database, poll=HOUR)
    started = await began(durable, "w")
    assert started.holder is not None
    waiting = [asyncio.create_task(durable.result("w", within=24 * HOUR)) for _ in range(3)]
    await asyncio.sleep(0)
    await durable.status("w")
    await durable.end_pass(started.holder, started.delivery, ended(DONE))
    assert await in_time(asyncio.gather(*waiting)) == ["done"] * 3
    assert database._endings._waiting == {}


async def test_a_cancel_and_a_parking_are_heard_of_at_once_too(database: Database):
    durable = over(database, poll=HOUR)
    await durable.arrive("w", "k", 1)
    waiting = asyncio.create_task(durable.result("w", within=24 * HOUR))
    await durable.status("w")
    await durable.cancel("w", "enough")
    with pytest.raises(WorkflowCancelled):
        await in_time(waiting)
    await durable.retry("w")
    (started,) = await durable.start_passes(1, NOW, LEASE)
    assert started.holder is not None
    await durable.checkpointer.release(started.holder)
    waiting = asyncio.create_task(durable.result("w", within=24 * HOUR))
    await durable.status("w")
    assert (await durable.start_pass(started.delivery, LEASE, 1)).over == "parked"
    with pytest.raises(WorkflowFailed, match="1 passes were started"):
        await in_time(waiting)


async def test_of_many_retries_at_once_one_is_told_that_it_did(
    durable: SqliteDurable, neighbour: SqliteDurable, path: Path, clock: Clock
):
    await parked(durable, "w")
    answers = await in_time(
        asyncio.gather(*(one.retry("w") for one in (durable, neighbour) for _ in range(20)))
    )
    assert sum(answers) == 1
    assert odd(path, clock) == []


async def test_fifty_arrivals_of_one_id_in_one_commit_make_one_row(
    durable: SqliteDurable, path: Path, clock: Clock
):
    calls = [durable.arrive("w", "k", n) for n in range(25)]
    calls += [durable.deliver("w", n) for n in range(25)]
    outcomes = await together(durable.checkpointer.database, *calls)
    assert outcomes[:25] == [0] * 25
    assert rows(path, "SELECT seq, workflow, state, attempts FROM workflow_run") == [
        (1, "w", "ready", 0)
    ]
    assert await durable.counts() == dict.fromkeys(STATES, 0) | {"ready": 1}
    assert queued(path) == [("workflow", "w")]
    assert len(await durable.checkpointer.load("w")) == 26
    assert odd(path, clock) == []


async def test_what_only_looks_waits_for_no_writer(durable: SqliteDurable, path: Path):
    await came_to(durable, "w")
    await durable.arrive("v", "k", 1)
    with write_lock(path) as other:
        other.execute("UPDATE workflow_run SET state = 'failed'")
        assert await in_time(state_of(durable, "w")) == "completed"
        assert await in_time(listed(durable)) == ["v", "w"]
        assert (await in_time(durable.counts()))["ready"] == 1
        assert "completed" in await in_time(durable.why("w"))
        assert await in_time(durable.result("w", within=NOW)) == "done"
        with pytest.raises(TimeoutError):
            await in_time(durable.result("v", within=NOW))
        other.execute("ROLLBACK")


# --- clocks -------------------------------------------------------------------------------------


async def test_a_clock_that_was_set_back_keeps_no_workflow_from_going_on(
    durable: SqliteDurable, path: Path, clock: Clock
):
    clock.advance(24 * HOUR)
    for workflow in ("completed", "failed"):
        await (came_to if workflow == "completed" else parked)(durable, workflow)
    await came_to(durable, "sleeping", Sleeping("nap", clock.now() + HOUR))
    started = await began(durable, "running")
    clock.advance(-12 * HOUR)
    status = await durable.status("running")
    assert status is not None
    assert status.running, "a clock that was set back ended its pass"
    assert started.holder is not None
    await durable.end_pass(started.holder, started.delivery, ended(AT_REST))
    assert await state_of(durable, "running") == "blocked"
    assert await listed(durable) == ["running", "sleeping", "failed", "completed"]
    await durable.arrive("new", "k", 1)
    assert await durable.retry("failed")
    await durable.arrive("completed", "k", 1)
    taken = {one.delivery.workflow for one in await durable.start_passes(9, NOW, LEASE)}
    assert taken == {"new", "failed", "completed"}
    assert await durable.sweep(older=NOW, states=("completed", "failed")) == 0
    clock.advance(13 * HOUR)
    (slept,) = [
        one
        for one in await durable.start_passes(9, NOW, LEASE)
        if one.delivery.workflow == "sleeping"
    ]
    assert slept.holder is not None
    assert [one for one in odd(path, clock) if one.kind == "count"] == []


async def test_what_ended_ahead_of_a_clock_that_was_set_back_is_swept_once_it_is_old(
    durable: SqliteDurable, path: Path, clock: Clock
):
    clock.advance(24 * HOUR)
    await came_to(durable, "w")
    ((token,),) = rows(path, "SELECT token FROM workflow_claim")
    clock.advance(-12 * HOUR)
    assert await durable.sweep(older=NOW) == 0
    clock.advance(12 * HOUR + SECOND)
    assert await durable.sweep(older=SECOND) == 1
    assert rows(path, "SELECT * FROM workflow_claim") == []
    started = await began(durable, "w")
    assert started.holder is not None
    assert started.holder.token > token


async def test_a_claim_whose_token_lies_ahead_outlives_its_workflow(
    durable: SqliteDurable, path: Path, clock: Clock
):
    clock.advance(24 * HOUR)
    claims = SqliteCheckpointer(durable.checkpointer.database)
    ahead = await claims.claim("w", LEASE, LEASE)
    assert ahead is not None
    await claims.release(ahead)
    clock.advance(-12 * HOUR)
    await came_to(durable, "w")
    clock.advance(SECOND)
    assert await durable.sweep(older=NOW) == 1
    assert await durable.status("w") is None
    assert await durable.checkpointer.load("w") == {}
    ((token,),) = rows(path, "SELECT token FROM workflow_claim")
    started = await began(durable, "w")
    assert started.holder is not None
    assert started.holder.token > token > ahead.token


@pytest.mark.parametrize("how", [DONE, AT_REST, raised(FAILURE, None)], ids=str)
async def test_what_arrives_through_another_queue_during_a_pass_is_not_overwritten_by_its_end(
    durable: SqliteDurable, how: Any, path: Path, clock: Clock
):
    """The pass still holds its own delivery: nothing there tells it of the arrival."""
    elsewhere = over(durable.checkpointer.database, "another")
    started = await began(durable, "w")
    assert started.holder is not None
    await elsewhere.deliver("w", "more")
    end = how if isinstance(how, Ended) else ended(how)
    assert await durable.end_pass(started.holder, started.delivery, end) == "ready"
    status = await durable.status("w")
    assert status is not None
    assert (status.state, status.namespace, status.attempts) == ("ready", "another", 0)
    assert odd(path, clock) == []
    (again,) = await elsewhere.start_passes(9, NOW, LEASE)
    assert again.attempt == 1


async def test_a_delivery_that_somebody_else_took_is_no_new_chance_for_what_fails(
    durable: SqliteDurable, clock: Clock
):
    started = await began(durable, "w")
    assert started.holder is not None
    clock.advance(LEASE - SECOND)
    assert await durable.checkpointer.extend(started.holder, 9 * LEASE, 9 * LEASE)
    clock.advance(2 * SECOND)
    (retaken,) = await durable.start_passes(9, NOW, LEASE)
    assert retaken.holder is None
    end = raised(FAILURE, None)
    assert await durable.end_pass(started.holder, started.delivery, end) == "ready"
    clock.advance(2 * LEASE)
    (parked,) = await durable.start_passes(9, NOW, LEASE, attempts=1)
    assert parked.over == "parked", "its attempts were given back to it"


# --- sweeping -----------------------------------------------------------------------------------


async def finished(durable: SqliteDurable, clock: Clock, count: int) -> list[str]:
    """So many completed ones with records of their own, the oldest first."""
    names = [f"done {n:03}" for n in range(count)]
    for name in names:
        await came_to(durable, name)
        clock.advance(SECOND)
    return names


async def test_a_sweep_lets_others_write_in_between_and_deletes_only_its_own(
    path: Path, database: Database, clock: Clock
):
    await database.aclose()
    connection = plain(path, factory=Interposed)
    connection.execute("PRAGMA journal_mode = WAL")
    async with Database(connection, clock=clock.seconds) as watched:
        durable = over(watched)
        swept = await finished(durable, clock, 2 * store.SWEPT_TOGETHER + 5)
        await came_to(durable, "of others", AT_REST)
        kept = [row for row in rows(path, RECORDS) if row[1] == "of others"]
        with statements(connection) as ran, pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "SWEEPING", math.inf)
            assert await durable.sweep(older=NOW, limit=10**6) == len(swept)
        assert ran.count("COMMIT") == 3
        assert rows(path, RECORDS) == kept
        assert rows(path, "SELECT workflow FROM workflow_claim") == [("of others",)]
        assert await listed(durable) == ["of others"]
    assert odd(path, clock) == []


RECORDS = "SELECT * FROM workflow_checkpoint"


async def test_a_sweep_that_takes_long_commits_after_every_workflow(
    durable: SqliteDurable, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(store, "SWEEPING", 0)
    swept = await finished(durable, clock, 5)
    assert await durable.sweep(older=NOW, limit=3) == 3
    assert await listed(durable) == [*reversed(swept[3:])]
    assert await durable.sweep(older=NOW) == 2


async def test_a_sweep_takes_the_longest_unchanged_of_all_its_states_first(
    durable: SqliteDurable, path: Path, clock: Clock
):
    order = ["completed", "failed", "cancelled", "failed", "completed", "cancelled"]
    for n, state in enumerate(order):
        await (came_to if state == "completed" else parked)(durable, f"{n}")
        if state == "cancelled":
            await durable.cancel(f"{n}")
        clock.advance(SECOND)
    await durable.deliver("0", "changed last")
    (started,) = await durable.start_passes(1, NOW, LEASE)
    assert started.holder is not None
    await durable.end_pass(started.holder, started.delivery, ended(DONE))
    every = ("completed", "failed", "cancelled")
    left = ["5", "4", "3", "2", "1", "0"]
    for gone in ("1", "2", "3", "4", "5", "0"):
        assert await durable.sweep(older=NOW, states=every, limit=1) == 1
        left.remove(gone)
        assert await listed(durable) == left
    assert odd(path, clock) == []


async def test_a_sweep_leaves_what_is_not_old_enough_to_the_microsecond(
    durable: SqliteDurable, clock: Clock
):
    await came_to(durable, "w")
    clock.advance(HOUR)
    assert await durable.sweep(older=HOUR + timedelta(milliseconds=1)) == 0
    assert await durable.sweep(older=timedelta.max) == 0
    assert await durable.sweep(older=HOUR) == 1


@pytest.mark.parametrize("known", [True, False], ids=["a known queue", "one of the scheduler's"])
@pytest.mark.parametrize("queue", ["workflow", "another"])
async def test_a_sweep_leaves_what_is_queued_anywhere_and_what_a_pass_holds(
    durable: SqliteDurable, queue: str, known: bool, clock: Clock
):
    elsewhere = over(durable.checkpointer.database, queue)
    if known:
        await elsewhere.arrive("w", "k", 1)
        await elsewhere.scheduler.cancel("w")
    await came_to(durable, "w")
    await elsewhere.scheduler.make_ready("w")
    clock.advance(SECOND)
    assert await durable.sweep(older=NOW) == 0, "a pass would begin again without its records"
    await elsewhere.scheduler.cancel("w")
    holder = await durable.checkpointer.claim("w", LEASE, LEASE)
    assert holder is not None
    assert await durable.sweep(older=NOW) == 0
    await durable.checkpointer.release(holder)
    assert await durable.sweep(older=NOW) == 1


async def test_sweeps_at_once_delete_each_workflow_once(
    durable: SqliteDurable, neighbour: SqliteDurable, path: Path, clock: Clock
):
    swept = await finished(durable, clock, 45)
    counts = await in_time(
        asyncio.gather(*(one.sweep(older=NOW) for one in (durable, neighbour) * 3))
    )
    assert sum(counts) == len(swept)
    assert rows(path, "SELECT * FROM workflow_run") == []
    assert odd(path, clock) == []
