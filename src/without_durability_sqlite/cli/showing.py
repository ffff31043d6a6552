"""`show`: a workflow's timeline."""

from __future__ import annotations

import sqlite3
from argparse import Namespace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from without_durability.explaining import in_words
from without_durability.ledger import Status
from without_durability_sqlite.rows import rows
from without_durability_sqlite.statements import FROM_OUTSIDE

from .contents import Stored, brief, one_line, stored
from .moments import iso
from .ours import look_at
from .refusals import DONE
from .screen import STYLE_OF, Screen
from .tables import Cell, Column
from .text import escaped, lines_of, named
from .workflows import Known, about, facts, known, lost, sentence, shown_state, unknown

PIECE = 2_000
"""Bytes of a value that are read where no more of it is shown."""

# A value's beginning, its length, and everything else as it is: what is odd is shown as odd.
TIMELINE = f"""
SELECT CAST(step AS BLOB), substr(CAST(value AS BLOB), 1, :most), length(CAST(value AS BLOB)),
    written_at, {FROM_OUTSIDE}
FROM workflow_checkpoint WHERE workflow = :workflow ORDER BY seq"""

COLUMNS = [
    Column("when"),
    Column("after", right=True),
    Column("from"),
    Column("key", "middle"),
    Column("value", "end"),
]


class Record(NamedTuple):
    """A record of the timeline; `at` is `None` where what is stored is no moment."""

    key: str
    content: Stored
    size: int
    at: datetime | None
    supplied: bool


def show(file: str, typed: Namespace, screen: Screen) -> int:
    """The sentence, the row, every record, and the last error; exit 1 for an unknown id."""
    now = screen.now()
    whole = screen.full or screen.json

    def look(connection: sqlite3.Connection) -> tuple[Known, list[Record]]:
        asked = {"workflow": typed.workflow, "most": 2**31 - 1 if whole else PIECE}
        timeline = [_record(*one) for one in rows(connection, TIMELINE, asked)]
        return known(connection, typed.workflow, now), timeline

    at, timeline = look_at(file, screen, look)
    if not at.anything:
        raise unknown(typed.workflow)
    if screen.json:
        screen.document(_document(screen, at, timeline, now))
        return DONE
    screen.lines(_head(screen, at, now))
    screen.lines(_timeline(screen, timeline))
    screen.lines(_error(screen, at.status))
    return DONE


def _record(key: bytes, raw: bytes, size: int, seconds: Any, supplied: int) -> Record:
    try:
        at = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, TypeError, ValueError):
        at = None
    content = stored(raw) if len(raw or b"") == size else _cut(raw)
    return Record(key.decode(errors="backslashreplace"), content, size, at, bool(supplied))


def _cut(raw: bytes) -> Stored:
    """The beginning of a value that is too long to be read as a whole."""
    return Stored(raw.decode(errors="ignore") + "…", None, decodes=False)


def _head(screen: Screen, at: Known, now: datetime) -> list[str]:
    lines = [sentence(screen, at, now), ""]
    status = at.status
    if status is None:
        return lines
    state = shown_state(status)
    pairs = [
        ("state", screen.paint(STYLE_OF.get(state, ""), state)),
        ("queue", screen.named(status.namespace)),
        ("created", screen.when(status.created_at, now)),
        ("changed", screen.when(status.updated_at, now)),
        ("attempts", str(status.attempts)),
    ]
    if status.due is not None:
        pairs.append(("due", screen.when(status.due, now)))
    if status.state == "blocked" and not lost(status) and (waits := about(screen, status, now)):
        pairs.append(("waits for", waits))
    if said := lost(status):
        pairs.append(("result" if status.state == "completed" else "detail", said))
    elif status.state == "completed":
        pairs.append(("result", brief(one_line(status.result), full=screen.full)))
    if status.state == "cancelled" and status.reason:
        pairs.append(("reason", escaped(status.reason)))
    lines += [f"  {screen.paint('dim', name.ljust(9))}  {value}" for name, value in pairs]
    return [*lines, ""]


def _timeline(screen: Screen, timeline: list[Record]) -> list[str]:
    if not timeline:
        return ["no records"]
    before: datetime | None = None
    body: list[list[Cell]] = []
    for record in timeline:
        after = in_words(record.at - before) if record.at and before else ""
        if record.at and before and record.at < before:
            after = f"-{after}"
        before = record.at or before
        line = record.content.line()
        body.append(
            [
                Cell(screen.moment(record.at) if record.at else "no moment"),
                Cell(after),
                Cell("outside" if record.supplied else "a pass", "dim"),
                Cell(named(record.key)),
                Cell(brief(line, full=screen.full or screen.terminal)),
            ]
        )
    return screen.table(COLUMNS, body)


def _error(screen: Screen, status: Status | None) -> list[str]:
    error = status.error if status is not None else None
    if error is None:
        return []
    trace = lines_of(error.traceback.rstrip("\n")) if error.traceback else [escaped(str(error))]
    return ["", screen.paint("red", "last error"), *(f"  {line}" for line in trace)]


def _document(screen: Screen, at: Known, timeline: list[Record], now: datetime) -> dict[str, Any]:
    status = {"workflow": at.workflow} if at.status is None else facts(at.status)
    if at.waiting is not None:
        status |= {"namespace": at.queue, "state": None, "due": iso(at.due)}
    records = [
        {"key": record.key, "at": iso(record.at), "supplied": record.supplied}
        | record.content.facts()
        for record in timeline
    ]
    return status | {"why": sentence(screen, at, now), "records": records}
