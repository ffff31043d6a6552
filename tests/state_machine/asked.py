"""Every call by its name, and the answers of both stores to one."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any, TypeAlias

from hypothesis import strategies as st

from state_machine.arguments import (
    DURATION,
    KEY,
    LIFE,
    MOMENT,
    NOW,
    RECEIPT,
    SHORT,
    START,
    TOKEN,
    VALUE,
    WORKFLOW,
    Kind,
)
from state_machine.asking import ranked
from state_machine.calls import bump
from without_durability import (
    Delivery,
    Entry,
    Fenced,
    MemoryCheckpointer,
    MemoryScheduler,
    Pass,
    SplitDurable,
)
from without_durability.testing import Clock
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    connect,
    migrate,
)

REFUSALS = (TypeError, ValueError, OverflowError, Fenced)
"""The kinds of error that are documented for an argument, by their exact type."""


@dataclass
class Store:
    """One of the two stores, what was taken from its queue, and the clock of both."""

    durable: Any
    clock: Clock
    taken: list[Delivery] = field(default_factory=list)

    @property
    def records(self) -> Any:
        return self.durable.checkpointer

    @property
    def queue(self) -> Any:
        return self.durable.scheduler

    def delivery(self, workflow: Any, receipt: int | str) -> Delivery:
        """The one taken so many takes ago, or one of the workflow's that nobody took."""
        if isinstance(receipt, str):
            return Delivery(workflow, receipt)
        if receipt >= len(self.taken):
            return Delivery(workflow, "never taken")
        return self.taken[-1 - receipt]

    async def take(self) -> list[str]:
        """Everything that is ready; which comes first is each store's own choice."""
        await self.queue.wake_due(self.clock.now())
        taken: list[Delivery] = []
        while (delivery := await self.queue.next_ready(NOW)) is not None:
            taken.append(delivery)
        taken.sort(key=lambda delivery: delivery.workflow)
        self.taken += taken
        return [delivery.workflow for delivery in taken]

    async def take_one(self) -> str | None:
        delivery = await self.queue.next_ready(NOW)
        return None if delivery is None else delivery.workflow

    async def extended(self, workflow: Any, receipt: int | str, within: timedelta) -> bool:
        """Whether extending a delivery gave another one to use from then on."""
        delivery = self.delivery(workflow, receipt)
        extended = await self.queue.extend(delivery, within)
        if extended == delivery:
            return False
        self.taken[-1 - receipt] = extended
        return True

    async def advance(self, length: timedelta) -> None:
        """Time passes once for both stores: for the second one that is asked."""
        if isinstance(self.durable, SqliteDurable):
            self.clock.advance(length)


Asked: TypeAlias = tuple[str, tuple[Any, ...]]
"""A call by name, with its arguments."""

