"""Reads whose callers go away, and the end of the database they read."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
from pathlib import Path

import pytest

from children import ended
from contract import cancelled, rows
from decoding import Gated, fill
from gated import turns
from systems import descriptors, forks
from thread_gates import (
    database_threads,
    fail,
    in_time,
    stays_outside,
    until,
)
from without_durability import Milliseconds
from without_durability_sqlite import Database, SqliteCheckpointer, connect, migrate
from without_durability_sqlite.loading import PIECE_ROWS


async def test_a_read_whose_caller_goes_away_while_it_waits_does_not_happen(database: Database):
    codec = Gated()
    checkpointer = SqliteCheckpointer(database, codec)
    for workflow in "vw":
        await SqliteCheckpointer(database).supply(workflow, "a", workflow)
    ahead = asyncio.create_task(checkpointer.load("w"))
    await codec.gate.reached()
    waiting = asyncio.create_task(checkpointer.load("v"))
    await turns()
    await cancelled(waiting)
    codec.gate.opened.set()
    assert await in_time(ahead) == {"a": "w"}
    assert await in_time(checkpointer.load("w")) == {"a": "w"}
    assert codec.decoded == ['"w"', '"w"']


async def test_a_read_whose_caller_goes_away_in_the_middle_keeps_nobody_waiting(
    database: Database,
):
    await fill(database, "w", 3 * PIECE_ROWS)
    codec = Gated(2)
    checkpointer = SqliteCheckpointer(database, codec)
    task = asyncio.create_task(checkpointer.load("w"))
    await codec.gate.reached()
    await cancelled(task)
    codec.gate.opened.set()
    assert await in_time(checkpointer.load("v")) == {}
    assert len(codec.decoded) == PIECE_ROWS, "it was read to its end for nobody"


async def test_closing_waits_for_a_read_that_is_under_way(database: Database):
    await SqliteCheckpointer(database).supply("w", "a", 1)
    codec = Gated()
    reading = asyncio.create_task(SqliteCheckpointer(database, codec).load("w"))
    await codec.gate.reached()
    closing = asyncio.create_task(database.aclose())
    await stays_outside(closing, reading)
    codec.gate.opened.set()
    await in_time(closing)
    assert await in_time(reading) == {"a": 1}


async def test_closing_waits_for_all_pieces_of_a_load_that_is_under_way(database: Database):
    await fill(database, "w", 3 * PIECE_ROWS)
    codec = Gated(2)
    reading = asyncio.create_task(SqliteCheckpointer(database, codec).load("w"))
    await codec.gate.reached()
    closing = asyncio.create_task(database.aclose())
    await stays_outside(closing, reading)
    codec.gate.opened.set()
    await in_time(closing)
    assert len(await in_time(reading)) == 3 * PIECE_ROWS


@pytest.mark.parametrize("has_read", [False, True], ids=["never read", "read before"])
async def test_a_read_after_the_end_is_refused_and_opens_nothing(
    path: Path, migrated: Path, has_read: bool, nothing_left_open: None
):
    path.write_bytes(migrated.read_bytes())
    threads = set(database_threads())
    async with connect(path) as database:
        checkpointer = SqliteCheckpointer(database)
        if has_read:
            await checkpointer.load("w")
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        await in_time(checkpointer.load("w"))
    await until(lambda: {*database_threads()} <= threads)


async def test_nothing_is_left_open_after_the_end(path: Path, nothing_left_open: None):
    threads = set(database_threads())
    async with connect(path) as database:
        await migrate(database)
        await SqliteCheckpointer(database).load("w")
        assert len({*database_threads()} - threads) == 2, "it reads on its own thread"
    await until(lambda: {*database_threads()} <= threads)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_a_database_that_is_dropped_closes_its_reader_too(path: Path):
    before, threads = descriptors(), set(database_threads())
    database = connect(path)
    await migrate(database)
    await SqliteCheckpointer(database).load("w")
    assert len({*database_threads()} - threads) == 2
    del database
    gc.collect()
    await until(lambda: {*database_threads()} <= threads and descriptors() <= before)


async def test_a_reader_that_could_not_be_opened_is_tried_again(
    path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch
):
    path.write_bytes(migrated.read_bytes())
    async with connect(path) as database:
        refused = fail(sqlite3.OperationalError("too many files"))
        monkeypatch.setattr(sqlite3, "connect", lambda *_, **__: refused())
        with pytest.raises(sqlite3.OperationalError, match="too many files"):
            await SqliteCheckpointer(database).load("w")
        monkeypatch.undo()
        assert await in_time(SqliteCheckpointer(database).load("w")) == {}


async def test_a_reader_waits_as_long_for_locks_as_its_database_does(path: Path):
    async with connect(path, timeout=Milliseconds(1234)) as database:
        await migrate(database)
        await SqliteCheckpointer(database).load("w")
        reader = database._thread.reader
        assert reader is not None
        assert reader.connection is not None
        assert reader.connection.execute("PRAGMA busy_timeout").fetchall() == [(1234,)]


STUCK = """
gate = threading.Event()

class Stuck:
    encode = JSON.encode
    def decode(self, encoded):
        gate.set()
        threading.Event().wait()

async def main():
    await opened()
    await cp.supply("w", "a", 1)
    reading = asyncio.create_task(SqliteCheckpointer(db, Stuck()).load("w"))
    while not gate.is_set():
        await asyncio.sleep(0.001)
    print(await cp.supply("w", "acknowledged", 2), flush=True)

asyncio.run(main())
print("ends", flush=True)
"""


def test_a_process_ends_although_a_read_does_not(path: Path):
    end = ended(STUCK, path)
    assert (end.code, end.out) == (0, "2\nends\n"), end.err
    assert rows(path, "SELECT step FROM workflow_checkpoint") == [("a",), ("acknowledged",)]


ENDLESS = """
async def main():
    await opened()
    await cp.supply("w", "a", 1)
    await cp.load("w")
    def forever(connection):
        print("reading", flush=True)
        connection.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
                           "SELECT max(i) FROM n").fetchall()
    reading = asyncio.create_task(db._read(forever))
    await asyncio.sleep(0.05)

asyncio.run(main())
"""


def test_the_end_of_a_process_interrupts_a_read(path: Path):
    end = ended(ENDLESS, path)
    assert (end.code, end.out) == (0, "reading\n"), end.err
    assert "leaves work behind" not in end.err


FORKED = """
loop = asyncio.new_event_loop()
loop.run_until_complete(opened())
loop.run_until_complete(cp.supply("w", "a", 1))
loop.run_until_complete(cp.load("w"))
if os.fork() == 0:
    try:
        asyncio.run(cp.load("w"))
    except RuntimeError as error:
        print("refused", flush=True)
    del cp, d, s, db
    gc.collect()
    sys.exit(0)
os.wait()

def still_locked(connection):
    connection.execute("BEGIN IMMEDIATE")
    other = sqlite3.connect(path, isolation_level=None, timeout=0)
    try:
        other.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        print(error, flush=True)
    other.close()
    connection.execute("ROLLBACK")

loop.run_until_complete(cp.supply("w", "b", 2))
print(loop.run_until_complete(cp.load("w")), flush=True)
loop.run_until_complete(db.run(still_locked))
loop.run_until_complete(db.aclose())
loop.close()
"""


@forks
def test_a_fork_reads_nothing_and_takes_nothing_from_its_parent(path: Path):
    end = ended(FORKED, path)
    assert end.out.splitlines() == ["refused", "{'a': 1, 'b': 2}", "database is locked"], end.err
    assert end.code == 0
