"""A connection that fails at the statement it is told to: before, after, or among its rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from without_durability_sqlite.errors import operational_error

Moment = Literal["before_it_ran", "after_it_ran", "while_its_rows_are_fetched"]

ERRORS: dict[str, Callable[[], BaseException]] = {
    "io": lambda: operational_error("disk I/O error", "SQLITE_IOERR"),
    "full": lambda: operational_error("database or disk is full", "SQLITE_FULL"),
    "memory": MemoryError,
    "interrupt": KeyboardInterrupt,
}


@dataclass
class Fault:
    """What happens at the n-th statement from now on; `at` is the statement it happened at."""

    n: int
    moment: Moment
    error: BaseException
    at: str | None = None


class Faulty(sqlite3.Connection):
    """Says which statements it ran, and raises at the one that its fault names.

    `rollback` is a moment at which every ROLLBACK fails. One that is `beside` another says its
    statements to that one, and has its faults.
    """

    beside: Faulty | None = None

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.disarm()
        super().__init__(*arguments, **settings)

    def arm(self, fault: Fault, rollback: Moment | None = None) -> None:
        self.statements: list[str] = []
        self.fault: Fault | None = fault
        self.rollback = rollback

    def disarm(self) -> None:
        self.statements, self.fault, self.rollback = [], None, None

    def cursor(self, factory: type[sqlite3.Cursor] = sqlite3.Cursor) -> sqlite3.Cursor:
        cursor = super().cursor(faulty(factory))
        cursor.source = self.beside or self  # type: ignore[attr-defined]
        return cursor

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        return self.cursor().execute(sql, *arguments)

    def due(self, sql: str) -> Fault | None:
        """The fault of the statement that comes now, if it is to have one."""
        self.statements.append(sql)
        if sql == "ROLLBACK" and self.rollback is not None:
            return Fault(0, self.rollback, operational_error("no rollback", "SQLITE_IOERR"))
        if self.fault is None or len(self.statements) != self.fault.n:
            return None
        return self.fault


class FaultyCursor(sqlite3.Cursor):
    source: Faulty
    fetching: Fault | None = None

    def execute(self, sql: str, *arguments: Any) -> Any:
        fault = self.source.due(sql)
        self.meets(fault, "before_it_ran", sql)
        result = super().execute(sql, *arguments)
        self.meets(fault, "after_it_ran", sql)
        self.fetching, self.sql = fault, sql
        return result

    def fetchall(self) -> Any:
        self.meets(self.fetching, "while_its_rows_are_fetched", self.sql)
        return super().fetchall()

    def fetchone(self) -> Any:
        self.meets(self.fetching, "while_its_rows_are_fetched", self.sql)
        return super().fetchone()

    def __next__(self) -> Any:
        self.meets(self.fetching, "while_its_rows_are_fetched", self.sql)
        return super().__next__()

    def meets(self, fault: Fault | None, moment: Moment, sql: str) -> None:
        if fault is not None and fault.moment == moment:
            fault.at = sql
            self.close()  # a statement that failed is reset by the driver
            raise fault.error


@cache
def faulty(factory: type[sqlite3.Cursor]) -> type[sqlite3.Cursor]:
    return type("Faulty" + factory.__name__, (FaultyCursor, factory), {})
