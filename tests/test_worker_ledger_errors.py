"""A worker over a ledger: what is written down of an error, and what a cancelled workflow does."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from ledgers import KINDS, NOW, SECRET, Kept, charging, each_ledger
from thread_gates import until
from without_durability import (
    Retry,
    Run,
)

pytestmark = pytest.mark.timeout(40)

kept = pytest.fixture(params=KINDS)(each_ledger)


# --- errors -----------------------------------------------------------------------------------


class NoSuchCard(LookupError):
    pass


async def deep_inside() -> None:
    raise NoSuchCard("ends in 42")


async def test_an_error_is_kept_with_its_type_its_message_and_the_bodys_own_frames(kept: Kept):
    async def body(run: Run[Any]) -> None:
        await deep_inside()

    await kept.durable.scheduler.make_ready("w")
    async with kept.working(body):
        await kept.end()
    status = await kept.status()
    assert (status.state, status.attempts) == ("ready", 1)
    error = status.error
    assert error is not None
    assert error.type == f"{__name__}.NoSuchCard"
    assert error.message == "ends in 42"
    assert error.traceback.count("File ") == 2, error.traceback
    first, second = (line for line in error.traceback.splitlines() if "File " in line)
    assert first.endswith("in body")
    assert second.endswith("in deep_inside")
    assert error.traceback.rstrip().endswith("NoSuchCard: ends in 42")
    assert "attempt.py" not in error.traceback


async def test_what_steps_returned_is_in_no_log_and_in_no_error(
    kept: Kept, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)

    async def body(run: Run[Any]) -> object:
        charged = await charging(run)
        if run.workflow == "fails":
            raise LookupError("after the charge")
        return object() if run.workflow == "unstored" else charged

    for workflow in ("fails", "unstored", "done"):
        await kept.durable.scheduler.make_ready(workflow)
    async with kept.working(body):
        await until(lambda: kept.noted.ends.qsize() == 3)
    assert "after the charge" in caplog.text
    assert "unstored" in caplog.text
    assert SECRET not in caplog.text
    assert SECRET not in repr(await kept.status("fails"))
    assert (await kept.status("done")).result == SECRET


RAISED = [LookupError, SystemExit, GeneratorExit, asyncio.CancelledError]


class Untrue(Exception):
    """An error whose truth, for which a traceback asks, is code of its own."""

    def __init__(self, how: type[BaseException]) -> None:
        super().__init__("untrue")
        self.how = how

    def __bool__(self) -> bool:
        raise self.how


class Measured(str):
    def __len__(self) -> int:
        raise SystemExit


class Own(Exception):
    """An error whose text is a kind of its own."""

    def __str__(self) -> str:
        return Measured("own")


@pytest.mark.parametrize("how", RAISED)
async def test_an_error_that_cannot_be_logged_concerns_its_own_workflow_alone(
    kept: Kept, how: type[BaseException], caplog: pytest.LogCaptureFixture
):
    async def body(run: Run[Any]) -> str:
        if run.workflow == "w":
            raise Untrue(how)
        return "done"

    async with kept.working(body, retry=Retry(1)):
        await kept.durable.arrive("w", "begun", True)
        assert (await kept.end()).state == "failed"
        await kept.durable.arrive("another", "begun", True)
        assert (await kept.end("another")).state == "completed"
    status = await kept.status()
    assert (status.state, status.attempts) == ("failed", 1)
    assert "workflow 'w' failed (attempt 1)" in caplog.text


class Unprintable(Exception):
    """An error whose own code raises `how`, which is nobody's cancellation and ends no process."""

    def __init__(self, how: type[BaseException]) -> None:
        self.how = how

    def __str__(self) -> str:
        raise self.how


@pytest.mark.parametrize(
    ("error", "told"),
    [
        *((Unprintable(how), "could not be made") for how in RAISED),
        (Own(), "own"),
        (LookupError("\ud800"), "\\ud800"),
        (LookupError("x" * 1_000_000), "xxx…"),
        (LookupError("\0"), "\0"),
    ],
    ids=[*(how.__name__ for how in RAISED), "a text of its own", "a surrogate", "long", "a null"],
)
async def test_an_error_that_is_hard_to_write_down_is_written_down_all_the_same(
    kept: Kept, error: Exception, told: str, monkeypatch: pytest.MonkeyPatch
):
    # What pytest captures of the log it must be able to encode, which a surrogate cannot be.
    monkeypatch.setattr(logging.getLogger("without_durability.worker"), "disabled", True)

    async def body(run: Run[Any]) -> None:
        raise error

    await kept.durable.scheduler.make_ready("w")
    async with kept.working(body):
        assert await kept.pause() > NOW
    status = await kept.status()
    assert (status.state, status.attempts) == ("ready", 1)
    assert status.error is not None
    assert told in status.error.message
    assert "raise error" in status.error.traceback, "the traceback was lost with the message"
    assert len(status.error.message) + len(status.error.traceback) < 20_000


# --- cancelled ones ---------------------------------------------------------------------------


async def test_a_cancelled_one_that_is_made_ready_starts_no_pass_and_its_delivery_is_dropped(
    kept: Kept,
):
    ran: list[str] = []

    async def body(run: Run[Any]) -> None:
        ran.append(run.workflow)

    await kept.durable.arrive("w", "order", 7)
    assert await kept.durable.cancel("w")
    await kept.durable.scheduler.make_ready("w")
    kept.clock.advance(timedelta(seconds=1))
    await kept.durable.scheduler.make_ready("behind")
    async with kept.working(body, limit=1):
        await kept.end("behind")
        assert await kept.delivered() is None, "the delivery is still out"
    assert ran == ["behind"]
    assert (await kept.status()).state == "cancelled"
    assert (await kept.status()).attempts == 0


async def test_what_arrives_for_a_cancelled_one_is_recorded_and_read_after_a_retry(kept: Kept):
    got: list[object] = []

    async def body(run: Run[Any]) -> None:
        got.append(await run.awaiting("answer", str))
        got.extend(entry.value for entry in await run.receive("news"))

    await kept.durable.scheduler.make_ready("w")
    async with kept.working(body):
        assert (await kept.end()).state == "blocked"
        assert await kept.durable.cancel("w")
        assert await kept.durable.arrive("w", "answer", "yes") == "yes"
        await kept.durable.deliver("w", "hello")
        assert await kept.delivered() is None, "an arrival queued a cancelled one"
        assert (await kept.status()).state == "cancelled"
        assert await kept.durable.retry("w")
        assert (await kept.end()).state == "completed"
    assert got == ["yes", "hello"]
