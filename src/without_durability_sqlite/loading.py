"""Reading a workflow's records: fetched at one go, decoded in pieces."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from without_durability.codec import CheckpointCodec, decoded
from without_durability.values import shown

from .rows import rows, text

V = TypeVar("V")

PIECE_ROWS = 500
PIECE_BYTES = 256 * 1024
"""A piece ends after so many records, or with the one that makes it this long.

Python's `json` keeps every other thread waiting while it decodes; between two pieces they get
their turn, and so do the reads that wait in line.
"""

# Text is read as bytes: a row that is not UTF-8 then spoils nobody's fetch but its own, and no
# text_factory of the application matters.
LOAD = """
SELECT CAST(step AS BLOB), CAST(value AS BLOB), written_at
FROM workflow_checkpoint WHERE workflow = :workflow ORDER BY seq LIMIT :limit"""

NO_LIMIT = -1


class Loading(Generic[V]):
    """The records of one workflow on their way into `records`, in the order of their first write.

    `shape(key, value, written_at)` is what is kept of each. The rows are fetched in one statement,
    so that they are of one moment, and no snapshot of the file is held while they are decoded.
    """

    def __init__(
        self, codec: CheckpointCodec[str], workflow: str, shape: Callable[[str, object, Any], V]
    ) -> None:
        self.records: dict[str, V] = {}
        self._codec = codec
        self._workflow = workflow
        self._shape = shape
        self._waiting: list[tuple[bytes, bytes, Any]] = []

    def fetch(self, connection: sqlite3.Connection, most: int | None = None) -> bool:
        """Fetch the rows; whether there are more than `most`, and then they are not all here."""
        limit = NO_LIMIT if most is None else most + 1
        self._waiting = rows(connection, LOAD, {"workflow": self._workflow, "limit": limit})
        self._waiting.reverse()  # the next one is then the last, which costs nothing to remove
        return most is not None and len(self._waiting) > most

    def decode(self) -> bool:
        """Decode the next piece; whether there is more.

        `ValueError` naming workflow and key for a record that cannot be read.
        """
        size = 0
        for _ in range(min(PIECE_ROWS, len(self._waiting))):
            raw_key, raw_value, at = self._waiting.pop()
            key = text(self._workflow, "a key", raw_key)
            encoding = text(self._workflow, f"what is stored under {shown(key)}", raw_value)
            value = decoded(self._codec, self._workflow, key, encoding)
            self.records[key] = self._shape(key, value, at)
            size += len(raw_value)
            if size >= PIECE_BYTES:
                break
        return bool(self._waiting)


def just_value(key: str, value: object, at: float) -> object:
    """The shape of `load`."""
    return value
