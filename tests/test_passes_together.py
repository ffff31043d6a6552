"""Passes that a durable starts and ends at one go: the same as by single calls, in fewer trips."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gated import listening
from spied import (
    CONTENDED,
    FILL,
    HOUR,
    NOW,
    Crowd,
    SpiedDurable,
    at_one_go,
    completing,
    doing,
    left,
    over_a_file,
    ready,
    start,
    transacting,
    value,
)
from stores import Stores, over_sqlite
from thread_gates import reading, until
from without_durability import BUDGET, LEASE, Clock, Run, SplitDurable, claimed
from without_durability.values import Ended
from without_durability_sqlite import (
    connect,
)
from without_durability_sqlite.loading import PIECE_BYTES, PIECE_ROWS

stores = pytest.fixture(over_a_file)


def by_single_calls(stores: Stores) -> Any:
    return SplitDurable(stores.checkpointer, stores.scheduler)


def one_at_a_time(stores: Stores) -> Any:
    return SpiedDurable(stores.durable, without={"start_passes"})


# --- the same, in fewer trips -------------------------------------------------------------------


async def sleeping(run: Run[Any]) -> object:
    await run.step("a", value, int)
    return await run.sleep("nap", HOUR)


async def blocked(run: Run[Any]) -> object:
    return await run.awaiting("answer", int)


async def failing(run: Run[Any]) -> object:
    await run.step("a", value, int)
    raise LookupError("on purpose")


BODIES = {body.__name__: body for body in (completing, sleeping, blocked, failing, transacting)}


async def nothing_happens(stores: Stores) -> None:
    pass


async def it_is_cancelled(stores: Stores) -> None:
    await stores.scheduler.cancel("w")


async def it_is_deleted(stores: Stores) -> None:
    await stores.durable.delete("w")


async def it_is_scheduled(stores: Stores) -> None:
    await stores.scheduler.schedule("w", stores.clock.now() + HOUR)


async def its_claim_is_lost(stores: Stores) -> None:
    await stores.checkpointer.discard("w")
    assert await stores.checkpointer.claim("w", BUDGET, LEASE) is not None


async def its_claim_is_lost_and_given_back(stores: Stores) -> None:
    await stores.checkpointer.discard("w")
    await stores.checkpointer.release(await claimed(stores.checkpointer, "w"))


async def it_is_made_ready(stores: Stores) -> None:
    await stores.scheduler.make_ready("w")


async def it_is_delivered_to_another(stores: Stores) -> None:
    await stores.scheduler.make_ready("w")
    assert await stores.scheduler.next_ready(NOW) is not None


async def its_lease_ends(stores: Stores) -> None:
    stores.clock.advance(LEASE)


MEANWHILE = [
    *(nothing_happens, it_is_cancelled, it_is_deleted, it_is_scheduled, its_claim_is_lost),
    *(its_claim_is_lost_and_given_back, it_is_made_ready, it_is_delivered_to_another),
    its_lease_ends,
]
DELIVERED_AGAIN = (it_is_made_ready, it_is_delivered_to_another, its_lease_ends)
HELD_BACK = [one for one in MEANWHILE if one not in DELIVERED_AGAIN]
"""What does not have it delivered again at once."""


@asynccontextmanager
async def copy_of(migrated: Path, path: Path) -> AsyncIterator[Stores]:
    """Stores over a file of their own, and a clock of their own that reads as the others'."""
    path.write_bytes(migrated.read_bytes())
    clock = Clock()
    async with connect(path, clock=clock.seconds) as database:
        yield over_sqlite(database, clock)


