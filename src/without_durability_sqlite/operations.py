"""What a call contributes to a transaction that others may share."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from .commits import StoreCursor
from .watching import QUIET

T = TypeVar("T")


Operation: TypeAlias = Callable[[StoreCursor, float], T]
"""A call's part in a transaction: given the cursor and the moment the lock was won."""


def visible_from(moment: float, now: float, ahead: float = 0) -> dict[str, float | None]:
    """Visible from a moment on; ready, if that lies no more than `ahead` seconds ahead.

    What is ready has `ahead` 0, which lets `CLAMP_TAKEN` bring it back to the present; a sleeper's
    `None` keeps its moment.
    """
    return {"when": moment, "ahead": 0 if moment <= now + ahead else None}


def touched(cursor: sqlite3.Cursor, statement: str, asked: dict[str, Any]) -> bool:
    return cursor.execute(statement, asked).rowcount > 0


def made_visible(cursor: StoreCursor, now: float, statement: str, asked: dict[str, Any]) -> bool:
    """Make a row visible from `when` on, and have those told who wait for that."""
    made = touched(cursor, statement, asked)
    if made:
        at_once = asked.get("ahead") == 0 or asked["when"] <= now
        moment = None if at_once else asked["when"]
        soon = at_once or asked["when"] < now + 2 * QUIET
        cursor.readied.append((asked["namespace"], moment, soon))
    return made


def touching(statement: str, asked: dict[str, Any]) -> Operation[bool]:
    """An operation of one statement: whether it touched a row."""
    return lambda cursor, now: touched(cursor, statement, asked | {"now": now})
