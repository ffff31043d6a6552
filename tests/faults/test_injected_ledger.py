"""A statement of a ledger's call fails: all of the call is in the file or nothing, everywhere.

Every call and transition, in every state a workflow can be in; alone, and as one of many writes
that share a transaction.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from injected_calls import NOW, Prepared, Scene, database, everything, read_through
from injected_statements import ERRORS, Fault, Faulty, Moment

from batches import Interposed, came_to, unhurried, waiting
from thread_gates import HANG, in_time, plain
from without_durability import (
    LEASE,
    Blocked,
    Clock,
    Completed,
    Delivery,
    Ended,
    Pass,
    Sleeping,
    work,
)
from without_durability.ledger import Failure, ended, raised
from without_durability_sqlite import migrate, store
from without_durability_sqlite.checking import Oddity, oddities
from without_durability_sqlite.errors import operational_error

HOUR = timedelta(hours=1)
FAILURE = Failure("KeyError", "no such thing", "a traceback")
SPENT = 3
STATES = (
    *("new", "arrived", "sleeping", "blocked", "completed", "failed", "cancelled"),
    *("retried", "running"),
)
"""What a call finds: every state, one that failed and waits, and one that a pass holds."""


@dataclass
class Granted:
    """What the stores had out when the file was prepared."""

    holders: dict[str, Pass]
    deliveries: dict[str, Delivery]


@dataclass
class LedgerScene(Scene):
    """A scene with a workflow in every state, named after it."""

    granted: Granted | None = None

    def held(self, workflow: str) -> tuple[Pass, Delivery]:
        assert self.granted is not None
        return self.granted.holders[workflow], self.granted.deliveries[workflow]

    def start(self, workflow: str, attempts: int | None = None) -> Awaitable[Any]:
        assert self.granted is not None
        delivery = self.granted.deliveries[workflow]
        return self.durable.start_pass(delivery, LEASE, attempts)

    def end(self, workflow: str, how: Ended) -> Awaitable[Any]:
        return self.durable.end_pass(*self.held(workflow), how)


@dataclass
class LedgerPrepared(Prepared):
    out: Granted | None = None

    @asynccontextmanager
    async def scene(self, **settings: Any) -> AsyncIterator[tuple[Any, Path]]:
        async with super().scene(**settings) as (plain, path):
            yield LedgerScene(plain.database, plain.clock, granted=self.out), path


Call = Callable[[LedgerScene], Awaitable[Any]]


def later(scene: Scene) -> Any:
    return scene.clock.now() + LEASE


ENDS: dict[str, Callable[[Scene], Ended]] = {
    "completed": lambda s: ended(Completed({"paid": 100})),
    "completed with what cannot be stored": lambda s: ended(Completed({1, 2})),
    "sleeping": lambda s: ended(Sleeping("rest", later(s))),
    "blocked": lambda s: ended(Blocked(frozenset({"approved"}), frozenset({"mail"}))),
    "failed, to be tried again": lambda s: raised(FAILURE, later(s)),
    "failed for the last time": lambda s: raised(FAILURE, None),
    "given back": lambda s: Ended(s.clock.now(), attempts=0),
    "to be looked at again": lambda s: Ended(later(s)),
}


def each(
    verb: str, states: tuple[str, ...], call: Callable[[LedgerScene, str], Awaitable[Any]]
) -> dict[str, Call]:
    return {f"{verb} {state}": lambda scene, w=state: call(scene, w) for state in states}


KNOWN = tuple(state for state in STATES if state != "new")

CALLS: dict[str, Call] = {
    **each("arrive", STATES, lambda s, w: s.durable.arrive(w, "second", 2)),
    **each("deliver", STATES, lambda s, w: s.durable.deliver(w, "message")),
    **each("delete", KNOWN, lambda s, w: s.durable.delete(w)),
    **each("retry", ("failed", "cancelled"), lambda s, w: s.durable.retry(w)),
    **each(
        "cancel",
        tuple(state for state in KNOWN if state not in ("completed", "cancelled")),
        lambda s, w: s.durable.cancel(w, "enough"),
    ),
    **each("rewind", KNOWN, lambda s, w: s.durable.rewind(w, "first")),
    **each("fork", KNOWN, lambda s, w: s.durable.fork(w, "new")),
    **each("fork a part of", KNOWN, lambda s, w: s.durable.fork(w, "new", before="last")),
    "sweep": lambda s: s.durable.sweep(
        older=NOW, states=("completed", "failed", "cancelled"), limit=2
    ),
    "start": lambda s: s.start("taken"),
    "start one that is asleep again": lambda s: s.start("asleep"),
    "start the last attempt": lambda s: s.start("spent", SPENT + 1),
    "start one whose attempts are used up": lambda s: s.start("spent", SPENT),
    "start one that was cancelled": lambda s: s.start("stopped"),
    "start all that is ready": lambda s: s.durable.start_passes(9, NOW, LEASE, SPENT),
    **each("end as", tuple(ENDS), lambda s, how: s.end("running", ENDS[how](s))),
    **each("end, though woken, as", tuple(ENDS), lambda s, how: s.end("woken", ENDS[how](s))),
}

STARTS = tuple(name for name in CALLS if name.startswith("start"))


async def prepare(path: Path, migrated: Path) -> Granted:
    """A workflow in every state, and one that was woken, taken, used up, stopped."""
    shutil.copyfile(migrated, path)
    clock = Clock()
    granted = Granted({}, {})
    async with database(path, clock) as opened:
        await migrate(opened)
        scene = LedgerScene(opened, clock, granted=granted)
        durable = scene.durable

        async def took(workflow: str) -> None:
            await durable.arrive(workflow, "given", 0)
            delivery = await scene.queue.next_ready(NOW)
            assert delivery is not None
            assert delivery.workflow == workflow
            granted.deliveries[workflow] = delivery

        async def began(workflow: str) -> None:
            started = await durable.start_pass(granted.deliveries[workflow], LEASE)
            assert started.holder is not None
            granted.holders[workflow] = started.holder
            for key in ("first", "last"):
                await scene.store.record(started.holder, key, 1)

        async def came_to_be(workflow: str, how: str) -> None:
            await took(workflow)
            await began(workflow)
            await scene.end(workflow, ENDS[how](scene))

        for state in ("sleeping", "blocked", "completed"):
            await came_to_be(state, state)
        await came_to_be("failed", "failed for the last time")
        await came_to_be("retried", "failed, to be tried again")
        for workflow in ("cancelled", "stopped"):
            await came_to_be(workflow, "blocked")
            await durable.cancel(workflow, "enough")
        await came_to_be("asleep", "sleeping")
        for workflow in ("asleep", "stopped"):  # as one who does not know of the ledger may
            await scene.queue.make_ready(workflow)
            delivery = await scene.queue.next_ready(NOW)
            assert delivery is not None
            granted.deliveries[workflow] = delivery
        await took("taken")
        await took("spent")
        for _ in range(SPENT):
            await began("spent")
            await scene.store.release(granted.holders["spent"])
        await took("running")
        await began("running")
        await took("woken")
        await began("woken")
        await durable.arrive("woken", "again", 1)
        for state in ("blocked", "failed"):
            end = "failed for the last time" if state == "failed" else state
            await came_to_be(f"beside, {state}", end)
        for workflow in ("beside, taken", "beside, running"):
            await took(workflow)
        await began("beside, running")
        await came_to_be("arrived", "blocked")
        await durable.arrive("arrived", "again", 1)
    return granted


@pytest.fixture(scope="module")
def prepared(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> LedgerPrepared:
    path = tmp_path_factory.mktemp("ledger") / "prepared.db"
    return LedgerPrepared(path, out=asyncio.run(prepare(path, migrated)))


@pytest.fixture(autouse=True)
def a_sweep_is_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes under a connection that is watched."""
    monkeypatch.setattr(store, "SWEEPING", math.inf)


