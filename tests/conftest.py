"""The stores every test runs over: a movable clock, and a real file in a folder of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from without_durability import MemoryCheckpointer, MemoryScheduler, SplitDurable
from without_durability.testing import Clock
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    connect,
    migrate,
)


@dataclass
class Stores:
    """One durable, its two stores, and the clock that all of them read."""

    durable: Any
    clock: Clock

    @property
    def checkpointer(self) -> Any:
        return self.durable.checkpointer

    @property
    def scheduler(self) -> Any:
        return self.durable.scheduler


def over_memory(clock: Clock) -> Stores:
    return Stores(
        SplitDurable(
            MemoryCheckpointer(clock=clock.seconds, now=clock.now),
            MemoryScheduler(clock=clock.seconds),
        ),
        clock,
    )


def over_sqlite(database: Database, clock: Clock) -> Stores:
    return Stores(SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database)), clock)


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
