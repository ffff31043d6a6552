"""What ends a command: in one line on stderr, and with an exit code that says what kind it was."""

from __future__ import annotations

import sqlite3

from without_durability_sqlite.errors import is_busy, primary_code

DONE = 0
REFUSED = 1
USAGE = 2
OUTPUT = 74
INTERRUPTED = 130
PIPE_CLOSED = 141


class Refused(Exception):
    """The command was understood and cannot be done; the text says why."""


class Usage(Exception):
    """What was typed makes no command."""


class Unwritten(Exception):
    """What was found, or done, could not be written to standard output."""


class Terminated(BaseException):
    """The process was asked to end: what is half done is tidied up on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number


def told(file: str, error: OSError | sqlite3.Error) -> str:
    """What went wrong with a file, as a person reads it."""
    if isinstance(error, OSError):
        if error.strerror is None:
            return str(error)
        return f"{error.filename or file}: {error.strerror}"
    if is_busy(error):
        return (
            f"{file} is busy: another process kept its write lock for longer than this one waits; "
            "try again"
        )
    code = primary_code(error)
    if code == sqlite3.SQLITE_NOTADB or "file is not a database" in str(error):
        return f"{file} is not a database"
    if code == sqlite3.SQLITE_CORRUPT:
        return f"{file} is damaged ({error}): restore a backup, or try `sqlite3 FILE .recover`"
    text = str(error)
    return text if file in text else f"{file}: {text}"
