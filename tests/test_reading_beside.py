"""Reads beside writes: they wait for no commit, and see every write acknowledged before them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from batches import Halt, connection_of, interposed_stores, of
from contract import write_lock
from decoding import fill
from losses import deleted, renamed, replaced
from stores import Stores, over_sqlite
from systems import posix_files, posix_names
from thread_gates import (
    Gate,
    fail,
    in_time,
    plain,
    stays_outside,
    until,
)
from without_durability import LEASE, Clock
from without_durability.values import Ended
from without_durability_sqlite import Database, SqliteCheckpointer, connect, migrate
from without_durability_sqlite.loading import PIECE_ROWS

NOW = timedelta(0)


@pytest.fixture
async def stores(path: Path, migrated: Path, clock: Clock) -> AsyncIterator[Stores]:
    async with interposed_stores(path, migrated, clock) as stores:
        yield stores


READS: dict[str, tuple[Callable[[Stores, Any], Awaitable[Any]], Any]] = {
    "load": (lambda s, _: s.checkpointer.load("w"), {"a": 1}),
    "history": (lambda s, _: named(s.checkpointer.history("w")), ["a"]),
    "holds": (lambda s, delivery: s.scheduler.holds(delivery), True),
    "next_ready": (lambda s, _: s.scheduler.next_ready(NOW), None),
    "start_passes": (lambda s, _: s.durable.start_passes(1, NOW, LEASE), ()),
    "prepare": (lambda s, _: s.scheduler.prepare(), None),
    "status": (lambda s, _: state(s.durable.status("at rest")), "blocked"),
    "list": (lambda s, _: ids(s.durable.list(prefix="at")), ["at rest"]),
    "counts": (lambda s, _: total(s.durable.counts()), 1),
    "why": (lambda s, _: is_text(s.durable.why("at rest")), True),
    "result": (lambda s, _: came_to_nothing(s.durable.result("at rest", within=NOW)), True),
}


async def named(history: Awaitable[dict[str, Any]]) -> list[str]:
    return [*await history]


async def state(status: Awaitable[Any]) -> str:
    return str((await status).state)


async def ids(page: Awaitable[Any]) -> list[str]:
    return [one.workflow for one in (await page).items]


async def total(counts: Awaitable[dict[Any, int]]) -> int:
    return sum((await counts).values())


async def is_text(why: Awaitable[str]) -> bool:
    return "at rest" in await why


async def came_to_nothing(result: Awaitable[object]) -> bool:
    with pytest.raises(TimeoutError, match="has not ended"):
        await result
    return True


async def delivered(stores: Stores) -> Any:
    await stores.durable.arrive("at rest", "a", 1)
    (one,) = await stores.durable.start_passes(1, NOW, LEASE)
    await stores.durable.end_pass(one.holder, one.delivery, Ended(None, "blocked", None, 0))
    await stores.checkpointer.supply("w", "a", 1)
    await stores.scheduler.make_ready("w")
    return await stores.scheduler.next_ready(NOW)


@pytest.mark.parametrize("name", READS)
async def test_a_read_is_answered_while_a_write_is_stuck_in_its_commit(stores: Stores, name: str):
    read, answer = READS[name]
    delivery = await delivered(stores)
    halt = Halt(connection_of(stores), "COMMIT")
    writing = asyncio.create_task(stores.checkpointer.supply("w", "b", 2))
    await halt.there()
    assert await in_time(read(stores, delivery)) == answer
    assert not writing.done()
    halt.opened.set()
    assert await in_time(writing) == 2
    assert await stores.checkpointer.load("w") == {"a": 1, "b": 2}


@pytest.mark.parametrize("name", READS)
async def test_a_read_is_answered_while_a_write_waits_for_another_processs_lock(
    stores: Stores, path: Path, name: str
):
    read, answer = READS[name]
    delivery = await delivered(stores)
    connection_of(stores).look("PRAGMA busy_timeout = 60000")
    reached: list[str] = []
    connection_of(stores).before = lambda sql, _: reached.append(sql)
    with write_lock(path):
        writing = asyncio.create_task(stores.checkpointer.supply("w", "b", 2))
        await until(lambda: "BEGIN IMMEDIATE" in reached)
        assert await in_time(read(stores, delivery)) == answer
        assert not writing.done()
    assert await in_time(writing) == 2


async def test_a_read_is_answered_while_work_is_inside_and_while_the_guard_is_held(
    stores: Stores,
):
    await stores.checkpointer.supply("w", "a", 1)
    gate = Gate()
    working = asyncio.create_task(of(stores).run(gate))
    await gate.reached()
    assert await in_time(stores.checkpointer.load("w")) == {"a": 1}
    gate.opened.set()
    await working
    async with of(stores).guard:
        reading = asyncio.create_task(stores.checkpointer.load("w"))
        assert await in_time(reading) == {"a": 1}


async def test_every_acknowledged_write_is_seen_by_the_read_after_it(database: Database):
    checkpointer = SqliteCheckpointer(database)
    expected: dict[str, object] = {}
    for n in range(200):
        expected[str(n)] = await checkpointer.supply("w", str(n), n)
        assert await checkpointer.load("w") == expected


async def test_every_one_of_many_callers_sees_its_own_write(database: Database):
    checkpointer = SqliteCheckpointer(database)

    async def write_and_read(n: int) -> None:
        for turn in range(10):
            await checkpointer.supply("w", f"{n} {turn}", turn)
            assert (await checkpointer.load("w"))[f"{n} {turn}"] == turn
            await checkpointer.append(str(n), turn)
            assert len(await checkpointer.history(str(n))) == turn + 1

    await in_time(asyncio.gather(*map(write_and_read, range(20))))


async def test_what_work_has_written_is_seen_by_the_read_after_it(database: Database):
    await fill(database, "w", 3)
    assert len(await SqliteCheckpointer(database).load("w")) == 3


def in_memory(path: Path, clock: Clock) -> Database:
    return connect(":memory:", clock=clock.seconds)


def rollback_journal(path: Path, clock: Clock) -> Database:
    return Database(plain(path), clock=clock.seconds)


@pytest.mark.parametrize("opened", [in_memory, rollback_journal])
async def test_a_database_without_a_log_answers_every_read_between_its_writes(
    opened: Callable[[Path, Clock], Database], path: Path, clock: Clock
):
    async with opened(path, clock) as database:
        await migrate(database)
        stores = over_sqlite(database, clock)
        delivery = await delivered(stores)
        for read, answer in READS.values():
            assert await in_time(read(stores, delivery)) == answer
        await fill(database, "v", 2 * PIECE_ROWS + 1)
        assert len(await stores.checkpointer.load("v")) == 2 * PIECE_ROWS + 1
        assert database._thread.reader is None, "a second connection sees nothing of it, or waits"


@pytest.mark.parametrize("opened", [in_memory, rollback_journal])
async def test_a_database_without_a_log_shows_no_write_before_its_commit(
    opened: Callable[[Path, Clock], Database], path: Path, clock: Clock
):
    async with opened(path, clock) as database:
        await migrate(database)
        checkpointer = SqliteCheckpointer(database)
        holder = await checkpointer.claim("w", LEASE, LEASE)
        assert holder is not None
        gate = Gate(then=fail(LookupError()))
        effect = asyncio.create_task(checkpointer.transact(holder, "a", gate))
        await gate.reached()
        reading = asyncio.create_task(checkpointer.load("w"))
        await stays_outside(reading)
        gate.opened.set()
        with pytest.raises(LookupError):
            await effect
        assert await in_time(reading) == {}


# --- the reader's file --------------------------------------------------------------------------


@posix_files
@pytest.mark.parametrize("lose", [deleted, renamed, replaced])
async def test_a_first_read_of_a_file_that_is_lost_says_so_and_makes_no_new_one(
    path: Path, migrated: Path, lose: Callable[[Path], object]
):
    path.write_bytes(migrated.read_bytes())
    async with connect(path) as database:
        lose(path)
        left = {one.name: one.stat().st_size for one in path.parent.iterdir()}
        with pytest.raises(sqlite3.OperationalError, match="deleted or replaced") as lost:
            await SqliteCheckpointer(database).load("w")
        assert lost.value.sqlite_errorname == "SQLITE_READONLY_DBMOVED"
        assert {one.name: one.stat().st_size for one in path.parent.iterdir()} == left


@posix_files
@pytest.mark.parametrize("lose", [deleted, renamed, replaced])
async def test_a_file_lost_just_before_the_reader_opens_it_is_not_made_anew(
    path: Path, migrated: Path, lose: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
):
    path.write_bytes(migrated.read_bytes())
    real = sqlite3.connect
    left: list[dict[str, int]] = []

    def lost_first(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        lose(path)
        left.append({one.name: one.stat().st_size for one in path.parent.iterdir()})
        return real(*arguments, **settings)

    async with connect(path) as database:
        monkeypatch.setattr(sqlite3, "connect", lost_first)
        with pytest.raises(sqlite3.Error):
            await SqliteCheckpointer(database).load("w")
        assert [{one.name: one.stat().st_size for one in path.parent.iterdir()}] == left
        monkeypatch.undo()


NAMES = [
    *("a?mode=memory", "a#b", "a%20b", "a b", "%", "a&b=c;d", "ü 🦆", "e\u0301", "'\""),
    *("file:a", "a\\b", " leading", "trailing ", "new\nline"),
]


@posix_names
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("of_folder", [False, True], ids=["file", "folder"])
async def test_the_reader_opens_the_same_file_whatever_its_name(
    tmp_path: Path, name: str, of_folder: bool
):
    folder = tmp_path / (name if of_folder else "folder")
    folder.mkdir()
    path = folder / ("workflows.db" if of_folder else name)
    async with connect(path) as database:
        await migrate(database)
        await SqliteCheckpointer(database).supply("w", "a", 1)
        assert await SqliteCheckpointer(database).load("w") == {"a": 1}
        strangers = [one for one in folder.iterdir() if not one.name.startswith(path.name)]
        assert strangers == []


@posix_names
async def test_the_reader_opens_a_file_whose_name_is_no_text(tmp_path: Path):
    path = tmp_path / "not utf-8 \udcff"
    try:
        path.touch()
    except OSError:
        pytest.skip("this filesystem holds names that are text only")
    async with connect(path) as database:
        await migrate(database)
        assert await SqliteCheckpointer(database).load("w") == {}


async def test_the_reader_finds_its_file_after_the_folder_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    async with connect("workflows.db") as database:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        await migrate(database)
        assert await SqliteCheckpointer(database).load("w") == {}


async def test_the_reader_writes_nothing(database: Database):
    await SqliteCheckpointer(database).load("w")
    reader = database._thread.reader
    assert reader is not None
    assert reader.connection is not None
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.connection.execute("DELETE FROM workflow_checkpoint")
