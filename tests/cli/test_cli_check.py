"""`check`: each thing that should not be is found, named, and has its advice."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from console import said
from orders import now

from without_durability_sqlite.checking import _LOOKS
from without_durability_sqlite.cli import checking

ODD = {
    "not queued": "DELETE FROM workflow_queue WHERE workflow = 'order-8'",
    "queued": "INSERT INTO workflow_queue VALUES ('workflow', 'order-1', 0, NULL, NULL)",
    "claimed": "UPDATE workflow_claim SET alive_until = :now + 30 WHERE workflow = 'order-2'",
    "claim ahead": (
        "UPDATE workflow_claim SET alive_until = :now + 200000 WHERE workflow = 'order-5'"
    ),
    "token ahead": "UPDATE workflow_claim SET token = :now * 2000 WHERE workflow = 'order-1'",
    "state": "UPDATE workflow_run SET state = 'lost' WHERE workflow = 'order-1'",
    "count": "UPDATE workflow_count SET count = 7 WHERE state = 'blocked' AND namespace = 'mail'",
}


def made_odd(path: Path, kind: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(ODD[kind], {"now": now()} if ":now" in ODD[kind] else {})


def found(path: Path) -> list[dict[str, Any]]:
    done = said(path, "check", "--json", clock=now)
    document = json.loads(done.out)
    wrong = [one for one in document["findings"] if not one["ok"]]
    assert (done.code, document["wrong"]) == (1, len(wrong))
    return wrong


@pytest.mark.parametrize("kind", ODD)
def test_what_should_not_be_is_found_and_says_what_to_do(kind: str, orders: Path) -> None:
    made_odd(orders, kind)
    (finding,) = found(orders)
    assert finding["kind"] == kind
    assert finding["advice"]
    assert (finding["workflow"] is None) == (kind == "count")
    screen = said(orders, "check", clock=now, terminal=True).out
    assert f"wrong  {kind}: " in screen
    assert finding["advice"] in screen
    assert screen.endswith("\n1 thing is wrong\n")


def test_every_kind_of_oddity_has_its_advice() -> None:
    assert {kind for kind, *_ in _LOOKS} | {"count"} == set(checking._ADVICE) == set(ODD)


@pytest.mark.parametrize(
    ("kind", "commands"),
    [
        ("not queued", [["deliver", "order-8", "1"]]),
        ("not queued", [["rewind", "order-8", "charge", "--yes"]]),
        ("queued", [["delete", "order-1", "--yes"]]),
        ("claim ahead", [["cancel", "order-5", "--yes"], ["retry", "order-5"]]),
    ],
    ids=["not queued: deliver", "not queued: rewind", "queued: delete", "claim ahead: cancel"],
)
def test_the_advice_mends_it(kind: str, commands: list[list[str]], orders: Path) -> None:
    if commands[0][0] == "rewind":
        with closing(sqlite3.connect(orders, isolation_level=None)) as connection:
            connection.execute(
                "INSERT INTO workflow_checkpoint (workflow, step, value) "
                "VALUES ('order-8', 'charge', '1')"
            )
    made_odd(orders, kind)
    assert found(orders)
    for argv in commands:
        assert said(orders, *argv, clock=now).code == 0
    assert said(orders, "check", clock=now).code == 0


def test_the_advice_about_counts_mends_them(orders: Path) -> None:
    made_odd(orders, "count")
    (finding,) = found(orders)
    statements = finding["advice"].split("mends it: ")[1]
    with closing(sqlite3.connect(orders)) as connection:
        connection.executescript(f"BEGIN; {statements}; COMMIT;")
    assert said(orders, "check", clock=now).code == 0


def test_a_log_that_is_not_written_back_is_wrong(
    orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "LARGE_LOG", 1000)
    with closing(sqlite3.connect(orders, isolation_level=None)) as writer:
        writer.execute("UPDATE workflow_run SET attempts = 5")
        (finding,) = found(orders)
    assert finding["kind"] == "write-ahead log"
    assert "not written back" in finding["sentence"]


def test_an_sqlite_below_the_floor_is_wrong(orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "NEEDED", (99, 0, 0))
    (finding,) = found(orders)
    assert finding["kind"] == "SQLite"
    assert "99.0.0 or later is needed" in finding["sentence"]


def test_an_unsound_index_is_wrong(orders: Path) -> None:
    with closing(sqlite3.connect(orders, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, '(state, namespace)', '(state, seq)') "
            "WHERE name = 'workflow_run_state'"
        )
    wrong = found(orders)
    assert {one["kind"] for one in wrong} == {"integrity"}
    assert "restore a backup" in wrong[0]["advice"]
