"""Tables that fit: a narrow terminal shortens what is flexible, and no line wraps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .text import cells, padded, shortened, shortened_within

GAP = 2
LEAST = 6
"""Cells between two columns, and how narrow a flexible one becomes before others are cut."""


class Column(NamedTuple):
    """A column's title and how it gives way: not at all, at its end, or in its middle."""

    title: str
    gives: str = ""
    right: bool = False


class Cell(NamedTuple):
    """A text and the name of the colour it has on a terminal."""

    text: str
    style: str = ""


UNLIMITED = 2**31
"""The width where nothing is shortened."""

PADDED = 100
"""Cells that a column is padded to at most where nothing is shortened: what is longer juts out."""

Paint = Callable[[str, str], str]


def table(
    columns: Sequence[Column], body: Sequence[Sequence[Cell]], width: int, paint: Paint
) -> list[str]:
    """The lines of a table, its head included, none wider than `width` cells."""
    head = [Cell(column.title, "dim") for column in columns]
    widths = _widths(columns, [head, *body], width)
    return [_line(columns, row, widths, width, paint) for row in (head, *body)]


def _widths(columns: Sequence[Column], body: Sequence[Sequence[Cell]], width: int) -> list[int]:
    """The natural widths, the widest flexible ones narrowed until all of it fits."""
    widest = PADDED if width == UNLIMITED else width
    most = 4 * widest  # what is wider than that need not be measured
    widths = [
        max(min(cells(row[i].text[:most]), widest) for row in body) for i in range(len(columns))
    ]
    excess = sum(widths) + GAP * (len(columns) - 1) - width
    flexible = [i for i, column in enumerate(columns) if column.gives]
    while excess > 0:
        at = max(flexible, key=lambda i: widths[i], default=None)
        if at is None or widths[at] <= LEAST:
            break
        others = [widths[i] for i in flexible if i != at and widths[i] < widths[at]]
        step = min(excess, widths[at] - max([LEAST, *others]))
        widths[at] -= max(1, step)
        excess -= max(1, step)
    return widths


def _line(
    columns: Sequence[Column],
    row: Sequence[Cell],
    widths: Sequence[int],
    width: int,
    paint: Paint,
) -> str:
    pieces: list[str] = []
    taken = 0
    for i, (column, cell) in enumerate(zip(columns, row, strict=True)):
        room = min(widths[i], width - taken)
        if room <= 0:
            break
        shorten = shortened_within if column.gives == "middle" else shortened
        shown = cell.text if width == UNLIMITED else shorten(cell.text, room)
        text = padded(shown, room, right=column.right)
        bare = text.rstrip() if i == len(columns) - 1 else text
        pieces.append(paint(cell.style, bare))
        taken += room + GAP
    return (" " * GAP).join(pieces).rstrip()
