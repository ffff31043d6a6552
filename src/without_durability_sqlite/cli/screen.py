"""Where a command writes, and what is known of it: a terminal of some width, a pipe, colours."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TextIO

from .moments import ago, written
from .refusals import Unwritten
from .tables import UNLIMITED, Cell, Column, table
from .text import named, shortened, shortened_within

NAME = 200
"""Cells of an id, a key or a value in a sentence, unless it is wanted in full."""

_STYLES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}

STYLE_OF = {
    "running": "cyan",
    "ready": "cyan",
    "sleeping": "yellow",
    "blocked": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "dim",
}


class Closed(io.StringIO):
    """Stands for a stream that the process was started without."""

    def write(self, text: str, /) -> int:
        raise OSError(errno.EBADF, "it is closed")


@dataclass
class Screen:
    """The streams, the clock that ages are told by, and how to write for whoever reads."""

    out: TextIO
    err: TextIO
    typed: TextIO | None
    terminal: bool = False
    colour: bool = False
    width: int = 80
    height: int = 24
    clock: Callable[[], float] = time.time
    wait: float = 5.0
    json: bool = False
    utc: bool = False
    full: bool = False
    yes: bool = False
    follows: bool = False
    done: str = ""
    _drawn: bool = field(default=False, init=False)

    @classmethod
    def of_process(cls) -> Screen:
        """The process's own streams."""
        out, err = sys.stdout or Closed(), sys.stderr or Closed()
        terminal = out.isatty()
        dumb = os.environ.get("TERM") == "dumb"
        for stream in (out, err):
            if hasattr(stream, "reconfigure"):  # what the encoding lacks is no reason to fail
                stream.reconfigure(errors="backslashreplace")
        columns, rows = shutil.get_terminal_size()
        return cls(
            out=out,
            err=err,
            typed=sys.stdin,
            terminal=terminal,
            colour=terminal and not dumb and not os.environ.get("NO_COLOR"),
            width=columns,
            height=rows,
            follows=terminal,
        )

    def resized(self) -> None:
        """Look how large the terminal is by now."""
        if self.follows:
            self.width, self.height = shutil.get_terminal_size()

    def now(self) -> datetime:
        """The moment by the clock."""
        return datetime.fromtimestamp(self.clock(), UTC)

    def paint(self, style: str, text: str) -> str:
        """The text in a colour, where there are any."""
        if not self.colour or not text or style not in _STYLES:
            return text
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"

    def iso(self, moment: datetime) -> str:
        """A moment for a program to read, in the zone that was asked for."""
        if not self.utc:
            with suppress(OverflowError, OSError, ValueError):  # at the ends of the calendar
                return moment.astimezone().isoformat()
        return moment.isoformat()

    def moment(self, moment: datetime) -> str:
        """A moment as the user wants to read it."""
        return written(moment, self.utc)

    def when(self, moment: datetime, now: datetime) -> str:
        """A moment and how long ago it was."""
        return f"{self.moment(moment)} ({ago(moment, now)})"

    def write(self, text: str) -> None:
        """Write to standard output; `Unwritten` where it takes nothing, as on a full disk."""
        with _writing():
            self.out.write(text)

    def flush(self) -> None:
        """Hand on what was written; `Unwritten` as well."""
        with _writing():
            self.out.flush()

    def lines(self, lines: Iterable[str]) -> None:
        """Write what the command found."""
        for line in lines:
            self.write(line + "\n")

    def document(self, value: Any) -> None:
        """One JSON document in one line."""
        self.write(as_json(value) + "\n")

    def answer(self, sentence: str, value: Any) -> None:
        """What a command did: in a sentence, or as a document."""
        if self.json:
            self.document(value)
        else:
            self.lines([sentence])

    def note(self, line: str) -> None:
        """Something beside the result."""
        self._beside(line + "\n")

    def named(self, text: str) -> str:
        """An id or a key in a sentence; a very long one shortened, unless it is wanted in full."""
        return named(text) if self.full else shortened_within(named(text), NAME)

    def value(self, line: str) -> str:
        """A value in a sentence, likewise."""
        return line if self.full else shortened(line, NAME)

    def fitted(self, line: str) -> str:
        """A line that does not wrap on this terminal, unless it is wanted in full."""
        return line if self.full or not self.terminal else shortened(line, self.width)

    def table(self, columns: list[Column], body: list[list[Cell]]) -> list[str]:
        """A table that fits this terminal; in full, or where there is none, as wide as it is."""
        whole = self.full or not self.terminal
        return table(columns, body, UNLIMITED if whole else self.width, self.paint)

    def progress(self, line: str) -> None:
        """How far it is, over what stood there before; only where somebody watches."""
        if self.err.isatty():
            self._beside(f"\r{line[: self.width - 1]}\x1b[K")
            self._drawn = True

    def progressed(self) -> None:
        """Take the progress line away."""
        if self._drawn:
            self._beside("\r\x1b[K")
            self._drawn = False

    def _beside(self, text: str) -> None:
        """To standard error; where that takes nothing there is nobody to be told."""
        with suppress(OSError):
            self.err.write(text)
            self.err.flush()

    def asks(self) -> bool:
        """Whether somebody is there to be asked."""
        return self.typed is not None and self.typed.isatty() and self.err.isatty()

    def ask(self, question: str) -> bool:
        """Whether the answer is yes; anything but a yes is a no."""
        self._beside(f"{question} [y/N] ")
        assert self.typed is not None
        try:
            return self.typed.readline().strip().lower() in ("y", "yes")
        except OSError:  # whoever was asked is gone
            return False


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unwritten(f"cannot write to standard output: {error.strerror or error}") from error


def as_json(value: Any) -> str:
    """ASCII, so that no encoding stands in its way, and never `NaN`."""
    return json.dumps(value, allow_nan=False)
