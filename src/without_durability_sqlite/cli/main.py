"""The command line: `without-durability FILE COMMAND`."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from .arguments import PROGRAM, parsed
from .arriving import arrive, deliver
from .backing import backup
from .checking import check
from .listing import listing, why
from .overview import status
from .refusals import (
    INTERRUPTED,
    PIPE_CLOSED,
    REFUSED,
    TERMINATED,
    USAGE,
    Refused,
    Terminated,
    Usage,
    told,
)
from .screen import Screen
from .showing import show
from .steering import cancel, delete, fork, retry, rewind
from .sweeping import sweep
from .text import escaped
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


def main(argv: list[str] | None = None) -> int:
    """Run one command as a process's whole business; its exit code."""
    screen = Screen.of_process()
    try:
        with _terminating():
            code = run(argv, screen)
            screen.out.flush()
            return code
    except BrokenPipeError:
        # Whoever read has seen enough; what is left over must not be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Terminated:
        return TERMINATED


def run(argv: list[str] | None, screen: Screen) -> int:
    """Run one command for whoever is at the screen; its exit code."""
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
    screen.out.flush()
    screen.note(f"{PROGRAM}: {escaped(sentence)}")
    return code


@contextmanager
def _terminating() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: what is half done is tidied up."""

    def terminate(number: int, frame: object) -> NoReturn:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
