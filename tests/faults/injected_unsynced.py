"""A process that writes with and without waiting for the disk, and the power lost at any moment.

Every write and sync of SQLite's is noted, and what the process was told in between. From that the
disk can be made up as it was left at any moment: with all that was synced, and with as much of the
rest as one likes.
"""

from __future__ import annotations

import asyncio
import pickle
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from test_fault_power import Disk, Files, the_sqlite

from children import ended
from without_durability import LEASE, Clock, Delivery, Pass, Run, work
from without_durability.values import Ended
from without_durability_sqlite import (
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    connect,
    migrate,
)

NOW, SECOND = timedelta(0), timedelta(seconds=1)
FSYNC_FAILED = 10 | 4 << 8  # SQLITE_IOERR_FSYNC

Event = tuple[Any, ...]


class Journal(Disk):
    """Notes what is written, synced and told; a sync that fails loses what it was to sync."""

    def __init__(self, sqlite: Any) -> None:
        super().__init__(sqlite)
        self.events: list[Event] = []
        self.failing = ""

    def wrote(self, name: str, offset: int, content: bytes) -> None:
        self.events.append(("wrote", name, offset, content))

    def truncated(self, name: str, size: int) -> None:
        self.events.append(("truncated", name, size))

    def flushed(self, name: str) -> int:
        if self.failing and name.endswith(self.failing):
            self.failing = ""
            self.events.append(("lost", name))
            return FSYNC_FAILED
        self.events.append(("flushed", name))
        return 0

    def told(self, *fact: Any) -> None:
        self.events.append(("told", *fact))


# --- what the process does ----------------------------------------------------------------------


class Mixed:
    """Calls of both kinds in a random order; what has to be true of the disk is told after each."""

    def __init__(self, journal: Journal, durable: SqliteDurable, clock: Clock, seed: int) -> None:
        self.told, self.clock, self.durable = journal.told, clock, durable
        self.store, self.queue = durable.checkpointer, durable.scheduler
        self.choose = random.Random(seed)
        self.holders: dict[str, Pass] = {}
        self.out: dict[str, Delivery] = {}
        self.number = 0

    async def run(self, count: int) -> None:
        calls = [
            *(self.claim, self.record, self.record, self.renew, self.extend, self.release),
            *(self.take, self.take, self.keep, self.arrive, self.arrive, self.done),
            *(self.wake_at, self.start, self.end, self.discard),
        ]
        for _ in range(count):
            self.number += 1
            self.clock.advance(timedelta(milliseconds=self.choose.choice([1, 7, 900])))
            self.told("time", self.clock.seconds())
            await self.choose.choice(calls)(self.choose.choice("abc"))

    def granted(self, holder: Pass | None) -> None:
        if holder is not None:
            self.holders[holder.workflow] = holder
            self.told("token", holder.workflow, holder.token)

    async def claim(self, w: str) -> None:
        self.granted(await self.store.claim(w, 5 * LEASE, LEASE))

    async def record(self, w: str) -> None:
        if w in self.holders:
            with suppress(PermissionError):
                await self.store.record(self.holders[w], f"{self.number}", self.number)
                self.told("record", w, f"{self.number}")

    async def renew(self, w: str) -> None:
        if w in self.holders:
            await self.store.renew(self.holders[w], LEASE)

    async def extend(self, w: str) -> None:
        if w in self.holders:
            await self.store.extend(self.holders[w], 5 * LEASE, LEASE)

    async def release(self, w: str) -> None:
        if w in self.holders:
            await self.store.release(self.holders.pop(w))

    async def arrive(self, w: str) -> None:
        await self.durable.arrive(w, f"{self.number}", self.number)
        self.told("ready", w)
        self.told("record", w, f"{self.number}")

    async def take(self, _: str) -> None:
        delivery = await self.queue.next_ready(NOW)
        if delivery is not None:
            self.out[delivery.workflow] = delivery

    async def keep(self, w: str) -> None:
        if w in self.out:
            self.out[w] = await self.queue.extend(self.out[w], LEASE)

    async def done(self, w: str) -> None:
        if w in self.out:
            self.told("finishing", w)
            delivery = self.out.pop(w)
            held = await self.queue.holds(delivery)
            await self.queue.done(delivery)
            if not held:
                self.told("ready", w)  # something newer than the delivery is there still

    async def wake_at(self, w: str) -> None:
        if w in self.out:
            await self.queue.wake_at(self.out.pop(w), self.clock.now() + LEASE / 2)

    async def start(self, _: str) -> None:
        for one in await self.durable.start_passes(2, NOW, 5 * LEASE):
            self.out[one.delivery.workflow] = one.delivery
            self.granted(one.holder)

    async def end(self, w: str) -> None:
        if w in self.out and w in self.holders:
            due = self.choose.choice([None, self.clock.now(), self.clock.now() + LEASE / 2])
            delivery = self.out.pop(w)
            held = await self.queue.holds(delivery)
            if due is None:
                self.told("finishing", w)
            end = Ended(due, "completed" if due is None else "sleeping", attempts=0)
            await self.durable.end_pass(self.holders.pop(w), delivery, end)
            if not held and due is None and await self.is_queued(w):
                self.told("ready", w)

    async def is_queued(self, w: str) -> bool:
        query = "SELECT * FROM workflow_queue WHERE workflow = ?"
        return bool(await self.store.database.run(lambda c: c.execute(query, (w,)).fetchall()))

    async def discard(self, w: str) -> None:
        self.told("discarding", w)
        await self.store.discard(w)
        self.told("discarded", w)
        self.holders.pop(w, None)


