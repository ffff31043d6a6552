"""Ways for the file of an open database to be no longer where its path leads."""

from __future__ import annotations

from pathlib import Path


def deleted(path: Path) -> None:
    path.unlink()


def renamed(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))


def replaced(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.write_bytes(b"")
