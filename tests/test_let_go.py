"""What an error keeps alive must not block the file, and must not be hurt either."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from without_durability import Completed, Run, claimed, resume
from without_durability_sqlite import Database, SqliteCheckpointer, SqliteEffect

pytestmark = pytest.mark.timeout(20)


def ring() -> None:
    error = ValueError("its own cause")
    raise error from error


def longer_ring() -> None:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__ = second
    second.__context__ = first
    raise first


@pytest.mark.parametrize("fails", [ring, longer_ring])
async def test_an_error_that_is_its_own_cause_hangs_nobody(
    database: Database, fails: Callable[[], None]
):
    store = SqliteCheckpointer(database)
    holder = await claimed(store, "w")
    with pytest.raises(ValueError, match=r"cause|first"):
        await store.transact(holder, "k", lambda _: fails())
    with pytest.raises(ValueError, match=r"cause|first"):
        await database.run(lambda _: fails())
    assert await store.supply("w", "k", 1) == 1


async def test_an_effect_may_raise_from_an_error_that_its_body_has_kept(database: Database):
    store = SqliteCheckpointer(database)

    async def body(run: Run[SqliteEffect]) -> str:
        saved: ValueError | None = None
        try:
            raise ValueError("the body's own")
        except ValueError as error:
            saved = error

        def effect(cursor: sqlite3.Cursor) -> None:
            raise LookupError("the effect's") from saved

        with suppress(LookupError):
            await run.transact("k", effect, str)
        await asyncio.sleep(0)
        return "went on"

    holder = await claimed(store, "w")
    assert await resume(holder, store, body) == Completed("went on")


def half_read(connection: Any) -> None:
    for _ in connection.execute("SELECT 1 UNION SELECT 2"):
        raise LookupError("half-way")


def in_a_group(connection: Any) -> None:
    errors: list[Exception] = []
    try:
        half_read(connection)
    except LookupError as error:
        errors.append(error)
    raise ExceptionGroup("rows", [ExceptionGroup("inner", errors)])


def in_an_unfinished_write(connection: Any) -> None:
    rows = connection.execute(
        "INSERT INTO workflow_queue (namespace, workflow, visible_at)"
        " VALUES ('elsewhere', 'a', 1), ('elsewhere', 'b', 1) RETURNING workflow"
    )
    raise LookupError(rows.fetchone())


@pytest.mark.parametrize("fails", [half_read, in_a_group, in_an_unfinished_write])
@pytest.mark.parametrize("through", ["run", "transact"])
async def test_a_kept_error_with_a_half_read_cursor_in_it_stops_no_write(
    database: Database, path: Any, through: str, fails: Callable[[Any], None]
):
    store = SqliteCheckpointer(database)
    holder = await claimed(store, "w")
    call = {
        "run": lambda: database.run(fails),
        "transact": lambda: store.transact(holder, "k", lambda c: fails(c.connection)),
    }[through]
    with pytest.raises((LookupError, ExceptionGroup)) as kept:
        await call()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("INSERT INTO workflow_queue VALUES ('elsewhere', 'v', 1, NULL, NULL)").close()
    other.close()
    assert await store.supply("w", "k", 1) == 1
    assert kept.value is not None


async def test_a_cursor_that_an_effect_keeps_does_not_outlive_it(database: Database):
    store = SqliteCheckpointer(database)
    holder = await claimed(store, "w")
    kept: list[sqlite3.Cursor] = []

    def effect(cursor: sqlite3.Cursor) -> int:
        kept.extend([cursor, cursor.connection.execute("SELECT 1 UNION SELECT 2")])
        return kept[1].fetchone()[0]

    assert await store.transact(holder, "k", effect) == 1
    for cursor in kept:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            cursor.fetchone()


async def test_an_effect_gets_no_cursor_but_the_stores_own(database: Database):
    store = SqliteCheckpointer(database)
    holder = await claimed(store, "w")
    with pytest.raises(RuntimeError, match="cursors"):
        await store.transact(holder, "k", lambda c: c.connection.cursor(sqlite3.Cursor))
    assert await store.load("w") == {}


@pytest.mark.parametrize("name", ["close", "set_authorizer"])
async def test_an_effect_does_not_take_its_fence_down(database: Database, name: str):
    store = SqliteCheckpointer(database)
    holder = await claimed(store, "w")
    with pytest.raises(RuntimeError, match=name):
        await store.transact(holder, "k", lambda c: getattr(c.connection, name))
    assert await store.load("w") == {}
