"""A reader of a database's own: reads beside its writes, over a connection that writes nothing."""

from __future__ import annotations

import sqlite3

from .errors import naming
from .files import OpenFile
from .rows import rows
from .thread import DatabaseThread
from .watching import Watch


class Reader(DatabaseThread):
    """The thread of a second connection to the file that `home` has open, made when first used."""

    def __init__(self, home: DatabaseThread, watch: Watch) -> None:
        super().__init__(None, home)
        self.watch = watch

    def opened(self) -> sqlite3.Connection:
        """The connection; `OperationalError` when the file is no longer where it was."""
        if self.connection is None:
            assert self.home.file is not None
            self.connection = _beside(self.home.file, self.home.busy_timeout)
        return self.connection


def _beside(file: OpenFile, busy_timeout: int) -> sqlite3.Connection:
    """A reading connection to the same file; one that is gone is not made anew."""
    from pathlib import Path  # it costs some milliseconds, and not every program reads

    try:
        connection = sqlite3.connect(
            f"{Path(file.path).as_uri()}?mode=rw",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.execute(f"PRAGMA busy_timeout = {busy_timeout}")
            connection.execute("PRAGMA query_only = ON")
            rows(connection, "SELECT 1 FROM sqlite_schema LIMIT 1")
            file.check()
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise naming(file.path, error) from error
    return connection
