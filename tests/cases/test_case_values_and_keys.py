"""K30 to K35: what cannot be stored is refused in time, and what was stored comes back."""

from __future__ import annotations

import decimal
import json
import logging
import math
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import pytest

from children import Ended
from without_durability import (
    Completed,
    Delivery,
    MemoryCheckpointer,
    Pass,
    Run,
    SplitDurable,
    passes,
    resume,
)
from without_durability_sqlite import Database, SqliteCheckpointer, SqliteDurable, SqliteScheduler

MIN = timedelta(minutes=1)
NOW = timedelta(0)
LONE = "k\ud800"


def as_is(value: object) -> object:
    return value


class Step:
    """A body of one step, which counts how often its effect ran."""

    def __init__(self, key: Any, value: object) -> None:
        self.key, self.value, self.effects = key, value, 0

    async def effect(self) -> object:
        self.effects += 1
        return self.value

    async def __call__(self, run: Run[Any]) -> object:
        return await run.step(self.key, self.effect, as_is)


async def passed(stores: Any, body: Callable[[Run[Any]], Awaitable[object]]) -> object:
    """One whole pass over "w": its value."""
    holder = await stores.checkpointer.claim("w", MIN, MIN)
    try:
        outcome = await resume(holder, stores.checkpointer, body)
    finally:
        await stores.checkpointer.release(holder)
    assert isinstance(outcome, Completed)
    return outcome.value


async def held(stores: Any) -> Pass:
    holder = await stores.checkpointer.claim("w", MIN, MIN)
    assert holder is not None
    return holder


PLACES: dict[str, Callable[[Any, Pass, Any], Awaitable[object]]] = {
    "load": lambda d, _, text: d.checkpointer.load(text),
    "history": lambda d, _, text: d.checkpointer.history(text),
    "claim": lambda d, _, text: d.checkpointer.claim(text, MIN, MIN),
    "record": lambda d, _, text: d.checkpointer.record(Pass(text, 1), "k", 1),
    "record key": lambda d, holder, text: d.checkpointer.record(holder, text, 1),
    "transact": lambda d, _, text: d.checkpointer.transact(Pass(text, 1), "k", never),
    "transact key": lambda d, holder, text: d.checkpointer.transact(holder, text, never),
    "extend claim": lambda d, _, text: d.checkpointer.extend(Pass(text, 1), MIN, MIN),
    "renew": lambda d, _, text: d.checkpointer.renew(Pass(text, 1), MIN),
    "release": lambda d, _, text: d.checkpointer.release(Pass(text, 1)),
    "supply": lambda d, _, text: d.checkpointer.supply(text, "k", 1),
    "supply key": lambda d, _, text: d.checkpointer.supply("w", text, 1),
    "append": lambda d, _, text: d.checkpointer.append(text, 1),
    "discard": lambda d, _, text: d.checkpointer.discard(text),
    "make_ready": lambda d, _, text: d.scheduler.make_ready(text),
    "schedule": lambda d, _, text: d.scheduler.schedule(text, datetime.now(UTC)),
    "wake_at": lambda d, _, text: d.scheduler.wake_at(Delivery(text, ""), datetime.now(UTC)),
    "extend": lambda d, _, text: d.scheduler.extend(Delivery(text, ""), MIN),
    "done": lambda d, _, text: d.scheduler.done(Delivery(text, "")),
    "holds": lambda d, _, text: d.scheduler.holds(Delivery(text, "")),
    "cancel": lambda d, _, text: d.scheduler.cancel(text),
    "arrive": lambda d, _, text: d.arrive(text, "k", 1),
    "arrive key": lambda d, _, text: d.arrive("w", text, 1),
    "deliver": lambda d, _, text: d.deliver(text, 1),
    "delete": lambda d, _, text: d.delete(text),
}


def never(_: object) -> None:
    raise AssertionError("the effect ran")


async def assert_untouched(stores: Any, holder: Pass) -> None:
    assert await stores.checkpointer.load("w") == {}
    assert await stores.scheduler.next_ready(NOW) is None
    assert await stores.checkpointer.renew(holder, MIN), "the refusal cost the claim"


