"""Which errors pass by themselves, and errors with SQLite's own codes as facts."""

from __future__ import annotations

import sqlite3

_TRANSIENT = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
}


class Misuse(RuntimeError):
    """The database was called from where it cannot answer: no later call from there will do."""


def operational_error(text: str, name: str) -> sqlite3.OperationalError:
    """An `OperationalError` that carries the named result code as SQLite's own would."""
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = getattr(sqlite3, name)
    error.sqlite_errorname = name
    return error


def naming(path: str, error: sqlite3.Error) -> sqlite3.Error:
    """The same error with the path in its text and its facts kept."""
    named = type(error)(f"cannot open {path}: {error}")
    for fact in ("sqlite_errorcode", "sqlite_errorname"):
        if hasattr(error, fact):
            setattr(named, fact, getattr(error, fact))
    return named


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection was in the way."""
    return primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_permanent(error: Exception) -> bool:
    """Whether an error will not go away by itself.

    Another process's lock, a full disk and the like will; a corrupt, replaced or closed file
    will not. What concerns one entry (a value, a constraint) says nothing about the store.
    """
    if isinstance(error, (sqlite3.IntegrityError, sqlite3.DataError)):
        return False
    if isinstance(error, sqlite3.Error):
        return primary_code(error) not in _TRANSIENT
    return isinstance(error, Misuse)


def primary_code(error: sqlite3.Error) -> int:
    """The result code without its extension; 0 for an error that is the driver's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
