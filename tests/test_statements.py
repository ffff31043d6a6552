"""Every SQL constant compiles, and none but the two over one row reads a whole table."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from without_durability_sqlite import SCHEMA, loading, schema, statements

STATEMENTS = {
    name: text
    for module in (loading, schema, statements)
    for name, text in vars(module).items()
    if name.isupper()
    and not name.startswith("_")
    and isinstance(text, str)
    and name != "SCHEMA"
    and re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE)\b", text)
}

BY_KEY = "USING INDEX sqlite_autoindex_workflow_checkpoint_1 (workflow=? AND step=?)"
BY_WORKFLOW = "USING INDEX sqlite_autoindex_workflow_checkpoint_1 (workflow=?)"
CLAIM_BY_KEY = "SEARCH workflow_claim USING PRIMARY KEY (workflow=?)"
QUEUE_BY_KEY = "SEARCH workflow_queue USING PRIMARY KEY (namespace=? AND workflow=?)"
BY_VISIBILITY = "USING COVERING INDEX workflow_queue_visible_at (namespace=? AND visible_at<?)"
BY_TAKEN = "INDEX workflow_queue_taken_for (namespace=?"

PLANNED: dict[str, tuple[str, ...]] = {
    "LOAD": (BY_WORKFLOW,),
    "READ": (BY_KEY,),
    "WRITE": (),
    "LATEST": ("SCAN workflow_checkpoint",),  # its last row only: no sorting beside it
    "LATEST_OF_WORKFLOW": (BY_WORKFLOW,),
    "NEXT_SEQ": ("SEARCH workflow_checkpoint",),
    "INBOX_KEYS": ("(workflow=? AND step>? AND step<?)",),
    "DISCARD": ("sqlite_autoindex_workflow_checkpoint_1 (workflow=?)",),
    "CLAIM": (),
    "CLAMP_CLAIM": (CLAIM_BY_KEY,),
    "FENCE": (CLAIM_BY_KEY, BY_KEY),
    "STANDS": (CLAIM_BY_KEY,),
    "SIGN_OF_LIFE": (CLAIM_BY_KEY,),
    "RENEW": (CLAIM_BY_KEY,),
    "EXTEND_CLAIM": (CLAIM_BY_KEY,),
    "RELEASE": (CLAIM_BY_KEY,),
    "RAISE_FENCE": (CLAIM_BY_KEY,),
    "LOOK": (BY_VISIBILITY, BY_TAKEN),
    "CLAMP_TAKEN": (BY_TAKEN,),
    "TAKE": (QUEUE_BY_KEY, BY_VISIBILITY),
    "MAKE_READY": (),
    "SCHEDULE": (),
    "HOLDS": (QUEUE_BY_KEY,),
    "EXTEND_DELIVERY": (QUEUE_BY_KEY,),
    "SUSPEND": (QUEUE_BY_KEY,),
    "DONE": (QUEUE_BY_KEY,),
    "CANCEL": (QUEUE_BY_KEY,),
}

# What may be read from end to end: a table of one row, and a table's last row.
MAY_SCAN = {
    "SCAN workflow_schema",
    "SCAN CONSTANT ROW",
    "SCAN workflow_checkpoint",
}


@pytest.fixture(scope="module")
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(SCHEMA)
        yield connection


def explained(connection: sqlite3.Connection, how: str, statement: str) -> list[tuple[Any, ...]]:
    asked: Any = dict.fromkeys(re.findall(r":([a-z_]+)", statement)) or (None,) * statement.count(
        "?"
    )
    return connection.execute(f"{how} {statement}", asked).fetchall()


def test_the_statements_are_found_where_they_are_kept():
    assert STATEMENTS.keys() >= {"LOAD", "READ", "CLAIM", "LOOK", "TAKE", "DONE", "COLUMNS"}


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_compiles(connection, name):
    assert explained(connection, "EXPLAIN", STATEMENTS[name])


@pytest.mark.parametrize("name", PLANNED)
def test_a_statement_uses_its_index(connection, name):
    plan = [row[-1] for row in explained(connection, "EXPLAIN QUERY PLAN", STATEMENTS[name])]
    for planned in PLANNED[name]:
        assert any(planned in step for step in plan), plan


@pytest.mark.parametrize("name", [name for name in STATEMENTS if "pragma_" not in STATEMENTS[name]])
def test_a_statement_reads_no_whole_table(connection, name):
    plan = [row[-1] for row in explained(connection, "EXPLAIN QUERY PLAN", STATEMENTS[name])]
    allowed = MAY_SCAN if name == "LATEST" else MAY_SCAN - {"SCAN workflow_checkpoint"}
    scans = {step for step in plan if step.startswith("SCAN")}
    assert scans <= allowed, plan
    sorts = [step for step in plan if "TEMP B-TREE" in step]
    # One workflow's records are put in order of their writing.
    assert not sorts or name == "LOAD", plan


def test_every_statement_of_the_stores_has_its_plan_pinned():
    of_the_stores = STATEMENTS.keys() - vars(schema).keys() - {"CLOCK_WAS_SET_BACK"}
    assert of_the_stores == PLANNED.keys()


@pytest.mark.parametrize("statement", [part for part in SCHEMA.split(";") if part.strip()])
def test_every_statement_of_the_schema_may_be_run_again(connection, statement):
    assert re.match(r"\s*CREATE (TABLE|INDEX) IF NOT EXISTS ", statement)
    connection.execute(statement)
