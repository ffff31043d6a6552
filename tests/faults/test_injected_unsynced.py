"""What does not wait for the disk may be lost with the power, and nobody is the worse for it."""

from __future__ import annotations

import hashlib
import random
import time
from contextlib import closing
from pathlib import Path

import pytest
from injected_unsynced import KEYS, Found, Told, assert_of_use, drained, moments, noted_by

from thread_gates import plain
from without_durability_sqlite import SqliteCheckpointer, SqliteDurable, SqliteScheduler, connect

HOUR = 3600
NOTHING, ALL = 0, 1
SURVIVORS = (NOTHING, ALL, 2, 3)
"""Of what was not synced: nothing, all, every second write, every third."""


def fingerprint(path: Path) -> bytes:
    log = Path(f"{path}-wal")
    content = path.read_bytes() if path.exists() else b""
    return hashlib.sha1(content + b"|" + (log.read_bytes() if log.exists() else b"")).digest()


@pytest.mark.parametrize("seed", ["1", "2"])
async def test_at_any_loss_of_power_what_was_told_is_there_or_is_done_again(
    path: Path, tmp_path: Path, seed: str
):
    events = noted_by(path, "mixed", seed)
    known: dict[bytes, Found] = {}
    states, told = 0, Told()
    lags = False
    for number, files, told in moments(events):
        for every in SURVIVORS:
            if every and not any(files.pending.values()):
                continue
            left = files.left(tmp_path / "left", every)
            print_of = fingerprint(left)
            if print_of not in known:
                states += 1
                if states % 40 == 0:
                    await assert_of_use(left, told)
                    left = files.left(tmp_path / "left", every)
                known[print_of] = Found.on(left)
            found = known[print_of]
            found.check(told, number, every)
            tokens = {w: token for w, (token, _) in found.claims.items()}
            lags |= any(tokens.get(w, 0) < token for w, token in told.tokens.items())
    assert states > 100
    assert lags, "no claim was ever lost: it waited for the disk"
    assert len(told.tokens) == 3


async def test_a_worker_whose_power_is_lost_anywhere_ends_with_what_it_should_have(
    path: Path, tmp_path: Path
):
    events = noted_by(path, "working")
    assert events[-1] == ("told", "over") or ("told", "over") in events
    choose = random.Random(5)
    known: set[bytes] = set()
    for number, files, told in moments(events):
        if choose.random() > 0.12:
            continue
        left = files.left(tmp_path / "left", every := choose.choice(SURVIVORS))
        if (print_of := fingerprint(left)) in known:
            continue
        known.add(print_of)
        async with connect(left, clock=lambda: time.time() + HOUR) as database:
            durable = SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database))
            await drained(durable)
        with closing(plain(left)) as connection:
            records: dict[str, dict[str, str]] = {}
            for w, step, value in connection.execute(
                "SELECT workflow, step, value FROM workflow_checkpoint"
            ):
                records.setdefault(w, {})[step] = value
            paid = [w for (w,) in connection.execute("SELECT workflow FROM app")]
        where = (number, every)
        assert told.arrived <= records.keys(), where
        for w, kept in records.items():
            assert sorted(kept) == KEYS, (w, *where)
            assert {value for key, value in kept.items() if key != "nap"} == {f'"{w}"'}, where
        assert sorted(paid) == sorted(records), f"an effect is there twice or not at all: {where}"
    assert len(known) > 20


@pytest.mark.parametrize("how", ["commit", "batch", "checkpoint", "work"])
async def test_after_a_sync_that_failed_what_is_acknowledged_survives(
    path: Path, tmp_path: Path, how: str
):
    """The system reports it once, and what was to be synced is never written."""
    events = noted_by(path, "sync_fails", how)
    assert how == "checkpoint" or any(kind == "lost" for kind, *_ in events)
    told = Told()
    for number, files, told in moments(events):
        if events[number][0] == "told":
            Found.on(files.left(tmp_path / "left", NOTHING)).check(told, number)
    assert {"before", "4"} <= told.records["w"]
