"""K9, K10, K12 and K47 through a worker: what its database refuses, for a while or for good."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gated import Overlay, Watched, about, completing, listening, working
from older_files import PUBLISHED
from stores import Stores, over_sqlite
from without_durability import Clock, Milliseconds, Run, SplitDurable, retrying, work
from without_durability_sqlite import Database, connect, migrate

SECOND = timedelta(seconds=1)
MIN = timedelta(minutes=1)
NOW = timedelta(0)
BIG = "x" * 100_000


def as_is(value: object) -> object:
    return value


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a store that refused again after a millisecond."""
    monkeypatch.setattr(retrying, "STORE_FIRST", timedelta(milliseconds=1))


@pytest.fixture
async def impatient(path: Path, clock: Clock, other: sqlite3.Connection) -> AsyncIterator[Stores]:
    """Stores over a new file that wait 10 ms for another process's lock."""
    async with connect(path, timeout=Milliseconds(10), clock=clock.seconds) as database:
        yield over_sqlite(database, clock)


class Locking:
    """Lets another process take the write lock as soon as one call begins."""

    def __init__(self, other: sqlite3.Connection) -> None:
        self._other = other
        self._begun = False

    def before(self, method: Any) -> Any:
        async def call(*arguments: Any) -> Any:
            if not self._begun:
                self._begun = True
                self._other.execute("BEGIN IMMEDIATE")
            return await method(*arguments)

        return call


def with_call(durable: Any, name: str, change: Callable[[Any], Any]) -> SplitDurable[Any]:
    """The stores with one of their calls replaced, and their answers watched."""
    records, queue = durable.checkpointer, Watched(durable.scheduler)
    if hasattr(records, name) and not hasattr(queue, name):
        return SplitDurable(Overlay(records, **{name: change(getattr(records, name))}), queue)
    return SplitDurable(records, Overlay(queue, **{name: change(getattr(queue, name))}))


CALLS = [
    "prepare",
    "next_ready",
    "claim",
    "load",
    "transact",
    "record",
    "holds",
    "release",
    "wake_at",
    "done",
]


@pytest.mark.parametrize("name", CALLS)
async def test_k12_a_lock_taken_by_others_at_any_call_is_waited_out(
    name: str, impatient: Stores, other: sqlite3.Connection
) -> None:
    clock, effects = impatient.clock, []

    async def told() -> str:
        return "told"

    async def body(run: Run[Any]) -> None:
        await run.transact("paid", lambda _: effects.append("paid"), as_is)
        await run.step("told", told, as_is)
        await run.sleep("nap", SECOND if name != "done" else NOW)

    if name != "prepare":
        await impatient.scheduler.prepare()
        await impatient.scheduler.make_ready("w")
    durable: Any = with_call(impatient.durable, name, Locking(other).before)
    async with listening() as heard, working(durable, body, now=clock.now) as worker:
        await heard.until("locked")
        assert not worker.done(), "an outage ended the worker"
        other.execute("ROLLBACK")
        if name == "prepare":
            await impatient.scheduler.prepare()
            await impatient.scheduler.make_ready("w")
        while (await durable.scheduler.answers.get())[1] is not None:
            clock.advance(MIN)
        assert not worker.done()
    assert list(await impatient.checkpointer.load("w")) == ["paid", "told", "nap"]
    assert effects == ["paid"], "what was rolled back or recorded ran again"
    assert await impatient.scheduler.next_ready(NOW) is None, "it was answered for and is back"
    assert await impatient.checkpointer.claim("w", MIN, MIN), "a claim was kept"


@pytest.mark.parametrize("name", ["renew", "extend"])
async def test_k12_a_lock_taken_by_others_during_a_renewal_costs_no_claim(
    name: str, impatient: Stores, other: sqlite3.Connection
) -> None:
    released = asyncio.Event()

    async def body(run: Run[Any]) -> None:
        await run.step("slow", released.wait, as_is)

    await impatient.scheduler.prepare()
    await impatient.scheduler.make_ready("w")
    scheduler = replace(impatient.scheduler, lease=timedelta(milliseconds=90))
    stores = SplitDurable(impatient.checkpointer, scheduler)
    durable: Any = with_call(stores, name, Locking(other).before)
    async with listening() as heard, working(durable, body, now=impatient.clock.now):
        await heard.until("'w'", "could not be renewed", "locked")
        other.execute("ROLLBACK")
        released.set()
        assert await durable.scheduler.answers.get() == ("w", None)
    assert await impatient.checkpointer.load("w") == {"slow": True}


async def test_k12_what_is_made_ready_after_an_outage_of_an_idle_worker_runs(
    impatient: Stores, other: sqlite3.Connection
) -> None:
    await impatient.scheduler.prepare()
    durable: Any = SplitDurable(impatient.checkpointer, Watched(impatient.scheduler))
    other.execute("BEGIN IMMEDIATE")
    async with working(durable, completing, now=impatient.clock.now) as worker:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await impatient.scheduler.make_ready("w")
        other.execute("ROLLBACK")
        assert not worker.done()
        await impatient.scheduler.make_ready("w")
        assert await durable.scheduler.answers.get() == ("w", None)


def limit(extra: int) -> Callable[[sqlite3.Connection], None]:
    """Work that leaves the file room for so many more pages."""

    def work(connection: sqlite3.Connection) -> None:
        ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
        connection.execute(f"PRAGMA max_page_count = {pages + extra}").fetchall()

    return work


