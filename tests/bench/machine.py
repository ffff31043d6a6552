"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
import time
from pathlib import Path

PAGE, PAGES = 4096, 1000
"""As much as SQLite writes into a log before it starts it over."""


def described(folder: Path) -> dict[str, str | int | float]:
    """The interpreter, SQLite, the machine and how busy it is, and the folder's file system."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": os.cpu_count() or 0,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else "unknown",
        "folder": str(folder),
        "file system": file_system(folder),
        "pages synced a second": synced_writes(folder / "synced"),
    }


def file_system(folder: Path) -> str:
    """Its name, where the system tells."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return "unknown"
    name, nearest = "unknown", -1
    for line in mounts.read_text(encoding="utf-8").splitlines():
        _, mounted_on, kind, *_ = line.split(" ")
        if folder.resolve().is_relative_to(mounted_on) and len(mounted_on) >= nearest:
            name, nearest = kind, len(mounted_on)
    return name


def synced_writes(path: Path, seconds: float = 0.5) -> int:
    """How often a page can be written and synced: what bounds every commit."""
    sync = os.fsync if sys.platform in ("win32", "darwin") else os.fdatasync
    count = 0
    with path.open("wb", buffering=0) as file:
        file.write(bytes(PAGE * PAGES))
        sync(file.fileno())
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            file.seek(count % PAGES * PAGE)
            file.write(bytes(PAGE))
            sync(file.fileno())
            count += 1
    path.unlink()
    return round(count / seconds)
