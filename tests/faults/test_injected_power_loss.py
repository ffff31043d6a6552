"""The power goes: what is left is what had been done up to some moment, and nothing else."""

from __future__ import annotations

import random
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from injected_power_loss import LATER, Cut, Written, cuts, found, written

from without_durability import LEASE
from without_durability_sqlite import SqliteCheckpointer, SqliteScheduler, connect, migrate

BATCHES = 16


async def prefix(cut: Path, states: list[object], least: int) -> int:
    """How many calls the file holds, `least` or more, when it is opened as always."""
    async with connect(cut) as database:
        await migrate(database)
        await database.run(lambda c: c.execute("PRAGMA synchronous = OFF").close())  # just a copy
        held = await database.run(found)
        (check,) = await database.run(lambda c: c.execute("PRAGMA integrity_check").fetchall())
        assert check == ("ok",)
        store = SqliteCheckpointer(database)
        loaded = {w: list((await store.load(w)).values()) for w in "abc"}
    assert {w: kept for w, kept in loaded.items() if kept} == {
        w: [value for _, value in kept] for w, kept in held[0].items()
    }
    for count in range(least, len(states)):
        if states[count] == held:
            return count
    earlier = [count for count in range(least) if states[count] == held]
    raise AssertionError(f"no state after {least} calls or more; as after {earlier}: {held}")


async def assert_usable(cut: Path, now: float) -> None:
    async with connect(cut, clock=lambda: now) as database:
        store, queue = SqliteCheckpointer(database), SqliteScheduler(database)
        holder = await store.claim("a", LEASE, LEASE)
        assert holder is not None, "a claim outlives its lease"
        assert (await store.record(holder, "after", 1)).first
        await queue.make_ready("after")
        while (delivery := await queue.next_ready(timedelta(0))) is not None:
            await queue.done(delivery)
        assert not await database.run(
            lambda c: c.execute(
                "SELECT * FROM workflow_queue WHERE namespace = 'workflow' AND visible_at < ?",
                (now,),
            ).fetchall()
        )


def left(path: Path, cut: Cut, log: bytes) -> Path:
    """The file and its log as the disk has them."""
    other = path.with_name("cut.db")
    Path(f"{other}-shm").unlink(missing_ok=True)
    shutil.copyfile(path, other)
    Path(f"{other}-wal").write_bytes(log[: cut.length] + cut.rest)
    return other


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_log_cut_anywhere_leaves_a_prefix_with_all_that_was_acknowledged_by_then(
    path: Path, migrated: Path, seed: int
):
    shutil.copyfile(migrated, path)
    told: Written = written(path, seed, BATCHES)
    log = Path(f"{path}-wal").read_bytes()
    assert log[:4] in (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
    assert told.acknowledged[-1][1] <= len(log)
    assert len({name for name, *_ in told.calls}) == 11, "every call whose write must last"
    states = told.states()
    assert await prefix(left(path, Cut(0), log), states, 0) == 0, "all of it is in the log"
    least, seen = 0, set()
    for number, cut in enumerate(cuts(log, random.Random(seed))):
        file = left(path, cut, log)
        least = max(least, told.acknowledged_at(cut.length))
        least = await prefix(file, states, least)
        seen.add(least)
        if number % 5 == 0:
            await assert_usable(file, LATER - 1)
    assert least == len(told.calls), "the whole log holds the whole of it"
    assert len(seen) > BATCHES / 2
