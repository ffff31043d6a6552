"""What every saboteur needs: its clause, and a memory store to spoil."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from without_durability import MemoryCheckpointer, MemoryDurable, MemoryScheduler, Stored

SABOTEURS: list[tuple[str, type, str]] = []
"""The clause, the store that breaks it, and words of the sentence that must say so."""


def breaks(clause: str, saying: str) -> Callable[[type], type]:
    def noted(store: type) -> type:
        SABOTEURS.append((clause, store, saying))
        return store

    return noted


class Records(MemoryCheckpointer):
    __slots__ = ()

    def put(self, workflow: str, key: str, value: object) -> None:
        self.hashes.setdefault(workflow, {})[key] = Stored(self.codec.encode(value), self.now())

    def claim_as(self, workflow: str, **changed: Any) -> None:
        self.claims[workflow] = dataclasses.replace(self.claims[workflow], **changed)


class Queue(MemoryScheduler):
    __slots__ = ()


class Rows(MemoryDurable):
    __slots__ = ()

    def put(self, workflow: str, **changed: Any) -> None:
        self.runs[workflow] = dataclasses.replace(self.runs[workflow], **changed)
