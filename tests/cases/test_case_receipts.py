"""K5: a late acknowledgement for an old delivery never retires a newer one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

LEASE = timedelta(minutes=1)
MS = timedelta(milliseconds=1)
NOW = timedelta(0)


async def again(stores: Any, how: str) -> None:
    """One more wakeup of "w", due 2 ms ago."""
    if how == "schedule":
        await stores.scheduler.schedule("w", stores.clock.now() - 2 * MS)
        await stores.scheduler.wake_due(stores.clock.now())
    elif how == "make_ready":
        await stores.scheduler.make_ready("w")
    elif how == "arrive":
        await stores.durable.arrive("w", "k", 1)
    elif how == "deliver":
        await stores.durable.deliver("w", "hello")
    else:
        stores.clock.advance(LEASE)


WAKEUPS = ["schedule", "make_ready", "arrive", "deliver", "the lease lapses"]


async def taken(stores: Any) -> Any:
    delivery = await stores.scheduler.next_ready(NOW)
    if delivery is None:
        delivery = await stores.scheduler.reclaim(LEASE)
    assert delivery is not None
    return delivery


@pytest.mark.parametrize("wakeup", WAKEUPS)
@pytest.mark.parametrize("moved", [NOW, MS, -MS, -60 * LEASE])
async def test_k5_every_take_has_a_receipt_nobody_else_will_ever_hold(
    stores: Any, wakeup: str, moved: timedelta
) -> None:
    receipts = set()
    for turn in range(1, 11):
        await again(stores, "schedule" if turn == 1 else wakeup)
        if wakeup != "the lease lapses":
            stores.clock.advance(moved)
            await again(stores, wakeup)
        receipts.add((await taken(stores)).receipt)
        assert len(receipts) == turn, "a receipt came twice"


@pytest.mark.parametrize("wakeup", WAKEUPS)
@pytest.mark.parametrize("answer", ["done", "wake_at", "extend", "extend and done"])
async def test_k5_a_stale_answer_changes_nothing(stores: Any, wakeup: str, answer: str) -> None:
    scheduler = stores.scheduler
    await again(stores, "schedule")
    first = await taken(stores)
    await again(stores, wakeup)
    second = await taken(stores)
    if answer.startswith("extend"):
        assert await scheduler.extend(first, 60 * LEASE) == first
    if answer.endswith("done"):
        await scheduler.done(first)
    if answer == "wake_at":
        await scheduler.wake_at(first, stores.clock.now() + 60 * LEASE)
    assert await scheduler.holds(second)
    stores.clock.advance(LEASE)
    assert (await taken(stores)).workflow == "w", "the newer wakeup is gone"


async def test_k5_a_stale_done_never_wins_however_often_it_is_tried(stores: Any) -> None:
    for _ in range(200):
        await again(stores, "schedule")
        first = await taken(stores)
        await again(stores, "schedule")
        second = await taken(stores)
        await stores.scheduler.done(first)
        assert await stores.scheduler.holds(second)
        assert first.receipt != second.receipt


async def test_k5_an_extended_delivery_is_answered_under_its_new_receipt_only(stores: Any) -> None:
    await again(stores, "schedule")
    first = await taken(stores)
    second = await stores.scheduler.extend(first, LEASE)
    assert first.receipt != second.receipt
    await stores.scheduler.done(first)
    assert await stores.scheduler.holds(second)
    await stores.scheduler.done(second)
    stores.clock.advance(2 * LEASE)
    assert await stores.scheduler.next_ready(NOW) is None


@pytest.mark.parametrize("receipt", ["", "x", "nan", "1.0", "inf abc", "é ü", "1.0 ' OR 1 --"])
async def test_k5_a_receipt_that_was_never_given_changes_nothing(stores: Any, receipt: str) -> None:
    await again(stores, "schedule")
    held = await taken(stores)
    forged = type(held)("w", receipt)
    await stores.scheduler.done(forged)
    await stores.scheduler.wake_at(forged, stores.clock.now())
    assert await stores.scheduler.extend(forged, LEASE) == forged
    assert await stores.scheduler.holds(held)
