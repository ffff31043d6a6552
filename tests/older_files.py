"""The tables as earlier releases made them, and what a file holds."""

from __future__ import annotations

import sqlite3

PUBLISHED = """
CREATE TABLE workflow_checkpoint (
    seq INTEGER PRIMARY KEY NOT NULL,
    workflow TEXT NOT NULL,
    step TEXT NOT NULL,
    value TEXT NOT NULL,
    written_at REAL NOT NULL DEFAULT ((julianday('now') - 2440587.5) * 86400.0),
    UNIQUE (workflow, step)
);
CREATE TABLE workflow_claim (
    workflow TEXT PRIMARY KEY NOT NULL,
    token INTEGER NOT NULL,
    held_until REAL NOT NULL,
    alive_until REAL NOT NULL,
    alive_for REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE workflow_queue (
    namespace TEXT NOT NULL,
    workflow TEXT NOT NULL,
    visible_at REAL NOT NULL,
    PRIMARY KEY (namespace, workflow)
) WITHOUT ROWID;
CREATE INDEX workflow_queue_visible_at ON workflow_queue (namespace, visible_at);
"""

CLAIM_BY_BUDGET = """
CREATE TABLE workflow_claim (
    workflow TEXT PRIMARY KEY NOT NULL,
    token INTEGER NOT NULL,
    held_until REAL NOT NULL
) WITHOUT ROWID;
"""

BEFORE_SIGNS_OF_LIFE = (
    PUBLISHED[: PUBLISHED.index("CREATE TABLE workflow_claim")]
    + CLAIM_BY_BUDGET
    + PUBLISHED[PUBLISHED.index("CREATE TABLE workflow_queue") :]
)


PUBLISHED_AGAIN = PUBLISHED.replace("TABLE", "TABLE IF NOT EXISTS").replace(
    "CREATE INDEX", "CREATE INDEX IF NOT EXISTS"
)
"""What a program of the published design runs whenever it starts."""

VERSION_1 = """
CREATE TABLE IF NOT EXISTS workflow_checkpoint (
    seq INTEGER PRIMARY KEY NOT NULL,
    workflow TEXT NOT NULL,
    step TEXT NOT NULL,
    value TEXT NOT NULL,
    written_at REAL NOT NULL DEFAULT ((julianday('now') - 2440587.5) * 86400.0),
    UNIQUE (workflow, step)
);
CREATE TABLE IF NOT EXISTS workflow_claim (
    workflow TEXT PRIMARY KEY NOT NULL,
    token INTEGER NOT NULL,
    held_until REAL NOT NULL,
    alive_until REAL NOT NULL,
    alive_for REAL NOT NULL,
    seen_at REAL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS workflow_queue (
    namespace TEXT NOT NULL,
    workflow TEXT NOT NULL,
    visible_at REAL NOT NULL,
    taken TEXT,
    taken_for REAL,
    PRIMARY KEY (namespace, workflow)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS workflow_queue_visible_at ON workflow_queue (namespace, visible_at);
CREATE INDEX IF NOT EXISTS workflow_queue_taken_for
ON workflow_queue (namespace, visible_at, taken_for) WHERE taken_for IS NOT NULL;
CREATE TABLE IF NOT EXISTS workflow_schema (
    version INTEGER PRIMARY KEY NOT NULL,
    clock_ahead REAL NOT NULL DEFAULT 0
);
INSERT OR IGNORE INTO workflow_schema (version) VALUES (1);
"""
"""As the release before the ledger made it."""


def columns(connection: sqlite3.Connection, table: str) -> dict[str, tuple[str, int, int]]:
    return {
        name: (kind, notnull, key)
        for _, name, kind, notnull, _, key in connection.execute(f"PRAGMA table_info({table})")
    }


def shape(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    return connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
