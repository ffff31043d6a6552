"""Moments and durations: what is refused, and what is as long as it says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any

import pytest
from test_fault_calls import (
    AT_ONCE,
    AWAY_FROM_THE_FILE,
    CALLS,
    HOUR,
    READS,
    RUN_CALLS,
    Scene,
    taking,
)

from gated import Overlay, Watched, completing, working
from stores import Stores, over_sqlite
from thread_gates import in_time
from without_durability import (
    Clock,
    MemoryCheckpointer,
    MemoryScheduler,
    Sleeping,
    SplitDurable,
    claimed,
    passes,
    ready,
    waking,
    work,
)
from without_durability.values import Ended
from without_durability_sqlite import Database, SqliteScheduler, connect, migrate

DAY = timedelta(days=1)
MILLISECOND = timedelta(milliseconds=1)
BARE = datetime(2030, 1, 1, 12)  # noqa: DTZ001


class NoZone(tzinfo):
    """A zone that cannot say how far from UTC it is: its moments are naive all the same."""

    def utcoffset(self, moment: datetime | None) -> None: ...

    def dst(self, moment: datetime | None) -> None: ...

    def tzname(self, moment: datetime | None) -> str:
        return "nowhere"


NAIVE = [BARE, BARE.replace(tzinfo=NoZone()), datetime.min, datetime.max]  # noqa: DTZ901


@pytest.mark.parametrize(("call", "parameter"), taking("when", "now", "visible_at", "ended"))
async def test_fault_naive_moment_is_a_value_error_in_every_call(stores: Stores, call, parameter):
    scene = await Scene.over(stores)

    def carrying(moment: Any) -> dict[str, Any]:
        return {parameter: Ended(moment) if parameter == "ended" else moment}

    told = "when" if parameter == "ended" else parameter
    for naive in NAIVE:
        async with scene.refusal(ValueError, told, "timezone-aware", repr(naive)):
            await scene.call(call, **carrying(naive))
    async with scene.refusal(TypeError, told, "datetime"):
        await scene.call(call, **carrying(1_900_000_000))


async def test_fault_naive_clock_is_a_value_error_and_nothing_is_recorded(stores: Stores):
    scene = await Scene.over(stores)
    naive: dict[str, Any] = {"now": lambda: BARE}
    async with scene.refusal(ValueError, "now", "timezone-aware"):
        await scene.passed(lambda run: run.sleep("k", HOUR), **naive)
    for worker in (work, passes):
        async with scene.refusal(ValueError, "now", "timezone-aware"):
            worker(stores.durable, completing, **naive)
    with pytest.raises(ValueError, match=r"start.*timezone-aware"):
        Clock(BARE)
    if scene.database is None:
        spoilt = Stores(SplitDurable(MemoryCheckpointer(**naive), stores.scheduler), scene.clock)
        writing = taking("value")
    else:
        queue = SqliteScheduler(scene.database, **naive)
        spoilt = Stores(type(stores.durable)(stores.checkpointer, queue), scene.clock)
        writing = [(call, "") for call in ("scheduler.make_ready", "durable.arrive")]
    for call, _ in writing:
        if call != "checkpointer.record":
            async with scene.refusal(ValueError, "now", "timezone-aware"):
                stores_before, scene.stores = scene.stores, spoilt
                try:
                    await scene.call(call)
                finally:
                    scene.stores = stores_before


MAY_BE_ZERO = {
    *(("scheduler.next_ready", "within"), ("durable.start_passes", "within")),
    ("scheduler.reclaim", "idle"),
}
NO_WAIT = {("durable.result", "within"): "done", ("durable.sweep", "older"): 1}
"""Where zero is as good as any: what is there at once, and how much is old enough."""

DURATIONS = taking("budget", "alive", "within", "idle", "older")


@pytest.mark.parametrize(("call", "parameter"), DURATIONS)
async def test_fault_no_duration_is_a_value_error_naming_it_in_every_call(
    stores: Stores, call, parameter
):
    scene = await Scene.over(stores)
    for none in (AT_ONCE, -timedelta.resolution, -HOUR, timedelta.min):
        if none == AT_ONCE and (call, parameter) in MAY_BE_ZERO:
            await scene.call("scheduler.cancel", workflow="ready")
            assert not await scene.call(call, **{parameter: none}), "it found what is not there"
        elif none == AT_ONCE and (call, parameter) in NO_WAIT:
            answer = await scene.call(call, **{parameter: none})
            assert answer == NO_WAIT[call, parameter]
        else:
            async with scene.refusal(ValueError, parameter, repr(none)):
                await scene.call(call, **{parameter: none})
    for other in (1, 60.0, None, "1 minute"):
        async with scene.refusal(TypeError, parameter, "timedelta"):
            await scene.call(call, **{parameter: other})


@pytest.mark.parametrize(("call", "parameter"), taking("within", of=RUN_CALLS))
async def test_fault_no_duration_buys_no_time_for_a_step_which_never_runs(
    stores: Stores, call, parameter
):
    scene = await Scene.over(stores)
    for none in (AT_ONCE, -HOUR):
        async with scene.refusal(ValueError, parameter, repr(none)):
            await scene.asked(call, **{parameter: none})


@pytest.mark.parametrize("none", [AT_ONCE, -HOUR], ids=str)
async def test_fault_no_duration_is_refused_by_whatever_is_made_with_one(database: Database, none):
    durable = SplitDurable(MemoryCheckpointer(), MemoryScheduler())

    def refused(name: str, make: Callable[..., Any], *given: Any) -> None:
        with pytest.raises(ValueError, match=name):
            make(*given, **{name: none})

    for name in ("lease", "poll"):
        refused(name, SqliteScheduler, database)
    refused("lease", MemoryScheduler)
    for name in ("tick", "within", "budget", "contended"):
        refused(name, work, durable, completing)
    for name in ("lease", "budget", "contended"):
        refused(name, passes, durable, completing)
    for name in ("within", "idle"):
        if none < AT_ONCE:
            with pytest.raises(ValueError, match=name):
                await anext(ready(durable.scheduler, **{name: none}))
    for name in ("budget", "alive"):
        with pytest.raises(ValueError, match=name):
            await claimed(durable.checkpointer, "w", **{name: none})
    with pytest.raises(ValueError, match="lease"):
        work(SplitDurable(durable.checkpointer, Overlay(durable.scheduler, lease=none)), completing)


@pytest.mark.parametrize("zone", [-23, 0, 23])
async def test_fault_beyond_datetime_a_sleep_is_an_overflow_error_and_nothing_is_recorded(
    stores: Stores, zone
):
    scene = await Scene.over(stores)
    now = scene.clock.now().astimezone(timezone(timedelta(hours=zone)))
    last = datetime.max.replace(tzinfo=UTC) - now
    for duration in (timedelta.max, last + MILLISECOND, last + timedelta.resolution):
        async with scene.refusal(OverflowError, "'k'", repr(duration)):
            await scene.passed(lambda run, of=duration: run.sleep("k", of), now=lambda: now)
    outcome = await scene.passed(lambda run: run.sleep("k", last), now=lambda: now)
    assert outcome == Sleeping("k", datetime.max.replace(tzinfo=UTC))


@pytest.mark.parametrize("call", sorted(CALLS.keys() - READS - AWAY_FROM_THE_FILE))
async def test_fault_beyond_datetime_a_clocks_reading_is_a_value_error_and_nothing_is_written(
    path: Path, clock: Clock, call
):
    readings: list[float] = []

    def seconds() -> float:
        return readings[0] if readings else clock.seconds()

    async with connect(path, clock=seconds) as database:
        await migrate(database)
        scene = await Scene.over(over_sqlite(database, clock))
        for reading in (float("nan"), float("inf"), -float("inf"), 253402300800.0, -1e15):
            async with scene.refusal(ValueError, "clock", repr(reading)):
                readings.append(reading)
                try:
                    await scene.call(call)
                finally:
                    readings.clear()


LONGEST = [(call, name) for call, name in DURATIONS if call != "scheduler.reclaim"]


@pytest.mark.parametrize(("call", "parameter"), LONGEST)
async def test_fault_beyond_datetime_the_longest_duration_is_no_short_one(
    stores: Stores, call, parameter
):
    """`timedelta.max` from now is no datetime: it is a very long time all the same."""
    scene = await Scene.over(stores)
    terms = {"budget": timedelta.max, "alive": timedelta.max} | {parameter: timedelta.max}
    granted = await scene.call(call, **terms)
    assert granted or call == "durable.sweep"
    scene.clock.advance(1000 * 365 * DAY)
    if call in ("checkpointer.claim", "checkpointer.extend"):
        workflow = "free" if call.endswith("claim") else "w"
        assert await scene.call("checkpointer.claim", workflow=workflow) is None
    if call == "scheduler.extend":
        assert await scene.call("scheduler.holds", delivery=granted)
    if call == "durable.sweep":
        assert granted == 0, "it took for old what was not"
        assert await scene.call(call)


async def test_fault_beyond_datetime_the_longest_look_again_does_not_end_a_worker(stores: Stores):
    scene = await Scene.over(stores)  # "w" is claimed, and "ready" is free
    await scene.call("scheduler.make_ready")
    watched = Watched(stores.scheduler)
    durable = SplitDurable(stores.checkpointer, watched)
    options = {"now": scene.clock.now, "contended": timedelta.max}
    async with working(durable, completing, **options) as worker:
        answers = dict([await watched.answers.get() for _ in range(2)])
        assert answers["ready"] is None
        assert answers["w"] > scene.clock.now() + 1000 * 365 * DAY
        assert not worker.done()


async def test_fault_naive_moment_is_a_value_error_of_a_timer_and_not_asked_for_again(
    stores: Stores,
):
    async def moments() -> AsyncIterator[datetime]:
        yield BARE

    scene = await Scene.over(stores)
    async with scene.refusal(ValueError, "timezone-aware"):
        await in_time(waking(stores.scheduler)(moments()))
