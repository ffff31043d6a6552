"""What reaches the disk, and when: a shim between a process and the system's writes and syncs.

It is compiled for the test and preloaded into a process of its own; `main` is what runs there.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from injected_calls import WRITES, everything
from injected_system_calls import Subject, after_a_crash, outcome

SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>
int events = 0, descriptors[1024], syncs_to_failure = 0;
char kinds[1024];
static int happened(char kind, int descriptor) {
    if (events < 1024) { kinds[events] = kind; descriptors[events] = descriptor; events++; }
    return kind == 's' && syncs_to_failure > 0 && --syncs_to_failure == 0;
}
static int synced(const char *name, int descriptor) {
    if (happened('s', descriptor)) { errno = EIO; return -1; }
    return ((int (*)(int)) dlsym(RTLD_NEXT, name))(descriptor);
}
int fsync(int descriptor) { return synced("fsync", descriptor); }
int fdatasync(int descriptor) { return synced("fdatasync", descriptor); }
ssize_t pwrite64(int descriptor, const void *bytes, size_t count, off64_t offset) {
    happened('w', descriptor);
    return ((ssize_t (*)(int, const void *, size_t, off64_t)) dlsym(RTLD_NEXT, "pwrite64"))(
        descriptor, bytes, count, offset);
}
"""

DURABLE = (
    *("record", "transact", "supply", "append", "discard", "make_ready", "schedule"),
    *("arrive", "deliver", "cancel", "delete"),
    *("retry", "cancel_of_a_workflow", "rewind", "fork"),
)
"""The calls whose writes power loss must not take."""

RELAXED = (
    *("claim", "claim_of_a_released_one", "extend", "renew", "release", "next_ready"),
    *("extend_of_a_delivery", "wake_at", "done", "start_passes", "start_pass", "end_pass"),
    *("end_pass_of_a_sleeper", "end_pass_of_a_failure", "sweep"),
)
"""Those whose writes it may: they leave their sync to whoever is next."""


def compiled(folder: Path) -> Path:
    """The shim as a library, or a skip with the reason."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("a preloaded shim needs Linux and a C compiler")
    library = folder / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
    built = subprocess.run(command, input=SHIM, text=True, capture_output=True)
    if built.returncode != 0:
        pytest.skip(f"the shim does not compile here: {built.stderr}")
    return library


class Shim:
    """The shim that this process was started under."""

    def __init__(self) -> None:
        process = ctypes.CDLL(None)
        self.events = ctypes.c_int.in_dll(process, "events")
        self.syncs_to_failure = ctypes.c_int.in_dll(process, "syncs_to_failure")
        self.kinds = (ctypes.c_char * 1024).in_dll(process, "kinds")
        self.descriptors = (ctypes.c_int * 1024).in_dll(process, "descriptors")

    def arm(self, n: int = 0) -> None:
        """Forget what happened; fail at the n-th sync from now on."""
        self.events.value, self.syncs_to_failure.value = 0, n

    def log(self) -> list[tuple[str, str]]:
        """Each write and sync, `w` or `s`, with the end of its file's name."""
        kinds = self.kinds.raw[: self.events.value].decode()
        return [
            (kind, os.path.realpath(f"/proc/self/fd/{descriptor}")[-4:])
            for kind, descriptor in zip(kinds, self.descriptors, strict=False)
        ]


async def synced(subject: Subject, name: str) -> str:
    """What the call does to the log, until it is acknowledged."""
    async with subject.scene() as (scene, _):
        await scene.store.supply("w", "opens the log", 1)
        subject.calls.arm()
        await WRITES[name](scene)
        return "".join(kind for kind, file in subject.calls.log() if file == "-wal") or "nothing"


async def unsynced(subject: Subject, name: str) -> str:
    """How often the call syncs any file, and how often it writes."""
    async with subject.scene() as (scene, _):
        await scene.store.supply("w", "opens the log", 1)
        subject.calls.arm()
        await WRITES[name](scene)
        kinds = [kind for kind, _ in subject.calls.log()]
        return f"{kinds.count('s')} {kinds.count('w')}"


async def sync_fails(subject: Subject, name: str) -> int:
    """Fail at each sync of a call in turn; how often it failed."""
    async with subject.scene() as (scene, path):
        before = everything(path)
        await WRITES[name](scene)
        after = everything(path)
    for n in range(1, 100):
        async with subject.scene() as (scene, path):
            subject.calls.arm(n)
            error = await outcome(WRITES[name], scene)
            if subject.calls.syncs_to_failure.value > 0:
                subject.calls.arm()
                return n - 1
            failed = [file for kind, file in subject.calls.log() if kind == "s"][n - 1]
            if failed == "-wal":  # on a folder's sync SQLite does not insist
                assert isinstance(error, sqlite3.OperationalError), error
                assert error.sqlite_errorname == "SQLITE_IOERR_FSYNC", error.sqlite_errorname
                assert everything(path) == before, "half of it is there"
                assert after_a_crash(path) in (before, after), "half of it is there after a crash"
                await WRITES[name](scene)
            assert everything(path) == after
            assert after_a_crash(path) == after
    raise AssertionError("it never ends")


KINDS: dict[str, Callable[[Subject, str], Any]] = {
    "synced": synced,
    "unsynced": unsynced,
    "sync_fails": sync_fails,
}


def main(path: str, token: str, receipt: str, kind: str, *names: str) -> None:
    subject = Subject(path, token, receipt, Shim())
    for name in names:
        print(name, asyncio.run(KINDS[kind](subject, name)), flush=True)
