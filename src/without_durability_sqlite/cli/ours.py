"""Whether a file is one of ours and of this release's schema: else it is refused, in a sentence."""

from __future__ import annotations

import sqlite3
from typing import TypeVar

from without_durability_sqlite import schema
from without_durability_sqlite.looking import Look, looked
from without_durability_sqlite.rows import rows

from .refusals import Refused
from .screen import Screen

T = TypeVar("T")

_IS_OURS = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'workflow_checkpoint'"


def look_at(file: str, screen: Screen, look: Look[T]) -> T:
    """What `look` finds in a file of ours, all of it at one moment."""

    def ours(connection: sqlite3.Connection) -> T:
        check_ours(connection, file)
        return look(connection)

    return looked(file, ours, wait=screen.wait)


def check_file(file: str, screen: Screen) -> None:
    """Refuse what a writing command must neither create nor bring up to date by itself."""
    looked(file, lambda connection: check_ours(connection, file), wait=screen.wait)


def check_holds_workflows(connection: sqlite3.Connection, file: str) -> None:
    """`Refused` for a file of another kind."""
    if schema.version_of(connection) is None and not rows(connection, _IS_OURS):
        raise Refused(f"{file} is a database, and holds no workflows: it lacks their tables")


def check_ours(connection: sqlite3.Connection, file: str) -> None:
    """`Refused` for a file of another kind or another schema."""
    check_holds_workflows(connection, file)
    version = schema.version_of(connection)
    if version is not None and version > schema.VERSION:
        raise Refused(
            f"{file} has workflow schema version {version}, made by a newer release: "
            f"this one knows version {schema.VERSION}"
        )
    if version != schema.VERSION:
        has = f"version {version}" if version else "no version, being older than versions are"
        raise Refused(
            f"{file} has workflow schema {has}, and this release works with version "
            f"{schema.VERSION}: the first program of this release that opens it (`migrate`) "
            "brings it up to date"
        )
    if not schema.is_current(connection):
        raise Refused(
            f"{file} says it has workflow schema version {version} and lacks parts of it: "
            "a program that opens it with `migrate` makes them anew"
        )