async def mixed(journal: Journal, path: Path, seed: str) -> None:
    clock = Clock()
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        journal.told("migrated")
        await database.run(lambda c: c.execute("PRAGMA wal_autocheckpoint = 40").close())
        durable = SqliteDurable(
            SqliteCheckpointer(database), SqliteScheduler(database, now=clock.now)
        )
        await Mixed(journal, durable, clock, int(seed)).run(120)


NAP = timedelta(milliseconds=5)
KEYS = ["app", "first", "input", "last", "nap"]


async def one_pass(run: Run[Any]) -> object:
    async def effect() -> str:
        return run.workflow

    def paid(cursor: sqlite3.Cursor) -> str:
        cursor.execute("INSERT INTO app VALUES (?)", (run.workflow,))
        return run.workflow

    await run.step("first", effect, str)
    await run.transact("app", paid, str)
    await run.sleep("nap", NAP)
    await run.awaiting("input", str)
    return await run.step("last", effect, str)


async def drained(durable: SqliteDurable) -> None:
    """Let a worker run until nothing is queued."""
    query = "SELECT count(*) FROM workflow_queue"

    def waiting(connection: sqlite3.Connection) -> int:
        return int(connection.execute(query).fetchone()[0])

    worker = asyncio.create_task(work(durable, one_pass, within=NAP))
    try:
        async with asyncio.timeout(10):
            while await durable.checkpointer.database.run(waiting):
                await asyncio.sleep(0.002)
    finally:
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker


async def working(journal: Journal, path: Path) -> None:
    async with connect(path) as database:
        await migrate(database)
        await database.run(lambda c: c.execute("CREATE TABLE app (workflow)").close())
        await database.run(lambda c: c.execute("PRAGMA wal_autocheckpoint = 30").close())
        journal.told("migrated")
        durable = SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database))
        for w in "abcdef":
            await durable.arrive(w, "input", w)
            journal.told("arrived", w)
        await drained(durable)
        journal.told("over")


async def sync_fails(journal: Journal, path: Path, how: str) -> None:
    """A sync of the log fails while others have left theirs to it."""
    clock = Clock()
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        await database.run(lambda c: c.execute("CREATE TABLE app (n)").close())
        await database.run(lambda c: c.execute("PRAGMA wal_autocheckpoint = 0").close())
        store, queue = SqliteCheckpointer(database), SqliteScheduler(database)
        await store.supply("w", "before", 1)
        journal.told("migrated")
        journal.told("record", "w", "before")
        holder = await store.claim("w", LEASE, LEASE)
        assert holder is not None
        if how == "commit":
            journal.failing = "-wal"
            with pytest.raises(sqlite3.OperationalError):
                await store.record(holder, "refused", 1)
        elif how == "batch":
            journal.failing = "-wal"
            await asyncio.gather(*(store.supply("w", f"batch {n}", n) for n in range(5)))
            for n in range(5):
                journal.told("record", "w", f"batch {n}")
        elif how == "checkpoint":
            await database.run(lambda c: c.execute("PRAGMA wal_autocheckpoint = 1").close())
            for _ in range(5):  # of its commits some begin the log afresh, and all checkpoint it
                clock.advance(SECOND)
                journal.failing = "-wal"
                with suppress(sqlite3.OperationalError):
                    await store.renew(holder, LEASE)
            journal.failing = ""  # a store that does not sync there has nothing to lose
            await database.run(lambda c: c.execute("PRAGMA wal_autocheckpoint = 0").close())
        elif how == "work":
            journal.failing = "-wal"
            with pytest.raises(sqlite3.OperationalError):
                await database.run(lambda c: c.execute("INSERT INTO app VALUES (1)").close())
        assert journal.failing == "", "no sync failed"
        for n in range(5):
            await store.record(holder, f"{n}", n)
            journal.told("record", "w", f"{n}")
            await queue.make_ready("w")
            journal.told("ready", "w")


