"""Who waits for something to get ready in a queue, and when it is time to look again."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

QUICK = 0.0005
"""Seconds between two looks at the least: clocks differ, and none is exact."""

QUIET = 0.5
"""Seconds between two looks at the most, while nothing happens and others would ring."""

USUAL = 0.05
"""Seconds between two looks unless another `poll` is asked for; whoever asks for less means it."""

LONGEST = 3600.0
"""Seconds between two looks at the most, whatever `poll` is."""

CHANGES = "PRAGMA data_version"


Seen: TypeAlias = tuple[bool, float | None]
"""What a look at a queue saw: whether something is ready, and when the next one is due."""

Look: TypeAlias = Callable[[sqlite3.Connection, str, float], Seen]
"""A look at the queue of a namespace, given the moment."""


def _in_vain() -> bool:
    return False


class Waiter:
    """Somebody who waits for a queue, and is woken once; `poll` is in seconds."""

    __slots__ = ("due", "gone", "loop", "namespace", "poll", "woken")

    def __init__(self, namespace: str, poll: float) -> None:
        self.namespace = namespace
        self.poll = poll
        self.due = math.inf
        self.gone = False
        self.loop = asyncio.get_running_loop()
        self.woken: asyncio.Future[bool] = self.loop.create_future()

    async def result(self, within: float) -> bool:
        """Whether it is woken `within` seconds."""
        if within <= 0:
            return self.woken.done()
        timer = self.loop.call_later(within, self._end, False)
        try:
            return await self.woken
        finally:
            timer.cancel()

    def wake(self) -> None:
        """From any thread."""
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            self.loop.call_soon_threadsafe(self._end, True)

    def _end(self, woken: bool) -> None:
        if not self.woken.done():
            self.woken.set_result(woken)


class Watch:
    """Wakes waiters: at once for a change of this process's own, at its due moment for a sleeper,
    and for another process's change when it rings, or when the next look finds it.

    A look costs the question whether another connection has committed since, and a turn of the
    thread, which costs more: where others can ring (`listen`), looks may be fewer.
    """

    def __init__(self, look: Look, now: Callable[[], float]) -> None:
        self._look = look
        self._now = now
        self._lock = threading.Lock()
        self._waiters: set[Waiter] = set()
        self._changes = (0, 0)
        self.listen: Callable[[], bool] = _in_vain
        self._others_ring = False
        self._happened = time.monotonic()
        self._before = 0.0
        self._looked = 0.0
        self._touched = False

    def join(self, connection: sqlite3.Connection, waiter: Waiter) -> bool:
        """Whether something is ready now; if not, the waiter is woken when something may be."""
        now = self._now()
        changes = _changes(connection)
        with self._lock:
            if not self._waiters:
                self._changes, self._before = changes, now
                self._looked = time.monotonic()
            if not waiter.gone:
                self._waiters.add(waiter)  # before the look: what comes after it finds somebody
        try:
            self._others_ring = self.listen()
            ready, due = self._look(connection, waiter.namespace, now)
        except BaseException:
            self.leave(waiter)
            raise
        self._note(waiter, due)
        if ready:
            self.leave(waiter)
        return ready

    def leave(self, waiter: Waiter) -> None:
        """It waits no more."""
        with self._lock:
            waiter.gone = True
            self._waiters.discard(waiter)

    def changed(self, namespace: str, moment: float | None) -> bool:
        """Something is visible now, or from `moment` on; whether to look earlier than planned."""
        self._happened = time.monotonic()
        with self._lock:
            waiters = [waiter for waiter in self._waiters if waiter.namespace == namespace]
            if moment is None:
                self._waiters.difference_update(waiters)
            else:
                waiters = [waiter for waiter in waiters if moment < waiter.due]
                for waiter in waiters:
                    waiter.due = moment
                return bool(waiters)
        for waiter in waiters:
            waiter.wake()
        return False

    def touched(self) -> bool:
        """An application has been at the file by itself; whether somebody waits for a look."""
        self._happened = time.monotonic()
        self._touched = True
        return bool(self._waiters)

    def end(self) -> None:
        """Wake everybody: the database is being closed."""
        with self._lock:
            waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            waiter.wake()

    def pause(self) -> float | None:
        """Seconds until the next look, none left if it is time; `None` while nobody waits."""
        with self._lock:
            if not self._waiters:
                return None
            due = min(waiter.due for waiter in self._waiters)
            poll = min(waiter.poll for waiter in self._waiters)
            since = time.monotonic() - self._looked
        if self._others_ring and poll >= USUAL:
            poll = max(poll, min((time.monotonic() - self._happened) / 10, QUIET))
        try:
            due -= self._now()
        except Exception:  # a clock of somebody's own: the look will tell the waiters
            due = 0
        return max(min(poll - since, due, LONGEST), QUICK - since)

    def look(self, opened: Callable[[], sqlite3.Connection]) -> None:
        """Wake those for whom something is ready, and those for whom nobody can tell."""
        with self._lock:
            self._looked = time.monotonic()
            waiters = tuple(self._waiters)
        try:
            connection = opened()
            now = self._now()
            changes = _changes(connection)
            anything = self._touched or changes != self._changes or now < self._before
            self._touched = False
            self._changes, self._before = changes, now
            if anything:
                self._happened = time.monotonic()
            seen: dict[str, Seen] = {}
            due_ones = [waiter for waiter in waiters if anything or waiter.due <= now]
            for waiter in due_ones:
                waiter.due = math.inf  # what is said from here on is not lost in what is seen
            for waiter in due_ones:
                if waiter.namespace not in seen:
                    seen[waiter.namespace] = self._look(connection, waiter.namespace, now)
                ready, due = seen[waiter.namespace]
                self._note(waiter, due)
                if ready:
                    self.leave(waiter)
                    waiter.wake()
        except Exception:  # they look for themselves, and are told what is wrong
            for waiter in waiters:
                self.leave(waiter)
                waiter.wake()

    def _note(self, waiter: Waiter, due: float | None) -> None:
        with self._lock:
            waiter.due = min(waiter.due, math.inf if due is None else due)


def _changes(connection: sqlite3.Connection) -> tuple[int, int]:
    """What differs once another connection has committed; no two connections count alike."""
    cursor = connection.cursor()
    cursor.row_factory = None
    (changes,) = cursor.execute(CHANGES).fetchone()
    return id(connection), int(changes)
