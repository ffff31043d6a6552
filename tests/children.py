"""Scripts run in a process of their own, always under a hard time limit."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PREAMBLE = """
import asyncio, gc, os, random, signal, sqlite3, sys, threading, time, warnings
from datetime import UTC, datetime, timedelta
from without_durability import *
from without_durability.values import Ended
from without_durability_sqlite import *
from without_durability_sqlite.store import transacted

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's is ignored
path, *arguments = sys.argv[1:] or [""]
MIN = timedelta(minutes=1)

async def opened(**options):
    global db, cp, s, d
    db = connect(path, **options)
    await migrate(db)
    cp = SqliteCheckpointer(db)
    s = SqliteScheduler(db)
    d = SqliteDurable(cp, s)
"""


def started(
    script: str, *arguments: str | Path, errors: IO[str] | int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """A child with pipes for its streams; the caller bounds its time."""
    code = PREAMBLE + textwrap.dedent(script)
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        encoding="utf-8",
        env=os.environ | {"PYTHONUTF8": "1"},
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
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
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


def answered_ok(children: list[subprocess.Popen[str]], line: object) -> bool:
    """Hand every child the same line at once; whether each of them answers with "ok"."""
    for child in children:
        assert child.stdin is not None
        child.stdin.write(f"{line}\n")
        child.stdin.flush()
    answers = [child.stdout.readline() for child in children if child.stdout is not None]
    assert answers == ["ok\n"] * len(children)
    return True