@asynccontextmanager
async def faulty_scene(prepared: LedgerPrepared) -> AsyncIterator[tuple[LedgerScene, Path]]:
    async with prepared.scene(factory=Faulty) as (scene, path):
        reading: Any = plain(path, factory=Faulty)
        reading.beside = scene.connection
        read_through(scene.database, reading)
        yield scene, path


def odd(path: Path, clock: Clock) -> list[Oddity]:
    """What disagrees in the file, but for what was put into the queue behind the ledger's back."""
    with closing(plain(path)) as looking:
        found = oddities(looking, clock.seconds())
    return [one for one in found if one.workflow != "stopped"]


async def finish(scene: Scene, path: Path) -> None:
    """A worker brings everything that is under way to its end, and nothing is odd then."""

    async def body(run: Any) -> str:
        return "done"

    scene.clock.advance(HOUR)
    with closing(plain(path)) as looking:
        under_way = looking.execute(
            "SELECT workflow FROM workflow_run WHERE state IN ('ready', 'sleeping')"
        ).fetchall()
    stopping = asyncio.Event()
    worker = asyncio.create_task(
        work(scene.durable, body, now=scene.clock.now, stopping=stopping, within=LEASE / 60)
    )
    for (workflow,) in under_way:
        result = await scene.durable.result(workflow, within=timedelta(seconds=HANG))
        assert result == "done"
    stopping.set()
    await in_time(worker)
    with closing(plain(path)) as looking:
        assert oddities(looking, scene.clock.seconds()) == []


