"""A consistent copy of a file that is in use."""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from .errors import primary_code
from .looking import WAIT, checked, looked
from .rows import lenient, rows

PAGES = 1000
"""Copied at a time; between two such pieces `progress` is called, and a signal is noticed."""

COMPANIONS = ("-wal", "-shm", "-journal", "-turn", "-bell")

# What comes of writing: the source is only read, and SQLite tells of both at the copy.
_OF_THE_COPY = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY}
_WRITES = {
    sqlite3.SQLITE_IOERR_CLOSE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_WRITE,
}

Progress: TypeAlias = Callable[[int, int], None]

TABLES = """
SELECT CAST(name AS BLOB) FROM sqlite_schema
WHERE type = 'table' AND name IN ('workflow_checkpoint', 'workflow_claim', 'workflow_queue',
    'workflow_run', 'workflow_count', 'workflow_schema')
ORDER BY name"""

SCHEMA = """
SELECT CAST(type AS BLOB), CAST(name AS BLOB), CAST(sql AS BLOB) FROM sqlite_schema
ORDER BY type, name"""


class Copied(NamedTuple):
    """A copy that was made: where, its bytes, and the rows of each table if it was verified."""

    path: str
    size: int
    counts: dict[str, int] | None


class CopyError(OSError):
    """The copy could not be written or read again; what had been written of it is gone."""


class _Facts(NamedTuple):
    schema: list[tuple[object, ...]]
    counts: dict[str, int]


def backup(
    source: Path | str,
    dest: Path | str,
    *,
    force: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
    wait: float = WAIT,
) -> Copied:
    """Copy `source` as it is at one moment to `dest`, which is there whole or not at all.

    Others may read and write meanwhile: one read transaction is held on the source, so the copy
    need not begin again after each of their commits (its write-ahead log grows until the copy is
    made). `progress(pages, of)` is called now and then. `FileExistsError` where `dest` exists and
    there is no `force`; `ValueError` where it is the source or belongs to a database in use;
    `CopyError`, which names it, where it cannot be written; `sqlite3.DatabaseError` where `verify`
    finds the copy damaged or incomplete.
    """
    origin = checked(source)
    target = _checked_target(origin, dest, force)
    folder = os.path.dirname(target)
    with _writing(target):
        descriptor, copy = tempfile.mkstemp(prefix=".backup-", suffix=".partial", dir=folder)
        os.close(descriptor)
    try:

        def copying(connection: sqlite3.Connection) -> _Facts | None:
            _copy(connection, copy, target, progress)
            return _facts(connection) if verify else None

        facts = looked(origin, copying, wait=wait)
        if facts is not None:
            _verify(copy, target, facts)
        mode = stat.S_IMODE(os.stat(origin).st_mode)
        with _writing(target):
            os.chmod(copy, mode)
            size = os.stat(copy).st_size
            _to_disk(copy)
            _put_in_place(copy, target, force)
            _folder_to_disk(folder)
        return Copied(target, size, facts.counts if facts is not None else None)
    finally:
        for left in ("", "-journal", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(copy + left)


@contextmanager
def _writing(target: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise CopyError(f"cannot write the copy to {target}: {error.strerror or error}") from error


def _checked_target(origin: str, dest: Path | str, force: bool) -> str:
    """Where the copy goes, a link followed; an error for where it must not go."""
    target = os.path.realpath(dest)
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"there is no folder {folder!r}")
    if os.path.isdir(target):
        raise IsADirectoryError(f"{target} is a folder: name the file to write")
    if os.path.exists(target) and os.path.samefile(origin, target):
        raise ValueError(f"{target} is the database itself")
    if target in {origin + companion for companion in COMPANIONS}:
        raise ValueError(f"{target} belongs to the database itself")
    if os.path.exists(target):
        if not force:
            raise FileExistsError(f"{target} exists")
        if not os.path.isfile(target):
            raise ValueError(f"{target} is no regular file")
    for companion in ("-wal", "-journal"):
        if os.path.exists(target + companion):
            raise ValueError(
                f"{target + companion} exists: {target} is in use or was not closed in order, "
                "and what lies beside it would be taken for the copy's"
            )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"the folder {folder} cannot be written (permission denied)")
    return target


def _copy(
    connection: sqlite3.Connection, copy: str, target: str, progress: Progress | None
) -> None:
    def told(status: int, remaining: int, total: int) -> None:
        if progress is not None:
            progress(total - remaining, total)

    try:
        with closing(sqlite3.connect(copy, isolation_level=None)) as into:
            # A copy that was broken off is thrown away, a whole one reaches the disk at its end.
            into.execute("PRAGMA journal_mode = OFF")
            into.execute("PRAGMA synchronous = OFF")
            connection.backup(into, pages=PAGES, progress=told)
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0)
        if primary_code(error) not in _OF_THE_COPY and code not in _WRITES:
            raise
        raise CopyError(f"cannot write the copy to {target}: {error}") from error


def _facts(connection: sqlite3.Connection) -> _Facts:
    tables = [name.decode() for (name,) in rows(connection, TABLES)]
    counts = {name: rows(connection, f"SELECT count(*) FROM {name}")[0][0] for name in tables}
    return _Facts(rows(connection, SCHEMA), counts)


def _verify(copy: str, target: str, expected: _Facts) -> None:
    def look(connection: sqlite3.Connection) -> tuple[str, _Facts]:
        found = rows(connection, "SELECT CAST(integrity_check AS BLOB) FROM pragma_integrity_check")
        said = "; ".join(lenient(line) for (line,) in found[:3])
        return said, _facts(connection)

    try:
        said, facts = looked(copy, look)
    except sqlite3.Error as error:
        if primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise  # as the file is
        raise CopyError(f"cannot read the copy made for {target}: {error}") from error
    if said != "ok":
        raise sqlite3.DatabaseError(f"the copy is damaged, as the file is: {said}")
    if facts != expected:
        raise sqlite3.DatabaseError(
            f"the copy does not hold what the file does: {facts.counts}, not {expected.counts}"
        )


def _to_disk(name: str) -> None:
    descriptor = os.open(name, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        _synced(descriptor)
    finally:
        os.close(descriptor)


def _folder_to_disk(folder: str) -> None:
    if os.name == "nt":  # where a folder cannot be opened, and a rename needs no such thing
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _synced(descriptor)
    finally:
        os.close(descriptor)


def _synced(descriptor: int) -> None:
    try:
        from fcntl import F_FULLFSYNC, fcntl  # type: ignore[attr-defined,unused-ignore]
    except ImportError:
        os.fsync(descriptor)
        return
    try:
        fcntl(descriptor, F_FULLFSYNC)  # macOS, where a plain one reaches no disk
    except OSError:
        os.fsync(descriptor)


def _put_in_place(copy: str, target: str, force: bool) -> None:
    """The copy under its name, in one step; without `force` over nothing, whoever else writes."""
    if not force:
        try:
            os.link(copy, target)
            return
        except FileExistsError:
            raise FileExistsError(f"{target} exists") from None
        except OSError:  # a file system without links
            if os.path.exists(target):
                raise FileExistsError(f"{target} exists") from None
    os.replace(copy, target)
