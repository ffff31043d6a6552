"""A piece of work for a database's thread, and how its caller hears what became of it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sqlite3
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from .thread import DatabaseThread

T = TypeVar("T")

logger = logging.getLogger("without_durability_sqlite")

inside: contextvars.ContextVar[Job[Any] | None] = contextvars.ContextVar("inside", default=None)
"""The job whose work this context runs in, also in what that work handed to a loop."""


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
        outer = inside.get()
        if outer is not self:  # as it is when the work runs again
            self._outer = outer
            inside.set(self)
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


def _performed(*_: object) -> Any:
    raise AssertionError("a job is performed once")
