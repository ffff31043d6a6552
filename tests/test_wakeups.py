"""An idle queue is only read, and what becomes ready is found at once, or when it is due."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from batches import Halt, connection_of, interposed_stores, of
from contract import cancelled
from idling import (
    A_MOMENT,
    HOUR,
    MINUTE,
    NOW,
    SOON,
    Waits,
    by_next_ready,
    durable_over,
    each_way,
    idle,
    waiters,
    watch_of,
)
from thread_gates import Gate, in_time, plain, stays_outside, until
from without_durability import Clock, Delivery, now_utc
from without_durability.values import Ended
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    connect,
)

# --- what waiting costs -------------------------------------------------------------------------


async def test_an_idle_queue_is_only_read_and_takes_no_lock(path: Path, migrated: Path):
    clock, looks = Clock(), 0
    async with interposed_stores(path, migrated, clock) as stores:
        database = of(stores)
        async with idle(database, by_next_ready(durable_over(database, poll=A_MOMENT))):
            reader = database._thread.reader
            assert reader is not None
            assert reader.connection is not None
            ran: list[str] = []
            # On its own thread: while another is inside SQLite, the driver would wait for ever.
            trace = reader.connection.set_trace_callback
            reader.later(lambda: trace(ran.append))
            writer: list[str] = []
            connection_of(stores).before = lambda sql, _: writer.append(sql)
            with closing(plain(path, timeout=0)) as other:
                while looks < 20:
                    other.execute("BEGIN IMMEDIATE")
                    other.execute("ROLLBACK")
                    await asyncio.sleep(0.001)
                    looks = ran.count("PRAGMA data_version")
            reader.later(lambda: trace(None))
        assert writer == []
        assert set(ran) == {"PRAGMA data_version"}, "nobody has committed anything"


async def test_a_look_is_taken_only_once_somebody_has_committed(filed: Database, path: Path):
    looked = 0
    real = watch_of(filed)._look

    def look(*arguments: Any) -> Any:
        nonlocal looked
        looked += 1
        return real(*arguments)

    async with idle(filed, by_next_ready(durable_over(filed, poll=A_MOMENT))):
        watch_of(filed)._look = look
        with closing(plain(path)) as other:
            other.execute("CREATE TABLE others (name TEXT)")
        await until(lambda: looked == 1)


async def test_nobody_looks_while_nobody_waits(filed: Database):
    async with idle(filed, by_next_ready(durable_over(filed, poll=A_MOMENT))):
        assert watch_of(filed).pause() is not None
    assert watch_of(filed).pause() is None


# --- the same process ---------------------------------------------------------------------------


Change = Callable[[SqliteDurable, Delivery], Awaitable[Any]]

CHANGES: dict[str, Change] = {
    "make_ready": lambda d, _: d.scheduler.make_ready("w"),
    "arrive": lambda d, _: d.arrive("w", "a", 1),
    "deliver": lambda d, _: d.deliver("w", 1),
    "schedule into the past": lambda d, _: d.scheduler.schedule("w", now_utc() - MINUTE),
    "schedule for now": lambda d, _: d.scheduler.schedule("w", now_utc()),
    "wake_at in the past": lambda d, out: d.scheduler.wake_at(out, now_utc() - MINUTE),
    "wake_at for now": lambda d, out: d.scheduler.wake_at(out, now_utc()),
    "end_pass in the past": lambda d, out: ended(d, out),
    "schedule for soon": lambda d, _: d.scheduler.schedule("w", now_utc() + SOON),
    "wake_at for soon": lambda d, out: d.scheduler.wake_at(out, now_utc() + SOON),
}


async def ended(durable: SqliteDurable, delivery: Delivery) -> None:
    holder = await durable.checkpointer.claim(delivery.workflow, MINUTE, MINUTE)
    assert holder is not None
    await durable.end_pass(holder, delivery, Ended(now_utc() - MINUTE))


@each_way
@pytest.mark.parametrize("name", CHANGES)
async def test_what_this_process_makes_ready_is_found_without_a_look_in_between(
    anywhere: Database, name: str, waits: Waits
):
    durable = durable_over(anywhere)
    await durable.scheduler.make_ready("w")
    out = await durable.scheduler.next_ready(NOW)
    assert out is not None
    async with idle(anywhere, waits(durable)) as task:
        await CHANGES[name](durable, out)
        assert await in_time(task) == "w"


async def test_what_shares_a_commit_is_found_too(filed: Database):
    durable = durable_over(filed)
    async with idle(filed, by_next_ready(durable)) as task:
        await asyncio.gather(
            durable.checkpointer.supply("v", "a", 1),
            durable.scheduler.make_ready("w"),
            durable.checkpointer.supply("v", "b", 1),
        )
        assert await in_time(task) == "w"


async def test_what_is_taken_and_put_back_for_a_caller_that_has_gone_is_found(
    path: Path, migrated: Path, clock: Clock
):
    async with interposed_stores(path, migrated, clock) as stores:
        database = of(stores)
        durable = durable_over(database)
        await durable.scheduler.make_ready("w")
        halt = Halt(connection_of(stores), "COMMIT")
        taking = asyncio.create_task(durable.scheduler.next_ready(NOW))
        await halt.there()
        await cancelled(taking)
        back = Halt(connection_of(stores), "taken = NULL")  # this is how it is put back
        waiting = asyncio.create_task(by_next_ready(durable))
        halt.opened.set()
        await back.there()
        await stays_outside(waiting)
        back.opened.set()
        assert await in_time(waiting) == "w"


async def test_what_is_put_back_is_told_to_those_who_wait_by_then(filed: Database):
    """The taker goes away between the commit and its next turn, and somebody waits already."""
    durable = durable_over(filed)
    await durable.scheduler.make_ready("w")
    taking = durable.scheduler.next_ready(NOW)
    taken = "SELECT 1 FROM workflow_queue WHERE taken IS NOT NULL"
    while not await filed.run(lambda connection: connection.execute(taken).fetchall()):
        await until(taking.send(None).done)  # its turns are the test's to give
    async with idle(filed, by_next_ready(durable)) as task:
        with pytest.raises(asyncio.CancelledError):
            taking.throw(asyncio.CancelledError())
        assert await in_time(task) == "w"


@pytest.mark.parametrize("name", ["make_ready", "arrive", "schedule for soon"])
async def test_what_another_database_of_this_process_makes_ready_is_found(
    filed: Database, path: Path, name: str
):
    async with (
        connect(path) as second,
        idle(filed, by_next_ready(durable_over(filed))) as task,
    ):
        await CHANGES[name](durable_over(second), Delivery("w", ""))
        assert await in_time(task) == "w"


async def test_each_of_many_waiters_is_woken_by_its_own_queue_only(filed: Database):
    queues = [f"queue {n}" for n in range(4)]
    durables = {queue: durable_over(filed, queue) for queue in queues}
    tasks: dict[str, list[asyncio.Task[Any]]] = {
        queue: [asyncio.create_task(by_next_ready(durables[queue])) for _ in range(3)]
        for queue in queues
    }
    await until(lambda: waiters(filed) == 12)
    await SqliteCheckpointer(filed).load("nothing")
    looked: Counter[str] = Counter()
    real = watch_of(filed)._look

    def look(connection: sqlite3.Connection, queue: str, now: float) -> Any:
        looked[queue] += 1
        return real(connection, queue, now)

    watch_of(filed)._look = look
    await durables["queue 2"].scheduler.make_ready("w")
    done, _ = await in_time(asyncio.wait(tasks["queue 2"], return_when=asyncio.FIRST_COMPLETED))
    assert [task.result() for task in done] == ["w"]
    await until(lambda: waiters(filed) == 11)
    assert not [
        task for queue in queues for task in tasks[queue] if task.done() and task not in done
    ]
    assert set(looked) == {"queue 2"}
    await durables["queue 2"].scheduler.make_ready("another")
    await until(lambda: sum(task.done() for task in tasks["queue 2"]) == 2)
    results = {task.result() for task in tasks["queue 2"] if task.done()}
    assert results == {"w", "another"}
    for left in tasks.values():
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    assert waiters(filed) == 0


async def test_a_change_of_another_queue_wakes_nobody(filed: Database):
    async with idle(filed, by_next_ready(durable_over(filed, "mail"))) as task:
        await durable_over(filed, "post").scheduler.make_ready("w")
        await stays_outside(task)
        assert waiters(filed) == 1
        await durable_over(filed, "mail").scheduler.make_ready("v")
        assert await in_time(task) == "v"


async def test_all_that_becomes_ready_at_once_is_found_by_as_many_waiters(filed: Database):
    durable = durable_over(filed)
    tasks = [asyncio.create_task(by_next_ready(durable)) for _ in range(5)]
    await until(lambda: waiters(filed) == 5)
    await asyncio.gather(*(durable.scheduler.make_ready(str(n)) for n in range(5)))
    assert sorted(await in_time(asyncio.gather(*tasks))) == [str(n) for n in range(5)]


# --- sleepers -----------------------------------------------------------------------------------


@each_way
async def test_a_sleeper_that_is_known_is_found_at_its_moment(anywhere: Database, waits: Waits):
    durable = durable_over(anywhere)
    await durable.scheduler.schedule("w", now_utc() + 4 * SOON)
    task = asyncio.ensure_future(waits(durable))
    assert await in_time(task) == "w"


async def test_a_sleeper_is_found_among_later_ones_and_other_queues(filed: Database):
    durable = durable_over(filed)
    await durable.scheduler.schedule("later", now_utc() + HOUR)
    async with (
        idle(filed, by_next_ready(durable)) as task,
        idle(filed, by_next_ready(durable_over(filed, "other"))) as other,
    ):
        await durable.scheduler.schedule("latest", now_utc() + 2 * HOUR)
        await durable.scheduler.schedule("w", now_utc() + SOON)
        assert await in_time(task) == "w"
        assert not other.done()


async def test_a_lease_that_ends_is_found_at_its_moment(filed: Database):
    durable = durable_over(filed, lease=4 * SOON)
    await durable.scheduler.make_ready("w")
    assert await durable.scheduler.next_ready(NOW)
    assert await in_time(by_next_ready(durable)) == "w"


async def test_a_sleeper_that_is_cancelled_is_not_delivered_at_its_moment(filed: Database):
    durable = durable_over(filed)
    await durable.scheduler.schedule("w", now_utc() + SOON)
    async with idle(filed, by_next_ready(durable)) as task:
        await durable.scheduler.cancel("w")
        await durable.scheduler.schedule("v", now_utc() + 2 * SOON)
        assert await in_time(task) == "v"


@pytest.mark.parametrize("during", ["the first look", "a later look"])
async def test_a_sleeper_scheduled_while_somebody_looks_is_found_at_its_moment(
    filed: Database, path: Path, during: str
):
    """What the look saw is older than what it was told meanwhile."""
    durable = durable_over(filed, poll=HOUR if during == "the first look" else timedelta(seconds=1))
    await durable.checkpointer.load("nothing")
    gate, real = Gate(), watch_of(filed)._look

    def look(*arguments: Any) -> Any:
        found = real(*arguments)
        if not gate.entered.is_set():
            gate(None)
        return found

    if during == "the first look":
        watch_of(filed)._look = look
        task = asyncio.create_task(by_next_ready(durable))
    else:
        task = asyncio.create_task(by_next_ready(durable))
        await until(lambda: waiters(filed) == 1)
        await durable.checkpointer.load("nothing")
        watch_of(filed)._look = look
        with closing(plain(path)) as other:
            other.execute("CREATE TABLE others (name TEXT)")
    await gate.reached()
    for waiter in watch_of(filed)._waiters:
        waiter.poll = HOUR.total_seconds()
    await durable.scheduler.schedule("w", now_utc() + SOON)
    gate.opened.set()
    assert await in_time(task) == "w"
