"""Every statement of the stores: SQL decides exclusion and order, Python decides policy."""

from __future__ import annotations

TOO_LATE = 253402300800
"""The first Unix second that no `datetime` can hold."""

OF_INBOX = "step >= 'inbox:' AND step < 'inbox;'"
"""Whether a record is a message: its key lies in the inbox space."""

FROM_OUTSIDE = f"(supplied OR {OF_INBOX})"
"""Whether a record is no step: a file from before the ledger may not say so of a message."""

FINISHED = "state IN ('completed', 'failed', 'cancelled')"
"""Whether a workflow is finished: what the index over those asks of a statement, to the letter."""

# Every queue that holds something, by as many steps along the index as there are queues.
QUEUES = """
WITH RECURSIVE queues (name) AS (
    SELECT min(namespace) FROM workflow_queue
    UNION ALL
    SELECT (SELECT min(namespace) FROM workflow_queue WHERE namespace > name)
    FROM queues WHERE name IS NOT NULL
)
SELECT name FROM queues WHERE name IS NOT NULL"""

ANY_QUEUE = f"""({QUEUES}) AS queues
    CROSS JOIN workflow_queue AS queue ON queue.namespace = queues.name"""
"""The rows of all queues: those of one workflow are found there without an index for it."""

# --- records ----------------------------------------------------------------------------------
# No row: nothing is recorded under the key.
READ = """
SELECT CAST(value AS BLOB) FROM workflow_checkpoint WHERE workflow = :workflow AND step = :key"""

# No row touched: the key was recorded before, and what is stored stands.
WRITE = """
INSERT INTO workflow_checkpoint (workflow, step, value, written_at, supplied)
VALUES (:workflow, :key, :value, :written_at, :supplied) ON CONFLICT (workflow, step) DO NOTHING"""

# A record's moment, and NULL for what no datetime could hold: one bad row is nobody else's harm.
_READABLE_MOMENT = f"""CASE WHEN typeof(written_at) IN ('real', 'integer')
    AND written_at < {TOO_LATE} THEN written_at END"""

# The newest record's moment, and the latest one that some record behind it may have.
LATEST = f"""
SELECT coalesce((SELECT {_READABLE_MOMENT} FROM workflow_checkpoint ORDER BY seq DESC LIMIT 1), 0),
       coalesce((SELECT max(clock_ahead) FROM workflow_schema), 0)"""

# The clock was set back, or old records were copied behind the newest: remember that one's moment.
REMEMBER_LATEST = """
INSERT INTO workflow_schema (version, clock_ahead) VALUES (:version, :latest)
ON CONFLICT (version) DO UPDATE SET clock_ahead = excluded.clock_ahead"""

LATEST_OF_WORKFLOW = f"""
SELECT coalesce(max({_READABLE_MOMENT}), 0) FROM workflow_checkpoint WHERE workflow = :workflow"""

NEXT_SEQ = "SELECT coalesce(max(seq), 0) + 1 FROM workflow_checkpoint"

# The inbox keys a workflow holds, last first, and only those whose position counts.
INBOX_KEYS = """
SELECT CAST(step AS BLOB) FROM workflow_checkpoint
WHERE workflow = :workflow AND step >= :first AND step < :beyond ORDER BY step DESC"""

DISCARD = "DELETE FROM workflow_checkpoint WHERE workflow = :workflow"

# --- claims -----------------------------------------------------------------------------------
# `seen_at` is the clock's reading when the claim was last written. A reading before it means
# that the clock was set back since: both deadlines then move back by as much.

_SET_BACK = "max(0, coalesce(seen_at, :now) - :now)"
HELD_UNTIL = f"held_until - {_SET_BACK}"
ALIVE_UNTIL = f"alive_until - {_SET_BACK}"

# No row: another pass holds the workflow. A token follows time as well as count, and lies above
# whatever was swept: the clock may have been set back since (C3).
CLAIM = f"""
INSERT INTO workflow_claim (workflow, token, held_until, alive_until, alive_for, seen_at)
VALUES (:workflow, max(:milliseconds, (SELECT coalesce(max(swept), 0) + 1 FROM workflow_schema)),
    :now + :budget, :now + min(:budget, :alive), :alive, :now)
ON CONFLICT (workflow) DO UPDATE SET
    token = max(token + 1, excluded.token), held_until = excluded.held_until,
    alive_until = excluded.alive_until, alive_for = excluded.alive_for, seen_at = excluded.seen_at
WHERE {ALIVE_UNTIL} <= :now RETURNING token"""