@dataclass
class Reference:
    """What a call that nothing goes wrong in runs, and what the file holds before and after."""

    statements: list[str]
    before: Any
    after: Any


async def reference(prepared: LedgerPrepared, call: Call) -> Reference:
    async with faulty_scene(prepared) as (scene, path):
        before = everything(path)
        scene.connection.disarm()
        await call(scene)
        statements = [*scene.connection.statements]
        after = everything(path)
        assert after != before, "the call writes nothing"
        assert odd(path, scene.clock) == []
        await finish(scene, path)
        return Reference(statements, before, after)


def attempts(rows: Any) -> dict[str, int]:
    return {workflow: attempts for _, workflow, _, _, _, attempts, *_ in rows["workflow_run"]}


@pytest.mark.parametrize("name", CALLS)
async def test_a_fault_at_any_statement_leaves_all_of_it_or_nothing_and_a_worker_goes_on(
    prepared: LedgerPrepared, name: str
):
    call = CALLS[name]
    expected = await reference(prepared, call)
    committed = expected.statements.index("COMMIT") + 1
    errors = itertools.cycle(ERRORS.values())
    moments: tuple[Moment, ...] = get_args(Moment)
    met = 0
    for n, moment in itertools.product(range(1, len(expected.statements) + 1), moments):
        fault = Fault(n, moment, next(errors)())
        async with faulty_scene(prepared) as (scene, path):
            scene.connection.arm(fault)
            try:
                await call(scene)
            except BaseException as surfaced:
                assert surfaced is fault.error, (fault, surfaced)  # noqa: PT017 (any error)
            else:
                assert fault.at is None, f"nobody heard of {fault}"
                continue
            met += 1
            scene.connection.disarm()
            assert not scene.connection.in_transaction, f"left open after {fault}"
            found = everything(path)
            assert odd(path, scene.clock) == [], f"odd after {fault}"
            if n > committed:  # what was granted is given back, and was no attempt
                assert name in STARTS
                parked = name == "start one whose attempts are used up"
                wanted = expected.after if parked else expected.before
                assert attempts(found) == attempts(wanted), f"counted after {fault}"
            elif fault.at == "COMMIT" and moment == "after_it_ran":
                assert found == expected.after, f"half of it is there after {fault}"
            else:
                assert found == expected.before, f"half of it is there after {fault}"
                if moment == "before_it_ran":
                    await call(scene)
                    assert everything(path) == expected.after, f"{fault} did harm"
            await finish(scene, path)
    assert met >= 2 * committed


