"""Any argument at all, in any order, from many callers at once: both stores answer alike.

Refusals are alike too, and of a documented kind. Time starts in 1970 and takes microseconds, so
that both stores count their tokens from 1.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from state_machine.arguments import (
    ALIKE,
    ANY_DURATION,
    AWARE,
    JSON_VALUES,
    LATER,
    LIFE,
    LONG,
    MICROSECOND,
    NEVER_JSON,
    NO_DURATION,
    NO_MOMENT,
    NO_TEXT,
    NO_UTF8,
    NOW,
    SPAN,
    START,
    TEXT,
    VALUE,
)
from state_machine.asked import (
    REFUSALS,
    Asked,
    Both,
    Store,
    answer,
    asked,
    both,
    contents,
    history,
    memory_over,
    sqlite_over,
)
from state_machine.asking import quick
from without_durability import (
    Completed,
    Delivery,
    Entry,
    MemoryScheduler,
    Pass,
    Run,
    inbox_key,
    resume,
)
from without_durability.testing import Clock
from without_durability_sqlite import SqliteScheduler, connect, migrate

LAST = datetime.max.replace(tzinfo=UTC)


def fuzzing(examples: int) -> settings:
    return settings(
        max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )


# --- one caller -------------------------------------------------------------------------------


@fuzzing(150)
@given(st.lists(asked(), min_size=1, max_size=10))
def test_both_stores_answer_alike_whatever_they_are_asked(calls: list[Asked]):
    async def ask() -> None:
        async with both() as stores:
            await stores.same(("claim", ("w", SPAN, LIFE)))
            await stores.same(("make_ready", ("w",)))
            await stores.same(("take", ()))
            for call in calls:
                await stores.same(call)
            named = {"w", "v"} | {one[0] for _, one in calls if one and isinstance(one[0], str)}
            for workflow in named:
                await stores.same(("history", (workflow,)))
                await stores.same(("claim", (workflow, SPAN, LIFE)))
            assert await stores.same(("supply", ("another", "key", 1))) == 1
            await stores.same(("make_ready", ("another",)))
            assert "another" in await stores.same(("take", ()))
            await stores.same(("advance", (LATER,)))
            await stores.same(("take", ()))

    asyncio.run(ask())


WRITERS: dict[str, tuple[Any, ...]] = {
    "record": ("w", 1, "k"),
    "transact": ("w", 1, "k"),
    "supply": ("w", "k"),
    "arrive": ("w", "k"),
    "append": ("w",),
    "deliver": ("w",),
}


@fuzzing(150)
@given(
    st.sampled_from([*WRITERS]),
    st.tuples(JSON_VALUES, st.just(False)) | st.tuples(NEVER_JSON, st.just(True)),
)
def test_a_value_is_kept_as_json_keeps_it_or_refused_by_name(
    writer: str, chosen: tuple[object, bool]
):
    value, never = chosen

    async def ask() -> None:
        async with both() as stores:
            await stores.same(("claim", ("w", SPAN, LIFE)))
            kept = await stores.same((writer, (*WRITERS[writer], value)))
            (_, written, _), *_ = await stores.same(("history", ("w",))) or [(0, kept, 0)]
            refused = kept in (TypeError, ValueError)
            assert refused or not never
            assert refused or repr(written) == repr(getattr(kept, "value", kept))
            assert await stores.same(("renew", ("w", 1, LIFE))) is True

    asyncio.run(ask())


@fuzzing(40)
@given(st.lists(TEXT | ALIKE | LONG, unique=True, min_size=1, max_size=6))
def test_any_text_is_an_id_and_a_key_of_its_own(texts: list[str]):
    keys = [f"k{text}" for text in texts]

    async def ask() -> None:
        async with both() as stores:
            for store in (stores.memory, stores.sqlite):
                for place, text in enumerate(texts):
                    await store.records.supply(text, "mine", place)
                    await store.queue.make_ready(text)
                    for at, key in enumerate(keys):
                        await store.records.supply(text, key, at)
                for place, text in enumerate(texts):
                    loaded = await store.records.load(text)
                    assert loaded.pop("mine") == place
                    assert [*loaded.items()] == [(key, at) for at, key in enumerate(keys)]
                assert await store.take() == sorted(texts)

    asyncio.run(ask())


@fuzzing(60)
@given(
    st.lists(TEXT | ALIKE | LONG, unique=True, min_size=2, max_size=3),
    st.lists(
        st.tuples(
            st.integers(0, 2), asked(st.sampled_from(["make_ready", "take", "done", "cancel"]))
        ),
        max_size=10,
    ),
)
def test_any_text_is_a_namespace_of_its_own(names: list[str], calls: list[tuple[int, Asked]]):
    async def ask() -> None:
        async with both() as stores:
            queues = [
                Both(
                    memory_over(stores.clock),
                    sqlite_over(stores.database, stores.clock, name),
                    stores.database,
                    stores.clock,
                )
                for name in names
            ]
            for which, call in calls:
                await queues[which % len(queues)].same(call)
            for queue in queues:
                await queue.same(("take", ()))

    asyncio.run(ask())


@fuzzing(30)
@given(NO_UTF8 | NO_TEXT)
def test_what_is_no_text_is_no_namespace(name: Any):
    async def ask() -> None:
        async with both() as stores:
            with pytest.raises((TypeError, ValueError), match="namespace") as refused:
                SqliteScheduler(stores.database, name)
            assert type(refused.value) in REFUSALS

    asyncio.run(ask())


READYING = st.one_of(
    st.tuples(
        st.sampled_from(["make_ready", "discard", "cancel"]), st.tuples(st.sampled_from("uvw"))
    ),
    st.tuples(st.just("arrive"), st.tuples(st.sampled_from("uvw"), st.just("k"), st.just(1))),
    st.tuples(st.just("deliver"), st.tuples(st.sampled_from("uvw"), st.just(1))),
    st.just(("take one", ())),
)


@fuzzing(60)
@given(st.lists(READYING, min_size=4, max_size=15))
def test_what_has_been_ready_longest_is_taken_first(calls: list[Asked]):
    async def ask() -> None:
        async with both() as stores:
            for call in [*calls, *[("take one", ())] * 3]:
                await stores.same(call)
                await stores.same(("advance", (MICROSECOND,)))

    asyncio.run(ask())


TIMED: dict[str, tuple[str, Callable[[Store, Any], Any]]] = {
    "claim's budget": ("budget", lambda s, given: s.records.claim("v", given, LIFE)),
    "claim's alive": ("alive", lambda s, given: s.records.claim("v", LIFE, given)),
    "extend's budget": ("budget", lambda s, given: s.records.extend(Pass("w", 1), given, LIFE)),
    "extend's alive": ("alive", lambda s, given: s.records.extend(Pass("w", 1), LIFE, given)),
    "renew's alive": ("alive", lambda s, given: s.records.renew(Pass("w", 1), given)),
    "next_ready's within": ("within", lambda s, given: s.queue.next_ready(given)),
    "reclaim's idle": ("idle", lambda s, given: s.queue.reclaim(given)),
    "a delivery's within": ("within", lambda s, given: s.queue.extend(s.taken[0], given)),
    "wake_at's when": ("when", lambda s, given: s.queue.wake_at(s.taken[0], given)),
    "schedule's moment": ("visible_at", lambda s, given: s.queue.schedule("v", given)),
    "wake_due's now": ("now", lambda s, given: s.queue.wake_due(given)),
    "a lease": ("lease", lambda s, given: leased(s, given)),
    "a sleep": ("duration", lambda s, given: slept(s, given)),
}


def is_fine(which: str, given: Any) -> bool:
    """Whether it is to be taken: a positive duration, a wait of no time, an aware moment."""
    if which == "a sleep":
        return isinstance(given, timedelta) and given <= LAST - START
    if which in ("wake_at's when", "schedule's moment", "wake_due's now"):
        return isinstance(given, datetime) and given.utcoffset() is not None
    if which in ("next_ready's within", "reclaim's idle"):
        return isinstance(given, timedelta) and given >= NOW
    return isinstance(given, timedelta) and given > NOW


async def leased(store: Store, lease: Any) -> None:
    if isinstance(store.queue, MemoryScheduler):
        queue: Any = MemoryScheduler(clock=store.clock.seconds, lease=lease)
    else:
        queue = SqliteScheduler(store.queue.database, "leased", lease)
    await queue.make_ready("w")
    delivery = await queue.next_ready(NOW)
    assert await queue.next_ready(NOW) is None
    assert await queue.holds(delivery)


async def slept(store: Store, duration: Any) -> object:
    async def body(run: Run[Any]) -> None:
        await run.sleep("asleep", duration)

    return await resume(Pass("w", 1), store.records, body, now=store.clock.now)


@fuzzing(200)
@given(st.sampled_from([*TIMED]), ANY_DURATION | AWARE | NO_DURATION | NO_MOMENT)
def test_any_duration_and_moment_is_taken_or_refused_by_name(which: str, given: Any):
    name, call = TIMED[which]

    async def asked_of(stores: Both, store: Store) -> Any:
        await store.records.claim("w", SPAN, LIFE)
        await store.queue.make_ready("w")
        await store.take()
        await store.queue.make_ready("v")
        before = await stores.database.run(contents)
        try:
            value = await call(store, given)
        except REFUSALS as error:
            value = error
        if isinstance(value, REFUSALS):
            assert type(value) in REFUSALS
            assert name in str(value) or repr(given) in str(value)
            assert await stores.database.run(contents) == before
            return type(value)
        return value.workflow if isinstance(value, Delivery) else value

    async def ask() -> None:
        async with both() as stores:
            answers = [await asked_of(stores, one) for one in (stores.memory, stores.sqlite)]
            assert repr(answers[0]) == repr(answers[1])
            assert (answers[0] not in REFUSALS) == is_fine(which, given)
            assert await stores.same(("supply", ("w", "k", 1))) == 1

    asyncio.run(ask())


READS = st.tuples(
    st.booleans(),
    st.none() | st.integers(0, 6).map(inbox_key) | TEXT | NO_UTF8 | st.just(0),
    st.none() | st.integers(-1, 4) | st.integers() | st.sampled_from([True, 1.0, "1", 10**4000]),
)


@fuzzing(100)
@given(st.sets(st.integers(0, 6)), st.lists(READS, min_size=1, max_size=3))
def test_an_inbox_is_read_past_any_cursor_and_up_to_any_limit(
    positions: set[int], reads: list[tuple[bool, Any, Any]]
):
    """On each store, on each replay, and as a list of messages would say it."""
    messages = [inbox_key(position) for position in sorted(positions)]

    async def body(run: Run[Any]) -> list[Any]:
        return [
            await (run.receive if waits else run.pending)(str(at), after=after, limit=limit)
            for at, (waits, after, limit) in enumerate(reads)
        ]

    async def read(store: Store) -> Any:
        try:
            return await resume(Pass("w", 1), store.records, body, now=store.clock.now)
        except (TypeError, ValueError) as error:
            return type(error), "limit" in str(error) or "after" in str(error)

    def expected(after: Any, limit: Any) -> tuple[Entry, ...]:
        past = [key for key in messages if after is None or key > after]
        return tuple(Entry(key, key) for key in past[:limit])

    async def ask() -> None:
        async with both() as stores:
            outcomes = []
            for store in (stores.memory, stores.sqlite):
                await store.records.claim("w", SPAN, LIFE)
                for key in messages:
                    await store.records.supply("w", key, key)
                outcomes += [await read(store), await read(store)]
                await store.records.append("w", "late")
                if isinstance(outcomes[0], Completed):
                    outcomes.append(await read(store))
            assert all(repr(outcome) == repr(outcomes[0]) for outcome in outcomes)
            assert not isinstance(outcomes[0], tuple) or outcomes[0][1], "it named neither"
            if isinstance(outcomes[0], Completed):
                assert outcomes[0].value == [expected(after, limit) for _, after, limit in reads]

    asyncio.run(ask())


# --- many callers -----------------------------------------------------------------------------


CONTENDED: dict[str, st.SearchStrategy[tuple[Any, ...]]] = {
    "claim": st.just(("w", SPAN, LIFE)),
    "release": st.just(("w", 1)),
    "record": st.tuples(
        st.just("w"), st.sampled_from([1, 1, 2]), st.sampled_from("ab"), VALUE.plain
    ),
    "bump": st.tuples(st.just("w"), st.sampled_from([1, 1, 2]), st.sampled_from("ab")),
    "supply": st.tuples(st.just("w"), st.sampled_from("ab"), VALUE.plain),
    "append": st.tuples(st.just("w"), VALUE.plain),
    "deliver": st.tuples(st.just("w"), VALUE.plain),
    "history": st.just(("w",)),
    "discard": st.just(("w",)),
    "delete": st.just(("w",)),
    "make_ready": st.just(("w",)),
    "take one": st.just(()),
    "done": st.just(("w", 0)),
}
CLIENTS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.lists(
            st.sampled_from([*CONTENDED]).flatmap(
                lambda name: CONTENDED[name].map(lambda arguments: (name, arguments))
            ),
            min_size=1,
            max_size=2,
        ),
    ),
    min_size=2,
    max_size=3,
)
"""Which of two databases a client has, and what it asks, one after the other."""


async def began(store: Store) -> None:
    await store.records.claim("w", SPAN, LIFE)
    await store.queue.make_ready("w")
    await store.take()
    await store.queue.make_ready("w")


async def ended(store: Store) -> str:
    """All that can be seen of a store in the end."""
    seen = [await history(store, "w"), await store.queue.holds(store.taken[0])]
    seen.append(await store.records.claim("w", SPAN, LIFE))
    seen += [await store.take(), await store.records.renew(Pass("w", 1), LIFE)]
    await store.records.release(Pass("w", 2))
    seen.append(await store.records.claim("w", SPAN, LIFE))
    return repr(seen)


def orders(left: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every order in which clients with so many calls left can get their turns."""
    if not any(left):
        yield ()
    for who, count in enumerate(left):
        if count:
            for rest in orders((*left[:who], count - 1, *left[who + 1 :])):
                yield (who, *rest)