# After a refusal, where the clock was set back: the deadlines as far ahead as they were before.
CLAMP_CLAIM = f"""
UPDATE workflow_claim SET held_until = {HELD_UNTIL},
    alive_until = min({ALIVE_UNTIL}, :now + alive_for), seen_at = :now
WHERE workflow = :workflow AND (seen_at > :now OR alive_until > :now + alive_for)"""

# Whether the holder is the newest, and what is recorded under the key, if anything is.
FENCE = """
SELECT EXISTS (SELECT 1 FROM workflow_claim WHERE workflow = :workflow AND token = :token),
    (SELECT CAST(value AS BLOB) FROM workflow_checkpoint
     WHERE workflow = :workflow AND step = :key)"""

# No row: the holder is not the newest.
STANDS = "SELECT 1 FROM workflow_claim WHERE workflow = :workflow AND token = :token"

# No row touched: the holder is not the newest. A released claim stays released (C8).
SIGN_OF_LIFE = f"""
UPDATE workflow_claim SET held_until = {HELD_UNTIL},
    alive_until = min({HELD_UNTIL}, :now + alive_for), seen_at = :now
WHERE workflow = :workflow AND token = :token"""

# No row touched: not the newest, or the budget has run out, or released (held until 0).
RENEW = f"""
UPDATE workflow_claim SET held_until = {HELD_UNTIL},
    alive_until = min({HELD_UNTIL}, :now + :alive), alive_for = :alive, seen_at = :now
WHERE workflow = :workflow AND token = :token AND {HELD_UNTIL} > :now"""

# No row touched: not the newest, or released.
EXTEND_CLAIM = f"""
UPDATE workflow_claim SET held_until = max({HELD_UNTIL}, :now + :budget),
    alive_until = min(max({HELD_UNTIL}, :now + :budget), :now + :alive),
    alive_for = :alive, seen_at = :now
WHERE workflow = :workflow AND token = :token AND held_until > 0"""

RELEASE = """
UPDATE workflow_claim SET held_until = 0, alive_until = 0
WHERE workflow = :workflow AND token = :token"""

# No row touched: not the newest, or released before.
END_CLAIM = f"{RELEASE} AND held_until > 0"

RAISE_FENCE = """
UPDATE workflow_claim
SET token = max(token + 1, :milliseconds), held_until = 0, alive_until = 0
WHERE workflow = :workflow"""

# --- queue ------------------------------------------------------------------------------------
# Queued: visible_at in the past. Sleeping: ahead. Out with a worker: ahead, and `taken`.
# `taken_for` is how far ahead a row may lie: a take's seconds, 0 for one that was made ready, and
# NULL for a sleeper, which means its moment.

# Whether there is anything to take or to clamp, and when the next one is due: what an idle worker
# asks, without a lock.
LOOK = f"""
SELECT EXISTS (SELECT 1 FROM workflow_queue
               WHERE namespace = :namespace AND visible_at <= :now)
    OR EXISTS (SELECT 1 FROM workflow_queue INDEXED BY workflow_queue_taken_for
               WHERE namespace = :namespace AND taken_for IS NOT NULL
               AND visible_at > :now AND visible_at > :now + taken_for + (taken_for > 0)),
    (SELECT min(visible_at) FROM workflow_queue
     WHERE namespace = :namespace AND visible_at > :now AND visible_at < {TOO_LATE})"""

# Rows that lie further ahead than they may: the clock was set back. A taken one's receipt no
# longer stands after it, so a second's grace leaves a clock's small steps alone.
CLAMP_TAKEN = """
UPDATE workflow_queue INDEXED BY workflow_queue_taken_for SET visible_at = :now + taken_for
WHERE namespace = :namespace AND taken_for IS NOT NULL
  AND visible_at > :now AND visible_at > :now + taken_for + (taken_for > 0)
RETURNING CAST(workflow AS BLOB)"""

_LONGEST_VISIBLE = """FROM workflow_queue
    WHERE namespace = :namespace AND visible_at <= :now
    ORDER BY visible_at, workflow LIMIT :limit"""

# The rows visible longest, in order. No row: nothing is visible.
VISIBLE = f"SELECT CAST(workflow AS BLOB), typeof(workflow) = 'text' {_LONGEST_VISIBLE}"

