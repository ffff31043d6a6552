"""What steers a workflow, as parts of a transaction."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from without_durability.values import shown

from .commits import StoreCursor
from .lookups import RIPE
from .operations import touched
from .rows import as_milliseconds, lenient
from .schema import VERSION
from .statements import (
    ALIVE_UNTIL,
    ANY_QUEUE,
    CANCEL,
    FROM_OUTSIDE,
    LATEST,
    QUEUED,
    RAISE_FENCE,
    REMEMBER_LATEST,
)

LAST = 2**62
"""Past every `seq`."""

# The queue to make it ready in. No row: it was neither failed nor cancelled (L9).
RETRIED = """
UPDATE workflow_run SET state = 'ready', detail = NULL, attempts = 0, updated_at = :now
WHERE workflow = :workflow AND state IN ('failed', 'cancelled')
RETURNING CAST(namespace AS BLOB)"""

# The queue to take it out of. No row: there is nothing to stop (L10).
CANCELLED = """
UPDATE workflow_run SET state = 'cancelled', detail = :detail, updated_at = :now
WHERE workflow = :workflow AND state NOT IN ('completed', 'cancelled')
RETURNING CAST(namespace AS BLOB)"""

# One that only its scheduler was told of.
CANCELLED_UNSEEN = """
INSERT INTO workflow_run (workflow, namespace, state, detail, created_at, updated_at)
VALUES (:workflow, :namespace, 'cancelled', :detail, :now, :now)
ON CONFLICT (workflow) DO NOTHING"""

# Whatever is known of an id: its row, its records, a live claim, what is queued for it.
IS_KNOWN = f"""
SELECT 1 FROM workflow_run WHERE workflow = :workflow
UNION ALL SELECT 1 FROM workflow_checkpoint WHERE workflow = :workflow
UNION ALL SELECT 1 FROM {ANY_QUEUE} WHERE queue.workflow = :workflow
UNION ALL SELECT 1 FROM workflow_claim WHERE workflow = :workflow AND {ALIVE_UNTIL} > :now
LIMIT 1"""

STEP_SEQ = f"""
SELECT seq, NOT {FROM_OUTSIDE} FROM workflow_checkpoint
WHERE workflow = :workflow AND step = :step"""

REWIND = f"""
DELETE FROM workflow_checkpoint
WHERE workflow = :workflow AND +seq >= :seq AND NOT {FROM_OUTSIDE}"""

# The queue to make it ready in (L11).
REWOUND = """
INSERT INTO workflow_run (workflow, namespace, state, created_at, updated_at)
VALUES (:workflow, :namespace, 'ready', :now, :now)
ON CONFLICT (workflow) DO UPDATE SET
    state = 'ready', detail = NULL, attempts = 0, updated_at = excluded.updated_at
RETURNING CAST(namespace AS BLOB)"""

FORK = """
INSERT INTO workflow_checkpoint (workflow, step, value, written_at, supplied)
SELECT :into, step, value, written_at, supplied FROM workflow_checkpoint
WHERE workflow = :workflow AND +seq < :before ORDER BY seq"""

# The queue to make it ready in: where the one it was made from was made ready last (L12).
FORKED = """
INSERT INTO workflow_run (workflow, namespace, state, created_at, updated_at)
VALUES (:into, coalesce((SELECT namespace FROM workflow_run WHERE workflow = :workflow),
    :namespace), 'ready', :now, :now)
