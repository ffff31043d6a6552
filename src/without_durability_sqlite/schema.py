"""The tables, which shapes of them are known, and how an older file is brought up to date."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from .files import main_file
from .rows import rows

VERSION = 1
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

_SCHEMA_VERSION = """
CREATE TABLE IF NOT EXISTS workflow_schema (
    version INTEGER PRIMARY KEY NOT NULL,
    clock_ahead REAL NOT NULL DEFAULT 0
)"""

_STATEMENTS = (_CHECKPOINT, _CLAIM, _QUEUE, _VISIBLE_AT, _TAKEN_FOR, _SCHEMA_VERSION)

_INDEXES = {"workflow_queue_visible_at", "workflow_queue_taken_for"}

SCHEMA = ";".join(_STATEMENTS) + ";\n"
"""Every statement is `CREATE … IF NOT EXISTS`. `migrate` does more: it upgrades older files."""


# Text is read as bytes throughout: no `text_factory` then matters.
COLUMNS = """
SELECT CAST(name AS BLOB), CAST(type AS BLOB), "notnull", dflt_value IS NOT NULL, pk
FROM pragma_table_info(?)"""

INDEXES = "SELECT CAST(name AS BLOB) FROM pragma_index_list(?)"

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
    "workflow_schema": {
        "version": Column("INTEGER", key=1),
        "clock_ahead": Column("REAL", optional=True),
    },
}

# The columns that this design added to the published tables: all may be null.
_ADDED: Mapping[str, Columns] = {
    "workflow_claim": {"seen_at": Column("REAL", optional=True)},
    "workflow_queue": {
        "taken": Column("TEXT", optional=True),
        "taken_for": Column("REAL", optional=True),
    },
}

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


def is_current(connection: sqlite3.Connection) -> bool:
    """Whether the file has this very schema already, which a look without any lock tells."""
    indexes = {name.decode() for (name,) in rows(connection, INDEXES, ("workflow_queue",))}
    return (
        _version(connection) == VERSION
        and indexes >= _INDEXES
        and all(
            columns.keys() | _ADDED.get(table, {}).keys() <= _columns(connection, table).keys()
            for table, columns in _TABLES.items()
        )
    )


def bring_up_to_date(cursor: sqlite3.Cursor) -> None:
    """Create or upgrade the tables, inside the caller's transaction.

    Raises `sqlite3.NotSupportedError` for a schema newer than this release knows and
    `sqlite3.DatabaseError` for tables of a shape that no release made.
    """
    connection = cursor.connection
    version = _version(connection)
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
    for statement in _STATEMENTS:
        cursor.execute(statement)
    cursor.execute("INSERT OR IGNORE INTO workflow_schema (version) VALUES (?)", (VERSION,))


def _check_shape(connection: sqlite3.Connection, table: str, found: Columns) -> None:
    """Names, types and keys must be a known shape's; default texts are nobody's business."""
    needed = _TABLES[table]
    known = {**needed, **_ADDED.get(table, {})}
    strange = {name for name in found.keys() - known.keys() if not found[name].optional}
    strange |= {name for name in known if name in found and not _same(found[name], known[name])}
    strange |= needed.keys() - found.keys()
    if table == "workflow_checkpoint" and not _is_unique(connection, table, {"workflow", "step"}):
        strange |= {"workflow", "step"}
    if strange:
        raise sqlite3.DatabaseError(
            f"{_file(connection)}: table {table} has a shape that no known release made "
            f"(columns {', '.join(found)}; expected {', '.join(needed)}; "
            f"at odds: {', '.join(sorted(strange))})"
        )


def _same(found: Column, known: Column) -> bool:
    return (found.type, found.key) == (known.type, known.key)


def _version(connection: sqlite3.Connection) -> int | None:
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
