"""The file that the commands are run over, and the folder they are run in."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import orders as sample
import pytest

if sys.platform == "win32":
    collect_ignore_glob = ["test_cli_*"]
    SIGNALS = [signal.SIGINT]
else:
    SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(scope="session")
def made_orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("orders") / "orders.db"
    asyncio.run(sample.make(path))
    return path


@pytest.fixture
def orders(made_orders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`orders.db` in a folder of its own, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "orders.db"
    shutil.copyfile(made_orders, path)
    return path


@pytest.fixture
def writer(orders: Path) -> Iterator[sqlite3.Connection]:
    """A program that has the file open and holds its write lock."""
    with closing(sqlite3.connect(orders, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE workflow_run SET attempts = 99")
        yield writer


@pytest.fixture(autouse=True)
def heard_signals() -> Iterator[None]:
    """Commands that hear the signals, also where the tests run under `nohup` or as a job."""
    ignored = [one for one in SIGNALS if signal.getsignal(one) is signal.SIG_IGN]
    for one in ignored:
        signal.signal(one, signal.SIG_DFL)
    yield
    for one in ignored:
        signal.signal(one, signal.SIG_IGN)
