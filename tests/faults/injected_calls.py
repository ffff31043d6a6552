"""Every call that writes and every one that reads, over one scene that a file was prepared with."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

from steered import ENDS, TAKEN, steer
from without_durability import LEASE, Clock, Delivery, Pass
from without_durability.values import Ended, Started
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    migrate,
)
from without_durability_sqlite.store import transacted

NOW = timedelta(0)
COPIES = count()
NOBODY, NOTHING = Pass("w", 0), Delivery("w", "")
LONG = "long" * 20_000
"""A value or an id that no free place of a page takes in: writing it needs new pages."""

APPLICATION = "CREATE TABLE IF NOT EXISTS app (name TEXT, value TEXT)"
OF_APPLICATION = "INSERT INTO app VALUES (:name, :value)"
AUTOCOMMIT: dict[str, Any] = (
    {"autocommit": True} if sys.version_info >= (3, 12) else {"isolation_level": None}
)


@dataclass
class Scene:
    """A database, its stores, and what they had granted when the file was prepared."""

    database: Database
    clock: Clock
    holder: Pass = NOBODY
    delivery: Delivery = NOTHING
    value: str = "small"

    def __post_init__(self) -> None:
        self.store = SqliteCheckpointer(self.database)
        self.queue = SqliteScheduler(self.database)
        self.durable = SqliteDurable(self.store, self.queue)

    @property
    def connection(self) -> Any:
        return self.database.connection

    @property
    def later(self) -> datetime:
        return self.clock.now() + 3 * LEASE

    def effect(self, cursor: sqlite3.Cursor) -> str:
        cursor.execute(OF_APPLICATION, {"name": "effect", "value": self.value})
        cursor.execute("SAVEPOINT s")
        cursor.connection.execute("UPDATE app SET name = name || '!'")
        cursor.execute("RELEASE s")
        return self.value

    async def started(self) -> list[Started]:
        return [await self.durable.start_pass(TAKEN, LEASE)]

    def work(self, connection: sqlite3.Connection) -> object:
        return transacted(connection, self.effect)

    def named(self, name: str) -> str:
        """An id that takes as much room as the value does."""
        return name + self.value * (self.value is LONG)


Call = Callable[[Scene], Awaitable[object]]

WRITES: dict[str, Call] = {
    "claim": lambda s: s.store.claim(s.named("new"), LEASE, LEASE),
    "claim_of_a_released_one": lambda s: s.store.claim("released", LEASE, LEASE),
    "extend": lambda s: s.store.extend(s.holder, 2 * LEASE, LEASE),
    "renew": lambda s: s.store.renew(s.holder, LEASE / 2),
    "record": lambda s: s.store.record(s.holder, "second", s.value),
    "record_of_a_known_key": lambda s: s.store.record(s.holder, "first", s.value),
    "transact": lambda s: s.store.transact(s.holder, "second", s.effect),
    "transact_of_a_known_key": lambda s: s.store.transact(s.holder, "first", s.effect),
    "supply": lambda s: s.store.supply("w", "second", s.value),
    "append": lambda s: s.store.append("w", s.value),
    "discard": lambda s: s.store.discard("w"),
    "release": lambda s: s.store.release(s.holder),
    "make_ready": lambda s: s.queue.make_ready(s.named("new")),
    "make_ready_of_a_sleeper": lambda s: s.queue.make_ready("sleeper"),
    "schedule": lambda s: s.queue.schedule(s.named("new"), s.clock.now()),
    "schedule_of_a_sleeper": lambda s: s.queue.schedule("sleeper", s.clock.now()),
    "wake_at": lambda s: s.queue.wake_at(s.delivery, s.later),
    "next_ready": lambda s: s.queue.next_ready(NOW),
    "extend_of_a_delivery": lambda s: s.queue.extend(s.delivery, 2 * LEASE),
    "cancel": lambda s: s.queue.cancel("w"),
    "done": lambda s: s.queue.done(s.delivery),
    "arrive": lambda s: s.durable.arrive("sleeper", "second", s.value),
    "deliver": lambda s: s.durable.deliver("w", s.value),
    "delete": lambda s: s.durable.delete("w"),
    "start_passes": lambda s: s.durable.start_passes(2, NOW, LEASE),
    "start_pass": lambda s: s.started(),
    "end_pass": lambda s: s.durable.end_pass(s.holder, s.delivery, ENDS["completed"]),
    "end_pass_of_a_sleeper": lambda s: s.durable.end_pass(
        s.holder, s.delivery, Ended(s.later, "sleeping", {"key": "nap"}, 0)
    ),
    "end_pass_of_a_failure": lambda s: s.durable.end_pass(s.holder, s.delivery, ENDS["failed"]),
    "retry": lambda s: s.durable.retry("failed"),
    "cancel_of_a_workflow": lambda s: s.durable.cancel("w", s.value),
    "rewind": lambda s: s.durable.rewind("w", "first"),
    "fork": lambda s: s.durable.fork("w", s.named("new"), before="supplied"),
    "sweep": lambda s: s.durable.sweep(older=NOW, limit=1),
    "transacted_in_a_run": lambda s: s.database.run(s.work),
}
"""Each of these changes the file of a `Scene`."""

WRITES_AFTER_THE_CLOCK_WAS_SET_BACK: dict[str, Call] = {
    "claim_of_a_held_one": lambda s: s.store.claim("w", LEASE, LEASE),
    "next_ready_of_a_taken_one": lambda s: s.queue.next_ready(NOW),
} | {name: WRITES[name] for name in ("record", "transact", "supply", "append", "arrive", "deliver")}

READS: dict[str, Call] = {
    "load": lambda s: s.store.load("w"),
    "history": lambda s: s.store.history("w"),
    "holds": lambda s: s.queue.holds(s.delivery),
    "prepare": lambda s: s.queue.prepare(),
    "status": lambda s: s.durable.status("completed"),
    "list": lambda s: s.durable.list(state="completed"),
    "list_of_a_prefix": lambda s: s.durable.list(prefix="fail"),
    "counts": lambda s: s.durable.counts(),
    "counts_of_a_namespace": lambda s: s.durable.counts("workflow"),
    "why": lambda s: s.durable.why("failed"),
    "result": lambda s: s.durable.result("completed", within=NOW),
}


@dataclass
class Prepared:
    """A file that each test of a fault gets a copy of, and what its stores had granted."""

    path: Path
    granted: tuple[Pass, Delivery] | tuple[()] = ()

    @asynccontextmanager
    async def scene(
        self, *, set_back: timedelta = NOW, value: str = "small", **settings: Any
    ) -> AsyncIterator[tuple[Scene, Path]]:
        """A scene of its own, a second after what happened in the file."""
        path = self.path.with_name(f"copy {next(COPIES)}.db")
        shutil.copyfile(self.path, path)
        clock = Clock()
        clock.advance(timedelta(seconds=1) - set_back)
        async with database(path, clock, **settings) as opened:
            opened.connection.execute("PRAGMA synchronous = OFF").close()  # no power is lost here
            yield Scene(opened, clock, *self.granted, value=value), path
        path.unlink()


def prepared_in(folder: Path, migrated: Path) -> Prepared:
    path = folder / "prepared.db"
    return Prepared(path, asyncio.run(prepare(path, migrated)))


async def prepare(path: Path, migrated: Path) -> tuple[Pass, Delivery]:
    """A file with something for each call to find; what its stores have out then."""
    shutil.copyfile(migrated, path)
    async with database(path, Clock()) as opened:
        scene = Scene(opened, Clock())
        await migrate(opened)
        await opened.run(lambda connection: connection.execute(APPLICATION).close())
        await steer(scene.durable)
        holder = await scene.store.claim("w", LEASE, LEASE)
        assert holder is not None
        await scene.store.record(holder, "first", 1)
        await scene.store.supply("w", "supplied", 1)
        await scene.store.append("w", 1)
        released = await scene.store.claim("released", LEASE, LEASE)
        assert released is not None
        await scene.store.release(released)
        await scene.durable.arrive("w", "arrived", 1)
        delivery = await scene.queue.next_ready(NOW)
        assert delivery is not None
        await scene.queue.schedule("sleeper", scene.clock.now() + LEASE)
        await scene.queue.make_ready("ready")
    return holder, delivery


def database(path: Path, clock: Clock, **settings: Any) -> Database:
    """A database as `connect` gives it, over a connection with settings of one's own."""
    connection = sqlite3.connect(path, check_same_thread=False, **AUTOCOMMIT, **settings)
    connection.execute("PRAGMA journal_mode = WAL").close()
    return Database(connection, clock=clock.seconds)


def read_through(database: Database, connection: sqlite3.Connection) -> None:
    """Have the database's reads, which have a connection of their own, run on this one."""
    reader = database._reader()
    assert reader is not None
    assert reader.connection is None, "it reads through another one already"
    reader.connection = connection


def everything(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All that a second connection finds in the file, receipts' nonces apart."""
    with closing(sqlite3.connect(path)) as other:
        schema = "SELECT name, sql FROM sqlite_master ORDER BY name"
        found = {"sqlite_master": other.execute(schema).fetchall()}
        tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
        for (table,) in other.execute(tables).fetchall():
            found[table] = other.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
    if "workflow_queue" in found:
        found["workflow_queue"] = [
            tuple("nonce" if index == 3 and value else value for index, value in enumerate(row))
            for row in found["workflow_queue"]
        ]
    return found
