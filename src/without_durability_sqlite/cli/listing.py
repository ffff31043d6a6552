"""`list` and `why`."""

from __future__ import annotations

import sqlite3
from argparse import Namespace
from datetime import datetime

from without_durability.codec import JSON
from without_durability.explaining import in_words
from without_durability.ledger import Status
from without_durability.values import PAGE
from without_durability_sqlite import lookups

from .ours import look_at
from .refusals import DONE, Refused
from .screen import STYLE_OF, Screen
from .tables import Cell, Column
from .text import named
from .workflows import about, facts, known, sentence, shown_state

_AT_ONCE = 10 * PAGE

# Each column and the least width of a terminal that has room for it beside the ids.
COLUMNS = [
    (Column("workflow", "middle"), 0),
    (Column("state"), 0),
    (Column("age", right=True), 72),
    (Column("changed", right=True), 40),
    (Column("attempts", right=True), 60),
    (Column("what it waits for", "end"), 40),
]


def listing(file: str, typed: Namespace, screen: Screen) -> int:
    """The newest workflows that fit the filters, and where the next page begins."""
    now = screen.now()

    def look(connection: sqlite3.Connection) -> tuple[list[Status], int | None]:
        items: list[Status] = []
        after = typed.after
        while True:
            page = lookups.listed(
                connection,
                JSON,
                now.timestamp(),
                typed.state,
                typed.namespace,
                typed.prefix,
                after,
                min(typed.limit - len(items), _AT_ONCE),
            )
            items.extend(page.items)
            after = page.next
            if after is None or len(items) >= typed.limit:
                return items, after

    items, following = look_at(file, screen, look)
    if screen.json:
        for status in items:
            screen.document(facts(status))
    elif screen.terminal:
        if items:
            screen.lines(_table(screen, items, now))
        else:
            screen.lines(["no workflow fits"])
    else:
        screen.lines(
            "\t".join(
                (
                    named(one.workflow),
                    shown_state(one),
                    screen.iso(one.created_at),
                    screen.iso(one.updated_at),
                    str(one.attempts),
                    about(screen, one, now),
                )
            )
            for one in items
        )
    if following is not None:
        screen.note(f"there are more: go on with --after {following}")
    return DONE


def _table(screen: Screen, items: list[Status], now: datetime) -> list[str]:
    shown = [i for i, (_, least) in enumerate(COLUMNS) if screen.full or screen.width >= least]
    body = [row(screen, one, now) for one in items]
    return screen.table([COLUMNS[i][0] for i in shown], [[one[i] for i in shown] for one in body])


def row(screen: Screen, status: Status, now: datetime) -> list[Cell]:
    """A workflow's cells."""
    state = shown_state(status)
    return [
        Cell(named(status.workflow)),
        Cell(state, STYLE_OF.get(state, "")),
        Cell(in_words(now - status.created_at)),
        Cell(in_words(now - status.updated_at)),
        Cell(str(status.attempts)),
        Cell(about(screen, status, now), "dim"),
    ]


def why(file: str, typed: Namespace, screen: Screen) -> int:
    """The sentence about one workflow; exit 1 for one that nothing is known of."""
    now = screen.now()
    at = look_at(file, screen, lambda connection: known(connection, typed.workflow, now))
    said = sentence(screen, at, now)
    if at.row is None and at.waiting is None:
        raise Refused(said)
    state = None if at.status is None else at.status.state
    screen.answer(said, {"workflow": typed.workflow, "state": state, "why": said})
    return DONE
