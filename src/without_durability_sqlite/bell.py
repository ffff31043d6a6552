"""Telling other processes at once that something is ready, instead of letting them find out.

Whoever waits keeps a datagram socket in a folder beside the database, which only its own user can
enter; whoever makes something ready rings at every one of them. A ring says nothing but "look".
Nothing depends on it: where it cannot be had, the next look finds the same.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

SUFFIX = "-bell"
"""The name of the folder, after the database's; it is gone once nobody waits any more."""

_LONGEST_ADDRESS = 100  # bytes; systems allow 104 or 108
_OPEN_FOLDERS = "/proc/self/fd"  # where the system has it


class Bell:
    """This process's bell beside the database at `path`; one without a path has none."""

    def __init__(self, path: str) -> None:
        self._folder = path + SUFFIX
        self._usable = bool(path) and hasattr(socket, "AF_UNIX")
        self._own: str | None = None
        self._listening: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def listen(self, rung: Callable[[], None]) -> bool:
        """From now on, call `rung` on a thread of its own whenever somebody else rings.

        `False` where nobody can.
        """
        with self._lock:
            if self._own is not None and not os.path.lexists(os.path.join(self._folder, self._own)):
                self._take_away()  # somebody has removed it, and it would never ring again
            if self._own is not None or not self._usable:
                return self._usable
            try:
                listening = self._bound()
                self._thread = threading.Thread(
                    target=self._serve,
                    args=(listening, rung),
                    name="without_durability_bell",
                    daemon=True,
                )
                self._thread.start()
            except (OSError, RuntimeError):  # no socket, or no thread, to be had
                self._usable = False
                unheard = self._listening
                self._take_away()
                if unheard is not None:
                    unheard.close()
                return False
        return True

    def ring(self) -> None:
        """Ring at all others; a bell whose process has died is removed."""
        with suppress(OSError):
            others = [name for name in os.listdir(self._folder) if name != self._own]
            if others and self._is_ours():
                with self._calling() as calling:
                    for name in others:
                        with suppress(OSError):  # whatever one is, the others are rung at
                            self._ring_at(calling, name)

    def close(self) -> None:
        """Take the bell away, those of dead processes too, and the folder with the last one."""
        with self._lock:
            self._usable = False
            thread, listened = self._thread, self._own is not None
            self._take_away()
        if listened and thread is not None:
            thread.join(1)

    def _take_away(self) -> None:
        own, self._own = self._own, None  # the thread ends with the next ring
        listening, self._listening = self._listening, None
        if own is None or listening is None:
            return
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        self.ring()  # at this one as well, where a shutdown wakes nobody
        with suppress(OSError):
            os.unlink(os.path.join(self._folder, own))
        with suppress(OSError):
            os.rmdir(self._folder)

    def _serve(self, listening: socket.socket, rung: Callable[[], None]) -> None:
        with listening:
            while True:
                listening.recv(1)
                if self._listening is not listening:  # taken away, or another has been put up
                    return
                rung()

    def _bound(self) -> socket.socket:
        """A socket of a new name, in a folder that nobody else may enter."""
        while True:
            with suppress(FileExistsError):
                os.mkdir(self._folder, 0o700)
            if not self._is_ours():
                raise PermissionError(self._folder)
            name = os.urandom(8).hex()
            listening = None
            try:
                listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                with self._address(name) as address:
                    listening.bind(address)
            except BaseException as error:
                if listening is not None:
                    listening.close()
                if isinstance(error, FileNotFoundError) and not os.path.isdir(self._folder):
                    continue  # somebody else was the last to leave, just now
                with suppress(OSError):
                    os.rmdir(self._folder)
                raise
            self._own, self._listening = name, listening
            return listening

    def _is_ours(self) -> bool:
        folder = os.lstat(self._folder)
        return (
            stat.S_ISDIR(folder.st_mode)
            and folder.st_uid == os.geteuid()
            and not folder.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        )

    def _calling(self) -> socket.socket:
        calling = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        calling.setblocking(False)
        return calling

    def _ring_at(self, calling: socket.socket, name: str) -> None:
        try:
            with self._address(name) as address:
                calling.sendto(b"!", address)
        except ConnectionRefusedError:
            os.unlink(os.path.join(self._folder, name))
        except BlockingIOError:  # it has rings enough
            pass

    @contextmanager
    def _address(self, name: str) -> Iterator[str]:
        """The socket's address: its path, or a short way there where that is too long."""
        path = os.path.join(self._folder, name)
        if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
            yield path
            return
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"{_OPEN_FOLDERS}/{folder}/{name}"
        finally:
            os.close(folder)
