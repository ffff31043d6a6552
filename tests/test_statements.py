"""Every SQL constant compiles, and none but those of a check reads a whole table."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import pytest

from without_durability_sqlite import (
    SCHEMA,
    backing_up,
    checking,
    cli,
    loading,
    lookups,
    schema,
    statements,
    steering,
)


def statements_of(module: ModuleType) -> dict[str, str]:
    return {
        name: text
        for name, text in vars(module).items()
        if name.isupper()
        and not name.startswith("_")
        and isinstance(text, str)
        and name != "SCHEMA"
        and re.match(r"\s*(WITH|SELECT|INSERT|UPDATE|DELETE)\b", text)
    }


STATEMENTS: dict[str, str] = {}
for module in (loading, schema, statements, lookups, steering, checking):
    STATEMENTS |= statements_of(module)

# What a command or a backup asks, which may take its time.
ASIDE = statements_of(backing_up)
for found in iter_modules(cli.__path__, f"{cli.__name__}."):
    ASIDE |= statements_of(import_module(found.name))

BY_KEY = "USING INDEX sqlite_autoindex_workflow_checkpoint_1 (workflow=? AND step=?)"
BY_WORKFLOW = "USING INDEX sqlite_autoindex_workflow_checkpoint_1 (workflow=?)"
CLAIM_BY_KEY = "SEARCH workflow_claim USING PRIMARY KEY (workflow=?)"
QUEUE_BY_KEY = "SEARCH workflow_queue USING PRIMARY KEY (namespace=? AND workflow=?)"
BY_VISIBILITY = "USING COVERING INDEX workflow_queue_visible_at (namespace=? AND visible_at<?)"
BY_TAKEN = "INDEX workflow_queue_taken_for (namespace=?"
QUEUE_OF = "SEARCH queue USING PRIMARY KEY (namespace=? AND workflow=?)"
RUN_BY_KEY = "SEARCH workflow_run USING INDEX sqlite_autoindex_workflow_run_1 (workflow=?)"
RUN_BY_SEQ = "SEARCH workflow_run USING INTEGER PRIMARY KEY (rowid=?)"

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
    "VISIBLE": (BY_VISIBILITY,),
    "TAKE": (QUEUE_BY_KEY, BY_VISIBILITY),
    "MAKE_READY": (),
    "SCHEDULE": (),
    "HOLDS": (QUEUE_BY_KEY,),
    "EXTEND_DELIVERY": (QUEUE_BY_KEY,),
    "SUSPEND": (QUEUE_BY_KEY,),
    "DONE": (QUEUE_BY_KEY,),
    "CANCEL": (QUEUE_BY_KEY,),
    "END_CLAIM": (CLAIM_BY_KEY,),
    "QUEUED": (QUEUE_BY_KEY,),
    "QUEUES": ("SEARCH workflow_queue USING COVERING INDEX workflow_queue_visible_at",),
    "ARRIVED": (),
    "STANDING": (RUN_BY_KEY,),
    "ONE_MORE": (RUN_BY_SEQ,),
    "STARTED": (RUN_BY_SEQ,),
    "STARTED_FIRST": (),
    "PARKED": (RUN_BY_SEQ,),
    "ENDED_HERE": (RUN_BY_KEY,),
    "ENDED": (RUN_BY_KEY,),
    "FORGET": (RUN_BY_KEY,),
}

# What the ledger's looks and acts go by: rows of a page, of a queue, of a state, of a prefix.
STEERED: dict[str, tuple[str, ...]] = {
    "STATUS": ("SEARCH run USING INDEX sqlite_autoindex_workflow_run_1 (workflow=?)", QUEUE_OF),
    "LIST": ("SEARCH run USING INTEGER PRIMARY KEY (rowid<?)", QUEUE_OF, CLAIM_BY_KEY),
    "LIST_OF_STATE_IN_NAMESPACE": (
        "USING INDEX workflow_run_state (state=? AND namespace=? AND rowid<?)",
    ),
    "LIST_OF_SOME": (
        "SEARCH run USING INTEGER PRIMARY KEY (rowid=?)",
        "SCAN kept",
        "USING INDEX workflow_run_state (state=? AND namespace=? AND rowid<?)",
    ),
    "LIST_BY_PREFIX": ("sqlite_autoindex_workflow_run_1 (workflow>? AND workflow<?)",),
    "WITH_PREFIX": ("sqlite_autoindex_workflow_run_1 (workflow>? AND workflow<?)",),
    "COUNTS": ("SCAN workflow_count",),
    "COUNTS_OF_NAMESPACE": ("workflow_count USING PRIMARY KEY (state=? AND namespace=?)",),
    "CLAIM_OF": (CLAIM_BY_KEY,),
    "RETRIED": (RUN_BY_KEY,),
    "CANCELLED": (RUN_BY_KEY,),
    "CANCELLED_UNSEEN": (),
    "WAITING": (QUEUE_OF,),
    "IS_KNOWN": (CLAIM_BY_KEY, QUEUE_OF),
    "STEP_SEQ": (BY_KEY,),
    "REWIND": (BY_WORKFLOW,),
    "REWOUND": (),
    "FORK": (BY_WORKFLOW,),
    "FORKED": (RUN_BY_KEY,),
    "STILL_RIPE": ("SEARCH run USING INTEGER PRIMARY KEY (rowid=?)", QUEUE_OF),
    "SWEEPABLE": ("INDEX workflow_run_finished (state=? AND updated_at<?)", QUEUE_OF),
    "SWEEP_RECORDS": (BY_WORKFLOW, RUN_BY_SEQ),
    "REMEMBER_SWEPT": (CLAIM_BY_KEY, RUN_BY_SEQ),
    "SWEEP_CLAIM": (CLAIM_BY_KEY, RUN_BY_SEQ),
    "SWEEP_RUN": (RUN_BY_SEQ,),
}

# A check looks at the whole file; what it can find by an index it does.
CHECKED: dict[str, tuple[str, ...]] = {
    "NOT_QUEUED": ("USING INDEX workflow_run_state (state=?)", QUEUE_OF),
    "QUEUED_THOUGH_FINISHED": (
        "SEARCH queue USING",
        "sqlite_autoindex_workflow_run_1 (workflow=?)",
    ),
    "CLAIMED_FAR_AHEAD": ("SCAN workflow_claim",),
    "TOKEN_FAR_AHEAD": ("SCAN workflow_claim",),
    "CLAIMED_THOUGH_AT_REST": ("SCAN run", CLAIM_BY_KEY),
    "IN_NO_STATE": ("SCAN workflow_run",),
    "KEPT_COUNTS": ("SCAN workflow_count",),
    "REAL_COUNTS": ("SCAN workflow_run",),
}
PLANNED |= STEERED | CHECKED

# What may be read from end to end by any: a table of one row.
MAY_SCAN = {"SCAN workflow_schema", "SCAN CONSTANT ROW"}

# And by one alone: a table's last row, the few rows of a count, what a subquery has limited.
MAY_SCAN_TOO = {
    "LATEST": {"SCAN workflow_checkpoint"},
    "COUNTS": {"SCAN workflow_count"},
    "WITH_PREFIX": {"SCAN (subquery-1)"},
    "BESIDE_TABLES": {"SCAN sqlite_schema"},
    "SWEEPABLE": {"SCAN queues"},
    "STILL_RIPE": {"SCAN queues"},
    "WAITING": {"SCAN queues"},
    "IS_KNOWN": {"SCAN queues"},
    "QUEUES": {"SCAN queues"},
    "LIST_OF_SOME": {"SCAN kept"},
}

# A workflow's records as they were written, a few thousand workflows, what few queues hold of one.
SORTS = {"LOAD", "FORK", "LIST_BY_PREFIX", "WAITING"}


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
    assert ASIDE.keys() >= {"TABLES", "RECORDS", "TIMELINE", "CHANGED", "OLDEST", "WAKEUPS"}


@pytest.mark.parametrize("name", STATEMENTS | ASIDE)
def test_a_statement_compiles(connection, name):
    assert explained(connection, "EXPLAIN", (ASIDE | STATEMENTS)[name])


@pytest.mark.parametrize("name", PLANNED)
def test_a_statement_uses_its_index(connection, name):
    plan = [row[-1] for row in explained(connection, "EXPLAIN QUERY PLAN", STATEMENTS[name])]
    for planned in PLANNED[name]:
        assert any(planned in step for step in plan), plan


@pytest.mark.parametrize(
    "name",
    [name for name in STATEMENTS if "pragma_" not in STATEMENTS[name] and name not in CHECKED],
)
def test_a_statement_reads_no_whole_table(connection, name):
    plan = [row[-1] for row in explained(connection, "EXPLAIN QUERY PLAN", STATEMENTS[name])]
    scans = {step for step in plan if step.startswith("SCAN")}
    assert scans <= MAY_SCAN | MAY_SCAN_TOO.get(name, set()), plan
    sorts = [step for step in plan if "TEMP B-TREE" in step]
    assert not sorts or name in SORTS, plan


def test_every_statement_of_the_stores_has_its_plan_pinned():
    of_the_stores = STATEMENTS.keys() - vars(schema).keys() - {"REMEMBER_LATEST"}
    assert of_the_stores == PLANNED.keys()


def whole_statements(script: str) -> list[str]:
    """The statements of a script, those of a trigger with all that is inside it."""
    found, rest = [""], script.split(";")
    for part in rest:
        found[-1] += part
        if sqlite3.complete_statement(found[-1] + ";"):
            found.append("")
        else:
            found[-1] += ";"
    return [statement for statement in found if statement.strip(";\n ")]


@pytest.mark.parametrize("statement", whole_statements(SCHEMA))
def test_every_statement_of_the_schema_may_be_run_again(connection, statement):
    assert re.match(r"\s*CREATE (TABLE|INDEX|TRIGGER) IF NOT EXISTS ", statement)
    connection.execute(statement)


def test_the_schema_is_found_to_be_made_of_whole_statements():
    assert len(whole_statements(SCHEMA)) == SCHEMA.count("CREATE")
    assert all(sqlite3.complete_statement(f"{one};") for one in whole_statements(SCHEMA))
