"""K1 to K4: cancellation, at every moment it can land."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from children import Ended
from gated import turns
from older_files import shape
from thread_gates import stays_outside
from without_durability import Delivery, Pass, claimed, ready
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    migrate,
)

MIN = timedelta(minutes=1)
LATER = datetime(2031, 1, 1, tzinfo=UTC)

Call = Callable[[], Awaitable[object]]
CancelMidway = Callable[[Call], Awaitable[None]]

NOT_BEGUN = ["unstarted", "queued", "locked out", "at the lock"]
BEGUN = ["inside", "unheard"]


@pytest.fixture
def moment(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cancel_midway(
    moment: str,
    database: Database,
    other: sqlite3.Connection,
    trap: Callable[[str], Any],
) -> CancelMidway:
    """Start a call and cancel it at one moment; the store is quiet again on return."""

    async def unstarted(call: Call) -> None:
        asyncio.create_task(call()).cancel()  # type: ignore[arg-type]

    async def queued(call: Call) -> None:
        leave = threading.Event()
        before = asyncio.create_task(database.run(lambda _: leave.wait(10)))
        task = asyncio.ensure_future(call())
        for _ in range(3):
            await asyncio.sleep(0)
        await cancelled(task)
        leave.set()
        await before

    async def stopped(call: Call, statement: str) -> tuple[Any, asyncio.Future[object]]:
        at = trap(statement)
        task = asyncio.ensure_future(call())
        await asyncio.to_thread(at.reached.wait, 10)
        return at, task

    async def locked_out(call: Call) -> None:
        other.execute("BEGIN IMMEDIATE")
        at, task = await stopped(call, "BEGIN IMMEDIATE")
        at.opened.set()
        await cancelled(task)
        other.execute("ROLLBACK")

    async def at_the_lock(call: Call) -> None:
        at, task = await stopped(call, "BEGIN IMMEDIATE")
        await cancelled(task)
        at.opened.set()

    async def inside(call: Call) -> None:
        at, task = await stopped(call, "COMMIT")
        await cancelled(task)
        at.opened.set()

    async def unheard(call: Call) -> None:
        at, task = await stopped(call, "COMMIT")
        at.opened.set()
        while database.guard.locked():  # the loop must not learn of it before the cancellation
            time.sleep(0.001)
        await cancelled(task)

    async def midway(call: Call) -> None:
        how = {
            "unstarted": unstarted,
            "queued": queued,
            "locked out": locked_out,
            "at the lock": at_the_lock,
            "inside": inside,
            "unheard": unheard,
        }[moment]
        await how(call)
        await asyncio.sleep(0)
        await database.run(lambda _: None)

    return midway


async def cancelled(task: asyncio.Future[object]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        raise AssertionError(f"cancelled, it returned {await task!r}")


TABLES = ("workflow_checkpoint", "workflow_claim", "workflow_queue")


def contents(connection: sqlite3.Connection) -> dict[str, list[Any]]:
    return {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES}


AT_ANY_MOMENT = pytest.mark.parametrize("moment", [*NOT_BEGUN, *BEGUN], indirect=True)


@AT_ANY_MOMENT
@pytest.mark.parametrize("held_before", [False, True])
async def test_k3_a_claim_whose_caller_was_cancelled_is_free_at_once(
    held_before: bool, cancel_midway: CancelMidway, checkpointer: SqliteCheckpointer
) -> None:
    if held_before:
        before = await checkpointer.claim("z", MIN, MIN)
        assert before is not None
        await checkpointer.release(before)
    await cancel_midway(lambda: checkpointer.claim("z", 5 * MIN, MIN))
    assert await checkpointer.claim("z", 5 * MIN, MIN) is not None, "nobody owns the claim"


@pytest.mark.parametrize("moment", [*NOT_BEGUN, *BEGUN], indirect=True)
async def test_k3_a_cancelled_and_refused_claim_takes_nothing_from_its_holder(
    cancel_midway: CancelMidway, checkpointer: SqliteCheckpointer
) -> None:
    holder = await checkpointer.claim("z", 5 * MIN, MIN)
    assert holder is not None
    await cancel_midway(lambda: checkpointer.claim("z", 5 * MIN, MIN))
    assert await checkpointer.renew(holder, MIN)
    assert await checkpointer.claim("z", 5 * MIN, MIN) is None


@AT_ANY_MOMENT
async def test_k3_a_delivery_whose_taker_was_cancelled_is_visible_at_once(
    cancel_midway: CancelMidway, scheduler: SqliteScheduler
) -> None:
    await scheduler.make_ready("w")
    await cancel_midway(lambda: scheduler.next_ready(timedelta(seconds=5)))
    delivery = await scheduler.next_ready(timedelta(0))
    assert delivery is not None, "nobody holds the delivery"
    assert delivery.workflow == "w"
    assert await scheduler.next_ready(timedelta(0)) is None


@AT_ANY_MOMENT
async def test_k3_a_delivery_whose_extension_was_cancelled_is_still_its_takers(
    cancel_midway: CancelMidway, scheduler: SqliteScheduler, other: sqlite3.Connection
) -> None:
    await scheduler.make_ready("w")
    delivery = await scheduler.next_ready(timedelta(0))
    assert delivery is not None
    before = contents(other)
    await cancel_midway(lambda: scheduler.extend(delivery, 60 * MIN))
    assert await scheduler.holds(delivery), "the only receipt anybody has no longer counts"
    assert contents(other) == before, "a cancelled extension keeps the row out for longer"
    await scheduler.done(delivery)
    assert contents(other)["workflow_queue"] == []


@AT_ANY_MOMENT
async def test_k3_a_wakeup_during_a_cancelled_take_is_not_lost(
    cancel_midway: CancelMidway, scheduler: SqliteScheduler
) -> None:
    await scheduler.make_ready("w")
    await cancel_midway(lambda: scheduler.next_ready(timedelta(seconds=5)))
    await scheduler.make_ready("w")
    delivery = await scheduler.next_ready(timedelta(0))
    assert delivery is not None
    await scheduler.done(delivery)
    assert await scheduler.next_ready(timedelta(0)) is None


@AT_ANY_MOMENT
async def test_k3_ready_keeps_no_delivery_of_a_cancelled_caller(
    cancel_midway: CancelMidway, durable: SqliteDurable
) -> None:
    async def delivered() -> Delivery:
        return await anext(ready(durable.scheduler, timedelta(seconds=5)))

    await durable.scheduler.make_ready("w")
    await cancel_midway(delivered)
    assert await durable.scheduler.next_ready(timedelta(0)) is not None, "nobody holds it"


@AT_ANY_MOMENT
async def test_k3_claimed_grants_nothing_to_a_cancelled_caller(
    cancel_midway: CancelMidway, checkpointer: SqliteCheckpointer
) -> None:
    await cancel_midway(lambda: claimed(checkpointer, "z"))
    assert await checkpointer.claim("z", 5 * MIN, MIN) is not None, "nobody owns the claim"


async def test_k3_in_memory_a_take_cancelled_as_its_wakeup_arrives_leaves_it_there(
    stores: Any,
) -> None:
    task = asyncio.create_task(stores.scheduler.next_ready(timedelta(seconds=5)))
    await turns()
    await stores.scheduler.make_ready("w")
    await cancelled(task)
    assert await stores.scheduler.next_ready(timedelta(0)) is not None


WRITES: dict[str, Callable[[SqliteDurable, Pass, Delivery], Awaitable[object]]] = {
    "record": lambda d, holder, _: d.checkpointer.record(holder, "k", 1),
    "transact": lambda d, holder, _: d.checkpointer.transact(holder, "k", lambda cursor: 1),
    "supply": lambda d, *_: d.checkpointer.supply("w", "k", 1),
    "append": lambda d, *_: d.checkpointer.append("w", "hello"),
    "discard": lambda d, *_: d.checkpointer.discard("v"),
    "release": lambda d, holder, _: d.checkpointer.release(holder),
    "extend": lambda d, holder, _: d.checkpointer.extend(holder, 60 * MIN, MIN),
    "renew": lambda d, holder, _: d.checkpointer.renew(holder, 2 * MIN),
    "make_ready": lambda d, *_: d.scheduler.make_ready("w"),
    "schedule": lambda d, *_: d.scheduler.schedule("w", LATER),
    "cancel": lambda d, *_: d.scheduler.cancel("v"),
    "wake_at": lambda d, _, delivery: d.scheduler.wake_at(delivery, LATER),
    "done": lambda d, _, delivery: d.scheduler.done(delivery),
    "arrive": lambda d, *_: d.arrive("w", "k", 1),
    "deliver": lambda d, *_: d.deliver("w", "hello"),
    "delete": lambda d, *_: d.delete("v"),
}


async def begun(durable: SqliteDurable) -> tuple[Pass, Delivery]:
    """A file in which every one of the writes has something to change."""
    await durable.arrive("v", "k", 1)
    delivery = await durable.scheduler.next_ready(timedelta(0))
    holder = await durable.checkpointer.claim("w", 5 * MIN, MIN)
    assert holder is not None
    assert delivery is not None
    return holder, delivery


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("moment", NOT_BEGUN, indirect=True)
async def test_k4_a_write_cancelled_before_it_held_the_lock_does_not_happen(
    write: str, cancel_midway: CancelMidway, durable: SqliteDurable, other: sqlite3.Connection
) -> None:
    holder, delivery = await begun(durable)
    before = contents(other)
    await cancel_midway(lambda: WRITES[write](durable, holder, delivery))
    assert contents(other) == before


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("moment", BEGUN, indirect=True)
async def test_k4_a_write_cancelled_after_it_began_happened_whole(
    write: str,
    cancel_midway: CancelMidway,
    durable: SqliteDurable,
    other: sqlite3.Connection,
    trap: Callable[[str], Any],
) -> None:
    holder, delivery = await begun(durable)
    before = contents(other)
    await cancel_midway(lambda: WRITES[write](durable, holder, delivery))
    after = contents(other)
    assert after != before
    if write == "arrive":
        assert len(after["workflow_checkpoint"]) == len(after["workflow_queue"]) == 2
    if write == "delete":
        assert after["workflow_checkpoint"] == after["workflow_queue"] == []


@AT_ANY_MOMENT
async def test_k4_a_cancelled_migration_makes_every_table_or_none(
    moment: str, cancel_midway: CancelMidway, database: Database, other: sqlite3.Connection
) -> None:
    made = shape(other)
    for kind, name, _ in made:
        if kind == "table":
            other.execute(f"DROP TABLE {name}")
    await cancel_midway(lambda: migrate(database))
    assert shape(other) == (made if moment in BEGUN else [])
    await migrate(database)
    assert shape(other) == made


async def test_k4_a_message_sent_again_after_a_timeout_is_there_once(
    durable: SqliteDurable, other: sqlite3.Connection
) -> None:
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await durable.deliver("w", "hello")
    other.execute("ROLLBACK")
    await durable.deliver("w", "hello")
    assert list((await durable.checkpointer.load("w")).values()) == ["hello"]


async def test_k2_what_supply_acknowledged_survives_the_failing_effect_before_it(
    checkpointer: SqliteCheckpointer, other: sqlite3.Connection
) -> None:
    holder = await checkpointer.claim("w", 5 * MIN, MIN)
    assert holder is not None
    other.execute("CREATE TABLE app (id INTEGER)")
    inside, leave = threading.Event(), threading.Event()
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reported.append(report))

    def effect(cursor: sqlite3.Cursor) -> None:
        cursor.execute("INSERT INTO app VALUES (1)")
        inside.set()
        leave.wait(10)
        raise LookupError("the effect's own")

    task = asyncio.create_task(checkpointer.transact(holder, "k", effect))
    await asyncio.to_thread(inside.wait, 10)
    for one in asyncio.all_tasks() - {asyncio.current_task()}:
        one.cancel()
    supplied = asyncio.create_task(checkpointer.supply("other", "k", "v"))
    await stays_outside(supplied)
    leave.set()
    await supplied
    assert task.cancelled()
    assert await checkpointer.load("other") == {"k": "v"}
    assert await checkpointer.load("w") == {}
    assert other.execute("SELECT * FROM app").fetchall() == []
    assert isinstance(reported[0]["exception"], LookupError), "the effect's error went nowhere"


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("through", ["transact", "run"])
async def test_k2_what_any_call_acknowledged_survives_what_failed_before_it(
    through: str, write: str, durable: SqliteDurable, other: sqlite3.Connection
) -> None:
    checkpointer = durable.checkpointer
    holder, delivery = await begun(durable)
    failing = await checkpointer.claim("x", 5 * MIN, MIN)
    assert failing is not None
    other.execute("CREATE TABLE app (id INTEGER)")
    inside, leave = threading.Event(), threading.Event()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    def fails(cursor: Any) -> None:
        cursor.execute("INSERT INTO app VALUES (1)")
        inside.set()
        leave.wait(10)
        raise LookupError("the effect's own")

    def fails_by_hand(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")
        fails(connection)

    before = contents(other)
    if through == "transact":
        first = asyncio.ensure_future(checkpointer.transact(failing, "k", fails))
    else:
        first = asyncio.ensure_future(checkpointer.database.run(fails_by_hand))
    await asyncio.to_thread(inside.wait, 10)
    await cancelled(first)
    acknowledged = asyncio.ensure_future(WRITES[write](durable, holder, delivery))
    for _ in range(3):
        await asyncio.sleep(0)
    assert contents(other) == before, "a write entered somebody else's transaction"
    leave.set()
    await acknowledged
    assert contents(other) != before, "what was acknowledged is not in the file"
    assert other.execute("SELECT * FROM app").fetchall() == []


SLOW = """
SLOW = '''WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 750000)
          SELECT count(*) FROM n'''