@pytest.mark.parametrize("place", PLACES)
async def test_k30_a_lone_surrogate_is_refused_wherever_text_is_read(
    stores: Any, place: str
) -> None:
    holder = await held(stores)
    with pytest.raises(ValueError, match="UTF-8") as refused:
        await PLACES[place](stores.durable, holder, LONE)
    assert repr(LONE) in str(refused.value), "the error does not name the text"
    await assert_untouched(stores, holder)


@pytest.mark.parametrize(
    "text", [1, 1.0, True, None, b"w", uuid.UUID(int=1), ("w",)], ids=lambda text: repr(text)
)
@pytest.mark.parametrize("place", PLACES)
async def test_k33_what_is_no_text_is_refused_wherever_text_is_read(
    stores: Any, place: str, text: object
) -> None:
    holder = await held(stores)
    with pytest.raises(TypeError, match="str"):
        await PLACES[place](stores.durable, holder, text)
    await assert_untouched(stores, holder)


@pytest.mark.parametrize(("key", "error"), [(LONE, ValueError), (1, TypeError), (None, TypeError)])
async def test_k30_a_step_whose_key_cannot_be_stored_never_runs_its_effect(
    stores: Any, key: object, error: type[Exception]
) -> None:
    body = Step(key, 1)
    for _ in range(3):
        with pytest.raises(error):
            await passed(stores, body)
    assert body.effects == 0


KEYED: dict[str, Callable[[Run[Any], Any], Awaitable[object]]] = {
    "transact": lambda run, key: run.transact(key, never, as_is),
    "sleep": lambda run, key: run.sleep(key, MIN),
    "awaiting": lambda run, key: run.awaiting(key, as_is),
    "receive": lambda run, key: run.receive(key),
    "receive after": lambda run, key: run.receive("k", after=key),
    "pending": lambda run, key: run.pending(key),
    "pending after": lambda run, key: run.pending("k", after=key),
}


@pytest.mark.parametrize(("key", "error"), [(LONE, ValueError), (1, TypeError), (b"k", TypeError)])
@pytest.mark.parametrize("keyed", KEYED)
async def test_k30_a_wait_whose_key_cannot_be_stored_is_refused_and_never_suspends(
    stores: Any, keyed: str, key: object, error: type[Exception]
) -> None:
    async def body(run: Run[Any]) -> object:
        return await KEYED[keyed](run, key)

    for _ in range(3):
        with pytest.raises(error):
            await passed(stores, body)
    assert await stores.checkpointer.load("w") == {}


@pytest.mark.parametrize("namespace", [LONE, 1, None, b"x"])
def test_k30_a_namespace_that_cannot_be_stored_is_refused(
    database: Database, namespace: Any
) -> None:
    with pytest.raises((ValueError, TypeError), match="namespace"):
        SqliteScheduler(database, namespace=namespace)


@pytest.mark.parametrize("value", [LONE, [LONE], {LONE: LONE}, "\0", "\U0001f9fe", "\udfff\ud800"])
async def test_k30_a_value_holding_a_surrogate_comes_back(stores: Any, value: object) -> None:
    body = Step("k", value)
    assert await passed(stores, body) == value
    assert await passed(stores, body) == value
    assert body.effects == 1
    assert await stores.checkpointer.supply("w", "l", value) == value
    assert (await stores.durable.deliver("w", value)).value == value
    assert set(map(repr, (await stores.checkpointer.load("w")).values())) == {repr(value)}


cyclic: list[object] = []
cyclic.append(cyclic)

