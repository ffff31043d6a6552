"""Taking turns: no process is starved while others write.

SQLite lets whoever asks at the right moment have its write lock, and lets the others sleep longer
and longer. Here they queue: one waits for its turn, the rest wait to be next. Nothing depends on
it but fairness, so a process that hangs in it, or cannot open its file, only makes the others do
without.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress

try:
    import fcntl
except ImportError:  # no advisory locks on this system
    fcntl = None  # type: ignore[assignment]

SUFFIX = "-turn"
"""The name of its file, after the database's: empty, and of no use once nobody has it open."""

PATIENCE = 1.0
"""Seconds that somebody waits for a turn before it does without."""

DISTRUST = 5.0
"""Seconds in which it then takes a turn only where there is no waiting."""

LOOKING = 20
"""After how many turns it is looked whether its file is still there."""

_NEXT, _TURN = 0, 1
"""The bytes of the file that are locked: by the one who is next, and by whose turn it is."""

_NEXT_PAUSE, _TURN_PAUSE, _LONGEST_PAUSE = 0.0002, 0.00003, 0.001


class Turnstile:
    """This process's way into the file beside `path`; `patience` in seconds.

    The locks are the process's: two databases of one process on one file do not wait for each
    other here.
    """

    def __init__(self, path: str, patience: float) -> None:
        self._path = path
        self._patience = min(patience, PATIENCE)
        self._file: int | None = None
        self._entered = 0
        self._distrusted_until = 0.0
        self._usable = bool(path) and fcntl is not None

    def __enter__(self) -> None:
        """Wait for a turn; go on without one after a while."""
        if not self._usable or not self._opened():
            return
        self._entered += 1
        if self._entered % LOOKING == 0:
            self._check_still_there()
        if self._taken(_NEXT, both=True):  # nobody is next and it is nobody's turn
            self._unlock(_NEXT)
            self._distrusted_until = 0.0
        else:
            self._check_still_there()
            self._wait()

    def _wait(self) -> None:
        """First to be next, and then for the turn."""
        give_up_at = time.monotonic()
        if give_up_at >= self._distrusted_until:
            give_up_at += self._patience
        if self._locked(_NEXT, _NEXT_PAUSE, give_up_at):
            if self._locked(_TURN, _TURN_PAUSE, give_up_at):
                self._distrusted_until = 0.0
            self._unlock(_NEXT)

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._unlock(_TURN)

    def close(self) -> None:
        """Let go of the file, and remove it where nobody has the database open any more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            if not os.path.exists(self._path + "-wal"):
                with suppress(OSError):
                    os.unlink(self._path + SUFFIX)
        self._usable = False

    def _opened(self) -> bool:
        if self._file is None:
            try:
                self._file = self._opened_or_made()
            except OSError:
                self._usable = False
        return self._file is not None

    def _check_still_there(self) -> None:
        """Where somebody has removed its file, those who come now queue in another."""
        if self._file is not None and not os.fstat(self._file).st_nlink:
            os.close(self._file)
            self._file = None
            self._opened()

    def _opened_or_made(self) -> int:
        """Its file, open to whom the database is."""
        name, flags = self._path + SUFFIX, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        mode = stat.S_IMODE(os.stat(self._path).st_mode) & 0o666
        try:
            file = os.open(name, flags | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            return os.open(name, flags)
        os.fchmod(file, mode)  # the umask may have taken something away
        return file

    def _taken(self, byte: int, *, both: bool = False) -> bool:
        if self._file is None:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 2 if both else 1, byte)
        except OSError:
            return False
        return True

    def _locked(self, byte: int, pause: float, give_up_at: float) -> bool:
        while not self._taken(byte):
            now = time.monotonic()
            if now >= give_up_at or self._file is None:
                self._distrusted_until = now + DISTRUST
                return False
            time.sleep(pause)
            pause = min(pause * 1.02, _LONGEST_PAUSE)
        return True

    def _unlock(self, byte: int) -> None:
        assert self._file is not None
        with suppress(OSError):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)
