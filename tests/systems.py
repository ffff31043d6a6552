"""What systems differ in: names and permissions, open files, signals, descriptors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

WINDOWS = os.name == "nt"

posix_names = pytest.mark.skipif(WINDOWS, reason="Windows allows no such file name")
posix_files = pytest.mark.skipif(WINDOWS, reason="an open file cannot be moved on Windows")
posix_signals = pytest.mark.skipif(WINDOWS, reason="Windows knows no such signals")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")

FOLDERS = (Path("/proc/self/fd"), Path("/dev/fd"))


def descriptors() -> set[str]:
    """What this process has open: numbers, and names where the system tells; else nothing."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    found = set()
    for number in os.listdir(folder) if folder else ():
        try:
            os.fstat(int(number))
        except OSError:  # the descriptor of the listing itself
            continue
        try:
            found.add(f"{number} {os.readlink(folder / number)}")
        except OSError:  # under /dev a descriptor is no link
            found.add(number)
    return found
