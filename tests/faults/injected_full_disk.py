"""A file on a disk of a few megabytes, in a process that alone sees it; `main` runs there."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from injected_calls import LONG, WRITES, everything
from injected_system_calls import Subject, outcome

from gated import HANG, listening, working

ALONE = (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"])
MOUNT = 'mount -t tmpfs -o size=3m tmpfs "$0"'


def alone_with_a_small_disk(folder: Path) -> list[str]:
    """What to put before a command so that it finds a disk of 3 MB there; or a skip."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        pytest.skip("only Linux gives a process a disk of its own, with unshare")
    for alone in ALONE:
        tried = subprocess.run(
            [*alone, "sh", "-c", MOUNT, folder], capture_output=True, text=True, check=False
        )
        if tried.returncode == 0:
            return [*alone, "sh", "-c", MOUNT + ' && exec "$@"', str(folder)]
    pytest.skip(f"no disk of one's own here: {tried.stderr.strip()}")


class Disk:
    """The room there is in a folder, taken and given back."""

    def __init__(self, folder: Path) -> None:
        self.ballast = folder / "ballast"

    def fill(self) -> None:
        """Take all of it."""
        with self.ballast.open("wb", buffering=0) as ballast:
            try:
                while ballast.write(bytes(4096)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 (no test: a child's part of one)

    def clear(self) -> None:
        self.ballast.unlink()


async def every_write(subject: Subject) -> int:
    for name, call in WRITES.items():
        async with subject.scene() as (scene, path):
            disk = Disk(path.parent)
            acknowledged = await scene.store.supply("v", "acknowledged", LONG)
            before = everything(path)
            disk.fill()
            while (error := await outcome(call, scene)) is None:  # the log may have some room left
                await scene.store.supply("v", "more", "")
            assert isinstance(error, sqlite3.OperationalError), (name, error)
            assert error.sqlite_errorname == "SQLITE_FULL", (name, error.sqlite_errorname)
            assert everything(path) == before, f"half of {name} is there"
            assert await scene.store.load("v") == {"acknowledged": acknowledged}
            disk.clear()
            await call(scene)
            assert everything(path) != before, name
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()
    return len(WRITES)


async def worker(subject: Subject) -> int:
    """Full before a pass begins, and once more while it is under way."""
    async with subject.scene() as (scene, path):
        disk = Disk(path.parent)
        attempts = 0
        done = asyncio.Event()

        async def body(run: Any) -> None:
            nonlocal attempts
            attempts += 1
            if run.workflow == "ready":
                if attempts == 1:
                    disk.fill()
                await run.step("k", lambda: _long(), str)
                done.set()

        async with listening() as heard:
            disk.fill()
            async with working(scene.durable, body) as task:
                await heard.until("refused", "full")
                disk.clear()
                await heard.until("'ready'", "full")
                assert not task.done()
                disk.clear()
                await asyncio.wait_for(done.wait(), HANG)
        assert await scene.store.load("ready") == {"k": LONG}
        return attempts


async def _long() -> str:
    return LONG


def main() -> None:
    path, folder, token, receipt = sys.argv[1:]
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    mounted = shutil.copy(path, Path(folder, "prepared.db"))
    subject = Subject(mounted, token, receipt, None)
    print("every_write", asyncio.run(every_write(subject)), flush=True)
    print("worker", asyncio.run(worker(subject)), flush=True)
