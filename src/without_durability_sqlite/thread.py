"""The threads that belong to a database: each makes its connection's calls, one after another.

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
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar, cast

from .errors import Misuse
from .files import Identity, OpenFile
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

_inside: contextvars.ContextVar[Job[Any] | None] = contextvars.ContextVar("_inside", default=None)
"""The job whose work this context runs in, also in what that work handed to a loop."""

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


class Abandoned(BaseException):
    """The caller of a job is gone: whatever has not begun shall not happen (C17)."""


def _at_once(call: Callable[[], None]) -> None:
    call()


class Job(Generic[T]):
    """One piece of work on its way through a thread, and the caller waiting for it.

    `undo` gives back what the work granted, should its caller never hear of it (C17, S9).
    `after` is called on the loop once the thread has let go, whatever became of the caller.
    """

    __slots__ = (
        "_after",
        "_begun",
        "_caller_gone",
        "_context",
        "_declined",
        "_error",
        "_finished",
        "_future",
        "_lock",
        "_outer",
        "_undo",
        "_value",
        "_work",
        "loop",
        "thread",
        "unfinished",
    )

    shares = False
    """Whether it may be performed in one go with those beside it in line."""

    def __init__(
        self,
        thread: DatabaseThread,
        loop: asyncio.AbstractEventLoop,
        work: Callable[..., T],
        undo: Callable[[T], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        self.thread = thread
        self.loop = loop
        self.unfinished = False  # its work goes on, once others have had their turn
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

    def runs_on(self, home: DatabaseThread) -> bool:
        """Whether this work, or one that it runs inside of, keeps a thread of the database busy."""
        if self.thread.home is home and not self._finished:
            return True
        return self._outer is not None and self._outer.runs_on(home)

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
                if self._undo is not None:
                    self.thread.owing.add(self)
            if finished:
                self.unheard(self.thread.later)
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

    def admitted(self) -> bool:
        """Whether it is still to be performed: its caller is there, and so is the database."""
        if self.unfinished:
            pass
        elif self.thread.closed:
            self._error = sqlite3.ProgrammingError("the database is closed")
        elif self.thread.ending:
            self._error = sqlite3.ProgrammingError("the interpreter is ending")
        return self._error is None and not self._caller_gone

    def attempt(self, *handed: Any) -> BaseException | None:
        """Do the work in its caller's context, and keep what it returned; what it raised."""
        self._value = self._error = None
        try:
            self._value = self._context.run(self._marked, *handed)
        except Abandoned:
            return None
        except BaseException as error:
            self.unfinished = False
            return error
        return None

    def fail(self, error: BaseException) -> None:
        """Keep an error for the caller."""
        self._value, self._error = None, error

    def perform(self) -> None:
        """Do the work by itself."""
        error = self.attempt(self)
        if error is not None:
            self.fail(error)

    def finish(self) -> bool:
        """Nothing more happens to it; whether its caller has gone and will never hear of it."""
        self._work = (
            _performed  # tasks begun in its context keep this job, and it shall keep little
        )
        del self._context
        with self._lock:
            self._finished = True
            return self._caller_gone

    def _give_back(self) -> None:
        if self._undo is not None and self._value is not None:
            self._undo(self._value)
        self.thread.owing.discard(self)

    def _marked(self, *handed: Any) -> T:
        outer = _inside.get()
        if outer is not self:  # as it is when the work runs again
            self._outer = outer
            _inside.set(self)
        return self._do(*handed)

    def _do(self, *handed: Any) -> T:
        return self._work(*handed)

    def answer(self) -> None:
        """On the loop: let the caller go on."""
        try:
            if self._after is not None:
                self._after()
        finally:
            if not self._future.done() and not self.loop.is_closed():
                self._future.set_result(None)

    def unheard(self, run: Callable[[Callable[[], None]], None] = _at_once) -> None:
        """The work is done and its caller will never hear of it: undo it, or report its error."""
        error, self._error = self._error, None
        if error is None and not self._declined:
            run(self._give_back)
            return
        self.thread.owing.discard(self)
        if self._declined or error is None:  # its caller has been told, and nothing began
            return
        report = {"message": "database work failed after its caller had gone", "exception": error}
        if not told(self.loop, self.loop.call_exception_handler, report):
            logger.error(
                "database work failed after its event loop had closed",
                exc_info=(type(error), error, error.__traceback__),
            )


def told(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *arguments: object
) -> bool:
    """Have the loop call back; `False` when it is closed, and nobody waits any more."""
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        return False
    return True


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


def _performed(*_: object) -> Any:
    raise AssertionError("a job is performed once")


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
