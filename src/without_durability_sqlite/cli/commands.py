"""The commands, and how one is run for whoever is at the screen."""

from __future__ import annotations

import os
import sqlite3
from argparse import Namespace
from collections.abc import Callable

from .arguments import PROGRAM, parsed
from .arriving import arrive, deliver
from .backing import backup
from .checking import check
from .listing import listing, why
from .overview import status
from .refusals import OUTPUT, REFUSED, USAGE, Refused, Unwritten, Usage, told
from .screen import Screen
from .showing import show
from .steering import cancel, delete, fork, retry, rewind
from .sweeping import sweep
from .text import escaped, shortened_within
from .watching import watch

COMMANDS: dict[str, Callable[[str, Namespace, Screen], int]] = {
    "status": status,
    "list": listing,
    "show": show,
    "why": why,
    "watch": watch,
    "arrive": arrive,
    "deliver": deliver,
    "retry": retry,
    "cancel": cancel,
    "rewind": rewind,
    "fork": fork,
    "delete": delete,
    "sweep": sweep,
    "check": check,
    "backup": backup,
}

SENTENCE = 1_000
"""Cells of a refusal unless it is wanted in full."""


def run(argv: list[str] | None, screen: Screen) -> int:
    """Run one command for whoever is at the screen; its exit code."""
    try:
        code = _run(argv, screen)
        screen.flush()
        return code
    except Unwritten as error:
        done = f"; {screen.done}" if screen.done else ""
        screen.note(f"{PROGRAM}: {escaped(str(error))}{done}")
        return OUTPUT


def _run(argv: list[str] | None, screen: Screen) -> int:
    file = ""
    try:
        typed = parsed(argv)
        file = os.fspath(typed.file)
        for option in ("json", "utc", "full", "yes"):
            setattr(screen, option, getattr(typed, option))
        return COMMANDS[typed.command](file, typed, screen)
    except Usage as error:
        return _said(screen, str(error), USAGE)
    except Refused as error:
        return _said(screen, str(error), REFUSED)
    except BrokenPipeError:
        raise
    except (OSError, sqlite3.Error) as error:
        return _said(screen, told(file, error), REFUSED)
    except SystemExit as error:  # --help
        return int(error.code or 0)


def _said(screen: Screen, sentence: str, code: int) -> int:
    screen.flush()
    said = escaped(sentence)
    screen.note(f"{PROGRAM}: {said if screen.full else shortened_within(said, SENTENCE)}")
    return code