UNSTORABLE = {
    "datetime": datetime(2030, 1, 1, tzinfo=UTC),
    "Decimal": decimal.Decimal("1.5"),
    "bytes": b"x",
    "set": {1},
    "object": object(),
    "a key": {(1, 2): 3},
    "nan": math.nan,
    "infinity": math.inf,
    "minus infinity": [-math.inf],
    "a nan key": {math.nan: 1},
    "an integer too long": 10**5000,
    "a cycle": cyclic,
    "nested too deep": eval("[" * 90 + "]" * 90),
    "colliding keys": {1: "a", "1": "b"},
    "colliding true": {True: "a", "true": "b"},
    "colliding none": {None: "a", "null": "b"},
    "colliding float": {1.5: "a", "1.5": "b"},
    "colliding further in": [{"x": {1: "a", "1": "b"}}],
}
for _ in range(500):
    UNSTORABLE["nested too deep"] = {"x": UNSTORABLE["nested too deep"]}

STORING: dict[str, Callable[[Any, Pass, object], Awaitable[object]]] = {
    "record": lambda d, holder, value: d.checkpointer.record(holder, "k", value),
    "transact": lambda d, holder, value: d.checkpointer.transact(holder, "k", lambda _: value),
    "supply": lambda d, _, value: d.checkpointer.supply("w", "k", value),
    "append": lambda d, _, value: d.checkpointer.append("w", value),
    "arrive": lambda d, _, value: d.arrive("w", "k", value),
    "deliver": lambda d, _, value: d.deliver("w", value),
}


@pytest.mark.parametrize("kind", UNSTORABLE)
@pytest.mark.parametrize("storing", STORING)
async def test_k31_k32_k35_what_cannot_be_stored_is_refused_at_the_call(
    stores: Any, storing: str, kind: str
) -> None:
    holder = await held(stores)
    value = UNSTORABLE[kind]
    with pytest.raises((TypeError, ValueError)) as refused:
        await STORING[storing](stores.durable, holder, value)
    named = ["'w'", type(value).__name__, "inbox" if storing in ("append", "deliver") else "'k'"]
    for fact in named:
        assert fact in str(refused.value), f"the error does not name {fact}"
    await assert_untouched(stores, holder)


@pytest.mark.parametrize("kind", UNSTORABLE)
async def test_k31_a_step_whose_result_cannot_be_stored_says_so_on_every_pass(
    stores: Any, kind: str
) -> None:
    body = Step("k", UNSTORABLE[kind])
    for attempt in (1, 2, 3):
        with pytest.raises((TypeError, ValueError), match="cannot be stored"):
            await passed(stores, body)
        assert body.effects == attempt, "something was recorded in place of the value"
    assert await stores.checkpointer.load("w") == {}


async def test_k31_the_worker_tries_what_cannot_be_stored_after_growing_pauses(
    stores: Any, caplog: pytest.LogCaptureFixture
) -> None:
    body = Step("k", {1})
    clock, scheduler = stores.clock, stores.scheduler

    async def deliveries() -> Any:
        for _ in range(3):
            await scheduler.make_ready("w")
            yield await scheduler.next_ready(NOW)

    run = passes(SplitDurable(stores.checkpointer, scheduler), body, limit=1, now=clock.now)
    with caplog.at_level(logging.ERROR):
        await run(deliveries())
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 3
    for attempt, message in enumerate(told, start=1):
        assert "'w'" in message
        assert f"attempt {attempt}" in message
    pauses = [float(message.split(" in ")[1].split(" s")[0]) for message in told]
    assert pauses == sorted(pauses), "the pauses do not grow"
    assert "set" in caplog.text
    await scheduler.wake_due(clock.now())
    assert await scheduler.next_ready(NOW) is None, "it is tried again at once"
    clock.advance(timedelta(seconds=10))
    await scheduler.wake_due(clock.now())
    assert await scheduler.next_ready(NOW) is not None, "it was dropped"


class Unreadable:
    """A codec that writes what it cannot read."""

    def encode(self, value: object) -> str:
        return json.dumps(value)

    def decode(self, encoded: str) -> object:
        raise LookupError("not mine")


class Wrong:
    """A codec that encodes to something no store can keep."""

    def __init__(self, encoding: object) -> None:
        self.encoding = encoding

    def encode(self, value: object) -> Any:
        return self.encoding

    def decode(self, encoded: object) -> object:
        return encoded


