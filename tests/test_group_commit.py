"""Group commit: writes that wait share a transaction; each has its own place in it and result."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from batches import (
    Halt,
    app,
    came_to,
    connection_of,
    holder_of,
    interposed_stores,
    of,
    seen,
    statements,
    together,
    unhurried,
    waiting,
    writes,
)
from contract import cancelled, is_held
from stores import Stores
from thread_gates import Gate, in_time, stays_outside
from without_durability import Clock, Entry, Pass, Recorded
from without_durability_sqlite import SqliteCheckpointer, commits, connect, migrate, thread

MINUTE = timedelta(minutes=1)
BEGIN, COMMIT = "BEGIN IMMEDIATE", "COMMIT"


@pytest.fixture
async def stores(path: Path, migrated: Path, clock: Clock) -> AsyncIterator[Stores]:
    async with interposed_stores(path, migrated, clock) as stores:
        yield stores


async def test_writes_that_wait_share_one_transaction_and_each_has_its_own_result(stores: Stores):
    store, holder = stores.checkpointer, await holder_of(stores, "w")
    await stores.scheduler.make_ready("queued")
    with statements(connection_of(stores)) as ran:
        outcomes = await together(
            of(stores),
            store.supply("w", "a", 1),
            store.record(holder, "a", 2),
            store.record(holder, "b", 3),
            store.transact(holder, "c", writes("effect")),
            store.append("w", 4),
            store.claim("v", MINUTE, MINUTE),
            store.claim("w", MINUTE, MINUTE),
            store.renew(holder, MINUTE),
            stores.durable.arrive("u", "a", 5),
            stores.scheduler.next_ready(timedelta(0)),
        )
    supplied, lost, first, effect, entry, granted, refused, renewed, arrived, taken = outcomes
    assert (supplied, lost, first) == (1, Recorded(1, False), Recorded(3, True))
    assert (effect, entry.value, arrived, renewed) == ("effect", 4, 5, True)
    assert isinstance(granted, Pass)
    assert refused is None
    assert taken.workflow == "queued"
    # The taker looks first, beside the writes, and so it may come behind them.
    assert Counter(ran)[BEGIN] == Counter(ran)[COMMIT] <= 2
    assert await store.load("w") == {"a": 1, "b": 3, "c": "effect", entry.key: 4}
    assert app(stores) == ["effect"]


async def test_twenty_writes_that_wait_are_one_commit(stores: Stores):
    with statements(connection_of(stores)) as ran:
        values = await together(
            of(stores), *(stores.checkpointer.supply("w", str(n), n) for n in range(20))
        )
    assert values == [*range(20)]
    assert Counter(ran)[BEGIN] == Counter(ran)[COMMIT] == 1


async def test_writes_that_arrive_during_a_commit_share_the_next_one(stores: Stores):
    store = stores.checkpointer
    halt = Halt(connection_of(stores), COMMIT)
    first = asyncio.create_task(store.supply("w", "first", 1))
    await halt.there()
    others = [asyncio.create_task(store.supply("w", str(n), n)) for n in range(5)]
    await stays_outside(first, *others)
    with statements(connection_of(stores)) as ran:
        halt.opened.set()
        await came_to([first, *others])
    assert Counter(ran)[BEGIN] == Counter(ran)[COMMIT] == 1
    assert [*await store.load("w")] == ["first", *map(str, range(5))]


async def test_a_lone_write_is_a_transaction_of_its_own_without_a_savepoint(stores: Stores):
    holder = await holder_of(stores, "w")
    with statements(connection_of(stores)) as ran:
        await stores.checkpointer.transact(holder, "a", writes("effect"))
    assert Counter(ran)[BEGIN] == Counter(ran)[COMMIT] == 1
    assert not [sql for sql in ran if "SAVEPOINT" in sql]


async def test_a_lone_write_waits_for_nothing_else_to_come(stores: Stores):
    """The line is asked once more without waiting, and the transaction begins."""
    line = of(stores)._thread._jobs
    asked: list[bool] = []

    class Line:
        def get(self, block: bool = True, timeout: float | None = None) -> object:
            item = line.get(block, timeout)
            asked.append(block)
            return item

        def get_nowait(self) -> object:
            asked.append(False)
            return line.get_nowait()

        def put(self, item: object) -> None:
            line.put(item)

        def empty(self) -> bool:
            asked.append(False)
            return line.empty()

    of(stores)._thread._jobs = Line()  # type: ignore[assignment]
    await of(stores).run(lambda _: None)  # from here on the thread waits in the new line
    at_begin: list[list[bool]] = []
    connection_of(stores).before = lambda sql, _: (
        at_begin.append([*asked]) if sql == BEGIN else None
    )
    asked.clear()
    assert await in_time(stores.checkpointer.supply("w", "a", 1)) == 1
    assert at_begin == [[True, False]], "it waited for more"


async def test_no_more_writes_share_a_transaction_than_the_bound_allows(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(thread, "SHARING", 3)
    with statements(connection_of(stores)) as ran:
        await together(of(stores), *(stores.checkpointer.supply("w", str(n), n) for n in range(7)))
    inserts = "".join(
        "b" if sql == BEGIN else "i" for sql in ran if sql == BEGIN or "INTO workflow_ch" in sql
    )
    assert inserts == "biiibiiibi"
    assert [*await stores.checkpointer.load("w")] == [str(n) for n in range(7)]


async def test_the_bound_is_two_hundred(stores: Stores):
    with statements(connection_of(stores)) as ran:
        await together(
            of(stores), *(stores.checkpointer.supply("w", str(n), n) for n in range(201))
        )
    assert thread.SHARING == 200
    assert Counter(ran)[COMMIT] == 2


async def test_a_transaction_that_has_taken_long_enough_leaves_the_rest_for_the_next(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
):
    """Whose writes keep their order, and the place of what waits behind them."""
    monkeypatch.setattr(commits, "SPAN", 0.0)
    store, holder = stores.checkpointer, await holder_of(stores, "w")
    with statements(connection_of(stores)) as ran:
        keys_in_order = "SELECT step FROM workflow_checkpoint ORDER BY seq"
        *values, keys = await together(
            of(stores),
            store.supply("w", "a", 1),
            store.transact(holder, "b", writes("b")),
            store.transact(holder, "c", writes("c")),
            store.supply("w", "d", 4),
            of(stores).run(lambda _: connection_of(stores).look(keys_in_order)),
        )
    assert values == [1, "b", "c", 4]
    assert keys == [("a",), ("b",), ("c",), ("d",)]
    assert ran.count(BEGIN) == ran.count(COMMIT) == 4


async def test_a_caller_that_goes_away_while_its_write_is_left_for_the_next_is_taken_out(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(commits, "SPAN", 0.0)
    store = stores.checkpointer
    halt = Halt(connection_of(stores), COMMIT)
    async with waiting(of(stores), *(store.supply("w", key, key) for key in "abc")) as tasks:
        pass
    await halt.there()
    await cancelled(tasks[1])
    halt.opened.set()
    assert await came_to([tasks[0], tasks[2]]) == ["a", "c"]
    assert await store.load("w") == {"a": "a", "c": "c"}


async def test_work_in_between_runs_in_its_place_and_in_no_transaction(stores: Stores):
    store = stores.checkpointer
    found: list[object] = []

    def look(connection: object) -> None:
        found.append(connection_of(stores).in_transaction)
        found.append(connection_of(stores).look("SELECT step FROM workflow_checkpoint"))

    with statements(connection_of(stores)) as ran:
        await together(
            of(stores), store.supply("w", "a", 1), of(stores).run(look), store.supply("w", "b", 2)
        )
    assert found == [False, [("a",)]]
    assert Counter(ran)[COMMIT] == 2


async def test_nobody_is_answered_before_the_commit(stores: Stores):
    store, holder = stores.checkpointer, await holder_of(stores, "w")
    halt = Halt(connection_of(stores), COMMIT)
    async with waiting(
        of(stores),
        store.supply("w", "a", 1),
        store.transact(holder, "b", writes("effect")),
        store.claim("v", MINUTE, MINUTE),
        stores.scheduler.make_ready("w"),
    ) as tasks:
        pass
    await halt.there()
    await stays_outside(*tasks)
    assert seen(stores, "SELECT step FROM workflow_checkpoint") == []
    assert await in_time(store.load("w")) == {}, "a read found what no caller has heard of"
    halt.opened.set()
    outcomes = await came_to(tasks)
    assert not [one for one in outcomes if isinstance(one, BaseException)]
    assert await store.load("w") == {"a": 1, "b": "effect"}


async def test_messages_keep_the_order_in_which_they_were_sent(stores: Stores):
    sent = [stores.checkpointer.append("w", n) for n in range(10)]
    entries: list[Entry] = await together(of(stores), *sent)
    assert [entry.value for entry in entries] == [*range(10)]
    assert sorted(entry.key for entry in entries) == [entry.key for entry in entries]
    assert [*(await stores.checkpointer.load("w")).values()] == [*range(10)]


async def test_what_one_caller_writes_keeps_its_order(stores: Stores):
    store, holder = stores.checkpointer, await holder_of(stores, "w")
    recorded, _, granted = await together(
        of(stores),
        store.record(holder, "a", 1),
        store.release(holder),
        store.claim("w", MINUTE, MINUTE),
    )
    assert recorded == Recorded(1, True)
    assert granted.token > holder.token
    assert await is_held(stores)


async def test_the_last_of_two_answers_for_a_workflow_in_one_batch_stands(stores: Stores):
    later = stores.clock.now() + MINUTE
    await together(
        of(stores), stores.scheduler.make_ready("w"), stores.scheduler.schedule("w", later)
    )
    assert await stores.scheduler.next_ready(timedelta(0)) is None
    await together(
        of(stores), stores.scheduler.schedule("w", later), stores.scheduler.make_ready("w")
    )
    assert await stores.scheduler.next_ready(timedelta(0))


async def test_a_history_never_runs_backwards_although_the_clock_is_set_back_within_a_batch(
    stores: Stores,
):
    store, minutes = stores.checkpointer, iter((2, 1, 3))

    class SetBack(Clock):
        def seconds(self) -> float:
            return 60.0 * next(minutes)

    of(stores)._commits.now = SetBack().seconds
    await together(of(stores), *(store.supply("w", key, 1) for key in "abc"))
    moments = [written.at for written in (await store.history("w")).values()]
    assert moments == sorted(moments)


@pytest.mark.parametrize("closed", [False, True], ids=["stopped", "closed"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_writes_of_a_loop_that_has_ended_are_there_beside_those_of_the_present_one(
    path: Path, closed: bool, caplog: pytest.LogCaptureFixture
):
    database = connect(path)
    store = SqliteCheckpointer(database)
    asyncio.run(migrate(database))
    ran: list[str] = []
    gate = Gate()
    ended, present = asyncio.new_event_loop(), asyncio.new_event_loop()

    async def leave_waiting() -> list[asyncio.Task[object]]:
        tasks = [asyncio.create_task(database.run(gate))]
        await gate.reached()
        tasks += [asyncio.create_task(store.supply("w", f"ended {n}", n)) for n in range(3)]
        await asyncio.sleep(0)
        return tasks

    async def join_them() -> list[object]:
        database.connection.set_trace_callback(ran.append)
        tasks = [asyncio.ensure_future(store.supply("w", f"present {n}", n)) for n in range(3)]
        await asyncio.sleep(0)
        gate.opened.set()
        return await came_to(tasks)

    left = ended.run_until_complete(leave_waiting())
    if closed:
        ended.close()
    with unhurried():
        assert present.run_until_complete(join_them()) == [0, 1, 2]
    assert ran.count("COMMIT") == 1
    loaded = present.run_until_complete(store.load("w"))
    assert [*loaded] == [f"{whose} {n}" for whose in ("ended", "present") for n in range(3)]
    if not closed:
        assert ended.run_until_complete(came_to([*left]))[1:] == [0, 1, 2]
        ended.close()
    present.run_until_complete(database.aclose())
    present.close()
    del left
