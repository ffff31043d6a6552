"""A result that could not be stored, and a detail that cannot be read, are not shown as none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from console import changed, said
from orders import now

LOST = "a result of type set, which could not be stored"


@pytest.fixture(autouse=True)
def lost(orders: Path) -> None:
    detail = json.dumps({"unstored": "set"})
    changed(orders, f"UPDATE workflow_run SET detail = '{detail}' WHERE workflow = 'order-1'")


def told(*argv: str) -> str:
    done = said("orders.db", *argv, clock=now, terminal=True, width=200)
    assert (done.code, done.err) == (0, "")
    return done.out


def facts(workflow: str, *argv: str) -> dict[str, object]:
    for line in told(*argv, "--json").splitlines():
        document: dict[str, object] = json.loads(line)
        if document["workflow"] == workflow:
            return document
    raise AssertionError(f"nothing of {workflow}")


def test_a_result_that_could_not_be_stored_is_told_with_its_type() -> None:
    assert f"  result     {LOST}\n" in told("show", "order-1")
    assert LOST in told("list", "--state", "completed")
    assert "of type set, could not be stored" in told("why", "order-1")


@pytest.mark.parametrize("argv", [["list"], ["show", "order-1"]], ids=lambda argv: argv[0])
def test_json_tells_it_instead_of_a_result(argv: list[str]) -> None:
    document = facts("order-1", *argv)
    assert document["unstored"] == "set"
    assert "result" not in document


@pytest.mark.parametrize("workflow", ["order-1", "order-2", "order-4", "order-7"])
def test_a_detail_that_cannot_be_read_is_told_whatever_the_state(
    workflow: str, orders: Path
) -> None:
    changed(orders, f"UPDATE workflow_run SET detail = 'x' WHERE workflow = '{workflow}'")
    assert "cannot be read (" in told("list", "--prefix", workflow)
    assert "cannot be read (" in told("show", workflow)
    assert "cannot be read" in told("why", workflow)
    for argv in (["list"], ["show", workflow]):
        document = facts(workflow, *argv)
        assert document["unreadable"]
        assert "result" not in document


def test_a_result_of_null_is_a_result(orders: Path) -> None:
    changed(orders, "UPDATE workflow_run SET detail = NULL WHERE workflow = 'order-1'")
    assert facts("order-1", "list")["result"] is None
    assert "  result     null\n" in told("show", "order-1")