@pytest.mark.parametrize("through", ["step", "transact"])
async def test_k47_a_full_disk_fails_the_pass_that_needs_room_and_is_waited_out(
    through: str, database: Database, clock: Clock, other: sqlite3.Connection
) -> None:
    stores = over_sqlite(database, clock)
    durable: Any = SplitDurable(stores.checkpointer, Watched(stores.scheduler))
    other.execute("CREATE TABLE app (id INTEGER)")

    async def grown() -> str:
        return BIG

    def paid(cursor: sqlite3.Cursor) -> str:
        cursor.execute("INSERT INTO app VALUES (1)")
        return BIG

    async def body(run: Run[Any]) -> None:
        if run.workflow == "big":
            await (
                run.step("k", grown, as_is) if through == "step" else run.transact("k", paid, as_is)
            )

    await stores.scheduler.make_ready("big")
    await database.run(limit(3))
    async with listening() as heard, working(durable, body, now=clock.now) as worker:
        for attempt in (1, 2):
            workflow, when = await durable.scheduler.answers.get()
            assert workflow == "big"
            assert about(when - clock.now(), attempt * SECOND)
            message = await heard.until("'big'", f"attempt {attempt})")
            assert "full" in message, "another error hides the full disk"
            await stores.scheduler.make_ready("small")
            assert await durable.scheduler.answers.get() == ("small", None)
            clock.advance(3 * SECOND)
        assert await stores.checkpointer.load("big") == {}
        assert other.execute("SELECT * FROM app").fetchall() == []
        await database.run(limit(10_000))
        while (await durable.scheduler.answers.get())[1] is not None:
            clock.advance(MIN)
        assert not worker.done()
    assert await stores.checkpointer.load("big") == {"k": BIG}
    assert len(other.execute("SELECT * FROM app").fetchall()) == (through == "transact")


async def test_k47_a_disk_too_full_for_a_claim_is_waited_out(
    database: Database, clock: Clock
) -> None:
    stores = over_sqlite(database, clock)
    durable: Any = SplitDurable(stores.checkpointer, Watched(stores.scheduler))
    late = "9" * 8
    await stores.scheduler.make_ready(late)
    await database.run(limit(0))
    with suppress(sqlite3.OperationalError):
        for number in range(1000):
            await stores.checkpointer.claim(f"{number:08}", MIN, MIN)
    async with listening() as heard, working(durable, completing, now=clock.now) as worker:
        workflow, when = await durable.scheduler.answers.get()
        assert workflow == late
        assert about(when - clock.now(), SECOND)
        await heard.until(late, "full", "attempt 1)")
        assert not worker.done(), "a full disk ended the worker"
        await database.run(limit(10_000))
        clock.advance(2 * SECOND)
        assert await durable.scheduler.answers.get() == (late, None)


NEWER = (
    PUBLISHED
    + """
CREATE TABLE workflow_schema (version INTEGER PRIMARY KEY, clock_ahead REAL);
INSERT INTO workflow_schema VALUES (99, 0);
"""
)
FOREIGN = "CREATE TABLE workflow_queue (id INTEGER PRIMARY KEY, job TEXT NOT NULL);"


@pytest.mark.parametrize(
    ("made", "error"), [(NEWER, "version 99.*version 2"), (FOREIGN, "workflow_queue")]
)
async def test_k9_a_worker_over_a_file_it_cannot_serve_ends_at_once_naming_it(
    made: str, error: str, path: Path, other: sqlite3.Connection, clock: Clock
) -> None:
    other.executescript(made)
    async with connect(path, clock=clock.seconds) as database, asyncio.timeout(8):
        with pytest.raises(sqlite3.DatabaseError, match=error) as refused:
            await work(over_sqlite(database, clock).durable, completing)
    assert str(path) in str(refused.value)


SQLS_CLOCK = ("unixepoch", "julianday", "strftime", "datetime", "date", "time")


async def test_k10_nothing_relies_on_a_clock_of_sqlites_that_answers_null(
    path: Path, clock: Clock, other: sqlite3.Connection
) -> None:
    async with connect(path, clock=clock.seconds) as database:
        for function in SQLS_CLOCK:
            database.connection.create_function(function, -1, lambda *_: None)
        asked = await database.run(
            lambda c: c.execute("SELECT unixepoch('now', 'subsec'), julianday('now')").fetchone()
        )
        assert asked == (None, None)
        stores = over_sqlite(database, clock)
        await migrate(database)
        records, queue, durable = stores.checkpointer, stores.scheduler, stores.durable
        await queue.make_ready("w")
        delivery = await queue.next_ready(SECOND)
        assert delivery is not None
        assert delivery.workflow == "w"
        holder = await records.claim("w", MIN, MIN)
        assert holder is not None
        assert await records.claim("w", MIN, MIN) is None
        assert await records.renew(holder, MIN)
        assert await records.extend(holder, MIN, MIN)
        await records.record(holder, "recorded", 1)
        await records.transact(holder, "transacted", lambda _: 1)
        await records.supply("w", "supplied", 1)
        await records.append("w", 1)
        await durable.arrive("w", "arrived", 1)
        await durable.deliver("w", 1)
        history = (await records.history("w")).values()
        assert [written.at for written in history] == [clock.now()] * 6
        await records.release(holder)
        await queue.schedule("w", clock.now() + MIN)
        assert await queue.next_ready(NOW) is None
        await durable.delete("w")
        watched: Any = SplitDurable(records, Watched(queue))

        async def body(run: Run[Any]) -> None:
            await run.sleep("nap", SECOND)

        await queue.make_ready("v")
        async with working(watched, body, now=clock.now):
            assert await watched.scheduler.answers.get() == ("v", clock.now() + SECOND)
            clock.advance(SECOND)
            assert await watched.scheduler.answers.get() == ("v", None)
    moments = "typeof(held_until), typeof(alive_until), typeof(alive_for)"
    assert set(other.execute(f"SELECT {moments} FROM workflow_claim")) == {("real",) * 3}
