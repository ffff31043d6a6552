"""Every call of the stores, as their signatures tell, and a scene in which each changes something.

The rows of faults.md go through these: what one call refuses, all of its siblings refuse.
"""

from __future__ import annotations

import copy
import inspect
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from steered import ENDS
from stores import Stores, over_sqlite
from without_durability import BUDGET, Delivery, Pass, Run, inbox_key, resume
from without_durability.values import Ended
from without_durability_sqlite import Database, SqliteCheckpointer, SqliteDurable, SqliteScheduler
from without_durability_sqlite.files import main_file

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
AT_ONCE = timedelta(0)

PARTS = {"checkpointer": SqliteCheckpointer, "scheduler": SqliteScheduler, "durable": SqliteDurable}
CALLS = {
    f"{part}.{name}": tuple(inspect.signature(method).parameters)[1:]
    for part, kind in PARTS.items()
    for name, method in inspect.getmembers(kind, inspect.iscoroutinefunction)
    if not name.startswith("_")
}
"""Each public call with the names of its parameters."""

AWAY_FROM_THE_FILE = {"scheduler.reclaim", "scheduler.wake_due"}
READS = {
    *("checkpointer.load", "checkpointer.history", "scheduler.holds", "scheduler.prepare"),
    *(f"durable.{name}" for name in ("status", "list", "counts", "why", "result")),
}
WRITES = sorted(CALLS.keys() - READS - AWAY_FROM_THE_FILE)
OF_ONE_FILE = {name for name in CALLS if name.startswith("durable.")} - {
    *("durable.arrive", "durable.deliver", "durable.delete"),
}
"""What a durable over two datastores does not offer."""

RUN_CALLS = {
    name: tuple(inspect.signature(getattr(Run, name)).parameters)[1:]
    for name in ("step", "transact", "sleep", "awaiting", "receive", "pending", "claim")
}


def taking(*parameters: str, of: dict[str, tuple[str, ...]] = CALLS) -> list[tuple[str, str]]:
    """Every call that takes one of these, each with the parameter."""
    return [(call, name) for call, names in of.items() for name in names if name in parameters]


def in_place_of(parameter: str, text: Any) -> Any:
    """What carries `text` where a call reads its workflow id or its key."""
    return {"holder": Pass(text, 1), "delivery": Delivery(text, "0.0 x")}.get(parameter, text)


def rows_of(path: Path | str) -> dict[str, list[Any]]:
    """All that a file holds, by table, as another connection finds it."""
    with closing(sqlite3.connect(path)) as other:
        other.text_factory = lambda raw: raw.decode(errors="surrogateescape")
        tables = other.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            table: sorted(other.execute(f"SELECT * FROM {table}"), key=repr) for (table,) in tables
        }


USUAL: dict[str, dict[str, Any]] = {
    "checkpointer.claim": {"workflow": "free"},
    "durable.retry": {"workflow": "failed"},
    "durable.result": {"workflow": "completed"},
    "durable.list": {"state": "completed"},
    "durable.sweep": {"limit": 1},  # which is one commit
}
"""What a call is asked for where it is not "w"."""


