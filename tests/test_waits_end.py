"""Waits that end: their time is over, their caller goes away, a look fails, the loop ends."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from contract import cancelled
from decoding import Gated
from gated import turns
from idling import (
    A_MOMENT,
    MINUTE,
    NOW,
    SOON,
    Waits,
    by_next_ready,
    durable_over,
    each_way,
    idle,
    waiters,
    watch_of,
)
from thread_gates import Gate, in_time, plain, until
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    connect,
)


@pytest.mark.parametrize("within", [NOW, A_MOMENT, SOON])
async def test_a_wait_ends_with_nothing_when_its_time_is_over(
    anywhere: Database, within: timedelta
):
    durable = durable_over(anywhere)
    assert await in_time(durable.scheduler.next_ready(within)) is None
    assert await in_time(durable.start_passes(3, within, MINUTE)) == ()
    assert waiters(anywhere) == 0


async def test_a_wait_ends_although_the_reader_is_busy(filed: Database):
    await SqliteCheckpointer(filed).supply("w", "a", 1)
    codec = Gated()
    loading = asyncio.create_task(SqliteCheckpointer(filed, codec).load("w"))
    await codec.gate.reached()
    assert await in_time(durable_over(filed).scheduler.next_ready(NOW)) is None
    assert not loading.done()
    codec.gate.opened.set()
    assert await in_time(loading) == {"a": 1}
    assert waiters(filed) == 0


async def test_a_wait_ends_although_the_writer_is_busy(filed: Database):
    """Something is ready, and nobody gets to take it: it is there for whoever comes next."""
    durable = durable_over(filed)
    await durable.scheduler.make_ready("w")
    gate = Gate()
    working = asyncio.create_task(filed.run(gate))
    await gate.reached()
    assert await in_time(durable.scheduler.next_ready(NOW)) is None
    gate.opened.set()
    await working
    assert await durable.scheduler.next_ready(NOW)


@each_way
async def test_a_waiter_that_goes_away_leaves_nothing_behind(anywhere: Database, waits: Waits):
    async with idle(anywhere, waits(durable_over(anywhere))) as task:
        await cancelled(task)
        assert waiters(anywhere) == 0
    assert watch_of(anywhere).pause() is None


async def test_a_waiter_that_goes_away_while_it_is_about_to_look_leaves_nothing_behind(
    filed: Database, monkeypatch: pytest.MonkeyPatch
):
    """Its look has begun, and is the last to hear of it."""
    await SqliteCheckpointer(filed).load("nothing")
    reader = filed._thread.reader
    assert reader is not None
    gate, real = Gate(), reader.opened

    def opened() -> sqlite3.Connection:
        gate(None)
        return real()

    monkeypatch.setattr(reader, "opened", opened)
    task = asyncio.create_task(by_next_ready(durable_over(filed)))
    await gate.reached()
    await cancelled(task)
    monkeypatch.undo()
    gate.opened.set()
    await SqliteCheckpointer(filed).load("nothing")
    assert waiters(filed) == 0


async def test_a_waiter_that_goes_away_while_it_waits_in_line_never_looks(filed: Database):
    await SqliteCheckpointer(filed).supply("w", "a", 1)
    codec = Gated()
    loading = asyncio.create_task(SqliteCheckpointer(filed, codec).load("w"))
    await codec.gate.reached()
    task = asyncio.create_task(by_next_ready(durable_over(filed)))
    await turns()
    await cancelled(task)
    codec.gate.opened.set()
    await loading
    await SqliteCheckpointer(filed).load("nothing")
    assert waiters(filed) == 0


async def test_a_waiter_that_goes_away_as_it_is_woken_takes_nothing(filed: Database):
    durable = durable_over(filed)
    async with idle(filed, by_next_ready(durable)) as task:
        gate = Gate()
        working = asyncio.create_task(filed.run(gate))
        await gate.reached()
        ready = asyncio.create_task(durable.scheduler.make_ready("w"))
        await turns()
        gate.opened.set()
        await ready
        await cancelled(task)
        await working
    delivery = await durable.scheduler.next_ready(NOW)
    assert delivery is not None
    assert waiters(filed) == 0


async def test_a_look_that_fails_wakes_whoever_waits_and_gives_them_the_error(filed: Database):
    async with idle(filed, by_next_ready(durable_over(filed, poll=A_MOMENT))) as task:

        def fails(*_: object) -> Any:
            raise sqlite3.OperationalError("the look failed")

        real, watch_of(filed)._look = watch_of(filed)._look, fails
        with closing(plain(filed._thread.file.path)) as other:  # type: ignore[union-attr]
            other.execute("CREATE TABLE others (name TEXT)")
        with pytest.raises(sqlite3.OperationalError, match="the look failed"):
            await in_time(task)
        assert waiters(filed) == 0
        watch_of(filed)._look = real
    await durable_over(filed).scheduler.make_ready("w")
    assert await durable_over(filed).scheduler.next_ready(NOW)


async def test_closing_a_database_ends_the_waits_on_it(path: Path, migrated: Path):
    path.write_bytes(migrated.read_bytes())
    database = connect(path)
    task = asyncio.create_task(database_wait(database))
    await until(lambda: waiters(database) == 1)
    await in_time(database.aclose())
    assert await in_time(task) in ("nothing", "closed")


async def database_wait(database: Database) -> str:
    try:
        found = await durable_over(database).scheduler.next_ready(SOON)
    except sqlite3.ProgrammingError:
        return "closed"
    return "nothing" if found is None else found.workflow


def test_a_waiter_of_a_loop_that_has_ended_keeps_nobody_from_being_woken(
    path: Path, migrated: Path
):
    path.write_bytes(migrated.read_bytes())
    database = connect(path)
    left = asyncio.new_event_loop()

    async def leave_waiting() -> asyncio.Task[Any]:
        task = asyncio.create_task(by_next_ready(durable_over(database)))
        await until(lambda: waiters(database) == 1)
        await SqliteCheckpointer(database).load("nothing")
        return task

    async def wait_beside() -> None:
        async with idle(database, by_next_ready(durable_over(database))) as task:
            await durable_over(database).scheduler.make_ready("w")
            assert await in_time(task) == "w"
        await database.aclose()

    task = left.run_until_complete(leave_waiting())
    asyncio.run(wait_beside())
    task.cancel()
    with suppress(asyncio.CancelledError):
        left.run_until_complete(asyncio.wait((task,)))
    left.close()


async def test_waiting_leaves_nothing_in_the_folder(path: Path, migrated: Path):
    """Beside what SQLite keeps there and the file for taking turns."""
    path.write_bytes(migrated.read_bytes())
    async with connect(path) as database, idle(database, by_next_ready(durable_over(database))):
        for one in path.parent.iterdir():
            assert not one.lstat().st_mode & 0o022 or one.is_symlink(), f"{one} is writable"
    left = {one.name.removeprefix(path.name) for one in path.parent.iterdir()}
    assert left <= {"", "-turn"}
