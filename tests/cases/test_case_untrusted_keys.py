"""K21: keys that come from outside."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from typing import Any

import pytest

from without_durability import Completed, Entry, Run, inbox_key, resume
from without_durability_sqlite import Database, SqliteCheckpointer, SqliteDurable, SqliteScheduler

MIN = timedelta(minutes=1)
NASTY = [
    "'; DROP TABLE workflow_checkpoint; --",
    '"workflow_claim"',
    "w' OR '1'='1",
    "[workflow_queue]",
    "`x`",
    "a;b--c/*d*/",
    "%_\\",
    ":workflow",
    "?1",
    "workflow_checkpoint",
    "sqlite_master",
    "NULL",
    "a\0b",
    "\n\t\r",
    "\u202eright to left",
    "🧾",
]
RESERVED = [inbox_key(2), "inbox:", "inbox:x", "inbox:2", "inbox:99999999999999999999"]


@pytest.mark.parametrize("nasty", NASTY)
async def test_k21_quoting_never_matters(stores: Any, nasty: str) -> None:
    await stores.durable.arrive("bystander", "k", "untouched")
    assert await stores.durable.arrive(nasty, nasty, nasty) == nasty
    await stores.durable.deliver(nasty, nasty)
    holder = await stores.checkpointer.claim(nasty, MIN, MIN)
    assert (await stores.checkpointer.record(holder, nasty + "2", nasty)).first
    assert await stores.checkpointer.transact(holder, nasty + "3", lambda _: nasty) == nasty
    records = await stores.checkpointer.load(nasty)
    assert [nasty, nasty + "2", nasty + "3"] == [key for key in records if "inbox:" not in key]
    assert set(records.values()) == {nasty}
    taken = {
        (await stores.scheduler.next_ready(timedelta(0))).workflow,
        (await stores.scheduler.next_ready(timedelta(0))).workflow,
    }
    assert taken == {"bystander", nasty}
    assert await stores.durable.delete(nasty) == 4
    assert await stores.checkpointer.load("bystander") == {"k": "untouched"}


@pytest.mark.parametrize("nasty", NASTY)
async def test_k21_a_namespace_is_never_parsed(database: Database, nasty: str) -> None:
    named, plain = SqliteScheduler(database, namespace=nasty), SqliteScheduler(database)
    await named.make_ready("w")
    assert await plain.next_ready(timedelta(0)) is None
    delivery = await named.next_ready(timedelta(0))
    assert delivery is not None
    await named.done(delivery)


@pytest.mark.parametrize("key", RESERVED)
async def test_k21_the_reserved_space_is_refused_to_whoever_may_not_write_it(
    stores: Any, key: str
) -> None:
    holder = await stores.checkpointer.claim("w", MIN, MIN)
    ran: list[object] = []
    with pytest.raises(ValueError, match="inbox"):
        await stores.durable.arrive("w", key, "spoof")
    with pytest.raises(ValueError, match="inbox"):
        await stores.checkpointer.record(holder, key, "spoof")
    with pytest.raises(ValueError, match="inbox"):
        await stores.checkpointer.transact(holder, key, ran.append)
    assert ran == [], "the effect ran before its key was refused"
    assert await stores.checkpointer.load("w") == {}
    assert await stores.scheduler.next_ready(timedelta(0)) is None, "a refused arrival queued"
    assert await stores.checkpointer.renew(holder, MIN), "a refused key cost the claim"


@pytest.mark.parametrize("key", [*RESERVED[1:], inbox_key(2**62), inbox_key(2**63)])
async def test_k21_supply_refuses_a_malformed_inbox_key(stores: Any, key: str) -> None:
    with pytest.raises(ValueError, match="inbox"):
        await stores.checkpointer.supply("w", key, "spoof")
    assert await stores.checkpointer.load("w") == {}


async def received(stores: Any, workflow: str) -> tuple[Entry, ...]:
    async def body(run: Run[Any]) -> tuple[Entry, ...]:
        return await run.pending("p")

    holder = await stores.checkpointer.claim(workflow, MIN, MIN)
    outcome = await resume(holder, stores.checkpointer, body)
    assert isinstance(outcome, Completed)
    return outcome.value


@pytest.mark.parametrize("position", [0, 1, 2, 3, 10**6, 2**62 - 1])
async def test_k21_a_supplied_message_never_blocks_or_reorders_a_later_one(
    stores: Any, position: int
) -> None:
    await stores.checkpointer.append("w", "zeroth")
    await stores.checkpointer.supply("v", inbox_key(position), "supplied")
    for message in ("first", "second", "third"):
        entry = await stores.checkpointer.append("v", message)
        assert entry.key > inbox_key(position)
    entries = await received(stores, "v")
    assert [entry.value for entry in entries] == ["supplied", "first", "second", "third"]


async def test_k21_a_workflow_is_copied_by_supplying_what_was_loaded(stores: Any) -> None:
    store = stores.checkpointer
    await store.supply("w", "k", 1)
    for message in ("first", "second"):
        await store.append("w", message)
    for key, value in (await store.load("w")).items():
        await store.supply("copy", key, value)
    await store.append("copy", "third")
    assert list((await store.load("copy")).items())[:3] == list((await store.load("w")).items())
    assert [e.value for e in await received(stores, "copy")] == ["first", "second", "third"]


@pytest.mark.parametrize(
    "key",
    [
        "inbox:",
        "inbox:x",
        "inbox:99999999999999999999",
        "inbox:9223372036854775807",
        "inbox:09223372036854775807",
        "inbox:٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٩",
        "inbox:0000000000000000000²",
        "inbox:+0000000000000000009",
        "inbox:0000_0000_0000_0000_",
        "inbox: 0000000000000000009",
        "inbox:000000000000000000001",
    ],
)
async def test_k21_a_malformed_key_of_an_older_file_never_counts(
    durable: SqliteDurable, other: sqlite3.Connection, key: str
) -> None:
    other.execute(
        "INSERT INTO workflow_checkpoint (workflow, step, value) VALUES ('w', ?, '\"old\"')",
        (key,),
    )
    entries = [await durable.deliver("w", message) for message in ("first", "second", "third")]
    assert [entry.key for entry in entries] == sorted({entry.key for entry in entries})
    assert int(entries[-1].key.removeprefix("inbox:")) < 100, "a malformed key pushed the numbering"
    assert list(await received(durable, "w")) == entries
    assert (await durable.checkpointer.load("w"))[key] == "old"


@pytest.mark.parametrize("step", ["receive", "pending", "step", "sleep", "awaiting", "transact"])
async def test_k21_a_run_refuses_a_step_in_the_reserved_space(
    checkpointer: SqliteCheckpointer, step: str
) -> None:
    async def effect() -> None:
        raise AssertionError("the effect ran")

    arguments: dict[str, tuple[Any, ...]] = {
        "step": (effect, str),
        "transact": (lambda cursor: effect(), str),
        "sleep": (MIN,),
        "awaiting": (str,),
    }

    async def body(run: Run[Any]) -> None:
        await getattr(run, step)("inbox:x", *arguments.get(step, ()))

    holder = await checkpointer.claim("w", MIN, MIN)
    assert holder is not None
    with pytest.raises(ValueError, match="inbox"):
        await resume(holder, checkpointer, body)
    assert await checkpointer.load("w") == {}
