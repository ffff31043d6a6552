"""What the cases share: the stores over one file, child processes, a trap for the thread."""

from __future__ import annotations

import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from children import Ended, ended, started
from without_durability_sqlite import Database, SqliteCheckpointer, SqliteDurable, SqliteScheduler

Child = Callable[..., Ended]
Start = Callable[..., "subprocess.Popen[str]"]


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
    """Run a program over the file to its end in a process of its own."""

    def run(program: str, *arguments: str) -> Ended:
        return ended(program, path, *arguments)

    return run


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    """Start a program over the file in a process of its own, killed when the test is over."""
    running: list[subprocess.Popen[str]] = []

    def begin(program: str, *arguments: str) -> subprocess.Popen[str]:
        running.append(started(program, path, *arguments))
        return running[-1]

    yield begin
    for process in running:
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