# Those very rows, one lease ahead from here on.
TAKE = f"""
UPDATE workflow_queue SET visible_at = :until, taken = :nonce, taken_for = :lease
WHERE namespace = :namespace AND workflow IN (SELECT workflow {_LONGEST_VISIBLE})"""

# Visible now, or still at the earlier moment it has, under a changed receipt (S10).
MAKE_READY = """
INSERT INTO workflow_queue (namespace, workflow, visible_at, taken_for)
VALUES (:namespace, :workflow, :when, :ahead)
ON CONFLICT (namespace, workflow) DO UPDATE SET
    visible_at = min(visible_at, excluded.visible_at), taken = NULL, taken_for = :ahead"""

SCHEDULE = """
INSERT INTO workflow_queue (namespace, workflow, visible_at) VALUES (:namespace, :workflow, :when)
ON CONFLICT (namespace, workflow) DO UPDATE SET
    visible_at = excluded.visible_at, taken = NULL, taken_for = NULL"""

# A delivery that is still out under its receipt: the next four touch that row or none.
_HELD = """namespace = :namespace AND workflow = :workflow
  AND visible_at = :visible_at AND taken = :nonce"""

HOLDS = f"SELECT taken_for FROM workflow_queue WHERE {_HELD}"

EXTEND_DELIVERY = f"""
UPDATE workflow_queue SET visible_at = :until, taken = :renewed, taken_for = :within
WHERE {_HELD}"""

SUSPEND = f"""
UPDATE workflow_queue SET visible_at = :when, taken = NULL, taken_for = :ahead WHERE {_HELD}"""

DONE = f"DELETE FROM workflow_queue WHERE {_HELD}"

CANCEL = "DELETE FROM workflow_queue WHERE namespace = :namespace AND workflow = :workflow"

# Whether what is queued is nobody's who took it: it was made ready, or put off by whoever found the
# workflow held. No row: nothing is queued.
QUEUED = """
SELECT taken IS NULL FROM workflow_queue
WHERE namespace = :namespace AND workflow = :workflow"""

# --- ledger -----------------------------------------------------------------------------------
# No row touched: the workflow was cancelled, and nothing is queued for it (L1, L2).
ARRIVED = """
INSERT INTO workflow_run (workflow, namespace, state, created_at, updated_at)
VALUES (:workflow, :namespace, 'ready', :now, :now)
ON CONFLICT (workflow) DO UPDATE SET
    namespace = excluded.namespace, state = 'ready', updated_at = excluded.updated_at,
    detail = CASE WHEN state = 'ready' THEN detail END,
    attempts = CASE WHEN state = 'failed' THEN 0 ELSE attempts END
WHERE state <> 'cancelled'"""

# Where a workflow stands when a pass on it is to start. No row: it never arrived.
STANDING = """
SELECT seq, state, attempts, namespace = :namespace, CAST(namespace AS BLOB)
FROM workflow_run WHERE workflow = :workflow"""

# One more pass over what was ready, which touches no index; then over what was not.
ONE_MORE = "UPDATE workflow_run SET attempts = :attempt, updated_at = :now WHERE seq = :seq"

STARTED = """
UPDATE workflow_run SET namespace = :namespace, state = 'ready', attempts = :attempt,
    detail = CASE WHEN state = 'ready' THEN detail END, updated_at = :now
WHERE seq = :seq"""

STARTED_FIRST = """
INSERT INTO workflow_run (workflow, namespace, state, attempts, created_at, updated_at)
VALUES (:workflow, :namespace, 'ready', :attempt, :now, :now)"""

# Its attempts are used up: the last error stands, if there is one.
PARKED = """
UPDATE workflow_run SET state = 'failed', detail = coalesce(detail, :detail), updated_at = :now
WHERE seq = :seq"""

# No row touched: it was cancelled or deleted since, and stays so.
ENDED = """
UPDATE workflow_run SET state = coalesce(:state, state),
    detail = CASE WHEN :state IS NULL THEN detail ELSE :detail END,
    attempts = coalesce(:attempts, attempts), updated_at = :now
WHERE workflow = :workflow AND state <> 'cancelled'"""

# No row touched: that, or it was made ready in another queue since.
ENDED_HERE = f"{ENDED} AND namespace = :namespace"

FORGET = "DELETE FROM workflow_run WHERE workflow = :workflow"
