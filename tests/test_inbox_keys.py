"""The inbox's key space is the store's own (C18)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from stores import Stores
from without_durability import (
    BUDGET,
    INBOX,
    LEASE,
    Entry,
    MemoryCheckpointer,
    claimed,
    inbox_key,
)
from without_durability.memory import Stored
from without_durability.testing import passing

MALFORMED = [
    INBOX,
    INBOX + "1",
    INBOX + "zzz",
    INBOX + "9" * 20,
    INBOX + "9" * 21,
    INBOX + "-" + "0" * 18 + "1",
    INBOX + "0" * 19 + " ",
    INBOX + "\u0660" * 20,
    inbox_key(7) + "x",
]


@pytest.mark.parametrize("key", [INBOX, inbox_key(1), *MALFORMED[1:]])
async def test_c18_passes_and_arrivals_may_not_write_into_the_inbox_space(
    key: str, stores: Stores
) -> None:
    store = stores.checkpointer
    holder = await claimed(store, "w")
    ran: list[object] = []
    for call in (
        store.record(holder, key, 1),
        store.transact(holder, key, ran.append),
        stores.durable.arrive("w", key, 1),
    ):
        with pytest.raises(ValueError, match="inbox"):
            await call
    assert ran == []
    assert await store.load("w") == {}
    assert await stores.scheduler.next_ready(timedelta(0)) is None


@pytest.mark.parametrize("key", [*MALFORMED, inbox_key(2**62), inbox_key(2**63 - 1)])
async def test_c18_supply_refuses_an_inbox_key_it_could_not_number_past(
    key: str, stores: Stores
) -> None:
    with pytest.raises(ValueError, match="inbox"):
        await stores.checkpointer.supply("w", key, 1)
    assert await stores.checkpointer.load("w") == {}


async def test_c18_a_workflow_is_copied_by_supplying_its_records(stores: Stores) -> None:
    store = stores.checkpointer
    await store.supply("w", "a", 1)
    await store.append("w", 2)
    await store.supply("w", inbox_key(2**62 - 1), 3)
    await store.append("w", 4)
    source = await store.load("w")
    for key, value in list(source.items())[:3]:
        assert await store.supply("copy", key, value) == value
    assert (await store.append("copy", 4)).key == list(source)[3]
    assert await store.load("copy") == source


async def planted(stores: Stores, path: Path, keys: list[str]) -> None:
    """Write what an older release let through, past the store."""
    if isinstance(stores.checkpointer, MemoryCheckpointer):
        records = stores.checkpointer.hashes.setdefault("w", {})
        records.update({key: Stored('"planted"', stores.clock.now()) for key in keys})
        return
    insert = (
        "INSERT INTO workflow_checkpoint (workflow, step, value) VALUES ('w', ?, '\"planted\"')"
    )
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.executemany(insert, [(key,) for key in keys])


async def test_c18_malformed_inbox_keys_in_an_older_file_never_count_and_are_never_received(
    stores: Stores, path: Path
) -> None:
    store = stores.checkpointer
    await planted(stores, path, [*MALFORMED, inbox_key(2**63 - 1)])
    first = await store.append("w", "first")
    await store.supply("w", inbox_key(10**6), "copied")
    last = await store.append("w", "last")
    assert first.key < inbox_key(10**3), "a malformed key counted in the numbering"
    assert last.key == inbox_key(10**6 + 1)
    holder = await claimed(store, "w")
    run = passing(holder, store, await store.load("w"))
    received = (first, Entry(inbox_key(10**6), "copied"), last)
    assert await run.receive("messages") == received
    assert await run.pending("later", after=last.key) == ()
    assert await run.pending("again") == received


def test_c18_inbox_keys_sort_as_text_as_their_positions_do() -> None:
    positions = [0, 1, 9, 10, 99, 2**31, 2**53 + 1, 2**62 - 1, 2**62, 2**63 - 1]
    keys = [inbox_key(position) for position in positions]
    assert keys == sorted(keys)
    assert inbox_key(7) == "inbox:00000000000000000007"


@pytest.mark.parametrize("name", ["budget", "alive"])
@pytest.mark.parametrize("length", [timedelta(0), -LEASE])
async def test_a_duration_that_is_not_positive_is_refused_by_name(
    length: timedelta, name: str, stores: Stores
) -> None:
    store = stores.checkpointer
    durations = {"budget": BUDGET, "alive": LEASE} | {name: length}
    holder = await claimed(store, "w")
    with pytest.raises(ValueError, match=name):
        await store.claim("v", **durations)
    with pytest.raises(ValueError, match=name):
        await store.extend(holder, **durations)
    if name == "alive":
        with pytest.raises(ValueError, match=name):
            await store.renew(holder, length)
