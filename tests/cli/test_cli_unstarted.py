"""Workflows that have no row in the ledger: only the scheduler or the checkpointer knows them."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from console import said
from orders import now
from session import done, queued, refused, status

from without_durability_sqlite import SqliteCheckpointer, SqliteScheduler, connect

TOMORROW = datetime.fromtimestamp(now(), UTC) + timedelta(days=1)


@pytest.fixture(autouse=True)
def unstarted(orders: Path) -> None:
    """One made ready in a queue of its own, one scheduled there, one that only has a record."""

    async def brought() -> None:
        async with connect("orders.db", clock=now) as database:
            queue = SqliteScheduler(database, "post")
            await queue.make_ready("ready-1")
            await queue.schedule("later-1", TOMORROW)
            await SqliteCheckpointer(database).supply("record-1", "k", 1)

    asyncio.run(brought())


def test_why_tells_what_is_queued() -> None:
    assert done("why", "ready-1") == (
        "'ready-1' is queued in 'post' for its first pass, and has waited 0 ms for a worker to "
        "take it.\n"
    )
    scheduled = done("why", "later-1", "--utc")
    assert scheduled.startswith("'later-1' is scheduled in 'post' for ")
    assert f"{TOMORROW:%H:%M:%S}" in scheduled
    told = json.loads(done("why", "later-1", "--utc", "--json"))
    assert told == {"workflow": "later-1", "state": None, "why": scheduled.strip()}
    assert "'record-1' has 1 record, and never arrived" in refused("why", "record-1")


def test_status_tells_what_waits_also_once_the_clock_was_set_back() -> None:
    for workflow in ("order-8", "order-6", "order-5"):
        done("delete", workflow, "--yes")
    answer = said("orders.db", "status", "--json", clock=lambda: now() - 3600)
    waiting = json.loads(answer.out)["waiting_longest"]
    assert (waiting["workflow"], waiting["namespace"]) == ("ready-1", "post")


def test_show_tells_the_same_and_what_is_recorded() -> None:
    assert done("show", "ready-1") == f"{done('why', 'ready-1')}\nno records\n"
    told = json.loads(done("show", "later-1", "--json"))
    assert (told["namespace"], told["due"]) == ("post", TOMORROW.isoformat())
    assert (told["state"], told["records"]) == (None, [])
    assert json.loads(done("show", "ready-1", "--json"))["due"] is None
    assert "'record-1' has 1 record" in json.loads(done("show", "record-1", "--json"))["why"]
    assert "'record-1' has 1 record, and never arrived" in done("show", "record-1")


@pytest.mark.parametrize(("workflow", "state"), [("ready-1", "queued"), ("later-1", "scheduled")])
def test_cancel_takes_it_out_of_its_queue_and_it_stays_so(workflow: str, state: str) -> None:
    answer = said("orders.db", "cancel", workflow, clock=now, terminal=True)
    assert f"Cancel {workflow}, which is {state}? [y/N]" in answer.err
    assert queued(workflow) == ["post"]
    assert done("cancel", workflow, "--yes") == (
        f"{workflow} is cancelled; `retry` starts it again\n"
    )
    assert queued(workflow) == []
    assert (status(workflow)["state"], status(workflow)["namespace"]) == ("cancelled", "post")
    done("retry", workflow)
    assert queued(workflow) == ["post"]


def test_what_cannot_be_done_with_it_is_said() -> None:
    assert refused("retry", "ready-1") == (
        "ready-1 is queued: only what failed or was cancelled is retried"
    )
    assert refused("rewind", "ready-1", "charge", "--yes") == (
        "workflow 'ready-1' has not recorded a step 'charge'"
    )
    for command, what in (("cancel", "to cancel"), ("retry", "was cancelled is retried")):
        line = refused(command, "record-1", "--yes")
        assert line.startswith("record-1 is known by its records alone: ")
        assert line.endswith(what)


def test_fork_and_arrive_go_to_its_queue() -> None:
    assert done("fork", "ready-1", "copy-1") == (
        "copy-1 has 0 records of ready-1 and is ready in post\n"
    )
    assert queued("copy-1") == ["post"]
    assert done("arrive", "later-1", "k", "1") == "later-1 has 1 under k; it is ready in post\n"
    assert queued("later-1") == ["post"]


def test_delete_leaves_nothing_of_it() -> None:
    answer = said("orders.db", "delete", "later-1", clock=now, terminal=True)
    assert "Delete later-1, which is scheduled, and its 0 records? [y/N]" in answer.err
    for workflow, records in (("later-1", 0), ("ready-1", 0), ("record-1", 1)):
        told = json.loads(done("delete", workflow, "--yes", "--json"))
        assert told["records"] == records
        assert queued(workflow) == []
        assert "nothing is known" in refused("show", workflow)
