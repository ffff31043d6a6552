"""What the ledger's calls ask of the file: the looks take a connection, the acts a transaction."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from without_durability.checks import check_text
from without_durability.codec import CheckpointCodec
from without_durability.explaining import Standing
from without_durability.ledger import STATES, Page, State, Status, check_listing, due_of
from without_durability.values import shown

from .commits import StoreCursor
from .rows import as_milliseconds, rows
from .statements import ALIVE_UNTIL, CANCEL, HELD_UNTIL, RAISE_FENCE

FEW = 5_000
"""Up to so many ids with a prefix are found by their ids, and sorted; else by walking the rows."""

NEWEST = 2**62
"""Past every row's `seq`."""

# --- looks ------------------------------------------------------------------------------------
_CLAIMED = f"""
    (SELECT {{}} FROM workflow_claim WHERE workflow_claim.workflow = run.workflow
     AND {ALIVE_UNTIL} > :now)"""

# Of a row: itself, whether a pass holds it, and what is queued for it.
_COLUMNS = f"""
SELECT seq, CAST(run.workflow AS BLOB), CAST(run.namespace AS BLOB), state, CAST(detail AS BLOB),
    attempts, created_at, updated_at, {_CLAIMED.format("token")} IS NOT NULL,
    queue.visible_at, queue.taken IS NOT NULL
FROM workflow_run AS run LEFT JOIN workflow_queue AS queue
    ON queue.namespace = run.namespace AND queue.workflow = run.workflow"""

_BY_PREFIX = "run.workflow >= :prefix AND run.workflow < :beyond"
_PAGE = "ORDER BY run.seq DESC LIMIT :limit"

STATUS = f"{_COLUMNS} WHERE run.workflow = :workflow"

# Newest first from a row on. The prefix is a filter here, whatever else is asked.
LIST = f"{_COLUMNS} WHERE run.seq < :after AND +{_BY_PREFIX} {_PAGE}"

LIST_OF_NAMESPACE = f"""{_COLUMNS}
WHERE run.namespace = :namespace AND run.seq < :after AND +{_BY_PREFIX} {_PAGE}"""

LIST_OF_STATE_IN_NAMESPACE = f"""{_COLUMNS}
WHERE run.state = :state AND run.namespace = :namespace AND run.seq < :after
  AND +{_BY_PREFIX} {_PAGE}"""

# A state's rows lie by queue: a page's worth of each queue, and of those the newest.
LIST_OF_STATE = f"""{_COLUMNS}
WHERE run.seq IN (
    SELECT found.seq FROM workflow_count AS kept CROSS JOIN workflow_run AS found
    WHERE kept.state = :state AND kept.count > 0 AND found.seq IN (
        SELECT seq FROM workflow_run
        WHERE state = :state AND namespace = kept.namespace AND seq < :after
          AND +workflow >= :prefix AND +workflow < :beyond ORDER BY seq DESC LIMIT :limit))
{_PAGE}"""

# A prefix that few ids have: those, in order.
LIST_BY_PREFIX = f"""{_COLUMNS}
WHERE {_BY_PREFIX} AND +run.seq < :after AND (:state IS NULL OR +run.state = :state)
  AND (:namespace IS NULL OR +run.namespace = :namespace)
ORDER BY +run.seq DESC LIMIT :limit"""

WITH_PREFIX = f"""
SELECT count(*) FROM (
    SELECT 1 FROM workflow_run AS run WHERE {_BY_PREFIX} LIMIT {FEW + 1})"""

COUNTS = "SELECT state, sum(count) FROM workflow_count GROUP BY state"

COUNTS_OF_NAMESPACE = """
SELECT state, count FROM workflow_count WHERE state = :state AND namespace = :namespace"""

CLAIM_OF = f"""
SELECT token, {ALIVE_UNTIL}, {HELD_UNTIL} FROM workflow_claim
WHERE workflow = :workflow AND {ALIVE_UNTIL} > :now"""

# --- acts -------------------------------------------------------------------------------------
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

