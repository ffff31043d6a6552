"""`check`: whatever is wrong with a file, and what to do about it."""

from __future__ import annotations

import sqlite3
from argparse import Namespace
from collections.abc import Iterator
from typing import Any, NamedTuple

from without_durability_sqlite import schema
from without_durability_sqlite.checking import Oddity, oddities
from without_durability_sqlite.opening import JOURNAL_SIZE_LIMIT, NEEDED
from without_durability_sqlite.rows import lenient, rows

from .moments import many, size
from .ours import look_at
from .overview import log_size
from .refusals import DONE, REFUSED
from .screen import Screen
from .text import escaped

LARGE_LOG = 16 * JOURNAL_SIZE_LIMIT
"""Bytes of a write-ahead log that something keeps from being written back."""

INTEGRITY = "SELECT CAST(integrity_check AS BLOB) FROM pragma_integrity_check"

_ADVICE = {
    "not queued": "`arrive` or `deliver` something for it, or `rewind` it: each queues it again",
    "queued": (
        "the next worker of that queue takes it, and runs it again unless it is cancelled; "
        "`delete` removes it with the row"
    ),
    "claimed": "look again: a claim ends by itself within its pass's budget",
    "claim ahead": (
        "the clock was ahead when it was made, or a pass was given that long; "
        "`cancel` and `retry` free the workflow"
    ),
    "token ahead": (
        "the clock was ahead when the workflow was claimed; its next tokens go on from there, and "
        "nothing needs to be done"
    ),
    "state": "use the release that wrote it",
    "count": (
        "the table was changed with its triggers gone; one transaction mends it: DELETE FROM "
        "workflow_count; INSERT INTO workflow_count SELECT state, namespace, count(*) "
        "FROM workflow_run GROUP BY state, namespace"
    ),
}


class Finding(NamedTuple):
    """Something that was looked at; `advice` is empty where it is as it should be."""

    kind: str
    sentence: str
    advice: str = ""
    workflow: str | None = None


def check(file: str, typed: Namespace, screen: Screen) -> int:
    """Every finding with its advice; exit 1 if anything is wrong."""
    now = screen.now().timestamp()

    def look(connection: sqlite3.Connection) -> tuple[list[str], list[Oddity]]:
        said = [lenient(line) for (line,) in rows(connection, INTEGRITY)]
        return said, oddities(connection, now) if said == ["ok"] else []

    said, odd = look_at(file, screen, look)
    findings = [*_integrity(said), _schema(), _version(), _log(file), *map(_oddity, odd)]
    if said == ["ok"] and not odd:
        findings.append(Finding("workflows", "ledger, queue, claims and counts agree"))
    wrong = [finding for finding in findings if finding.advice]
    if screen.json:
        screen.document({"wrong": len(wrong), "findings": [_facts(one) for one in findings]})
    else:
        screen.lines(line for finding in findings for line in _lines(screen, finding))
        verdict = many(len(wrong), "thing is", "things are")
        screen.lines(["", f"{verdict} wrong" if wrong else "nothing is wrong"])
    return REFUSED if wrong else DONE


def _integrity(said: list[str]) -> Iterator[Finding]:
    if said == ["ok"]:
        yield Finding("integrity", "the file's pages and indexes are sound")
        return
    for line in said:
        yield Finding(
            "integrity",
            line,
            "stop its programs and restore a backup, or rebuild it with `sqlite3 FILE .recover`",
        )


def _schema() -> Finding:
    """A file of another schema is refused before it comes to this."""
    return Finding("schema", f"version {schema.VERSION}, with all its parts")


def _version() -> Finding:
    needed = ".".join(map(str, NEEDED))
    has = f"this Python has SQLite {sqlite3.sqlite_version}, and {needed} or later is needed"
    if sqlite3.sqlite_version_info >= NEEDED:
        return Finding("SQLite", has)
    return Finding("SQLite", has, "run the workers under a Python with a newer one")


def _log(file: str) -> Finding:
    held = log_size(file)
    if held <= LARGE_LOG:
        return Finding("write-ahead log", size(held) if held else "empty")
    return Finding(
        "write-ahead log",
        f"{size(held)}: it is not written back into the file",
        "some program keeps a read transaction open (a shell, a viewer, a backup): let it end",
    )


def _oddity(odd: Oddity) -> Finding:
    workflow = None if odd.workflow is None else str(odd.workflow)
    return Finding(odd.kind, str(odd.sentence), _ADVICE.get(odd.kind, "report this"), workflow)


def _lines(screen: Screen, finding: Finding) -> Iterator[str]:
    whose = "" if finding.workflow is None else f"{screen.named(finding.workflow)} "
    said = f"{finding.kind}: {whose}{escaped(finding.sentence)}"
    if not finding.advice:
        yield f"{screen.paint('green', 'ok')}     {said}"
        return
    yield f"{screen.paint('red', 'wrong')}  {said}"
    yield f"       {screen.paint('dim', finding.advice)}"


def _facts(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "ok": not finding.advice,
        "workflow": finding.workflow,
        "sentence": finding.sentence,
        "advice": finding.advice or None,
    }
