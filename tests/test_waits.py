"""Waits: deadlines that keep their length, inputs, and inbox reads that replay alike."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from itertools import pairwise
from typing import Any

import pytest

from gated import Overlay, passed, turns
from stores import Stores
from without_durability import (
    Blocked,
    Clock,
    Completed,
    MemoryCheckpointer,
    Run,
    ScheduledWakeup,
    Sleeping,
    claimed,
    extending,
    inbox_key,
    parse_bound,
    parse_deadline,
    passing,
    resume,
)

pytestmark = pytest.mark.timeout(20)

DAY = timedelta(hours=24)


class Changing(tzinfo):
    """A zone that is two hours ahead of UTC until 2030-03-31 01:00 UTC, and three from then on."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        assert moment is not None
        changed = moment.replace(tzinfo=UTC) >= datetime(2030, 3, 31, 4, tzinfo=UTC)
        return timedelta(hours=3 if changed else 2)

    def dst(self, moment: datetime | None) -> timedelta:
        return timedelta(0)

    def fromutc(self, moment: datetime) -> datetime:
        changed = moment.replace(tzinfo=UTC) >= datetime(2030, 3, 31, 1, tzinfo=UTC)
        return moment + timedelta(hours=3 if changed else 2)


def zone(name: str) -> tzinfo:
    """The named zone, or one that changes too where the machine has no zone data."""
    try:
        from zoneinfo import ZoneInfo

        return ZoneInfo(name)
    except (ImportError, LookupError):
        return Changing()


async def napping(run: Run[Any]) -> str:
    await run.sleep("nap", DAY)
    return "up"


# --- sleep ------------------------------------------------------------------------------------


async def test_a_sleep_records_its_deadline_once_and_passes_when_it_is_reached(stores: Stores):
    due = stores.clock.now() + DAY
    assert await passed(stores, napping) == Sleeping("nap", due)
    stores.clock.advance(DAY - timedelta(microseconds=1))
    assert await passed(stores, napping) == Sleeping("nap", due)
    stores.clock.advance(timedelta(microseconds=1))
    assert await passed(stores, napping) == Completed("up")
    assert await stores.checkpointer.load("w") == {"nap": due.isoformat()}


@pytest.mark.parametrize("duration", [timedelta(0), timedelta(days=-1)])
async def test_a_sleep_of_no_length_is_recorded_and_passes_at_once(stores: Stores, duration):
    async def body(run):
        await run.sleep("nap", duration)

    assert await passed(stores, body) == Completed(None)
    assert list(await stores.checkpointer.load("w")) == ["nap"]


@pytest.mark.parametrize(
    ("zoned", "start"),
    [
        (zone("Europe/Berlin"), datetime(2030, 3, 30, 12, tzinfo=UTC)),
        (zone("Europe/Berlin"), datetime(2030, 10, 26, 12, tzinfo=UTC)),
        (zone("America/New_York"), datetime(2030, 3, 9, 20, tzinfo=UTC)),
        (zone("Australia/Lord_Howe"), datetime(2030, 4, 6, 4, tzinfo=UTC)),
        (Changing(), datetime(2030, 3, 30, 12, tzinfo=UTC)),
        (timezone(timedelta(hours=-11)), datetime(2030, 3, 30, 12, tzinfo=UTC)),
    ],
)
async def test_24_hours_are_24_hours_across_a_clock_change(zoned: tzinfo, start: datetime):
    store = MemoryCheckpointer()
    holder = await claimed(store, "w")
    outcome = await resume(holder, store, napping, now=lambda: start.astimezone(zoned))
    assert isinstance(outcome, Sleeping)
    assert outcome.due.astimezone(UTC) - start == DAY
    late = start + DAY
    outcome = await resume(holder, store, napping, now=lambda: late.astimezone(zoned))
    assert outcome == Completed("up")


async def test_a_sleep_cancelled_while_its_deadline_is_written_is_still_reported(clock: Clock):
    store = MemoryCheckpointer()
    reached, gate = asyncio.Event(), asyncio.Event()

    async def record(*arguments):
        reached.set()
        await gate.wait()
        return await store.record(*arguments)

    holder = await claimed(store, "w")
    gated = Overlay(store, record=record)
    run = Run(holder, gated, {}, extending(gated), clock.now)
    nap = asyncio.create_task(run.sleep("nap", DAY))
    await reached.wait()
    nap.cancel()
    await turns(5)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await nap
    assert [(one.key, one.due) for one in run.reached] == [("nap", clock.now() + DAY)]
    assert await store.load("w") == {"nap": (clock.now() + DAY).isoformat()}


async def test_a_sleep_whose_record_lost_waits_for_the_deadline_that_won(clock: Clock):
    store = MemoryCheckpointer()
    run = passing(await claimed(store, "w"), store)
    theirs = datetime(2999, 1, 1, tzinfo=UTC)
    await store.supply("w", "nap", theirs.isoformat())
    with pytest.raises(ScheduledWakeup) as caught:
        await run.sleep("nap", timedelta(0))
    assert caught.value.due == theirs


@pytest.mark.parametrize(
    "recorded",
    [
        None,
        7,
        [],
        "",
        "soon",
        "2030-01-01T00:00:00",
        "2030-13-01T00:00:00+00:00",
        "0001-01-01T00:00:00+12:00",
        "9999-12-31T23:59:59-12:00",
    ],
)
def test_what_no_sleep_wrote_is_a_type_error_naming_the_key(recorded: object):
    with pytest.raises(TypeError, match="'nap'"):
        parse_deadline("nap", recorded)


