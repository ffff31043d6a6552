"""What is stored, as it is read: decoded where it decodes, in a line, as long as there is room."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from without_durability.codec import JSON

from .text import escaped, shortened

SHORT = 60
"""Cells of a value unless it is asked for in full."""


class Stored(NamedTuple):
    """A stored text: its value where it is JSON, and the text itself where it is not."""

    raw: str
    value: Any
    decodes: bool

    def line(self) -> str:
        """The value in one line."""
        if not self.decodes:
            return escaped(self.raw)
        return one_line(self.value)

    def facts(self) -> dict[str, Any]:
        """The value for `--json`; what is no JSON goes under another name."""
        return {"value": self.value} if self.decodes else {"raw": self.raw}


def stored(raw: bytes | None) -> Stored:
    """What a column holds."""
    text = (raw or b"").decode(errors="backslashreplace")
    try:
        value = JSON.decode(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return Stored(text, None, decodes=False)
    return Stored(text, value, decodes=True)


def one_line(value: Any) -> str:
    """A decoded value as JSON in one line, its characters as they are where they are harmless."""
    return escaped(json.dumps(value, ensure_ascii=False))


def brief(line: str, *, full: bool, width: int = SHORT) -> str:
    """The line, shortened unless it is wanted in full."""
    return line if full else shortened(line, width)
