"""What the ledger is asked, over any connection to the file: where workflows stand."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from without_durability.checks import check_text
from without_durability.codec import CheckpointCodec
from without_durability.explaining import Standing, Waiting, explained
from without_durability.ledger import STATES, Page, State, Status, check_listing, due_of, readable

from .rows import lenient, rows
from .statements import ALIVE_UNTIL, ANY_QUEUE, FINISHED, HELD_UNTIL, TOO_LATE

FEW = 5_000
"""Up to so many ids with a prefix are found by their ids, and sorted; else by walking the rows."""

NEWEST = 2**62
"""Past every row's `seq`."""

_CLAIMED = f"""
    (SELECT {{}} FROM workflow_claim WHERE workflow_claim.workflow = run.workflow
     AND {ALIVE_UNTIL} > :now)"""

# When a queue row is delivered next: none lies further ahead than it may, whatever the clock says.
_VISIBLE_AT = "min(queue.visible_at, coalesce(:now + queue.taken_for, queue.visible_at))"

# Of a row: itself, whether a pass holds it, and what is queued for it.
_COLUMNS = f"""
SELECT seq, CAST(run.workflow AS BLOB), CAST(run.namespace AS BLOB), state, CAST(detail AS BLOB),
    attempts, created_at, updated_at, {_CLAIMED.format("token")} IS NOT NULL,
    {_VISIBLE_AT}, queue.taken IS NOT NULL
FROM workflow_run AS run LEFT JOIN workflow_queue AS queue
    ON queue.namespace = run.namespace AND queue.workflow = run.workflow"""

_BY_PREFIX = "run.workflow >= :prefix AND run.workflow < :beyond"
_PAGE = "ORDER BY run.seq DESC LIMIT :limit"

STATUS = f"{_COLUMNS} WHERE run.workflow = :workflow"

# Newest first from a row on. The prefix is a filter here, whatever else is asked.
LIST = f"{_COLUMNS} WHERE run.seq < :after AND +{_BY_PREFIX} {_PAGE}"

_COLUMNS_BY_STATE = _COLUMNS.replace("AS run", "AS run INDEXED BY workflow_run_state")

LIST_OF_STATE_IN_NAMESPACE = f"""{_COLUMNS_BY_STATE}
WHERE run.state = :state AND run.namespace = :namespace AND run.seq < :after
  AND +{_BY_PREFIX} {_PAGE}"""

