"""What a worker writes in the ledger: every transition, as an operator sees it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from children import ended, started
from gated import completing, forever, listening, turns
from ledgers import HOUR, KINDS, NOW, SECRET, Kept, charging, each_ledger, value
from thread_gates import in_time, until
from without_durability import (
    CONTENDED,
    LEASE,
    Clock,
    Fenced,
    Run,
    Status,
    WorkflowCancelled,
    WorkflowFailed,
)
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    connect,
)

pytestmark = pytest.mark.timeout(40)

kept = pytest.fixture(params=KINDS)(each_ledger)


# --- orderly ends -----------------------------------------------------------------------------


class Awkward:
    pass


class Exiting(dict[str, int]):
    def items(self) -> Any:
        raise SystemExit


RESULTS = {
    "none": (None, None),
    "falsy": (0, {"result": 0}),
    "text": ("done", {"result": "done"}),
    "nested": ({"paid": [1, None]}, {"result": {"paid": [1, None]}}),
    "a tuple": ((1, 2), {"result": [1, 2]}),
    "no JSON": (Awkward(), {"unstored": "Awkward"}),
    "not a number": (float("nan"), {"unstored": "float"}),
    "code of its own": (Exiting(paid=1), {"unstored": "Exiting"}),
}


@pytest.mark.parametrize(("returned", "detail"), RESULTS.values(), ids=RESULTS)
async def test_a_body_that_returns_is_completed_with_its_result(
    kept: Kept, returned: object, detail: Any
):
    async def body(run: Run[Any]) -> object:
        return returned

    await kept.durable.arrive("w", "begun", True)
    async with kept.working(body):
        assert (await kept.end()).state == "completed"
    status = await kept.status()
    assert (status.state, status.detail, status.attempts) == ("completed", detail, 0)
    assert (status.running, status.due, status.error) == (False, None, None)
    if detail is not None and "unstored" in detail:
        assert status.result is None
        with pytest.raises(TypeError, match=detail["unstored"]):
            await kept.durable.result("w", within=NOW)
    else:
        assert await kept.durable.result("w", within=NOW) == (detail or {}).get("result")
    assert await kept.delivered() is None, "a completed one was queued"


async def test_a_sleeping_one_tells_its_key_and_its_moment(kept: Kept):
    async def body(run: Run[Any]) -> None:
        await run.sleep("nap", HOUR)

    due = kept.clock.now() + HOUR
    await kept.durable.scheduler.make_ready("w")
    async with kept.working(body):
        await kept.end()
        status = await kept.status()
        assert (status.state, status.attempts, status.running) == ("sleeping", 0, False)
        assert status.detail == {"key": "nap", "due": due.isoformat()}
        assert status.due == due
        kept.clock.advance(HOUR)
        assert (await kept.end()).state == "completed"
    assert (await kept.status()).due is None


async def test_a_blocked_one_tells_what_it_waits_for_and_where_it_listens(kept: Kept):
    async def body(run: Run[Any]) -> None:
        await asyncio.gather(run.awaiting("yes", str), run.awaiting("no", str), run.receive("news"))

    await kept.durable.scheduler.make_ready("w")
    async with kept.working(body):
        assert (await kept.end()).state == "blocked"
    status = await kept.status()
    assert (status.state, status.attempts, status.running) == ("blocked", 0, False)
    assert (status.waiting, status.listening) == ({"yes", "no"}, {"news"})
    assert status.detail == {"waiting": ["no", "yes"], "listening": ["news"]}
    assert await kept.delivered() is None, "a blocked one was queued"


async def test_a_row_is_there_from_the_first_pass_or_arrival_on_and_stays_the_same(kept: Kept):
    assert await kept.durable.status("w") is None
    await kept.durable.deliver("w", "hello")
    arrived = await kept.status()
    assert (arrived.state, arrived.attempts, arrived.detail) == ("ready", 0, None)
    await kept.durable.scheduler.make_ready("other")
    kept.clock.advance(HOUR)
    async with kept.working(charging):
        await until(lambda: kept.noted.ends.qsize() == 2)
    status, other = await kept.status(), await kept.status("other")
    assert (status.seq, status.created_at) == (arrived.seq, arrived.created_at)
    assert status.updated_at == kept.clock.now()
    assert other.seq > status.seq
    assert {status.namespace, other.namespace} == {"workflow"}


# --- while a pass runs --------------------------------------------------------------------------


async def test_it_is_running_during_the_pass_only_and_counts_one_attempt(kept: Kept):
    seen = []

    async def body(run: Run[Any]) -> None:
        seen.append(await kept.status())
        if len(seen) < 3:
            raise LookupError(f"number {len(seen)}")

    await kept.durable.arrive("w", "begun", True)
    assert (await kept.status()).running is False
    async with kept.working(body):
        for attempt in (1, 2):
            pause = await kept.pause()
            status = await kept.status()
            assert (status.running, status.attempts, status.state) == (False, attempt, "ready")
            assert status.due == kept.clock.now() + pause
            kept.clock.advance(pause)
        await kept.end()
    assert [(one.running, one.attempts, one.state) for one in seen] == [
        (True, attempt, "ready") for attempt in (1, 2, 3)
    ]
    errors = [one.error and one.error.message for one in seen]
    assert errors == [None, "number 1", "number 2"], "a retried one tells what it failed with last"
    status = await kept.status()
    assert (status.running, status.attempts, status.error) == (False, 0, None)


async def sleeping(run: Run[Any]) -> None:
    await run.sleep("nap", HOUR)


async def blocked(run: Run[Any]) -> None:
    await run.awaiting("never", str)


async def failing(run: Run[Any]) -> None:
    raise LookupError("no such card")


@pytest.mark.parametrize("limit", [1, 20])
@pytest.mark.parametrize("then", [charging, sleeping, blocked, failing])
async def test_what_arrives_during_a_pass_leaves_it_ready_and_it_runs_again(
    kept: Kept, then: Any, limit: int
):
    """With a slot free, what arrived is taken at once, contended, and looked at again."""
    seen: list[Status] = []

    async def body(run: Run[Any]) -> object:
        seen.append(await kept.status())
        if len(seen) == 1:
            await kept.durable.deliver("w", "news")
            while limit > 1 and (await kept.status()).due is None:
                await asyncio.sleep(0.001)
        return await then(run)

    await kept.durable.scheduler.make_ready("w")
    async with kept.working(body, limit=limit):
        ended = await kept.end()
        kept.clock.advance(CONTENDED)
        await kept.end()
    again = seen[1]
    assert (again.state, again.running) == ("ready", True)
    if then is failing:
        assert ended.state == "ready"
        assert again.error is not None
        assert (again.error.message, again.attempts) == ("no such card", 2)
    else:
        assert ended.state in ("completed", "sleeping", "blocked")
        assert (again.detail, again.attempts) == (None, 1)


async def test_a_pass_that_ends_while_something_arrived_stays_ready_until_it_is_taken(kept: Kept):
    """As above, with nobody there to take it: the row says ready, and something is queued."""
    stopping = asyncio.Event()

    async def body(run: Run[Any]) -> str:
        stopping.set()
        await kept.durable.deliver("w", 1)
        return "done"

    await kept.durable.scheduler.make_ready("w")
    async with kept.working(body, stopping=stopping) as worker:
        await worker
    status = await kept.status()
    assert (status.state, status.detail, status.attempts) == ("ready", None, 0)
    assert status.running is False
    assert await kept.delivered() == "w"


async def test_a_cancel_during_a_pass_stops_it_at_its_next_write_for_good(kept: Kept):
    refused: list[BaseException] = []
    ran: list[int] = []

    async def body(run: Run[Any]) -> None:
        ran.append(run.holder.token)
        await charging(run)
        assert await kept.durable.cancel("w", "the customer left") is True
        try:
            await run.step("ship", value, str)
        except Fenced as error:
            refused.append(error)
            raise

    await kept.durable.scheduler.make_ready("w")
    async with listening() as heard, kept.working(body):
        await kept.end()
        status = await kept.status()
        assert (status.state, status.reason) == ("cancelled", "the customer left")
        assert status.running is False
        assert await kept.delivered() is None, "a cancelled one is queued"
        await turns()
    assert (len(refused), len(ran)) == (1, 1)
    assert not any("failed" in message for message in heard.messages)
    assert await kept.durable.checkpointer.load("w") == {"charge": SECRET}
    assert (await kept.status()).state == "cancelled"


async def test_a_cancel_ends_a_pass_that_writes_nothing_with_its_next_renewal(
    path: Path, migrated: Path, clock: Clock
):
    path.write_bytes(migrated.read_bytes())
    short = timedelta(milliseconds=30)
    async with connect(path, clock=clock.seconds) as database:
        scheduler = SqliteScheduler(database, lease=short)
        durable = SqliteDurable(SqliteCheckpointer(database), scheduler)
        kept = Kept(durable, clock)
        inside, left = asyncio.Event(), asyncio.Event()

        async def body(run: Run[Any]) -> None:
            inside.set()
            try:
                await forever()
            finally:
                left.set()

        await scheduler.make_ready("w")
        async with kept.working(body):
            await inside.wait()
            assert await durable.cancel("w")
            await left.wait()
            await kept.end()
        assert (await kept.status()).state == "cancelled"


async def test_a_rewind_during_a_pass_refuses_its_writes_and_runs_again_from_there(kept: Kept):
    effects: list[str] = []
    rewound: list[int] = []

    async def body(run: Run[Any]) -> str:
        for name in ("pick", "pack", "ship"):

            async def effect(name: str = name) -> str:
                effects.append(name)
                return name

            await run.step(name, effect, str)
            if name == "pack" and not rewound:
                rewound.append(await kept.durable.rewind("w", "pack"))
        return "shipped"

    await kept.durable.arrive("w", "order", 7)
    async with kept.working(body):
        assert (await kept.end()).state is None, "the superseded pass told of an end"
        assert (await kept.end()).state == "completed"
    assert rewound == [1]
    assert effects == ["pick", "pack", "ship", "pack", "ship"]
    assert list(await kept.durable.checkpointer.load("w")) == ["order", "pick", "pack", "ship"]
    status = await kept.status()
    assert (status.state, status.result, status.attempts) == ("completed", "shipped", 0)


async def test_a_delete_during_a_pass_leaves_nothing_of_it_behind(kept: Kept):
    async def body(run: Run[Any]) -> None:
        await charging(run)
        assert await kept.durable.delete("w") == 2
        await run.step("ship", value, str)

    await kept.durable.arrive("w", "order", 7)
    async with listening() as heard, kept.working(body):
        await kept.end()
        assert await kept.delivered() is None, "a deleted one is queued"
    assert await kept.durable.status("w") is None
    assert await kept.durable.checkpointer.load("w") == {}
    assert not any("failed" in message for message in heard.messages)


async def test_a_delete_during_a_pass_that_writes_nothing_more_leaves_no_row(kept: Kept):
    async def body(run: Run[Any]) -> str:
        await kept.durable.delete("w")
        return "done"

    await kept.durable.arrive("w", "order", 7)
    async with kept.working(body):
        await kept.end()
    assert await kept.durable.status("w") is None


@pytest.mark.parametrize("then", [charging, completing, failing])
async def test_a_superseded_pass_that_ends_after_all_says_nothing_of_its_workflow(
    kept: Kept, then: Any
):
    """It was silent for a lease, and another pass has put the workflow to sleep since."""
    inside, go_on, stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def late(run: Run[Any]) -> object:
        inside.set()
        await go_on.wait()
        return await then(run)

    await kept.durable.arrive("w", "order", 7)
    async with kept.working(late, limit=1):
        await inside.wait()
        kept.clock.advance(LEASE)
        async with kept.working(sleeping, stopping=stopping):
            assert (await kept.end()).state == "sleeping"
            stopping.set()
        before = await kept.status()
        assert before.state == "sleeping"
        go_on.set()
        await kept.end()
        assert await kept.status() == before


async def test_a_fork_of_a_running_one_goes_its_own_way_from_what_was_recorded(kept: Kept):
    effects: list[tuple[str, str]] = []

    async def body(run: Run[Any]) -> str:
        for name in ("pick", "pack", "ship"):

            async def effect(name: str = name) -> str:
                effects.append((run.workflow, name))
                return name

            await run.step(name, effect, str)
            if (run.workflow, name) == ("w", "pack"):
                assert await kept.durable.fork("w", "again") == 2
                assert await kept.durable.fork("w", "earlier", before="pack") == 1
        return run.workflow

    await kept.durable.scheduler.make_ready("w")
    async with kept.working(body):
        await until(lambda: kept.noted.ends.qsize() == 3)
    assert [name for workflow, name in effects if workflow == "w"] == ["pick", "pack", "ship"]
    assert [name for workflow, name in effects if workflow == "again"] == ["ship"]
    assert [name for workflow, name in effects if workflow == "earlier"] == ["pack", "ship"]
    for workflow in ("w", "again", "earlier"):
        status = await kept.status(workflow)
        assert (status.state, status.result) == ("completed", workflow)


# --- waiting for the end ------------------------------------------------------------------------


async def test_who_waits_for_a_result_here_has_it_as_soon_as_the_body_returns(kept: Kept):
    waiting = asyncio.create_task(kept.durable.result("w", within=HOUR))
    also = asyncio.create_task(kept.durable.result("w", within=HOUR))

    async def body(run: Run[Any]) -> str:
        await run.sleep("nap", HOUR)
        return await charging(run)

    await kept.durable.scheduler.make_ready("w")
    async with kept.working(body):
        await kept.end()
        await turns()
        assert not waiting.done(), "a sleeping one was taken for an ended one"
        kept.clock.advance(HOUR)
        assert await in_time(asyncio.gather(waiting, also)) == [SECRET, SECRET]


async def test_who_waits_for_one_that_is_cancelled_or_deleted_is_told_or_waits_on(kept: Kept):
    await kept.durable.arrive("w", "order", 7)
    waiting = asyncio.create_task(kept.durable.result("w", within=HOUR))
    await turns()
    assert await kept.durable.cancel("w", "no stock")
    with pytest.raises(WorkflowCancelled, match="no stock"):
        await in_time(waiting)
    await kept.durable.delete("w")
    with pytest.raises(TimeoutError):
        await kept.durable.result("w", within=NOW)


async def test_a_result_after_the_end_is_there_at_once_and_again_after_the_next(kept: Kept):
    async def body(run: Run[Any]) -> int:
        return len(await run.pending(f"look {len(run.recorded)}"))

    await kept.durable.deliver("w", "one")
    async with kept.working(body):
        await kept.end()
        assert await kept.durable.result("w", within=NOW) == 1
        await kept.durable.deliver("w", "two")
        await kept.end()
        assert await kept.durable.result("w", within=NOW) == 2


WORKS = """
async def body(run):
    if run.workflow == "fails":
        raise LookupError("no such card")
    answer = await run.awaiting("answer", str)
    if answer == "die":
        os._exit(3)
    return answer.upper()

