"""Ids and keys: what is no text, what UTF-8 cannot hold, what is reserved, and all that works."""

from __future__ import annotations

import uuid
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from test_fault_calls import (
    AT_ONCE,
    MINUTE,
    RUN_CALLS,
    Scene,
    in_place_of,
    taking,
)

from stores import Stores
from without_durability import (
    INBOX,
    LEASE,
    Delivery,
    Pass,
    Run,
    Suspended,
    Swallowed,
    claimed,
    inbox_key,
    resume,
)
from without_durability_sqlite import SqliteScheduler

LONE = "k\udcff"
NO_TEXT = [1, None, b"w", uuid.UUID(int=1), ["w"]]
TEXTS_READ = ("workflow", "key", "holder", "delivery", "into", "to", "reason")
READ_BY_A_STORE = taking(*TEXTS_READ, "before", "namespace", "prefix")
READ_BY_A_RUN = taking("key", "after", of=RUN_CALLS)


@pytest.mark.parametrize(("call", "parameter"), READ_BY_A_STORE)
async def test_fault_id_that_is_no_str_is_a_type_error_in_every_call(
    stores: Stores, call, parameter
):
    scene = await Scene.over(stores)
    for text in NO_TEXT:
        if text is None and parameter not in TEXTS_READ:
            continue  # which is the same as to leave it out
        async with scene.refusal(TypeError, "str", repr(text)):
            await scene.call(call, **{parameter: in_place_of(parameter, text)})


@pytest.mark.parametrize(("call", "parameter"), READ_BY_A_STORE)
async def test_fault_surrogate_is_a_value_error_naming_it_in_every_call(
    stores: Stores, call, parameter
):
    scene = await Scene.over(stores)
    for text in (LONE, "\ud800", "a\udfff" * 3):
        async with scene.refusal(ValueError, "UTF-8", repr(text)):
            await scene.call(call, **{parameter: in_place_of(parameter, text)})


@pytest.mark.parametrize(("call", "parameter"), READ_BY_A_RUN)
async def test_fault_text_of_a_run_that_cannot_be_stored_never_runs_an_effect(
    stores: Stores, call, parameter
):
    scene = await Scene.over(stores)
    for text, error in ((1, TypeError), (b"k", TypeError), (LONE, ValueError)):
        async with scene.refusal(error, repr(text)):
            await scene.asked(call, **{parameter: text})


@pytest.mark.parametrize(("text", "error"), [(1, TypeError), (None, TypeError), (LONE, ValueError)])
async def test_fault_text_given_to_whatever_asks_the_store_is_refused_alike(
    stores: Stores, text, error
):
    scene = await Scene.over(stores)
    async with scene.refusal(error, repr(text)):
        await claimed(stores.checkpointer, text)
    async with scene.refusal(error, repr(text)):
        await resume(in_place_of("holder", text), stores.checkpointer, scene.effect)
    if scene.database is not None:
        async with scene.refusal(error, "namespace", repr(text)):
            SqliteScheduler(scene.database, namespace=text)


@pytest.mark.parametrize(("call", "parameter"), taking("delivery"))
async def test_fault_receipt_that_is_no_str_is_a_type_error_and_any_other_is_nobodys(
    stores: Stores, call, parameter
):
    scene = await Scene.over(stores)
    for receipt in (1, None, b"x"):
        async with scene.refusal(TypeError, "receipt", type(receipt).__name__):
            await scene.call(call, **{parameter: Delivery("w", receipt)})
    before = scene.contents()
    for receipt in ("", "\0", LONE, f"1.0 {LONE}", "nan ", "' OR 1=1"):
        await scene.call(call, **{parameter: Delivery("w", receipt), "holder": Pass("w", 0)})
        assert scene.contents() == before, "it answered for somebody else's"


class Text(str):
    """Somebody's own kind of text."""


