"""A long load is read at one moment, decoded in pieces, and holds up nobody meanwhile."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from decoding import Gated, fill
from gated import turns
from thread_gates import (
    in_time,
)
from without_durability_sqlite import Database, SqliteCheckpointer
from without_durability_sqlite.loading import PIECE_BYTES, PIECE_ROWS


@pytest.mark.parametrize("at", [1, PIECE_ROWS + 1], ids=["first piece", "second piece"])
async def test_a_load_holds_no_snapshot_while_it_decodes(
    database: Database, other: sqlite3.Connection, at: int
):
    await fill(database, "w", PIECE_ROWS + 2)
    codec = Gated(at)
    loading = asyncio.create_task(SqliteCheckpointer(database, codec).load("w"))
    await codec.gate.reached()
    await SqliteCheckpointer(database).supply("v", "a", 1)
    other.execute("PRAGMA busy_timeout = 0")
    ((busy, frames, _),) = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert (busy, frames) == (0, 0), "the log could not be started afresh"
    codec.gate.opened.set()
    assert len(await in_time(loading)) == PIECE_ROWS + 2


async def test_a_load_in_pieces_is_of_one_moment(database: Database):
    await fill(database, "w", PIECE_ROWS + 2)
    codec = Gated(2)
    loading = asyncio.create_task(SqliteCheckpointer(database, codec).load("w"))
    await codec.gate.reached()
    await SqliteCheckpointer(database).discard("w")
    await SqliteCheckpointer(database).supply("w", "new", 1)
    codec.gate.opened.set()
    assert [*await in_time(loading)] == [f"key {n}" for n in range(PIECE_ROWS + 2)]


@pytest.mark.parametrize(
    ("count", "value"),
    [(3 * PIECE_ROWS, "1"), (4, f'"{"long" * (PIECE_BYTES // 4)}"')],
    ids=["many", "long"],
)
async def test_another_load_is_answered_between_two_pieces_of_a_long_one(
    database: Database, count: int, value: str
):
    await fill(database, "long", count, value)
    await fill(database, "short", 1, '"short"')
    codec = Gated(2)
    checkpointer = SqliteCheckpointer(database, codec)
    long = asyncio.create_task(checkpointer.load("long"))
    await codec.gate.reached()
    short = asyncio.create_task(checkpointer.load("short"))
    await turns()
    codec.gate.opened.set()
    assert await in_time(short) == {"key 0": "short"}
    assert len(await in_time(long)) == count
    assert codec.decoded.index('"short"') < len(codec.decoded) - count // 3


@pytest.mark.parametrize("read", [SqliteCheckpointer.load, SqliteCheckpointer.history])
@pytest.mark.parametrize("at", [0, PIECE_ROWS - 1, PIECE_ROWS, 2 * PIECE_ROWS + 1])
@pytest.mark.parametrize("bad", ["'{'", "x'ff'"], ids=["no JSON", "no text"])
async def test_a_record_that_cannot_be_read_is_named_in_whatever_piece_it_is(
    database: Database, at: int, bad: str, read: Callable[[Any, str], Awaitable[Any]]
):
    await fill(database, "the workflow", 2 * PIECE_ROWS + 2)
    spoil = f"UPDATE workflow_checkpoint SET value = {bad} WHERE step = 'key {at}'"
    await database.run(lambda connection: connection.execute(spoil).close())
    with pytest.raises(ValueError, match=f"'the workflow'.*'key {at}'"):
        await read(SqliteCheckpointer(database), "the workflow")
    assert await SqliteCheckpointer(database).supply("other", "usable", 1) == 1
    assert await SqliteCheckpointer(database).load("other") == {"usable": 1}
