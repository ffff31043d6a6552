"""Older files once they were brought up to date, and what is odd about them then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from stores import Stores, over_sqlite
from without_durability import Clock
from without_durability_sqlite import connect, migrate
from without_durability_sqlite.checking import oddities


@asynccontextmanager
async def upgraded(path: Path, clock: Clock) -> AsyncIterator[Stores]:
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        yield over_sqlite(database, clock)


async def odd(stores: Stores) -> list[Any]:
    now = stores.clock.seconds()
    return await stores.checkpointer.database.run(lambda connection: oddities(connection, now))
