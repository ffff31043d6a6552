"""`arrive` and `deliver`: what comes from outside."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from without_durability_sqlite.store import SqliteDurable

from .acting import acted, queue_of, status_of
from .contents import one_line
from .refusals import DONE, REFUSED
from .screen import Screen
from .text import named


def arrive(file: str, typed: Namespace, screen: Screen) -> int:
    """Record a value under a key and make ready; exit 1 where another value stands there."""
    status = status_of(file, screen, typed.workflow)
    queue = queue_of(status, typed.namespace)

    async def call(durable: SqliteDurable) -> object:
        return await durable.arrive(typed.workflow, typed.key, typed.value)

    stands = acted(file, screen, call, queue)
    ended = status is not None and status.state == "cancelled"
    document = _document(typed.workflow, queue, stopped=ended) | {"key": typed.key, "value": stands}
    workflow, key = named(typed.workflow), named(typed.key)
    if not _same(stands, typed.value):
        screen.answer(
            f"{workflow} holds {one_line(stands)} under {key} since before, and that stands"
            + _became(queue, stopped=ended),
            document | {"recorded": False},
        )
        return REFUSED
    screen.answer(
        f"{workflow} has {one_line(stands)} under {key}" + _became(queue, stopped=ended),
        document | {"recorded": True},
    )
    return DONE


def deliver(file: str, typed: Namespace, screen: Screen) -> int:
    """Append a message to the workflow's inbox and make ready."""
    status = status_of(file, screen, typed.workflow)
    queue = queue_of(status, typed.namespace)
    entry = acted(file, screen, lambda durable: durable.deliver(typed.workflow, typed.value), queue)
    ended = status is not None and status.state == "cancelled"
    screen.answer(
        f"{named(typed.workflow)} has the message as {entry.key}" + _became(queue, stopped=ended),
        _document(typed.workflow, queue, stopped=ended) | {"key": entry.key, "value": entry.value},
    )
    return DONE


def _became(queue: str, *, stopped: bool) -> str:
    if stopped:
        return "; it is cancelled, and does not run until `retry` or `rewind`"
    return f"; it is ready in {named(queue)}"


def _document(workflow: str, queue: str, *, stopped: bool) -> dict[str, Any]:
    return {"workflow": workflow, "namespace": queue, "ready": not stopped}


def _same(stands: object, given: object) -> bool:
    """Whether what stands is what was given, types included: `1` and `true` are not the same."""
    return one_line(stands) == one_line(given) or (stands == given and type(stands) is type(given))
