"""The thread that belongs to a database: every driver call happens on it, one after another.

What waits for it is a future of the caller's loop; what tracks it is no task that could be
cancelled. `docs/design.md` argues why.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import logging
import os
import sqlite3
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from .errors import Misuse
from .files import Identity, OpenFile

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds that closing and interpreter exit wait for the thread before they say so."""

GIVING_UP = 2.0
"""Seconds that interpreter exit gives interrupted work to end before it leaves it behind."""

logger = logging.getLogger("without_durability_sqlite")

_inside: contextvars.ContextVar[Job[Any] | None] = contextvars.ContextVar("_inside", default=None)
"""The job whose work this context runs in, also in what that work handed to a loop."""

_threads: weakref.WeakValueDictionary[int, DatabaseThread] = weakref.WeakValueDictionary()


def _known() -> list[DatabaseThread]:
    """Every thread there is: a copy, since databases are opened from any thread meanwhile."""
    return [thread for known in _threads.valuerefs() if (thread := known()) is not None]


class Abandoned(BaseException):
    """The caller of a job is gone: whatever has not begun shall not happen (C17)."""


class Job(Generic[T]):
    """One piece of work on its way through the thread, and the caller waiting for it.

    `undo` gives back what the work granted, should its caller never hear of it (C17, S9).
    `after` is called on the loop once the thread has let go, whatever became of the caller.
    """

    def __init__(
        self,
        thread: DatabaseThread,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[Job[T]], T],
        undo: Callable[[T], None] | None,
        after: Callable[[], None] | None,
    ) -> None:
        self.thread = thread
        self._loop = loop
        self._work = work
        self._undo = undo
        self._after = after
        self._future: asyncio.Future[None] = loop.create_future()
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._caller_gone = False
        self._outer: Job[Any] | None = None
        self._begun = False
        self._declined = False
        self._finished = False
        self._value: Any = None
        self._error: BaseException | None = None

    def runs_on(self, thread: DatabaseThread) -> bool:
        """Whether this work, or one that it runs inside of, keeps the thread busy."""
        if self.thread is thread and not self._finished:
            return True
        return self._outer is not None and self._outer.runs_on(thread)

    @property
    def unwanted(self) -> bool:
        """Whether the caller has gone and nothing has begun."""
        return self._caller_gone and not self._begun

    def begin(self) -> None:
        """The last word before an operation begins: `Abandoned` when the caller is gone."""
        with self._lock:
            if self._caller_gone:
                raise Abandoned
            self._begun = True

    async def result(self, within: float | None = None) -> T:
        """What the work returned or raised; a cancelled caller unwinds at once.

        `TimeoutError` when the work has not begun `within` seconds: then it never will.
        """
        try:
            if within is not None:
                await asyncio.wait((self._future,), timeout=within)
                self._check_begun()
            await self._future
        except BaseException:  # cancelled, or the loop is closed and this coroutine with it
            with self._lock:
                self._caller_gone = True
                finished = self._finished
            if finished:
                self._unheard(self.thread.later)
            raise
        try:
            if self._error is not None:
                raise self._error
            return self._value  # type: ignore[no-any-return]
        finally:
            self._error = None  # a kept traceback would keep this frame, and it the error

    def _check_begun(self) -> None:
        with self._lock:
            if not self._begun and not self._finished:
                self._caller_gone = self._declined = True
                raise TimeoutError

    def perform(self) -> None:
        """Run the work, on the thread, unless its caller has gone already."""
        self.thread.job = self
        if self.thread.closed:
            self._error = sqlite3.ProgrammingError("the database is closed")
        elif self.thread.ending:
            self._error = sqlite3.ProgrammingError("the interpreter is ending")
        elif not self._caller_gone:
            try:
                self._value = self._context.run(self._marked)
            except Abandoned:
                pass
            except BaseException as error:
                self._error = error
        self._work = _nothing  # the context refers to this job, and the work to who knows what
        self.thread.job = None
        self.thread.leave()
        with self._lock:
            self._finished = True
            caller_gone = self._caller_gone
        if not self._told(self._deliver):
            self._deliver()
            caller_gone = True
        if caller_gone:
            self._unheard(lambda undo: undo())

    def _told(self, callback: Callable[..., object], *arguments: object) -> bool:
        """Have the loop call back; `False` when it is closed, and nobody waits any more."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            return False
        return True

    def _marked(self) -> T:
        self._outer = _inside.get()
        _inside.set(self)
        return self._work(self)

    def _deliver(self) -> None:
        if self._after is not None:
            self._after()
        if not self._future.done() and not self._loop.is_closed():
            self._future.set_result(None)

    def _unheard(self, run: Callable[[Callable[[], None]], None]) -> None:
        """The work is done and its caller will never hear of it: undo it, or report its error."""
        error, self._error = self._error, None
        if self._declined:  # its caller has been told, and nothing began
            return
        if error is None:
            undo, value = self._undo, self._value
            if undo is not None and value is not None:
                run(lambda: undo(value))
            return
        report = {"message": "database work failed after its caller had gone", "exception": error}
        if not self._told(self._loop.call_exception_handler, report):
            logger.error(
                "database work failed after its event loop had closed",
                exc_info=(type(error), error, error.__traceback__),
            )


class Hold:
    """The thread kept idle for somebody who uses the connection directly, until `released`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.task = asyncio.current_task()
        self.released = threading.Event()


