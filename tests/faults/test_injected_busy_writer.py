"""Another process holds the write lock: a call waits so long and no longer, and reads go on."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from injected_calls import READS, WRITES, Prepared, everything, prepared_in

from children import started

HOLDER = """
for line in sys.stdin:
    if line != "\\n":
        held = sqlite3.connect(line[:-1], isolation_level=None)
        held.execute("BEGIN IMMEDIATE")
    else:
        held.close()
    print("done", flush=True)
"""


class Holder:
    """A process that takes the write lock of a file and lets go of it when told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    @contextmanager
    def holding(self, path: Path) -> Iterator[None]:
        self.tell(str(path))
        try:
            yield
        finally:
            self.tell("")

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


@pytest.fixture(scope="module")
def prepared(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared_in(tmp_path_factory.mktemp("injected"), migrated)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `next_ready` on a slow machine gives up on waiting no sooner than the others."""
    monkeypatch.setattr("without_durability_sqlite.scheduler._GRACE", 20)


@pytest.fixture(scope="module")
def holder() -> Iterator[Holder]:
    with started(HOLDER) as process:
        yield Holder(process)
        process.communicate(timeout=10)


@pytest.mark.parametrize("name", WRITES)
async def test_a_lock_held_beyond_the_timeout_is_an_error_and_nothing_is_written(
    prepared: Prepared, holder: Holder, name: str
):
    async with prepared.scene(timeout=0.02) as (scene, path):
        before = everything(path)
        answers = [await read(scene) for read in READS.values()]
        with holder.holding(path):
            with pytest.raises(sqlite3.OperationalError) as busy:
                await WRITES[name](scene)
            assert busy.value.sqlite_errorname == "SQLITE_BUSY"
            assert [await read(scene) for read in READS.values()] == answers
        assert everything(path) == before
        await WRITES[name](scene)
        assert everything(path) != before


@pytest.mark.parametrize("name", WRITES)
async def test_a_lock_let_go_of_within_the_timeout_is_waited_for(
    prepared: Prepared, holder: Holder, name: str
):
    async with prepared.scene(timeout=20) as (scene, path):
        before = everything(path)
        with holder.holding(path):
            waiting = asyncio.ensure_future(WRITES[name](scene))
            done, _ = await asyncio.wait({waiting}, timeout=0.03)
            assert not done, "it did not wait"
            assert everything(path) == before
        await asyncio.wait_for(waiting, 10)
        assert everything(path) != before
