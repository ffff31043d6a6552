"""A codec that can be held while it decodes, and workflows with many records."""

from __future__ import annotations

import sqlite3

from thread_gates import Gate
from without_durability import JSON
from without_durability_sqlite import Database


class Gated:
    """A codec that stops at its n-th decoding, until it is opened, and keeps what it decoded."""

    def __init__(self, n: int = 1) -> None:
        self.gate = Gate()
        self.decoded: list[str] = []
        self._n = n

    def encode(self, value: object) -> str:
        return JSON.encode(value)

    def decode(self, encoded: str) -> object:
        self.decoded.append(encoded)
        if len(self.decoded) == self._n:
            self.gate(None)
        return JSON.decode(encoded)


async def fill(database: Database, workflow: str, count: int, value: str = "1") -> None:
    """So many records, in one go."""
    insert = """INSERT INTO workflow_checkpoint (workflow, step, value, written_at)
        VALUES (?, ?, ?, 1)"""

    def work(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")
        connection.executemany(
            insert, [(workflow, f"key {n}", value) for n in range(count)]
        ).close()
        connection.execute("COMMIT")

    await database.run(work)
