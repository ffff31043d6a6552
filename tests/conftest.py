"""The stores every test runs over: a movable clock, and a real file in a folder of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stores import Stores, over_memory, over_sqlite
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
