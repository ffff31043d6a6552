"""A week in the life: the commands of docs/operating.md in one shell, against what they print."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from test_docs import ROOT, environment

PAGE = ROOT / "docs" / "operating.md"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OVER = "<<< over >>>"
PATIENCE = 20.0

# What a page shows of moments, lengths of time, sizes, paths and an open log differs each time.
VARYING = (
    (r"\d{4}-\d\d-\d\d[T ][\d:.]+ ?(?:[+-]\d\d:?\d\d|UTC)?", "MOMENT"),
    (r"\b\d+(?:\.\d+)? (?:ms|s|min|h|d)\b(?: \d+ (?:s|min|h)\b)?", "SPAN"),
    (r"\b\d+(?:\.\d+)? (?:[KM]iB|bytes|B)\b", "SIZE"),
    (r"SQLite \d+\.\d+\.\d+", "SQLite VERSION"),
    (r"(write-ahead log)(?:: empty|:? SIZE)", r"\1"),
    (r"(?:/[^\s/\"]+)+/", ""),
    (r"(stepwise\.py\", line) \d+", r"\1 N"),
    (r"^ *[~^]+$\n", ""),
    (r" +", " "),
    (r" +$", ""),
)


def told(text: str) -> str:
    for pattern, name in VARYING:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text.strip()


class Shell:
    """One bash with its jobs, asked one line after another."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=environment() | {"PS1": "", "TZ": "UTC"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )
        self.asked('set -m; without-durability() { python -m without_durability_sqlite "$@"; }')

    def asked(self, line: str) -> str:
        """What the line prints."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\necho '{OVER}'\n")
        self._process.stdin.flush()
        printed = []
        while (got := self._process.stdout.readline()).rstrip("\n") != OVER:
            assert got, f"the shell ended at {line!r}: {''.join(printed)}"
            printed.append(got)
        return "".join(printed)

    def end(self) -> None:
        self.asked("kill %?shop 2>/dev/null; wait")
        self._process.communicate()


@pytest.mark.skipif(sys.platform == "win32", reason="the page's shell is POSIX")
def test_a_week_in_the_life_goes_as_the_page_says(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    try:
        for language, block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
            if language == "python":
                (tmp_path / block.splitlines()[0].removeprefix("# file: ")).write_text(block)
            else:
                for command in block.split("$ ")[1:]:
                    line, _, shown = command.partition("\n")
                    followed(shell, line, told(shown))
    finally:
        shell.end()


def followed(shell: Shell, line: str, shown: str) -> None:
    """The line prints what is shown: at once, or where it only looks, once the worker is there."""
    until = time.monotonic() + PATIENCE
    looks = re.search(r"shop\.db (?:status|list|why|show)", line)
    while (printed := told(jobless(shell.asked(line)))) != shown:
        if not looks or time.monotonic() > until:
            pytest.fail(f"{line}\nprinted\n{printed}\nand not\n{shown}")


def jobless(printed: str) -> str:
    """Without what the shell says of its own jobs."""
    return re.sub(r"^\[\d+\].*\n", "", printed, flags=re.MULTILINE)
