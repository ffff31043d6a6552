"""What fails in a shared transaction costs the others nothing but a retry of their own."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from batches import (
    FailsAt,
    app,
    connection_of,
    holder_of,
    interposed_stores,
    of,
    statements,
    together,
    writes,
)
from beside import Beside, no_json, of_transact, raises, swallows, then
from contract import write_lock
from stores import Stores
from without_durability import Clock, Fenced, Milliseconds, Pass, claimed
from without_durability_sqlite import SqliteCheckpointer, connect, migrate
from without_durability_sqlite.errors import operational_error

MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
OUTRANKED = Pass("u", 1)


@pytest.fixture
async def stores(path: Path, migrated: Path, clock: Clock) -> AsyncIterator[Stores]:
    async with interposed_stores(path, migrated, clock) as stores:
        yield stores


FAILING: dict[str, tuple[Callable[[Beside], Awaitable[Any]], type[BaseException]]] = {
    "an outranked record": (
        lambda beside: beside.stores.checkpointer.record(OUTRANKED, "new", 1),
        Fenced,
    ),
    "an outranked effect": (
        lambda beside: beside.stores.checkpointer.transact(OUTRANKED, "new", raises),
        Fenced,
    ),
    "a record that cannot be read, after its claim was touched": (
        lambda beside: beside.stores.checkpointer.record(beside.failing, "unreadable", 2),
        ValueError,
    ),
    "a value that cannot be read": (
        lambda beside: beside.stores.checkpointer.supply("u", "unreadable", 2),
        ValueError,
    ),
    "an arrival that cannot be read": (
        lambda beside: beside.stores.durable.arrive("u", "unreadable", 2),
        ValueError,
    ),
    "an effect that raises after it wrote": (of_transact(raises), LookupError),
    "an effect whose result is no JSON": (of_transact(no_json), TypeError),
    "a conflict that rolls back": (
        of_transact(then("INSERT INTO once VALUES ('taken')")),
        sqlite3.IntegrityError,
    ),
    "a conflict that rolls back and is swallowed": (of_transact(swallows), RuntimeError),
    "a foreign key that fails the commit": (
        of_transact(then("INSERT INTO child VALUES ('nobody')")),
        sqlite3.IntegrityError,
    ),
    "an effect that commits": (of_transact(then("COMMIT")), RuntimeError),
    "an effect that rolls back": (of_transact(then("ROLLBACK")), RuntimeError),
}


@pytest.mark.parametrize("at", [0, 3, 5], ids=["first", "between", "last"])
@pytest.mark.parametrize("name", FAILING)
async def test_a_write_that_fails_leaves_nothing_and_the_others_are_all_there_once(
    beside: Beside, name: str, at: int
):
    call, error = FAILING[name]
    outcome = await beside.outcome(call(beside), at)
    assert type(outcome) is error


@pytest.mark.parametrize("at", [0, 3, 5], ids=["first", "between", "last"])
async def test_a_full_disk_costs_only_the_write_that_needs_the_room(beside: Beside, at: int):
    connection = connection_of(beside.stores)
    ((pages,),) = connection.look("PRAGMA page_count")
    connection.look(f"PRAGMA max_page_count = {pages + 30}")
    big = of_transact(then("INSERT INTO app (value) VALUES (zeroblob(10000000))"))
    outcome = await beside.outcome(big(beside), at)
    assert isinstance(outcome, sqlite3.OperationalError)
    assert outcome.sqlite_errorcode == sqlite3.SQLITE_FULL
    connection.look("PRAGMA max_page_count = 1000000")
    assert await beside.stores.checkpointer.supply("u", "new", 1) == 1


# --- SQLite's own failures ----------------------------------------------------------------------


MEMBERS = {
    "record": lambda beside: beside.stores.checkpointer.record(beside.failing, "new", 1),
    "transact": of_transact(writes("of the failed one")),
    "append": lambda beside: beside.stores.checkpointer.append("u", 1),
    "arrive": lambda beside: beside.stores.durable.arrive("u", "new", 1),
}


@pytest.mark.parametrize("at", [0, 3, 5], ids=["first", "between", "last"])
@pytest.mark.parametrize("name", MEMBERS)
async def test_an_io_error_in_one_write_is_that_writes_alone(beside: Beside, name: str, at: int):
    fails = FailsAt(
        connection_of(beside.stores),
        "INSERT INTO workflow_checkpoint",
        bound=lambda bound: bound["workflow"] == "u",
    )
    outcome = await beside.outcome(MEMBERS[name](beside), at)
    assert fails.raised == [outcome]


@pytest.mark.parametrize("at", [0, 3, 5], ids=["first", "between", "last"])
@pytest.mark.parametrize("name", MEMBERS)
async def test_an_error_with_which_sqlite_ends_the_transaction_is_that_writes_alone(
    beside: Beside, name: str, at: int
):
    """As after some I/O errors: the others must not go on outside of any transaction."""
    connection, raised = connection_of(beside.stores), []

    def before(sql: str, bound: Any) -> None:
        if "INTO workflow_checkpoint" in sql and bound["workflow"] == "u":
            connection.look("ROLLBACK")
            raised.append(operational_error("disk I/O error", "SQLITE_IOERR"))
            raise raised[-1]

    connection.before = before
    outcome = await beside.outcome(MEMBERS[name](beside), at)
    assert raised == [outcome]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, SystemExit])
async def test_whatever_ends_one_write_is_that_writes_alone(
    beside: Beside, error: type[BaseException]
):
    fails = FailsAt(
        connection_of(beside.stores),
        "INSERT INTO workflow_checkpoint",
        error=error,
        bound=lambda bound: bound["workflow"] == "u",
    )

    async def told() -> object:
        try:
            return await MEMBERS["append"](beside)
        except BaseException as raised:  # the loop would end with it
            return raised

    assert [await beside.outcome(told(), 3)] == fails.raised


async def good(beside: Beside) -> Any:
    return await beside.stores.checkpointer.claim("one more", MINUTE, MINUTE)


@pytest.mark.parametrize("at", [0, 3, 5], ids=["first", "between", "last"])
@pytest.mark.parametrize("text", ["COMMIT", "RELEASE", "SAVEPOINT"])
async def test_when_a_shared_transaction_fails_its_writes_run_again_one_by_one(
    beside: Beside, text: str, at: int
):
    fails = FailsAt(connection_of(beside.stores), text)
    assert isinstance(await beside.outcome(good(beside), at), Pass)
    assert len(fails.raised) == 1


@pytest.mark.parametrize("at", [0, 3, 5], ids=["first", "between", "last"])
async def test_a_failing_way_back_to_a_savepoint_costs_only_the_write_that_failed(
    beside: Beside, at: int
):
    fails = FailsAt(connection_of(beside.stores), "ROLLBACK TO")
    assert isinstance(await beside.outcome(of_transact(raises)(beside), at), LookupError)
    assert len(fails.raised) == 1


@pytest.mark.parametrize("at", [0, 3, 5], ids=["first", "between", "last"])
async def test_a_write_whose_commit_fails_alone_too_has_that_error_of_its_own(
    beside: Beside, at: int
):
    """It is the one that poisons every commit of a transaction it is part of."""
    poisoned, raised = [False], []

    def before(sql: str, bound: Any) -> None:
        if sql == "BEGIN IMMEDIATE":
            poisoned[0] = False
        elif "INTO workflow_checkpoint" in sql:
            poisoned[0] |= bound["workflow"] == "u"
        elif sql == "COMMIT" and poisoned[0]:
            raised.append(operational_error("disk I/O error", "SQLITE_IOERR"))
            raise raised[-1]

    connection_of(beside.stores).before = before
    outcome = await beside.outcome(MEMBERS["append"](beside), at)
    assert len(raised) == 2, "once together, once alone"
    assert outcome is raised[1]


@pytest.mark.parametrize("text", ["BEGIN IMMEDIATE", "COMMIT"])
async def test_when_nothing_can_be_written_everybody_has_an_error_of_their_own(
    stores: Stores, text: str
):
    holder = await holder_of(stores, "w")
    FailsAt(connection_of(stores), text, times=100)

    def calls() -> list[Awaitable[Any]]:
        return [
            stores.checkpointer.supply("w", "a", 1),
            stores.checkpointer.append("w", 2),
            stores.checkpointer.transact(holder, "c", writes("effect")),
        ]

    errors = await together(of(stores), *calls())
    assert [error.sqlite_errorname for error in errors] == ["SQLITE_IOERR"] * 3
    assert len({id(error) for error in errors}) == 3
    assert await stores.checkpointer.load("w") == {}
    assert app(stores) == []
    connection_of(stores).before = None
    assert (await together(of(stores), *calls()))[0] == 1
    assert len(await stores.checkpointer.load("w")) == 3


async def test_a_lock_that_is_held_beyond_the_timeout_is_everybodys_own_error(path: Path):
    async with connect(path, timeout=Milliseconds(1)) as database:
        await migrate(database)
        store = SqliteCheckpointer(database)
        holder = await claimed(store, "w")
        with write_lock(path):
            errors = await together(
                database,
                store.supply("w", "a", 1),
                store.record(holder, "b", 1),
                store.claim("v", MINUTE, MINUTE),
            )
        assert {type(error) for error in errors} == {sqlite3.OperationalError}
        assert [error.sqlite_errorcode for error in errors] == [sqlite3.SQLITE_BUSY] * 3
        assert {str(error) for error in errors} == {"database is locked"}
        assert len({id(error) for error in errors}) == 3
        assert await store.load("w") == {}
        assert await store.claim("v", MINUTE, MINUTE) is not None


async def test_two_writes_that_fail_alike_have_an_error_each(beside: Beside):
    store = beside.stores.checkpointer
    errors = await together(
        of(beside.stores),
        store.supply("u", "unreadable", 1),
        store.supply("w", "good", 1),
        store.supply("u", "unreadable", 1),
        store.record(beside.failing, "unreadable", 2),
        store.record(OUTRANKED, "a", 1),
        store.record(OUTRANKED, "a", 1),
    )
    assert errors.pop(1) == 1
    assert [type(error) for error in errors] == [ValueError] * 3 + [Fenced] * 2
    assert len({id(error) for error in errors}) == 5
    assert await store.load("w") == {"good": 1}
    assert beside.of_the_failing() == beside.before


async def test_an_effect_that_failed_may_be_asked_for_again(beside: Beside):
    await beside.outcome(of_transact(raises)(beside), 3)
    store = beside.stores.checkpointer
    assert await store.transact(beside.failing, "new", writes("again")) == "again"
    assert app(beside.stores) == ["third", "again"]


async def test_many_failures_in_one_batch_leave_everybody_their_own(beside: Beside):
    """Every third one fails, some of them by taking the whole transaction with them."""
    store = beside.stores.checkpointer
    calls, expected = [], {}
    for n in range(20):
        calls.append(store.supply("w", f"good {n}", n))
        expected[f"good {n}"] = n
        calls.append(store.record(beside.failing, "unreadable", n))
        calls.append(
            store.transact(beside.failing, "new", then("INSERT INTO once VALUES ('taken')"))
        )
    with statements(connection_of(beside.stores)) as ran:
        outcomes = await together(of(beside.stores), *calls)
    assert outcomes[::3] == [*range(20)]
    assert {type(one) for one in outcomes[1::3]} == {ValueError}
    assert {type(one) for one in outcomes[2::3]} == {sqlite3.IntegrityError}
    assert await store.load("w") == expected
    assert app(beside.stores) == []
    assert beside.of_the_failing() == beside.before
    assert ran.count("COMMIT") <= len(calls)