inside = threading.Event()
left = []

def slow(cursor):
    inside.set()
    if arguments[0] == "sql":
        cursor.execute(SLOW).fetchall()
    else:
        time.sleep(0.15)
        cursor.execute("SELECT 1").fetchall()
    left.append(True)

async def busy():
    p = await cp.claim("w", 5 * MIN, MIN)
    await (cp.transact(p, "k", slow) if arguments[1] == "transact" else db.run(slow))

async def until_inside():
    while not inside.is_set():
        await asyncio.sleep(0.01)
"""

CLOSED_AFTER_CANCELLING_ALL = """
async def main():
    await opened()
    task = asyncio.create_task(busy())
    await until_inside()
    for one in asyncio.all_tasks() - {asyncio.current_task()}:
        one.cancel()
    await db.aclose()
    assert left, "aclose returned with the thread inside"
    assert task.cancelled()

asyncio.run(main())
"""

CLOSED_BY_TEARDOWN = """
async def background():
    await opened()
    try:
        await busy()
    finally:
        await db.aclose()
        assert left, "aclose returned with the thread inside"
        left.append("closed")

async def main():
    task = asyncio.create_task(background())
    await until_inside()
    return task

asyncio.run(main())
assert left == [True, "closed"], left
"""

WORKER_TORN_DOWN = """
async def body(run):
    await (run.transact("k", slow, str) if arguments[1] == "transact" else db.run(slow))

