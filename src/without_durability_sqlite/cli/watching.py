"""`watch`: the status and the newest changes, until interrupted."""

from __future__ import annotations

import sqlite3
import time
from argparse import Namespace
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from without_durability.ledger import Status
from without_durability_sqlite.looking import Watched
from without_durability_sqlite.rows import lenient, rows

from .moments import ago
from .ours import check_ours
from .overview import Overview, document, drawn, overview
from .refusals import DONE
from .screen import STYLE_OF, Screen
from .tables import Cell, Column
from .text import named, shortened
from .workflows import about, facts, found, shown_state

EVERY = 1.0
"""Seconds between two frames."""

AGAIN = 10.0
"""Seconds after which the file is looked at though nobody wrote: claims lapse by themselves."""

SHARE = 0.1
"""The part of the time that looking may take: a large file is looked at less often."""

RECENT = 60.0
"""Seconds within which a change's commit is surely seen after its moment."""

NEWEST, MOST = 15, 2**31

CHANGED = """
SELECT CAST(workflow AS BLOB), seq, CAST(state AS BLOB), attempts, updated_at
FROM workflow_run WHERE updated_at >= :since ORDER BY updated_at DESC, seq DESC LIMIT :most"""

Pause = Callable[[float], None]


Mark: TypeAlias = tuple[Any, ...]


class Frame(NamedTuple):
    """What was seen at one moment: the changes that are new, the newest first, and all recent."""

    overview: Overview
    changes: list[Status]
    recent: set[Mark]


def watch(file: str, typed: Namespace, screen: Screen, pause: Pause = time.sleep) -> int:
    """Frames in place on a terminal, a line per change elsewhere; Ctrl-C is its proper end."""
    watched = Watched(file, wait=screen.wait)
    try:
        if screen.terminal and not screen.json:
            _drawing(file, screen, watched, pause)
        else:
            _telling(file, screen, watched, pause)
    except KeyboardInterrupt:
        return DONE
    finally:
        watched.close()
    return DONE


def _looked(file: str, screen: Screen, watched: Watched, before: set[Mark] | None) -> Frame:
    """The newest changes; those that are not among the ones from before, where there were any.

    What is recent is told by the row and not by its moment alone: the clock may be set back.
    """
    now = screen.now()
    lately = {"since": now.timestamp() - RECENT, "most": MOST}

    def look(connection: sqlite3.Connection) -> Frame:
        check_ours(connection, file)
        recent = rows(connection, CHANGED, lately)
        if before is None:
            new = rows(connection, CHANGED, {"since": 0, "most": NEWEST})
        else:
            new = [mark for mark in recent if mark not in before]
        told = (found(connection, lenient(raw), now) for raw, *_ in new)
        changes = [one.status for one in told if one is not None]
        return Frame(overview(connection, now), changes, set(recent))

    return watched.look(look)


def _drawing(file: str, screen: Screen, watched: Watched, pause: Pause) -> None:
    """Home, and each line to its end: nothing flickers, and there is nothing to put back."""
    screen.full = False  # a line that wraps would push the others down
    frame = _looked(file, screen, watched, None)
    looked_at = time.monotonic()
    rest = 0.0
    screen.write("\x1b[2J")
    while True:
        screen.resized()
        lines = _frame(file, screen, frame, screen.now())[: screen.height - 1]
        screen.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        screen.flush()
        pause(EVERY)
        idle = time.monotonic() - looked_at
        if (watched.changed() and idle >= rest) or idle >= max(AGAIN, rest):
            began = time.monotonic()
            frame = _looked(file, screen, watched, None)
            looked_at = time.monotonic()
            rest = (looked_at - began) / SHARE


def _frame(file: str, screen: Screen, frame: Frame, now: datetime) -> list[str]:
    title = f"{screen.moment(now)}, Ctrl-C ends this"
    lines = [screen.paint("dim", shortened(title, screen.width)), ""]
    lines += drawn(screen, file, frame.overview, now)
    if not frame.changes:
        return lines
    columns = [
        Column("changed", right=True),
        Column("workflow", "middle"),
        Column("state"),
        Column("what it waits for", "end"),
    ]
    body = []
    for status in frame.changes:
        state = shown_state(status)
        body.append(
            [
                Cell(ago(status.updated_at, now)),
                Cell(named(status.workflow)),
                Cell(state, STYLE_OF.get(state, "")),
                Cell(about(screen, status, now), "dim"),
            ]
        )
    return [*lines, "", *screen.table(columns, body)]


def _telling(file: str, screen: Screen, watched: Watched, pause: Pause) -> None:
    """A line per change, the oldest first; with `--json` a document per look at a changed file."""
    before: set[Mark] | None = None
    while True:
        began = time.monotonic()
        frame = _looked(file, screen, watched, before)
        before = frame.recent
        now = screen.now()
        changes = frame.changes[::-1]
        if screen.json:
            told = {"changes": [facts(status) for status in changes]}
            screen.document(document(file, frame.overview, now) | told)
        else:
            screen.lines(_told(screen, status, now) for status in changes)
        screen.flush()
        took = time.monotonic() - began
        pause(max(EVERY, took / SHARE))
        while not watched.changed():
            pause(EVERY)


def _told(screen: Screen, status: Status, now: datetime) -> str:
    fields = (
        screen.iso(status.updated_at),
        named(status.workflow),
        shown_state(status),
        str(status.attempts),
        about(screen, status, now),
    )
    return "\t".join(fields)