TEXTS = [
    *("a", " a", "a ", "a\n", "A"),
    *("", " ", "\t", "\0", "a\0b", "a\0", "'", '"', "''", "%", "%s", "_", "\\", ";--", "?", ":w"),
    *("1", "1.0", "01", "null", "None", "\U0001f9fe", "\u202eab", "\u05d0b", "\ufeff", "\u200d"),
    *("\u00e9", "e\u0301", "\u212b", "\u00c5", "A\u030a", "\u00df", "ss", "I", "i", "\u0130"),
    *("m" * 2**20, "m" * (2**20 - 1) + "n", "inbox", "'inbox:'", "[1]", '{"a": 1}'),
]


async def test_fault_any_text_is_an_id_of_its_own_in_every_call(stores: Stores):
    """Through every call that takes an id, none finding what another's wrote."""
    for number, text in enumerate(TEXTS):
        workflow = Text(text) if number % 2 else text
        assert await stores.checkpointer.claim(workflow, MINUTE, MINUTE), "two ids became one"
        assert await stores.durable.arrive(workflow, "k", number) == number
        delivery = await stores.scheduler.next_ready(AT_ONCE)
        assert delivery.workflow == workflow
        assert await stores.scheduler.holds(delivery)
        extended = await stores.scheduler.extend(delivery, LEASE)
        await stores.scheduler.wake_at(extended, stores.clock.now() + MINUTE)
    for number, text in enumerate(TEXTS):
        assert await stores.checkpointer.load(text) == {"k": number}
        assert await stores.durable.delete(Text(text)) == 1
        assert await stores.checkpointer.load(text) == {}
    stores.clock.advance(MINUTE)
    await stores.scheduler.wake_due(stores.clock.now())
    assert await stores.scheduler.next_ready(AT_ONCE) is None, "delete missed a wakeup"


async def test_fault_any_text_is_a_key_of_its_own_in_every_call(stores: Stores):
    holder = await claimed(stores.checkpointer, "w")
    writing = [
        lambda key, number: stores.checkpointer.record(holder, key, number),
        lambda key, number: stores.checkpointer.transact(holder, key, lambda _: number),
        lambda key, number: stores.checkpointer.supply("w", key, number),
        lambda key, number: stores.durable.arrive("w", key, number),
    ]
    for number, key in enumerate(TEXTS):
        await writing[number % 4](key, number)
    for number, key in enumerate(TEXTS):  # a first write is the one that stands
        await writing[(number + 1) % 4](key, "late")
    found = await stores.checkpointer.load("w")
    assert list(found.items()) == [(key, number) for number, key in enumerate(TEXTS)]


RESERVED = [INBOX, f"{INBOX}x", inbox_key(1), inbox_key(2**62), f"{INBOX}1"]


@pytest.mark.parametrize(("call", "parameter"), taking("key"))
async def test_fault_inbox_key_is_a_value_error_wherever_a_step_is_named(
    stores: Stores, call, parameter
):
    scene = await Scene.over(stores)
    for key in RESERVED:
        if call == "checkpointer.supply" and key == inbox_key(1):
            continue  # which is how one copies a workflow
        async with scene.refusal(ValueError, "inbox", repr(key)):
            await scene.call(call, **{parameter: key})


@pytest.mark.parametrize("call", RUN_CALLS)
async def test_fault_inbox_key_is_no_step_of_a_run(stores: Stores, call):
    scene = await Scene.over(stores)
    for key in RESERVED:
        async with scene.refusal(ValueError, "inbox", repr(key)):
            await scene.asked(call, key=key)


async def test_fault_step_name_used_twice_is_a_value_error_at_the_second_use(stores: Stores):
    """Whichever two uses, in the first pass and in one that replays."""
    scene = await Scene.over(stores)
    refused: list[str] = []

    async def body(run: Run[Any]) -> None:
        for first, second in product(RUN_CALLS, repeat=2):
            key = f"{first}, then {second}"
            with suppress(Suspended):
                await scene.ask(run, first, key=key)
            before = scene.contents(), len(scene.effects)
            with pytest.raises(ValueError, match=f"'{key}' is used twice"):
                await scene.ask(run, second, key=key)
            assert (scene.contents(), len(scene.effects)) == before
            refused.append(key)

    for _ in range(2):
        with suppress(Swallowed):
            await scene.passed(body)
    assert len(refused) == 2 * len(RUN_CALLS) ** 2
