"""K26, K29, K36, K37, K42: polling, clocks, namespaces, wakeups and durations at their edges."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from gated import passed
from without_durability import Completed, Milliseconds, Pass, Run, Sleeping
from without_durability.testing import Clock
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    connect,
)

MIN = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NOW = timedelta(0)
SOON = timedelta(milliseconds=100)


async def test_k26_an_idle_poll_reads_only(
    database: Database, scheduler: SqliteScheduler, clock: Clock
) -> None:
    await scheduler.schedule("sleeper", clock.now() + HOUR)
    await scheduler.make_ready("taken")
    assert await scheduler.next_ready(NOW) is not None
    statements: list[str] = []
    database.connection.set_trace_callback(statements.append)
    assert await scheduler.next_ready(2 * SOON) is None
    assert await scheduler.reclaim(NOW) is None
    assert await scheduler.wake_due(clock.now()) == ()
    database.connection.set_trace_callback(None)
    assert statements, "nothing was looked at"
    assert [one for one in statements if not one.lstrip().startswith("SELECT")] == []
    assert len(statements) < 10, "an idle worker looks more often than its poll"


async def test_k26_an_idle_poll_waits_behind_no_writer(
    scheduler: SqliteScheduler, other: sqlite3.Connection
) -> None:
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    assert await scheduler.next_ready(SOON) is None
    assert 0.09 < time.monotonic() - began < 1
    other.execute("ROLLBACK")


async def test_k26_within_is_honoured_though_a_ready_row_waits_behind_a_writer(
    path: Path, scheduler: SqliteScheduler, other: sqlite3.Connection, clock: Clock
) -> None:
    await scheduler.make_ready("w")
    other.execute("BEGIN IMMEDIATE")
    async with connect(path, timeout=Milliseconds(1500), clock=clock.seconds) as patient:
        looking = SqliteScheduler(patient)
        began = time.monotonic()
        try:
            assert await looking.next_ready(SOON) is None
        finally:
            took = time.monotonic() - began
            other.execute("ROLLBACK")
            assert took < 1, "a look of 0.1 s waited for the busy timeout"
        assert await looking.next_ready(MIN) is not None


async def test_k26_within_is_honoured_though_an_effect_occupies_the_thread(
    database: Database, scheduler: SqliteScheduler
) -> None:
    await scheduler.make_ready("w")
    leave = threading.Event()
    busy = asyncio.create_task(database.run(lambda _: leave.wait(1.5)))
    await asyncio.sleep(0)
    began = time.monotonic()
    assert await scheduler.next_ready(SOON) is None
    took = time.monotonic() - began
    leave.set()
    await busy
    assert took < 1, "a look of 0.1 s waited for somebody else's work"
    delivery = await scheduler.next_ready(NOW)
    assert delivery is not None, "the look that was given up kept the delivery"


@pytest.mark.parametrize("ahead", [2 * HOUR, 400 * DAY])
async def test_k29_a_clock_set_back_keeps_nothing_from_its_workflow_for_long(
    durable: SqliteDurable, clock: Clock, ahead: timedelta
) -> None:
    checkpointer, scheduler = durable.checkpointer, durable.scheduler
    clock.advance(ahead)
    await durable.arrive("w", "first", 1)
    assert await scheduler.next_ready(NOW) is not None
    old = await checkpointer.claim("w", 5 * MIN, MIN)
    assert old is not None
    await checkpointer.record(old, "second", 2)
    clock.advance(-ahead)
    assert await checkpointer.claim("w", 5 * MIN, MIN) is None, "a live claim was taken away"
    assert await scheduler.next_ready(NOW) is None, "a delivery was handed out twice"
    clock.advance(MIN)
    new = await checkpointer.claim("w", 5 * MIN, MIN)
    assert new is not None, "a lease of a minute is not over after a minute"
    assert new.token > old.token
    delivery = await scheduler.next_ready(NOW)
    assert delivery is not None
    await checkpointer.record(new, "third", 3)
    await checkpointer.supply("w", "fourth", 4)
    times = [written.at for written in (await checkpointer.history("w")).values()]
    assert len(times) == 4
    assert times == sorted(times), "history ran backwards"


@pytest.mark.parametrize("sign", ["record", "renew", "extend", "transact"])
async def test_k29_a_holder_alive_through_a_clock_set_back_keeps_its_claim_no_longer(
    durable: SqliteDurable, clock: Clock, sign: str
) -> None:
    checkpointer = durable.checkpointer
    clock.advance(2 * HOUR)
    holder = await checkpointer.claim("w", 5 * MIN, MIN)
    assert holder is not None
    clock.advance(-2 * HOUR)
    signs: dict[str, Callable[[], Awaitable[object]]] = {
        "record": lambda: checkpointer.record(holder, "k", 1),
        "renew": lambda: checkpointer.renew(holder, MIN),
        "extend": lambda: checkpointer.extend(holder, 5 * MIN, MIN),
        "transact": lambda: checkpointer.transact(holder, "k", lambda cursor: 1),
    }
    await signs[sign]()
    assert await checkpointer.claim("w", 5 * MIN, MIN) is None
    clock.advance(MIN)
    assert await checkpointer.claim("w", 5 * MIN, MIN) is not None


async def test_k29_a_sleeper_is_never_woken_early_by_a_clock_set_back(
    scheduler: SqliteScheduler, clock: Clock
) -> None:
    due = clock.now() + DAY
    await scheduler.make_ready("asleep")
    delivery = await scheduler.next_ready(NOW)
    assert delivery is not None
    await scheduler.wake_at(delivery, due)
    await scheduler.schedule("scheduled", due)
    clock.advance(-2 * HOUR)
    assert await scheduler.next_ready(NOW) is None
    clock.advance(DAY)
    assert await scheduler.next_ready(NOW) is None
    clock.advance(2 * HOUR)
    assert await scheduler.next_ready(NOW) is not None
    assert await scheduler.next_ready(NOW) is not None


async def test_k36_a_namespace_is_a_queue_and_ids_are_global(
    database: Database, checkpointer: SqliteCheckpointer
) -> None:
    billing = SqliteDurable(checkpointer, SqliteScheduler(database, namespace="billing"))
    email = SqliteDurable(checkpointer, SqliteScheduler(database, namespace="email"))
    await billing.arrive("order-1", "x", 1)
    await email.arrive("order-1", "y", 2)
    assert await checkpointer.load("order-1") == {"x": 1, "y": 2}
    assert await billing.delete("order-1") == 2
    assert await billing.scheduler.next_ready(NOW) is None
    delivery = await email.scheduler.next_ready(NOW)
    assert delivery is not None, "a delete cancelled another namespace's wakeup"
    for answer in (billing.scheduler.done(delivery), billing.scheduler.wake_at(delivery, FAR)):
        await answer
    assert await billing.scheduler.extend(delivery, MIN) == delivery
    assert await email.scheduler.holds(delivery), "a namespace answered for another's delivery"
    assert await checkpointer.load("order-1") == {}


FAR = datetime(2040, 1, 1, tzinfo=UTC)


async def test_k37_asking_twice_never_makes_a_waiting_workflow_later(stores: Any) -> None:
    scheduler = stores.scheduler
    asking: list[Callable[[], Awaitable[object]]] = [
        lambda: scheduler.make_ready("old"),
        lambda: stores.durable.arrive("old", "k", 1),
        lambda: stores.durable.deliver("old", 1),
    ]
    for ask in asking:
        await scheduler.make_ready("old")
        stores.clock.advance(SOON)
        await scheduler.make_ready("mid")
        stores.clock.advance(SOON)
        await ask()
        taken = [await scheduler.next_ready(NOW), await scheduler.next_ready(NOW)]
        assert [delivery.workflow for delivery in taken] == ["old", "mid"]
        for delivery in taken:
            await scheduler.done(delivery)


async def test_k37_asking_for_a_taken_workflow_changes_its_receipt(stores: Any) -> None:
    await stores.scheduler.make_ready("w")
    taken = await stores.scheduler.next_ready(NOW)
    await stores.scheduler.make_ready("w")
    await stores.scheduler.done(taken)
    assert await stores.scheduler.next_ready(NOW) is not None, "a wakeup was lost"


async def test_k37_an_explicit_schedule_is_an_unconditional_move(stores: Any) -> None:
    scheduler, clock = stores.scheduler, stores.clock
    await scheduler.make_ready("x")
    await scheduler.schedule("x", clock.now() + 3 * DAY)
    await scheduler.wake_due(clock.now())
    assert await scheduler.next_ready(NOW) is None
    await scheduler.make_ready("x")
    assert await scheduler.next_ready(NOW) is not None, "made ready, it still sleeps"


def sleeping(duration: timedelta) -> Callable[[Run[Any]], Awaitable[str]]:
    async def body(run: Run[Any]) -> str:
        await run.sleep("k", duration)
        return "awake"

    return body


@pytest.mark.parametrize("duration", [timedelta.max, 10_000 * 365 * DAY])
async def test_k42_a_sleep_no_datetime_can_hold_is_refused_by_its_key_and_value(
    stores: Any, duration: timedelta
) -> None:
    with pytest.raises(OverflowError) as refused:
        await passed(stores, sleeping(duration))
    assert "'k'" in str(refused.value)
    assert repr(duration) in str(refused.value)
    assert await stores.checkpointer.load("w") == {}


async def test_k42_a_sleep_of_a_thousand_years_is_a_sleep(stores: Any) -> None:
    outcome = await passed(stores, sleeping(1000 * 365 * DAY))
    assert outcome == Sleeping("k", stores.clock.now() + 1000 * 365 * DAY)


@pytest.mark.parametrize("sleep", [NOW, -DAY, timedelta.min])
async def test_k42_a_sleep_of_nothing_passes_at_once_and_on_every_pass(
    stores: Any, sleep: timedelta
) -> None:
    for _ in range(2):
        assert await passed(stores, sleeping(sleep)) == Completed("awake")


@pytest.mark.parametrize(
    "when",
    [
        datetime.max.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-11))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=14))),
    ],
)
@pytest.mark.parametrize("how", ["wake_at", "schedule"])
async def test_k42_the_latest_moment_never_comes_and_never_comes_at_once(
    stores: Any, how: str, when: datetime
) -> None:
    scheduler = stores.scheduler
    await scheduler.make_ready("w")
    delivery = await scheduler.next_ready(NOW)
    try:
        await (
            scheduler.wake_at(delivery, when) if how == "wake_at" else scheduler.schedule("w", when)
        )
    except (ValueError, OverflowError):
        assert await scheduler.holds(delivery), "refused, it moved the wakeup all the same"
        return
    stores.clock.advance(1000 * 365 * DAY)
    await scheduler.wake_due(stores.clock.now())
    assert await scheduler.next_ready(NOW) is None, "a very long wait ended early"


async def test_k42_a_claim_of_the_longest_time_holds(stores: Any) -> None:
    holder = await stores.checkpointer.claim("w", timedelta.max, timedelta.max)
    assert holder is not None
    assert await stores.checkpointer.extend(holder, timedelta.max, timedelta.max)
    stores.clock.advance(1000 * 365 * DAY)
    assert await stores.checkpointer.claim("w", MIN, MIN) is None
    await stores.checkpointer.record(holder, "k", 1)


async def test_k42_the_longest_look_still_finds_what_arrives(stores: Any) -> None:
    looking = asyncio.create_task(stores.scheduler.next_ready(timedelta.max))
    await asyncio.sleep(0.02)
    await stores.scheduler.make_ready("w")
    async with asyncio.timeout(5):
        delivery = await looking
    extended = await stores.scheduler.extend(delivery, timedelta.max)
    assert await stores.scheduler.holds(extended)


REFUSED: dict[str, Callable[[Any, Pass, Any, timedelta], Awaitable[object]]] = {
    "budget": lambda d, _, __, none: d.checkpointer.claim("w", none, MIN),
    "alive": lambda d, _, __, none: d.checkpointer.claim("w", MIN, none),
    "extend budget": lambda d, holder, _, none: d.checkpointer.extend(holder, none, MIN),
    "extend alive": lambda d, holder, _, none: d.checkpointer.extend(holder, MIN, none),
    "renew alive": lambda d, holder, _, none: d.checkpointer.renew(holder, none),
    "within": lambda d, _, delivery, none: d.scheduler.extend(delivery, none),
}


@pytest.mark.parametrize("none", [NOW, -MIN, timedelta.min])
@pytest.mark.parametrize("place", REFUSED)
async def test_k42_a_duration_of_nothing_is_refused_by_name(
    stores: Any, place: str, none: timedelta
) -> None:
    holder = await stores.checkpointer.claim("v", MIN, MIN)
    await stores.scheduler.make_ready("v")
    delivery = await stores.scheduler.next_ready(NOW)
    for _ in range(2):
        with pytest.raises(ValueError, match=place.split()[-1]):
            await REFUSED[place](stores.durable, holder, delivery, none)
    assert await stores.checkpointer.claim("w", MIN, MIN), "a refused claim holds"
    assert await stores.checkpointer.renew(holder, MIN)
    assert await stores.scheduler.holds(delivery)


async def test_k42_a_negative_look_is_refused(stores: Any) -> None:
    with pytest.raises(ValueError, match="within"):
        await stores.scheduler.next_ready(-SOON)
    with pytest.raises(ValueError, match="idle"):
        await stores.scheduler.reclaim(-SOON)
