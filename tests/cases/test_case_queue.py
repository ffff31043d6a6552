"""K26, K29, K36, K37, K42: polling, clocks, namespaces, wakeups and durations at their edges."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from children import Ended
from gated import Watched, completing, passed, turns, working
from thread_gates import reading
from without_durability import (
    Completed,
    Contended,
    Milliseconds,
    Pass,
    Run,
    Sleeping,
    SplitDurable,
)
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
LOOKS = ("SELECT", "PRAGMA data_version", "--")
"""What a look runs: a comment tells of a pragma's own look."""


async def test_k26_an_idle_poll_reads_only(
    database: Database, scheduler: SqliteScheduler, clock: Clock
) -> None:
    await scheduler.schedule("sleeper", clock.now() + HOUR)
    await scheduler.make_ready("taken")
    assert await scheduler.next_ready(NOW) is not None
    statements: list[str] = []
    written: list[str] = []
    reader = await reading(database)
    reader.set_trace_callback(statements.append)
    database.connection.set_trace_callback(written.append)
    assert await scheduler.next_ready(2 * SOON) is None
    assert await scheduler.reclaim(NOW) is None
    assert await scheduler.wake_due(clock.now()) == ()
    assert statements, "nothing was looked at"
    assert [one for one in statements if not one.lstrip().startswith(LOOKS)] == []
    assert len(statements) < 10, "an idle worker looks more often than its poll"
    assert written == [], "it looked where others write"


async def test_k26_an_idle_worker_asks_for_no_lock_however_often_it_looks(
    database: Database, checkpointer: SqliteCheckpointer, clock: Clock
) -> None:
    scheduler = SqliteScheduler(database, poll=timedelta(milliseconds=1))
    await scheduler.schedule("sleeper", clock.now() + HOUR)
    statements: list[str] = []
    written: list[str] = []
    often = asyncio.Event()
    loop = asyncio.get_running_loop()

    def traced(statement: str) -> None:
        statements.append(statement)
        if len(statements) >= 50:
            loop.call_soon_threadsafe(often.set)

    durable = SqliteDurable(checkpointer, scheduler)
    reader = await reading(database)
    reader.set_trace_callback(traced)
    database.connection.set_trace_callback(written.append)
    async with working(durable, completing, now=clock.now, within=SOON / 10, tick=SOON / 50):
        await often.wait()
    assert [one for one in statements if not one.lstrip().startswith(LOOKS)] == []
    assert written == []


async def test_k26_a_read_and_a_look_wait_behind_no_write_that_waits_for_the_lock(
    checkpointer: SqliteCheckpointer, scheduler: SqliteScheduler, other: sqlite3.Connection
) -> None:
    holder = await checkpointer.claim("w", MIN, MIN)
    assert holder is not None
    other.execute("BEGIN IMMEDIATE")
    recording = asyncio.create_task(checkpointer.record(holder, "k", 1))
    began = time.monotonic()
    assert await checkpointer.load("w") == {}
    assert await scheduler.next_ready(SOON) is None
    assert time.monotonic() - began < 1, "a look of 0.1 s waited for the busy timeout"
    assert not recording.done()
    other.execute("ROLLBACK")
    assert (await recording).first
    assert await checkpointer.load("w") == {"k": 1}, "it was acknowledged before"


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