RETURNING CAST(namespace AS BLOB)"""

# Whether a row may still be swept: it may have been woken since it was found (L13).
STILL_RIPE = f"SELECT 1 FROM workflow_run AS run WHERE seq = :seq AND {RIPE}"

_SWEPT = "(SELECT workflow FROM workflow_run WHERE seq = :seq)"

SWEEP_RECORDS = f"DELETE FROM workflow_checkpoint WHERE workflow = {_SWEPT}"

# A token that lies ahead of the moment stays, and the highest of the others is remembered (C3).
_SWEPT_CLAIM = f"FROM workflow_claim WHERE workflow = {_SWEPT} AND token < :milliseconds"

REMEMBER_SWEPT = f"""
INSERT INTO workflow_schema (version, swept) SELECT :version, token {_SWEPT_CLAIM}
ON CONFLICT (version) DO UPDATE SET swept = max(swept, excluded.swept)"""

SWEEP_CLAIM = f"DELETE {_SWEPT_CLAIM}"

SWEEP_RUN = "DELETE FROM workflow_run WHERE seq = :seq"


def retried(cursor: StoreCursor, now: float, workflow: str) -> str | None:
    """The queue in which to make ready what had failed or was cancelled (L9)."""
    return _namespace(cursor, RETRIED, {"workflow": workflow, "now": now})


def cancelled(
    cursor: StoreCursor, now: float, workflow: str, detail: str | None, namespace: str
) -> bool:
    """Stop a workflow for good: no claim stands and nothing is queued (L10)."""
    asked = {
        "workflow": workflow,
        "now": now,
        "detail": detail,
        "milliseconds": as_milliseconds(now),
    }
    queue = _namespace(cursor, CANCELLED, asked)
    if queue is None:
        asked["namespace"] = queue = namespace
        unseen = cursor.execute(QUEUED, asked).fetchall()
        if not unseen or not touched(cursor, CANCELLED_UNSEEN, asked):
            return False
    cursor.execute(RAISE_FENCE, asked)
    for one in {queue, namespace}:
        cursor.execute(CANCEL, asked | {"namespace": one})
    cursor.ended.append(workflow)
    return True


def rewound(
    cursor: StoreCursor, now: float, workflow: str, to: str, namespace: str
) -> tuple[int, str] | None:
    """How many records were forgotten, and the queue to make it ready in (L11)."""
    asked = {
        "workflow": workflow,
        "namespace": namespace,
        "step": to,
        "now": now,
        "milliseconds": as_milliseconds(now),
    }
    if not cursor.execute(IS_KNOWN, asked).fetchall():
        return None
    forgotten = cursor.execute(REWIND, asked | {"seq": _seq_of(cursor, asked)}).rowcount
    cursor.execute(RAISE_FENCE, asked)
    queue = _namespace(cursor, REWOUND, asked)
    assert queue is not None
    return forgotten, queue


def forked(
    cursor: StoreCursor, now: float, workflow: str, into: str, before: str | None, namespace: str
) -> tuple[int, str] | None:
    """How many records were copied, and the queue to make the new workflow ready in (L12)."""
    asked = {
        "workflow": workflow,
        "into": into,
        "namespace": namespace,
        "step": before,
        "now": now,
        "before": LAST,
    }
    if not cursor.execute(IS_KNOWN, asked).fetchall():
        return None
    if cursor.execute(IS_KNOWN, asked | {"workflow": into}).fetchall():
        raise ValueError(f"workflow {shown(into)} exists: a fork begins under an id that is new")
    if before is not None:
        asked["before"] = _seq_of(cursor, asked, anybodys=True)
    ((latest, ahead),) = cursor.execute(LATEST).fetchall()
    copied = cursor.execute(FORK, asked).rowcount
    if copied and latest > ahead:
        cursor.execute(REMEMBER_LATEST, {"version": VERSION, "latest": latest})
    queue = _namespace(cursor, FORKED, asked)
    assert queue is not None
    return copied, queue


def swept(
    cursor: StoreCursor, now: float, seqs: Sequence[int], before: float, span: float
) -> tuple[int, int]:
    """Delete those of the rows that may be, for no longer than `span` seconds.

    How many workflows went, and how many were looked at.
    """
    began = time.monotonic()
    gone = looked_at = 0
    for seq in seqs:
        if looked_at and time.monotonic() - began >= span:
            break
        looked_at += 1
        asked = {
            "seq": seq,
            "before": before,
            "now": now,
            "milliseconds": as_milliseconds(now),
            "version": VERSION,
        }
        if cursor.execute(STILL_RIPE, asked).fetchall():
            for statement in (SWEEP_RECORDS, REMEMBER_SWEPT, SWEEP_CLAIM, SWEEP_RUN):
                cursor.execute(statement, asked)
            gone += 1
    return gone, looked_at


def _seq_of(cursor: StoreCursor, asked: dict[str, Any], *, anybodys: bool = False) -> int:
    """Where a step's record stands; `ValueError` where there is none, or none of a pass's own."""
    for seq, of_a_pass in cursor.execute(STEP_SEQ, asked).fetchall():
        if of_a_pass or anybodys:
            return int(seq)
        raise ValueError(
            f"{shown(asked['step'])} of workflow {shown(asked['workflow'])} is no step: it came "
            "from outside, and stays"
        )
    raise ValueError(
        f"workflow {shown(asked['workflow'])} has not recorded a step {shown(asked['step'])}"
    )


def _namespace(cursor: StoreCursor, statement: str, asked: dict[str, Any]) -> str | None:
    for (raw,) in cursor.execute(statement, asked).fetchall():
        return lenient(raw)
    return None