async def main():
    await opened()
    print("ready", flush=True)
    await work(d, body, retry=Retry(attempts=1), within=timedelta(milliseconds=20))

asyncio.run(main())
"""


async def test_who_waits_for_a_result_of_another_process_has_it_whatever_became_of_that(
    path: Path, filed: Database
):
    """The first worker is killed while the result is awaited; a second one goes on."""
    durable = SqliteDurable(SqliteCheckpointer(filed), SqliteScheduler(filed))
    await durable.scheduler.make_ready("w")
    waiting = asyncio.create_task(durable.result("w", within=HOUR))
    failed = asyncio.create_task(durable.result("fails", within=HOUR))
    with started(WORKS, path) as first:
        await asyncio.to_thread(first.stdout.readline)  # type: ignore[union-attr]
        await _has(durable, "w", "blocked")
        first.kill()
    assert not waiting.done()
    with started(WORKS, path) as second:
        try:
            await durable.arrive("w", "answer", "yes")
            await durable.arrive("fails", "answer", "yes")
            assert await in_time(waiting) == "YES"
            with pytest.raises(WorkflowFailed, match="no such card") as caught:
                await in_time(failed)
        finally:
            second.kill()
    assert caught.value.failure.type == "LookupError"
    assert "in body" in caught.value.failure.traceback


async def _has(durable: SqliteDurable, workflow: str, state: str) -> None:
    async def has() -> None:
        while (found := await durable.status(workflow)) is None or found.state != state:
            await asyncio.sleep(0.005)

    await in_time(has())


async def test_a_finished_one_gives_its_result_to_a_process_that_starts_afterwards(
    path: Path, filed: Database
):
    durable = SqliteDurable(SqliteCheckpointer(filed), SqliteScheduler(filed))
    kept = Kept(durable, Clock(datetime.now(UTC)))
    await durable.scheduler.make_ready("w")
    async with kept.working(charging, now=lambda: datetime.now(UTC)):
        await kept.end()
    child = ended(
        """
        async def main():
            await opened()
            print(await d.result("w", within=timedelta(0)))
            await db.aclose()

        asyncio.run(main())
        """,
        path,
    )
    assert (child.code, child.out.strip(), child.err) == (0, SECRET, "")
