"""Which commits wait for the disk, and what is done once the disk has failed to sync."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from batches import (
    FailsAt,
    Halt,
    Interposed,
    connection_of,
    holder_of,
    interposed_stores,
    of,
    statements,
    together,
    writes,
)
from contract import cancelled
from spied import SpiedDurable, completing, doing
from steered import TAKEN, steer
from stores import Stores, over_sqlite
from thread_gates import in_time
from without_durability import LEASE, Clock, Delivery, Pass, Retry, Run
from without_durability.values import Ended
from without_durability_sqlite import Database, migrate

MINUTE, NOW = timedelta(minutes=1), timedelta(0)
NORMAL, FULL, EXTRA = 1, 2, 3
CHECKPOINT = "PRAGMA wal_checkpoint(TRUNCATE)"


@pytest.fixture
async def stores(path: Path, migrated: Path, clock: Clock) -> AsyncIterator[Stores]:
    async with interposed_stores(path, migrated, clock) as stores:
        yield stores


def levels(connection: Interposed) -> list[int]:
    """What `PRAGMA synchronous` says at each commit from now on."""
    found: list[int] = []

    def before(sql: str, _: object) -> None:
        if sql == "COMMIT":
            ((level,),) = connection.look("PRAGMA synchronous")
            found.append(level)

    connection.before = before
    return found


Call = Callable[[Stores, Pass, Delivery], Awaitable[object]]

DURABLE: dict[str, Call] = {
    "record": lambda s, holder, _: s.checkpointer.record(holder, "new", 1),
    "transact": lambda s, holder, _: s.checkpointer.transact(holder, "new", writes("effect")),
    "supply": lambda s, *_: s.checkpointer.supply("w", "new", 1),
    "append": lambda s, *_: s.checkpointer.append("w", 1),
    "discard": lambda s, *_: s.checkpointer.discard("w"),
    "arrive": lambda s, *_: s.durable.arrive("v", "new", 1),
    "deliver": lambda s, *_: s.durable.deliver("v", 1),
    "delete": lambda s, *_: s.durable.delete("w"),
    "make_ready": lambda s, *_: s.scheduler.make_ready("v"),
    "schedule": lambda s, *_: s.scheduler.schedule("v", s.clock.now()),
    "cancel": lambda s, *_: s.scheduler.cancel("w"),
    "retry": lambda s, *_: s.durable.retry("failed"),
    "cancel a workflow": lambda s, *_: s.durable.cancel("w", "enough"),
    "rewind": lambda s, *_: s.durable.rewind("w", "step"),
    "fork": lambda s, *_: s.durable.fork("w", "v"),
}
"""What is on the disk when it returns (C11, the row on power loss in faults.md)."""

ENDED = Ended(state="completed", attempts=0)

RELAXED: dict[str, Call] = {
    "claim": lambda s, *_: s.checkpointer.claim("v", LEASE, LEASE),
    "extend": lambda s, holder, _: s.checkpointer.extend(holder, 2 * LEASE, LEASE),
    "renew": lambda s, holder, _: s.checkpointer.renew(holder, LEASE / 2),
    "release": lambda s, holder, _: s.checkpointer.release(holder),
    "next_ready": lambda s, *_: s.scheduler.next_ready(NOW),
    "done": lambda s, _, delivery: s.scheduler.done(delivery),
    "wake_at": lambda s, _, delivery: s.scheduler.wake_at(delivery, s.clock.now()),
    "extend a delivery": lambda s, _, delivery: s.scheduler.extend(delivery, 2 * LEASE),
    "start_passes": lambda s, *_: s.durable.start_passes(5, NOW, LEASE),
    "end_pass": lambda s, holder, delivery: s.durable.end_pass(holder, delivery, ENDED),
    "start_pass": lambda s, *_: s.durable.start_pass(TAKEN, LEASE),
    "sweep": lambda s, *_: s.durable.sweep(older=NOW, limit=1),
}


async def held(stores: Stores) -> tuple[Pass, Delivery]:
    """A pass and a delivery of "w"; another workflow is ready."""
    await steer(stores.durable)
    await stores.durable.arrive("w", "kept", 1)
    delivery = await stores.scheduler.next_ready(NOW)
    await stores.scheduler.make_ready("ready")
    holder = await holder_of(stores, "w")
    await stores.checkpointer.record(holder, "step", 1)
    return holder, delivery


@pytest.mark.parametrize("name", DURABLE)
async def test_what_power_loss_must_not_take_waits_for_the_disk(stores: Stores, name: str):
    holder, delivery = await held(stores)
    found = levels(connection_of(stores))
    await DURABLE[name](stores, holder, delivery)
    assert found == [FULL]


@pytest.mark.parametrize("name", RELAXED)
async def test_what_power_loss_cannot_hurt_waits_for_no_disk(stores: Stores, name: str):
    holder, delivery = await held(stores)
    found = levels(connection_of(stores))
    await RELAXED[name](stores, holder, delivery)
    assert found == [NORMAL]


async def failing(run: Run[Any]) -> object:
    await completing(run)
    raise LookupError("on purpose")


async def blocked(run: Run[Any]) -> object:
    await completing(run)
    return await run.awaiting("answer", int)


@pytest.mark.parametrize("retry", [None, Retry(attempts=1)], ids=["retried", "parked"])
@pytest.mark.parametrize("body", [completing, blocked, failing])
async def test_a_whole_pass_waits_for_the_disk_for_what_it_records_alone(
    stores: Stores, body: Any, retry: Retry | None
):
    """The ledger is written in the commits that begin and end it anyway."""
    durable = SpiedDurable(stores.durable)
    found = levels(connection_of(stores))
    await stores.durable.arrive("w", "k", 1)
    async with doing(stores, body, durable, retry=retry):
        await durable.answers()
    assert durable.calls == ["prepare", "start_passes", "record", "end_pass"]
    assert found == [FULL, NORMAL, FULL, NORMAL], "arrival, start, step, end"


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("name", DURABLE)
async def test_one_durable_write_makes_the_commit_it_shares_wait_for_the_disk(
    stores: Stores, name: str, at: int
):
    holder, delivery = await held(stores)
    calls = [stores.checkpointer.claim(other, LEASE, LEASE) for other in ("x", "y")]
    calls.insert(at, DURABLE[name](stores, holder, delivery))
    found = levels(connection_of(stores))
    await together(of(stores), *calls)
    assert found == [FULL]


async def test_a_batch_of_writes_that_power_loss_cannot_hurt_waits_for_no_disk(stores: Stores):
    found = levels(connection_of(stores))
    await together(of(stores), *(stores.checkpointer.claim(str(n), LEASE, LEASE) for n in range(5)))
    assert found == [NORMAL]


async def test_a_durable_write_waits_for_the_disk_although_the_batch_failed_and_runs_again(
    stores: Stores,
):
    """One by one, each as durable as it needs to be."""
    connection, found, failed = connection_of(stores), [], []

    def before(sql: str, _: object) -> None:
        if sql == "COMMIT":
            ((level,),) = connection.look("PRAGMA synchronous")
            found.append(level)
            if not failed:
                failed.append(True)
                raise sqlite3.OperationalError("once")

    connection.before = before
    await together(
        of(stores),
        stores.checkpointer.claim("v", LEASE, LEASE),
        stores.checkpointer.supply("w", "a", 1),
        stores.checkpointer.claim("x", LEASE, LEASE),
    )
    assert found == [FULL, NORMAL, FULL, NORMAL]


async def test_what_is_given_back_leaves_the_next_write_as_durable_as_ever(stores: Stores):
    halt = Halt(connection_of(stores), "COMMIT")
    claiming = asyncio.create_task(stores.checkpointer.claim("v", LEASE, LEASE))
    await halt.there()
    await cancelled(claiming)
    found = levels(connection_of(stores))
    halt.opened.set()
    await stores.checkpointer.supply("w", "a", 1)
    assert found == [NORMAL, FULL]


def level_in(connection: sqlite3.Connection) -> int:
    ((level,),) = connection.execute("PRAGMA synchronous").fetchall()
    return int(level)


async def test_work_and_the_guards_holder_always_find_full(stores: Stores):
    await holder_of(stores, "w")
    assert connection_of(stores).look("PRAGMA synchronous") == [(NORMAL,)], "nothing to restore"
    assert await of(stores).run(level_in) == FULL
    await holder_of(stores, "v")
    async with of(stores).guard:
        assert level_in(connection_of(stores)) == FULL


async def test_work_that_waits_behind_a_batch_finds_full(stores: Stores):
    _, level, _ = await together(
        of(stores),
        stores.checkpointer.claim("v", LEASE, LEASE),
        of(stores).run(level_in),
        stores.checkpointer.claim("w", LEASE, LEASE),
    )
    assert level == FULL


@asynccontextmanager
async def over(path: Path, *setup: str, guard: asyncio.Lock | None = None) -> AsyncIterator[Stores]:
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, factory=Interposed
    )
    for statement in setup:
        connection.execute(statement).fetchall()
    clock = Clock()
    async with Database(connection, *[guard] if guard else [], clock=clock.seconds) as database:
        await migrate(database)
        yield over_sqlite(database, clock)


@pytest.mark.parametrize(
    ("setup", "durable", "relaxed"),
    [
        (["PRAGMA journal_mode = WAL", "PRAGMA synchronous = EXTRA"], EXTRA, NORMAL),
        (["PRAGMA journal_mode = WAL"], FULL, NORMAL),
        (["PRAGMA synchronous = EXTRA"], EXTRA, EXTRA),
        ([], FULL, FULL),
    ],
    ids=["extra", "full", "extra, no log", "full, no log"],
)
async def test_a_connection_keeps_its_own_level_for_durable_commits(
    path: Path, setup: list[str], durable: int, relaxed: int
):
    """And a rollback journal that is not synced could leave half a transaction in the file."""
    async with over(path, *setup) as stores:
        found = levels(connection_of(stores))
        await stores.checkpointer.supply("w", "a", 1)
        await stores.checkpointer.claim("w", LEASE, LEASE)
        await stores.checkpointer.supply("w", "b", 1)
        assert found == [durable, relaxed, durable]
        assert await of(stores).run(level_in) == durable


async def test_a_lock_of_the_callers_own_finds_full_whenever_it_is_free(path: Path):
    """Nothing tells the database that its holder uses the connection next."""
    lock = asyncio.Lock()
    async with over(path, "PRAGMA journal_mode = WAL", guard=lock) as stores:
        await stores.checkpointer.claim("w", LEASE, LEASE)
        async with lock:
            assert level_in(connection_of(stores)) == FULL


# --- the disk failed to sync --------------------------------------------------------------------


def checkpoints_and_commits(ran: list[str]) -> list[str]:
    return [sql for sql in ran if sql in (CHECKPOINT, "COMMIT")]


async def test_after_a_failed_sync_the_log_is_started_afresh_before_anything_is_acknowledged(
    stores: Stores,
):
    FailsAt(connection_of(stores), "COMMIT")
    with pytest.raises(sqlite3.OperationalError, match="I/O"):
        await stores.checkpointer.supply("w", "a", 1)
    with statements(connection_of(stores)) as ran:
        await stores.checkpointer.supply("w", "b", 1)
        await stores.checkpointer.supply("w", "c", 1)
    assert checkpoints_and_commits(ran) == [CHECKPOINT, "COMMIT", "COMMIT"]
    assert await stores.checkpointer.load("w") == {"b": 1, "c": 1}


async def test_a_batch_whose_sync_failed_runs_again_on_a_log_that_is_started_afresh(
    stores: Stores,
):
    ran: list[str] = []
    fails = FailsAt(connection_of(stores), "COMMIT")

    def before(sql: str, bound: object) -> None:
        ran.append(sql)
        fails._before(sql, bound)

    connection_of(stores).before = before
    values = await together(
        of(stores), stores.checkpointer.supply("w", "a", 1), stores.checkpointer.supply("w", "b", 2)
    )
    assert values == [1, 2]
    assert checkpoints_and_commits(ran) == ["COMMIT", CHECKPOINT, "COMMIT", "COMMIT"]


async def test_while_the_log_cannot_be_started_afresh_nothing_is_acknowledged(
    stores: Stores, other: sqlite3.Connection
):
    """Somebody reads it, for longer than a write waits."""
    connection_of(stores).look("PRAGMA busy_timeout = 1")
    await stores.checkpointer.supply("w", "before", 1)
    FailsAt(connection_of(stores), "COMMIT")
    with pytest.raises(sqlite3.OperationalError, match="I/O"):
        await stores.checkpointer.supply("w", "a", 1)
    connection_of(stores).before = None
    other.execute("BEGIN")
    other.execute("SELECT * FROM workflow_checkpoint").fetchall()
    errors = await together(
        of(stores), stores.checkpointer.supply("w", "b", 1), stores.checkpointer.supply("w", "c", 1)
    )
    assert [error.sqlite_errorcode for error in errors] == [sqlite3.SQLITE_BUSY] * 2
    assert errors[0] is not errors[1]
    assert await stores.checkpointer.load("w") == {"before": 1}
    other.execute("COMMIT")
    assert await in_time(stores.checkpointer.supply("w", "d", 1)) == 1


@pytest.mark.parametrize("text", ["BEGIN IMMEDIATE", "SELECT 1 FROM workflow_claim", "COMMIT"])
async def test_an_error_that_is_none_of_the_disks_leaves_the_log_alone(stores: Stores, text: str):
    holder = await holder_of(stores, "w")
    FailsAt(connection_of(stores), text, error=lambda: sqlite3.OperationalError("something else"))
    with pytest.raises(sqlite3.OperationalError, match="something else"):
        await stores.checkpointer.transact(holder, "a", writes("effect"))
    with statements(connection_of(stores)) as ran:
        await stores.checkpointer.supply("w", "b", 1)
    assert CHECKPOINT not in ran


async def test_an_effects_own_error_leaves_the_log_alone(stores: Stores):
    holder = await holder_of(stores, "w")

    def fails(_: Any) -> object:
        raise LookupError

    with pytest.raises(LookupError):
        await stores.checkpointer.transact(holder, "a", fails)
    with statements(connection_of(stores)) as ran:
        await stores.checkpointer.supply("w", "b", 1)
    assert CHECKPOINT not in ran