@pytest.mark.parametrize("storing", STORING)
@pytest.mark.parametrize("codec", [Unreadable(), Wrong(b"x"), Wrong(1), Wrong(None), Wrong(LONE)])
async def test_k31_nothing_is_committed_that_the_codec_could_not_read_back(
    database: Database, storing: str, codec: Any
) -> None:
    durable = SqliteDurable(SqliteCheckpointer(database, codec), SqliteScheduler(database))
    holder = await durable.checkpointer.claim("w", MIN, MIN)
    assert holder is not None
    with pytest.raises((TypeError, ValueError), match="'w'"):
        await STORING[storing](durable, holder, 1)
    assert await durable.checkpointer.load("w") == {}
    assert await durable.scheduler.next_ready(NOW) is None
    assert await durable.checkpointer.renew(holder, MIN)


async def test_k31_in_memory_nothing_is_kept_that_the_codec_could_not_read_back() -> None:
    store = MemoryCheckpointer(codec=Unreadable())
    holder = await store.claim("w", MIN, MIN)
    assert holder is not None
    with pytest.raises(ValueError, match="'w'"):
        await store.record(holder, "k", 1)
    assert store.hashes.get("w", {}) == {}


@pytest.mark.parametrize("text", ["", "{", "nope", "[" * 100_000, '"\ud7ff', "NaN }"])
async def test_k31_what_no_longer_decodes_is_named_and_spoils_nobody_elses(
    checkpointer: SqliteCheckpointer, other: Any, text: str
) -> None:
    await checkpointer.supply("fine", "k", 1)
    insert = "INSERT INTO workflow_checkpoint (workflow, step, value) VALUES ('w', 'kk', ?)"
    other.execute(insert, (text,))
    for read in (checkpointer.load, checkpointer.history):
        with pytest.raises(ValueError, match=r"'w'.*'kk'"):
            await read("w")
    assert await checkpointer.load("fine") == {"k": 1}


RESHAPED = [
    ({1: "a"}, {"1": "a"}),
    ({1: "a", 2: "b"}, {"1": "a", "2": "b"}),
    ({None: 1}, {"null": 1}),
    ({True: 1, False: 2}, {"false": 2, "true": 1}),
    ({1.5: 1}, {"1.5": 1}),
    ((1, 2), [1, 2]),
    ([(1, (2,))], [[1, [2]]]),
    ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
]


@pytest.mark.parametrize(("value", "reshaped"), RESHAPED)
@pytest.mark.parametrize("through", ["step", "transact"])
async def test_k32_the_first_pass_and_a_resumed_one_see_the_same(
    stores: Any, value: object, reshaped: object, through: str
) -> None:
    async def body(run: Run[Any]) -> object:
        if through == "step":
            return await Step("k", value)(run)
        return await run.transact("k", lambda _: value, as_is)

    first = await passed(stores, body)
    assert repr(first) == repr(await passed(stores, body)) == repr(reshaped)
    assert repr((await stores.checkpointer.load("w"))["k"]) == repr(reshaped)


@pytest.mark.parametrize(("value", "reshaped"), RESHAPED)
async def test_k32_what_a_call_returns_is_what_a_load_will(
    stores: Any, value: object, reshaped: object
) -> None:
    holder = await held(stores)
    told = [
        (await stores.checkpointer.record(holder, "k", value)).value,
        await stores.checkpointer.supply("w", "l", value),
        (await stores.checkpointer.append("w", value)).value,
        await stores.durable.arrive("w", "m", value),
        (await stores.durable.deliver("w", value)).value,
    ]
    assert told == list((await stores.checkpointer.load("w")).values()) == [reshaped] * 5


class Named(StrEnum):
    """An id as applications write them."""

    ORDER = "order-1"


