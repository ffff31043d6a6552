"""One memory store and one SQLite file, asked the same things, and what must agree."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, ClassVar, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from batches import Interposed
from state_machine.cutting import MOMENTS, Moment, cut
from stores import Stores
from thread_gates import plain
from without_durability import (
    INBOX,
    Fenced,
    MemoryCheckpointer,
    MemoryScheduler,
    SplitDurable,
    WorkflowCancelled,
    WorkflowFailed,
    Written,
)
from without_durability.testing import Clock
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    migrate,
)

TICK = timedelta(seconds=1)
WORKFLOWS = ("v", "w")
QUEUES = ("mail", "post")
REFUSALS = (
    *(Fenced, ValueError, TypeError, LookupError, sqlite3.IntegrityError),
    *(TimeoutError, WorkflowFailed, WorkflowCancelled),
)


@dataclass(frozen=True)
class Both:
    """The same thing as each store names it: a pass, a delivery, an answer."""

    memory: Any = None
    sqlite: Any = None


NOTHING = Both()
UNHEARD = Both("unheard", "unheard")
"""The answer to a call that was cancelled."""

Call: TypeAlias = Callable[[Stores, Any], Awaitable[Any]]


async def answer(call: Callable[[], Awaitable[Any]]) -> Any:
    """What a call returns; a refusal is an answer too."""
    try:
        return await call()
    except REFUSALS as error:
        return type(error).__name__


def contents(connection: sqlite3.Connection) -> list[list[Any]]:
    """Every row of the file."""
    tables = ("workflow_checkpoint", "workflow_claim", "workflow_queue", "workflow_run")
    return [
        connection.execute(f"SELECT * FROM {table}").fetchall()
        for table in (*tables, "workflow_count", "app")
    ]


class Asking(RuleBasedStateMachine):
    """Both stores and their clocks; whichever database is asked, the other one must see it.

    The wall's clock can be set, a steady one cannot: memory measures by the latter. No rule's
    choices may depend on what a store did: threads decide some of that.
    """

    namespaces: ClassVar[dict[str, str]] = {queue: queue for queue in QUEUES}
    """What each queue is called in the file."""

    workflows: tuple[str, ...] = WORKFLOWS

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda _, context: self.unheard.append(context))
        self.unheard: list[dict[str, Any]] = []
        self.clock, self.steady = Clock(), Clock()
        self.standing = False
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name, "workflows.db")
        self.databases = [interposed_database(path, self.clock) for _ in range(2)]
        records = MemoryCheckpointer(clock=self.steady.seconds, now=self.clock.now)
        self.memory = self.over_memory(records)
        self.sqlite = [
            {queue: self.over_sqlite(database, name) for queue, name in self.namespaces.items()}
            for database in self.databases
        ]
        for database in self.databases:
            self.run(migrate(database))
            self.run(database.run(quick))
        for table in ("app AS SELECT 0 AS count", "once AS SELECT 1 AS taken"):
            self.run(
                self.databases[0].run(lambda c, t=table: c.execute(f"CREATE TABLE {t}").close())
            )
        unique = "CREATE UNIQUE INDEX one ON once (taken)"
        self.run(self.databases[0].run(lambda c: c.execute(unique).close()))
        self.passes: defaultdict[str, list[Both]] = defaultdict(list)
        self.deliveries: defaultdict[tuple[str, str], list[Both]] = defaultdict(list)
        self.ends: list[float] = []
        self.moments: list[Moment] = []

    def over_memory(self, records: MemoryCheckpointer) -> dict[str, Stores]:
        return {
            queue: Stores(
                SplitDurable(records, MemoryScheduler(clock=self.steady.seconds)), self.clock
            )
            for queue in QUEUES
        }

    def over_sqlite(self, database: Database, queue: str) -> Stores:
        scheduler = SqliteScheduler(database, queue)
        return Stores(SqliteDurable(SqliteCheckpointer(database), scheduler), self.clock)

    @initialize(seed=st.integers(0, 2**16))
    def take_turns(self, seed: int) -> None:
        """Which of the two databases is asked each time."""
        self.turns = Random(seed)

    def teardown(self) -> None:
        try:
            for at in (0, 1):
                self.run(self.check_records(at))
            for context in self.unheard:
                assert isinstance(context["exception"], REFUSALS), context
        finally:
            for database in self.databases:
                self.run(database.aclose())
            self.loop.close()
            self.folder.cleanup()

    def run(self, awaitable: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(awaitable)

    def pass_time(self, length: timedelta) -> None:
        self.clock.advance(length)
        self.steady.advance(length)

    # --- asking both ---

    def ask(
        self,
        call: Call,
        its: Both = NOTHING,
        queue: str = "mail",
        *,
        whole: bool = True,
        give_back: Call | None = None,
        undone: bool = False,
    ) -> Both:
        """One call on each store, and then time has passed.

        Only a call that happens `whole` or not at all is ever cancelled, and then its answer is
        `UNHEARD`. What it granted is given back: `give_back` is how memory does that, and `undone`
        leaves nothing to give back.
        """
        moment = self.moments.pop() if whole and self.moments else None
        answers = self.run(self.asked(call, its, queue, moment, give_back, undone))
        if not self.standing:
            self.pass_time(TICK)
        return answers

    def same(self, call: Call, its: Both = NOTHING, queue: str = "mail") -> None:
        answers = self.ask(call, its, queue)
        assert answers.memory == answers.sqlite

    async def asked(
        self,
        call: Call,
        its: Both,
        queue: str,
        moment: Moment | None,
        give_back: Call | None,
        undone: bool,
    ) -> Both:
        at = self.turns.randrange(2)
        memory, sqlite = self.memory[queue], self.sqlite[at][queue]

        async def of_memory() -> Any:
            return await answer(lambda: call(memory, its.memory))

        async def of_sqlite() -> Any:
            return await answer(lambda: call(sqlite, its.sqlite))

        if moment is None:
            answers = Both(await of_memory(), await of_sqlite())
        else:
            heard, happened = await self.cancelled(of_sqlite, at, moment)
            given = await of_memory() if heard or (happened and not undone) else None
            answers = Both(given, *heard) if heard else UNHEARD
            if not heard and give_back is not None and given is not None:
                await give_back(memory, given)
            await self.check_records(1 - at)
        await self.check_deadlines(1 - at)
        await self.check_ledger(1 - at)
        return answers

    async def cancelled(
        self, call: Callable[[], Awaitable[Any]], at: int, moment: Moment
    ) -> tuple[tuple[Any, ...], bool]:
        """Cancel the call at that moment: what was heard, and whether it happened."""
        one, other = self.databases[at], self.databases[1 - at]
        before = await other.run(contents)
        result = await cut(moment, call, one, other)
        after = await other.run(contents)
        assert result.begun is not False or after == before, "it happened without having begun"
        return result.heard, bool(result.begun) or after != before

    @rule(moments=st.lists(st.sampled_from(MOMENTS), min_size=1, max_size=5))
    def cancel_the_next_calls(self, moments: list[Moment]) -> None:
        self.moments = moments

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Nothing is cancelled in here: what follows is."""
        moments, self.moments = self.moments, []
        yield
        self.moments = moments

    @contextmanager
    def no_time_passes(self) -> Iterator[None]:
        """Until the end of this, and then it does."""
        self.standing = True
        yield
        self.standing = False
        self.pass_time(TICK)

    # --- what must agree ---

    async def check_ledger(self, at: int) -> None:
        """Where memory keeps one."""

    async def check_deadlines(self, at: int) -> None:
        """Seconds left of every claim, liveness and budget, and of every wakeup."""
        claims, wakeups = await self.databases[at].run(self.seconds_left)
        held = {
            workflow: (left(claim.alive_until, self.steady), left(claim.held_until, self.steady))
            for workflow, claim in self.memory["mail"].checkpointer.claims.items()
        }
        found = {one: (rounded(alive), rounded(budget)) for one, alive, budget, *_ in claims}
        assert self.standing_claims(found) == self.standing_claims(held)
        waiting = {}
        for alias, stores in self.memory.items():
            name, queue = self.namespaces[alias], stores.scheduler
            waiting |= {(name, one): 0.0 for one in queue.queue}
            for one, when in queue.sleeping.items():
                waiting[name, one] = left(when.timestamp(), self.clock)
            for one, (_, until) in queue.outstanding.items():
                waiting[name, one] = left(until, self.steady)
        assert {(name, one): rounded(until) for name, one, until, *_ in wakeups} == waiting
        self.ends = [end for end in (*sum(held.values(), ()), *waiting.values()) if end]

    def standing_claims(self, claims: dict[str, tuple[float, float]]) -> dict[str, Any]:
        """Those that both stores must have."""
        return claims

    def seconds_left(self, connection: sqlite3.Connection) -> tuple[list[Any], list[Any]]:
        """Of the claims and of the wakeups, as the file holds them."""
        claims = """
            SELECT workflow, alive_until - max(:now, seen_at), held_until - max(:now, seen_at),
                alive_for, seen_at FROM workflow_claim"""
        wakeups = "SELECT namespace, workflow, visible_at - :now, taken_for FROM workflow_queue"
        now = {"now": self.clock.seconds()}
        return tuple(connection.execute(query, now).fetchall() for query in (claims, wakeups))

    async def check_records(self, at: int) -> None:
        """Keys, values, moments and order, and what the effects have left behind."""
        sqlite = self.sqlite[at]["mail"].checkpointer
        memory = self.memory["mail"].checkpointer
        for workflow in self.workflows:
            histories = [await store.history(workflow) for store in (memory, sqlite)]
            assert ranked(histories[0]) == ranked(histories[1])
            for store, history in zip((memory, sqlite), histories, strict=True):
                loaded = await store.load(workflow)
                assert [*loaded.items()] == [(key, one.value) for key, one in history.items()]
        ((count,),) = await self.databases[at].run(
            lambda c: c.execute("SELECT count FROM app").fetchall()
        )
        assert count == memory.data.get("count", 0)


def interposed_database(path: Path, clock: Clock) -> Database:
    """As `connect` gives it, over a connection that a rule can make fail."""
    connection = plain(path, factory=Interposed)
    connection.execute("PRAGMA journal_mode = WAL")
    return Database(connection, clock=clock.seconds)


def quick(connection: sqlite3.Connection) -> None:
    """What a disk keeps is for other tests to say, and these make thousands of commits."""
    connection.execute("PRAGMA synchronous = OFF")


def left(until: float, clock: Clock) -> float:
    return rounded(until - clock.seconds())


def rounded(seconds: float) -> float:
    return round(max(0.0, seconds), 5)


def ranked(history: dict[str, Written]) -> list[tuple[str, Any, Any]]:
    """Stores number inboxes each in its own way: there, ranks are compared, cursors included."""
    inbox = sorted(key for key in history if key.startswith(INBOX))
    ranks: dict[Any, str] = {key: f"message {rank}" for rank, key in enumerate(inbox)}
    return [
        (
            ranks.get(key, key),
            ranks.get(one.value, one.value) if isinstance(one.value, str) else one.value,
            one.at,
        )
        for key, one in history.items()
    ]