CALLS: dict[str, tuple[Callable[..., Awaitable[Any]], tuple[Kind, ...]]] = {
    "claim": (lambda s, w, *for_: s.records.claim(w, *for_), (WORKFLOW, DURATION, DURATION)),
    "extend": (
        lambda s, w, token, *for_: s.records.extend(Pass(w, token), *for_),
        (WORKFLOW, TOKEN, DURATION, DURATION),
    ),
    "renew": (
        lambda s, w, token, alive: s.records.renew(Pass(w, token), alive),
        (WORKFLOW, TOKEN, DURATION),
    ),
    "release": (lambda s, w, token: s.records.release(Pass(w, token)), (WORKFLOW, TOKEN)),
    "record": (
        lambda s, w, token, *what: s.records.record(Pass(w, token), *what),
        (WORKFLOW, TOKEN, KEY, VALUE),
    ),
    "transact": (
        lambda s, w, token, key, what: s.records.transact(Pass(w, token), key, lambda _: what),
        (WORKFLOW, TOKEN, KEY, VALUE),
    ),
    "supply": (lambda s, *what: s.records.supply(*what), (WORKFLOW, KEY, VALUE)),
    "append": (lambda s, *what: s.records.append(*what), (WORKFLOW, VALUE)),
    "history": (lambda s, w: history(s, w), (WORKFLOW,)),
    "discard": (lambda s, w: s.records.discard(w), (WORKFLOW,)),
    "arrive": (lambda s, *what: s.durable.arrive(*what), (WORKFLOW, KEY, VALUE)),
    "deliver": (lambda s, *what: s.durable.deliver(*what), (WORKFLOW, VALUE)),
    "delete": (lambda s, w: s.durable.delete(w), (WORKFLOW,)),
    "make_ready": (lambda s, w: s.queue.make_ready(w), (WORKFLOW,)),
    "schedule": (lambda s, w, when: s.queue.schedule(w, when), (WORKFLOW, MOMENT)),
    "wake_at": (
        lambda s, w, receipt, when: s.queue.wake_at(s.delivery(w, receipt), when),
        (WORKFLOW, RECEIPT, MOMENT),
    ),
    "extend a delivery": (lambda s, *what: s.extended(*what), (WORKFLOW, RECEIPT, DURATION)),
    "holds": (lambda s, *whose: s.queue.holds(s.delivery(*whose)), (WORKFLOW, RECEIPT)),
    "done": (lambda s, *whose: s.queue.done(s.delivery(*whose)), (WORKFLOW, RECEIPT)),
    "cancel": (lambda s, w: s.queue.cancel(w), (WORKFLOW,)),
    "take": (lambda s: s.take(), ()),
    "take one": (lambda s: s.take_one(), ()),
    "bump": (lambda s, w, token, key: s.records.transact(Pass(w, token), key, bump), ()),
    "advance": (lambda s, length: s.advance(length), (Kind(SHORT, SHORT),)),
}


ANY_CALL = st.sampled_from([name for name in CALLS if name not in ("bump", "take one")])


@st.composite
def asked(draw: st.DrawFn, names: st.SearchStrategy[str] = ANY_CALL) -> Asked:
    """A call with at most one odd argument: which of two is refused first is no promise."""
    name = draw(names)
    _, kinds = CALLS[name]
    odd = draw(st.integers(-1, len(kinds) - 1))
    return name, tuple(
        draw(kind.odd if place == odd else kind.plain) for place, kind in enumerate(kinds)
    )


async def history(store: Store, workflow: Any) -> list[tuple[str, Any, Any]]:
    return ranked(await store.records.history(workflow))


async def answer(store: Store, call: Asked) -> Any:
    """What the call returns, without what each store chooses itself, or how it is refused."""
    name, arguments = call
    function, _ = CALLS[name]
    try:
        value = await function(store, *arguments)
    except REFUSALS as error:
        if type(error) not in REFUSALS:
            raise
        return type(error)
    return value.value if isinstance(value, Entry) else value


def contents(connection: sqlite3.Connection) -> list[list[Any]]:
    tables = ("workflow_checkpoint", "workflow_claim", "workflow_queue")
    return [connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables]


def memory_over(clock: Clock) -> Store:
    records = MemoryCheckpointer(clock=clock.seconds, now=clock.now)
    return Store(
        SplitDurable(
            records, MemoryScheduler(receipts=count(10**30), clock=clock.seconds, lease=LIFE)
        ),
        clock,
    )


def sqlite_over(database: Database, clock: Clock, queue: str = "workflow") -> Store:
    records = SqliteCheckpointer(database)
    return Store(SqliteDurable(records, SqliteScheduler(database, queue, LIFE)), clock)


@dataclass
class Both:
    memory: Store
    sqlite: Store
    database: Database
    clock: Clock

    async def same(self, call: Asked) -> Any:
        """The answer of both to a call; one that is refused has written nothing."""
        before = await self.database.run(contents)
        answers = [await answer(store, call) for store in (self.memory, self.sqlite)]
        assert repr(answers[0]) == repr(answers[1])
        if answers[1] in REFUSALS:
            assert await self.database.run(contents) == before, "it was refused, and written"
        return answers[1]


@asynccontextmanager
async def both() -> AsyncIterator[Both]:
    clock = Clock(START)
    async with connect(":memory:", clock=clock.seconds) as database:
        await migrate(database)
        yield Both(memory_over(clock), sqlite_over(database, clock), database, clock)
