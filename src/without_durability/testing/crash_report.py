"""What became of a workflow whose process died everywhere it could."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

RESULT = "the result"
"""What a difference in it is called, and what is `unsteady` where it cannot be compared."""

Kind: TypeAlias = Literal["step", "transact", "sleep", "awaiting", "receive", "pending"]


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step and how often its effect took place at most, in one run of the workflow.

    An effect of `transact` that was rolled back did not take place. `crash` says where the process
    had died when it took place that often; empty when that was in a run without a crash.
    """

    key: str
    kind: Kind
    runs: int
    crash: str


@dataclass(frozen=True, slots=True)
class Crashed:
    """A crash after which the workflow came to something else than without it."""

    crash: str
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CrashReport:
    """`result` and `records` of the uninterrupted run, and what the crashes changed.

    `crashes` counts them. `steps` are in the order they were reached. `differences` hold every
    crash that changed the result or the records, or after which a ledger disagrees about the end
    (without a crash, it says `nowhere`). What differs between two *uninterrupted* runs
    (a random id, a time of day) is `unsteady`: its value cannot be compared.
    """

    result: object
    records: Mapping[str, object]
    crashes: int
    steps: tuple[StepReport, ...]
    differences: tuple[Crashed, ...]
    unsteady: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether every crash left the final result and the records as they are without one.

        Not if the result is `unsteady`: then nobody can tell. A record that is, is left out.
        """
        return not self.differences and RESULT not in self.unsteady

    @property
    def at_least_once(self) -> tuple[str, ...]:
        """The steps whose effect took place more than once: it must be idempotent."""
        return tuple(step.key for step in self.steps if step.runs > 1)

    def __str__(self) -> str:
        lines = [f"{self.crashes} crashes, {len(self.differences)} with another end"]
        for step in self.steps:
            line = f"  {step.kind} {step.key!r}"
            if step.kind in ("step", "transact"):
                line += f": {_times(step.runs)}"
            if step.runs > 1:
                line += f", so it must be idempotent (the process died {step.crash})"
            lines.append(line)
        if self.unsteady:
            lines.append(f"  not compared, differs without a crash: {', '.join(self.unsteady)}")
        lines += (
            f"  the process died {one.crash}: {'; '.join(one.differences)}"
            for one in self.differences
        )
        return "\n".join(lines)


def _times(count: int) -> str:
    return {0: "never to its end", 1: "once", 2: "up to twice"}.get(count, f"up to {count} times")
