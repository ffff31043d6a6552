"""What a figure is: its targets, and what one repeat of it measured."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Sample:
    """One quantity in one repeat: ours, and beside it the baseline where there is one."""

    ours: float
    raw: float | None = None

    @property
    def value(self) -> float:
        """What is held against the target: the ratio, or ours alone."""
        return self.ours if self.raw is None else self.ours / self.raw


Repeat: TypeAlias = dict[str, Sample]
"""The sample of each quantity that one repeat of a figure took."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a quantity should reach: a floor, or (`at_most`) a ceiling. `must` None: only a note.

    `unit` is that of ours and of the baseline; a quantity with a baseline is judged by its ratio.
    """

    quantity: str
    unit: str
    must: float | None
    aim: float | None
    at_most: bool = False
    is_ratio: bool = False

    def met(self, value: float) -> str:
        """Which of "aim" and "must" it reaches, else "no"; nothing for a note."""
        if self.must is None or self.aim is None:
            return ""
        if self._reaches(value, self.aim):
            return "aim"
        return "must" if self._reaches(value, self.must) else "no"

    def _reaches(self, value: float, bound: float) -> bool:
        return value <= bound if self.at_most else value >= bound


def at_least(quantity: str, unit: str, must: float, aim: float) -> Target:
    """A ratio to the baseline that should be high."""
    return Target(quantity, unit, must, aim, is_ratio=True)


def at_most(quantity: str, unit: str, must: float, aim: float) -> Target:
    """A figure of our own that should be low."""
    return Target(quantity, unit, must, aim, at_most=True)


def flat(quantity: str) -> Target:
    """A time that should not grow: its ratio to the baseline stays close to 1."""
    return Target(quantity, "ms", 1.5, 1.2, at_most=True, is_ratio=True)


def noted(quantity: str, unit: str, *, is_ratio: bool = False) -> Target:
    """Something worth knowing that nothing is asked of."""
    return Target(quantity, unit, None, None, is_ratio=is_ratio)


@dataclass(frozen=True, slots=True)
class Figure:
    """A line or more of the table, and how it is measured: in an empty folder, within a limit."""

    name: str
    says: str
    targets: tuple[Target, ...]
    measure: Callable[[Path], Awaitable[list[Repeat]]]
    limit: float = 90.0


def latencies(milliseconds: Sequence[float]) -> Repeat:
    """The quantities p50 and p99 of one repeat."""
    percentiles = statistics.quantiles(milliseconds, n=100, method="inclusive")
    return {"p50": Sample(percentiles[49]), "p99": Sample(percentiles[98])}
