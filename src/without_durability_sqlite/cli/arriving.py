"""`arrive` and `deliver`: what comes from outside."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, NamedTuple

from without_durability.values import shown
from without_durability_sqlite.store import SqliteDurable

from .acting import acted, seen
from .contents import one_line
from .refusals import DONE, REFUSED
from .screen import Screen
from .text import escaped
from .workflows import Known


class Before(NamedTuple):
    """What was known of a workflow as something came for it, and the queue it is ready in now."""

    at: Known
    queue: str

    @property
    def stopped(self) -> bool:
        """Whether it was cancelled, and stays so (L2)."""
        return self.at.status is not None and self.at.status.state == "cancelled"

    @property
    def waiting(self) -> list[str]:
        """The keys that it waited for."""
        return sorted(self.at.status.waiting) if self.at.status is not None else []

    @property
    def listening(self) -> list[str]:
        """The steps at which it waited for a message."""
        return sorted(self.at.status.listening) if self.at.status is not None else []

    def named(self, screen: Screen) -> str:
        """The id, and whether it was heard of before: a typo makes a new one."""
        return screen.named(self.at.workflow) + ("" if self.at.anything else " is new: it")

    def became(self, screen: Screen, awaited: bool) -> str:
        """What it does now, and what it waits for where that was something else."""
        if self.stopped:
            return "; it is cancelled, and does not run until `retry` or `rewind`"
        waits = [shown(key) for key in self.waiting]
        waits += [f"a message at {shown(step)}" for step in self.listening]
        ready = f"; it is ready in {screen.named(self.queue)}"
        if awaited or not waits:
            return ready
        return f"{ready}; it waits for {escaped(' and '.join(waits))}"

    def document(self) -> dict[str, Any]:
        """The same for `--json`."""
        return {
            "workflow": self.at.workflow,
            "namespace": self.queue,
            "new": not self.at.anything,
            "ready": not self.stopped,
            "waiting": self.waiting,
            "listening": self.listening,
        }


def _before(file: str, typed: Namespace, screen: Screen) -> Before:
    at = seen(file, screen, typed.workflow)
    return Before(at, at.queue if typed.namespace is None else typed.namespace)


def arrive(file: str, typed: Namespace, screen: Screen) -> int:
    """Record a value under a key and make ready; exit 1 where another value stands there."""
    before = _before(file, typed, screen)

    async def call(durable: SqliteDurable) -> object:
        return await durable.arrive(typed.workflow, typed.key, typed.value)

    stands = acted(file, screen, call, before.queue)
    document = before.document() | {"key": typed.key, "value": stands}
    value, key = screen.value(one_line(stands)), screen.named(typed.key)
    became = before.became(screen, awaited=typed.key in before.waiting)
    if not _same(stands, typed.value):
        screen.done = "the value was not recorded: another stands under its key"
        screen.answer(
            f"{before.named(screen)} holds {value} under {key} since before, and that stands"
            + became,
            document | {"recorded": False},
        )
        return REFUSED
    screen.answer(
        f"{before.named(screen)} has {value} under {key}{became}", document | {"recorded": True}
    )
    return DONE


def deliver(file: str, typed: Namespace, screen: Screen) -> int:
    """Append a message to the workflow's inbox and make ready."""
    before = _before(file, typed, screen)

    async def call(durable: SqliteDurable) -> tuple[str, object]:
        entry = await durable.deliver(typed.workflow, typed.value)
        return entry.key, entry.value

    key, value = acted(file, screen, call, before.queue)
    became = before.became(screen, awaited=bool(before.listening))
    screen.answer(
        f"{before.named(screen)} has the message as {key}{became}",
        before.document() | {"key": key, "value": value},
    )
    return DONE


def _same(stands: object, given: object) -> bool:
    """Whether what stands is what was given, types included: `1` and `true` are not the same."""
    return one_line(stands) == one_line(given) or (stands == given and type(stands) is type(given))
