"""K6, K20 and K45: workers that are stopped or killed, and the next one over the same file."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gated import HANG, Overlay, Watched, forever, working
from stores import over_sqlite
from systems import posix_signals
from without_durability import Clock, Contended, Run, SplitDurable, passes, ready, work
from without_durability_sqlite import (
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    connect,
    migrate,
)

Start = Callable[..., "subprocess.Popen[str]"]

SECOND = timedelta(seconds=1)
MIN = timedelta(minutes=1)
NOW = timedelta(0)


def as_is(value: object) -> object:
    return value


class Interrupted:
    """A body of two steps, the second of which never ends while it is interrupted."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.interrupted = True
        self.reached = asyncio.Event()

    async def first(self) -> str:
        self.effects.append("first")
        return "first"

    async def second(self) -> str:
        self.effects.append("second")
        self.reached.set()
        if self.interrupted:
            await forever()
        return "second"

    async def __call__(self, run: Run[Any]) -> None:
        await run.step("first", self.first, as_is)
        await run.step("second", self.second, as_is)


async def cancelled(worker: asyncio.Task[None]) -> None:
    worker.cancel()
    await asyncio.wait((worker,))


async def left_to_the_loop(worker: asyncio.Task[None]) -> None:
    """`asyncio.run` cancels what is left as `main` returns."""


async def every_task_cancelled(worker: asyncio.Task[None]) -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.wait((worker,))


async def pooled(durable: Any, body: Any) -> None:
    await passes(durable, body)(ready(durable.scheduler))


@pytest.mark.parametrize("how", [cancelled, left_to_the_loop, every_task_cancelled])
@pytest.mark.parametrize("running", [work, pooled])
def test_k6_a_new_worker_goes_on_at_once_over_the_reopened_file(
    path: Path, how: Callable[[asyncio.Task[None]], Any], running: Any
) -> None:
    """With the default lease and the real clock: waiting for a minute is hanging."""
    body = Interrupted()

    async def one_life(durable: Any) -> None:
        try:
            await running(durable, body)
        finally:
            await durable.checkpointer.database.aclose()

    async def opened() -> SqliteDurable:
        database = connect(path)
        await migrate(database)
        return SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database))

    async def stopped() -> asyncio.Task[None]:
        durable = await opened()
        await durable.scheduler.make_ready("w")
        worker = asyncio.create_task(one_life(durable))
        async with asyncio.timeout(HANG):
            await body.reached.wait()
            await how(worker)
        return worker  # referred to, so that only the loop ends it

    async def restarted() -> None:
        durable = await opened()
        watched: Any = Watched(durable.scheduler)
        async with working(SplitDurable(durable.checkpointer, watched), body):
            assert await watched.answers.get() == ("w", None)
        await durable.checkpointer.database.aclose()

    asyncio.run(stopped())
    body.interrupted, body.reached = False, asyncio.Event()
    asyncio.run(restarted())
    assert body.effects == ["first", "second", "second"]


async def test_k6_a_stopped_pass_of_a_pool_is_free_and_visible_at_once(stores: Any) -> None:
    body = Interrupted()
    await stores.scheduler.make_ready("w")
    run = passes(stores.durable, body, now=stores.clock.now)
    pool = asyncio.create_task(run(ready(stores.scheduler)))
    await body.reached.wait()
    await cancelled(pool)
    await stores.scheduler.wake_due(stores.clock.now())
    assert await stores.scheduler.next_ready(NOW) is not None, "it waits for a lease"
    assert await stores.checkpointer.claim("w", MIN, MIN) is not None


WORKER = """
async def body(run):
    async def first():
        return "first"
    async def second():
        print("inside", flush=True)
        await asyncio.Event().wait()
    await run.step("first", first, str)
    await run.step("second", second, str)

async def main():
    async with connect(path, clock=lambda: float(arguments[0])) as db:
        d = SqliteDurable(SqliteCheckpointer(db), SqliteScheduler(db))
        await d.scheduler.prepare()
        await d.scheduler.make_ready("w")
        await work(d, body)

asyncio.run(main())
"""


