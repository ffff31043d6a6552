"""The file behind a connection: which one it is, and whether it is still where it was opened."""

from __future__ import annotations

import os
import sqlite3
import time
from typing import TypeAlias

from .errors import operational_error
from .rows import rows

COMPANIONS = ("-wal", "-shm")
"""What SQLite adds to a file's name for its write-ahead log and the index of that."""

Identity: TypeAlias = tuple[int, int]
"""What tells one file from another at the same path: device and inode."""

FolderState: TypeAlias = tuple[int, int, int]
"""What differs once an entry of a folder was made, removed or renamed: its identity and time."""

SETTLED = 1_000_000_000
"""Nanoseconds after which a folder's time tells two changes apart."""


def identity(path: str) -> Identity | None:
    """The identity of what is at `path`; `None` where nothing is, or for no path at all."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def _folder(path: str) -> FolderState | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def main_file(connection: sqlite3.Connection) -> str:
    """The path of the connection's main database; empty for one in memory."""
    query = "SELECT CAST(file AS BLOB) FROM pragma_database_list WHERE name = 'main'"
    ((file,),) = rows(connection, query)
    return os.fsdecode(file or b"")


class OpenFile:
    """The file a connection opened, as its path was then; `path` is empty for one in memory.

    `writes_ahead` is whether its journal is a write-ahead log that others may read beside.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.path = main_file(connection)
        self.identity = identity(self.path)
        self.writes_ahead = False
        self._folder = os.path.dirname(self.path)
        self._unchanged: FolderState | None = None
        self._companions: tuple[Identity | None, ...] = (None,) * len(COMPANIONS)

    def check(self) -> None:
        """Raise when the path no longer leads to the file that is open: writes would be lost.

        So would they when its write-ahead log or the index of that is gone, which are there from
        the first use on. While the folder is what it was, so is what it leads to.
        """
        if not self.path:  # in memory: there is nothing to lose sight of
            return
        folder = _folder(self._folder)
        if folder is None or folder != self._unchanged:
            self._check_all()
            # A folder may change twice within one tick of its clock: only one that has been left
            # alone for a while tells something.
            settled = folder is not None and time.time_ns() - folder[2] > SETTLED
            self._unchanged = folder if settled else None

    def _check_all(self) -> None:
        companions = tuple(identity(self.path + companion) for companion in COMPANIONS)
        lost = any(
            known is not None and found != known
            for known, found in zip(self._companions, companions, strict=True)
        )
        if lost or identity(self.path) != self.identity:
            raise operational_error(
                f"{self.path} or its write-ahead log has been deleted or replaced since it was "
                "opened: nothing written now would be found again",
                "SQLITE_READONLY_DBMOVED",
            )
        self._companions = companions
