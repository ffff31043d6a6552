"""Clocks that are set back, and clocks that change for summer."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from test_fault_calls import (
    AT_ONCE,
    CALLS,
    HOUR,
    MINUTE,
    WRITES,
    Scene,
)
from test_fault_times import DAY, MILLISECOND

from gated import Watched, working
from stores import Stores, over_memory, over_sqlite
from without_durability import (
    Clock,
    Completed,
    Sleeping,
    SplitDurable,
    claimed,
    resume,
)
from without_durability_sqlite import Database

OUT = {
    "claim": "checkpointer.claim",
    **{name: f"checkpointer.{name}" for name in ("extend", "renew", "record", "transact")},
}


@pytest.mark.parametrize("back", [2 * HOUR, 400 * DAY], ids=str)
@pytest.mark.parametrize("sign", OUT)
async def test_fault_clock_set_back_blocks_no_claim_for_longer_than_its_lease(
    database: Database, clock: Clock, sign, back
):
    scene = await Scene.over(over_sqlite(database, clock))
    workflow = "free" if sign == "claim" else "w"
    assert await scene.call(OUT[sign], alive=MINUTE)
    clock.advance(-back)
    assert await scene.call("checkpointer.claim", workflow=workflow) is None, "it was taken away"
    clock.advance(MINUTE + timedelta(seconds=1))
    newer = await scene.call("checkpointer.claim", workflow=workflow)
    assert newer is not None, "it is blocked for hours"
    assert newer.token > scene.arguments["holder"].token or sign == "claim"


@pytest.mark.parametrize("back", [2 * HOUR, 400 * DAY], ids=str)
@pytest.mark.parametrize("out", ["taken", "extended", "handed back", "made ready", "arrived"])
async def test_fault_clock_set_back_blocks_no_delivery_for_longer_than_its_lease(
    database: Database, clock: Clock, out, back
):
    scene = await Scene.over(over_sqlite(database, clock))
    await scene.call("scheduler.cancel", workflow="ready")
    how = {
        "extended": lambda: scene.call("scheduler.extend", within=MINUTE),
        "handed back": lambda: scene.call("scheduler.wake_at", when=clock.now()),
        "made ready": lambda: scene.call("scheduler.make_ready"),
        "arrived": lambda: scene.call("durable.arrive"),
    }
    if out in how:
        await how[out]()
    clock.advance(-back)
    at_once = out not in ("taken", "extended")
    found = await scene.call("scheduler.next_ready", within=AT_ONCE)
    assert (found is not None) is at_once
    if not at_once:
        clock.advance(MINUTE + timedelta(seconds=1))
        assert await scene.call("scheduler.next_ready", within=AT_ONCE), "it is blocked for hours"


async def test_fault_clock_set_back_runs_no_history_backwards_whatever_writes(stores: Stores):
    scene = await Scene.over(stores)
    writing = [call for call in WRITES if {"value", "effect"} & set(CALLS[call])]
    assert len(writing) == 6
    for number, moved in enumerate((HOUR, -3 * HOUR, MINUTE, -DAY, 2 * HOUR)):
        scene.clock.advance(moved)
        for call in writing:
            await scene.call(call, key=f"{call} {number}")
    history = await stores.checkpointer.history("w")
    assert len(history) == 2 + 5 * 6
    moments = [written.at for written in history.values()]
    assert all(earlier <= later for earlier, later in pairwise(moments)), "it runs backwards"


def changes(zone: ZoneInfo) -> Iterator[datetime]:
    """The moments of 2030 at which the zone's clocks change, to the hour."""
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    for day in range(365):
        began, ended = moment + day * DAY, moment + (day + 1) * DAY
        if began.astimezone(zone).utcoffset() != ended.astimezone(zone).utcoffset():
            yield next(
                began + hour * HOUR
                for hour in range(1, 25)
                if (began + hour * HOUR).astimezone(zone).utcoffset()
                != began.astimezone(zone).utcoffset()
            )


async def nap(run: Any) -> str:
    await run.sleep("nap", DAY)
    return "awake"


async def test_fault_daylight_saving_leaves_a_day_24_hours_in_every_zone_there_is(clock: Clock):
    names = sorted(available_timezones())
    if not names:
        pytest.skip("a system without zones")
    changed = 0
    for name in names:
        zone = ZoneInfo(name)
        for change in changes(zone):
            began = change - 12 * HOUR
            store = over_memory(clock).checkpointer
            holder = await claimed(store, "w")
            for later, outcome in (
                (AT_ONCE, Sleeping("nap", began + DAY)),
                (DAY - MILLISECOND, Sleeping("nap", began + DAY)),
                (DAY, Completed("awake")),
            ):
                now = (began + later).astimezone(zone)
                assert await resume(holder, store, nap, now=lambda now=now: now) == outcome, name
            changed += 1
    assert changed > 100


@pytest.mark.parametrize("name", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
async def test_fault_daylight_saving_is_nothing_to_a_worker_in_any_zone(stores: Stores, name):
    if name not in available_timezones():
        pytest.skip("a system without zones")
    zone, clock = ZoneInfo(name), stores.clock
    clock.advance(next(changes(zone)) - 12 * HOUR - clock.now())
    began = clock.now()
    watched = Watched(stores.scheduler)
    await stores.scheduler.make_ready("w")
    durable = SplitDurable(stores.checkpointer, watched)

    async def there(run: Any) -> str:
        return await nap(run)

    options = {"now": lambda: clock.now().astimezone(zone), "tick": MILLISECOND}
    async with working(durable, there, **options):
        assert await watched.answers.get() == ("w", began + DAY)
        clock.advance(DAY)
        assert await watched.answers.get() == ("w", None)
