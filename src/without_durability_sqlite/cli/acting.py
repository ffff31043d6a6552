"""The writing commands' way into a file: never created, never migrated, asked about beforehand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from without_durability.durations import Milliseconds
from without_durability.ledger import Status
from without_durability.values import SWEPT, shown
from without_durability_sqlite.checkpointer import SqliteCheckpointer
from without_durability_sqlite.database import connect
from without_durability_sqlite.rows import rows
from without_durability_sqlite.scheduler import SqliteScheduler
from without_durability_sqlite.store import SqliteDurable

from .ours import check_file, look_at
from .refusals import Refused, Terminated
from .screen import Screen
from .text import escaped
from .workflows import found

T = TypeVar("T")

QUEUE = "workflow"
"""The queue of a workflow that nothing is known of, unless one is named."""

RECORDS = "SELECT count(*) FROM workflow_checkpoint WHERE workflow = :workflow"

AT_ONCE = SWEPT // 10

DID = "what was asked for is done"
"""Said where the answer itself cannot be written."""


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
        value = asyncio.run(calling())
    except (TypeError, ValueError) as error:
        raise Refused(escaped(str(error))) from error
    screen.done = DID
    return value


def status_of(file: str, screen: Screen, workflow: str) -> Status | None:
    """Where a workflow stands before it is acted upon."""
    now = screen.now()
    told = look_at(file, screen, lambda connection: found(connection, workflow, now))
    return None if told is None else told.status


def records_of(file: str, screen: Screen, workflow: str) -> int:
    """How many records a workflow has."""
    asked = {"workflow": workflow}
    ((count,),) = look_at(file, screen, lambda connection: rows(connection, RECORDS, asked))
    return int(count)


def queue_of(status: Status | None, named: str | None = None) -> str:
    """The queue to act in: the one that is named, or where it was last made ready."""
    if named is not None:
        return named
    return QUEUE if status is None else status.namespace


def unknown(workflow: str) -> Refused:
    """The refusal for an id that nothing is known of."""
    return Refused(f"nothing is known of workflow {escaped(shown(workflow))}")


class Tally:
    """How much of a long act is done; told where it ends before its end, as by Ctrl-C."""

    def __init__(self, screen: Screen, of: int, what: str) -> None:
        self.done = 0
        self._screen, self._of, self._what = screen, of, what

    def __enter__(self) -> Tally:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._screen.progressed()
        if error is None or not (self.done or isinstance(error, (KeyboardInterrupt, Terminated))):
            return
        # What the last batch did until it was broken off is not counted.
        told = f"at least {self.done} of {self._of} {self._what} before it ended"
        self._screen.note(told)


def confirm(screen: Screen, question: str) -> None:
    """Go on only where the user says so, beforehand with `--yes` or when asked."""
    if screen.yes:
        return
    if not screen.asks():
        raise Refused("this cannot be taken back, and there is nobody to ask: pass --yes")
    if not screen.ask(question):
        raise Refused("nothing was done")