@pytest.mark.parametrize("meanwhile", HELD_BACK)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_body_leaves_the_same_behind_either_way(
    tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch, body: Any, meanwhile: Any
):
    monkeypatch.setattr("random.uniform", lambda *_: 1.0)  # no pause is left to chance
    found = []
    for number, kind in enumerate((at_one_go, one_at_a_time, by_single_calls)):
        async with copy_of(migrated, tmp_path / f"{number}.db") as stores:
            durable = SpiedDurable(kind(stores))

            async def interrupted(run: Any, stores: Stores = stores) -> object:
                try:
                    return await body(run)
                finally:
                    await meanwhile(stores)

            await ready(stores, "w")
            async with doing(stores, interrupted, durable):
                await durable.answers()
            found.append(left(stores))
            await reading(stores.checkpointer.database)
    assert found[0] == found[1] == found[2]
    assert durable.calls.count("next_ready") == 1, "it was delivered more often than once"


@pytest.mark.parametrize("kind", [at_one_go, by_single_calls])
async def test_a_wakeup_that_arrives_meanwhile_is_delivered_after_the_pass(
    stores: Stores, kind: Any
):
    passes = []

    async def body(run: Any) -> object:
        passes.append(run.workflow)
        if len(passes) == 1:
            await stores.durable.arrive("w", "more", 1)
        return await run.awaiting("more", int)

    durable = SpiedDurable(kind(stores))
    await ready(stores, "w")
    async with doing(stores, body, durable, limit=1):
        await durable.answers(2)
    assert passes == ["w", "w"]
    assert left(stores)["queue"] == []


async def test_a_worker_starts_and_ends_its_passes_at_one_go_where_it_can(stores: Stores):
    durable = SpiedDurable(stores.durable)
    await ready(stores, "w")
    async with doing(stores, completing, durable):
        await durable.answers()
    assert durable.calls == ["prepare", "start_passes", "record", "end_pass"]


async def test_a_worker_makes_single_calls_where_it_cannot(stores: Stores):
    durable = SpiedDurable(by_single_calls(stores))
    await ready(stores, "w")
    async with doing(stores, completing, durable):
        await durable.answers()
    calls = [name for name in durable.calls if name != "wake_due"]
    assert calls == ["prepare", "next_ready", "claim", "holds", "load", "record", "release", "done"]


async def test_a_worker_whose_store_takes_no_more_than_one_starts_its_pass_at_one_go(
    stores: Stores,
):
    durable = SpiedDurable(stores.durable, without={"start_passes"})
    await ready(stores, "w")
    async with doing(stores, completing, durable):
        await durable.answers()
    calls = [name for name in durable.calls if name != "wake_due"]
    assert calls == ["prepare", "next_ready", "start_pass", "record", "end_pass"]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("name", ["start_pass", "end_pass"])
