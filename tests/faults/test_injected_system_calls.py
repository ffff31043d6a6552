"""What the system refuses SQLite is refused the caller, whole, and nothing else goes wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from injected_calls import READS, WRITES, prepare
from injected_children import child_of

SOME = ("record", "transact", "append", "deliver", "next_ready", "delete")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has another VFS")


async def failures(
    tmp_path: Path, migrated: Path, kind: str, how: str, *names: str
) -> dict[str, int]:
    """How often each of the named calls failed, in a process whose checks all held."""
    held = await prepare(tmp_path / "prepared.db", migrated)
    told = child_of("injected_system_calls", tmp_path / "prepared.db", held, kind, how, *names)
    return {name: int(count) for name, count in told.items()}


@pytest.mark.parametrize(
    ("how", "names"), [("ENOSPC", WRITES), ("EIO", SOME), ("half", SOME), ("short", SOME)]
)
async def test_a_write_that_the_system_refuses_leaves_nothing_of_a_call(
    tmp_path: Path, migrated: Path, how: str, names: Iterable[str]
):
    failed = await failures(tmp_path, migrated, "write", how, *names)
    assert failed.keys() == {*names}
    assert min(failed.values()) >= 2, "a frame's head and its page, at the least"


@pytest.mark.parametrize("how", ["ENOSPC", "EIO"])
async def test_a_checkpoint_that_the_system_refuses_takes_nothing_back(
    tmp_path: Path, migrated: Path, how: str
):
    failed = await failures(tmp_path, migrated, "checkpoint", how, *SOME)
    assert min(failed.values()) >= 3, "beyond the log, the file itself"


@pytest.mark.parametrize("how", ["EIO", "ESTALE"])
async def test_a_read_that_the_system_refuses_is_an_error_and_the_next_one_answers(
    tmp_path: Path, migrated: Path, how: str
):
    failed = await failures(tmp_path, migrated, "read", how, *READS)
    assert min(failed.values()) > 0


@pytest.mark.parametrize(
    ("how", "names"),
    [("EMFILE", "open"), ("ENOSPC", "pwrite64,ftruncate"), ("EIO", "pread64,pwrite64")],
)
async def test_a_file_whose_opening_the_system_refused_opens_the_next_time(
    tmp_path: Path, migrated: Path, how: str, names: str
):
    failed = await failures(tmp_path, migrated, "opening", how, names)
    assert failed[names] > 0
