"""What was made ready outlives a clock that is set back; what sleeps means its moment (S1, S11)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from stores import over_sqlite
from without_durability import LEASE, Clock, Delivery
from without_durability_sqlite import Database, SqliteScheduler

HOURS = timedelta(hours=3)
NOW = timedelta(0)

READIED: dict[str, Callable[[Any], Awaitable[object]]] = {
    "make_ready": lambda durable: durable.scheduler.make_ready("w"),
    "arrive": lambda durable: durable.arrive("w", "k", 1),
    "deliver": lambda durable: durable.deliver("w", 1),
}


async def taken(queue: SqliteScheduler) -> Delivery:
    """A delivery of "w", out with whoever asked."""
    await queue.make_ready("w")
    delivery = await queue.next_ready(NOW)
    assert delivery is not None
    return delivery


@pytest.fixture(params=READIED.values(), ids=READIED)
async def readied(request: pytest.FixtureRequest, database: Database, clock: Clock) -> Any:
    """A durable in which "w" was made ready before the clock was set back."""
    durable = over_sqlite(database, clock).durable
    await request.param(durable)
    clock.advance(-HOURS)
    return durable


async def test_s11_what_was_made_ready_before_the_clock_was_set_back_is_found(readied: Any):
    delivery = await readied.scheduler.next_ready(NOW)
    assert delivery is not None
    assert delivery.workflow == "w"


async def test_l15_what_was_made_ready_before_the_clock_was_set_back_is_due_now_and_not_later(
    readied: Any,
):
    status = await readied.status("w")
    assert status is None or (status.state, status.due) == ("ready", None)
    assert "is queued in 'workflow'" in await readied.why("w")


async def test_s11_a_now_of_the_schedulers_own_that_runs_a_little_ahead_makes_no_difference(
    database: Database, clock: Clock
):
    def a_little_ahead() -> datetime:
        return clock.now() + timedelta(milliseconds=3)

    queue = SqliteScheduler(database, now=a_little_ahead)
    await queue.make_ready("w")
    clock.advance(-HOURS)
    assert await queue.next_ready(NOW) is not None


async def test_s9_what_was_handed_back_before_the_clock_was_set_back_is_found(
    database: Database, clock: Clock
):
    queue = SqliteScheduler(database)
    delivery = await taken(queue)
    await queue.wake_at(delivery, clock.now())
    clock.advance(-HOURS)
    assert await queue.next_ready(NOW) is not None


async def test_s4_a_sleeper_means_its_moment_however_the_clock_is_set(
    database: Database, clock: Clock
):
    queue = SqliteScheduler(database)
    delivery = await taken(queue)
    due = clock.now() + HOURS
    await queue.wake_at(delivery, due)
    await queue.schedule("v", due)
    clock.advance(-HOURS)
    assert await queue.next_ready(NOW) is None
    clock.advance(2 * HOURS)
    assert {(await queue.next_ready(NOW)).workflow for _ in range(2)} == {"v", "w"}


async def test_what_was_out_and_claimed_is_free_a_lease_after_the_clock_was_set_back(
    database: Database, clock: Clock
):
    """The take that brings the delivery back brings the claim's deadlines back as well."""
    stores = over_sqlite(database, clock)
    await taken(stores.scheduler)
    assert await stores.checkpointer.claim("w", LEASE, LEASE) is not None
    clock.advance(-HOURS)
    assert await stores.scheduler.next_ready(NOW) is None
    clock.advance(LEASE + timedelta(seconds=1))
    assert await stores.checkpointer.claim("w", LEASE, LEASE) is not None, "it waits for hours"