async def background():
    await opened()
    await s.make_ready("w")
    try:
        async with db:
            await work(d, body)
    finally:
        assert left, "aclose returned with the thread inside"
        left.append("closed")

async def main():
    task = asyncio.create_task(background())
    await until_inside()
    return task

asyncio.run(main())
assert left == [True, "closed"], left
"""

CANCELLED_WHILE_CLOSING = """
async def main():
    await opened()
    task = asyncio.create_task(busy())
    await until_inside()
    closing = asyncio.create_task(db.aclose())
    for _ in range(5):
        await asyncio.sleep(0)
    for one in asyncio.all_tasks() - {asyncio.current_task()}:
        one.cancel()
    await asyncio.wait([closing, task])
    assert closing.cancelled() and task.cancelled()
    await db.aclose()
    assert left, "aclose returned with the thread inside"

asyncio.run(main())
"""

LOOP_CLOSED = """
import warnings
warnings.simplefilter("ignore")
loop = asyncio.new_event_loop()
loop.run_until_complete(opened())
task = loop.create_task(busy())
loop.run_until_complete(until_inside())
loop.close()
del task
asyncio.run(db.aclose())
assert left, "aclose returned with the thread inside"
"""


@pytest.mark.parametrize(
    ("doing", "through"), [("sql", "transact"), ("python", "transact"), ("python", "run")]
)
@pytest.mark.parametrize(
    "program",
    [
        CLOSED_AFTER_CANCELLING_ALL,
        CLOSED_BY_TEARDOWN,
        WORKER_TORN_DOWN,
        CANCELLED_WHILE_CLOSING,
        LOOP_CLOSED,
    ],
    ids=[
        "all tasks cancelled",
        "torn down",
        "worker torn down",
        "cancelled while closing",
        "loop closed",
    ],
)
def test_k1_closing_waits_for_the_thread_to_leave_the_connection(
    program: str,
    through: str,
    doing: str,
    child: Callable[..., Ended],
) -> None:
    ended = child(SLOW + program, doing, through)
    assert ended.code == 0, ended.err
