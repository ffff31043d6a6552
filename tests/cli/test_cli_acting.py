"""Every writing command: what it does, what it says, what it refuses."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from console import changed, said
from orders import now
from session import done, queued, refused, status

from without_durability.ledger import STATES
from without_durability_sqlite import SqliteDurable
from without_durability_sqlite.cli import steering

pytestmark = pytest.mark.usefixtures("orders")


def records(workflow: str) -> dict[str, Any]:
    return {record["key"]: record["value"] for record in status(workflow)["records"]}


def test_arrive_records_a_value_and_makes_ready() -> None:
    assert done("arrive", "order-2", "approved by", '"Ada"') == (
        'order-2 has "Ada" under approved by; it is ready in workflow\n'
    )
    assert records("order-2")["approved by"] == "Ada"
    assert status("order-2")["state"] == "ready"


def test_arrive_says_so_where_another_value_stands() -> None:
    for same in ('{"sku": "A-1", "lines": 2}', '{"lines":2,"sku":"A-1"}'):
        assert "order-2 has" in done("arrive", "order-2", "order", same)
    answer = said("orders.db", "arrive", "order-2", "order", "7", clock=now)
    assert answer.code == 1
    assert (
        'holds {"lines": 2, "sku": "A-1"} under order since before, and that stands' in answer.out
    )
    answer = said("orders.db", "arrive", "order-2", "order", "7", "--json", clock=now)
    assert json.loads(answer.out) == {
        "workflow": "order-2",
        "namespace": "workflow",
        "new": False,
        "ready": True,
        "waiting": [],
        "listening": [],
        "key": "order",
        "value": {"lines": 2, "sku": "A-1"},
        "recorded": False,
    }


@pytest.mark.parametrize("argv", [["deliver", "ordre-2", "1"], ["arrive", "ordre-2", "key", "1"]])
def test_an_id_that_nothing_was_known_of_is_said_to_be_new(argv: list[str]) -> None:
    assert done(*argv).startswith("ordre-2 is new: it has ")
    assert done(*argv).startswith("ordre-2 has ")
    assert json.loads(done(*argv, "--json"))["new"] is False
    other = [argv[0], "ordre-3", *argv[2:]]
    assert json.loads(done(*other, "--json"))["new"] is True


def test_what_a_blocked_workflow_does_not_wait_for_is_told_beside_what_it_waits_for() -> None:
    assert done("arrive", "order-2", "aproved by", "1").endswith(
        "it is ready in workflow; it waits for 'approved by'\n"
    )
    assert done("deliver", "letter-1", "1").endswith("it is ready in mail\n")


def test_json_tells_what_it_waited_for() -> None:
    told = json.loads(done("arrive", "letter-1", "replies", "1", "--json"))
    assert (told["waiting"], told["listening"]) == ([], ["replies"])
    told = json.loads(done("deliver", "order-2", "1", "--json"))
    assert (told["waiting"], told["listening"]) == (["approved by"], [])


def test_a_message_that_nobody_listens_for_is_told_as_well() -> None:
    assert done("deliver", "order-2", "1").endswith("; it waits for 'approved by'\n")
    assert done("arrive", "letter-1", "replies", "1").endswith(
        "; it waits for a message at 'replies'\n"
    )


def test_one_and_true_are_not_the_same_value() -> None:
    done("arrive", "new", "flag", "true")
    assert said("orders.db", "arrive", "new", "flag", "1", clock=now).code == 1


def test_deliver_appends_a_message() -> None:
    out = done("deliver", "letter-1", '{"text": "hello"}')
    assert out == "letter-1 has the message as inbox:00000000000000000017; it is ready in mail\n"
    assert records("letter-1")["inbox:00000000000000000017"] == {"text": "hello"}


def test_what_arrives_goes_to_the_queue_that_the_workflow_was_last_ready_in() -> None:
    done("deliver", "letter-1", "1")
    assert queued("letter-1") == ["mail"]
    done("deliver", "new-1", "1")
    assert queued("new-1") == ["workflow"]
    done("arrive", "new-2", "key", "1", "--namespace", "mail")
    assert queued("new-2") == ["mail"]
    done("arrive", "new-2", "other", "1")
    assert queued("new-2") == ["mail"]


def test_what_arrives_for_a_cancelled_workflow_is_kept_and_does_not_wake_it() -> None:
    out = done("arrive", "order-7", "approved by", '"Ada"')
    assert "it is cancelled, and does not run until `retry` or `rewind`" in out
    assert records("order-7")["approved by"] == "Ada"
    assert queued("order-7") == []
    assert json.loads(done("deliver", "order-7", "1", "--json"))["ready"] is False


@pytest.mark.parametrize("text", ["Ada", "{", "", "NaN", "Infinity", "'x'", "[1,]", "[" * 100_000])
def test_what_is_no_json_is_refused_before_the_file_is_looked_at(text: str) -> None:
    for argv in (["arrive", "order-2", "key", text], ["deliver", "order-2", text]):
        answer = said("nowhere.db", *argv)
        assert (answer.code, answer.out) == (2, "")
        assert "it must be JSON" in answer.err
        assert "nowhere" not in answer.err


@pytest.mark.parametrize("value", ["[" * 501 + "]" * 501, '"\\ud800"'], ids=["deep", "surrogate"])
def test_json_that_no_store_could_hold_or_read_is_settled_beforehand(value: str) -> None:
    answer = said("orders.db", "deliver", "order-2", value, clock=now)
    if value.startswith("["):
        assert (answer.code, answer.out) == (2, "")
        assert "nested" in answer.err
    else:
        assert answer.code == 0
        answer.out.encode()


def test_a_key_of_the_inbox_is_refused() -> None:
    line = refused("arrive", "order-2", "inbox:00000000000000000001", "1", code=2)
    assert "inbox" in line


def test_retry_starts_what_failed_or_was_cancelled() -> None:
    assert done("retry", "order-4") == "order-4 is ready in workflow\n"
    assert (status("order-4")["state"], status("order-4")["attempts"]) == ("ready", 0)
    assert json.loads(done("retry", "order-7", "--json"))["retried"] == 1
    assert queued("order-7") == ["workflow"]


@pytest.mark.parametrize("workflow", ["order-1", "order-2", "order-3"])
def test_retry_refuses_what_has_neither_failed_nor_was_cancelled(workflow: str) -> None:
    state = status(workflow)["state"]
    assert refused("retry", workflow) == (
        f"{workflow} is {state}: only what failed or was cancelled is retried"
    )


def test_retry_of_all_that_failed_goes_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("without_durability_sqlite.cli.steering.AT_ONCE", 2)
    fail("order-1", "order-2", "order-3", "letter-1")
    assert done("retry", "--failed", "--namespace", "mail", "--yes") == (
        "1 workflow is ready again in mail\n"
    )
    assert done("retry", "--failed", "--yes") == "4 workflows are ready again\n"
    assert counts()["failed"] == 0
    assert refused("retry", "--failed", "--yes") == "no workflow has failed"


def test_cancel_stops_a_workflow_and_keeps_its_reason() -> None:
    assert done("cancel", "order-3", "--reason", "changed\nmind", "--yes") == (
        "order-3 is cancelled; `retry` starts it again\n"
    )
    assert (status("order-3")["state"], status("order-3")["reason"]) == (
        "cancelled",
        "changed\nmind",
    )
    assert queued("order-3") == []
    assert "changed\\nmind" in done("list", "--state", "cancelled")


def test_cancel_reaches_a_workflow_of_another_queue() -> None:
    done("deliver", "letter-1", "1")
    done("cancel", "letter-1", "--yes")
    assert queued("letter-1") == []


@pytest.mark.parametrize(
    ("workflow", "state"), [("order-1", "completed"), ("order-7", "cancelled")]
)
def test_cancel_refuses_what_has_ended(workflow: str, state: str) -> None:
    assert (
        refused("cancel", workflow, "--yes") == f"{workflow} is {state}: there is nothing to cancel"
    )


def test_rewind_forgets_a_step_and_keeps_what_came_from_outside() -> None:
    assert done("rewind", "order-4", "charge", "--yes") == (
        "order-4 has forgotten 1 record and is ready to run again from charge\n"
    )
    assert list(records("order-4")) == ["order"]
    assert status("order-4")["state"] == "ready"


@pytest.mark.parametrize("step", ["ship", "order"])
def test_rewind_refuses_a_step_that_no_pass_recorded(step: str) -> None:
    line = refused("rewind", "order-4", step, "--yes")
    assert ("has not recorded a step 'ship'" in line) == (step == "ship")
    assert len(records("order-4")) == 2


def test_rewind_to_what_came_from_outside_says_what_to_do_instead() -> None:
    line = refused("rewind", "order-4", "order", "--yes")
    assert line.endswith("; `fork order-4 NEW --before order` begins anew without it")
    assert done("fork", "order-4", "order-4b", "--before", "order").startswith("order-4b has 0 rec")
    done("deliver", "order-4", "1")
    message = list(records("order-4"))[-1]
    assert f"--before {message}`" in refused("rewind", "order-4", message, "--yes")
    assert "fork" not in refused("rewind", "order-4", "ship", "--yes")
    done("arrive", "order 9", "my key", "1")
    line = refused("rewind", "order 9", "my key", "--yes")
    assert "`fork 'order 9' NEW --before 'my key'`" in line


def test_fork_copies_the_records_before_a_step() -> None:
    assert done("fork", "order-4", "order-4b", "--before", "charge") == (
        "order-4b has 1 record of order-4 and is ready in workflow\n"
    )
    assert list(records("order-4b")) == ["order"]
    assert done("fork", "letter-1", "letter-2").endswith("is ready in mail\n")
    assert queued("letter-2") == ["mail"]


def test_fork_refuses_an_id_that_exists_and_a_step_that_does_not() -> None:
    assert "exists" in refused("fork", "order-4", "order-1")
    assert "has not recorded a step 'ship'" in refused("fork", "order-4", "new", "--before", "ship")
    assert refused("show", "new") == "nothing is known of workflow 'new'"


def test_delete_removes_a_workflow_with_its_records_and_its_wakeup() -> None:
    done("deliver", "letter-1", "1")
    assert done("delete", "letter-1", "--yes") == "letter-1 is deleted with 3 records\n"
    assert queued("letter-1") == []
    assert refused("show", "letter-1") == "nothing is known of workflow 'letter-1'"


def test_delete_takes_a_wakeup_out_of_every_queue_and_says_so() -> None:
    done("deliver", "order-1", "1", "--namespace", "mail")
    done("deliver", "order-1", "1", "--namespace", "more mail")
    done("deliver", "order-1", "1", "--namespace", "workflow")
    assert queued("order-1") == ["mail", "more mail", "workflow"]
    assert done("delete", "order-1", "--yes") == (
        "order-1 is deleted with 5 records and its wakeups in mail, more mail\n"
    )
    assert queued("order-1") == []


def test_delete_asks_and_answers_about_a_wakeup_in_another_queue() -> None:
    done("deliver", "letter-1", "1", "--namespace", "workflow")
    done("deliver", "letter-1", "1", "--namespace", "mail")
    answer = said("orders.db", "delete", "letter-1", clock=now, terminal=True)
    assert "and its 4 records and its wakeup in workflow? [y/N]" in answer.err
    told = json.loads(done("delete", "letter-1", "--yes", "--json"))
    assert told["wakeups"] == ["mail", "workflow"]


def test_delete_takes_a_wakeup_that_an_earlier_one_left() -> None:
    changed(
        Path("orders.db"),
        "INSERT INTO workflow_queue (namespace, workflow, visible_at) VALUES ('mail', 'left', 0)",
    )
    assert done("delete", "left", "--yes") == "left is deleted with 0 records\n"
    assert queued("left") == []
    assert refused("delete", "left", "--yes") == "nothing is known of workflow 'left'"


def test_a_delete_that_is_broken_off_between_the_queues_can_be_done_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken_off(durable: SqliteDurable, workflow: str) -> int:
        raise sqlite3.OperationalError("the process died here")

    done("deliver", "order-1", "1", "--namespace", "mail")
    done("deliver", "order-1", "1", "--namespace", "workflow")
    with monkeypatch.context() as dying:
        dying.setattr(SqliteDurable, "delete", broken_off)
        assert "died here" in refused("delete", "order-1", "--yes")
    assert queued("order-1") == ["workflow"]
    done("delete", "order-1", "--yes")
    assert queued("order-1") == []


def meanwhile(monkeypatch: pytest.MonkeyPatch, *other: str) -> None:
    """Somebody else acts between the look at a workflow and the call."""
    call = steering.acted

    def acted(*given: Any) -> Any:
        monkeypatch.setattr(steering, "acted", call)
        done(*other)
        return call(*given)

    monkeypatch.setattr(steering, "acted", acted)


def test_a_retry_that_comes_second_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile(monkeypatch, "retry", "order-4")
    assert refused("retry", "order-4") == "order-4 was retried meanwhile: it is ready"


NOBODY = "nothing is known of workflow 'order-4'"


@pytest.mark.parametrize(
    ("argv", "other", "line"),
    [
        (["cancel"], ["cancel"], "order-4 is cancelled meanwhile: there is nothing to cancel"),
        (["cancel"], ["delete"], NOBODY),
        (["retry"], ["delete"], NOBODY),
        (["rewind", "charge"], ["delete"], NOBODY),
        (["fork", "order-4b"], ["delete"], NOBODY),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_an_act_that_comes_second_is_no_success(
    argv: list[str], other: list[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(monkeypatch, other[0], "order-4", "--yes")
    assert refused(argv[0], "order-4", *argv[1:], "--yes") == line


@pytest.mark.parametrize(
    "argv",
    [
        ["retry", "nobody"],
        ["cancel", "nobody", "--yes"],
        ["rewind", "nobody", "step", "--yes"],
        ["fork", "nobody", "new"],
        ["delete", "nobody", "--yes"],
    ],
    ids=lambda argv: argv[0],
)
def test_an_unknown_id_is_refused(argv: list[str]) -> None:
    assert refused(*argv) == "nothing is known of workflow 'nobody'"


def test_a_dry_run_counts_what_would_go_and_asks_nobody() -> None:
    before = done("list")
    assert done("sweep", "--older", "30min", "--dry-run") == (
        "1 workflow would go: 1 completed, unchanged for 30 min\n"
    )
    every = [
        option for state in ("completed", "failed", "cancelled") for option in ("--state", state)
    ]
    out = done("sweep", "--older", "36min", *every, "--dry-run", "--json")
    assert json.loads(out)["would_go"] == {"completed": 1, "failed": 1, "cancelled": 0}
    assert done("list") == before


def test_sweep_deletes_what_a_dry_run_counted() -> None:
    assert done("sweep", "--older", "36min", "--state", "failed", "--yes") == (
        "1 workflow is swept, unchanged for 36 min\n"
    )
    assert refused("show", "order-4") == "nothing is known of workflow 'order-4'"
    assert done("sweep", "--older", "36min", "--state", "failed") == (
        "0 workflows are swept, unchanged for 36 min\n"
    )


def test_sweep_goes_on_until_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("without_durability_sqlite.cli.sweeping.SWEPT", 2)
    with closing(sqlite3.connect("orders.db")) as connection, connection:
        for n in range(11):
            query = (
                "INSERT INTO workflow_run (workflow, namespace, state, created_at, updated_at) "
                "VALUES (?, 'workflow', 'completed', 0, 0)"
            )
            connection.execute(query, (f"old-{n}",))
    reply = said("orders.db", "sweep", "--older", "1d", "--yes", clock=now, terminal=True, width=80)
    assert reply.out == "11 workflows are swept, unchanged for 1 d\n"
    assert "swept 10 of 11" in reply.err
    assert reply.err.endswith("\r\x1b[K"), "the progress line stays"


def test_an_id_that_looks_like_an_option_is_taken_after_two_dashes() -> None:
    assert "-x is new: it has the message" in done("deliver", "--", "-x", "1")
    assert "'-x' is queued" in done("why", "--", "-x")


def fail(*workflows: str) -> None:
    with closing(sqlite3.connect("orders.db")) as connection, connection:
        for workflow in workflows:
            query = "UPDATE workflow_run SET state = 'failed' WHERE workflow = ?"
            connection.execute(query, (workflow,))
            connection.execute("DELETE FROM workflow_queue WHERE workflow = ?", (workflow,))


def counts() -> dict[str, int]:
    told: dict[str, int] = json.loads(done("status", "--json"))["counts"]
    assert list(told) == list(STATES)
    return told


def test_nothing_is_left_open_or_beside_the_file() -> None:
    done("deliver", "order-1", "1")
    assert [one.name for one in Path().iterdir()] == ["orders.db"]
