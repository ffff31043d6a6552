"""The tables, which shapes of them are known, and how an older file is brought up to date."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from .files import main_file
from .rows import lenient, rows
from .statements import FINISHED, OF_INBOX, TOO_LATE

VERSION = 2
"""The version of the schema below, kept in `workflow_schema` and nowhere else."""

_NOW = (
    "unixepoch('now', 'subsec')"
    if sqlite3.sqlite_version_info >= (3, 42)
    else "(julianday('now') - 2440587.5) * 86400.0"
)

_CHECKPOINT = f"""
CREATE TABLE IF NOT EXISTS workflow_checkpoint (
    seq INTEGER PRIMARY KEY NOT NULL,
    workflow TEXT NOT NULL,
    step TEXT NOT NULL,
    value TEXT NOT NULL,
    written_at REAL NOT NULL DEFAULT ({_NOW}),
    supplied INTEGER NOT NULL DEFAULT 0,
    UNIQUE (workflow, step)
)"""

_CLAIM = """
CREATE TABLE IF NOT EXISTS workflow_claim (
    workflow TEXT PRIMARY KEY NOT NULL,
    token INTEGER NOT NULL,
    held_until REAL NOT NULL,
    alive_until REAL NOT NULL,
    alive_for REAL NOT NULL,
    seen_at REAL
) WITHOUT ROWID"""

_QUEUE = """
CREATE TABLE IF NOT EXISTS workflow_queue (
    namespace TEXT NOT NULL,
    workflow TEXT NOT NULL,
    visible_at REAL NOT NULL,
    taken TEXT,
    taken_for REAL,
    PRIMARY KEY (namespace, workflow)
) WITHOUT ROWID"""

_VISIBLE_AT = """
CREATE INDEX IF NOT EXISTS workflow_queue_visible_at ON workflow_queue (namespace, visible_at)"""

_TAKEN_FOR = """
CREATE INDEX IF NOT EXISTS workflow_queue_taken_for
ON workflow_queue (namespace, visible_at, taken_for) WHERE taken_for IS NOT NULL"""

_RUN = """
CREATE TABLE IF NOT EXISTS workflow_run (
    seq INTEGER PRIMARY KEY NOT NULL,
    workflow TEXT NOT NULL UNIQUE,
    namespace TEXT NOT NULL,
    state TEXT NOT NULL,
    detail TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL
)"""

# A state's rows of a queue in the order of `seq`, which ends every index.
_OF_STATE = """
CREATE INDEX IF NOT EXISTS workflow_run_state ON workflow_run (state, namespace)"""

# What can be swept, the longest unchanged first; a workflow that is under way costs it nothing.
_FINISHED = f"""
CREATE INDEX IF NOT EXISTS workflow_run_finished ON workflow_run (state, updated_at)
WHERE {FINISHED}"""

# How many rows there are of a state, kept by triggers so that counting them is no scan.
_COUNT = """
CREATE TABLE IF NOT EXISTS workflow_count (
    state TEXT NOT NULL,
    namespace TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (state, namespace)
) WITHOUT ROWID"""

_COUNT_IN = """
    INSERT INTO workflow_count (state, namespace, count) VALUES (NEW.state, NEW.namespace, 1)
    ON CONFLICT (state, namespace) DO UPDATE SET count = count + 1;"""

_COUNT_OUT = """
    UPDATE workflow_count SET count = count - 1
    WHERE state = OLD.state AND namespace = OLD.namespace;"""

_COUNTED_IN = f"""
CREATE TRIGGER IF NOT EXISTS workflow_run_counted_in AFTER INSERT ON workflow_run BEGIN{_COUNT_IN}
END"""

_COUNTED_OUT = f"""
CREATE TRIGGER IF NOT EXISTS workflow_run_counted_out AFTER DELETE ON workflow_run BEGIN{_COUNT_OUT}
END"""

_RECOUNTED = f"""
CREATE TRIGGER IF NOT EXISTS workflow_run_recounted AFTER UPDATE OF state, namespace ON workflow_run
WHEN OLD.state IS NOT NEW.state OR OLD.namespace IS NOT NEW.namespace BEGIN{_COUNT_OUT}{_COUNT_IN}
END"""

_SCHEMA_VERSION = """
CREATE TABLE IF NOT EXISTS workflow_schema (
    version INTEGER PRIMARY KEY NOT NULL,
    clock_ahead REAL NOT NULL DEFAULT 0,
    swept INTEGER NOT NULL DEFAULT 0
)"""

_STATEMENTS = (
    *(_CHECKPOINT, _CLAIM, _QUEUE, _VISIBLE_AT, _TAKEN_FOR),
    *(_RUN, _OF_STATE, _FINISHED),
    *(_COUNT, _COUNTED_IN, _COUNTED_OUT, _RECOUNTED),
    _SCHEMA_VERSION,
)

_BESIDE_TABLES = {
    *("workflow_queue_visible_at", "workflow_queue_taken_for"),
    *("workflow_run_state", "workflow_run_finished"),
    *("workflow_run_counted_in", "workflow_run_counted_out", "workflow_run_recounted"),
}
"""The indexes and triggers of this schema."""

SCHEMA = ";".join(_STATEMENTS) + ";\n"
"""Every statement is `CREATE … IF NOT EXISTS`. `migrate` does more: it upgrades older files."""


# Text is read as bytes throughout: no `text_factory` then matters.
COLUMNS = """
SELECT CAST(name AS BLOB), CAST(type AS BLOB), "notnull", dflt_value IS NOT NULL, pk
FROM pragma_table_info(?)"""

BESIDE_TABLES = """
SELECT CAST(name AS BLOB) FROM sqlite_schema WHERE type IN ('index', 'trigger')"""

UNIQUE_COLUMNS = """
SELECT CAST(list.name AS BLOB), CAST(info.name AS BLOB)
FROM pragma_index_list(?) AS list, pragma_index_info(list.name) AS info
WHERE list."unique" AND NOT list.partial"""


class Column(NamedTuple):
    """What `migrate` compares of a column; `optional` is one that an INSERT may leave out."""

    type: str
    optional: bool = False
    key: int = 0


Columns: TypeAlias = Mapping[str, Column]

_TABLES: Mapping[str, Columns] = {
    "workflow_checkpoint": {
        "seq": Column("INTEGER", key=1),
        "workflow": Column("TEXT"),
        "step": Column("TEXT"),
        "value": Column("TEXT"),
        "written_at": Column("REAL", optional=True),
    },
    "workflow_claim": {
        "workflow": Column("TEXT", key=1),
        "token": Column("INTEGER"),
        "held_until": Column("REAL"),
        "alive_until": Column("REAL"),
        "alive_for": Column("REAL"),
    },
    "workflow_queue": {
        "namespace": Column("TEXT", key=1),
        "workflow": Column("TEXT", key=2),
        "visible_at": Column("REAL"),
    },
    "workflow_run": {
        "seq": Column("INTEGER", key=1),
        "workflow": Column("TEXT"),
        "namespace": Column("TEXT"),
        "state": Column("TEXT"),
        "detail": Column("TEXT", optional=True),
        "attempts": Column("INTEGER", optional=True),
        "created_at": Column("REAL"),
        "updated_at": Column("REAL"),
    },
    "workflow_count": {
        "state": Column("TEXT", key=1),
        "namespace": Column("TEXT", key=2),
        "count": Column("INTEGER"),
    },
    "workflow_schema": {
        "version": Column("INTEGER", key=1),
        "clock_ahead": Column("REAL", optional=True),
    },
}

# The columns that were added to tables which older files have: an INSERT may leave each out.
_ADDED: Mapping[str, Columns] = {
    "workflow_checkpoint": {"supplied": Column("INTEGER NOT NULL DEFAULT 0", optional=True)},
    "workflow_claim": {"seen_at": Column("REAL", optional=True)},
    "workflow_queue": {
        "taken": Column("TEXT", optional=True),
        "taken_for": Column("REAL", optional=True),
    },
    "workflow_schema": {"swept": Column("INTEGER NOT NULL DEFAULT 0", optional=True)},
}

_UNIQUE = {"workflow_checkpoint": {"workflow", "step"}, "workflow_run": {"workflow"}}

# What claims looked like before they had signs of life: one moment, the end of the budget.
_CLAIM_BUDGET_ONLY: Columns = {
    name: _TABLES["workflow_claim"][name] for name in ("workflow", "token", "held_until")
}

# The claims of such a file live on under the new shape: alive until their budget ends.
_CARRY_CLAIMS_OVER = (
    "ALTER TABLE workflow_claim RENAME TO workflow_claim_before",
    _CLAIM,
    """
    INSERT INTO workflow_claim (workflow, token, held_until, alive_until, alive_for)
    SELECT workflow, token, held_until, held_until, 60.0 FROM workflow_claim_before""",
    "DROP TABLE workflow_claim_before",
)


# What a message is in a file from before the ledger.
_MESSAGES_WERE_SUPPLIED = f"UPDATE workflow_checkpoint SET supplied = 1 WHERE {OF_INBOX}"

# A row for every workflow that has records or a queue row. One that is at rest has completed or
# waits for something: `blocked`, since that is what nobody sweeps.
_DERIVE_LEDGER = f"""
WITH recorded AS (
    SELECT workflow, min(seq) AS first, min(written_at) AS first_at, max(written_at) AS last_at
    FROM workflow_checkpoint WHERE typeof(workflow) = 'text' GROUP BY workflow
), queued AS (
    SELECT workflow, namespace, min(visible_at) AS visible_at, taken
    FROM workflow_queue WHERE typeof(workflow) = 'text' GROUP BY workflow
), known AS (
    SELECT workflow FROM recorded UNION SELECT workflow FROM queued
)
INSERT INTO workflow_run (workflow, namespace, state, created_at, updated_at)
SELECT known.workflow, coalesce(queued.namespace, 'workflow'),
    CASE WHEN queued.workflow IS NULL THEN 'blocked'
         WHEN queued.visible_at <= :now OR queued.taken IS NOT NULL OR EXISTS (
             SELECT 1 FROM workflow_claim
             WHERE workflow_claim.workflow = known.workflow AND alive_until > :now) THEN 'ready'
         ELSE 'sleeping' END,
    CASE WHEN typeof(first_at) IN ('real', 'integer') AND first_at < {TOO_LATE}
         THEN first_at ELSE :now END,
    CASE WHEN typeof(last_at) IN ('real', 'integer') AND last_at < {TOO_LATE}
         THEN last_at ELSE :now END