# Whatever is known of an id: its row, its records, a live claim, what is queued for it.
IS_KNOWN = f"""
SELECT 1 FROM workflow_run WHERE workflow = :workflow
UNION ALL SELECT 1 FROM workflow_checkpoint WHERE workflow = :workflow
UNION ALL SELECT 1 FROM workflow_queue WHERE workflow = :workflow AND namespace = :namespace
UNION ALL SELECT 1 FROM workflow_claim WHERE workflow = :workflow AND {ALIVE_UNTIL} > :now
LIMIT 1"""

# What came from outside is no step, and a file from before the ledger may not say so of a message.
_OF_A_PASS = "NOT supplied AND NOT (step >= 'inbox:' AND step < 'inbox;')"

STEP_SEQ = f"""
SELECT seq, {_OF_A_PASS} FROM workflow_checkpoint WHERE workflow = :workflow AND step = :step"""

REWIND = f"""
DELETE FROM workflow_checkpoint WHERE workflow = :workflow AND +seq >= :seq AND {_OF_A_PASS}"""

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

# What may be swept of a state, the longest unchanged first (L13).
SWEEPABLE = f"""
SELECT seq, updated_at FROM workflow_run AS run INDEXED BY workflow_run_finished
WHERE state = :state AND state IN ('completed', 'failed', 'cancelled') AND updated_at <= :before
  AND NOT EXISTS (SELECT 1 FROM workflow_count AS kept CROSS JOIN workflow_queue AS queue
                  WHERE queue.namespace = kept.namespace AND queue.workflow = run.workflow)
  AND NOT EXISTS (SELECT 1 FROM workflow_claim
                  WHERE workflow_claim.workflow = run.workflow AND {ALIVE_UNTIL} > :now)
ORDER BY updated_at LIMIT :limit"""

_SWEPT = "(SELECT workflow FROM workflow_run WHERE seq = :seq)"

SWEEP_RECORDS = f"DELETE FROM workflow_checkpoint WHERE workflow = {_SWEPT}"

# A token that lies ahead of the moment must stay, or it would be granted again (C3).
SWEEP_CLAIM = f"""
DELETE FROM workflow_claim WHERE workflow = {_SWEPT} AND token < :milliseconds"""

SWEEP_RUN = "DELETE FROM workflow_run WHERE seq = :seq"


class Found(NamedTuple):
    """A workflow's status, and what stands beside it."""

    status: Status
    standing: Standing


def found(
    connection: sqlite3.Connection, codec: CheckpointCodec[str], workflow: str, now: float
) -> Found | None:
    """Where the workflow stands; `None` where nothing is known of it (L6)."""
    asked = {"workflow": workflow, "now": now}
    for row in rows(connection, STATUS, asked):
        status = _status(codec, row, now)
        standing = Standing(_moment(row[9]), bool(row[10]))
        for token, alive_until, held_until in rows(connection, CLAIM_OF, asked):
            standing = standing._replace(
                token=token, alive_until=_moment(alive_until), held_until=_moment(held_until)
            )
        return Found(status, standing)
    return None


def listed(
    connection: sqlite3.Connection,
    codec: CheckpointCodec[str],
    now: float,
    state: State | None,
    namespace: str | None,
    prefix: str | None,
    after: int | None,
    limit: int,
) -> Page:
    """A page of the ledger (L7)."""
    check_listing(state, namespace, prefix, after, limit)
    asked = {
        "state": state,
        "namespace": namespace,
        "prefix": prefix or "",
        "beyond": _beyond(prefix or ""),
        "after": NEWEST if after is None else max(-1, min(after, NEWEST)),
        "limit": min(limit, NEWEST) + 1,
        "now": now,
    }
    statement = LIST
    if prefix and rows(connection, WITH_PREFIX, asked)[0][0] <= FEW:
        statement = LIST_BY_PREFIX
    elif state is not None:
        statement = LIST_OF_STATE if namespace is None else LIST_OF_STATE_IN_NAMESPACE
    elif namespace is not None:
        statement = LIST_OF_NAMESPACE
    items = tuple(_status(codec, row, now) for row in rows(connection, statement, asked))
    return Page(items[:limit], items[limit - 1].seq if len(items) > limit else None)


