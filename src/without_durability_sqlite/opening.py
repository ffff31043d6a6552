"""Opening and checking a file: what could not be durable is refused before anything is written."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from without_durability.durations import Milliseconds
from without_durability.values import shown

from .errors import is_busy, naming, operational_error
from .files import COMPANIONS, OpenFile, identity
from .rows import rows
from .thread import DatabaseThread, check_not_inherited
from .transactions import is_reading

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

NEEDED = (3, 35, 0)
"""The first SQLite with `RETURNING`."""

MEMORY = ":memory:"

JOURNAL_SIZE_LIMIT = 4 * 1024 * 1024
"""Bytes the write-ahead log comes back to after a burst."""

_LONGEST_TIMEOUT = 2**31 - 1
_SMALLEST_DATABASE = 512  # bytes; a file of one byte SQLite would take for a new one

# Each pragma, what it is set to and what reading it back must answer.
_PRAGMAS = (
    ("synchronous", "FULL", 2),
    ("fullfsync", "ON", 1),
    ("checkpoint_fullfsync", "ON", 1),
    ("journal_size_limit", JOURNAL_SIZE_LIMIT, JOURNAL_SIZE_LIMIT),
)


def opened(path: Path | str, timeout: Milliseconds) -> sqlite3.Connection:
    """A connection to `path` that is durable, or an error that names the path and the reason."""
    check_sqlite()
    _check_timeout(timeout)
    name = _checked_path(path)
    check_not_inherited(identity(name))
    connection = None
    try:
        connection = _connection(name, timeout)
        _check_encoding(connection, timeout)
        _switch_to_wal(connection, name, timeout)
        _set_pragmas(connection, timeout)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise naming(name, error) from error
        raise
    return connection


def check_sqlite() -> None:
    """`NotSupportedError` for an SQLite that is too old or was built without its mutexes."""
    if sqlite3.sqlite_version_info < NEEDED:
        needed = ".".join(map(str, NEEDED))
        raise sqlite3.NotSupportedError(
            f"SQLite {needed} or later is needed, and this Python has {sqlite3.sqlite_version}"
        )
    if sqlite3.threadsafety == 0:
        raise sqlite3.NotSupportedError(
            f"SQLite {sqlite3.sqlite_version} of this Python was built single-threaded: "
            "a build with threadsafety 1 or 3 is needed, and this one has 0"
        )


def thread_of(connection: sqlite3.Connection) -> DatabaseThread:
    """The thread that the connection belongs to from now on.

    `ValueError` naming the setting of a connection that no write could be durable on, or that
    the thread could not use.
    """
    if not isinstance(connection, sqlite3.Connection):
        raise TypeError(f"a Database needs a sqlite3.Connection, not {type(connection).__name__}")
    check_sqlite()
    try:
        open_transaction = connection.in_transaction
    except sqlite3.ProgrammingError as error:
        raise ValueError(f"the connection is not usable: {error}") from error
    thread = DatabaseThread(connection)
    refused = thread.probe()
    if refused is not None:
        raise ValueError(
            f"the connection is bound to one thread: pass check_same_thread=False ({refused})"
        ) from refused
    try:
        _check_modes(connection)
        if not _is_utf_8(connection):
            raise ValueError("the connection has a PRAGMA encoding of UTF-16: UTF-8 is needed")
        is_reading(connection)  # from now on it can tell
        if open_transaction:
            raise ValueError("the connection has a transaction open: in_transaction is True")
        thread.file = OpenFile(connection)
        ((thread.busy_timeout,),) = rows(connection, "PRAGMA busy_timeout")
        check_not_inherited(thread.file.identity)
        if thread.file.path:
            journal = _journal_of_durable(connection)
            thread.file.writes_ahead = journal == b"wal" and not _is_exclusive(connection)
    except BaseException:
        thread.stop()
        raise
    return thread


def _check_modes(connection: sqlite3.Connection) -> None:
    """`ValueError` for a connection that opens transactions by itself."""
    autocommit = getattr(connection, "autocommit", None)
    if autocommit is False:
        raise ValueError("the connection has autocommit=False: writes would wait for a commit")
    if autocommit is not True and connection.isolation_level is not None:
        raise ValueError(
            f"the connection has isolation_level={connection.isolation_level!r}: writes would open "
            "transactions by themselves; pass isolation_level=None"
        )


def _journal_of_durable(connection: sqlite3.Connection) -> bytes:
    """The journal mode of the connection's file.

    `ValueError` where its commits do not wait for the disk, or are not undone by it.
    """
    ((level,),) = rows(connection, "PRAGMA synchronous")
    if level < 2:
        raise ValueError(f"the connection has PRAGMA synchronous = {level}: FULL is needed")
    ((mode,),) = rows(connection, "SELECT CAST(journal_mode AS BLOB) FROM pragma_journal_mode")
    if mode.lower() in (b"off", b"memory"):
        raise ValueError(
            f"the connection has PRAGMA journal_mode = {mode.decode()}: a transaction cut short "
            "would stay half-done in the file"
        )
    return bytes(mode.lower())


def _is_exclusive(connection: sqlite3.Connection) -> bool:
    """Whether no other connection may use the file, not even one to read with."""
    ((mode,),) = rows(connection, "SELECT CAST(locking_mode AS BLOB) FROM pragma_locking_mode")
    return bytes(mode.lower()) == b"exclusive"


def _check_timeout(timeout: Milliseconds) -> None:
    if type(timeout) is not Milliseconds or type(timeout.count) is not int:
        raise TypeError(f"timeout must be whole Milliseconds, not {timeout!r}")
    if not 0 <= timeout.count <= _LONGEST_TIMEOUT:
        raise ValueError(f"timeout must lie within 0 and {_LONGEST_TIMEOUT} ms, not {timeout!r}")


def _checked_path(path: Path | str) -> str:
    """The absolute name of `path`, never a URI, once nothing about it is known to be wrong."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path must be a str or a Path, not {type(path).__name__}")
    name = os.fspath(path)
    if not isinstance(name, str):
        raise TypeError(f"path must be a str or a Path of text, not of {type(name).__name__}")
    if not name.strip():
        raise ValueError("path is blank: name a file, or ':memory:' for a store that forgets")
    if "\0" in name:
        raise ValueError(f"path {shown(name)} holds a NUL character")
    if name == MEMORY:
        return name
    name = os.path.abspath(name)
    folder = os.path.dirname(name)
    if os.path.isdir(name):
        raise _cannot_open(name, "it is a folder")
    if not os.path.isdir(folder):
        hint = ": ~ is not expanded here" if f"{os.sep}~" in name else ""
        raise _cannot_open(name, f"the folder {folder} does not exist{hint}")
    if os.path.isfile(name) and 0 < os.path.getsize(name) < _SMALLEST_DATABASE:
        raise sqlite3.DatabaseError(f"cannot open {name}: file is not a database")
    if os.path.exists(name) and not os.access(name, os.R_OK | os.W_OK):
        raise _cannot_open(name, "the file cannot be read and written (permission denied)")
    for companion in COMPANIONS:
        beside = name + companion
        if os.path.isdir(beside):
            raise _cannot_open(name, f"{beside} is a folder, and SQLite keeps a file there")
        if os.path.exists(beside) and not os.access(beside, os.R_OK | os.W_OK):
            raise _cannot_open(name, f"{beside} cannot be read and written (permission denied)")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _cannot_open(
            name,
            f"the folder {folder} cannot be written (permission denied), "
            "and the write-ahead log needs a place in it",
        )
    return name


