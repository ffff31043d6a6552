"""What a worker survives of its store: refusals, files that are gone, entries nobody can read."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gated import (
    HANG,
    Bench,
    Overlay,
    Watched,
    about,
    completing,
    forever,
    listening,
    turns,
    working,
)
from stores import Stores, over_sqlite
from systems import posix_files
from without_durability import (
    Checkpointer,
    Clock,
    MemoryScheduler,
    Milliseconds,
    Scheduler,
    SplitDurable,
    claimed,
    retrying,
    waking,
    work,
)
from without_durability_sqlite import Database, connect, migrate

pytestmark = pytest.mark.timeout(30)

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
MILLISECOND = timedelta(milliseconds=1)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a store that refused again after a millisecond."""
    monkeypatch.setattr(retrying, "STORE_FIRST", MILLISECOND)


# --- entries that cannot be read --------------------------------------------------------------


@pytest.mark.parametrize("value", ["CAST(x'ff' AS TEXT)", "x'ff'", "'{'", "1.5"])
async def test_a_record_that_cannot_be_read_sets_its_workflow_aside_and_others_run(
    database: Database, clock: Clock, value: str
):
    stores = over_sqlite(database, clock)
    watched = Watched(stores.scheduler)
    await database.run(
        lambda connection: connection.execute(
            "INSERT INTO workflow_checkpoint (workflow, step, value) VALUES "
            f"('bad', 'spoilt', {value})"
        )
    )
    for workflow in ("bad", "good"):
        await stores.scheduler.make_ready(workflow)
    durable = SplitDurable(stores.checkpointer, watched)
    async with listening() as heard, working(durable, completing, now=clock.now) as worker:
        answers = dict([await watched.answers.get() for _ in range(2)])
        if value == "1.5":  # SQLite's own column affinity makes it text that is JSON
            assert answers["bad"] is None
        else:
            assert about(answers["bad"] - clock.now(), SECOND)
            await heard.until("'bad'", "'spoilt'")
        assert answers["good"] is None
        assert not worker.done()


@pytest.mark.parametrize("row", ["CAST(x'ff' AS TEXT)", "x'ff'", "x'676f6f64'"])
async def test_a_queue_row_that_cannot_be_read_is_set_aside_and_others_run(
    database: Database, clock: Clock, row: str
):
    stores = over_sqlite(database, clock)
    watched = Watched(stores.scheduler)
    await database.run(
        lambda connection: connection.execute(
            "INSERT INTO workflow_queue (namespace, workflow, visible_at) VALUES "
            f"('workflow', {row}, 0)"
        )
    )
    await stores.scheduler.make_ready("good")
    durable = SplitDurable(stores.checkpointer, watched)
    async with working(durable, completing, now=clock.now) as worker:
        assert await watched.answers.get() == ("good", None)
        assert not worker.done()


# --- stores that refuse -----------------------------------------------------------------------


class Broken(Exception):
    """What the store of these tests raises and calls permanent."""


def failing(method: Any, errors: list[Exception]) -> Any:
    """`method`, once it has raised each of `errors`."""

    async def call(*arguments):
        if errors:
            raise errors.pop()
        return await method(*arguments)

    return call


def refusing(bench: Bench, name: str, errors: list[Exception]) -> SplitDurable[Any]:
    replaced = {"permanent": lambda error: isinstance(error, Broken)}
    if hasattr(bench.memory, name):
        spoilt = {name: failing(getattr(bench.memory, name), errors)}
        return SplitDurable(Overlay(bench.memory, **spoilt), Overlay(bench.watched, **replaced))
    spoilt = {name: failing(getattr(bench.watched, name), errors)}
    return SplitDurable(bench.memory, Overlay(bench.watched, **spoilt, **replaced))


CALLS = [
    "prepare",
    "reclaim",
    "next_ready",
    "wake_due",
    "claim",
    "holds",
    "release",
    "done",
    "wake_at",
]


async def napping(run):
    await run.sleep("nap", SECOND)


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("name", [*CALLS, "load", "record"])
async def test_a_transient_refusal_is_logged_and_waited_out(bench: Bench, name: str):
    errors: list[Exception] = [OSError("no room") for _ in range(3)]
    await bench.queue.make_ready("w")
    async with listening() as heard, bench.working(napping, refusing(bench, name, errors)):
        while (await bench.answers.get())[1] is not None:
            bench.clock.advance(10 * SECOND)
        assert errors == []
        await heard.until("no room", "attempt 1)")
        await heard.until("no room", "attempt 3)")


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("name", CALLS)
async def test_a_permanent_refusal_ends_the_worker_with_that_very_error(bench: Bench, name: str):
    error = Broken("file gone")
    await bench.queue.make_ready("w")
    await bench.queue.make_ready("other")

    async def body(run):
        if run.workflow == "other":
            await forever()
        if name == "wake_at":
            await napping(run)

    with pytest.raises(Broken) as caught:
        async with asyncio.timeout(HANG):
            await work(refusing(bench, name, [error]), body, now=bench.clock.now, tick=MILLISECOND)
    assert caught.value is error
    assert all(claim.alive_until < 0 for claim in bench.memory.claims.values()), "a claim was kept"


