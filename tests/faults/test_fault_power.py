"""Power lost: a disk that kept nothing but what SQLite had it sync still has every acknowledgement.

SQLite's own VFS is wrapped, in a process of its own, so that each write and sync is known.
"""

from __future__ import annotations

import _sqlite3
import asyncio
import ctypes
import os
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p, cast
from pathlib import Path
from typing import Any

import pytest
from test_fault_calls import Scene, rows_of

from children import ended
from stores import over_sqlite
from without_durability import Clock
from without_durability_sqlite import connect, migrate

DURABLE = [
    *("checkpointer.record", "checkpointer.transact", "checkpointer.supply"),
    *("checkpointer.append", "durable.arrive", "durable.deliver", "scheduler.make_ready"),
    *("scheduler.schedule", "scheduler.cancel", "checkpointer.discard", "durable.delete"),
]
"""The calls whose writes no loss of power may take."""

# The name as it stands: SQLite keeps the pointer, and a copy's would dangle.
OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
WRITE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
TRUNCATE = CFUNCTYPE(c_int, c_void_p, c_int64)
SYNC = CFUNCTYPE(c_int, c_void_p, c_int)
OF_A_FILE = 18  # of the methods of a file, the shared memory's and the mapped ones included
OF_A_VFS = 13  # of those that follow `xOpen`


class Vfs(Structure):
    """`sqlite3_vfs`, as far as it concerns us; the rest is copied as it is."""

    _fields_ = (
        ("version", c_int),
        ("size_of_file", c_int),
        ("longest_path", c_int),
        ("following", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("open", OPEN),
        ("others", c_void_p * OF_A_VFS),
    )


class Methods(Structure):
    """`sqlite3_io_methods` of a file."""

    _fields_ = (
        ("version", c_int),
        ("close", c_void_p),
        ("read", c_void_p),
        ("write", WRITE),
        ("truncate", TRUNCATE),
        ("sync", SYNC),
        ("others", c_void_p * (OF_A_FILE - 5)),
    )


class File(Structure):
    """`sqlite3_file`: what a VFS has opened."""

    _fields_ = (("methods", POINTER(Methods)),)


Change = Callable[[bytearray], None]


class Files:
    """What was written to each file since its last sync, and what each held at that."""

    def __init__(self) -> None:
        self.synced: defaultdict[str, bytearray] = defaultdict(bytearray)
        self.pending: defaultdict[str, list[Change]] = defaultdict(list)
        self.syncs = 0

    def wrote(self, name: str, offset: int, content: bytes) -> None:
        def written(held: bytearray) -> None:
            held.extend(bytes(max(0, offset - len(held))))
            held[offset : offset + len(content)] = content

        self.pending[name].append(written)

    def truncated(self, name: str, size: int) -> None:
        self.pending[name].append(lambda held: held.__delitem__(slice(size, None)))

    def flushed(self, name: str) -> int:
        """The code that the sync is to fail with; 0 for none."""
        self.syncs += 1
        for change in self.pending.pop(name, []):
            change(self.synced[name])
        return 0

    def left(self, folder: Path, every: int) -> Path:
        """The files after a loss of power; of what was not synced every n-th write survives."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name in {*self.synced, *self.pending}:
            held = bytearray(self.synced[name])
            for change in self.pending[name][::every] if every else []:
                change(held)
            if name.endswith((".db", "-wal")):
                (folder / name).write_bytes(held)
        return folder / "workflows.db"


REGISTERED: list[Disk] = []
"""SQLite calls them for as long as the process lives, whoever else has forgotten them."""


class Disk(Files):
    """The files that SQLite writes in this process, through a VFS of its own around SQLite's."""

    def __init__(self, sqlite: Any) -> None:
        super().__init__()
        self._kept: list[Any] = []  # callbacks that C refers to
        sqlite.sqlite3_vfs_find.restype = POINTER(Vfs)
        self._real = sqlite.sqlite3_vfs_find(None).contents
        self._vfs = Vfs.from_buffer_copy(self._real)
        self._vfs.name, self._vfs.open = b"watched", OPEN(self.opened)
        assert sqlite.sqlite3_vfs_register(ctypes.byref(self._vfs), 1) == 0
        REGISTERED.append(self)

    def opened(self, vfs: int, name: int | None, file: int, flags: int, out: int) -> int:
        code = self._real.open(vfs, name, file, flags, out)
        if code == 0 and name is not None:
            self._watch(Path(os.fsdecode(ctypes.string_at(name))).name, file)
        return code

    def _watch(self, name: str, file: int) -> None:
        opened = cast(file, POINTER(File)).contents
        real = Methods.from_buffer_copy(opened.methods.contents)
        ours = Methods.from_buffer_copy(real)

        def write(file: int, data: int, size: int, offset: int) -> int:
            content = ctypes.string_at(data, size)

            self.wrote(name, offset, content)
            return real.write(file, data, size, offset)

        def truncate(file: int, size: int) -> int:
            self.truncated(name, size)
            return real.truncate(file, size)

        def sync(file: int, flags: int) -> int:
            return self.flushed(name) or real.sync(file, flags)

        ours.write, ours.truncate, ours.sync = WRITE(write), TRUNCATE(truncate), SYNC(sync)
        self._kept += [real, ours]
        opened.methods = ctypes.pointer(ours)


async def lose_power_after_each_call(path: Path, disk: Disk) -> None:
    """Through every call, with the log at every stage of being checkpointed."""
    clock = Clock()
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        scene = await Scene.over(over_sqlite(database, clock))
        await database.run(lambda c: c.execute("PRAGMA wal_autocheckpoint = 5").close())
        for turn in range(6):
            for name in DURABLE:
                before, syncs = scene.contents(), disk.syncs
                holder = await scene.call("checkpointer.claim", workflow=f"{turn}")
                await scene.call(name, holder=holder, workflow=f"{turn}", key=f"{name} {turn}")
                assert scene.contents() != before
                assert disk.syncs > syncs
                acknowledged = rows_of(path)
                for every in (0, 1, 2, 3):
                    left = disk.left(path.parent / "left", every)
                    with closing(sqlite3.connect(left)) as found:
                        assert found.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                    assert rows_of(left) == acknowledged, (name, turn, every)
                if holder is not None:
                    await scene.call("checkpointer.release", holder=holder)


def the_sqlite() -> Any:
    """The library this process uses; ends it with the reason where it cannot be reached."""
    try:
        sqlite = ctypes.CDLL(_sqlite3.__file__)
        sqlite.sqlite3_vfs_find  # noqa: B018 (looked up where it is asked for)
    except AttributeError as error:  # the module is built in, or hides its SQLite
        print(f"skip: {error}")
        raise SystemExit(0) from None
    return sqlite


def main(path: str) -> None:
    asyncio.run(lose_power_after_each_call(Path(path), Disk(the_sqlite())))
    print("done")


CHILD = """
sys.path[:0] = [f"{arguments[0]}/faults", arguments[0]]
from test_fault_power import main
main(path)
"""


def test_fault_power_lost_after_an_acknowledgement_takes_nothing_of_it(path):
    child = ended(CHILD, path, Path(__file__).parents[1], within=40)
    if child.out.startswith("skip"):
        pytest.skip(child.out)
    assert (child.code, child.out) == (0, "done\n"), child.err
