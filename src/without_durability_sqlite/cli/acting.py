"""The writing commands' way into a file: never created, never migrated, asked about beforehand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from without_durability.durations import Milliseconds
from without_durability.ledger import Status
from without_durability.values import SWEPT
from without_durability_sqlite.checkpointer import SqliteCheckpointer
from without_durability_sqlite.database import connect
from without_durability_sqlite.scheduler import SqliteScheduler
from without_durability_sqlite.store import SqliteDurable

from .ours import check_file, look_at
from .refusals import Refused
from .screen import Screen
from .text import escaped
from .workflows import found

T = TypeVar("T")

QUEUE = "workflow"
"""The queue of a workflow that nothing is known of, unless one is named."""

AT_ONCE = SWEPT // 10


def acted(
    file: str,
    screen: Screen,
    call: Callable[[SqliteDurable], Awaitable[T]],
    namespace: str = QUEUE,
) -> T:
    """What a call on the file's durable returned; `Refused` for what the call refuses."""
    check_file(file, screen)

    path, wait = os.path.abspath(file), Milliseconds(round(screen.wait * 1000))

    async def calling() -> T:
        async with connect(path, timeout=wait, clock=screen.clock) as database:
            scheduler = SqliteScheduler(database, namespace)
            return await call(SqliteDurable(SqliteCheckpointer(database), scheduler))

    try:
        return asyncio.run(calling())
    except (TypeError, ValueError) as error:
        raise Refused(escaped(str(error))) from error


def status_of(file: str, screen: Screen, workflow: str) -> Status | None:
    """Where a workflow stands before it is acted upon."""
    now = screen.now()
    told = look_at(file, screen, lambda connection: found(connection, workflow, now))
    return None if told is None else told.status


def queue_of(status: Status | None, named: str | None = None) -> str:
    """The queue to act in: the one that is named, or where it was last made ready."""
    if named is not None:
        return named
    return QUEUE if status is None else status.namespace


def unknown(workflow: str) -> Refused:
    """The refusal for an id that nothing is known of."""
    return Refused(f"nothing is known of workflow {escaped(repr(workflow))}")


def confirm(screen: Screen, question: str) -> None:
    """Go on only where the user says so, beforehand with `--yes` or when asked."""
    if screen.yes:
        return
    if not screen.asks():
        raise Refused("this cannot be taken back, and there is nobody to ask: pass --yes")
    if not screen.ask(question):
        raise Refused("nothing was done")
