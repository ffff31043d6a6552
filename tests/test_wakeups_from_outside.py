"""What no call of this process's makes ready: clocks that are set, other processes."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from children import started
from idling import (
    A_MOMENT,
    HOUR,
    NOW,
    Waits,
    a_file,
    by_next_ready,
    durable_over,
    each_way,
    idle,
    rollback_journal,
    watch_of,
)
from thread_gates import HANG, in_time, plain, stays_outside, until
from without_durability import LEASE, Clock
from without_durability_sqlite import (
    Database,
    connect,
    migrate,
)
from without_durability_sqlite.store import POLL

# --- clocks -------------------------------------------------------------------------------------


async def test_a_sleeper_waits_for_the_databases_clock(database: Database, clock: Clock):
    durable = durable_over(database, poll=A_MOMENT, now=clock.now)
    await durable.scheduler.schedule("w", clock.now() + HOUR)
    async with idle(database, by_next_ready(durable)) as task:
        clock.advance(HOUR - A_MOMENT)
        await stays_outside(task)
        clock.advance(A_MOMENT)
        assert await in_time(task) == "w"


async def test_a_clock_that_is_set_ahead_is_noticed(database: Database, clock: Clock):
    durable = durable_over(database, poll=A_MOMENT, now=clock.now)
    await durable.scheduler.make_ready("w")
    assert await durable.scheduler.next_ready(NOW)
    async with idle(database, by_next_ready(durable)) as task:
        clock.advance(24 * HOUR)
        assert await in_time(task) == "w"


def looks_often(database: Database) -> None:
    """Whoever waits now polls often from here on."""
    reader = database._thread.reader
    assert reader is not None
    for waiter in tuple(watch_of(database)._waiters):
        waiter.poll = A_MOMENT.total_seconds()
    reader.later(lambda: None)


def visible_at(connection: sqlite3.Connection) -> float:
    ((seconds,),) = connection.execute("SELECT visible_at FROM workflow_queue").fetchall()
    return float(seconds)


@pytest.mark.parametrize("looks", [0, 3], ids=["right after it began to wait", "later"])
async def test_a_clock_that_is_set_back_is_noticed(
    database: Database, path: Path, clock: Clock, looks: int
):
    """A delivery that is out comes back a lease later by the new time, not hours later."""
    clock.advance(5 * HOUR)
    durable = durable_over(database, poll=A_MOMENT if looks else HOUR, now=clock.now)
    await durable.scheduler.make_ready("w")
    assert await durable.scheduler.next_ready(NOW)
    async with idle(database, by_next_ready(durable)) as task:
        reader = database._thread.reader
        assert reader is not None
        for _ in range(looks):
            reader.later(lambda: watch_of(database).look(reader.opened))
        await durable.checkpointer.load("nothing")
        clock.advance(-4 * HOUR)
        object.__setattr__(durable.scheduler, "poll_seconds", A_MOMENT.total_seconds())
        looks_often(database)
        with closing(plain(path)) as other:
            await until(lambda: visible_at(other) <= clock.seconds() + LEASE.total_seconds())
        await stays_outside(task)
        clock.advance(LEASE)
        assert await in_time(task) == "w"


@pytest.mark.parametrize("opened", [connect, lambda _, **options: connect(":memory:", **options)])
async def test_a_clock_that_fails_harms_only_those_who_ask_it(
    path: Path, opened: Callable[..., Database]
):
    """Whoever waits is told, and the thread goes on."""
    reading = [1000.0]
    async with opened(path, clock=lambda: reading[0]) as database:
        await migrate(database)
        durable = durable_over(database)
        async with idle(database, by_next_ready(durable)) as task:
            reading[0] = float("nan")
            await durable.checkpointer.load("w")
            await durable.checkpointer.load("w")
            reading[0] = 1000.0
            assert await in_time(durable.checkpointer.load("w")) == {}
            with suppress(ValueError):
                await in_time(durable.scheduler.make_ready("w"))
                await in_time(task)


@pytest.mark.parametrize("poll", [timedelta.max, timedelta(days=200_000), timedelta.resolution])
async def test_any_poll_will_do(filed: Database, poll: timedelta):
    durable = durable_over(filed, poll=poll)
    async with idle(filed, by_next_ready(durable)) as task:
        assert await in_time(durable.checkpointer.load("w")) == {}
        await durable.scheduler.make_ready("w")
        assert await in_time(task) == "w"


async def test_any_wait_will_do(filed: Database):
    durable = durable_over(filed)
    async with idle(filed, durable.scheduler.next_ready(timedelta.max)) as task:
        await durable.scheduler.make_ready("w")
        assert (await in_time(task)).workflow == "w"


# --- other processes ----------------------------------------------------------------------------


async def test_what_another_process_makes_ready_is_found(filed: Database, path: Path):
    script = """
    async def main():
        await opened()
        print("ready", flush=True)
        sys.stdin.readline()
        await d.arrive("w", "a", 1)
        await db.aclose()
    asyncio.run(main())
    """
    child = started(script, path)
    try:
        assert child.stdout is not None
        assert child.stdin is not None
        assert await asyncio.to_thread(child.stdout.readline) == "ready\n"
        async with idle(filed, by_next_ready(durable_over(filed, poll=POLL))) as task:
            child.stdin.write("go\n")
            child.stdin.flush()
            assert await in_time(task) == "w"
        assert await asyncio.to_thread(child.wait, HANG) == 0
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("kind", [a_file, rollback_journal])
@each_way
async def test_what_a_foreign_program_makes_ready_is_found_by_the_next_look(
    path: Path, waits: Waits, kind: Callable[[Path], Database]
):
    """It rings no bell: the poll is the safety net."""
    async with kind(path) as database:
        await migrate(database)
        durable = durable_over(database, poll=A_MOMENT)
        async with idle(database, waits(durable)) as task:
            with closing(plain(path, timeout=HANG)) as other:
                other.execute(
                    "INSERT INTO workflow_queue (namespace, workflow, visible_at) "
                    "VALUES ('workflow', 'w', 1)"
                )
            assert await in_time(task) == "w"
