"""A soak: workers and clients on one file, killed, frozen and restarted at random; then the books.

    python tests/soak.py --duration 600 --processes 4 --seed 7 [--file PATH] [--pace 1.0]

Workers run workflows that write an inside ledger (a table of the same file, by `transact`) and an
outside one (lines of a log, by `step`). Clients arrive, deliver and delete; they log what they
intend before the call and what was acknowledged after it. The parent kills (SIGKILL), freezes
(SIGSTOP) and stops them, lets the rest drain, and checks the books. Meanwhile a steward uses the
ledger: looks, retries what is parked, cancels, rewinds, forks, sweeps and deletes what is finished.
Exits 0 only if everything holds; if not, it says what does not and keeps the file and the logs.
Choices follow from the seed, timing does not. POSIX only.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from soaking.chaos import Chaos
from soaking.processes import client, worker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", type=float, default=60, help="seconds of chaos")
    parser.add_argument("--processes", type=int, default=4, help="workers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=1.0, help="seconds between two blows")
    parser.add_argument("--file", type=Path, help="a new file, which is kept")
    parser.add_argument("--role", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logged: dict[str, Any] = {"format": "\x1e%(levelname)s %(message)s", "level": logging.INFO}
    if options.role:
        folder, path, life, seed = options.role
        logging.basicConfig(**logged)
        # Nothing is ever written to its standard input: it ends when the parent does.
        threading.Thread(target=lambda: os.read(0, 1) or os._exit(3), daemon=True).start()
        part = worker if life.startswith("worker") else client
        asyncio.run(part(Path(folder), Path(path), life, int(seed)))
        return
    if options.file and options.file.exists():
        sys.exit(f"{options.file} exists already: name a new file")
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    logging.basicConfig(filename=folder / "parent.err", **logged)
    chaos = Chaos(options, folder, (options.file or folder / "soak.db").absolute())
    is_well = False
    try:
        asyncio.run(chaos.run())
        is_well = chaos.show()
    finally:
        if not is_well:
            print(f"kept: {chaos.path}, and the logs in {folder}")
    if not is_well:
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
