"""`status`: what the file holds and who is at work, of one moment."""

from __future__ import annotations

import os
import sqlite3
from argparse import Namespace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from without_durability.codec import JSON
from without_durability.explaining import in_words
from without_durability.ledger import STATES, Status
from without_durability_sqlite import lookups, schema
from without_durability_sqlite.rows import lenient, rows
from without_durability_sqlite.statements import ALIVE_UNTIL, FINISHED, QUEUES

from .moments import ago, iso, many, size
from .ours import look_at
from .refusals import DONE
from .screen import STYLE_OF, Screen
from .tables import Cell, Column
from .text import named
from .workflows import about, facts

FEW = 5

_BEGINNING = datetime.fromtimestamp(0, UTC)

ROOM = 68
"""Columns of a terminal on which the states stand side by side."""

COUNTS = """
SELECT CAST(namespace AS BLOB), CAST(state AS BLOB), count FROM workflow_count
WHERE count <> 0 ORDER BY namespace"""

# The workflows that a pass holds.
AT_WORK = f"""
SELECT CAST(run.workflow AS BLOB) FROM workflow_run AS run
JOIN workflow_claim AS claim ON claim.workflow = run.workflow
WHERE run.state = 'ready' AND {ALIVE_UNTIL} > :now"""

# The row of a queue that has been visible longest; one that was made ready is, by whatever clock.
OLDEST = """
SELECT * FROM (
    SELECT CAST(workflow AS BLOB), visible_at FROM workflow_queue
    WHERE namespace = :namespace AND visible_at <= :now ORDER BY visible_at LIMIT 1)
UNION ALL SELECT * FROM (
    SELECT CAST(workflow AS BLOB), :now FROM workflow_queue
    WHERE namespace = :namespace AND visible_at > :now AND taken_for = 0 LIMIT 1)"""

FAILED = f"""
SELECT CAST(workflow AS BLOB) FROM workflow_run WHERE state = 'failed' AND {FINISHED}
ORDER BY updated_at DESC LIMIT :few"""


class Oldest(NamedTuple):
    """The workflow that has waited longest for a worker."""

    workflow: str
    namespace: str
    since: datetime


class Overview(NamedTuple):
    """Everything that `status` shows."""

    counts: dict[str, dict[str, int]]
    running: list[str]
    oldest: Oldest | None
    failures: list[Status]


class Sizes(NamedTuple):
    """Bytes of the file and of its write-ahead log."""

    file: int
    log: int


def overview(connection: sqlite3.Connection, now: datetime) -> Overview:
    """What a file of ours holds."""
    asked: dict[str, Any] = {"now": now.timestamp(), "few": FEW}
    counts: dict[str, dict[str, int]] = {}
    for namespace, state, count in rows(connection, COUNTS):
        of_namespace = counts.setdefault(lenient(namespace), dict.fromkeys(STATES, 0))
        of_namespace[lenient(state)] = count
    oldest: Oldest | None = None
    for namespace in [name for (name,) in rows(connection, QUEUES)]:
        for workflow, visible_at in rows(connection, OLDEST, asked | {"namespace": namespace}):
            since = lookups.moment_of(visible_at) or _BEGINNING
            if oldest is None or since < oldest.since:
                oldest = Oldest(lenient(workflow), str(namespace), since)
    running = sorted(lenient(workflow) for (workflow,) in rows(connection, AT_WORK, asked))
    failures = []
    for (workflow,) in rows(connection, FAILED, asked):
        told = lookups.found(connection, JSON, lenient(workflow), now.timestamp())
        if told is not None:
            failures.append(told.status)
    return Overview(counts, running, oldest, failures)


def sizes(file: str) -> Sizes:
    """How large the file and its log are now."""
    return Sizes(os.stat(file).st_size, log_size(file))


def log_size(file: str) -> int:
    """Bytes of the write-ahead log; 0 where there is none."""
    try:
        return os.stat(os.path.realpath(file) + "-wal").st_size
    except FileNotFoundError:
        return 0


