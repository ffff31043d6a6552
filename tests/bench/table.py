"""The table: a row for each quantity of a figure, as text and as JSON."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from figures import Figure, Repeat, Target

HEADINGS = ("figure", "quantity", "ours", "raw", "ratio", "must", "aim", "met")
WIDTHS = (16, 26, 12, 12, 6, 9, 9, 4)
LEFT = 2
"""How many columns are text."""


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of a figure over all repeats; `repeats` is empty where measuring failed."""

    figure: Figure
    target: Target
    repeats: list[Repeat]

    @property
    def ours(self) -> float | None:
        return self._median([repeat[self.target.quantity].ours for repeat in self.repeats])

    @property
    def raw(self) -> float | None:
        raws = [repeat[self.target.quantity].raw for repeat in self.repeats]
        return self._median([raw for raw in raws if raw is not None])

    @property
    def value(self) -> float | None:
        """What the target is about: the median ratio, or the median of ours."""
        return self._median([repeat[self.target.quantity].value for repeat in self.repeats])

    @property
    def met(self) -> str:
        return "no" if self.value is None else self.target.met(self.value)

    def cells(self, *, is_first: bool) -> tuple[str, ...]:
        target = self.target
        return (
            self.figure.name if is_first else "",
            target.quantity,
            with_unit(self.ours, target.unit),
            with_unit(self.raw, target.unit),
            "" if self.value is None or not target.is_ratio else f"{self.value:.3f}",
            bound(target, target.must),
            bound(target, target.aim),
            self.met,
        )

    def document(self) -> dict[str, Any]:
        target = self.target
        return {
            "quantity": target.quantity,
            "unit": target.unit,
            "ours": self.ours,
            "raw": self.raw,
            "ratio": self.value if target.is_ratio else None,
            "must": target.must,
            "aim": target.aim,
            "at_most": target.at_most,
            "met": self.met,
            "repeats": [
                {"ours": repeat[target.quantity].ours, "raw": repeat[target.quantity].raw}
                for repeat in self.repeats
            ],
        }

    @staticmethod
    def _median(numbers: list[float]) -> float | None:
        return statistics.median(numbers) if numbers else None


def line(cells: tuple[str, ...]) -> str:
    texts = [cell.ljust(width) for cell, width in zip(cells[:LEFT], WIDTHS[:LEFT], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(cells[LEFT:], WIDTHS[LEFT:], strict=True)]
    return "  ".join(texts + numbers).rstrip()


def with_unit(value: float | None, unit: str) -> str:
    shown = number(value)
    return f"{shown} {unit}" if shown and unit else shown


def bound(target: Target, value: float | None) -> str:
    if value is None:
        return ""
    sign = "\N{LESS-THAN OR EQUAL TO}" if target.at_most else "\N{GREATER-THAN OR EQUAL TO}"
    unit = "" if target.is_ratio else target.unit
    return f"{sign} {value:g} {unit}".rstrip()


def number(value: float | None) -> str:
    """Three digits or so."""
    if value is None:
        return ""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
