"""The stores every test runs over: a movable clock, and a real file in a folder of its own."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from beside import Beside
from gated import Bench
from idling import a_file, in_memory, rollback_journal
from stores import Stores, over_memory, over_sqlite
from systems import descriptors
from thread_gates import HANG, in_time, own_guard, plain, plain_lock
from without_durability import retrying
from without_durability.testing import Clock
from without_durability_sqlite import Database, connect, migrate


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "workflows.db"


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as `migrate` makes it, for tests to copy: making each anew costs the disk's time."""

    async def make() -> None:
        async with connect(path) as database:
            await migrate(database)

    path = tmp_path_factory.mktemp("migrated") / "workflows.db"
    asyncio.run(make())
    return path


@pytest.fixture
async def database(path: Path, migrated: Path, clock: Clock) -> AsyncIterator[Database]:
    """A migrated file under the movable clock."""
    shutil.copyfile(migrated, path)
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        yield database


@pytest.fixture(params=["memory", "sqlite"])
async def stores(
    request: pytest.FixtureRequest, path: Path, migrated: Path, clock: Clock
) -> AsyncIterator[Stores]:
    """Each store in turn, under the movable clock."""
    if request.param == "memory":
        yield over_memory(clock)
    else:
        shutil.copyfile(migrated, path)
        async with connect(path, clock=clock.seconds) as database:
            await migrate(database)
            yield over_sqlite(database, clock)


@pytest.fixture(params=[own_guard, plain_lock], ids=lambda guard: guard.__name__)
async def guarded(request: pytest.FixtureRequest, path: Path) -> AsyncIterator[Database]:
    """A migrated database under its own guard, and under an `asyncio.Lock` passed to it."""
    connection = plain(path)
    connection.execute("PRAGMA journal_mode = WAL")
    async with Database(connection, *request.param()) as database:
        await migrate(database)
        yield database


@pytest.fixture(params=[own_guard, plain_lock], ids=lambda guard: guard.__name__)
def loopless(request: pytest.FixtureRequest, path: Path) -> Iterator[Database]:
    """A database made outside any loop, as at module level, and closed from a last one."""
    guard = request.param()
    database = Database(plain(path), *guard) if guard else connect(path)
    asyncio.run(migrate(database))
    yield database
    try:
        asyncio.run(in_time(database.aclose()))
    except (TimeoutError, RuntimeError):  # a test that found it unusable has said so already
        database._thread.later(database._thread.close)


@pytest.fixture
def stores_over(database: Database, clock: Any) -> Stores:
    return over_sqlite(database, clock)


@pytest.fixture
def other(path: Path) -> Iterator[sqlite3.Connection]:
    """A second connection to the file, in autocommit mode, as another process would have it."""
    with closing(plain(path, timeout=HANG)) as other:
        yield other


@pytest.fixture
def nothing_left_open() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() - before == set(), "a descriptor was left open"


@pytest.fixture(params=[a_file, in_memory, rollback_journal], ids=lambda kind: kind.__name__)
async def anywhere(request: pytest.FixtureRequest, path: Path) -> AsyncIterator[Database]:
    """A migrated database of each kind, under the clock on the wall."""
    async with request.param(path) as database:
        await migrate(database)
        yield database


@pytest.fixture
async def filed(path: Path, migrated: Path) -> AsyncIterator[Database]:
    path.write_bytes(migrated.read_bytes())
    async with connect(path) as database:
        yield database


@pytest.fixture
async def beside(stores: Stores) -> Beside:
    beside = Beside(stores)
    await beside.prepare()
    return beside


@pytest.fixture
def _no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause is left to chance."""
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that refuses is asked again at once."""
    monkeypatch.setattr(retrying, "STORE_FIRST", timedelta(milliseconds=1))
    monkeypatch.setattr(retrying, "STORE_CAP", timedelta(milliseconds=1))


@pytest.fixture
def told() -> list[Any]:
    """What the observer was told: its `append` is the observer."""
    return []
