"""Rows and columns as values: what is read from a file is checked, what is bound is bindable."""

from __future__ import annotations

import math
import sqlite3
from datetime import UTC, datetime
from typing import Any

from without_durability.checks import check_aware, check_text
from without_durability.values import Pass, shown


def rows(
    connection: sqlite3.Connection, query: str, asked: dict[str, Any] | tuple[Any, ...] = ()
) -> list[tuple[Any, ...]]:
    """All rows of a look, whatever `row_factory` the connection was given."""
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor.execute(query, asked).fetchall()


def as_holder(holder: Pass) -> dict[str, Any]:
    """A pass as parameters; a token that no column could hold is one that nobody was given."""
    check_text("workflow", holder.workflow)
    token = holder.token if type(holder.token) is int and 0 < holder.token < 2**63 else -1
    return {"workflow": holder.workflow, "token": token}


def as_milliseconds(now: float) -> int:
    """The least token of a moment (C3): the moment itself, rounded up, and never below 1."""
    return max(1, math.ceil(now * 1000))


def as_seconds(name: str, moment: datetime) -> float:
    """Unix seconds of an aware moment; `ValueError` for a naive one."""
    check_aware(name, moment)
    return moment.timestamp()


def text(workflow: str, what: str, raw: bytes) -> str:
    """A column's text; `ValueError` naming the workflow where it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"workflow {shown(workflow)}: {what} is not UTF-8: {error}") from error


def lenient(raw: bytes) -> str:
    """A column's text where a foreign one must not be in the way: what is not UTF-8 is replaced."""
    return raw.decode(errors="replace")


def written_at(workflow: str, key: str, seconds: float) -> datetime:
    """A record's moment; `ValueError` naming workflow and key where it is none."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, TypeError, ValueError) as error:
        raise ValueError(
            f"workflow {shown(workflow)}, key {shown(key)}: written_at is no moment: {error}"
        ) from error
