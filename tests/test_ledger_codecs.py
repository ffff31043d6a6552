"""Codecs that do not take what the ledger writes down: what happened counts, and is said."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from without_durability import (
    Blocked,
    Clock,
    Ended,
    Failure,
    MemoryCheckpointer,
    MemoryDurable,
    MemoryScheduler,
)
from without_durability.codec import JSON
from without_durability.ledger import ended, raised
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
)

NOW, MINUTE = timedelta(0), timedelta(minutes=1)


class Refusing:
    """A codec for values of an application, which a ledger's details are none of."""

    def encode(self, value: object) -> str:
        if isinstance(value, dict):
            raise TypeError("no value of this application")
        return JSON.encode(value)

    def decode(self, encoded: str) -> object:
        return JSON.decode(encoded)


def in_memory(database: Database, clock: Clock) -> Any:
    store: MemoryCheckpointer = MemoryCheckpointer(
        codec=Refusing(), clock=clock.seconds, now=clock.now
    )
    return MemoryDurable(store, MemoryScheduler(clock=clock.seconds))


def in_a_file(database: Database, clock: Clock) -> Any:
    return SqliteDurable(SqliteCheckpointer(database, Refusing()), SqliteScheduler(database))


each_store = pytest.mark.parametrize("made", [in_memory, in_a_file])
Made = Callable[[Database, Clock], Any]


@each_store
async def test_a_reason_that_the_codec_refuses_is_lost_and_the_workflow_cancelled(
    database: Database, clock: Clock, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    durable = made(database, clock)
    await durable.arrive("w", "k", 1)
    assert await durable.cancel("w", "enough")
    status = await durable.status("w")
    assert (status.state, status.reason) == ("cancelled", "")
    assert "that workflow 'w' is cancelled is kept, and what goes with that cannot be stored" in (
        caplog.text
    )


@each_store
async def test_an_error_that_the_codec_refuses_is_lost_and_the_workflow_parked(
    database: Database, clock: Clock, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    durable = made(database, clock)
    await durable.arrive("w", "k", 1)
    for _ in range(2):
        delivery = await durable.scheduler.next_ready(NOW)
        started = await durable.start_pass(delivery, MINUTE, 1)
        clock.advance(durable.scheduler.lease)
    assert started.over == "parked"
    status = await durable.status("w")
    assert (status.state, status.attempts, status.error) == ("failed", 1, None)
    assert "that workflow 'w' is failed is kept" in caplog.text
    assert await durable.scheduler.next_ready(NOW) is None


@each_store
@pytest.mark.parametrize(
    "end",
    [ended(Blocked(frozenset({"k"}), frozenset())), raised(Failure("Closed", "at five"), None)],
    ids=lambda end: end.state,
)
async def test_a_detail_that_the_codec_refuses_keeps_no_pass_from_ending(
    database: Database, clock: Clock, made: Made, end: Ended
) -> None:
    durable = made(database, clock)
    await durable.arrive("w", "k", 1)
    delivery = await durable.scheduler.next_ready(NOW)
    started = await durable.start_pass(delivery, MINUTE)
    assert await durable.end_pass(started.holder, delivery, end) == end.state
    status = await durable.status("w")
    assert (status.state, status.detail, status.running) == (end.state, None, False)
