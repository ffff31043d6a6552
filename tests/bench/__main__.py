"""The figures of this machine: ours, a plain `sqlite3` loop's, and what is asked for.

    python tests/bench [--list] [--json] [--folder FOLDER] [FIGURE …]

Ratios are medians over several repeats, ours and raw alternating within each. Every figure runs in
a process of its own, under a time limit. Exits 0 when every *must* is met. The working folder must
be on a real disk. POSIX only, but for a few figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import footprint
import growth
import loading
import machine
import operating
import processes
import recording
import waking
import working
from figures import Figure, Repeat, Sample
from table import HEADINGS, Row, line

FIGURES = {
    figure.name: figure
    for module in (recording, working, waking, loading, processes, footprint, growth, operating)
    for figure in module.FIGURES
}


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure, what its repeats measured, how long that took, and why it failed if it did."""

    figure: Figure
    repeats: list[Repeat]
    seconds: float
    error: str | None

    @property
    def rows(self) -> list[Row]:
        return [Row(self.figure, target, self.repeats) for target in self.figure.targets]

    @property
    def has_every_must(self) -> bool:
        return all(row.met != "no" for row in self.rows)

    def document(self) -> dict[str, Any]:
        return {
            "name": self.figure.name,
            "says": self.figure.says,
            "seconds": self.seconds,
            "error": self.error,
            "rows": [row.document() for row in self.rows],
        }


def measured(figure: Figure, folder: Path) -> Measured:
    """Measure in a process of its own, which is gone afterwards with all that it started."""
    began = time.perf_counter()
    command = [sys.executable, str(Path(__file__).parent), "--measure", figure.name]
    with (
        tempfile.TemporaryDirectory(prefix=f"{figure.name}-", dir=folder) as own,
        subprocess.Popen(
            [*command, "--folder", own],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
        ) as process,
    ):
        error = None
        repeats: list[Repeat] = []
        try:
            out, err = process.communicate(timeout=figure.limit)
        except subprocess.TimeoutExpired:
            error = f"not measured within {figure.limit:g} s"
        else:
            if process.returncode:
                error = f"exit status {process.returncode}\n{err}"
            else:
                repeats = as_repeats(json.loads(out))
        finally:
            end(process)
    return Measured(figure, repeats, time.perf_counter() - began, error)


def end(process: subprocess.Popen[str]) -> None:
    """Kill it and what it started, frozen or not."""
    if hasattr(os, "killpg"):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
    else:
        process.kill()


def as_repeats(document: list[dict[str, dict[str, float]]]) -> list[Repeat]:
    return [
        {quantity: Sample(**sample) for quantity, sample in repeat.items()} for repeat in document
    ]


def measure(figure: Figure, folder: Path) -> None:
    """What `measured` starts."""

    async def repeats() -> list[Repeat]:
        return await figure.measure(folder)

    document = [
        {quantity: asdict(sample) for quantity, sample in repeat.items()}
        for repeat in asyncio.run(repeats())
    ]
    print(json.dumps(document))


def show(done: Measured) -> None:
    for position, row in enumerate(done.rows):
        print(line(row.cells(is_first=position == 0)), flush=True)
    if done.error:
        print(f"{done.figure.name} failed: {done.error}", file=sys.stderr)


def show_list(chosen: list[Figure], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([Measured(figure, [], 0, None).document() for figure in chosen], indent=2))
        return
    for figure in chosen:
        print(f"{figure.name:16}  {figure.says}")


def run(chosen: list[Figure], folder: Path, *, as_json: bool) -> bool:
    """Measure and print; whether every must is met."""
    began = time.perf_counter()
    described = machine.described(folder)
    if not as_json:
        print("\n".join(f"{what}: {value}" for what, value in described.items()))
        print("", line(HEADINGS), sep="\n", flush=True)
    results = []
    for figure in chosen:
        results.append(measured(figure, folder))
        if not as_json:
            show(results[-1])
    is_met = all(result.has_every_must for result in results)
    seconds = time.perf_counter() - began
    if as_json:
        document = {
            "machine": described,
            "seconds": seconds,
            "has_every_must": is_met,
            "figures": [result.document() for result in results],
        }
        print(json.dumps(document, indent=2))
    else:
        verdict = "every must is met" if is_met else "not every must is met"
        print(f"\n{verdict}; measured in {seconds:.0f} s")
    return is_met


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="run only these")
    parser.add_argument("--list", action="store_true", help="say which figures there are")
    parser.add_argument("--json", action="store_true", help="one document, every repeat too")
    parser.add_argument("--folder", type=Path, help="where to work (default: the temporary folder)")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [name for name in options.figures if name not in FIGURES]
    if unknown:
        parser.error(f"no such figure: {', '.join(unknown)} (try --list)")
    chosen = [FIGURES[name] for name in options.figures or FIGURES]
    if options.measure:
        measure(chosen[0], options.folder)
    elif options.list:
        show_list(chosen, as_json=options.json)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what it started
        with tempfile.TemporaryDirectory(prefix="bench-", dir=options.folder) as folder:
            is_met = run(chosen, Path(folder), as_json=options.json)
        sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
