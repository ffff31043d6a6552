"""Scripts run in a process of their own, always under a hard time limit."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PREAMBLE = """
import asyncio, os, sqlite3, sys, threading, time
from datetime import timedelta
from without_durability import Milliseconds
from without_durability_sqlite import *
from without_durability_sqlite.store import transacted

path = sys.argv[1] if len(sys.argv) > 1 else ""
MINUTE = timedelta(minutes=1)
"""


def started(
    script: str, *arguments: str | Path, errors: IO[str] | int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """A child with pipes for its streams; the caller bounds its time."""
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


@dataclass
class Ended:
    """How a child ended: its output, and how long it took from its last line to its exit."""

    code: int
    out: str
    err: str
    took: float


def ended(script: str, *arguments: str | Path, within: float = 20.0) -> Ended:
    """Run a script to its end; one that hangs is killed after `within`, and its code tells."""
    out: list[str] = []
    with tempfile.TemporaryFile("w+") as errors:
        process = started(script, *arguments, errors=errors)
        limit = threading.Timer(within, process.kill)
        limit.start()
        with process:
            last_line_at = time.monotonic()
            for line in process.stdout or ():
                out.append(line)
                last_line_at = time.monotonic()
        limit.cancel()
        took = time.monotonic() - last_line_at
        errors.seek(0)
        return Ended(process.returncode, "".join(out), errors.read(), took)