def test_a_deadline_comes_back_in_utc_whatever_zone_it_was_written_in():
    due = parse_deadline("nap", "2030-01-01T05:30:00+05:30")
    assert due == datetime(2030, 1, 1, tzinfo=UTC)
    assert due.tzinfo is UTC


@pytest.mark.parametrize("recorded", [7, True, [], {}, 1.5])
def test_what_no_inbox_read_wrote_is_a_type_error_naming_key_and_value(recorded: object):
    with pytest.raises(TypeError) as caught:
        parse_bound("mail", recorded)
    assert "'mail'" in str(caught.value)
    assert repr(recorded) in str(caught.value)


@pytest.mark.parametrize("recorded", [None, inbox_key(3)])
def test_a_cursor_is_text_or_none(recorded: str | None):
    assert parse_bound("mail", recorded) == recorded


# --- input ------------------------------------------------------------------------------------


async def test_an_awaited_input_blocks_until_someone_supplies_it(stores: Stores):
    async def body(run):
        return await run.awaiting("approval", lambda stored: ("parsed", stored))

    assert await passed(stores, body) == Blocked(frozenset({"approval"}), frozenset())
    await stores.durable.arrive("w", "approval", "yes")
    assert await passed(stores, body) == Completed(("parsed", "yes"))


async def test_a_supplied_none_is_an_input(stores: Stores):
    async def body(run):
        return await run.awaiting("approval", lambda stored: stored)

    await stores.checkpointer.supply("w", "approval", None)
    assert await passed(stores, body) == Completed(None)


# --- inbox ------------------------------------------------------------------------------------


def values(entries) -> list[object]:
    return [entry.value for entry in entries]


async def test_a_receive_blocks_until_there_is_a_message(stores: Stores):
    async def body(run):
        return values(await run.receive("mail"))

    assert await passed(stores, body) == Blocked(frozenset(), frozenset({"mail"}))
    await stores.durable.deliver("w", "hello")
    assert await passed(stores, body) == Completed(["hello"])


async def test_k38_messages_between_two_receives_are_read_alike_on_every_replay(stores: Stores):
    reads: list[tuple[list[object], list[object]]] = []
    between: list[str] = ["b", "c", "d"]

    async def delivering() -> None:
        while between:
            await stores.durable.deliver("w", between.pop(0))

    async def body(run):
        first = await run.receive("first")
        await run.step("between", delivering, lambda stored: stored)
        second = await run.receive("second", after=first[-1].key)
        reads.append((values(first), values(second)))
        return first, second

    await stores.durable.deliver("w", "a")
    assert await passed(stores, body) == Blocked(frozenset(), frozenset({"second"}))
    done = await passed(stores, body)
    await stores.durable.deliver("w", "late")
    assert await passed(stores, body) == done
    assert await passed(stores, body) == done
    assert reads == [(["a"], ["b", "c", "d"])] * 3


@pytest.mark.parametrize("read", ["receive", "pending"])
async def test_a_limit_takes_the_oldest_and_the_cursor_goes_on_from_there(stores: Stores, read):
    for value in range(5):
        await stores.durable.deliver("w", value)

    async def body(run):
        taken = [await getattr(run, read)("0", limit=2)]
        for number in (1, 2):
            after = taken[-1][-1].key
            taken.append(await getattr(run, read)(str(number), after=after, limit=2))
        return taken

    first = await passed(stores, body)
    assert [values(entries) for entries in first.value] == [[0, 1], [2, 3], [4]]
    keys = [entry.key for entries in first.value for entry in entries]
    assert all(one < other for one, other in pairwise(keys))
    await stores.durable.deliver("w", 5)
    assert await passed(stores, body) == first


async def test_a_pending_read_that_found_nothing_finds_nothing_on_every_replay(stores: Stores):
    async def body(run):
        return await run.pending("look")

    assert await passed(stores, body) == Completed(())
    assert await stores.checkpointer.load("w") == {"look": None}
    await stores.durable.deliver("w", "late")
    assert await passed(stores, body) == Completed(())


async def test_an_empty_pending_read_past_a_cursor_records_that_cursor(stores: Stores):
    entry = await stores.durable.deliver("w", "a")

    async def body(run):
        return await run.pending("look", after=entry.key)

    assert await passed(stores, body) == Completed(())
    assert (await stores.checkpointer.load("w"))["look"] == entry.key
    await stores.durable.deliver("w", "late")
    assert await passed(stores, body) == Completed(())


@pytest.mark.parametrize("read", ["receive", "pending"])
@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_below_one_is_refused_and_nothing_recorded(stores: Stores, read, limit):
    await stores.durable.deliver("w", "a")

    async def body(run):
        await getattr(run, read)("mail", limit=limit)

    with pytest.raises(ValueError, match="limit"):
        await passed(stores, body)
    assert "mail" not in await stores.checkpointer.load("w")


async def test_a_recorded_inbox_read_that_no_read_wrote_is_a_type_error(stores: Stores):
    await stores.checkpointer.supply("w", "mail", 7)

    async def body(run):
        await run.receive("mail")

    with pytest.raises(TypeError, match="'mail'"):
        await passed(stores, body)


async def test_a_malformed_inbox_key_of_an_older_file_is_no_message():
    store = MemoryCheckpointer()
    holder = await claimed(store, "w")
    recorded = {"inbox:x": "spoof", inbox_key(1): "real", "inbox:1": "short"}
    run = passing(holder, store, recorded)
    assert values(await run.pending("mail")) == ["real"]