def _cannot_open(name: str, reason: str) -> sqlite3.OperationalError:
    return operational_error(f"cannot open {name}: {reason}", "SQLITE_CANTOPEN")


def _connection(name: str, timeout: Milliseconds) -> sqlite3.Connection:
    seconds = timeout.duration.total_seconds()
    if sys.version_info >= (3, 12):
        return sqlite3.connect(
            name,
            timeout=seconds,
            autocommit=True,
            check_same_thread=False,
        )
    return sqlite3.connect(
        name,
        timeout=seconds,
        isolation_level=None,
        check_same_thread=False,
    )


def _is_utf_8(connection: sqlite3.Connection) -> bool:
    """Whether the database's text is what the statements read as bytes."""
    return rows(connection, "SELECT encoding = 'UTF-8' FROM pragma_encoding") == [(True,)]


def _check_encoding(connection: sqlite3.Connection, timeout: Milliseconds) -> None:
    """A database of another encoding is an application's, and is left as it is."""
    if not _patiently(lambda: _is_utf_8(connection), timeout):
        raise sqlite3.NotSupportedError(
            "the file keeps its text as UTF-16 (PRAGMA encoding), and workflows need UTF-8: "
            "give them a file of their own"
        )


def _switch_to_wal(connection: sqlite3.Connection, name: str, timeout: Milliseconds) -> None:
    """Write-ahead logging, retried within `timeout`.

    The switch needs the file for itself for a moment, and SQLite's own busy wait does not
    cover it where two connections upgrade at once.
    """
    (mode,) = _patiently(
        lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone(), timeout
    )
    if mode != "wal" and name != MEMORY:
        raise sqlite3.OperationalError(
            f"journal_mode = WAL was refused and {mode!r} kept: the file system cannot do it "
            "(a network or shared folder?)"
        )


def _set_pragmas(connection: sqlite3.Connection, timeout: Milliseconds) -> None:
    for pragma, value, answer in (*_PRAGMAS, ("busy_timeout", timeout.count, timeout.count)):
        connection.execute(f"PRAGMA {pragma} = {value}")
        (got,) = connection.execute(f"PRAGMA {pragma}").fetchone()
        if got != answer:
            raise sqlite3.OperationalError(
                f"PRAGMA {pragma} = {value} was refused: it reads back as {got!r}"
            )


def _patiently(call: Callable[[], T], timeout: Milliseconds) -> T:
    """`call()`, again and again while another process is in the way, until `timeout` is over."""
    import random  # it costs a millisecond, and few programs come here

    until = time.monotonic() + timeout.duration.total_seconds()
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= until:
                raise
        time.sleep(random.uniform(0.001, 0.02))
