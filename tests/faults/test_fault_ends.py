"""Cancelled at any statement: whole or not at all, and what was granted is given back."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from test_fault_calls import AT_ONCE, HOUR, WRITES, Scene, rows_of

from gated import turns
from stores import Stores, over_sqlite
from thread_gates import Stop, in_time, reading
from without_durability import Clock, Delivery, claimed, ready, work
from without_durability_sqlite import connect, migrate

TESTS = Path(__file__).parents[1]
CLAIMED = {
    "checkpointer.claim": "free",
    "durable.start_pass": "taken",
    "durable.start_passes": "ready",
}
"""The calls that claim, each with the workflow it claims."""

GRANTS = [*CLAIMED, "scheduler.next_ready", "scheduler.extend"]


class Prepared:
    """A file as a scene left it, to be copied for one try after another."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path, self.clock = path, clock
        self.arguments: dict[str, Any] = {}
        self.taken: Delivery | None = None

    async def prepare(self) -> Prepared:
        async with connect(self.path, clock=self.clock.seconds) as database:
            await migrate(database)
            scene = await Scene.over(over_sqlite(database, self.clock))
        self.arguments, self.taken = scene.arguments, scene.taken
        return self

    @asynccontextmanager
    async def scene(self) -> AsyncIterator[Scene]:
        copy = self.path.with_name("copy.db")
        for one in copy.parent.glob("copy.db*"):
            if one.is_dir():
                shutil.rmtree(one)
            else:
                one.unlink()
        shutil.copyfile(self.path, copy)
        async with connect(copy, clock=self.clock.seconds) as database:
            stores = over_sqlite(database, self.clock)
            arguments = self.arguments
            yield Scene(stores, arguments["holder"], arguments["delivery"], self.taken)


@pytest.fixture
async def prepared(path: Path, clock: Clock) -> Prepared:
    return await Prepared(path, clock).prepare()


def receipts_apart(contents: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The same, whatever the random part of a receipt is."""
    queue = [(*row[:3], row[3] is not None, *row[4:]) for row in contents["workflow_queue"]]
    return contents | {"workflow_queue": sorted(queue)}


async def cancelled_at_every_statement(
    prepared: Prepared, call: Callable[[Scene], Awaitable[Any]], settles: bool = False
) -> AsyncIterator[tuple[Scene, bool]]:
    """What is there after each try, and whether the operation was to happen.

    It is once it has begun; and in a pass that `settles` once its first statement, which loads
    the records, is past.
    """
    for n in count(1):
        async with prepared.scene() as scene:
            connection = scene.database.connection
            stop = Stop(n, connection, await reading(scene.database))
            task = asyncio.ensure_future(call(scene))
            if not await stop.stands(task):
                stop.opened.set()
                await task
                assert n > 3, "it is no write"
                return
            task.cancel()
            following = asyncio.ensure_future(scene.database.run(lambda connection: "served"))
            if not settles:
                with pytest.raises(asyncio.CancelledError):
                    await in_time(task)
            await turns()
            if stop.at is connection:
                assert not following.done(), "it got past the one that is inside"
            stop.opened.set()
            with suppress(asyncio.CancelledError):
                raise AssertionError(f"cancelled, it returned {await in_time(task)!r}")
            assert await in_time(following) == "served"
            connection.set_trace_callback(None)
            yield scene, stop.begun or (settles and n > 1)


async def done(prepared: Prepared, call: Callable[[Scene], Awaitable[Any]]) -> dict[str, list[Any]]:
    """What is there once the call has returned."""
    async with prepared.scene() as scene:
        await call(scene)
        return receipts_apart(scene.contents())


@pytest.mark.parametrize("name", sorted({*WRITES} - {*GRANTS}))
async def test_fault_cancelled_at_any_statement_a_call_happened_whole_or_not_at_all(prepared, name):
    before = receipts_apart(rows_of(prepared.path))
    after = await done(prepared, lambda scene: scene.call(name))
    tries = cancelled_at_every_statement(prepared, lambda scene: scene.call(name))
    async for scene, begun in tries:
        assert receipts_apart(scene.contents()) == (after if begun else before)


@pytest.mark.parametrize("name", ["step", "transact", "sleep", "receive", "pending"])
async def test_fault_cancelled_at_any_statement_a_pass_has_recorded_its_step_or_not(prepared, name):
    """And a step whose effect has run has its record."""
    before = receipts_apart(rows_of(prepared.path))
    after = await done(prepared, lambda scene: scene.asked(name))
    tries = cancelled_at_every_statement(
        prepared, lambda scene: scene.asked(name), settles=name in ("step", "sleep")
    )
    async for scene, happens in tries:
        assert receipts_apart(scene.contents()) == (after if happens else before)
        if name == "step":
            assert len(scene.effects) == happens


@pytest.mark.parametrize("name", GRANTS)
async def test_fault_cancelled_while_granted_the_grant_is_given_back_at_once(prepared, name):
    before = rows_of(prepared.path)
    async for scene, begun in cancelled_at_every_statement(
        prepared, lambda scene: scene.call(name)
    ):
        if not begun or name == "scheduler.extend":
            assert scene.contents() == before
        if name in CLAIMED:
            again = await scene.call("checkpointer.claim", workflow=CLAIMED[name])
            assert again, "nobody holds the claim"
        assert (await scene.call("scheduler.next_ready")).workflow == "ready"
        assert await scene.call("scheduler.holds"), "the one before it has lost its delivery"


@pytest.mark.parametrize("asking", ["next_ready", "ready", "work"])
async def test_fault_cancelled_while_it_waits_for_a_delivery_whoever_asks_leaves_it_there(
    stores: Stores, asking
):
    """At any turn of the loop around the moment at which the wakeup arrives."""
    scheduler = stores.scheduler

    async def body(run: Any) -> None:
        await asyncio.Event().wait()

    asks = {
        "next_ready": lambda: scheduler.next_ready(HOUR),
        "ready": lambda: anext(ready(scheduler, HOUR)),
        "work": lambda: work(stores.durable, body, now=stores.clock.now),
    }
    for n in range(12):
        task = asyncio.ensure_future(asks[asking]())
        await turns(3)
        await scheduler.make_ready("w")
        await turns(n)
        task.cancel()
        with suppress(asyncio.CancelledError):
            taken = await in_time(task)
            await scheduler.wake_at(taken, stores.clock.now())  # it had heard of it in time
        await scheduler.wake_due(stores.clock.now())
        delivery = await in_time(scheduler.next_ready(AT_ONCE))
        assert delivery is not None, f"the wakeup is lost at turn {n}"
        await scheduler.done(delivery)
        holder = await claimed(stores.checkpointer, "w")
        await stores.checkpointer.release(holder)
