"""The command line: `without-durability FILE COMMAND`.

What the commands need is imported only where Ctrl-C is already answered.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from .refusals import INTERRUPTED, PIPE_CLOSED, Terminated

ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""What asks a process to end, where the platform has it: SIGHUP is a terminal that was closed."""


def main(argv: list[str] | None = None) -> int:
    """Run one command as a process's whole business; its exit code."""
    try:
        with _ending():
            from .commands import run
            from .screen import Screen

            return run(argv, Screen.of_process())
    except BrokenPipeError:  # whoever read has seen enough
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Terminated as error:
        return error.code
    finally:
        _let_go()


@contextmanager
def _ending() -> Iterator[None]:
    """A signal ends the command as Ctrl-C does: what is half done is tidied up.

    One that is ignored stays so: that is what `nohup` does.
    """

    def terminate(number: int, frame: object) -> NoReturn:
        raise Terminated(number)

    known = {one: signal.getsignal(one) for one in ENDING}
    before = {one: how for one, how in known.items() if how not in (signal.SIG_IGN, None)}
    for one in before:
        signal.signal(one, terminate)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _let_go() -> None:
    """What cannot be written by now must not be tried again at exit, which would be told."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
