"""Bells beside a file, and those who listen to them."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gated import turns
from idling import idle
from thread_gates import HANG
from without_durability import Delivery
from without_durability_sqlite import (
    Database,
    SqliteScheduler,
    connect,
)
from without_durability_sqlite.bell import Bell

needs_bells = pytest.mark.skipif(
    not (hasattr(socket, "AF_UNIX") and hasattr(os, "geteuid")), reason="a system without bells"
)
as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away"
)

NOW, HOUR, QUICK = timedelta(0), timedelta(hours=1), timedelta(milliseconds=5)
LONG = timedelta(seconds=2 * HANG)
SOMEBODY_ELSE = 65534
NOTHING = Delivery("nobody", "")


def folder_of(path: Path) -> Path:
    return Path(f"{path}-bell")


def bells(path: Path) -> set[str]:
    """The sockets in the folder, if there is one."""
    return set(os.listdir(folder_of(path))) if folder_of(path).exists() else set()


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "without_durability_bell"]


@asynccontextmanager
async def filed(path: Path, migrated: Path) -> AsyncIterator[Database]:
    if not path.exists():
        path.write_bytes(migrated.read_bytes())
    async with connect(path) as database:
        yield database


@asynccontextmanager
async def waiting(database: Database, poll: timedelta = HOUR) -> AsyncIterator[asyncio.Future[Any]]:
    """Somebody who has looked, found nothing, and is told what they took once they are woken."""
    taking = SqliteScheduler(database, poll=poll).next_ready(LONG)
    async with idle(database, taking) as task:
        await turns()
        assert not task.done()
        yield task


class Rung:
    """Counts the rings of a bell."""

    def __init__(self) -> None:
        self.times = 0
        self._news = threading.Event()

    def __call__(self) -> None:
        self.times += 1
        self._news.set()

    def came(self) -> None:
        """Wait for one."""
        assert self._news.wait(HANG), "nobody rang"
        self._news.clear()


def bells_that_listen(path: Path) -> Iterator[Callable[..., tuple[Bell, Rung]]]:
    """Makes bells that listen; they are closed in the end."""
    made: list[Bell] = []

    def make(beside: Path = path) -> tuple[Bell, Rung]:
        made.append(Bell(str(beside)))
        rung = Rung()
        assert made[-1].listen(rung)
        return made[-1], rung

    yield make
    for one in made:
        one.close()


def dead(folder: Path, name: str) -> Path:
    """A bell whose process has gone without a word."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as gone:
        gone.bind(str(folder / name))
    return folder / name
