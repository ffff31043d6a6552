"""A system call of SQLite's fails: SQLite's `unix` VFS lets each of its calls be replaced.

This belongs into a process of its own, and `main` is what runs there.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from injected_calls import READS, WRITES, Call, Scene, everything

from without_durability import Clock, Delivery, Milliseconds, Pass
from without_durability_sqlite import connect, migrate

_POINTER = ctypes.c_void_p
_FIELDS = (
    *(("version", ctypes.c_int), ("file_size", ctypes.c_int), ("path_length", ctypes.c_int)),
    *(("next", _POINTER), ("name", ctypes.c_char_p), ("data", _POINTER)),
    *((f"method_{number}", _POINTER) for number in range(13)),
    *((name, _POINTER) for name in ("set_call", "get_call", "next_call")),
)
_SIGNATURES = {
    "open": (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    "pread64": (ctypes.c_ssize_t, ctypes.c_int, _POINTER, ctypes.c_size_t, ctypes.c_int64),
    "pwrite64": (ctypes.c_ssize_t, ctypes.c_int, _POINTER, ctypes.c_size_t, ctypes.c_int64),
    "ftruncate": (ctypes.c_int, ctypes.c_int, ctypes.c_int64),
}


class VFS(ctypes.Structure):
    _fields_ = _FIELDS


class SystemCalls:
    """SQLite's way to the system, with a gate in it: `AttributeError` where there is none."""

    def __init__(self) -> None:
        import _sqlite3

        library = ctypes.CDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = ctypes.POINTER(VFS)
        library.sqlite3_vfs_find.argtypes = [ctypes.c_char_p]
        self.vfs = library.sqlite3_vfs_find(None)
        if self.vfs.contents.name != b"unix" or self.vfs.contents.version < 3:
            raise AttributeError(f"the VFS is {self.vfs.contents.name!r}")
        get = ctypes.CFUNCTYPE(_POINTER, _POINTER, ctypes.c_char_p)(self.vfs.contents.get_call)
        signature = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.c_char_p, _POINTER)
        self.replace = signature(self.vfs.contents.set_call)
        self.ways: list[Any] = []
        self.count, self.n, self.names, self.how = 0, 0, (), ""
        for name, types in _SIGNATURES.items():
            address = get(self.vfs, name.encode())
            if not address:
                raise AttributeError(f"SQLite was built to do without {name}")
            kind = ctypes.CFUNCTYPE(*types, use_errno=True)
            way = kind(self.gated(name, kind(address)))
            self.ways.append(way)
            self.replace(self.vfs, name.encode(), ctypes.cast(way, _POINTER))

    def restore(self) -> None:
        self.replace(self.vfs, None, None)

    def arm(self, how: str, n: int, *names: str) -> None:
        """Fail at the n-th of the named calls from now on; how: an errno's name, half or short."""
        self.count, self.n, self.names, self.how = 0, n, names, how

    def disarm(self) -> bool:
        """Whether it has failed meanwhile."""
        reached = 0 < self.n <= self.count
        self.n = 0
        return reached

    def gated(self, name: str, call: Callable[..., int]) -> Callable[..., int]:
        def gate(*arguments: Any) -> int:
            if self.n and name in self.names:
                self.count += 1
                later = self.count - self.n
                if later == 0 and self.how in ("half", "short"):
                    descriptor, buffer, length, offset = arguments
                    return call(descriptor, buffer, length // 2, offset)
                if later == 0 or (later == 1 and self.how == "half"):
                    code = "ENOSPC" if self.how == "half" else self.how
                    ctypes.set_errno(getattr(errno, code))
                    return -1
            return call(*arguments)

        return gate


FAST = "synchronous = OFF"
"""Writes and reads fail here; nothing is kept from the disk."""


class Subject:
    """A prepared file, copied for each call, and the gate between SQLite and the system."""

    def __init__(self, path: str, token: str, receipt: str, calls: Any) -> None:
        self.path, self.calls = Path(path), calls
        self.held = Pass("w", int(token)), Delivery("w", receipt)
        self.copies = 0

    @asynccontextmanager
    async def scene(self, *pragmas: str) -> AsyncIterator[tuple[Scene, Path]]:
        self.copies += 1
        path = self.path.with_name(f"{self.copies}.db")
        shutil.copyfile(self.path, path)
        clock = Clock()
        clock.advance(timedelta(seconds=1))
        async with connect(path, timeout=Milliseconds(0), clock=clock.seconds) as database:
            for pragma in pragmas:
                database.connection.execute(f"PRAGMA {pragma}").close()
            yield Scene(database, clock, *self.held), path


def after_a_crash(path: Path) -> Any:
    """What another process would find if this one ended now."""
    side = path.with_name("crashed")
    shutil.rmtree(side, ignore_errors=True)
    side.mkdir()
    # Copied by another process: closing the file here would drop its locks.
    subprocess.run(["cp", path, f"{path}-wal", side], check=True)
    return everything(side / path.name)


async def write_fails(subject: Subject, name: str, how: str) -> int:
    """Fail at each write of a call in turn; how often it failed."""
    async with subject.scene(FAST) as (scene, path):
        before = everything(path)
        await WRITES[name](scene)
        after = everything(path)
    for n in range(1, 1000):
        async with subject.scene(FAST) as (scene, path):
            subject.calls.arm(how, n, "pwrite64")
            error = await outcome(WRITES[name], scene)
            if not subject.calls.disarm():
                assert error is None, error
                return n - 1
            if how == "short":  # no failure at all: SQLite writes the rest
                assert error is None, error
            else:
                assert isinstance(error, sqlite3.OperationalError), error
                code = "SQLITE_IOERR" if how == "EIO" else "SQLITE_FULL"
                assert error.sqlite_errorname.startswith(code), error.sqlite_errorname
                assert everything(path) == before, "half of it is there"
                assert after_a_crash(path) == before, "half of it is there after a crash"
                await WRITES[name](scene)
            assert everything(path) == after, "it did harm that came out later"
            assert after_a_crash(path) == after, "what was acknowledged is not there"
    raise AssertionError("it never ends")


async def checkpoint_fails(subject: Subject, name: str, how: str) -> int:
    """Fail at each write of a call that copies the log back into the file as it ends."""
    async with subject.scene(FAST) as (scene, path):
        before = everything(path)
        await WRITES[name](scene)
        after = everything(path)
    for n in range(1, 1000):
        async with subject.scene(FAST, "wal_autocheckpoint = 1") as (scene, path):
            subject.calls.arm(how, n, "pwrite64", "ftruncate")
            error = await outcome(WRITES[name], scene)
            if not subject.calls.disarm():
                return n - 1
            assert after_a_crash(path) == (after if error is None else before), (n, error)
            await WRITES[name](scene)
            await scene.store.supply("w", "usable", 1)
    raise AssertionError("it never ends")


async def read_fails(subject: Subject, name: str, how: str) -> int:
    async with subject.scene(FAST) as (scene, _):
        answer = await READS[name](scene)
    for n in range(1, 1000):
        async with subject.scene(FAST) as (scene, _):
            subject.calls.arm(how, n, "pread64")
            error = await outcome(READS[name], scene)
            if not subject.calls.disarm():
                return n - 1
            if error is not None:  # what is read ahead of need may fail without harm
                assert isinstance(error, sqlite3.DatabaseError), error
                # A device's own error SQLite takes for a damaged file; any other may pass.
                damaged = ("SQLITE_CORRUPT", "SQLITE_IOERR_CORRUPTFS")
                codes = damaged if how == "EIO" else ("SQLITE_IOERR",)
                assert error.sqlite_errorname.startswith(codes), error.sqlite_errorname
            assert await READS[name](scene) == answer
            await scene.store.supply("w", "usable", 1)
    raise AssertionError("it never ends")


async def opening_fails(subject: Subject, names: str, how: str) -> int:
    """Fail at each call while a new file is opened and migrated."""
    for n in range(1, 1000):
        path = subject.path.with_name(f"{names} {how} {n}.db")
        subject.calls.arm(how, n, *names.split(","))
        error = None
        try:
            async with connect(path) as database:
                await migrate(database)
        except sqlite3.Error as raised:
            error = raised
        if not subject.calls.disarm():
            return n - 1
        assert error is None or str(path) in str(error) or path.exists(), error
        async with connect(path) as database:
            await migrate(database)
            scene = Scene(database, Clock())
            await scene.store.supply("w", "usable", 1)
    raise AssertionError("it never ends")


async def outcome(call: Call, scene: Scene) -> BaseException | None:
    try:
        await call(scene)
    except Exception as error:
        return error
    return None


KINDS: dict[str, Callable[[Subject, str, str], Any]] = {
    "write": write_fails,
    "checkpoint": checkpoint_fails,
    "read": read_fails,
    "opening": opening_fails,
}


def main(path: str, token: str, receipt: str, kind: str, how: str, *names: str) -> None:
    try:
        calls = SystemCalls()
    except (AttributeError, OSError) as error:
        print(f"skip: no way between SQLite and the system: {error}")
        return
    subject = Subject(path, token, receipt, calls)
    try:
        for name in names:
            print(name, asyncio.run(KINDS[kind](subject, name, how)), flush=True)
    finally:
        calls.restore()
        sys.stdout.flush()