IDS = [
    "97033619637148748591279e7866347",
    *(
        "1",
        "01",
        "1.0",
        "+1",
        "1e0",
        "0x1",
        "\u0660\u0661",
        "0",
        "-0",
        "",
        " ",
        "\t",
        "\0",
        "\0\0",
        "a\0b",
    ),
    *("a", "A", "null", "NULL", "None", "nan", "inf", "9" * 40, "x" * 200_000, "x" * 200_001),
    *("caf\u00e9", "cafe\u0301", "ﬁ", "fi", "\ufeff", "\u200b", "🧾", "ß", "ss", "İ", "i̇"),
]


async def test_k33_every_distinct_text_is_a_workflow_of_its_own(stores: Any) -> None:
    assert len(IDS) == len(set(IDS))
    for number, workflow in enumerate(IDS):
        assert await stores.durable.arrive(workflow, "k", number) == number
        assert await stores.checkpointer.claim(workflow, MIN, MIN), "two ids became one"
    for number, workflow in enumerate(IDS):
        assert await stores.checkpointer.load(workflow) == {"k": number}
    taken = [(await stores.scheduler.next_ready(NOW)).workflow for _ in IDS]
    assert sorted(taken) == sorted(IDS)


async def test_k33_every_distinct_text_is_a_key_of_its_own(stores: Any) -> None:
    for number, key in enumerate(IDS):
        await stores.checkpointer.supply("w", key, number)
    assert list((await stores.checkpointer.load("w")).items()) == [
        (key, number) for number, key in enumerate(IDS)
    ]


async def test_k33_an_id_of_a_kind_of_text_is_that_text(stores: Any) -> None:
    await stores.durable.arrive(Named.ORDER, Named.ORDER, 1)
    assert await stores.checkpointer.load("order-1") == {"order-1": 1}
    assert (await stores.scheduler.next_ready(NOW)).workflow == "order-1"


NESTED = """
def nested(depth, kind):
    value = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"x": value}
    return value

async def main():
    await opened()
    stored = refused = 0
    shallow = [1, 100, 250, 499, 500]
    deep = [501, 900, 950, 980, 990, 1000, 1010, 5000, 50_000, 64_000, 66_000, 200_000]
    for kind in ("list", "dict"):
        for depth in shallow + deep:
            w = f"{kind} {depth}"
            value = nested(depth, kind)
            p = await cp.claim(w, MIN, MIN)
            for call in (
                lambda: cp.record(p, "record", value),
                lambda: cp.supply(w, "supply", value),
                lambda: cp.append(w, value),
                lambda: cp.transact(p, "transact", lambda cursor: value),
                lambda: d.deliver(w, value),
            ):
                try:
                    await call()
                    stored += 1
                except (TypeError, ValueError) as error:
                    assert depth > 500, depth
                    assert repr(w) in str(error), error
                    refused += 1
            held = (await cp.load(w)).values()
            assert all(one == value for one in held if depth <= 500)
            assert len(held) in (0, 5), len(held)
            assert await cp.renew(p, MIN)
            del value
    print(stored, refused)
    assert await asyncio.to_thread(lambda: json_depth()) is None
    await db.aclose()

def json_depth():
    \"\"\"Where nothing was refused for its depth alone: brackets inside of text.\"\"\"
    text = "[{" * 100_000
    assert JSON.decode(JSON.encode([text])) == [text]

asyncio.run(main())
"""


def test_k34_there_is_no_depth_that_stores_but_does_not_load_and_none_that_crashes(
    child: Callable[..., Ended],
) -> None:
    ended = child(NESTED)
    assert ended.code == 0, ended.err
    assert ended.out.split() == ["50", "120"], "a deep value was stored or a shallow refused"


SCALARS = [-0.0, 0.0, 2**70, -(2**63) - 1, 1e308, 5e-324, 0.1 + 0.2, True, None, "", 1, 1.0]


@pytest.mark.parametrize("value", SCALARS, ids=repr)
@pytest.mark.parametrize("storing", STORING)
async def test_k35_every_other_number_comes_back_equal_and_of_its_type(
    stores: Any, storing: str, value: object
) -> None:
    await STORING[storing](stores.durable, await held(stores), value)
    assert [repr(one) for one in (await stores.checkpointer.load("w")).values()] == [repr(value)]