def _nothing(_: Job[Any]) -> Any:
    raise AssertionError("a job is performed once")


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
    """A daemon thread that performs jobs in the order they were put, until it is closed."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.file: OpenFile | None = None
        self.closed = False
        self.ending = False
        self.hold: Hold | None = None
        self.job: Job[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.pid = os.getpid()
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._foreign = False
        self._in_line = 0
        # The thread's own frame refers to the connection: in a forked child that frame is never
        # unwound, so that the child's exit closes nothing of the parent's.
        self._thread = threading.Thread(
            target=self._serve, args=(connection,), name="without_durability_sqlite", daemon=True
        )
        self._thread.start()
        _threads[id(self)] = self

    def check_caller(self) -> asyncio.AbstractEventLoop:
        """The running loop, if it may use the thread now; `RuntimeError` saying why it may not."""
        self.check_process()
        job = _inside.get()
        if job is not None and job.runs_on(self):
            raise Misuse(
                "called back into the database from inside work that it is running: "
                "that would wait for itself"
            )
        loop = asyncio.get_running_loop()
        hold = self.hold
        if hold is not None and not hold.released.is_set() and hold.task is asyncio.current_task():
            raise Misuse("the guard's holder called the database: that would wait for itself")
        with self._lock:
            bound = self._loop
            if bound is not loop and bound is not None and bound.is_running():
                raise Misuse(
                    "this database is in use by another running event loop: give each its own"
                )
            self._loop = loop
        return loop

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
        job = Job(self, self.check_caller(), work, undo, after)
        with self._lock:
            if self.closed:
                raise sqlite3.ProgrammingError("the database is closed")
            self._in_line += 1
            self._jobs.put(job.perform)
        return job

    @property
    def busy(self) -> bool:
        """Whether a caller's job is in line or under way."""
        return self._in_line > 0

    def leave(self) -> None:
        """A caller's job is over."""
        with self._lock:
            self._in_line -= 1

    def later(self, call: Callable[[], None]) -> None:
        """Run a call that nobody waits for, after what is in line."""
        self._jobs.put(call)

    def probe(self) -> sqlite3.Error | None:
        """What the driver says to being called from the thread, before anything is in line."""
        answers: SimpleQueue[sqlite3.Error | None] = SimpleQueue()

        def touch() -> None:
            try:
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
        self.later(lambda: None)

    def close(self) -> None:
        """Close the connection, on the thread, and let the thread end."""
        with self._lock:
            self.closed = True
        self.connection.close()

    def discard(self) -> None:
        """Close once what is in line is done: nobody refers to the database any more."""
        if self.is_own_process and not self.closed:
            self.later(self.close)
            warnings.warn("a database was dropped without aclose()", ResourceWarning, stacklevel=2)

    def _serve(self, connection: sqlite3.Connection) -> None:
        while not (self.closed and self._jobs.empty()):
            call = self._jobs.get()
            try:
                call()
            except BaseException:
                logger.exception("a call that nobody waits for failed")
            del call  # a finished job must not live on until the next one comes
            if self.hold is not None:
                self._wait_for(self.hold)
                self.hold = None

    def _wait_for(self, hold: Hold) -> None:
        while not hold.released.wait(0.05):
            if self.ending or not hold.loop.is_running():
                return

    def end(self) -> None:
        """Interpreter exit: close, and wait for others' work only so long."""
        if not self.is_own_process or not self._thread.is_alive():
            return
        self.ending = True  # what has not begun has no caller left
        self.later(self.close)
        self._thread.join(PATIENCE)
        if not self._thread.is_alive():
            return
        logger.warning("exit waits for work that is still inside a database")
        give_up_at = time.monotonic() + GIVING_UP
        while self._thread.is_alive():
            with self._lock:
                if self._foreign:
                    self.connection.interrupt()
                job = self.job
                owed = not self._foreign and not (job is not None and job.unwanted)
            if not owed and time.monotonic() >= give_up_at:
                logger.error("exit leaves work behind that did not end")
                return
            self._thread.join(PATIENCE / 10)


@atexit.register
def _end_all() -> None:
    for thread in _known():
        thread.end()
