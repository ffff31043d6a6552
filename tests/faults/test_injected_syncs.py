"""What is acknowledged has reached the disk, and a disk that refuses is no acknowledgement."""

from __future__ import annotations

from pathlib import Path

import pytest
from injected_calls import WRITES, prepare
from injected_children import child_of
from injected_syncs import DURABLE, RELAXED, compiled


async def told(
    tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *names: str
) -> dict[str, str]:
    """What a process under the shim says of each of the named calls."""
    held = await prepare(tmp_path / "prepared.db", migrated)
    monkeypatch.setenv("LD_PRELOAD", str(compiled(tmp_path)))
    return child_of("injected_syncs", tmp_path / "prepared.db", held, kind, *names)


async def test_what_must_outlive_a_power_loss_is_synced_before_it_is_acknowledged(
    tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch
):
    logged = await told(tmp_path, migrated, monkeypatch, "synced", *DURABLE)
    assert logged.keys() == {*DURABLE}
    for name, events in logged.items():
        assert events.startswith("w"), f"{name} wrote nothing: {events}"
        assert events.endswith("s"), f"{name} was acknowledged before its last write was synced"


async def test_what_a_power_loss_cannot_hurt_syncs_nothing_by_itself(
    tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch
):
    counted = await told(tmp_path, migrated, monkeypatch, "unsynced", *RELAXED)
    assert counted.keys() == {*RELAXED}
    assert {*RELAXED, *DURABLE} >= {name for name in WRITES if "_of_a_known_key" not in name} - {
        *("transacted_in_a_run", "make_ready_of_a_sleeper", "schedule_of_a_sleeper"),
    }, "a call that is neither"
    for name, events in counted.items():
        syncs, writes = map(int, events.split())
        assert writes > 0, f"{name} wrote nothing"
        assert syncs == 0, f"{name} paid for {syncs} syncs of its own"


async def test_a_sync_that_the_disk_refuses_is_an_error_and_leaves_no_half_of_a_call(
    tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch
):
    failed = await told(tmp_path, migrated, monkeypatch, "sync_fails", *WRITES)
    assert failed.keys() == WRITES.keys()
    assert all(int(failed[name]) >= 1 for name in DURABLE), failed
