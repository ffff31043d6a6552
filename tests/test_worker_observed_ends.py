"""`work(observe=)`: every pass that began is told to have ended, once, whatever came of it."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gated import (
    Overlay,
    Yielding,
    cancel_every_task,
    completing,
    forever,
    turns,
)
from ledgers import KINDS, Kept, charging, each_ledger, one
from observed import memory, paired
from thread_gates import Stop, in_time, reading, until
from without_durability import (
    ClaimLost,
    Clock,
    PassEnded,
    PassFailed,
    PassStarted,
    Retry,
    Run,
    State,
    StepRecorded,
    retrying,
    work,
)
from without_durability_sqlite import SqliteCheckpointer, SqliteDurable, SqliteScheduler, connect

pytestmark = pytest.mark.timeout(40)

NOW = timedelta(0)

kept = pytest.fixture(params=KINDS)(each_ledger)


@pytest.mark.parametrize("body", [forever, completing, charging])
@pytest.mark.parametrize("other_tasks", [False, True])
async def test_every_pass_that_began_ends_once_wherever_its_worker_is_cancelled(
    body: Any, other_tasks: bool
):
    """In any turn of the loop, over a store that yields before each of its calls."""
    given_back = 0
    for turn in range(60):
        told: list[Any] = []
        clock = Clock()
        durable = memory(clock)
        for workflow in ("a", "b", "c"):
            await durable.arrive(workflow, "begun", True)
        yielding = Overlay(
            Yielding(durable),
            checkpointer=Yielding(durable.checkpointer),
            scheduler=Yielding(durable.scheduler),
        )
        worker = asyncio.create_task(
            work(yielding, body, limit=2, now=clock.now, observe=told.append)
        )
        await turns(turn)
        if other_tasks:
            cancel_every_task()
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        paired(told)
        assert not [event for event in told if isinstance(event, PassFailed)], f"turn {turn}"
        for event in told:
            if isinstance(event, PassEnded):
                status = await durable.status(event.workflow)
                assert status is not None
                expected = "ready" if event.outcome == "given back" else event.outcome
                assert (status.state, status.attempts) == (expected, 0), f"turn {turn}: {event}"
                given_back += event.outcome == "given back"
    assert given_back, "no pass was cancelled in the middle"


async def test_every_pass_that_began_ends_once_at_whatever_statement_its_worker_is_cancelled(
    path: Path, migrated: Path, clock: Clock
):
    path.write_bytes(migrated.read_bytes())
    async with connect(path, clock=clock.seconds) as database:
        durable = SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database))
        outcomes = set()
        for n in itertools.count(1):
            told: list[Any] = []
            await durable.deliver("w", n)
            stop = Stop(n, database.connection, await reading(database))
            stopping = asyncio.Event()

            def tell(event: Any, told: list[Any] = told, stopping: Any = stopping) -> None:
                told.append(event)
                if isinstance(event, PassEnded):
                    stopping.set()

            worker = asyncio.create_task(
                work(durable, charging, now=clock.now, observe=tell, stopping=stopping)
            )
            stopped = await stop.stands(worker)
            worker.cancel()
            await turns()
            stop.opened.set()
            await asyncio.gather(worker, return_exceptions=True)
            assert paired(told) <= 1
            outcomes |= {event.outcome for event in told if isinstance(event, PassEnded)}
            await durable.scheduler.cancel("nobody's")  # what is given back has been, by then
            status = await durable.status("w")
            assert status is not None
            assert status.attempts == 0, f"statement {n}"
            if not stopped:
                break
            await durable.delete("w")
    assert n > 10
    assert outcomes == {"completed", "given back"}


async def test_a_worker_told_to_stop_tells_the_end_of_every_pass(kept: Kept, told: list[Any]):
    inside, go_on, stopping = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event()

    async def body(run: Run[Any]) -> None:
        inside.release()
        await go_on.wait()

    for workflow in "abc":
        await kept.durable.arrive(workflow, "begun", True)
    async with kept.working(body, observe=told.append, stopping=stopping) as worker:
        for _ in "abc":
            await inside.acquire()
        stopping.set()
        go_on.set()
        await worker
    assert paired(told) == 3
    assert {event.outcome for event in told if isinstance(event, PassEnded)} == {"completed"}


class Gone(Exception):
    """What a store says whose file is gone."""


@pytest.mark.parametrize(
    ("at", "body"),
    [("end_pass", completing), ("end_pass", forever), ("load", completing), ("record", charging)],
)
async def test_every_pass_that_began_ends_once_where_the_store_is_gone_for_good(
    clock: Clock, told: list[Any], at: str, body: Any
):
    async def gone(*_: object) -> None:
        raise Gone

    durable = memory(clock)
    for workflow in "abc":
        await durable.arrive(workflow, "begun", True)
    scheduler = Overlay(durable.scheduler, permanent=lambda error: isinstance(error, Gone))
    parts: dict[str, Any] = {"scheduler": scheduler, "end_pass": gone}
    if at != "end_pass":
        parts["checkpointer"] = Overlay(durable.checkpointer, **{at: gone})
    worker = asyncio.create_task(
        work(Overlay(durable, **parts), body, now=clock.now, observe=told.append)
    )
    if body is forever:
        await until(lambda: len(told) == 3)
        worker.cancel()
    (error,) = await in_time(asyncio.gather(worker, return_exceptions=True))
    assert isinstance(error, asyncio.CancelledError if body is forever else Gone)
    assert paired(told) == 3 if body is forever else paired(told) > 0


async def test_an_end_that_the_store_refuses_for_a_while_is_told_when_it_is_written(
    kept: Kept, told: list[Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(retrying, "STORE_FIRST", timedelta(milliseconds=1))
    monkeypatch.setattr(retrying, "STORE_CAP", timedelta(milliseconds=1))
    refusals = iter([True, True, False])
    before: list[Any] = []

    async def end_pass(*arguments: Any) -> State | None:
        before[:] = told
        if next(refusals):
            raise OSError(28, "No space left on device")
        return await kept.noted.end_pass(*arguments)

    await kept.durable.arrive("w", "begun", True)
    durable = Overlay(kept.noted, end_pass=end_pass)
    async with kept.working(completing, durable, observe=told.append):
        await kept.end()
        await until(lambda: len(told) == 2)
    assert [type(event) for event in before] == [PassStarted]
    assert paired(told) == 1


async def test_an_end_that_the_store_never_takes_is_told_as_none(clock: Clock, told: list[Any]):
    kept = Kept(memory(clock, lease=timedelta(milliseconds=50)), clock)

    async def end_pass(*arguments: Any) -> State | None:
        raise OSError(28, "No space left on device")

    await kept.durable.arrive("w", "begun", True)
    durable = Overlay(kept.noted, end_pass=end_pass)
    async with kept.working(completing, durable, observe=told.append):
        await until(lambda: len(told) == 2)
    assert told[1].outcome == "given back", "an end was told that nobody wrote down"


@pytest.mark.parametrize("act", ["cancel", "rewind", "delete"])
async def test_a_pass_that_ends_after_its_workflow_was_taken_from_it_is_told_as_lost(
    kept: Kept, told: list[Any], act: str
):
    """It writes nothing more, so nothing but its end could be refused."""

    async def body(run: Run[Any]) -> None:
        await run.step("only", one, int)
        if act == "cancel":
            await kept.durable.cancel("w")
        elif act == "rewind":
            await kept.durable.rewind("w", "only")
            await kept.durable.scheduler.cancel("w")
        else:
            await kept.durable.delete("w")

    await kept.durable.arrive("w", "begun", True)
    async with kept.working(body, observe=told.append, limit=1):
        await kept.end()
        await until(lambda: len(told) == 3)
    assert [type(event) for event in told] == [PassStarted, StepRecorded, ClaimLost]


async def test_what_arrives_during_the_last_failing_pass_keeps_it_from_being_parked(
    kept: Kept, told: list[Any]
):
    passes = itertools.count()

    async def body(run: Run[Any]) -> None:
        if next(passes) == 0:
            await kept.durable.deliver("w", "more")
            raise LookupError

    await kept.durable.arrive("w", "begun", True)
    async with kept.working(body, observe=told.append, retry=Retry(1), limit=1):
        assert (await kept.end()).state == "failed"
        assert (await kept.end()).state == "completed"
        await until(lambda: len(told) == 4)
    assert told[1].pause == NOW
    assert [type(event) for event in told] == [PassStarted, PassFailed, PassStarted, PassEnded]


def test_a_keyboard_interrupt_tells_the_end_of_every_pass(clock: Clock):
    told: list[Any] = []
    durable = memory(clock)

    async def body(run: Run[Any]) -> None:
        if run.workflow == "other":
            await forever()
        raise KeyboardInterrupt

    async def main() -> None:
        for workflow in ("other", "w"):
            await durable.arrive(workflow, "begun", True)
        await work(durable, body, now=clock.now, observe=told.append)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert paired(told) == 2
