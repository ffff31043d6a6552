"""K41: a time without zone is refused instead of being read in another zone than meant."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from without_durability import Completed, Delivery, MemoryCheckpointer, Run, Sleeping, resume, work
from without_durability.testing import Clock
from without_durability_sqlite import Database, SqliteScheduler

MIN = timedelta(minutes=1)
DAY = timedelta(days=1)
NAIVE = datetime(2030, 1, 1, 12)  # noqa: DTZ001
SOMEWHERE = timezone(timedelta(hours=-11))


class NoZone(tzinfo):
    """A zone that cannot say how far it is from UTC: its moments are naive all the same."""

    def utcoffset(self, moment: datetime | None) -> None:
        return None

    def dst(self, moment: datetime | None) -> None:
        return None

    def tzname(self, moment: datetime | None) -> str:
        return "nowhere"


class Changing(tzinfo):
    """A zone whose clocks go forward an hour on 2030-03-31 at 01:00 UTC."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        assert moment is not None
        summer = moment.replace(tzinfo=UTC) >= datetime(2030, 3, 31, 3, tzinfo=UTC)
        return timedelta(hours=2 if summer else 1)

    def dst(self, moment: datetime | None) -> timedelta:
        return self.utcoffset(moment) - timedelta(hours=1)

    def tzname(self, moment: datetime | None) -> str:
        return "somewhere"


@pytest.fixture(params=["UTC", "America/New_York", "XYZ-9"])
def local_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not hasattr(time, "tzset"):
        pytest.skip("a system whose zone no process can change for itself")
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


CALLS: dict[str, Callable[[Any, Delivery, datetime], Awaitable[object]]] = {
    "schedule": lambda scheduler, _, when: scheduler.schedule("w", when),
    "wake_at": lambda scheduler, delivery, when: scheduler.wake_at(delivery, when),
    "wake_due": lambda scheduler, _, when: scheduler.wake_due(when),
}


@pytest.mark.usefixtures("local_zone")
@pytest.mark.parametrize("naive", [NAIVE, NAIVE.replace(tzinfo=NoZone())], ids=["bare", "no zone"])
@pytest.mark.parametrize("call", CALLS)
async def test_k41_a_naive_moment_is_refused_at_the_call(
    stores: Any, call: str, naive: datetime
) -> None:
    await stores.scheduler.make_ready("w")
    delivery = await stores.scheduler.next_ready(timedelta(0))
    with pytest.raises(ValueError, match="aware"):
        await CALLS[call](stores.scheduler, delivery, naive)
    assert await stores.scheduler.holds(delivery), "a refused moment moved the wakeup"


@pytest.mark.usefixtures("local_zone")
@pytest.mark.parametrize("zone", [UTC, SOMEWHERE])
async def test_k41_an_aware_moment_is_the_same_in_every_zone(stores: Any, zone: tzinfo) -> None:
    due = (stores.clock.now() + 12 * 60 * MIN).astimezone(zone)
    await stores.scheduler.schedule("w", due)
    for moved, found in ((12 * 60 * MIN - MIN, False), (MIN, True)):
        stores.clock.advance(moved)
        await stores.scheduler.wake_due(stores.clock.now())
        delivery = await stores.scheduler.next_ready(timedelta(0))
        assert (delivery is not None) is found


async def nap(run: Run[Any]) -> str:
    await run.sleep("nap", DAY)
    return "awake"


@pytest.mark.parametrize("recorded", [{}, {"nap": "2020-01-01T00:00:00+00:00"}])
async def test_k41_a_pass_under_a_naive_clock_is_refused_whatever_is_recorded(
    stores: Any, recorded: dict[str, str]
) -> None:
    holder = await stores.checkpointer.claim("w", MIN, MIN)
    for key, value in recorded.items():
        await stores.checkpointer.supply("w", key, value)
    with pytest.raises(ValueError, match="timezone-aware"):
        await resume(holder, stores.checkpointer, nap, now=lambda: NAIVE)
    assert await stores.checkpointer.load("w") == recorded


@pytest.mark.usefixtures("local_zone")
async def test_k41_a_deadline_is_recorded_alike_in_every_zone(stores: Any) -> None:
    holder = await stores.checkpointer.claim("w", MIN, MIN)
    with pytest.raises(ValueError, match="aware"):
        await resume(holder, stores.checkpointer, nap, now=lambda: NAIVE)
    assert await stores.checkpointer.load("w") == {}
    outcome = await resume(holder, stores.checkpointer, nap, now=stores.clock.now)
    assert outcome == Sleeping("nap", stores.clock.now() + DAY)


@pytest.mark.parametrize("zone", [UTC, SOMEWHERE, Changing()], ids=["utc", "west", "changing"])
async def test_k41_a_day_is_24_hours_whatever_the_clocks_zone(stores: Any, zone: tzinfo) -> None:
    began = datetime(2030, 3, 30, 12, tzinfo=UTC)
    holder = await stores.checkpointer.claim("w", MIN, MIN)

    async def at(moment: datetime) -> object:
        now = moment.astimezone(zone)
        return await resume(holder, stores.checkpointer, nap, now=lambda: now)

    assert await at(began) == Sleeping("nap", began + DAY)
    assert await at(began + DAY - MIN) == Sleeping("nap", began + DAY)
    assert await at(began + DAY) == Completed("awake")


@pytest.mark.parametrize("recorded", ["2030-01-01T12:00:00", "soon", 1893499200, None])
async def test_k41_a_deadline_nobody_could_have_recorded_is_refused(
    stores: Any, recorded: object
) -> None:
    await stores.checkpointer.supply("w", "nap", recorded)
    holder = await stores.checkpointer.claim("w", MIN, MIN)
    with pytest.raises(TypeError, match="nap"):
        await resume(holder, stores.checkpointer, nap)


async def test_k41_a_worker_under_a_naive_clock_does_not_start(stores: Any) -> None:
    with pytest.raises(ValueError, match="aware"):
        work(stores.durable, nap, now=lambda: NAIVE)


async def test_k41_a_scheduler_under_a_naive_clock_makes_nothing_ready(database: Database) -> None:
    naive, aware = SqliteScheduler(database, now=lambda: NAIVE), SqliteScheduler(database)
    with pytest.raises(ValueError, match="aware"):
        await naive.make_ready("w")
    assert await aware.next_ready(timedelta(0)) is None


async def test_k41_a_memory_store_under_a_naive_clock_records_nothing() -> None:
    store = MemoryCheckpointer(now=lambda: NAIVE)
    with pytest.raises(ValueError, match="aware"):
        await store.supply("w", "k", 1)
    assert await store.load("w") == {}


def test_k41_the_movable_clock_starts_at_an_aware_moment() -> None:
    with pytest.raises(ValueError, match="aware"):
        Clock(NAIVE)


@pytest.mark.usefixtures("local_zone")
async def test_k41_history_is_told_in_utc(stores: Any) -> None:
    await stores.checkpointer.supply("w", "k", 1)
    at = (await stores.checkpointer.history("w"))["k"].at
    assert at.utcoffset() == timedelta(0)
    assert abs(at - stores.clock.now()) < timedelta(milliseconds=1)
