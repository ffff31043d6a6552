"""The stores every test runs over: a movable clock, and a real file in a folder of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stores import Stores, over_memory, over_sqlite
from thread_gates import HANG, own_guard, plain, plain_lock
from without_durability.testing import Clock
from without_durability_sqlite import Database, connect, migrate


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "workflows.db"


@pytest.fixture
async def database(path: Path, clock: Clock) -> AsyncIterator[Database]:
    """A migrated file under the movable clock."""
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        yield database


@pytest.fixture(params=["memory", "sqlite"])
async def stores(request: pytest.FixtureRequest, path: Path, clock: Clock) -> AsyncIterator[Stores]:
    """Each store in turn, under the movable clock."""
    if request.param == "memory":
        yield over_memory(clock)
    else:
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


@pytest.fixture
def stores_over(database: Database, clock: Any) -> Stores:
    return over_sqlite(database, clock)


@pytest.fixture
def other(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(plain(path, timeout=HANG)) as other:
        yield other
