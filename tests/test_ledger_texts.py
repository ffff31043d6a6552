"""Any text is an id and a prefix, any number a limit and a cursor, over SQLite."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from test_ledger_sqlite import (
    NOW,
    SECOND,
    began,
    came_to,
    durable,
    listed,
    neighbour,
    odd,
    over,
)
from without_durability import LEASE, Clock
from without_durability_sqlite import SqliteDurable, connect, lookups, migrate

__all__ = ["durable", "neighbour"]

ODD_CHARACTERS = st.sampled_from(
    [*"ab%_*?'\"\\\0\x7f\x80", "é", "\u0301", "\ud7ff", "\ue000", "\uffff", "🦆", "\U0010ffff"]
)
ODD_TEXT = st.text(ODD_CHARACTERS, max_size=4)


@settings(deadline=None, max_examples=40, suppress_health_check=[*HealthCheck])
@given(
    ids=st.lists(ODD_TEXT, unique=True, max_size=12),
    prefixes=st.lists(ODD_TEXT, min_size=1, max_size=6),
    few=st.sampled_from([0, 2, 5_000]),
    limit=st.integers(1, 4),
)
def test_a_prefix_is_what_the_ids_begin_with_character_by_character(
    ids: list[str], prefixes: list[str], few: int, limit: int
):
    async def check() -> None:
        async with connect(":memory:") as database:
            await migrate(database)
            durable = over(database)
            await asyncio.gather(*(durable.arrive(one, "k", 1) for one in ids))
            newest = await listed(durable)
            assert sorted(newest) == sorted(ids)
            for prefix in (*prefixes, *ids, "\U0010ffff", "\ud7ff", ""):
                wanted = [one for one in newest if one.startswith(prefix)]
                for filters in ({}, {"state": "ready"}, {"namespace": "workflow"}):
                    found = await listed(durable, prefix=prefix, limit=limit, **filters)
                    assert found == wanted, (prefix, filters)
                assert await listed(durable, prefix=prefix, state="failed") == []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookups, "FEW", few)
        patch.setattr(
            lookups,
            "WITH_PREFIX",
            lookups.WITH_PREFIX.replace(str(5_001), str(few + 1)),
        )
        asyncio.run(check())


HOSTILE = ["", " ", "\0", "w\0w", "'; DROP TABLE workflow_run; --", "%", "_", ":workflow", "?1"]
HOSTILE += ["inbox:", "NULL", "1", "é", "e\u0301", "\U0010ffff", "🦆" * 40, "x" * 100_000]


@pytest.mark.parametrize("workflow", HOSTILE, ids=range(len(HOSTILE)))
async def test_any_text_is_an_id_and_none_is_taken_for_another(
    durable: SqliteDurable, path: Path, clock: Clock, workflow: str
):
    beside = [one for one in HOSTILE if one != workflow]
    await asyncio.gather(*(durable.arrive(one, "k", 1) for one in beside))
    await durable.start_passes(99, NOW, LEASE)
    assert await durable.status(workflow) is None
    assert "Nothing is known" in await durable.why(workflow)
    started = await began(durable, workflow)
    assert started.holder is not None
    await durable.checkpointer.record(started.holder, "step", 1)
    assert await durable.cancel(workflow, workflow)
    status = await durable.status(workflow)
    assert status is not None
    assert (status.workflow, status.state, status.reason) == (workflow, "cancelled", workflow)
    assert await listed(durable, state="cancelled") == [workflow]
    assert await durable.retry(workflow)
    assert await durable.rewind(workflow, "step") == 1
    assert await durable.fork(workflow, workflow + "!") == 1
    assert await durable.delete(workflow) == 1
    assert await durable.delete(workflow + "!") == 1
    assert sorted(await listed(durable)) == sorted(beside)
    assert (await durable.counts())["ready"] == len(beside)
    assert odd(path, clock) == []


async def test_pages_show_each_row_that_stays_once_whatever_comes_and_goes(
    durable: SqliteDurable, neighbour: SqliteDurable
):
    stays = [f"stays {n}" for n in range(40)]
    for n, name in enumerate(stays):
        await durable.arrive(name, "k", 1)
        await durable.arrive(f"goes {n}", "k", 1)
    for filters in ({}, {"state": "ready"}, {"prefix": "stays"}, {"namespace": "workflow"}):
        seen: list[str] = []
        page = await durable.list(limit=7, **filters)
        for n in range(100):
            seen += [one.workflow for one in page.items]
            if page.next is None:
                break
            await neighbour.arrive(f"comes {n} {filters}", "k", 1)
            await neighbour.delete(f"goes {7 * n}")  # before the cursor and after it
            if page.items[-1].workflow.startswith("goes"):  # the cursor itself
                await neighbour.delete(page.items[-1].workflow)
            page = await durable.list(limit=7, after=page.next, **filters)
        assert [one for one in seen if one.startswith("stays")] == [*reversed(stays)]
        assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("after", [-(2**63), -1, 0, 1, 2**62, 2**63 - 1, 2**64, 10**30])
async def test_any_number_may_be_gone_on_after(durable: SqliteDurable, after: int):
    await durable.arrive("w", "k", 1)
    page = await durable.list(after=after)
    assert [one.workflow for one in page.items] == (["w"] if after > 1 else [])


@pytest.mark.parametrize("limit", [1, 2**62, 2**63 - 1, 2**63, 2**64])
async def test_any_limit_from_one_on_is_one(durable: SqliteDurable, limit: int, clock: Clock):
    await came_to(durable, "w")
    clock.advance(SECOND)
    assert [one.workflow for one in (await durable.list(limit=limit)).items] == ["w"]
    assert await durable.sweep(older=NOW, limit=limit) == 1


@pytest.mark.parametrize("attempts", [1, 2, 2**31, 2**62, 2**63 - 1, 2**63, 2**64, None])
async def test_any_number_of_attempts_from_one_on_is_a_limit(
    durable: SqliteDurable, attempts: int | None
):
    await durable.arrive("w", "k", 1)
    (started,) = await durable.start_passes(1, NOW, LEASE, attempts)
    assert (started.attempt, started.over) == (1, None)
    assert started.holder is not None
    await durable.checkpointer.release(started.holder)
    again = await durable.start_pass(started.delivery, LEASE, attempts)
    assert again.over == ("parked" if attempts == 1 else None)
    assert again.attempt == (1 if attempts == 1 else 2)
