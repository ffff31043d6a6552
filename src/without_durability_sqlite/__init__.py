"""Durable workflows in one SQLite file. All of it is in `store`."""

from .store import (
    SCHEMA,
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteEffect,
    SqliteScheduler,
    connect,
    migrate,
)

__all__ = [
    "SCHEMA",
    "Database",
    "SqliteCheckpointer",
    "SqliteDurable",
    "SqliteEffect",
    "SqliteScheduler",
    "connect",
    "migrate",
]
