"""What one take of a queue row is known by (S8)."""

from __future__ import annotations

import os


class Receipt:
    """The visibility a take set and a nonce that nobody else will ever hold."""

    __slots__ = ("nonce", "visible_at")

    def __init__(self, visible_at: float, nonce: str) -> None:
        self.visible_at = visible_at
        self.nonce = nonce

    @classmethod
    def until(cls, visible_at: float) -> Receipt:
        """A fresh one for a take that lasts until `visible_at`."""
        return cls(visible_at, os.urandom(8).hex())

    @classmethod
    def parsed(cls, text: str) -> Receipt:
        """The receipt behind an opaque text; under one not made here no row ever stands."""
        visible_at, _, nonce = text.partition(" ")
        try:
            nonce.encode("ascii")
            return cls(float(visible_at), nonce)
        except ValueError:
            return cls(float("nan"), "")

    def __str__(self) -> str:
        return f"{self.visible_at!r} {self.nonce}"
