"""The wall clock is stepped while claims and deliveries are out: no lease lasts longer for it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from injected_calls import NOW, READS, WRITES, Prepared, Scene, prepared_in

from without_durability import LEASE, Fenced

HOURS = timedelta(hours=3)
STEPS: dict[str, list[timedelta]] = {
    "forward_by_hours": [HOURS],
    "back_by_hours": [-HOURS],
    "back_by_small_steps": [timedelta(milliseconds=-300)] * 5,
    "back_and_forward_again": [-HOURS, HOURS],
    "back_twice": [-HOURS, -HOURS],
}
each_step = pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)

ANSWERED = {
    *("wake_at", "cancel", "done", "delete", "cancel_of_a_workflow"),
    *("end_pass", "end_pass_of_a_sleeper", "end_pass_of_a_failure"),
}
"""After these nothing wakes "w" within two leases."""

WAKES_THE_SLEEPER = {"make_ready_of_a_sleeper", "schedule_of_a_sleeper", "arrive"}
NEW = {"make_ready", "schedule", "fork"}


@pytest.fixture(scope="module")
def prepared(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared_in(tmp_path_factory.mktemp("injected"), migrated)


async def delivered(scene: Scene) -> set[str]:
    found = set()
    while (delivery := await scene.queue.next_ready(NOW)) is not None:
        found.add(delivery.workflow)
    return found


async def assert_history_never_runs_backwards(scene: Scene, workflow: str) -> None:
    moments = [one.at for one in (await scene.store.history(workflow)).values()]
    assert moments == sorted(moments)


def expected(name: str, total: timedelta) -> set[str]:
    """What is delivered within two leases of the call."""
    names = {"ready", "taken"} | {"w"} - ({"w"} if name in ANSWERED else set())
    names |= {"failed"} if name == "retry" else set()
    names |= {"sleeper"} if total > LEASE or name in WAKES_THE_SLEEPER else set()
    return names | ({"new"} if name in NEW else set())


def stepped(scene: Scene, steps: list[timedelta]) -> Iterator[timedelta]:
    for step in steps:
        scene.clock.advance(step)
        yield step


@each_step
@pytest.mark.parametrize("name", WRITES)
async def test_a_call_after_a_step_of_the_clock_works_and_no_lease_lasts_longer_for_it(
    prepared: Prepared, name: str, steps: list[timedelta]
):
    async with prepared.scene() as (scene, _):
        for _ in stepped(scene, steps):
            await scene.store.load("w")
        await WRITES[name](scene)
        await scene.store.supply("w", "later", 1)
        for workflow in ("w", "sleeper"):
            await assert_history_never_runs_backwards(scene, workflow)
        claim = await scene.store.claim("w", LEASE, LEASE)
        found = await delivered(scene)
        scene.clock.advance(LEASE + timedelta(seconds=1))
        if claim is None:
            claim = await scene.store.claim("w", LEASE, LEASE)
        assert claim is not None, "the claim was not over within its lease"
        assert claim.token > scene.holder.token
        scene.clock.advance(LEASE + timedelta(seconds=1))
        found |= await delivered(scene)
        total = sum(steps, start=2 * LEASE)
        assert found == expected(name, total)


@each_step
@pytest.mark.parametrize("name", READS)
async def test_a_read_after_a_step_of_the_clock_answers_what_it_did_before(
    prepared: Prepared, name: str, steps: list[timedelta]
):
    async with prepared.scene() as (scene, _):
        answer = await READS[name](scene)
        for _ in stepped(scene, steps):
            assert await READS[name](scene) == answer


@each_step
async def test_a_pass_writes_on_after_each_step_until_another_one_outranks_it(
    prepared: Prepared, steps: list[timedelta]
):
    async with prepared.scene() as (scene, _):
        for turn, _ in enumerate(stepped(scene, steps)):
            assert (await scene.store.record(scene.holder, f"step {turn}", turn)).first
            await scene.store.append("w", turn)
            assert await scene.store.extend(scene.holder, LEASE, LEASE)
            assert await scene.store.renew(scene.holder, LEASE)
            assert await scene.store.claim("w", LEASE, LEASE) is None, (
                "it was taken from its holder"
            )
            await assert_history_never_runs_backwards(scene, "w")
        assert [key for key in await scene.store.load("w") if key.startswith("step")] == [
            f"step {turn}" for turn in range(len(steps))
        ]
        scene.clock.advance(LEASE)
        assert await scene.store.claim("w", LEASE, LEASE)
        with pytest.raises(Fenced):
            await scene.store.record(scene.holder, "late", 1)
        assert not await scene.store.renew(scene.holder, LEASE)


@each_step
async def test_renewals_carry_no_claim_past_its_budget_however_the_clock_is_stepped(
    prepared: Prepared, steps: list[timedelta]
):
    async with prepared.scene() as (scene, _):
        for step in stepped(scene, steps):
            assert await scene.store.renew(scene.holder, LEASE) == (step < NOW)
        for _ in range(3):
            scene.clock.advance(LEASE / 3)
            renewed = await scene.store.renew(scene.holder, LEASE)
        assert not renewed, "its budget of a lease was over by then"
        assert await scene.store.claim("w", LEASE, LEASE) is not None


async def test_small_steps_back_leave_a_delivery_with_its_taker(prepared: Prepared):
    async with prepared.scene(set_back=timedelta(seconds=1)) as (scene, _):
        for _ in range(3):  # to almost a second before the take
            scene.clock.advance(timedelta(milliseconds=-300))
            assert await delivered(scene) <= {"ready"}
            assert await scene.queue.holds(scene.delivery)
        await scene.queue.done(scene.delivery)
        scene.clock.advance(2 * LEASE)
        assert "w" not in await delivered(scene)
