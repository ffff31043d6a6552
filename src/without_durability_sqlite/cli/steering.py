"""`retry`, `cancel`, `rewind`, `fork` and `delete`."""

from __future__ import annotations

import asyncio
import shlex
import sqlite3
from argparse import Namespace

from without_durability_sqlite.rows import lenient, rows
from without_durability_sqlite.scheduler import SqliteScheduler
from without_durability_sqlite.statements import ANY_QUEUE, FROM_OUTSIDE
from without_durability_sqlite.store import SqliteDurable

from .acting import AT_ONCE, Tally, acted, confirm, seen, seen_before
from .moments import many
from .ours import look_at
from .refusals import DONE, Refused
from .screen import Screen
from .workflows import unknown

FAILED = """
SELECT coalesce(sum(count), 0) FROM workflow_count
WHERE state = 'failed' AND (:namespace IS NULL OR namespace = :namespace)"""

WAKEUPS = f"""
SELECT CAST(queue.namespace AS BLOB) FROM {ANY_QUEUE} WHERE queue.workflow = :workflow"""

SUPPLIED = f"""
SELECT 1 FROM workflow_checkpoint
WHERE workflow = :workflow AND step = :step AND {FROM_OUTSIDE}"""


def retry(file: str, typed: Namespace, screen: Screen) -> int:
    """Start what failed or was cancelled again: one workflow, or all that failed."""
    if typed.failed:
        return _retry_failed(file, typed.namespace, screen)
    at = seen_before(file, screen, typed.workflow)
    workflow = screen.named(typed.workflow)
    if not acted(file, screen, lambda durable: durable.retry(typed.workflow)):
        now = seen_before(file, screen, typed.workflow)
        if at.state in ("failed", "cancelled"):
            raise Refused(f"{workflow} was retried meanwhile: it is {now.state}")
        raise Refused(f"{workflow} is {now.state}: only what failed or was cancelled is retried")
    screen.answer(
        f"{workflow} is ready in {screen.named(at.queue)}",
        {"workflow": typed.workflow, "namespace": at.queue, "retried": 1},
    )
    return DONE


def _retry_failed(file: str, namespace: str | None, screen: Screen) -> int:
    asked = {"namespace": namespace}
    ((failed,),) = look_at(file, screen, lambda connection: rows(connection, FAILED, asked))
    where = "" if namespace is None else f" in {screen.named(namespace)}"
    if not failed:
        raise Refused(f"no workflow has failed{where}")
    confirm(screen, f"Run {many(failed, 'failed workflow')}{where} again?")
    with Tally(screen, failed, "were retried") as retried:
        acted(file, screen, lambda durable: _all_failed(durable, namespace, retried))
    screen.answer(
        f"{many(retried.done, 'workflow is', 'workflows are')} ready again{where}",
        {"namespace": namespace, "retried": retried.done},
    )
    return DONE


async def _all_failed(durable: SqliteDurable, namespace: str | None, retried: Tally) -> None:
    """Page by page: the calls of a page share a commit."""
    after = None
    while True:
        page = await durable.list(state="failed", namespace=namespace, after=after, limit=AT_ONCE)
        calls = (durable.retry(one.workflow) for one in page.items)
        retried.done += sum(await asyncio.gather(*calls))
        after = page.next
        if after is None:
            return


def cancel(file: str, typed: Namespace, screen: Screen) -> int:
    """Stop a workflow for good; its history stays."""
    at = seen_before(file, screen, typed.workflow)
    workflow = screen.named(typed.workflow)
    if at.state in ("completed", "cancelled") or not (at.status or at.waiting):
        raise Refused(f"{workflow} is {at.state}: there is nothing to cancel")
    confirm(screen, f"Cancel {workflow}, which is {at.state}?")

    async def call(durable: SqliteDurable) -> bool:
        return await durable.cancel(typed.workflow, typed.reason)

    if not acted(file, screen, call, at.queue):
        now = seen_before(file, screen, typed.workflow)
        raise Refused(f"{workflow} is {now.state} meanwhile: there is nothing to cancel")
    document = {"workflow": typed.workflow, "cancelled": True, "reason": typed.reason}
    screen.answer(f"{workflow} is cancelled; `retry` starts it again", document)
    return DONE


