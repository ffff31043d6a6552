"""The command line as a person meets it: in this process, in a pipe, and on a real terminal."""

from __future__ import annotations

import io
import os
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from without_durability_sqlite.cli.commands import run
from without_durability_sqlite.cli.screen import Screen

ROOT = Path(__file__).parent.parent.parent
WITHIN = 30.0
"""Seconds after which whatever has not come will not come."""

READING = [["status"], ["list"], ["show", "order-1"], ["why", "order-1"], ["check"]]


@dataclass
class Said:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Stream(io.StringIO):
    """A stream that may be a terminal, as far as it can tell."""

    def __init__(self, text: str = "", *, terminal: bool = False) -> None:
        super().__init__(text)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def said(*argv: str | Path, clock: Callable[[], float] = time.time, **options: Any) -> Said:
    """Run a command in this process, by any clock and on any screen."""
    terminal = options.get("terminal", False)
    out, err = Stream(), Stream(terminal=terminal)
    options.setdefault("typed", Stream(terminal=terminal))
    screen = Screen(out=out, err=err, clock=clock, **options)
    code = run([str(one) for one in argv], screen)
    return Said(code, out.getvalue(), err.getvalue())


def environment(**more: str) -> dict[str, str]:
    left_out = ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR", "PYTHON_COLORS", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    source = {"PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "error", "TERM": "xterm"}
    return kept | source | more


def command(*argv: str | Path) -> list[str]:
    return [sys.executable, "-m", "without_durability_sqlite", *map(str, argv)]


def piped(*argv: str | Path, typed: str = "", **env: str) -> Said:
    """Run a command in a process of its own whose streams are pipes."""
    done = subprocess.run(
        command(*argv),
        input=typed,
        capture_output=True,
        encoding="utf-8",
        env=environment(**env),
        timeout=WITHIN,
    )
    return Said(done.returncode, done.stdout, done.stderr)


@dataclass
class Terminal:
    """A command on a terminal of its own: what it wrote there so far."""

    process: subprocess.Popen[bytes]
    descriptor: int
    seen: bytes = b""
    ended: bool = False
    _until: float = field(default_factory=lambda: time.monotonic() + WITHIN)

    @property
    def text(self) -> str:
        return self.seen.decode()

    def await_text(self, text: str) -> None:
        """Until that stands there."""
        while text.encode() not in self.seen:
            assert self._read(), f"it ended without {text!r}:\n{self.text}"

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def interrupt(self, how: signal.Signals = signal.SIGINT) -> None:
        self.process.send_signal(how)

    def end(self) -> int:
        """Until it has ended; its exit code."""
        while self._read():
            pass
        code = self.process.wait(WITHIN)
        os.close(self.descriptor)
        return code

    def _read(self) -> bool:
        remaining = self._until - time.monotonic()
        assert remaining > 0, f"it hangs:\n{self.text}"
        if not select.select([self.descriptor], [], [], remaining)[0]:
            return True
        try:
            piece = os.read(self.descriptor, 65536)
        except OSError:  # the other end is closed
            piece = b""
        self.seen += piece
        return bool(piece)


def on_terminal(*argv: str | Path, columns: int = 100, lines: int = 40, **env: str) -> Terminal:
    """Start a command on a terminal of that size."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process = subprocess.Popen(
        command(*argv),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(**env),
        start_new_session=True,
    )
    os.close(theirs)
    return Terminal(process, ours)


def titled(argv: object) -> str:
    return " ".join(argv[:2]) if isinstance(argv, list) else str(argv)


def refused(done: Said) -> str:
    """The one line that a refusal is."""
    assert (done.code, done.out) == (1, ""), done
    (line,) = done.err.splitlines()
    assert line.startswith("without-durability: ")
    return line


def changed(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)