async def one_after_the_other(clients: list[list[Asked]], order: tuple[int, ...]) -> Any:
    """The answers and the end of a memory store that is asked in that order."""
    store = memory_over(Clock(START))
    await began(store)
    left = [iter(calls) for calls in clients]
    answers: list[list[str]] = [[] for _ in clients]
    for who in order:
        answers[who].append(repr(await answer(store, next(left[who]))))
    return answers, await ended(store)


@fuzzing(60)
@given(CLIENTS)
def test_many_callers_get_what_some_order_of_their_calls_would_give(
    clients: list[tuple[int, list[Asked]]],
):
    async def client(store: Store, calls: list[Asked]) -> list[str]:
        return [repr(await answer(store, call)) for call in calls]

    async def ask(path: Path) -> None:
        clock = Clock(START)
        async with (
            connect(path, clock=clock.seconds) as one,
            connect(path, clock=clock.seconds) as other,
        ):
            for database in (one, other):
                await database.run(quick)
                await migrate(database)
            await one.run(lambda c: c.execute("CREATE TABLE app AS SELECT 0 AS count"))
            stores = [sqlite_over(database, clock) for database in (one, other)]
            await began(stores[0])
            stores[1].taken += stores[0].taken
            got = await asyncio.gather(*[client(stores[at], calls) for at, calls in clients])
            end = await ended(stores[1])
        asked = [calls for _, calls in clients]
        for order in orders(tuple(map(len, asked))):
            if (got, end) == await one_after_the_other(asked, order):
                return
        raise AssertionError(f"no order of these calls gives {got} and ends with {end}")

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(ask(Path(folder, "workflows.db")))
