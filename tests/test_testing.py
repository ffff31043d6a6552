"""The test kit: a clock that moves when told to, and a `Run` without a worker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from without_durability import (
    Clock,
    InputNeeded,
    MemoryCheckpointer,
    Run,
    claimed,
    now_utc,
    passing,
)

START = datetime(2030, 1, 1, tzinfo=UTC)


async def seven():
    return 7


def test_a_clock_stands_still_until_it_is_moved():
    clock = Clock(START)
    assert (clock.now(), clock.seconds()) == (START, START.timestamp())
    clock.advance(timedelta(hours=1))
    assert (clock.now(), clock.seconds()) == (
        START + timedelta(hours=1),
        START.timestamp() + 3600,
    )


def test_a_clock_can_be_set_back():
    clock = Clock(START)
    clock.advance(timedelta(hours=-2))
    assert clock.now() == START - timedelta(hours=2)


def test_a_clock_tells_utc_whatever_zone_it_started_in():
    clock = Clock(START.astimezone(timezone(timedelta(hours=5))))
    assert (clock.now(), clock.now().tzinfo) == (START, UTC)


def test_clocks_do_not_share_their_time():
    one, other = Clock(), Clock()
    one.advance(timedelta(hours=1))
    assert one.now() != other.now()


@pytest.mark.parametrize("recorded", [None, {}, {"other": 1}])
async def test_passing_builds_a_fresh_run_as_resume_does(recorded):
    store = MemoryCheckpointer()
    holder = await claimed(store, "w")
    run = passing(holder, store, recorded)
    assert isinstance(run, Run)
    assert (run.holder, run.checkpointer, run.recorded) == (holder, store, recorded or {})
    assert (run.now, run.claimed, run.reached) == (now_utc, set(), [])
    assert await run.step("k", seven, int) == 7
    assert await store.load("w") == {"k": 7}


async def test_passing_replays_what_it_is_told_was_recorded():
    store = MemoryCheckpointer()
    run = passing(await claimed(store, "w"), store, {"k": 1})
    assert await run.step("k", seven, int) == 1
    assert store.hashes == {}
    with pytest.raises(InputNeeded):
        await run.awaiting("approval", str)


async def test_a_run_made_by_passing_buys_time_from_its_store():
    clock = Clock()
    store = MemoryCheckpointer(clock=clock.seconds)
    holder = await claimed(store, "w", timedelta(minutes=1))
    run = passing(holder, store)
    await run.step("k", seven, int, within=timedelta(hours=1))
    assert store.claims["w"].held_until == clock.seconds() + 3600
