"""What a user's type checker is promised: `mypy --strict` reads this file, and pytest runs it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import assert_never, assert_type

import pytest

from without_durability import (
    JSON,
    Blocked,
    CheckpointCodec,
    Checkpointer,
    Completed,
    Delivery,
    Durable,
    Ended,
    Entry,
    Event,
    Failure,
    Fenced,
    JsonCodec,
    Ledger,
    MemoryCheckpointer,
    MemoryDurable,
    MemoryEffect,
    MemoryScheduler,
    Milliseconds,
    Observer,
    Outcome,
    Page,
    Parse,
    Pass,
    PassDurable,
    PassesDurable,
    Recorded,
    Retry,
    Run,
    Scheduler,
    Sleeping,
    SplitDurable,
    Started,
    State,
    Status,
    Written,
    claimed,
    extending,
    passes,
    passing,
    ready,
    resume,
    waking,
    work,
)
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteEffect,
    SqliteScheduler,
    connect,
    migrate,
)

# --- conformance: each function type-checks only if the store has every method of the protocol ---


def memory_checkpointer_conforms(store: MemoryCheckpointer) -> Checkpointer[MemoryEffect]:
    return store


def sqlite_checkpointer_conforms(store: SqliteCheckpointer) -> Checkpointer[SqliteEffect]:
    return store


def a_bare_checkpointer_accepts_every_store(
    memory: MemoryCheckpointer, sqlite: SqliteCheckpointer
) -> tuple[Checkpointer, Checkpointer]:
    return memory, sqlite


def schedulers_conform(
    memory: MemoryScheduler, sqlite: SqliteScheduler
) -> tuple[Scheduler, Scheduler]:
    return memory, sqlite


def sqlite_durable_conforms(durable: SqliteDurable) -> Durable[SqliteEffect]:
    return durable


def a_bare_durable_accepts_every_durable(
    sqlite: SqliteDurable, split: SplitDurable[MemoryEffect]
) -> tuple[Durable, Durable]:
    return sqlite, split


def ledgers_conform(
    sqlite: SqliteDurable, memory: MemoryDurable
) -> tuple[Ledger[SqliteEffect], Ledger[MemoryEffect]]:
    return sqlite, memory


def a_bare_ledger_accepts_every_ledger(
    sqlite: SqliteDurable, memory: MemoryDurable
) -> tuple[Ledger, Ledger]:
    return sqlite, memory


def sqlite_durable_starts_passes(
    durable: SqliteDurable,
) -> tuple[PassDurable[SqliteEffect], PassesDurable[SqliteEffect]]:
    return durable, durable


def a_ledger_is_a_durable(ledger: Ledger[SqliteEffect]) -> PassDurable[SqliteEffect]:
    return ledger


def split_durables_conform(
    memory: MemoryCheckpointer,
    sqlite: SqliteCheckpointer,
    memory_queue: MemoryScheduler,
    sqlite_queue: SqliteScheduler,
) -> tuple[Durable[MemoryEffect], Durable[SqliteEffect]]:
    mixed = SplitDurable(memory, sqlite_queue)
    assert_type(mixed, SplitDurable[MemoryEffect])
    other = SplitDurable(sqlite, memory_queue)
    assert_type(other, SplitDurable[SqliteEffect])
    return mixed, other


def codecs_conform() -> tuple[CheckpointCodec[str], CheckpointCodec[bytes]]:
    assert_type(JSON, JsonCodec)
    return JSON, Utf8Codec()


class Utf8Codec:
    """A codec of one's own, for a store that keeps bytes."""

    def encode(self, value: object) -> bytes:
        return json.dumps(value).encode()

    def decode(self, encoded: bytes) -> object:
        return json.loads(encoded)


class Reversed:
    """A codec of one's own, for the SQLite store, which keeps text."""

    def encode(self, value: object) -> str:
        return json.dumps(value)[::-1]

    def decode(self, encoded: str) -> object:
        return json.loads(encoded[::-1])


