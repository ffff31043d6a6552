"""What the library takes to import, and what it keeps in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from figures import Figure, Repeat, Sample, at_most, noted
from starting import all_ready, asked, started

MIB = 2**20

OWN_SHARE = """
import asyncio, sqlite3, time
began = time.perf_counter()
import without_durability_sqlite
print(time.perf_counter() - began)"""


async def measure_import(folder: Path) -> list[Repeat]:
    """Fresh interpreters; the first one only makes sure that the bytecode is there."""
    return [{"own share": Sample(1000 * own_share())} for _ in range(12)][1:]


def own_share() -> float:
    """The seconds it takes above those that `asyncio` and `sqlite3` take."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    command = [sys.executable, "-c", OWN_SHARE]
    return float(subprocess.check_output(command, env=environment))


async def measure_memory(folder: Path) -> list[Repeat]:
    with started("growing", folder / "ours.db") as child:
        await all_ready([child])
        (grown,) = await asked([child], 100_000)
    return [
        {
            "Python's": Sample(grown["python"] / MIB),
            "the process's, traced": Sample(grown["resident"] / MIB),
        }
    ]


FIGURES = (
    Figure(
        "import",
        "import, above asyncio and sqlite3",
        (at_most("own share", "ms", 12, 8),),
        measure_import,
    ),
    Figure(
        "memory",
        "memory after 100,000 records, above an open store",
        (at_most("Python's", "MiB", 1, 1), noted("the process's, traced", "MiB")),
        measure_memory,
        limit=240,
    ),
)
