"""Putting a store to every clause of the contract, and saying per clause how it did."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from . import (
    claims_contract,
    deliveries_contract,
    durable_contract,
    ledger_contract,
    ledger_reading_contract,
    ledger_starts_contract,
    ledger_steering_contract,
    records_contract,
    refusals_contract,
    scheduler_contract,
)
from .subject import Make, Marks, NotApplicable, Subject

Check: TypeAlias = Callable[[Subject], Awaitable[None]]
"""Raises `AssertionError` saying what is broken, or `NotApplicable` saying why it cannot tell."""

State: TypeAlias = Literal["passed", "failed", "not applicable"]

HANG = 30.0
"""Seconds of real time after which a check that has not ended is a failed one."""

_CANCELLATIONS = 3
"""How often a check that hangs is told to end."""

_BY_CLAUSE: dict[str, Check] = {
    name.split("_")[1].upper(): getattr(module, name)
    for module in (
        claims_contract,
        records_contract,
        refusals_contract,
        scheduler_contract,
        deliveries_contract,
        durable_contract,
        ledger_contract,
        ledger_reading_contract,
        ledger_starts_contract,
        ledger_steering_contract,
    )
    for name in module.__all__
}

CHECKS: dict[str, Check] = {
    clause: _BY_CLAUSE[clause]
    for clause in sorted(_BY_CLAUSE, key=lambda clause: ("CSDL".index(clause[0]), int(clause[1:])))
}
"""Each clause's check, in the order of the contract: C1…, S1…, D1…, L1…."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a store did on one clause; `why` is empty when it passed."""

    clause: str
    check: str
    state: State
    why: str = ""

    def __str__(self) -> str:
        promise = self.check.split("_", 2)[2].replace("_", " ")
        line = f"{self.clause:<4}{self.state:<16}{promise}"
        return f"{line}\n    {self.why}" if self.why else line


@dataclass(frozen=True, slots=True)
class Certificate:
    """A verdict for every clause, in order; as text, a line for each."""

    verdicts: tuple[Verdict, ...]

    @property
    def passed(self) -> bool:
        """Whether no clause failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """The verdicts on the clauses that the store breaks."""
        return tuple(one for one in self.verdicts if one.state == "failed")

    def __getitem__(self, clause: str) -> Verdict:
        """The verdict on a clause, such as "C9"; `KeyError` for one there is not."""
        for one in self.verdicts:
            if one.clause == clause:
                return one
        raise KeyError(clause)

    def __str__(self) -> str:
        return "\n".join(map(str, self.verdicts))


async def certify(
    make: Make, reopen: Make | None = None, *, marks: Marks | None = None
) -> Certificate:
    """Put a store to every clause, each on a new one from `make`, and report on all of them.

    `make(clock)` opens a new, empty store under the clock. `reopen(clock)` opens what the last
    `make` keeps, as after a crash: while that one is still open. Without it what must outlive a
    process is not applicable. With `marks` it is checked what became of `transact`'s effects.
    Nothing that the store raises comes out; a check that hangs for half a minute has failed, and is
    left behind if it does not end when it is cancelled.
    """
    subject = Subject(make, reopen, marks)
    return Certificate(
        tuple([await _verdict(clause, check, subject) for clause, check in CHECKS.items()])
    )


async def _verdict(clause: str, check: Check, subject: Subject) -> Verdict:
    name = getattr(check, "__name__", clause)
    task = asyncio.ensure_future(_checked(check, subject))
    try:
        await asyncio.wait((task,), timeout=HANG)
        if not task.done():
            return Verdict(clause, name, "failed", f"it did not end within {HANG:g} s")
    finally:
        await _ended(task)
    if task.cancelled():
        return Verdict(clause, name, "failed", "the store raised a CancelledError of its own")
    state, why = task.result()
    return Verdict(clause, name, state, why)


async def _checked(check: Check, subject: Subject) -> tuple[State, str]:
    """The check's answer, whatever it raises; a store's `SystemExit` would end the loop."""
    try:
        await check(subject)
    except NotApplicable as reason:
        return "not applicable", str(reason)
    except AssertionError as broken:
        return "failed", str(broken) or repr(broken)
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:
        return "failed", f"the store raised {error!r}"
    return "passed", ""


async def _ended(task: asyncio.Task[tuple[State, str]]) -> None:
    """Cancel a check that hangs; one that will not have it is left behind."""
    for _ in range(_CANCELLATIONS):
        if task.done():
            return
        task.cancel()
        await asyncio.wait((task,), timeout=HANG / _CANCELLATIONS)
