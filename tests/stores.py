"""The stores that tests run over, and the clock that all of them read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from without_durability import MemoryCheckpointer, MemoryScheduler, SplitDurable
from without_durability.testing import Clock
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
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
