"""The writing commands' way into a file: never created, never migrated, asked about beforehand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from without_durability.durations import Milliseconds
from without_durability.values import SWEPT
from without_durability_sqlite.checkpointer import SqliteCheckpointer
from without_durability_sqlite.database import connect
from without_durability_sqlite.scheduler import SqliteScheduler
from without_durability_sqlite.store import SqliteDurable

from .ours import check_file, look_at
from .refusals import Refused, Terminated
from .screen import Screen
from .text import escaped
from .workflows import QUEUE, Known, known, unknown

T = TypeVar("T")

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


def seen(file: str, screen: Screen, workflow: str) -> Known:
    """What is known of a workflow before something comes for it."""
    now = screen.now()
    return look_at(file, screen, lambda connection: known(connection, workflow, now))


def seen_before(file: str, screen: Screen, workflow: str) -> Known:
    """The same before it is acted upon; `Refused` where nothing is known of it."""
    at = seen(file, screen, workflow)
    if not at.anything:
        raise unknown(workflow)
    return at


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
