"""Steps that a body leaves running: the next pass must not begin beside them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from gated import turns
from stores import Stores
from without_durability import Blocked, Completed, Fenced, Run, claimed, passing, resume

pytestmark = pytest.mark.timeout(20)


class Slow:
    """An effect that begins, waits for its gate, and counts both."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()
        self.times = 0

    async def __call__(self) -> str:
        self.times += 1
        self.begun.set()
        await self.gate.wait()
        return "charged"


async def test_a_pass_is_over_only_when_the_steps_that_gather_left_running_are(stores: Stores):
    slow = Slow()

    async def body(run: Run) -> object:
        return await asyncio.gather(run.step("charge", slow, str), run.awaiting("approval", str))

    holder = await claimed(stores.checkpointer, "w")
    passing = asyncio.create_task(resume(holder, stores.checkpointer, body))
    await slow.begun.wait()
    await turns()
    assert not passing.done(), "the pass was reported over while its own step was running"
    slow.gate.set()
    assert await passing == Blocked(frozenset({"approval"}), frozenset())
    assert await stores.checkpointer.load("w") == {"charge": "charged"}
    await stores.checkpointer.supply("w", "approval", "yes")
    assert await resume(holder, stores.checkpointer, body) == Completed(["charged", "yes"])
    assert slow.times == 1


async def test_a_wait_that_a_left_step_leads_to_counts_as_reached(stores: Stores):
    slow = Slow()

    async def branch(run: Run) -> None:
        await run.step("charge", slow, str)
        await run.receive("notes")

    async def body(run: Run) -> object:
        return await asyncio.gather(branch(run), run.awaiting("approval", str))

    holder = await claimed(stores.checkpointer, "w")
    passing = asyncio.create_task(resume(holder, stores.checkpointer, body))
    await slow.begun.wait()
    slow.gate.set()
    outcome = await passing
    assert isinstance(outcome, Blocked)
    assert "approval" in outcome.keys


async def test_a_transaction_left_running_is_waited_for_too(stores: Stores):
    reached, gate = asyncio.Event(), asyncio.Event()
    transact = type(stores.checkpointer).transact

    class Gated:
        def __getattr__(self, name: str) -> object:
            return getattr(stores.checkpointer, name)

        async def transact(self, *arguments: object) -> object:
            reached.set()
            await gate.wait()
            return await transact(stores.checkpointer, *arguments)

    async def body(run: Run) -> object:
        return await asyncio.gather(
            run.transact("move", lambda _: 1, int),  # type: ignore[arg-type]
            run.awaiting("approval", str),
        )

    holder = await claimed(stores.checkpointer, "w")
    passing = asyncio.create_task(resume(holder, Gated(), body))  # type: ignore[arg-type]
    await reached.wait()
    await turns()
    assert not passing.done()
    gate.set()
    assert isinstance(await passing, Blocked)
    assert await stores.checkpointer.load("w") == {"move": 1}


@pytest.mark.parametrize("times", [1, 3])
async def test_a_cancelled_pass_cancels_the_steps_it_left_running(stores: Stores, times: int):
    slow = Slow()

    async def body(run: Run) -> object:
        return await asyncio.gather(run.step("charge", slow, str), run.awaiting("approval", str))

    holder = await claimed(stores.checkpointer, "w")
    passing = asyncio.create_task(resume(holder, stores.checkpointer, body))
    await slow.begun.wait()
    await asyncio.sleep(0)
    for _ in range(times):
        passing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await passing
    assert await stores.checkpointer.load("w") == {}


async def test_a_body_that_is_cancelled_takes_its_other_steps_along(stores: Stores):
    slow, left = Slow(), []

    async def body(run: Run) -> None:
        left.append(asyncio.create_task(run.step("charge", slow, str)))
        await asyncio.Event().wait()

    holder = await claimed(stores.checkpointer, "w")
    passing = asyncio.create_task(resume(holder, stores.checkpointer, body))
    await slow.begun.wait()
    passing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await passing
    assert left[0].cancelled() or left[0].cancelling()
    with suppress(asyncio.CancelledError):
        await left[0]


async def test_a_branch_begins_no_step_once_its_pass_is_over(stores: Stores):
    slow, over, ran = Slow(), asyncio.Event(), []

    async def late(run: Run) -> None:
        await over.wait()
        await run.step("second", slow, str)

    async def body(run: Run) -> None:
        ran.append(asyncio.create_task(late(run)))

    holder = await claimed(stores.checkpointer, "w")
    assert await resume(holder, stores.checkpointer, body) == Completed(None)
    over.set()
    with pytest.raises(Fenced, match="over"):
        await ran[0]
    assert slow.times == 0


async def test_a_pass_within_a_pass_does_not_end_the_outer_one(stores: Stores):
    async def one() -> int:
        return 1

    async def inner(run: Run) -> int:
        return await run.step("inner", one, int)

    async def outer(run: Run) -> int:
        holder = await claimed(stores.checkpointer, "other")
        assert await resume(holder, stores.checkpointer, inner) == Completed(1)
        return await run.step("outer", one, int)

    holder = await claimed(stores.checkpointer, "w")
    assert await resume(holder, stores.checkpointer, outer) == Completed(1)


async def test_a_run_made_by_hand_outlives_passes_that_ended_before(stores: Stores):
    async def one() -> int:
        return 1

    async def body(run: Run) -> None:
        by_hand.append(asyncio.create_task(later()))

    async def later() -> int:
        await over.wait()
        return await passing(holder, stores.checkpointer).step("late", one, int)

    by_hand: list[asyncio.Task[int]] = []
    over = asyncio.Event()
    holder = await claimed(stores.checkpointer, "w")
    await resume(holder, stores.checkpointer, body)
    assert await passing(holder, stores.checkpointer).step("k", one, int) == 1
    over.set()
    assert await by_hand[0] == 1


async def test_a_step_in_a_task_older_than_the_pass_is_waited_for(stores: Stores):
    slow, runs = Slow(), asyncio.Queue[Run]()

    async def helper() -> None:
        run = await runs.get()
        await run.step("charge", slow, str)

    async def body(run: Run) -> None:
        runs.put_nowait(run)
        await slow.begun.wait()
        await run.awaiting("approval", str)

    older = asyncio.create_task(helper())
    holder = await claimed(stores.checkpointer, "w")
    passing = asyncio.create_task(resume(holder, stores.checkpointer, body))
    await slow.begun.wait()
    await turns()
    assert not passing.done()
    slow.gate.set()
    assert isinstance(await passing, Blocked)
    await older
