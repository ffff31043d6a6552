"""Stores that will not even let themselves be checked: each still gets its verdict."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from without_durability import MemoryCheckpointer, MemoryScheduler, SplitDurable
from without_durability.testing import CHECKS, Clock, certify, certifying


class HangsOnceCancelled(MemoryCheckpointer):
    async def claim(self, workflow, budget, alive):
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await asyncio.Event().wait()
        return await super().claim(workflow, budget, alive)


class SwallowsCancellation(MemoryCheckpointer):
    async def load(self, workflow):
        while self.data.setdefault("cancellations", 0) < 4:  # the last is the closing loop's
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            self.data["cancellations"] += 1
        return {}


def raising(error: BaseException) -> type[MemoryCheckpointer]:
    class Raises(MemoryCheckpointer):
        async def load(self, workflow):
            raise error

    return Raises


async def certified(store: type[MemoryCheckpointer]) -> Any:
    @asynccontextmanager
    async def make(clock: Clock):
        yield SplitDurable(
            store(clock=clock.seconds, now=clock.now), MemoryScheduler(clock=clock.seconds)
        )

    async with asyncio.timeout(20):
        return await certify(make)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certifying, "HANG", 0.3)
    monkeypatch.setattr(certifying, "CHECKS", {one: CHECKS[one] for one in ("C1", "C17", "D3")})


async def test_a_store_that_hangs_once_it_is_cancelled_has_its_verdict() -> None:
    certificate = await certified(HangsOnceCancelled)
    assert certificate["C17"].why == "it did not end within 0.3 s"
    assert certificate["D3"].state == "passed"


async def test_a_store_that_swallows_its_cancellation_has_its_verdict() -> None:
    certificate = await certified(SwallowsCancellation)
    assert certificate["C1"].why == "it did not end within 0.3 s"
    assert len(certificate.verdicts) == 3


@pytest.mark.parametrize(
    ("error", "saying"),
    [
        (TimeoutError("redis said so"), "the store raised TimeoutError('redis said so')"),
        (asyncio.CancelledError(), "the store raised a CancelledError of its own"),
        (SystemExit(3), "the store raised SystemExit(3)"),
    ],
    ids=["a timeout", "a cancellation", "an exit"],
)
async def test_what_a_store_raises_is_what_its_verdict_says(
    error: BaseException, saying: str
) -> None:
    assert (await certified(raising(error)))["C1"].why == saying


async def test_whoever_cancels_a_certification_ends_it() -> None:
    certification = asyncio.ensure_future(certified(HangsOnceCancelled))
    await asyncio.sleep(0)
    certification.cancel()
    with pytest.raises(asyncio.CancelledError):
        await certification