# --- as one of many -----------------------------------------------------------------------------

member: ContextVar[int | None] = ContextVar("member", default=None)
"""Which call a statement is part of: a write runs in its caller's context."""

OTHERS: tuple[Call, ...] = (
    lambda s: s.durable.arrive("first beside", "k", 1),
    lambda s: s.end("beside, running", ended(Completed(1))),
    lambda s: s.durable.cancel("beside, taken", "enough"),
    lambda s: s.durable.deliver("beside, blocked", 1),
    lambda s: s.durable.retry("beside, failed"),
    lambda s: s.durable.fork("beside, running", "last beside"),
)
"""Calls that have nothing to do with what fails."""


@dataclass
class Shared:
    """What the calls of a batch came to, and what one of them ran."""

    outcomes: list[Any]
    ran: int
    found: Any


async def shared(
    prepared: LedgerPrepared,
    calls: tuple[Call, ...],
    victim: Call,
    fails: Callable[[str, int], bool] = lambda sql, n: False,
) -> Shared:
    """The calls in one transaction; `fails` is told each statement, and if it is the victim's."""
    ran = 0

    def before(sql: str, _: object) -> None:
        nonlocal ran
        own = member.get() == 1
        ran += own
        if fails(sql, ran if own else 0):
            raise operational_error("disk I/O error", "SQLITE_IOERR")

    async def as_member(scene: LedgerScene, call: Call) -> Any:
        member.set(1 if call is victim else 0)
        return await call(scene)

    async with prepared.scene(factory=Interposed) as (scene, path):
        pending = [as_member(scene, call) for call in calls]
        with unhurried():
            async with waiting(scene.database, *pending) as tasks:
                scene.connection.before = before
            outcomes = await came_to(tasks)
        scene.connection.before = None
        found = everything(path)
        assert odd(path, scene.clock) == []
        await finish(scene, path)
    return Shared(outcomes, ran, found)


@pytest.mark.parametrize("name", CALLS)
async def test_a_fault_in_one_of_many_leaves_the_others_rows_and_counts_right(
    prepared: LedgerPrepared, name: str
):
    victim = CALLS[name]
    whole = await shared(prepared, (*OTHERS, victim), victim)
    without = await shared(prepared, OTHERS, victim)
    assert whole.found != without.found
    assert whole.ran >= 1
    for n in range(1, whole.ran + 1):
        at = (n - 1) * len(OTHERS) // max(1, whole.ran - 1)  # first, between, last
        calls = (*OTHERS[:at], victim, *OTHERS[at:])
        came = await shared(prepared, calls, victim, lambda _, own, n=n: own == n)
        failure = came.outcomes.pop(at)
        assert "disk I/O error" in str(failure)
        assert not [one for one in came.outcomes if isinstance(one, BaseException)]
        assert came.found == without.found, f"something else is there after statement {n}"


@pytest.mark.parametrize("at", [0, 3, len(OTHERS)], ids=["first", "between", "last"])
@pytest.mark.parametrize("name", ["arrive new", "end as completed", "cancel running", "sweep"])
async def test_a_commit_that_fails_for_many_is_made_for_each_of_them(
    prepared: LedgerPrepared, name: str, at: int
):
    victim = CALLS[name]
    calls = (*OTHERS[:at], victim, *OTHERS[at:])
    commits = itertools.count(1)
    whole = await shared(prepared, calls, victim)
    came = await shared(
        prepared, calls, victim, lambda sql, _: sql == "COMMIT" and next(commits) == 1
    )
    assert [type(one) for one in came.outcomes] == [type(one) for one in whole.outcomes]
    assert next(commits) > len(calls), "they were not committed one by one"
    assert came.found == whole.found