def counted(connection: sqlite3.Connection, namespace: str | None) -> dict[State, int]:
    """How many workflows are in each state (L8)."""
    if namespace is None:
        kept = dict(rows(connection, COUNTS))
        return {state: kept.get(state, 0) for state in STATES}
    check_text("namespace", namespace)
    counts: dict[State, int] = {}
    for state in STATES:
        asked = {"state": state, "namespace": namespace}
        counts[state] = sum(count for _, count in rows(connection, COUNTS_OF_NAMESPACE, asked))
    return counts


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
        "before": NEWEST,
    }
    if not cursor.execute(IS_KNOWN, asked).fetchall():
        return None
    if cursor.execute(IS_KNOWN, asked | {"workflow": into}).fetchall():
        raise ValueError(f"workflow {shown(into)} exists: a fork begins under an id that is new")
    if before is not None:
        asked["before"] = _seq_of(cursor, asked)
    copied = cursor.execute(FORK, asked).rowcount
    queue = _namespace(cursor, FORKED, asked)
    assert queue is not None
    return copied, queue


def swept(
    cursor: StoreCursor,
    now: float,
    states: Sequence[State],
    before: float,
    limit: int,
    span: float,
) -> int:
    """Delete what may be swept, for no longer than `span` seconds; how many workflows went."""
    asked: dict[str, Any] = {"before": before, "now": now, "limit": limit}
    ripe: list[tuple[float, int]] = []
    for state in states:
        found = cursor.execute(SWEEPABLE, asked | {"state": state}).fetchall()
        ripe.extend((updated_at, seq) for seq, updated_at in found)
    began = time.monotonic()
    count = 0
    for _, seq in sorted(ripe)[:limit]:
        if count and time.monotonic() - began >= span:
            break
        one = {"seq": seq, "milliseconds": as_milliseconds(now)}
        for statement in (SWEEP_RECORDS, SWEEP_CLAIM, SWEEP_RUN):
            cursor.execute(statement, one)
        count += 1
    return count


def _status(codec: CheckpointCodec[str], row: tuple[Any, ...], now: float) -> Status:
    seq, workflow, namespace, state, raw, attempts, created_at, updated_at, claimed, visible_at = (
        row[:10]
    )
    detail: object = None
    if raw is not None:
        try:
            detail = codec.decode(raw.decode())
        except Exception as error:
            detail = {"unreadable": str(error) or type(error).__name__}
    running = state == "ready" and bool(claimed)
    ahead = visible_at is not None and visible_at > now and not row[10]
    due = _moment(visible_at) if ahead else None
    if state == "sleeping" and visible_at is None:
        told = due_of(detail)
        due = told if told is not None and told.timestamp() > now else None
    return Status(
        seq,
        workflow.decode(errors="replace"),
        namespace.decode(errors="replace"),
        state,
        detail,
        attempts,
        _moment(created_at) or _BEGINNING,
        _moment(updated_at) or _BEGINNING,
        running,
        due,
    )


_BEGINNING = datetime.fromtimestamp(0, UTC)


def _moment(seconds: Any) -> datetime | None:
    """A column's moment, where it is one."""
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, TypeError, ValueError):
        return None


def _beyond(prefix: str) -> str | bytes:
    """The least text that sorts after every text with the prefix; a blob sorts after all texts."""
    for length in range(len(prefix), 0, -1):
        last = ord(prefix[length - 1])
        if last < 0x10FFFF:
            following = 0xE000 if last == 0xD7FF else last + 1
            return prefix[: length - 1] + chr(following)
    return b""


def _seq_of(cursor: StoreCursor, asked: dict[str, Any]) -> int:
    """Where a step's record stands; `ValueError` where there is none of a pass's own."""
    for seq, of_a_pass in cursor.execute(STEP_SEQ, asked).fetchall():
        if of_a_pass or "into" in asked:
            return int(seq)
    raise ValueError(
        f"workflow {shown(asked['workflow'])} has not recorded a step {shown(asked['step'])}"
    )


def _namespace(cursor: StoreCursor, statement: str, asked: dict[str, Any]) -> str | None:
    for (raw,) in cursor.execute(statement, asked).fetchall():
        return str(raw.decode(errors="replace"))
    return None
