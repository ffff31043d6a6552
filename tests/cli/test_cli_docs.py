"""Every command of docs/cli.md is run again, in order, and says what the page says."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from console import ROOT, Stream, said
from orders import now

from without_durability_sqlite.cli.commands import COMMANDS

PAGE = ROOT / "docs" / "cli.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WIDTH = 98

# What differs between two SQLites, or between two folders.
VARIES = (
    (re.compile(r"\d+(\.\d)? [KM]iB"), "56 KiB"),
    (re.compile(r"has SQLite [\d.]+,"), "has SQLite 3.40.1,"),
    (re.compile(r"\S*/copy\.db"), "/backups/copy.db"),
)


@pytest.fixture(autouse=True)
def an_hour_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def session(block: str) -> str:
    """The block as it is today."""
    return "".join(
        f"{line}\n{answered(line)}" for line in block.splitlines() if line.startswith("$ ")
    )


def answered(line: str) -> str:
    command, *argv = shlex.split(line.removeprefix("$ ").removesuffix(" < /dev/null"))
    assert command == "without-durability"
    typed = Stream(terminal=not line.endswith(" < /dev/null"))
    done = said(*argv, clock=now, terminal=True, width=WIDTH, typed=typed)
    out = re.sub(r"\r.*\x1b\[K", "", done.out + done.err)  # progress that was taken away again
    for pattern, instead in VARIES:
        out = pattern.sub(instead, out)
    return out


@pytest.mark.usefixtures("orders")
def test_the_page_says_what_the_commands_say() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert BLOCK.sub(lambda found: f"```console\n{session(found[1])}```", page) == page


def test_the_page_has_every_command() -> None:
    page = PAGE.read_text(encoding="utf-8")
    typed = set(re.findall(r"^\$ without-durability orders\.db (\w+)", page, re.MULTILINE))
    assert typed | {"watch"} == set(COMMANDS)
    assert "`watch`" in page


def test_no_line_of_the_page_is_too_long_to_read() -> None:
    prose = BLOCK.sub("", Path(PAGE).read_text(encoding="utf-8"))
    assert [line for line in prose.splitlines() if len(line) > 120] == []
