"""Text for a terminal: nothing in it drives the terminal, and its width is counted in cells."""

from __future__ import annotations

import unicodedata

ELLIPSIS = "…"


def escaped(text: str) -> str:
    """The text in one line, with whatever is not printable written as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def named(text: str) -> str:
    """An id or a key: as it is where that is plain to read, else in quotes with escapes."""
    if text and text.isprintable() and text == text.strip():
        return text
    return repr(text)


def lines_of(text: str) -> list[str]:
    """A text of several lines, such as a traceback, each of them escaped."""
    return [escaped(line.expandtabs(4).rstrip("\r")) for line in text.split("\n")]


def cells(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_cell, text))


def shortened(text: str, width: int) -> str:
    """The text's beginning, in at most `width` cells."""
    if fits(text, width):
        return text
    return _prefix(text, width - 1) + ELLIPSIS if width > 0 else ""


def shortened_within(text: str, width: int) -> str:
    """Its beginning and its end: ids that belong together often differ only there."""
    if fits(text, width):
        return text
    if width < 3:
        return shortened(text, width)
    end = (width - 1) // 2
    tail = _prefix(text[::-1][: 8 * end], end)[::-1]
    return _prefix(text, width - 1 - end) + ELLIPSIS + tail


def fits(text: str, width: int) -> bool:
    """Whether the text takes no more than `width` cells; marks without a width are not free."""
    return len(text) <= 4 * width and cells(text) <= width


def padded(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly `width` cells, if it is not wider."""
    blank = " " * max(0, width - cells(text))
    return blank + text if right else text + blank


def _prefix(text: str, width: int) -> str:
    taken = 0
    for index, c in enumerate(text):
        taken += _cell(c)
        if taken > width or index >= 4 * width:
            return text[:index]
    return text


def _cell(c: str) -> int:
    if c.isascii():
        return 1
    if unicodedata.category(c) in ("Mn", "Me") or "\u1160" <= c <= "\u11ff":
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


def _escape(c: str) -> str:
    return c.encode("unicode_escape").decode("ascii")
