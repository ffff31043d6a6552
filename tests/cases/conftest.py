"""What the cases share: a second connection, a trap for the database's thread, child processes."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from without_durability_sqlite import Database, SqliteCheckpointer, SqliteDurable, SqliteScheduler

MIN = timedelta(minutes=1)

PRELUDE = """
import asyncio, os, sqlite3, sys, threading, time
from datetime import UTC, datetime, timedelta
from without_durability import *
from without_durability_sqlite import *
path, *arguments = sys.argv[1:]
MIN = timedelta(minutes=1)

async def opened(**options):
    global db, cp, s, d
    db = connect(path, **options)
    await migrate(db)
    cp = SqliteCheckpointer(db)
    s = SqliteScheduler(db)
    d = SqliteDurable(cp, s)
"""

Child = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def other(path: Path) -> Iterator[sqlite3.Connection]:
    """A second connection to the file, in autocommit mode, as another process would have it."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    yield connection
    connection.close()


@pytest.fixture
def checkpointer(database: Database) -> SqliteCheckpointer:
    return SqliteCheckpointer(database)


@pytest.fixture
def scheduler(database: Database) -> SqliteScheduler:
    return SqliteScheduler(database)


@pytest.fixture
def durable(checkpointer: SqliteCheckpointer, scheduler: SqliteScheduler) -> SqliteDurable:
    return SqliteDurable(checkpointer, scheduler)


@pytest.fixture
def child(path: Path) -> Child:
    """Run a program over the file in a process of its own, killed after `seconds`."""

    def run(program: str, *arguments: str, seconds: float = 20) -> subprocess.CompletedProcess[str]:
        code = PRELUDE + textwrap.dedent(program)
        command = [sys.executable, "-X", "faulthandler", "-c", code, str(path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds)

    return run


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    """Start a program over the file in a process of its own, killed when the test is over."""
    started: list[subprocess.Popen[str]] = []

    def begin(program: str, *arguments: str) -> subprocess.Popen[str]:
        code = PRELUDE + textwrap.dedent(program)
        command = [sys.executable, "-X", "faulthandler", "-c", code, str(path), *arguments]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


class Trap:
    """Stops the database's thread where it is about to run a statement, until opened."""

    def __init__(self, connection: sqlite3.Connection, statement: str) -> None:
        self.statement = statement
        self.reached = threading.Event()
        self.opened = threading.Event()
        connection.set_trace_callback(self._stop)

    def _stop(self, sql: str) -> None:
        if sql.startswith(self.statement) and not self.reached.is_set():
            self.reached.set()
            self.opened.wait(10)


@pytest.fixture
def trap(database: Database) -> Iterator[Callable[[str], Trap]]:
    traps: list[Trap] = []

    def set_at(statement: str) -> Trap:
        traps.append(Trap(database.connection, statement))
        return traps[-1]

    yield set_at
    for one in traps:
        one.opened.set()