async def test_a_durable_that_offers_only_one_of_the_two_is_asked_for_neither(
    stores: Stores, name: str, body: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("random.uniform", lambda *_: 1.0)
    durable = SpiedDurable(stores.durable, without={name})
    await ready(stores, "w")
    async with doing(stores, body, durable):
        await durable.answers()
    assert {"start_passes", "start_pass", "end_pass"} & {*durable.calls} == set()
    held = [row for row in left(stores)["claims"] if row[2] > 0]
    assert held == [], "its claim was not released"
    assert [row[3] for row in left(stores)["queue"]] in ([], [1]), "it is still out"


@pytest.mark.parametrize("due", ["none", "past", "future"])
@pytest.mark.parametrize("meanwhile", MEANWHILE)
async def test_ending_a_pass_is_releasing_it_and_answering(
    tmp_path: Path, migrated: Path, meanwhile: Any, due: str
):
    found = []
    for number in (0, 1):
        async with copy_of(migrated, tmp_path / f"{number}.db") as stores:
            await ready(stores, "w")
            one = (await start(stores))["w"]
            await meanwhile(stores)
            when = {"past": NOW, "future": HOUR}.get(due)
            moment = None if when is None else stores.clock.now() + when
            if number == 0:
                await stores.durable.end_pass(one.holder, one.delivery, Ended(moment))
            else:
                await stores.checkpointer.release(one.holder)
                if moment is None:
                    await stores.scheduler.done(one.delivery)
                else:
                    await stores.scheduler.wake_at(one.delivery, moment)
            found.append(left(stores))
            await stores.durable.end_pass(one.holder, one.delivery, Ended(moment))
            assert left(stores) == found[-1], "ending it twice is not silent"
    assert found[0] == found[1]


async def test_ending_a_pass_is_one_transaction(stores: Stores):
    await ready(stores, "w")
    one = (await start(stores))["w"]
    transactions = began(stores)
    await stores.durable.end_pass(one.holder, one.delivery, Ended())
    assert len(transactions) == 1
    assert await stores.checkpointer.claim("w", BUDGET, LEASE) is not None


# --- many at a time -----------------------------------------------------------------------------


def began(stores: Stores) -> list[str]:
    """Each transaction that is begun from now on."""
    found: list[str] = []

    def traced(sql: str) -> None:
        if sql == "BEGIN IMMEDIATE":
            found.append(sql)

    stores.checkpointer.database.connection.set_trace_callback(traced)
    return found


async def test_free_slots_take_together(stores: Stores):
    await ready(stores, *"abcde")
    transactions = began(stores)
    crowd, durable = Crowd(), SpiedDurable(stores.durable)
    async with doing(stores, crowd, durable, limit=5):
        await crowd.holds(5)
        assert len(transactions) == 1
    assert durable.limits == [5]


async def test_no_more_are_taken_than_there_are_free_slots(stores: Stores):
    await ready(stores, *"abcdefg")
    crowd, durable = Crowd(), SpiedDurable(stores.durable)
    async with doing(stores, crowd, durable, limit=3):
        await crowd.holds(3)
        assert crowd.inside == set("abc"), "the first to be ready is the first to be taken"
        crowd.let_go("a", "b")
        await until(lambda: crowd.inside == set("cde"))
        crowd.let_go("c")
        await until(lambda: crowd.inside == set("def"))
        assert await stores.scheduler.next_ready(NOW) is not None, "the others are free to take"
    assert crowd.most == 3
    assert all(1 <= limit <= 3 for limit in durable.limits)
    assert durable.limits[0] == 3


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
async def test_what_is_started_is_no_more_than_was_asked_for(stores: Stores, limit: int):
    await ready(stores, *"abc")
    started = await stores.durable.start_passes(limit, NOW, BUDGET)
    assert [one.delivery.workflow for one in started] == list("abc")[:limit]
    rest = await stores.durable.start_passes(10, NOW, BUDGET)
    assert [one.delivery.workflow for one in rest] == list("abc")[limit:]
    assert await stores.durable.start_passes(10, NOW, BUDGET) == ()


async def test_what_is_started_is_claimed_for_the_budget_and_alive_for_the_lease(stores: Stores):
    await ready(stores, "w")
    one = (await start(stores))["w"]
    for moment in (LEASE / 2, LEASE):
        stores.clock.advance(moment - LEASE / 2)
        assert await stores.checkpointer.claim("w", BUDGET, LEASE) is None
        assert await stores.checkpointer.renew(one.holder, LEASE)
    stores.clock.advance(BUDGET)
    assert not await stores.checkpointer.renew(one.holder, LEASE)


async def test_what_a_started_pass_is_given_is_what_is_recorded(stores: Stores):
    for n in range(3):
        await stores.checkpointer.supply("w", f"{n}", {"n": [n, None]})
    await ready(stores, "v", "w")
    started = await start(stores)
    assert dict(started["v"].recorded) == {}
    assert list(started["w"].recorded.items()) == list(
        (await stores.checkpointer.load("w")).items()
    )


@pytest.mark.parametrize("meanwhile", ["released", "silent"])
async def test_a_workflow_that_another_holds_is_looked_at_again_later(
    stores: Stores, meanwhile: str
):
    holder = await claimed(stores.checkpointer, "w")
    await ready(stores, "w", "free")
    crowd, durable = Crowd(), SpiedDurable(stores.durable)
    async with doing(stores, crowd, durable):
        await crowd.holds(1)
        await durable.answers()
        assert crowd.inside == {"free"}
        (waiting,) = [row for row in left(stores)["queue"] if row[1] == "w"]
        assert waiting[2] == (stores.clock.now() + CONTENDED).timestamp()
        if meanwhile == "released":
            await stores.checkpointer.release(holder)
        stores.clock.advance(CONTENDED)
        if meanwhile == "released":
            await crowd.holds(2)
        else:
            await durable.answers(2)
            assert crowd.inside == {"free"}


async def test_a_start_says_who_is_held_by_another(stores: Stores):
    holder = await claimed(stores.checkpointer, "w")
    await ready(stores, "w", "free")
    started = await start(stores)
    assert (started["w"].holder, started["w"].recorded) == (None, None)
    assert started["free"].holder is not None
    assert await stores.checkpointer.renew(holder, LEASE), "a refused claim took it away"


# --- records ------------------------------------------------------------------------------------


async def filled(stores: Stores, workflow: str, count: int) -> None:
    asked = {"workflow": workflow, "count": count}
    await stores.checkpointer.database.run(lambda c: c.execute(FILL, asked).close())


async def test_a_record_that_cannot_be_read_fails_its_own_workflow_only(stores: Stores):
    await ready(stores, "good", "bad", "better")
    await stores.checkpointer.database.run(
        lambda c: c.execute(
            "INSERT INTO workflow_checkpoint (workflow, step, value, written_at) "
            "VALUES ('bad', 'k', 'no json', 1)"
        ).close()
    )
    crowd, durable = Crowd(), SpiedDurable(stores.durable)
    async with listening() as heard, doing(stores, crowd, durable):
        await crowd.holds(2)
        assert "'bad'" in await heard.until("failed (attempt 1)")
        await durable.answers()
        assert crowd.inside == {"good", "better"}
        (waiting,) = [row for row in left(stores)["queue"] if row[1] == "bad"]
        assert waiting[2] > stores.clock.seconds(), "it is tried again at once"
    assert durable.calls.count("start_passes") == 1, "they were not started together"


@pytest.mark.parametrize(
    ("count", "is_given"), [(PIECE_ROWS - 1, True), (PIECE_ROWS, True), (PIECE_ROWS + 1, False)]
)
async def test_more_records_than_a_piece_are_left_to_the_pass(
    stores: Stores, count: int, is_given: bool
):
    await filled(stores, "w", count)
    await filled(stores, "small", 3)
    await ready(stores, "w", "small")
    started = await start(stores)
    assert len(started["small"].recorded) == 3
    loaded = await stores.checkpointer.load("w")
    assert started["w"].recorded == (loaded if is_given else None)
    assert len(loaded) == count


@pytest.mark.parametrize(("more", "is_given"), [(0, True), (1, False)])
async def test_longer_records_than_a_piece_are_left_to_the_pass(
    stores: Stores, more: int, is_given: bool
):
    await stores.checkpointer.supply("w", "long", "x" * PIECE_BYTES)
    for n in range(more):
        await stores.checkpointer.supply("w", f"{n}", n)
    await ready(stores, "w")
    recorded = (await start(stores))["w"].recorded
    assert recorded == (await stores.checkpointer.load("w") if is_given else None)


@pytest.mark.parametrize("count", [PIECE_ROWS, 2 * PIECE_ROWS + 1])
async def test_a_pass_finds_every_record_wherever_it_was_loaded(stores: Stores, count: int):
    await filled(stores, "w", count)
    await ready(stores, "w")
    seen: list[Any] = []

    async def body(run: Run[Any]) -> object:
        seen.append(dict(run.recorded))
        return None

    durable = SpiedDurable(stores.durable)
    async with doing(stores, body, durable):
        await durable.answers()
    assert seen == [{f"{n:05}": n for n in range(1, count + 1)}]
    assert durable.calls.count("load") == (count > PIECE_ROWS)
