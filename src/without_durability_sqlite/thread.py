"""The threads that belong to a database: each makes its connection's calls, one after another.

What waits for it is a future of the caller's loop; what tracks it is no task that could be
cancelled. `docs/design.md` argues why.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sqlite3
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar, cast

from .errors import Misuse
from .files import Identity, OpenFile
from .jobs import Job, inside, told
from .watching import Watch

T = TypeVar("T")
ThreadT = TypeVar("ThreadT", bound="DatabaseThread")

PATIENCE = 1.0
"""Seconds that closing and interpreter exit wait for the thread before they say so."""

GIVING_UP = 2.0
"""Seconds that interpreter exit gives interrupted work to end before it leaves it behind."""

SHARING = 200
"""How many writes share a transaction at the most."""

logger = logging.getLogger("without_durability_sqlite")

_threads: weakref.WeakValueDictionary[int, DatabaseThread] = weakref.WeakValueDictionary()


def _known() -> list[DatabaseThread]:
    """Every thread there is: a copy, since databases are opened from any thread meanwhile."""
    return [thread for known in _threads.valuerefs() if (thread := known()) is not None]


_here = os.getpid()
"""This process, known without asking: that would cost as much as the rest of a call's way in."""


def _forked() -> None:
    global _here
    _here = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _answer(jobs: list[Job[Any]]) -> None:
    for job in jobs:
        job.answer()


Item: TypeAlias = Job[Any] | Callable[[], None]
"""What stands in a thread's line: somebody's job, or a call that nobody waits for."""


def _one_by_one(jobs: list[Job[Any]]) -> list[Job[Any]]:
    for job in jobs:
        job.perform()
    return []