# The rows of a state or of a queue lie by both: a page's worth of each, and of those the newest.
LIST_OF_SOME = f"""{_COLUMNS}
WHERE run.seq IN (
    SELECT found.seq FROM workflow_count AS kept CROSS JOIN workflow_run AS found
    WHERE (:state IS NULL OR kept.state = :state)
      AND (:namespace IS NULL OR kept.namespace = :namespace)
      AND kept.count > 0 AND found.seq IN (
        SELECT seq FROM workflow_run INDEXED BY workflow_run_state
        WHERE state = kept.state AND namespace = kept.namespace AND seq < :after
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

# What may be swept: finished, unchanged since `before`, queued nowhere and held by no pass (L13).
RIPE = f"""{FINISHED} AND updated_at <= :before
  AND NOT EXISTS (SELECT 1 FROM {ANY_QUEUE} WHERE queue.workflow = run.workflow)
  AND NOT EXISTS (SELECT 1 FROM workflow_claim
                  WHERE workflow_claim.workflow = run.workflow AND {ALIVE_UNTIL} > :now)"""

SWEEPABLE = f"""
SELECT seq, updated_at FROM workflow_run AS run INDEXED BY workflow_run_finished
WHERE state = :state AND {RIPE} ORDER BY updated_at LIMIT :limit"""

# Since when, or from when on, what nobody has started waits in some queue.
WAITING = f"""
SELECT CAST(queue.namespace AS BLOB), {_VISIBLE_AT} AS visible_at, queue.taken IS NOT NULL
FROM {ANY_QUEUE} WHERE queue.workflow = :workflow
ORDER BY visible_at LIMIT 1"""

CLAIM_OF = f"""
SELECT token, {ALIVE_UNTIL}, {HELD_UNTIL} FROM workflow_claim
WHERE workflow = :workflow AND {ALIVE_UNTIL} > :now"""


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
        standing = Standing(moment_of(row[9]), bool(row[10]))
        for token, alive_until, held_until in rows(connection, CLAIM_OF, asked):
            standing = standing._replace(
                token=token, alive_until=moment_of(alive_until), held_until=moment_of(held_until)
            )
        return Found(status, standing)
    return None


def waiting(connection: sqlite3.Connection, workflow: str, now: float) -> Waiting | None:
    """What is queued for a workflow without a row: only its scheduler was told of it."""
    asked = {"workflow": workflow, "now": now}
    for namespace, visible_at, taken in rows(connection, WAITING, asked):
        return Waiting(lenient(namespace), moment_of(visible_at), bool(taken))
    return None


def told(
    connection: sqlite3.Connection, codec: CheckpointCodec[str], workflow: str, now: float
) -> str:
    """The sentence about a workflow (L15)."""
    at = found(connection, codec, workflow, now)
    moment_now = moment_of(now) or _BEGINNING
    if at is None:
        return explained(workflow, None, waiting(connection, workflow, now), moment_now)
    return explained(workflow, at.status, at.standing, moment_now)


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
    elif state is not None and namespace is not None:
        statement = LIST_OF_STATE_IN_NAMESPACE
    elif state is not None or namespace is not None:
        statement = LIST_OF_SOME
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


def ripe(
    connection: sqlite3.Connection, states: Sequence[State], before: float, now: float, limit: int
) -> list[int]:
    """The rows that may be swept, the longest unchanged first (L13)."""
    found: list[tuple[float, int]] = []
    for state in states:
        asked = {"state": state, "before": before, "now": now, "limit": min(limit, NEWEST)}
        found.extend((at, seq) for seq, at in rows(connection, SWEEPABLE, asked))
    return [seq for _, seq in sorted(found)[:limit]]


def _status(codec: CheckpointCodec[str], row: tuple[Any, ...], now: float) -> Status:
    seq, workflow, namespace, state, raw, attempts, created_at, updated_at, claimed, visible_at = (
        row[:10]
    )
    detail: object = None
    if raw is not None:
        detail = readable(lambda: codec.decode(raw.decode()))
    running = state == "ready" and bool(claimed)
    ahead = visible_at is not None and visible_at > now and not row[10]
    due = moment_of(visible_at) if ahead else None
    if state == "sleeping" and visible_at is None:
        told = due_of(detail)
        due = told if told is not None and told.timestamp() > now else None
    return Status(
        seq,
        lenient(workflow),
        lenient(namespace),
        state,
        detail,
        attempts,
        moment_of(created_at) or _BEGINNING,
        moment_of(updated_at) or _BEGINNING,
        running,
        due,
    )


_BEGINNING = datetime.fromtimestamp(0, UTC)


def moment_of(seconds: Any) -> datetime | None:
    """A column's moment, as near to it as a `datetime` comes; `None` for what is no number."""
    if not isinstance(seconds, (int, float)) or seconds != seconds:
        return None
    if seconds >= TOO_LATE:
        return datetime.max.replace(tzinfo=UTC)
    return datetime.fromtimestamp(max(seconds, 0), UTC)


def _beyond(prefix: str) -> str | bytes:
    """The least text that sorts after every text with the prefix; a blob sorts after all texts."""
    for length in range(len(prefix), 0, -1):
        last = ord(prefix[length - 1])
        if last < 0x10FFFF:
            following = 0xE000 if last == 0xD7FF else last + 1
            return prefix[: length - 1] + chr(following)
    return b""
