"""Writes a second: `record`, `transact` and `arrive`, alone and many at once."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from figures import Figure, Repeat, at_least
from ours import opened, passes, rate
from raw import ENTER, LEDGER, Raw, beside, made, plain

from without_durability import Pass
from without_durability_sqlite import SqliteDurable

REPEATS = 9


async def measure(
    call: Callable[[SqliteDurable, Pass, str], Awaitable[object]],
    write: Callable[[Raw], None],
    at_once: int,
    folder: Path,
) -> list[Repeat]:
    """`call`s by so many passes at once, beside raw `write`s to another file of the folder."""
    holder = await made(folder / "raw.db")
    numbers = itertools.count()
    with plain(folder / "raw.db") as connection:
        raw = Raw(connection, holder)
        async with opened(folder / "ours.db") as durable:
            await durable.checkpointer.database.run(lambda opened: opened.execute(LEDGER))
            holders = await passes(durable, at_once)

            def next_call(number: int) -> Awaitable[object]:
                return call(durable, holders[number], f"step {next(numbers)}")

            return [
                {"rate": await beside(partial(rate, next_call, at_once), raw, partial(write, raw))}
                for _ in range(REPEATS)
            ]


def record(durable: SqliteDurable, holder: Pass, key: str) -> Awaitable[object]:
    return durable.checkpointer.record(holder, key, "done")


def transact(durable: SqliteDurable, holder: Pass, key: str) -> Awaitable[object]:
    return durable.checkpointer.transact(holder, key, enter)


def arrive(durable: SqliteDurable, holder: Pass, key: str) -> Awaitable[object]:
    return durable.arrive(f"{holder.workflow}, {key}", key, "done")


def enter(cursor: sqlite3.Cursor) -> str:
    cursor.execute(ENTER)
    return "done"


FIGURES = (
    Figure(
        "record-alone",
        "record, one after another",
        (at_least("rate", "/s", 0.50, 0.58),),
        partial(measure, record, Raw.record, 1),
    ),
    Figure(
        "record-20",
        "record, 20 passes at once",
        (at_least("rate", "/s", 3.0, 4.3),),
        partial(measure, record, Raw.record, 20),
    ),
    Figure(
        "record-200",
        "record, 200 passes at once",
        (at_least("rate", "/s", 5, 8),),
        partial(measure, record, Raw.record, 200),
    ),
    Figure(
        "transact-20",
        "transact with a one-row effect, 20 at once",
        (at_least("rate", "/s", 2.8, 3.7),),
        partial(measure, transact, Raw.transact, 20),
    ),
    Figure(
        "arrive-20",
        "arrive, 20 at once",
        (at_least("rate", "/s", 2.8, 4),),
        partial(measure, arrive, Raw.arrive, 20),
    ),
)
