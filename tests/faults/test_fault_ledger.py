"""What the ledger's calls refuse, and what becomes of workflows that end badly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gated import completing
from ledgers import HOUR, KINDS, NOW, Kept, each_ledger
from thread_gates import in_time
from without_durability import (
    Fenced,
    MemoryCheckpointer,
    MemoryScheduler,
    Retry,
    Run,
    SplitDurable,
    WorkflowCancelled,
    WorkflowFailed,
    claimed,
    work,
)

kept = pytest.fixture(params=KINDS)(each_ledger)


async def test_fault_steering_by_what_cannot_be_is_a_value_error_and_changes_nothing(
    kept: Kept,
):
    ledger = kept.durable
    await ledger.arrive("w", "item", "tea")
    await ledger.arrive("other", "item", "tea")
    before = await ledger.list()
    for refused in (
        ledger.rewind("w", "never recorded"),
        ledger.rewind("w", "item"),
        ledger.fork("w", "other"),
        ledger.fork("w", "w"),
        ledger.fork("w", "new", before="never recorded"),
        ledger.sweep(older=NOW, states=("ready",)),
        ledger.sweep(older=-HOUR),
        ledger.list(state="running"),
        ledger.list(limit=0),
        ledger.start_pass(await in_time(ledger.scheduler.next_ready(NOW)), HOUR, attempts=0),
    ):
        with pytest.raises(ValueError, match=r".") as error:
            await refused
        assert str(error.value)
    assert await ledger.list() == before
    assert await ledger.checkpointer.load("new") == {}


async def test_fault_unknown_ids_answer_nothing_and_come_to_nothing(kept: Kept):
    ledger = kept.durable
    assert await ledger.status("nobody") is None
    assert (await ledger.retry("nobody"), await ledger.cancel("nobody")) == (False, False)
    assert (await ledger.rewind("nobody", "step"), await ledger.fork("nobody", "new")) == (0, 0)
    assert "Nothing is known" in await ledger.why("nobody")
    with pytest.raises(TimeoutError):
        await ledger.result("nobody", within=NOW)
    assert (await ledger.list()).items == ()


async def test_fault_a_body_that_keeps_failing_is_parked_and_its_result_is_an_error(kept: Kept):
    async def body(run: Run[Any]) -> None:
        raise LookupError("no carrier")

    await kept.durable.arrive("w", "item", "tea")
    async with kept.working(body, retry=Retry(1)):
        with pytest.raises(WorkflowFailed, match="LookupError: no carrier") as failed:
            await kept.durable.result("w", within=HOUR)
    assert (failed.value.workflow, failed.value.failure.type) == ("w", "LookupError")


async def test_fault_a_result_that_cannot_be_stored_ends_its_workflow_all_the_same(kept: Kept):
    async def body(run: Run[Any]) -> object:
        return object()

    await kept.durable.arrive("w", "item", "tea")
    async with kept.working(body):
        with pytest.raises(
            TypeError, match="completed with a value of type object, which could not be stored"
        ):
            await kept.durable.result("w", within=HOUR)
    assert (await kept.status()).state == "completed"


async def test_fault_a_cancelled_workflow_fences_its_pass_and_never_starts_another(kept: Kept):
    await kept.durable.arrive("w", "item", "tea")
    holder = await claimed(kept.durable.checkpointer, "w")
    assert await kept.durable.cancel("w", "not wanted")
    with pytest.raises(Fenced):
        await kept.durable.checkpointer.record(holder, "step", 1)
    await kept.durable.arrive("w", "later", "news")
    await kept.durable.scheduler.make_ready("w")
    async with kept.working(completing):
        await kept.durable.arrive("other", "item", "tea")
        await kept.end("other")
    with pytest.raises(WorkflowCancelled, match="not wanted"):
        await kept.durable.result("w", within=NOW)


def test_fault_retry_over_a_durable_without_a_ledger_is_a_value_error_of_the_call() -> None:
    durable = SplitDurable(MemoryCheckpointer(), MemoryScheduler())
    with pytest.raises(ValueError, match="retry needs a durable with a ledger"):
        work(durable, completing, retry=Retry())


def test_fault_a_command_on_a_file_that_is_not_there_is_one_line_and_makes_no_file(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "without_durability_sqlite", "none.db"]
    for asked in (["status"], ["retry", "w"], ["check"]):
        done = subprocess.run(
            [*command, *asked], cwd=tmp_path, capture_output=True, text=True, timeout=30
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count("\n") == 1
        assert "there is no file" in done.stderr
    assert [*tmp_path.iterdir()] == []


async def test_fault_what_only_its_scheduler_was_told_of_can_be_explained_and_cancelled(kept: Kept):
    ledger = kept.durable
    await ledger.scheduler.make_ready("w")
    assert await ledger.status("w") is None
    assert "is queued in 'workflow'" in await ledger.why("w")
    assert await ledger.cancel("w", "not wanted")
    assert await kept.delivered() is None
    assert (await kept.status()).reason == "not wanted"
    assert not await ledger.cancel("w")