DIED_AHEAD = """
async def main():
    await opened(clock=lambda: float(arguments[0]))
    await d.arrive("w", "first", 1)
    assert await s.next_ready(MIN)
    p = await cp.claim("w", 5 * MIN, MIN)
    await cp.record(p, "second", 2)
    print(p.token, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@pytest.mark.parametrize("through", ["the calls", "a worker"])
async def test_k29_what_a_process_that_died_ahead_of_the_clock_held_is_free_after_a_lease(
    path: Path, child: Callable[..., Ended], clock: Clock, through: str
) -> None:
    ended = child(DIED_AHEAD, repr(clock.seconds() + 2 * HOUR.total_seconds()))
    assert abs(ended.code) == 9, ended.err
    async with connect(path, clock=clock.seconds) as database:
        store = SqliteCheckpointer(database)
        scheduler = SqliteScheduler(database, poll=timedelta(milliseconds=5))
        assert await store.claim("w", MIN, MIN) is None
        assert await scheduler.next_ready(NOW) is None
        await store.supply("w", "third", 3)
        clock.advance(MIN)
        if through == "the calls":
            holder = await store.claim("w", MIN, MIN)
            assert holder is not None, "a lease of a minute is not over after a minute"
            assert holder.token > int(ended.out)
            assert await scheduler.next_ready(NOW) is not None
            await store.append("w", 4)
        else:
            watched: Any = Watched(scheduler)
            async with working(SplitDurable(store, watched), recording, now=clock.now):
                assert await watched.answers.get() == ("w", None)
        times = [written.at for written in (await store.history("w")).values()]
        assert len(times) == 4
        assert times == sorted(times), "history ran backwards"


async def recording(run: Run[Any]) -> None:
    async def fourth() -> int:
        return 4

    await run.step("fourth", fourth, int)  # type: ignore[call-overload]


async def test_k29_a_delivery_extended_after_the_clock_was_set_back_is_out_no_longer(
    scheduler: SqliteScheduler, clock: Clock
) -> None:
    await scheduler.make_ready("w")
    delivery = await scheduler.next_ready(NOW)
    assert delivery is not None
    clock.advance(-2 * HOUR)
    extended = await scheduler.extend(delivery, MIN)
    assert await scheduler.holds(extended), "its taker lost it to the clock"
    assert await scheduler.next_ready(NOW) is None
    clock.advance(MIN)
    assert await scheduler.next_ready(NOW) is not None


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


async def test_k36_workers_of_two_namespaces_run_their_own_and_exclude_each_other(
    database: Database, checkpointer: SqliteCheckpointer, clock: Clock
) -> None:
    ran: list[tuple[str, str]] = []
    inside, leave = asyncio.Event(), asyncio.Event()
    durables: dict[str, Any] = {
        name: SplitDurable(
            checkpointer,
            Watched(SqliteScheduler(database, name, poll=timedelta(milliseconds=5))),
        )
        for name in ("billing", "email")
    }

    def serving(name: str) -> Any:
        async def body(run: Run[Any]) -> None:
            ran.append((name, run.workflow))
            if (name, run.workflow) == ("billing", "order-1"):
                inside.set()
                await leave.wait()

        return working(durables[name], body, now=clock.now)

    for name, durable in durables.items():
        await durable.scheduler.make_ready(name)
    async with serving("billing"):
        assert await durables["billing"].scheduler.answers.get() == ("billing", None)
        await durables["billing"].scheduler.make_ready("order-1")
        await inside.wait()
        await durables["email"].scheduler.make_ready("order-1")
        async with serving("email"):
            answers = durables["email"].scheduler.answers
            answered = dict([await answers.get() for _ in range(2)])
            assert answered["email"] is None
            assert answered["order-1"] is not None, "two passes over one id at once"
            leave.set()
            assert await durables["billing"].scheduler.answers.get() == ("order-1", None)
            clock.advance(MIN)
            assert await answers.get() == ("order-1", None)
    assert sorted(ran) == [(name, one) for name in durables for one in (name, "order-1")]


def test_k36_the_documentation_says_what_a_namespace_is_where_it_is_introduced() -> None:
    said = " ".join((SqliteScheduler.__doc__ or "").split())
    assert "a queue, not a tenant" in said
    assert "global to the file" in said


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


async def test_k38_messages_that_arrive_while_a_worker_runs_are_each_read_once(
    stores: Any,
) -> None:
    """Three between two reads, and three more as the body is about to return."""
    read: list[list[object]] = []
    watched: Any = Watched(stores.scheduler)
    coming = [["b", "c", "d"], ["e", "f", "g"]]

    async def more() -> None:
        await asyncio.gather(*(stores.durable.deliver("w", one) for one in coming.pop(0)))

    async def body(run: Run[Any]) -> None:
        first = await run.receive("first")
        await run.step("between", more, lambda stored: stored)
        second = await run.receive("second", after=first[-1].key)
        await run.step("at the end", more, lambda stored: stored)
        third = await run.receive("third", after=second[-1].key)
        read.append([entry.value for part in (first, second, third) for entry in part])

    await stores.durable.deliver("w", "a")
    durable = SplitDurable(stores.checkpointer, watched)
    async with working(durable, body, now=stores.clock.now, limit=1):
        while not read:
            assert await watched.answers.get() == ("w", None)
        await stores.durable.deliver("w", "late")
        while len(read) < 2:
            assert await watched.answers.get() == ("w", None)
    assert read == [list("abcdefg")] * 2, "a message was skipped or doubled"


@pytest.mark.parametrize(
    ("limit", "read"), [(1, [0, 1, 2, 3, 4]), (2, [0, 1, 2, 3, 4, "late"]), (None, [0, 1, 2, 3, 4])]
)
async def test_k38_a_pass_that_dies_between_two_reads_skips_and_doubles_no_message(
    stores: Any, limit: int | None, read: list[object]
) -> None:
    for message in range(5):
        await stores.durable.deliver("w", message)
    dying = chain([True, False, True, True, False, False, True], repeat(False))

    async def body(run: Run[Any]) -> list[object]:
        taken: list[Any] = []
        while len(taken) < 5:
            after = taken[-1].key if taken else None
            taken += await run.receive(f"read {len(taken)}", after=after, limit=limit)
            if next(dying):
                raise LookupError("the worker died")
        return [entry.value for entry in taken]

    outcome = None
    while outcome is None:
        with suppress(LookupError):
            outcome = await passed(stores, body)
        await stores.durable.deliver("w", "late")
    assert outcome == Completed(read)


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
    await turns()
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


async def test_k42_a_worker_of_the_longest_durations_works(stores: Any) -> None:
    watched: Any = Watched(stores.scheduler)

    async def body(run: Run[Any]) -> None:
        async def effect() -> None: ...

        await run.step("k", effect, lambda stored: stored, within=timedelta.max)

    await stores.scheduler.make_ready("w")
    longest = dict.fromkeys(("budget", "within", "tick"), timedelta.max)
    durable = SplitDurable(stores.checkpointer, watched)
    async with working(durable, body, now=stores.clock.now, **longest):
        assert await watched.answers.get() == ("w", None)
    assert await stores.checkpointer.load("w") == {"k": None}


async def test_k42_a_negative_look_is_refused(stores: Any) -> None:
    with pytest.raises(ValueError, match="within"):
        await stores.scheduler.next_ready(-SOON)
    with pytest.raises(ValueError, match="idle"):
        await stores.scheduler.reclaim(-SOON)


async def test_k42_the_longest_pause_after_a_lost_claim_does_not_end_the_worker(
    stores: Any,
) -> None:
    async def body(run: Any) -> None:
        raise Contended("somebody else's")

    watched: Any = Watched(stores.scheduler)
    durable = SplitDurable(stores.checkpointer, watched)
    async with working(durable, body, now=stores.clock.now, contended=timedelta.max) as task:
        await stores.scheduler.make_ready("w")
        assert await watched.answers.get() == ("w", datetime.max.replace(tzinfo=UTC))
        assert not task.done(), "it ended the worker"