def status(file: str, typed: Namespace, screen: Screen) -> int:
    """The whole of it in one screen or one document."""
    now = screen.now()
    seen = look_at(file, screen, lambda connection: overview(connection, now))
    if screen.json:
        screen.document(document(file, seen, now))
    else:
        screen.lines(drawn(screen, file, seen, now))
    return DONE


def drawn(screen: Screen, file: str, seen: Overview, now: datetime) -> list[str]:
    """The lines of `status`."""
    held = sizes(file)
    log = f", write-ahead log {size(held.log)}" if held.log else ""
    total = many(sum(sum(counts.values()) for counts in seen.counts.values()), "workflow")
    facts = f": {size(held.file)}{log}, schema version {schema.VERSION}, {total}"
    lines = [screen.fitted(f"{named(file)}{facts}")]
    if seen.counts:
        lines += ["", *_counts(screen, seen)]
    lines += ["", _at_work(screen, seen)]
    if seen.oldest is not None:
        waits = in_words(now - seen.oldest.since)
        where = f"{named(seen.oldest.workflow)} in {named(seen.oldest.namespace)}"
        lines.append(screen.fitted(f"waiting longest for a worker, {waits}: {where}"))
    if seen.failures:
        lines += ["", screen.paint("red", "newest failures")]
        columns = [Column("workflow", "middle"), Column("failed"), Column("error", "end")]
        body = [
            [
                Cell(named(one.workflow)),
                Cell(ago(one.updated_at, now)),
                Cell(about(screen, one, now)),
            ]
            for one in seen.failures
        ]
        lines += screen.table(columns, body)
    return lines


def document(file: str, seen: Overview, now: datetime) -> dict[str, Any]:
    """The same for `--json`."""
    held = sizes(file)
    oldest = None
    if seen.oldest is not None:
        oldest = {
            "workflow": seen.oldest.workflow,
            "namespace": seen.oldest.namespace,
            "since": iso(seen.oldest.since),
        }
    return {
        "file": os.path.abspath(file),
        "bytes": held.file,
        "log_bytes": held.log,
        "schema": schema.VERSION,
        "at": iso(now),
        "counts": _totals(seen),
        "namespaces": seen.counts,
        "running": seen.running,
        "waiting_longest": oldest,
        "failures": [facts(one) for one in seen.failures],
    }


def _counts(screen: Screen, seen: Overview) -> list[str]:
    """A row per queue; where there is no room for that, a row per state."""
    queues = [(named(namespace), counts) for namespace, counts in seen.counts.items()]
    if len(queues) > 1:
        queues.append(("all of them", _totals(seen)))
    if screen.terminal and not screen.full and screen.width < ROOM:
        columns = [Column("state"), *(Column(queue, "middle", right=True) for queue, _ in queues)]
        body = [[Cell(state), *(_count(counts, state) for _, counts in queues)] for state in STATES]
    else:
        columns = [Column("queue", "middle"), *(Column(state, right=True) for state in STATES)]
        body = [
            [Cell(queue), *(_count(counts, state) for state in STATES)] for queue, counts in queues
        ]
    return screen.table(columns, body)


def _count(counts: dict[str, int], state: str) -> Cell:
    count = counts.get(state, 0)
    return Cell(str(count), STYLE_OF[state] if count else "dim")


def _totals(seen: Overview) -> dict[str, int]:
    return {state: sum(counts.get(state, 0) for counts in seen.counts.values()) for state in STATES}


def _at_work(screen: Screen, seen: Overview) -> str:
    if not seen.running:
        return "no pass is running"
    some = ", ".join(named(workflow) for workflow in seen.running[:FEW])
    more = f" and {len(seen.running) - FEW} more" if len(seen.running) > FEW else ""
    passes = many(len(seen.running), "pass is", "passes are")
    return screen.fitted(f"{passes} running: {some}{more}")