KINDS = {"mixed": mixed, "working": working, "sync_fails": sync_fails}


def main(path: str, noted: str, kind: str, *arguments: str) -> None:
    journal = Journal(the_sqlite())
    asyncio.run(KINDS[kind](journal, Path(path), *arguments))  # type: ignore[operator]
    Path(noted).write_bytes(pickle.dumps(journal.events))
    print("done")


CHILD = """
sys.path[:0] = [f"{arguments[0]}/faults", arguments[0]]
from injected_unsynced import main
main(path, *arguments[1:])
"""


def noted_by(path: Path, kind: str, *arguments: str) -> list[Event]:
    """What a process of its own did and was told."""
    noted = path.with_name("noted")
    child = ended(CHILD, path, Path(__file__).parents[1], noted, kind, *arguments, within=40)
    if child.out.startswith("skip"):
        pytest.skip(child.out)
    assert (child.code, child.out) == (0, "done\n"), child.err
    events: list[Event] = pickle.loads(noted.read_bytes())
    assert ("told", "migrated") in events
    return events


# --- what was left ------------------------------------------------------------------------------


@dataclass
class Told:
    """What has to be true of the disk by now."""

    migrated: bool = False
    now: float = Clock().seconds()
    tokens: dict[str, int] = field(default_factory=dict)
    records: dict[str, set[str]] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    arrived: set[str] = field(default_factory=set)
    over: bool = False

    def hear(self, kind: str, *fact: Any) -> None:
        if kind == "time":
            (self.now,) = fact
        elif kind == "token":
            self.tokens[fact[0]] = fact[1]
        elif kind == "record":
            self.records.setdefault(fact[0], set()).add(fact[1])
        elif kind == "ready":
            self.ready.add(*fact)
        elif kind == "finishing":
            self.ready.discard(*fact)
        elif kind in ("discarding", "discarded"):
            self.records.pop(*fact, None)
        elif kind == "arrived":
            self.arrived.add(*fact)
        else:
            setattr(self, kind, True)


def moments(events: list[Event]) -> Iterator[tuple[int, Files, Told]]:
    """The disk after each event, and what has been told by then; both change from step to step."""
    files, told = Files(), Told()
    for number, (kind, *rest) in enumerate(events):
        if kind == "told":
            told.hear(*rest)
        elif kind == "lost":
            files.pending.pop(rest[0], None)
        else:
            getattr(files, kind)(*rest)
        if told.migrated:
            yield number, files, told


@dataclass
class Found:
    """What a file holds."""

    records: dict[str, set[str]]
    claims: dict[str, tuple[int, float]]
    queue: dict[str, float]

    @classmethod
    def on(cls, path: Path) -> Found:
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            records: dict[str, set[str]] = {}
            for w, step in connection.execute("SELECT workflow, step FROM workflow_checkpoint"):
                records.setdefault(w, set()).add(step)
            claims = connection.execute("SELECT workflow, token, alive_until FROM workflow_claim")
            queue = connection.execute("SELECT workflow, visible_at FROM workflow_queue")
            return cls(records, {w: (token, until) for w, token, until in claims}, dict(queue))

    def check(self, told: Told, *where: object) -> None:
        """After a lease everything told is there, or is done again."""
        later = told.now + LEASE.total_seconds()
        for w, keys in told.records.items():
            assert keys <= self.records.get(w, set()), (w, keys, *where)
        for w, token in told.tokens.items():
            kept, alive_until = self.claims.get(w, (0, 0.0))
            assert alive_until <= later, f"{w} is not to be claimed within a lease: {where}"
            assert max(kept + 1, int(later * 1000)) > token, f"a token of {w} repeats: {where}"
        for w in told.ready:
            assert w in self.queue, f"the wakeup of {w} is lost: {where}"
            assert self.queue[w] <= later, f"{w} is not delivered within a lease: {where}"


async def assert_of_use(path: Path, told: Told) -> None:
    """The stores themselves say so."""
    later = told.now + LEASE.total_seconds()
    async with connect(path, clock=lambda: later) as database:
        await migrate(database)
        await database.run(lambda c: c.execute("PRAGMA synchronous = OFF").close())  # just a copy
        store, queue = SqliteCheckpointer(database), SqliteScheduler(database)
        for w, keys in told.records.items():
            assert keys <= (await store.load(w)).keys()
        delivered = set()
        while (delivery := await queue.next_ready(NOW)) is not None:
            delivered.add(delivery.workflow)
        assert told.ready <= delivered
        for w in "abc":
            holder = await store.claim(w, LEASE, LEASE)
            assert holder is not None
            assert holder.token > told.tokens.get(w, 0)
            assert (await store.record(holder, "after", 1)).first
