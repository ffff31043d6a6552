"""Codecs of one's own: the ledger's details go through them, and what one cannot take is lost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from contract import rows
from ledgers import AT_REST, FAILURE, came_to, listed, state_of
from without_durability import (
    Blocked,
    CheckpointCodec,
    Clock,
    Completed,
    Ended,
    Failure,
    MemoryCheckpointer,
    MemoryDurable,
    MemoryScheduler,
    Sleeping,
    State,
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
Over = Callable[[Any], Any]


class Refusing:
    """A codec for values of an application, which a ledger's details are none of."""

    def encode(self, value: object) -> str:
        if isinstance(value, dict):
            raise TypeError("no value of this application")
        return JSON.encode(value)

    def decode(self, encoded: str) -> object:
        return JSON.decode(encoded)


def in_memory(database: Database, clock: Clock, codec: Any) -> Any:
    store: MemoryCheckpointer = MemoryCheckpointer(codec=codec, clock=clock.seconds, now=clock.now)
    return MemoryDurable(store, MemoryScheduler(clock=clock.seconds))


def in_a_file(database: Database, clock: Clock, codec: Any) -> Any:
    return with_codec(database, codec)


@pytest.fixture(params=[in_memory, in_a_file])
def over(request: pytest.FixtureRequest, database: Database, clock: Clock) -> Over:
    """A durable of either kind over a codec."""
    return partial(request.param, database, clock)


@pytest.fixture
async def refusing(over: Over) -> Any:
    """One in which "w" has arrived, under a codec that takes no detail."""
    durable = over(Refusing())
    await durable.arrive("w", "k", 1)
    return durable


async def test_a_reason_that_the_codec_refuses_is_lost_and_the_workflow_cancelled(
    refusing: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert await refusing.cancel("w", "enough")
    status = await refusing.status("w")
    assert (status.state, status.reason) == ("cancelled", "")
    assert "that workflow 'w' is cancelled is kept, and what goes with that cannot be stored" in (
        caplog.text
    )


async def test_an_error_that_the_codec_refuses_is_lost_and_the_workflow_parked(
    refusing: Any, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        delivery = await refusing.scheduler.next_ready(NOW)
        started = await refusing.start_pass(delivery, MINUTE, 1)
        clock.advance(refusing.scheduler.lease)
    assert started.over == "parked"
    status = await refusing.status("w")
    assert (status.state, status.attempts, status.error) == ("failed", 1, None)
    assert "that workflow 'w' is failed is kept" in caplog.text
    assert await refusing.scheduler.next_ready(NOW) is None


@pytest.mark.parametrize(
    "end",
    [ended(Blocked(frozenset({"k"}), frozenset())), raised(Failure("Closed", "at five"), None)],
    ids=lambda end: end.state,
)
async def test_a_detail_that_the_codec_refuses_keeps_no_pass_from_ending(
    refusing: Any, end: Ended
) -> None:
    delivery = await refusing.scheduler.next_ready(NOW)
    started = await refusing.start_pass(delivery, MINUTE)
    assert await refusing.end_pass(started.holder, delivery, end) == end.state
    status = await refusing.status("w")
    assert (status.state, status.detail, status.running) == (end.state, None, False)


# --- what another codec cannot read -----------------------------------------------------------


class Shifted:
    """A codec whose text no other reads."""

    def encode(self, value: object) -> str:
        return "shifted " + JSON.encode(value)

    def decode(self, encoded: str) -> object:
        if not encoded.startswith("shifted "):
            raise ValueError("not of this codec")
        return JSON.decode(encoded.removeprefix("shifted "))


def with_codec(database: Database, codec: CheckpointCodec[str]) -> SqliteDurable:
    return SqliteDurable(SqliteCheckpointer(database, codec), SqliteScheduler(database))


DETAILS: dict[State, Ended] = {
    "completed": ended(Completed({"paid": 1})),
    "failed": raised(FAILURE, None),
    "blocked": ended(AT_REST),
    "sleeping": ended(Sleeping("nap", datetime(2100, 1, 1, tzinfo=UTC))),
}


async def test_details_go_through_the_codec_of_the_store(database: Database, path: Path):
    durable = with_codec(database, Shifted())
    for state, how in DETAILS.items():
        await came_to(durable, state, how)
    await durable.cancel("blocked", "enough")
    details = rows(path, "SELECT detail FROM workflow_run")
    assert all(detail.startswith("shifted ") for (detail,) in details)
    assert await durable.result("completed", within=NOW) == {"paid": 1}
    status = await durable.status("blocked")
    assert status is not None
    assert status.reason == "enough"


class Leaving(Refusing):
    """A codec that lost what it needs to read, and says so in the worst way."""

    def encode(self, value: object) -> str:
        return JSON.encode(value)

    def decode(self, encoded: str) -> object:
        if encoded.startswith("{"):
            raise SystemExit("no key")
        return JSON.decode(encoded)


async def test_a_codec_that_raises_anything_hides_no_workflow(over: Over) -> None:
    durable = over(Leaving())
    await durable.arrive("w", "k", 1)
    assert await durable.cancel("w", "enough")
    await durable.arrive("v", "k", 1)
    assert await listed(durable) == ["v", "w"]
    assert (await durable.status("w")).state == "cancelled"
    assert "'w' was cancelled" in await durable.why("w")


@pytest.mark.parametrize("state", [*DETAILS, "cancelled"])
async def test_a_detail_that_cannot_be_read_hides_no_workflow(database: Database, state: State):
    writer, reader = with_codec(database, Shifted()), with_codec(database, JSON)
    await came_to(writer, "w", DETAILS.get(state, DETAILS["blocked"]))
    if state == "cancelled":
        await writer.cancel("w", "enough")
    await reader.arrive("v", "k", 1)
    status = await reader.status("w")
    assert status is not None
    assert status.state == state
    assert await listed(reader) == ["v", "w"]
    assert "'w'" in await reader.why("w")
    if state in ("failed", "cancelled"):
        assert await reader.retry("w")
        assert await state_of(reader, "w") == "ready"


async def test_a_result_that_cannot_be_read_is_an_error_and_no_result(database: Database):
    await came_to(with_codec(database, Shifted()), "w", Completed({"paid": 1}))
    with pytest.raises(ValueError, match="'w'"):
        await with_codec(database, JSON).result("w", within=NOW)
