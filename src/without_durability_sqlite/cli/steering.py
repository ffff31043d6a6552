"""`retry`, `cancel`, `rewind`, `fork` and `delete`."""

from __future__ import annotations

import asyncio
from argparse import Namespace

from without_durability.ledger import Status
from without_durability_sqlite.rows import rows
from without_durability_sqlite.store import SqliteDurable

from .acting import AT_ONCE, acted, confirm, queue_of, status_of, unknown
from .moments import many
from .ours import look_at
from .refusals import DONE, Refused
from .screen import Screen
from .text import named
from .workflows import shown_state

RECORDS = "SELECT count(*) FROM workflow_checkpoint WHERE workflow = :workflow"

FAILED = """
SELECT coalesce(sum(count), 0) FROM workflow_count
WHERE state = 'failed' AND (:namespace IS NULL OR namespace = :namespace)"""


def retry(file: str, typed: Namespace, screen: Screen) -> int:
    """Start what failed or was cancelled again: one workflow, or all that failed."""
    if typed.failed:
        return _retry_failed(file, typed.namespace, screen)
    status = _known(file, screen, typed.workflow)
    if not acted(file, screen, lambda durable: durable.retry(typed.workflow)):
        raise Refused(
            f"{named(typed.workflow)} is {shown_state(status)}: "
            "only what failed or was cancelled is retried"
        )
    screen.answer(
        f"{named(typed.workflow)} is ready in {named(status.namespace)}",
        {"workflow": typed.workflow, "namespace": status.namespace, "retried": 1},
    )
    return DONE


def _retry_failed(file: str, namespace: str | None, screen: Screen) -> int:
    asked = {"namespace": namespace}
    ((failed,),) = look_at(file, screen, lambda connection: rows(connection, FAILED, asked))
    where = "" if namespace is None else f" in {named(namespace)}"
    if not failed:
        raise Refused(f"no workflow has failed{where}")
    confirm(screen, f"Run {many(failed, 'failed workflow')}{where} again?")
    retried = acted(file, screen, lambda durable: _all_failed(durable, namespace))
    screen.answer(
        f"{many(retried, 'workflow is', 'workflows are')} ready again{where}",
        {"namespace": namespace, "retried": retried},
    )
    return DONE


async def _all_failed(durable: SqliteDurable, namespace: str | None) -> int:
    """Page by page: the calls of a page share a commit."""
    retried, after = 0, None
    while True:
        page = await durable.list(state="failed", namespace=namespace, after=after, limit=AT_ONCE)
        retried += sum(await asyncio.gather(*(durable.retry(one.workflow) for one in page.items)))
        after = page.next
        if after is None:
            return retried


def cancel(file: str, typed: Namespace, screen: Screen) -> int:
    """Stop a workflow for good; its history stays."""
    status = _known(file, screen, typed.workflow)
    workflow = named(typed.workflow)
    if status.state in ("completed", "cancelled"):
        raise Refused(f"{workflow} is {status.state}: there is nothing to cancel")
    confirm(screen, f"Cancel {workflow}, which is {shown_state(status)}?")

    async def call(durable: SqliteDurable) -> bool:
        return await durable.cancel(typed.workflow, typed.reason)

    if not acted(file, screen, call, queue_of(status)):
        raise Refused(f"{workflow} ended meanwhile: there is nothing to cancel")
    document = {"workflow": typed.workflow, "cancelled": True, "reason": typed.reason}
    screen.answer(f"{workflow} is cancelled; `retry` starts it again", document)
    return DONE


def rewind(file: str, typed: Namespace, screen: Screen) -> int:
    """Forget a step and every step after it, and run again from there."""
    status = status_of(file, screen, typed.workflow)
    records = _records(file, screen, typed.workflow)
    if status is None and not records:
        raise unknown(typed.workflow)
    workflow, step = named(typed.workflow), named(typed.step)
    confirm(screen, f"Forget {step} and every step recorded after it in {workflow}?")

    async def call(durable: SqliteDurable) -> int:
        return await durable.rewind(typed.workflow, typed.step)

    gone = acted(file, screen, call, queue_of(status))
    screen.answer(
        f"{workflow} has forgotten {many(gone, 'record')} and is ready to run again from {step}",
        {"workflow": typed.workflow, "step": typed.step, "forgotten": gone},
    )
    return DONE


def fork(file: str, typed: Namespace, screen: Screen) -> int:
    """Start a new workflow from the records of another."""
    status = status_of(file, screen, typed.workflow)
    if status is None and not _records(file, screen, typed.workflow):
        raise unknown(typed.workflow)

    async def call(durable: SqliteDurable) -> int:
        return await durable.fork(typed.workflow, typed.into, before=typed.before)

    copied = acted(file, screen, call, queue_of(status))
    screen.answer(
        f"{named(typed.into)} has {many(copied, 'record')} of {named(typed.workflow)} "
        f"and is ready in {named(queue_of(status))}",
        {"workflow": typed.workflow, "into": typed.into, "copied": copied},
    )
    return DONE


def delete(file: str, typed: Namespace, screen: Screen) -> int:
    """Remove a workflow with its records and what is queued for it."""
    status = status_of(file, screen, typed.workflow)
    records = _records(file, screen, typed.workflow)
    if status is None and not records:
        raise unknown(typed.workflow)
    workflow = named(typed.workflow)
    state = "" if status is None else f", which is {shown_state(status)},"
    confirm(screen, f"Delete {workflow}{state} and its {many(records, 'record')}?")
    gone = acted(file, screen, lambda durable: durable.delete(typed.workflow), queue_of(status))
    screen.answer(
        f"{workflow} is deleted with {many(gone, 'record')}",
        {"workflow": typed.workflow, "deleted": True, "records": gone},
    )
    return DONE


def _known(file: str, screen: Screen, workflow: str) -> Status:
    status = status_of(file, screen, workflow)
    if status is None:
        raise unknown(workflow)
    return status


def _records(file: str, screen: Screen, workflow: str) -> int:
    asked = {"workflow": workflow}
    ((count,),) = look_at(file, screen, lambda connection: rows(connection, RECORDS, asked))
    return int(count)