FROM known LEFT JOIN recorded USING (workflow) LEFT JOIN queued USING (workflow)
ORDER BY first IS NULL, first, known.workflow"""


# The counts of a file that has lost them, or one of the triggers that keep them.
_COUNT_ANEW = (
    "DELETE FROM workflow_count",
    """
    INSERT INTO workflow_count (state, namespace, count)
    SELECT state, namespace, count(*) FROM workflow_run GROUP BY state, namespace""",
)


def is_current(connection: sqlite3.Connection) -> bool:
    """Whether the file has this very schema already, which a look without any lock tells."""
    return (
        version_of(connection) == VERSION
        and _lacks(connection) == set()
        and all(
            columns.keys() | _ADDED.get(table, {}).keys() <= _columns(connection, table).keys()
            for table, columns in _TABLES.items()
        )
    )


def bring_up_to_date(cursor: sqlite3.Cursor, now: float) -> None:
    """Create or upgrade the tables, inside the caller's transaction.

    Raises `sqlite3.NotSupportedError` for a schema newer than this release knows and
    `sqlite3.DatabaseError` for tables of a shape that no release made.
    """
    connection = cursor.connection
    version = version_of(connection)
    if version is not None and version > VERSION:
        raise sqlite3.NotSupportedError(
            f"{_file(connection)} has workflow schema version {version}, made by a newer release: "
            f"this one knows version {VERSION}"
        )
    if _columns(connection, "workflow_claim").keys() == _CLAIM_BUDGET_ONLY.keys():
        for statement in _CARRY_CLAIMS_OVER:
            cursor.execute(statement)
    for table in _TABLES:
        if found := _columns(connection, table):
            _check_shape(connection, table, found)
    for table, columns in _ADDED.items():
        if found := _columns(connection, table):
            for name in columns.keys() - found.keys():
                cursor.execute(f"ALTER TABLE {table} ADD COLUMN {name} {columns[name].type}")
    had_ledger = bool(_columns(connection, "workflow_run"))
    had_counts = bool(_columns(connection, "workflow_count")) and not _lacks(connection)
    for statement in _STATEMENTS:
        cursor.execute(statement)
    if not had_ledger:
        cursor.execute(_MESSAGES_WERE_SUPPLIED)
        cursor.execute(_DERIVE_LEDGER, {"now": now})
    elif not had_counts:
        for statement in _COUNT_ANEW:
            cursor.execute(statement)
    cursor.execute("INSERT OR IGNORE INTO workflow_schema (version) VALUES (?)", (VERSION,))


def _lacks(connection: sqlite3.Connection) -> set[str]:
    """The indexes and triggers of this schema that the file does not have."""
    beside = {lenient(name) for (name,) in rows(connection, BESIDE_TABLES)}
    return _BESIDE_TABLES - beside


def _check_shape(connection: sqlite3.Connection, table: str, found: Columns) -> None:
    """Names, types and keys must be a known shape's; default texts are nobody's business."""
    needed = _TABLES[table]
    known = {**needed, **_ADDED.get(table, {})}
    strange = {name for name in found.keys() - known.keys() if not found[name].optional}
    strange |= {name for name in known if name in found and not _same(found[name], known[name])}
    strange |= needed.keys() - found.keys()
    unique = _UNIQUE.get(table, set())
    if unique and not _is_unique(connection, table, unique):
        strange |= unique
    if strange:
        raise sqlite3.DatabaseError(
            f"{_file(connection)}: table {table} has a shape that no known release made "
            f"(columns {', '.join(found)}; expected {', '.join(needed)}; "
            f"at odds: {', '.join(sorted(strange))})"
        )


def _same(found: Column, known: Column) -> bool:
    return (found.type, found.key) == (known.type.split()[0], known.key)


def version_of(connection: sqlite3.Connection) -> int | None:
    """The file's schema version; `None` before this design first saw it."""
    if "version" not in _columns(connection, "workflow_schema"):
        return None
    ((version,),) = rows(connection, "SELECT max(version) FROM workflow_schema")
    return int(version or 0)


def _columns(connection: sqlite3.Connection, table: str) -> Columns:
    """A table's columns, empty when there is no such table."""
    return {
        name.decode(): Column(
            kind.decode().upper(),
            optional=not key and (not notnull or has_default),
            key=key,
        )
        for name, kind, notnull, has_default, key in rows(connection, COLUMNS, (table,))
    }


def _is_unique(connection: sqlite3.Connection, table: str, columns: set[str]) -> bool:
    """Whether the table has a unique index over exactly those columns."""
    indexes: dict[bytes, set[str]] = {}
    for index, column in rows(connection, UNIQUE_COLUMNS, (table,)):
        indexes.setdefault(index, set()).add(column.decode())
    return columns in indexes.values()


def _file(connection: sqlite3.Connection) -> str:
    return main_file(connection) or "the database in memory"