class Hold:
    """The thread kept idle for somebody who uses the connection directly, until `released`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.task = asyncio.current_task()
        self.released = threading.Event()


def _nothing() -> None:
    pass


def check_not_inherited(file: Identity | None) -> None:
    """`Misuse` for a file that this process inherited open, through a fork.

    SQLite's own account of its locks came along and the locks did not: what a second connection
    writes here may be lost without a word.
    """
    pid = os.getpid()
    for thread in _known():
        theirs = thread.file.identity if thread.file is not None else None
        if file is not None and theirs == file and not thread.closed and thread.pid != pid:
            raise Misuse(
                "this file was open in the parent process when it forked, and cannot be opened "
                "safely here: spawn the process instead, or fork before the file is opened"
            )


class DatabaseThread:
    """A daemon thread that performs jobs in the order they were put, until it is closed.

    `together` performs jobs that share, and returns those that it left for later. A second thread
    of the same database names its `home`, the one that callers are checked by.
    """

    def __init__(
        self, connection: sqlite3.Connection | None, home: DatabaseThread | None = None
    ) -> None:
        self.connection = connection
        self.home = home or self
        self.file: OpenFile | None = None
        self.busy_timeout = 0
        self.closed = False
        self.ending = False
        self.hold: Hold | None = None
        self.together: Callable[[list[Any]], list[Any]] = _one_by_one
        self.at_rest: Callable[[], None] = _nothing
        self.at_close: Callable[[], None] = _nothing
        self.answered: Callable[[], None] = _nothing
        self.watch: Watch | None = None
        self.reader: DatabaseThread | None = None
        self.owing: set[Job[Any]] = set()
        self._working: list[Job[Any]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.pid = os.getpid()
        self._jobs: SimpleQueue[Item] = SimpleQueue()
        self._head: deque[Item] = deque()
        self._lock = threading.Lock()
        self._foreign = False
        self._in_line = 0
        self._thread = threading.Thread(
            target=self._serve, name="without_durability_sqlite", daemon=True
        )
        self._thread.start()
        _threads[id(self)] = self

    def check_caller(self) -> asyncio.AbstractEventLoop:
        """The running loop, if it may use the thread now; `RuntimeError` saying why it may not."""
        if _here != self.pid:
            self.check_process()
        job = inside.get()
        if job is not None and job.runs_on(self):
            raise Misuse(
                "called back into the database from inside work that it is running: "
                "that would wait for itself"
            )
        loop = asyncio.get_running_loop()
        hold = self.hold
        if hold is not None and not hold.released.is_set() and hold.task is asyncio.current_task():
            raise Misuse("the guard's holder called the database: that would wait for itself")
        if self._loop is not loop:
            self._bind(loop)
        return loop

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if self._loop is not None and self._loop.is_running():
                raise Misuse(
                    "this database is in use by another running event loop: give each its own"
                )
            self._loop = loop

    @property
    def is_own_process(self) -> bool:
        """Whether this is the process that opened the database, and not a fork of it."""
        return os.getpid() == self.pid

    def check_file(self) -> None:
        """Raise when the file that is open is no longer where its path leads."""
        if self.file is not None:
            self.file.check()

    def check_process(self) -> None:
        """`Misuse` in a fork of the process that opened the database."""
        if not self.is_own_process:
            raise Misuse(
                "this database was opened by another process, before a fork: "
                "open it where it is used, in a spawned process"
            )

    def submit(
        self,
        work: Callable[[Job[T]], T],
        undo: Callable[[T], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> Job[T]:
        """Put work in line for the running loop; await the job's `result`."""
        return self.put(Job(self, self.home.check_caller(), work, undo, after))

    def put(self, job: Job[T]) -> Job[T]:
        """Put a job in line."""
        with self._lock:
            if self.closed:
                raise sqlite3.ProgrammingError("the database is closed")
            self._in_line += 1
            self._jobs.put(job)
        return job

    @property
    def busy(self) -> bool:
        """Whether a caller's job is in line or under way."""
        return self._in_line > 0

    def later(self, call: Callable[[], None]) -> None:
        """Run a call that nobody waits for, after what is in line."""
        self._jobs.put(call)

    def probe(self) -> sqlite3.Error | None:
        """What the driver says to being called from the thread, before anything is in line."""
        answers: SimpleQueue[sqlite3.Error | None] = SimpleQueue()

        def touch() -> None:
            try:
                assert self.connection is not None
                self.connection.cursor().close()
            except sqlite3.Error as error:
                self.closed = True
                answers.put(error)
            else:
                answers.put(None)

        self.later(touch)
        return answers.get()

    def foreign(self, call: Callable[[], T]) -> T:
        """Run what interpreter exit may interrupt and leave behind: others' code, and reads."""
        with self._lock:
            self._foreign = True
        try:
            return call()
        finally:
            with self._lock:
                self._foreign = False

    def stop(self) -> None:
        """Let the thread end and leave the connection to whoever handed it over."""
        self.closed = True
        self.later(_nothing)

    def close(self) -> None:
        """Close the connection, on the thread, after its reader's, and let the thread end."""
        with self._lock:
            self.closed = True
        for thread in (self, self.reader):
            if thread is not None and thread.watch is not None:
                thread.watch.end()
        if self.reader is not None:
            self.reader.later(self.reader.close)
            if not self.ending:
                self.reader.join()
        if self.connection is not None:
            self.connection.close()
        self.at_close()

    def nudge(self) -> None:
        """Have the thread that reads plan its next look anew."""
        (self.reader or self).later(_nothing)

    def with_reader(self, made: Callable[[], ThreadT]) -> ThreadT:
        """The thread that reads beside this one, made when it is first asked for."""
        with self._lock:
            if self.closed:
                raise sqlite3.ProgrammingError("the database is closed")
            if self.reader is None:
                self.reader = made()
            return cast(ThreadT, self.reader)

    def opened(self) -> sqlite3.Connection:
        """The connection, on the thread."""
        assert self.connection is not None
        return self.connection

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def discard(self) -> None:
        """Close once what is in line is done: nobody refers to the database any more."""
        if self.is_own_process and not self.closed:
            self.later(self.close)
            warnings.warn("a database was dropped without aclose()", ResourceWarning, stacklevel=2)

    def _serve(self) -> None:
        connection = self.connection
        while not (self.closed and not self._head and self._jobs.empty()):
            item = self._next()
            try:
                if not isinstance(item, Job):
                    item()
                    self.answered()
                elif item.shares:
                    self._work_on(self._beside(item), self.together)
                else:
                    self._work_on([item], _one_by_one)
            except BaseException:
                logger.exception("a call that nobody waits for failed")
            del item  # a finished job must not live on until the next one comes
            # This frame refers to the connection: in a forked child it is never unwound, so that
            # the child's exit closes nothing of the parent's.
            connection = self.connection
            if self.hold is not None:
                self._wait_for(self.hold)
                self.hold = None
        del connection

    def _next(self) -> Item:
        """What is first in line; while there is nothing, look out for what others do."""
        while True:
            pause = self.watch.pause() if self.watch is not None else None
            if self.watch is not None and pause is not None and pause <= 0:
                self.watch.look(self.opened)  # jobs that keep coming do not put it off
            elif self._head:
                return self._head.popleft()
            else:
                with suppress(Empty):
                    return self._jobs.get(timeout=pause)

    def _beside(self, first: Job[Any]) -> list[Job[Any]]:
        """The jobs at the head of the line that share, `first` among them, up to a bound."""
        sharing = [first]
        while len(sharing) < SHARING and (self._head or not self._jobs.empty()):
            item = self._head.popleft() if self._head else self._jobs.get_nowait()
            if not (isinstance(item, Job) and item.shares):
                self._head.appendleft(item)
                break
            sharing.append(item)
        return sharing

    def _work_on(
        self, jobs: list[Job[Any]], perform: Callable[[list[Job[Any]]], list[Job[Any]]]
    ) -> None:
        """Perform those whose callers are still there, and answer all but those that are left."""
        self._working = jobs
        wanted = [job for job in jobs if job.admitted()]
        try:
            left = perform(wanted)
            self._head.extendleft(reversed(left))
            if left:
                jobs = [job for job in jobs if job not in left]
        except BaseException as error:  # nobody may wait for ever
            for job in wanted:
                job.fail(error)
        self._working = []
        if wanted and wanted[0].unfinished:  # it runs alone, and its caller is still there
            self._jobs.put(wanted[0])
            return
        unheard = [job for job in jobs if job.finish()]
        for job in unheard:  # before anybody else may use the connection
            job.unheard()
        with self._lock:
            self._in_line -= len(jobs)
        while jobs:
            loop = jobs[0].loop  # nearly always everybody's
            theirs = [job for job in jobs if job.loop is loop]
            if not told(loop, _answer, theirs):
                _answer(theirs)
                for job in theirs:
                    if job not in unheard:
                        job.unheard()
            jobs = [job for job in jobs if job.loop is not loop] if len(theirs) < len(jobs) else []
        self.answered()

    def _wait_for(self, hold: Hold) -> None:
        while not hold.released.wait(0.05):
            if self.ending or not hold.loop.is_running():
                return

    def end(self) -> None:
        """Interpreter exit: close, and wait for others' work only so long."""
        if not self.is_own_process or not self._thread.is_alive() or self.ending:
            return
        if self.reader is not None:
            self.reader.end()
        self.ending = True  # what has not begun has no caller left
        self.later(self.close)
        self._thread.join(PATIENCE)
        if not self._thread.is_alive():
            return
        logger.warning("exit waits for work that is still inside a database")
        give_up_at = time.monotonic() + GIVING_UP
        while self._thread.is_alive():
            with self._lock:
                if self._foreign and self.connection is not None:
                    self.connection.interrupt()
                working = self._working
                unwanted = bool(working) and all(job.unwanted for job in working)
                owed = not self._foreign and not unwanted
            if not owed and time.monotonic() >= give_up_at:
                logger.error("exit leaves work behind that did not end")
                return
            self._thread.join(PATIENCE / 10)


@atexit.register
def _end_all() -> None:
    for thread in _known():
        thread.end()
