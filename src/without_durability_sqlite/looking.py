"""Opening a file only to look at it: no write lock, nothing changed, nothing left beside it."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from .errors import naming, operational_error
from .files import identity
from .rows import rows

T = TypeVar("T")

Look: TypeAlias = Callable[[sqlite3.Connection], T]

WAIT = 5.0
"""Seconds to wait for a lock, which only a file without a write-ahead log asks of a reader."""

_SMALLEST_DATABASE = 512
_IN_USE = ("-wal", "-journal")


def looked(path: Path | str, look: Look[T], *, wait: float = WAIT) -> T:
    """What `look` returns over a connection that can only read, in one read transaction.

    Where no write-ahead log lies beside the file nobody has it open, and it is read as a file that
    does not change: SQLite would make a log and leave it, owned by whoever looked. Should somebody
    open it meanwhile, what was seen is dropped and `look` is called once more. `OSError`, or a
    `sqlite3.Error` that names the path.
    """
    name = checked(path)
    before = _state(name)
    if not any(before[1]):
        try:
            value = _seen(name, "mode=ro&immutable=1", look, wait)
        except Exception:
            if _state(name) == before:
                raise
        else:
            if _state(name) == before:
                return value
    return _seen(name, "mode=ro", look, wait)


class Watched:
    """A file that is looked at again and again, and asked cheaply whether that is worth it."""

    def __init__(self, path: Path | str, *, wait: float = WAIT) -> None:
        self._path = path
        self._wait = wait
        self._connection: sqlite3.Connection | None = None
        self._opened: Any = None
        self._mark: Any = None

    def changed(self) -> bool:
        """Whether the file is not what it was before the last look."""
        return bool(self._marked() != self._mark)

    def look(self, look: Look[T]) -> T:
        """As `looked`, over one connection for as long as others use the file."""
        name = checked(self._path)
        there = identity(name)
        if self._connection is not None and self._opened != there:
            self.close()
        if self._connection is None and any(_state(name)[1]):
            self._connection, self._opened = _opened(name, "mode=ro", self._wait), there
        self._mark = self._marked()
        if self._connection is None:
            return looked(name, look, wait=self._wait)
        return _transacted(name, self._connection, look)

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _marked(self) -> Any:
        name = os.path.realpath(self._path)
        if self._connection is None:
            return _state(name)
        try:
            return identity(name), rows(self._connection, "PRAGMA data_version")
        except sqlite3.Error:  # the next look says what is wrong
            return None


def checked(path: Path | str) -> str:
    """The name of a file that can be looked at, links followed, or an error that says why not.

    SQLite follows them too: what lies beside a file lies where it is, not where a link to it is.
    """
    try:
        name = os.path.realpath(path)
        found = os.stat(name)
    except (FileNotFoundError, ValueError):  # or a NUL in the name
        raise FileNotFoundError(f"there is no file {os.path.abspath(path)}") from None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(f"{name} is a folder")
    if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for
        raise OSError(f"{name} is no regular file")
    if not os.access(name, os.R_OK):
        raise PermissionError(f"{name} cannot be read (permission denied)")
    if 0 < found.st_size < _SMALLEST_DATABASE:  # SQLite would take one of a byte for a new one
        raise sqlite3.DatabaseError(f"cannot open {name}: file is not a database")
    return name


def _state(name: str) -> tuple[Any, tuple[bool, ...]]:
    """What differs once somebody has used the file, and whether somebody may be using it."""
    beside = tuple(os.path.exists(name + companion) for companion in _IN_USE)
    try:
        found = os.stat(name)
    except OSError:
        return None, beside
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns), beside


def _opened(name: str, how: str, wait: float) -> sqlite3.Connection:
    uri = f"{Path(name).as_uri()}?{how}"
    try:
        return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=wait)
    except sqlite3.Error as error:
        raise naming(name, error) from error


def _seen(name: str, how: str, look: Look[T], wait: float) -> T:
    with closing(_opened(name, how, wait)) as connection:
        return _transacted(name, connection, look)


def _transacted(name: str, connection: sqlite3.Connection, look: Look[T]) -> T:
    connection.execute("BEGIN")
    try:
        try:
            rows(connection, "SELECT 1 FROM sqlite_schema LIMIT 1")  # from here on it is one moment
        except sqlite3.OperationalError as error:
            raise _without_index(name, error) from error
        except sqlite3.Error as error:
            raise naming(name, error) from error
        return look(connection)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _without_index(name: str, error: sqlite3.OperationalError) -> sqlite3.Error:
    """Why a file with a log beside it cannot be read from a folder that cannot be written."""
    folder = os.path.dirname(name)
    if os.access(folder, os.W_OK) or not os.path.exists(name + "-wal"):
        return naming(name, error)
    return operational_error(
        f"cannot read {name}: what is in its write-ahead log can only be read beside a program "
        f"that has it open, or by a user who may write in {folder}",
        getattr(error, "sqlite_errorname", "SQLITE_CANTOPEN"),
    )
