"""Effects that raise, return what cannot be kept, or end the transaction that is the store's."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing, nullcontext, suppress
from functools import partial
from typing import Any

import pytest
from test_fault_calls import Scene

from stores import Stores, over_sqlite
from thread_gates import in_time, plain
from without_durability import Clock
from without_durability_sqlite import Database
from without_durability_sqlite.files import main_file
from without_durability_sqlite.store import transacted

Effect = Callable[[Any], object]

WAYS: dict[str, Callable[[Scene, Effect], Awaitable[Any]]] = {
    "transact": lambda scene, effect: scene.call("checkpointer.transact", effect=effect),
    "Run.transact": lambda scene, effect: scene.asked("transact", effect=effect),
    "transacted": lambda scene, effect: scene.database.run(
        lambda connection: transacted(connection, effect)
    ),
}
OVER_BOTH = [way for way in WAYS if way != "transacted"]

APPLICATION = """
CREATE TABLE app (n INTEGER);
CREATE TABLE taken (n INTEGER PRIMARY KEY ON CONFLICT ROLLBACK, u UNIQUE ON CONFLICT ROLLBACK,
                    m NOT NULL ON CONFLICT ROLLBACK);
CREATE TABLE one (n INTEGER PRIMARY KEY);
CREATE TRIGGER refuse BEFORE DELETE ON one BEGIN SELECT RAISE(ROLLBACK, 'stays'); END;
INSERT INTO taken VALUES (1, 1, 1);
INSERT INTO one VALUES (1);
"""


async def over(stores: Stores) -> Scene:
    scene = await Scene.over(stores)
    if scene.database is not None:
        with closing(plain(main_file(scene.database.connection))) as other:
            other.executescript(APPLICATION)
    return scene


@pytest.fixture
async def scene(database: Database, clock: Clock) -> Scene:
    return await over(over_sqlite(database, clock))


def mark(subject: Any) -> None:
    """What an effect does, in either store."""
    if isinstance(subject, dict):
        subject["app"] = subject.get("app", 0) + 1
    else:
        subject.execute("INSERT INTO app VALUES (1)")


def marked_and(then: Effect) -> Effect:
    def effect(subject: Any) -> object:
        mark(subject)
        return then(subject)

    return effect


class Mine(BaseException):
    """Nothing that an `except Exception` catches."""


ERRORS = [LookupError, Mine, asyncio.CancelledError, SystemExit, sqlite3.IntegrityError]


@pytest.mark.parametrize("way", OVER_BOTH)
@pytest.mark.parametrize("error", ERRORS)
async def test_fault_effect_that_raises_is_rolled_back_and_its_error_is_the_one_raised(
    stores: Stores, way, error
):
    scene = await over(stores)
    mine = error("mine")

    def raising(_: object) -> None:
        raise mine

    async with scene.refusal(error, "mine") as caught:
        await WAYS[way](scene, marked_and(raising))
    assert caught.value is mine
    await WAYS[way](scene, marked_and(lambda _: "again"))
    assert (await stores.checkpointer.load("w"))["k"] == "again", "the step was recorded"


@pytest.mark.parametrize("way", OVER_BOTH)
async def test_fault_effect_whose_result_cannot_be_encoded_is_rolled_back(stores: Stores, way):
    scene = await over(stores)
    for result in ({1}, b"x", float("nan"), {1: 1, "1": 1}):
        async with scene.refusal((TypeError, ValueError), "'w'", "'k'", type(result).__name__):
            await WAYS[way](scene, marked_and(lambda _, result=result: result))


ENDINGS: dict[str, Effect] = {
    **{
        sql: lambda cursor, sql=sql: cursor.execute(sql)
        for sql in ("COMMIT", "END", "ROLLBACK", "BEGIN", " -- so\n/* it */ commit;", "ROLLBACK;")
    },
    "another cursor": lambda cursor: cursor.connection.cursor().execute("COMMIT"),
    "the connection": lambda cursor: cursor.connection.execute("ROLLBACK"),
    "a script": lambda cursor: cursor.executescript("SELECT 1; COMMIT; BEGIN"),
    "transacted": lambda cursor: transacted(cursor.connection, mark),
}


def by_the_mode(cursor: Any) -> None:
    cursor.connection.autocommit = False
    cursor.connection.autocommit = True  # which the driver answers with a COMMIT


if sys.version_info >= (3, 12):
    ENDINGS["autocommit"] = by_the_mode


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("swallowed", [False, True], ids=["raised", "swallowed"])
async def test_fault_effect_that_ends_its_transaction_is_refused_and_nothing_of_it_kept(
    scene: Scene, way, swallowed
):
    def ending(end: Effect, cursor: Any) -> str:
        with suppress(sqlite3.Error) if swallowed else nullcontext():
            end(cursor)
        mark(cursor)
        return "done"

    for end in ENDINGS.values():
        async with scene.refusal(RuntimeError, "transaction", "nothing of it is kept"):
            await in_time(WAYS[way](scene, marked_and(partial(ending, end))))


CONFLICTS = {
    "insert": "INSERT OR ROLLBACK INTO one VALUES (1)",
    "update": "UPDATE OR ROLLBACK taken SET m = NULL",
    "a primary key's own clause": "INSERT INTO taken VALUES (1, 2, 2)",
    "a unique column's own clause": "INSERT INTO taken VALUES (2, 1, 2)",
    "a not null column's own clause": "INSERT INTO taken VALUES (2, 2, NULL)",
    "a trigger": "DELETE FROM one",
}


@pytest.mark.parametrize("way", WAYS)
async def test_fault_conflict_clause_whose_error_is_swallowed_keeps_neither_effect_nor_record(
    scene: Scene, way
):
    def swallowing(sql: str, goes_on: bool, cursor: Any) -> str:
        with suppress(sqlite3.IntegrityError):
            cursor.execute(sql)
        if goes_on:
            with suppress(sqlite3.Error):
                mark(cursor)
        return "done"

    for sql in CONFLICTS.values():
        for goes_on in (False, True):
            async with scene.refusal(RuntimeError, "transaction"):
                await WAYS[way](scene, marked_and(partial(swallowing, sql, goes_on)))
        async with scene.refusal(sqlite3.IntegrityError):  # its own error, where it lets it out
            await WAYS[way](scene, marked_and(lambda cursor, sql=sql: cursor.execute(sql)))