async def taken_over(path: Path, clock: Clock) -> list[str]:
    """The effects that a worker of this process runs of what a child's worker left."""
    body = Interrupted()
    body.interrupted = False
    async with connect(path, clock=clock.seconds) as database:
        stores = over_sqlite(database, clock)
        watched: Any = Watched(stores.scheduler)
        durable = SplitDurable(stores.checkpointer, watched)
        async with working(durable, body, now=clock.now):
            assert await watched.answers.get() == ("w", None)
        assert await stores.checkpointer.load("w") == {"first": "first", "second": "second"}
    return body.effects


@posix_signals
async def test_k6_an_interrupted_process_leaves_its_workflow_to_the_next_at_once(
    path: Path, clock: Clock, start: Start
) -> None:
    child = start(WORKER, repr(clock.seconds()))
    assert child.stdout is not None
    assert child.stdout.readline() == "inside\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=HANG)
    assert "KeyboardInterrupt" in err
    assert await taken_over(path, clock) == ["second"]


async def test_k45_a_killed_process_leaves_its_workflow_to_the_next_after_its_lease(
    path: Path, clock: Clock, start: Start
) -> None:
    child = start(WORKER, repr(clock.seconds()))
    assert child.stdout is not None
    assert child.stdout.readline() == "inside\n"
    child.kill()
    child.communicate(timeout=HANG)
    async with connect(path, clock=clock.seconds) as database:
        assert await SqliteScheduler(database).next_ready(NOW) is None, "it was not out"
    clock.advance(MIN)
    assert await taken_over(path, clock) == ["second"]


async def failing(run: Run[Any]) -> None:
    raise LookupError("the body's own")


async def losing(run: Run[Any]) -> None:
    raise Contended("somebody else's")


async def sleeping(run: Run[Any]) -> None:
    await run.sleep("nap", SECOND)


async def blocked(run: Run[Any]) -> None:
    await run.awaiting("answer", as_is)


@pytest.mark.parametrize("waiting", [failing, losing, sleeping, blocked])
@pytest.mark.parametrize("through", ["delete", "cancel"])
async def test_k20_a_workflow_cancelled_between_two_passes_does_not_come_back(
    stores: Any, waiting: Callable[[Run[Any]], Any], through: str
) -> None:
    started: list[str] = []
    watched: Any = Watched(stores.scheduler)

    async def body(run: Run[Any]) -> None:
        started.append(run.workflow)
        if run.workflow == "w":
            await waiting(run)

    await stores.scheduler.make_ready("w")
    durable = SplitDurable(stores.checkpointer, watched)
    async with working(durable, body, limit=1, now=stores.clock.now, tick=MIN / 10_000):
        assert (await watched.answers.get())[0] == "w"
        if through == "delete":
            await stores.durable.delete("w")
            assert await stores.checkpointer.load("w") == {}
        else:
            await stores.scheduler.cancel("w")
        stores.clock.advance(10 * MIN)
        await stores.scheduler.wake_due(stores.clock.now())
        await stores.scheduler.make_ready("last")
        assert await watched.answers.get() == ("last", None)
    assert started == ["w", "last"], "it came back by itself"


async def test_k20_a_delete_by_another_process_between_take_and_claim_starts_no_pass(
    path: Path, clock: Clock
) -> None:
    started: list[str] = []

    async def body(run: Run[Any]) -> None:
        started.append(run.workflow)

    async with (
        connect(path, clock=clock.seconds) as ours,
        connect(path, clock=clock.seconds) as theirs,
    ):
        await migrate(ours)
        stores, elsewhere = over_sqlite(ours, clock), over_sqlite(theirs, clock)

        async def claim(workflow: str, *terms: timedelta) -> object:
            if workflow == "w":
                assert await elsewhere.durable.delete("w") == 1
            return await stores.checkpointer.claim(workflow, *terms)

        await stores.durable.arrive("w", "charge", 1)
        clock.advance(SECOND)
        await stores.scheduler.make_ready("last")
        watched: Any = Watched(stores.scheduler)
        durable = SplitDurable(Overlay(stores.checkpointer, claim=claim), watched)
        async with working(durable, body, limit=1, now=clock.now):
            assert await watched.answers.get() == ("last", None)
        assert started == ["last"]
        assert await stores.checkpointer.load("w") == {}
        assert await stores.checkpointer.claim("w", MIN, MIN), "its claim was kept"