@dataclass
class Counting:
    """A `Durable` of one's own around another one."""

    inner: SqliteDurable
    arrivals: int = 0

    @property
    def checkpointer(self) -> Checkpointer[SqliteEffect]:
        return self.inner.checkpointer

    @property
    def scheduler(self) -> Scheduler:
        return self.inner.scheduler

    async def arrive(self, workflow: str, key: str, value: object) -> object:
        self.arrivals += 1
        return await self.inner.arrive(workflow, key, value)

    async def deliver(self, workflow: str, value: object) -> Entry:
        return await self.inner.deliver(workflow, value)

    async def delete(self, workflow: str) -> int:
        return await self.inner.delete(workflow)


def a_durable_of_ones_own_conforms(durable: Counting) -> Durable[SqliteEffect]:
    return durable


# --- workflows -----------------------------------------------------------------------------------


def as_cents(value: object) -> int:
    assert isinstance(value, int)
    return value


async def charge() -> int:
    return 1250


def total(cursor: sqlite3.Cursor) -> int:
    return as_cents(cursor.execute("SELECT 7").fetchone()[0])


async def order(run: Run[SqliteEffect]) -> str:
    assert_type(await run.step("charge", charge, as_cents), int)
    assert_type(await run.step("again", charge, str, within=timedelta(seconds=1)), str)
    assert_type(await run.transact("total", total, as_cents, within=timedelta(seconds=1)), int)
    assert_type(await run.pending("inbox"), tuple[Entry, ...])
    assert_type(await run.awaiting("approval", as_cents), int)
    assert_type(await run.receive("messages", after=None, limit=1), tuple[Entry, ...])
    await run.sleep("pause", timedelta(0))
    assert_type(run.workflow, str)
    return "shipped"


async def store_agnostic(run: Run) -> int:
    """A body that co-commits nothing runs over every store."""
    return await run.step("charge", charge, as_cents)


async def bare_transact(run: Run, store: Checkpointer, holder: Pass) -> None:
    """With no effect type there is nothing to hand over: `transact` is uncallable."""
    await store.transact(holder, "k", lambda cursor: 1)  # type: ignore[arg-type]
    await run.transact("k", lambda cursor: 1, as_cents)  # type: ignore[arg-type]


async def wrong_effect(store: MemoryCheckpointer, run: Run[SqliteEffect], holder: Pass) -> None:
    async def asynchronous() -> int:
        return 1

    await store.transact(holder, "k", lambda: 1)  # type: ignore[arg-type, misc]
    await run.transact("k", asynchronous, as_cents)  # type: ignore[arg-type]


def what_became_of(outcome: Outcome[str]) -> str:
    match outcome:
        case Completed(value):
            assert_type(value, str)
            return value
        case Sleeping(key, due):
            assert_type(due, datetime)
            return f"{key} until {due:%H:%M}"
        case Blocked(waiting, listening):
            assert_type(waiting, frozenset[str])
            assert_type(outcome.keys, tuple[str, ...])
            return ", ".join(sorted(waiting | listening))
        case _:
            assert_never(outcome)


def workers_accept_bodies(
    sqlite: SqliteDurable, memory: SplitDurable[MemoryEffect], own: Counting
) -> list[Callable[[], Awaitable[None]]]:
    events: list[Event] = []
    observer: Observer = events.append
    return [
        lambda: work(sqlite, order),
        lambda: work(sqlite, store_agnostic),
        lambda: work(memory, store_agnostic),
        lambda: work(own, order, limit=1, stopping=asyncio.Event()),
        lambda: work(memory, order),  # type: ignore[arg-type]
        lambda: work(sqlite, order, retry=Retry(attempts=3, cap=timedelta(minutes=1))),
        lambda: work(sqlite, order, observe=events.append),
        lambda: work(sqlite, order, observe=observer),
        lambda: work(sqlite, order, retry=3),  # type: ignore[arg-type]
        lambda: passes(sqlite, order, 3)(ready(sqlite.scheduler)),
    ]


async def stores_answer_in_types(store: SqliteCheckpointer, durable: SqliteDurable) -> None:
    holder = await claimed(store, "typed")
    assert_type(holder, Pass)
    assert_type(await store.claim("typed", timedelta(1), timedelta(1)), Pass | None)
    assert_type(await store.record(holder, "k", 1), Recorded)
    assert_type(await store.history("typed"), dict[str, Written])
    assert_type(await store.load("typed"), dict[str, object])
    assert_type(await store.append("typed", 1), Entry)
    assert_type(await store.discard("typed"), int)
    assert_type(await durable.scheduler.next_ready(timedelta(0)), Delivery | None)
    assert_type(await durable.deliver("typed", 1), Entry)
    assert_type(await store.database.run(lambda connection: connection.total_changes), int)
    assert_type(Milliseconds.of(timedelta(seconds=1)), Milliseconds)
    assert_type(Fenced("x", workflow="w", token=1).workflow, str | None)