class Scene:
    """A workflow "w" that is claimed, recorded and out for delivery; "ready" is to be taken.

    Over a ledger also "taken", which is out while nobody has claimed it, and those of `ENDS`.
    """

    ACKNOWLEDGED: ClassVar = {"kept": 1, inbox_key(2): "hello"}

    def __init__(
        self, stores: Stores, holder: Pass, delivery: Delivery, taken: Delivery | None = None
    ) -> None:
        self.stores, self.clock = stores, stores.clock
        self.taken = taken or Delivery("taken", "")
        self.effects: list[object] = []
        self.arguments: dict[str, Any] = {
            "workflow": "w",
            "key": "k",
            "value": 1,
            "holder": holder,
            "delivery": delivery,
            "effect": self.effect,
            **dict.fromkeys(("alive", "within", "idle"), 2 * MINUTE),
            "budget": 2 * BUDGET,
            **dict.fromkeys(("when", "now", "visible_at"), self.clock.now() + HOUR),
            "limit": 2,
            "ended": Ended(self.clock.now() + HOUR, "sleeping", {"key": "nap"}, 0),
            "attempts": 9,
            "state": None,
            "states": ("completed",),
            "namespace": "workflow",
            "prefix": "",
            "after": 10**6,
            "older": 2 * MINUTE,
            "reason": "for a reason",
            "to": "kept",
            "into": "forked",
            "before": inbox_key(2),
        }

    @classmethod
    async def over(cls, stores: Stores) -> Scene:
        durable = stores.durable
        has_ledger = hasattr(durable, "start_pass")
        if has_ledger:
            for workflow, end in ENDS.items():
                await durable.arrive(workflow, "k", 1)
                (started,) = await durable.start_passes(1, AT_ONCE, BUDGET)
                await durable.end_pass(started.holder, started.delivery, end)
            stores.clock.advance(HOUR)
        await stores.scheduler.make_ready("taken" if has_ledger else "w")
        taken = await stores.scheduler.next_ready(AT_ONCE)
        delivery = taken
        if has_ledger:
            await stores.scheduler.make_ready("w")
            delivery = await stores.scheduler.next_ready(AT_ONCE)
            holder = (await durable.start_pass(delivery, BUDGET)).holder
        else:
            holder = await stores.checkpointer.claim("w", BUDGET, MINUTE)
        await stores.checkpointer.record(holder, "kept", 1)
        await stores.checkpointer.supply("w", inbox_key(2), "hello")
        await stores.scheduler.make_ready("ready")
        return cls(stores, holder, delivery, taken)

    @property
    def database(self) -> Database | None:
        return getattr(self.stores.checkpointer, "database", None)

    def effect(self, subject: object) -> str:
        self.effects.append(subject)
        return "done"

    def call(self, name: str, **changed: Any) -> Awaitable[Any]:
        """A call by name, its arguments good ones but for the changed."""
        if name in OF_ONE_FILE and self.database is None:
            pytest.skip("two datastores offer no such call")
        part, method = name.split(".")
        usual = {"delivery": self.taken} if name == "durable.start_pass" else USUAL.get(name, {})
        known = self.arguments | usual | changed
        of = self.stores.durable if part == "durable" else getattr(self.stores, part)
        return getattr(of, method)(**{parameter: known[parameter] for parameter in CALLS[name]})

    async def ask(self, run: Run[Any], name: str, **changed: Any) -> Any:
        """A call of a `Run` by name."""

        async def counted() -> str:
            return self.effect(None)

        effect = {"effect": counted} if name == "step" else {}
        known = self.arguments | effect | {"within": None, "after": None, "limit": None}
        known |= {"duration": HOUR, "parse": lambda stored: stored} | changed
        answer = getattr(run, name)(
            **{parameter: known[parameter] for parameter in RUN_CALLS[name]}
        )
        return await answer if inspect.isawaitable(answer) else answer

    async def passed(self, body: Callable[[Run[Any]], Awaitable[Any]], **options: Any) -> Any:
        """A pass over "w" as its holder."""
        options = {"now": self.clock.now} | options
        return await resume(self.arguments["holder"], self.stores.checkpointer, body, **options)

    async def asked(self, name: str, **changed: Any) -> Any:
        """A pass over "w" whose body makes one call of its `Run`."""
        return await self.passed(lambda run: self.ask(run, name, **changed))

    def contents(self) -> Any:
        """All that the stores hold."""
        if self.database is not None:
            return rows_of(main_file(self.database.connection))
        records, queue = self.stores.checkpointer, self.stores.scheduler
        kept = {workflow: found for workflow, found in records.hashes.items() if found}
        waiting = (list(queue.queue), queue.sleeping, queue.outstanding)
        return copy.deepcopy((kept, records.claims, records.data, waiting))

    @asynccontextmanager
    async def refusal(self, error: type[BaseException], *facts: object) -> AsyncIterator[Any]:
        """The rule: an error that names the facts, nothing written, and the store of use after."""
        before, effects = self.contents(), len(self.effects)
        with pytest.raises(error) as caught:
            yield caught
        missing = [fact for fact in facts if str(fact) not in str(caught.value)]
        assert not missing, f"{caught.value!r} does not name {missing}"
        assert self.contents() == before, "something was written"
        assert len(self.effects) == effects, "an effect ran"
        await self.assert_of_use()

    async def assert_of_use(self) -> None:
        records = self.stores.checkpointer
        assert await records.load("w") == self.ACKNOWLEDGED, "what was acknowledged is not there"
        assert await self.call("checkpointer.renew"), "the claim was lost"
        assert await self.call("scheduler.holds"), "the delivery was lost"
        assert await records.supply("after", "k", 1) == 1


def test_fault_calls_are_known_by_what_they_take_and_every_parameter_has_a_good_value(clock):
    scene = Scene(Stores(None, clock), Pass("w", 1), Delivery("w", ""))
    taken = {name for names in CALLS.values() for name in names}
    assert taken == scene.arguments.keys(), "a parameter that no test varies"
    assert {name.split(".")[0] for name in CALLS} == PARTS.keys()
    public = {name for name, _ in inspect.getmembers(Run, inspect.isfunction) if name[0] != "_"}
    assert public - {"note"} == RUN_CALLS.keys()


@pytest.mark.parametrize("name", WRITES)
async def test_fault_calls_each_change_what_the_scene_holds(database, clock, name):
    """So that "nothing was written" says something about each."""
    scene = await Scene.over(over_sqlite(database, clock))
    before = scene.contents()
    await scene.call(name)
    assert scene.contents() != before
