"""Which errors of the SQLite store pass by themselves."""

from __future__ import annotations

import sqlite3

import pytest

from without_durability_sqlite import Database, SqliteScheduler
from without_durability_sqlite.errors import Misuse, operational_error


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (operational_error("busy", "SQLITE_BUSY"), False),
        (operational_error("busy", "SQLITE_BUSY_SNAPSHOT"), False),
        (operational_error("full", "SQLITE_FULL"), False),
        (operational_error("no descriptors left", "SQLITE_CANTOPEN"), False),
        (operational_error("moved", "SQLITE_READONLY_DBMOVED"), True),
        (operational_error("no such table", "SQLITE_ERROR"), True),
        (sqlite3.DatabaseError("malformed"), True),
        (sqlite3.ProgrammingError("closed"), True),
        (sqlite3.IntegrityError("one row"), False),
        (sqlite3.DataError("one value"), False),
        (Misuse("another loop"), True),
        (RuntimeError("somebody's own"), False),
        (ValueError("one entry"), False),
    ],
    ids=str,
)
async def test_the_scheduler_says_which_errors_will_not_pass(
    database: Database, error: Exception, permanent: bool
):
    assert SqliteScheduler(database).permanent(error) is permanent