async def ledgers_answer_in_types(durable: SqliteDurable) -> None:
    await durable.arrive("listed", "k", 1)
    status = await durable.status("listed")
    assert_type(status, Status | None)
    assert status is not None
    assert_type(status.state, State)
    assert_type(status.waiting, frozenset[str])
    assert_type(status.due, datetime | None)
    assert_type(status.error, Failure | None)
    page = await durable.list(state="ready", prefix="listed", limit=1)
    assert_type(page, Page)
    assert_type(page.items, tuple[Status, ...])
    assert_type(page.next, int | None)
    assert_type(await durable.counts(), dict[State, int])
    assert_type(await durable.why("listed"), str)
    assert_type(await durable.cancel("listed", "no longer"), bool)
    assert_type(await durable.retry("listed"), bool)
    assert_type(await durable.rewind("unknown", "k"), int)
    assert_type(await durable.fork("listed", "forked", before=None), int)
    swept = await durable.sweep(older=timedelta(1), states=("failed", "cancelled"))
    assert_type(swept, int)
    (one, *_) = await durable.start_passes(1, timedelta(0), timedelta(1), attempts=3)
    assert_type(one, Started)
    assert_type(await durable.start_pass(one.delivery, timedelta(1)), Started)
    assert one.holder is not None
    await durable.end_pass(one.holder, one.delivery, Ended(None, "completed", {"result": 1}, 0))
    assert_type(await durable.result(one.delivery.workflow, within=timedelta(0)), object)


# --- and it runs ---------------------------------------------------------------------------------


async def resumed(database: Database, codec: CheckpointCodec[str] = JSON) -> list[str]:
    """Run `order` over and over, answering what it waits for, and say how each pass ended."""
    store = SqliteCheckpointer(database, codec)
    durable = SqliteDurable(store, SqliteScheduler(database))
    await migrate(database)
    ended = []
    answers: list[Callable[[], Awaitable[object]]] = [
        lambda: durable.arrive("order-1", "approval", 3),
        lambda: durable.deliver("order-1", "hello"),
        lambda: durable.delete("unknown"),
    ]
    for answer in answers:
        holder = await claimed(store, "order-1")
        outcome = await resume(holder, store, order, extend=extending(store))
        assert_type(outcome, Completed[str] | Sleeping | Blocked)
        ended.append(what_became_of(outcome))
        await store.release(holder)
        await answer()
    await stores_answer_in_types(store, durable)
    await durable.delete("order-1")
    await durable.delete("typed")
    await ledgers_answer_in_types(durable)
    return ended


@pytest.mark.parametrize("codec", [JSON, Reversed()])
async def test_a_typed_workflow_runs_as_typed(codec: CheckpointCodec[str], tmp_path: Path) -> None:
    async with connect(tmp_path / "typed.db") as database:
        assert await resumed(database, codec) == ["approval", "messages", "shipped"]


async def test_a_body_without_effects_runs_over_every_store() -> None:
    store = MemoryCheckpointer()
    run = passing(await claimed(store, "w"), store)
    assert_type(run, Run[MemoryEffect])
    assert await store_agnostic(run) == 1250
    parse: Parse[int] = as_cents
    assert await run.step("parsed", charge, parse) == 1250


async def test_a_durable_of_ones_own_serves_a_worker(tmp_path: Path) -> None:
    async with connect(tmp_path / "own.db") as database:
        await migrate(database)
        own = Counting(SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database)))
        finished = asyncio.Event()

        async def body(run: Run) -> None:
            await store_agnostic(run)
            finished.set()

        await own.arrive("w", "k", 1)
        async with asyncio.timeout(10):
            await work(own, body, stopping=finished)
        assert own.arrivals == 1
        assert await own.checkpointer.load("w") == {"k": 1, "charge": 1250}


async def test_the_timer_takes_moments() -> None:
    async def moments() -> AsyncIterator[datetime]:
        yield datetime.now(UTC)

    await waking(MemoryScheduler())(moments())
