"""Whatever a file holds that should not be: for `check`, and for tests that break off halfway."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from typing import Any, NamedTuple

from without_durability.ledger import STATES

from .rows import lenient, rows
from .statements import ALIVE_UNTIL, ANY_QUEUE, FINISHED

FAR = timedelta(days=1)
"""What lies further ahead than this was written under a clock that was wrong, or is."""


class Oddity(NamedTuple):
    """Something that should not be: its kind, the workflow it concerns, if it is one, and why."""

    kind: str
    workflow: Any
    sentence: str


_QUEUED = """EXISTS (SELECT 1 FROM workflow_queue AS queue
    WHERE queue.namespace = run.namespace AND queue.workflow = run.workflow)"""

# Each gives the workflows it concerns, and something to say of them.
NOT_QUEUED = f"""
SELECT CAST(workflow AS BLOB), state FROM workflow_run AS run
WHERE state IN ('ready', 'sleeping') AND NOT {_QUEUED}"""

QUEUED_THOUGH_FINISHED = f"""
SELECT CAST(run.workflow AS BLOB), run.state
FROM {ANY_QUEUE} CROSS JOIN workflow_run AS run ON run.workflow = queue.workflow
WHERE run.{FINISHED}"""

CLAIMED_FAR_AHEAD = f"""
SELECT CAST(workflow AS BLOB), {ALIVE_UNTIL} - :now FROM workflow_claim
WHERE {ALIVE_UNTIL} > :now + :far"""

TOKEN_FAR_AHEAD = """
SELECT CAST(workflow AS BLOB), token / 1000.0 - :now FROM workflow_claim
WHERE token > (:now + :far) * 1000"""

CLAIMED_THOUGH_AT_REST = f"""
SELECT CAST(workflow AS BLOB), state FROM workflow_run AS run
WHERE state <> 'ready' AND EXISTS (
    SELECT 1 FROM workflow_claim
    WHERE workflow_claim.workflow = run.workflow AND {ALIVE_UNTIL} > :now)"""

IN_NO_STATE = f"""
SELECT CAST(workflow AS BLOB), CAST(state AS BLOB) FROM workflow_run
WHERE state NOT IN ({", ".join(repr(state) for state in STATES)})"""

KEPT_COUNTS = """
SELECT CAST(state AS BLOB), CAST(namespace AS BLOB), count FROM workflow_count WHERE count <> 0"""

REAL_COUNTS = """
SELECT CAST(state AS BLOB), CAST(namespace AS BLOB), count(*) FROM workflow_run
GROUP BY state, namespace"""

_LOOKS = (
    ("not queued", NOT_QUEUED, "is {}, and nothing is queued for it: it will not run by itself"),
    ("queued", QUEUED_THOUGH_FINISHED, "is {}, and there is a queue row for it"),
    ("claimed", CLAIMED_THOUGH_AT_REST, "is {}, and a pass holds it"),
    ("claim ahead", CLAIMED_FAR_AHEAD, "is claimed for {:.0f} s from now"),
    ("token ahead", TOKEN_FAR_AHEAD, "has a fencing token from {:.0f} s ahead of the clock"),
    ("state", IN_NO_STATE, "is in state {}, which this release does not know"),
)


def oddities(connection: sqlite3.Connection, now: float) -> list[Oddity]:
    """What disagrees between ledger, queue and claims, and what lies too far ahead.

    They are looks over the whole file, of one moment if the caller holds a transaction open.
    """
    asked = {"now": now, "far": FAR.total_seconds()}
    odd = [
        Oddity(kind, _text(workflow), sentence.format(_text(fact)))
        for kind, look, sentence in _LOOKS
        for workflow, fact in rows(connection, look, asked)
    ]
    kept, real = (
        {(_text(state), _text(namespace)): count for state, namespace, count in rows(connection, q)}
        for q in (KEPT_COUNTS, REAL_COUNTS)
    )
    for state, namespace in sorted(kept.keys() | real.keys()):
        counts = kept.get((state, namespace), 0), real.get((state, namespace), 0)
        if counts[0] != counts[1]:
            told = "{} workflows are {} in {!r}, and {} are counted"
            odd.append(Oddity("count", None, told.format(counts[1], state, namespace, counts[0])))
    return odd


def _text(fact: Any) -> Any:
    return lenient(fact) if isinstance(fact, bytes) else fact