def rewind(file: str, typed: Namespace, screen: Screen) -> int:
    """Forget a step and every step after it, and run again from there."""
    at = seen_before(file, screen, typed.workflow)
    workflow, step = screen.named(typed.workflow), screen.named(typed.step)
    confirm(screen, f"Forget {step} and every step recorded after it in {workflow}?")

    async def call(durable: SqliteDurable) -> int:
        return await durable.rewind(typed.workflow, typed.step)

    try:
        gone = acted(file, screen, call, at.queue)
    except Refused as error:
        if not _came_from_outside(file, screen, typed.workflow, typed.step):
            raise
        command = shlex.join(["fork", workflow, "NEW", "--before", step])
        raise Refused(f"{error}; `{command}` begins anew without it") from error
    if not gone:  # a step that is recorded is forgotten, or that is refused
        raise unknown(typed.workflow)
    screen.answer(
        f"{workflow} has forgotten {many(gone, 'record')} and is ready to run again from {step}",
        {"workflow": typed.workflow, "step": typed.step, "forgotten": gone},
    )
    return DONE


def fork(file: str, typed: Namespace, screen: Screen) -> int:
    """Start a new workflow from the records of another."""
    at = seen_before(file, screen, typed.workflow)

    async def call(durable: SqliteDurable) -> int:
        return await durable.fork(typed.workflow, typed.into, before=typed.before)

    copied = acted(file, screen, call, at.queue)
    if not copied and seen(file, screen, typed.into).row is None:
        raise unknown(typed.workflow)
    screen.answer(
        f"{screen.named(typed.into)} has {many(copied, 'record')} of "
        f"{screen.named(typed.workflow)} and is ready in {screen.named(at.queue)}",
        {"workflow": typed.workflow, "into": typed.into, "copied": copied},
    )
    return DONE


def delete(file: str, typed: Namespace, screen: Screen) -> int:
    """Remove a workflow with its records and what is queued for it, in whatever queue."""
    at = seen_before(file, screen, typed.workflow)

    def look(connection: sqlite3.Connection) -> list[str]:
        return _queues(connection, typed.workflow)

    queued = look_at(file, screen, look)
    workflow, own = screen.named(typed.workflow), at.queue
    elsewhere = _elsewhere(screen, queued, own)
    confirm(
        screen,
        f"Delete {workflow}, which is {at.state}, and its {many(at.records, 'record')}{elsewhere}?",
    )

    async def call(durable: SqliteDurable) -> tuple[int, list[str]]:
        database = durable.checkpointer.database
        queues = await database.run(look)
        for queue in queues:
            if queue != own:  # before the rest: until that is gone it can be done again
                await SqliteScheduler(database, queue).cancel(typed.workflow)
        return await durable.delete(typed.workflow), queues

    gone, queues = acted(file, screen, call, own)
    screen.answer(
        f"{workflow} is deleted with {many(gone, 'record')}{_elsewhere(screen, queues, own)}",
        {"workflow": typed.workflow, "deleted": True, "records": gone, "wakeups": queues},
    )
    return DONE


def _queues(connection: sqlite3.Connection, workflow: str) -> list[str]:
    """The queues that a workflow is queued in."""
    queued = rows(connection, WAKEUPS, {"workflow": workflow})
    return [lenient(name) for (name,) in queued]


def _elsewhere(screen: Screen, queues: list[str], own: str) -> str:
    """Its wakeups in other queues than its own, where there are any."""
    others = [screen.named(queue) for queue in queues if queue != own]
    if not others:
        return ""
    return f" and its {'wakeup' if len(others) == 1 else 'wakeups'} in {', '.join(others)}"


def _came_from_outside(file: str, screen: Screen, workflow: str, key: str) -> bool:
    asked = {"workflow": workflow, "step": key}
    return bool(look_at(file, screen, lambda at: rows(at, SUPPLIED, asked)))
