"""A file with a workflow in every state, made call by call under a clock that stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from without_durability.interfaces import Delivery, Pass
from without_durability.ledger import Failure, ended, raised
from without_durability.outcomes import Blocked, Completed, Sleeping
from without_durability.testing import Clock
from without_durability.values import Ended
from without_durability_sqlite import (
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    connect,
    migrate,
)

START = datetime(2020, 1, 1, 9, 0, tzinfo=UTC)
NOW = datetime(2020, 1, 1, 10, 0, tzinfo=UTC)
BUDGET = timedelta(minutes=5)

DECLINED = Failure(
    "shop.CardDeclined",
    "no cover",
    'Traceback (most recent call last):\n  File "shop.py", line 17, in charge\n'
    "    raise CardDeclined('no cover')\nshop.CardDeclined: no cover\n",
)
TIMED_OUT = Failure("TimeoutError", "the bank did not answer", "")


def now() -> float:
    """The clock that the commands are run by."""
    return NOW.timestamp()


@asynccontextmanager
async def durable(
    path: Path, clock: Clock, namespace: str = "workflow"
) -> AsyncIterator[SqliteDurable]:
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        scheduler = SqliteScheduler(database, namespace)
        yield SqliteDurable(SqliteCheckpointer(database), scheduler)


class Shop:
    """Orders of one queue, a second between two calls."""

    def __init__(self, durable: SqliteDurable, clock: Clock) -> None:
        self.durable, self.clock = durable, clock

    async def started(self, workflow: str) -> tuple[Pass, Delivery]:
        """A pass on an order that has just come."""
        self.clock.advance(timedelta(minutes=5))
        await self.durable.arrive(workflow, "order", {"lines": 2, "sku": "A-1"})
        self.clock.advance(timedelta(seconds=1))
        delivery = await self.durable.scheduler.next_ready(timedelta(0))
        assert delivery is not None
        assert delivery.workflow == workflow
        start = await self.durable.start_pass(delivery, BUDGET)
        assert start.holder is not None
        return start.holder, delivery

    async def charged(self, workflow: str, end: Ended) -> None:
        """A pass that charges the card and ends so."""
        holder, delivery = await self.started(workflow)
        self.clock.advance(timedelta(seconds=2))
        await self.durable.checkpointer.record(holder, "charge", "receipt 4711")
        await self.durable.end_pass(holder, delivery, end)


async def make(path: Path) -> None:
    """Orders 1 to 8 and a letter: from completed to queued."""
    clock = Clock(START)
    async with durable(path, clock) as shop_durable:
        shop = Shop(shop_durable, clock)
        await shop.charged("order-1", ended(Completed({"total": 12.5})))
        waits = Blocked(frozenset({"approved by"}), frozenset())
        await shop.charged("order-2", ended(waits))
        due = NOW + timedelta(days=2)
        await shop.charged("order-3", ended(Sleeping("cooling off", due)))
        await shop.charged("order-4", raised(DECLINED, None))
        await shop.charged("order-7", ended(waits))
        await shop.durable.cancel("order-7", "ordered twice")
        clock.advance(timedelta(minutes=20))
        mail = SqliteDurable(
            shop.durable.checkpointer, SqliteScheduler(shop.durable.checkpointer.database, "mail")
        )
        letter = Shop(mail, clock)
        holder, delivery = await letter.started("letter-1")
        await mail.deliver("letter-1", "and another thing")
        listening = Blocked(frozenset(), frozenset({"replies"}))
        await mail.checkpointer.release(holder)
        delivery = await mail.scheduler.next_ready(timedelta(0)) or delivery
        again = await mail.start_pass(delivery, BUDGET)
        assert again.holder is not None
        await mail.end_pass(again.holder, delivery, ended(listening))
        clock.advance(NOW - clock.now() - timedelta(minutes=5, seconds=31))
        await shop.charged("order-6", raised(TIMED_OUT, NOW + timedelta(seconds=40)))
        clock.advance(timedelta(seconds=10) - timedelta(minutes=5))
        await shop.started("order-5")
        await shop.durable.arrive("order-8", "order", {"lines": 1, "sku": "B-2"})