async def test_a_store_that_refuses_is_asked_after_growing_pauses(bench: Bench, monkeypatch):
    monkeypatch.setattr(retrying, "STORE_FIRST", 10 * MILLISECOND)
    asked: list[float] = []
    enough = asyncio.Event()

    async def next_ready(within):
        asked.append(asyncio.get_running_loop().time())
        if len(asked) == 5:
            enough.set()
        raise OSError("away")

    durable = SplitDurable(bench.memory, Overlay(bench.queue, next_ready=next_ready))
    async with bench.working(completing, durable):
        await enough.wait()
    pauses = [later - sooner for sooner, later in pairwise(asked)]
    assert all(pause >= 0.008 * 2**n for n, pause in enumerate(pauses)), pauses


@pytest.mark.usefixtures("_impatient")
async def test_a_failing_timer_does_not_end_the_worker(bench: Bench):
    ticks: asyncio.Queue[None] = asyncio.Queue()

    async def wake_due(now):
        ticks.put_nowait(None)
        raise OSError("away")

    durable = SplitDurable(bench.memory, Overlay(bench.watched, wake_due=wake_due))
    async with bench.working(completing, durable):
        for _ in range(3):
            await ticks.get()
        await bench.queue.make_ready("w")
        assert await bench.answers.get() == ("w", None)


@pytest.mark.usefixtures("_impatient")
async def test_the_timer_alone_asks_again_until_the_store_answers(clock: Clock):
    queue = MemoryScheduler()
    await queue.schedule("w", clock.now())
    errors: list[Exception] = [OSError("away"), OSError("away")]

    async def moments():
        yield clock.now()

    await waking(Overlay(queue, wake_due=failing(queue.wake_due, errors)))(moments())
    assert list(queue.queue) == ["w"]


async def test_k12_a_write_lock_held_too_long_is_waited_out(path: Path, monkeypatch):
    monkeypatch.setattr(retrying, "STORE_FIRST", 10 * MILLISECOND)
    ran = asyncio.Event()

    async def body(run):
        ran.set()

    async with connect(path, timeout=Milliseconds(20)) as database:
        await migrate(database)
        stores = over_sqlite(database, Clock())
        await stores.scheduler.make_ready("w")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        async with listening() as heard, working(stores.durable, body) as worker:
            await heard.until("refused", "locked", "attempt 2)")
            assert not worker.done()
            assert not ran.is_set()
            other.rollback()
            await ran.wait()
        other.close()


@posix_files
async def test_a_file_that_is_gone_ends_the_worker_with_an_error_of_sqlite(path: Path):
    async with connect(path) as database:
        await migrate(database)
        stores = over_sqlite(database, Clock())
        await stores.scheduler.make_ready("w")
        for one in path.parent.iterdir():
            one.unlink()
        with pytest.raises(sqlite3.Error):
            async with asyncio.timeout(HANG):
                await work(stores.durable, completing)


async def test_a_store_closed_under_a_worker_ends_it_with_that_error(path: Path):
    database = connect(path)
    await migrate(database)
    stores = over_sqlite(database, Clock())
    async with listening():
        worker = asyncio.create_task(work(stores.durable, completing))
        await turns()
        await database.aclose()
        with pytest.raises(sqlite3.ProgrammingError):
            async with asyncio.timeout(HANG):
                await worker


# --- two workers ------------------------------------------------------------------------------


async def test_two_workers_over_one_store_run_each_workflow_once(stores: Stores):
    ran: list[str] = []
    everything = asyncio.Event()

    async def body(run):
        ran.append(run.workflow)
        if len(ran) == 20:
            everything.set()

    for number in range(20):
        await stores.scheduler.make_ready(str(number))
    async with (
        working(stores.durable, body, now=stores.clock.now),
        working(stores.durable, body, now=stores.clock.now),
    ):
        await everything.wait()
        await turns()
    assert sorted(ran, key=int) == [str(number) for number in range(20)]


async def test_a_claim_of_a_dead_worker_is_taken_over_after_its_lease(stores: Stores):
    holder = await claimed(stores.checkpointer, "w")
    await stores.scheduler.make_ready("w")
    watched = Watched(stores.scheduler)
    durable = SplitDurable(stores.checkpointer, watched)
    async with working(durable, completing, now=stores.clock.now, tick=MILLISECOND):
        _, when = await watched.answers.get()
        assert when == stores.clock.now() + SECOND
        stores.clock.advance(MINUTE)
        assert await watched.answers.get() == ("w", None)
    assert not await stores.checkpointer.renew(holder, MINUTE)


def test_the_protocols_offer_neither_holds_nor_permanent():
    assert not {"holds", "permanent"} & ({*dir(Scheduler)} | {*dir(Checkpointer)})
