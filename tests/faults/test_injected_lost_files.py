"""The file is restored, replaced, moved or deleted under a store: it says so and harms nothing."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from injected_calls import NOW, READS, WRITES, Prepared, Scene, everything, prepared_in

from steered import ENDS
from systems import posix_files
from without_durability import LEASE, Clock, Delivery, Fenced, Pass
from without_durability_sqlite import connect

MILLISECONDS = timedelta(milliseconds=10)


@pytest.fixture(scope="module")
def prepared(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared_in(tmp_path_factory.mktemp("injected"), migrated)


# --- an older copy ----------------------------------------------------------------------------


class Restored:
    """A store that went on after a copy of its file was taken, and then the copy was put back."""

    def __init__(self, path: Path, prepared: Prepared) -> None:
        self.path, self.prepared, self.clock = path, prepared, Clock()
        self.passes: list[Pass] = []
        self.deliveries: list[Delivery] = []

    def scene(self) -> Scene:
        database = connect(self.path, clock=self.clock.seconds)
        return Scene(database, self.clock, *self.prepared.granted)

    async def happen(self) -> None:
        """What the lost timeline granted: five passes over "w", and every delivery there is."""
        shutil.copyfile(self.prepared.path, self.path)
        self.clock.advance(2 * LEASE)
        async with (scene := self.scene()).database:
            for _ in range(5):
                holder = await scene.store.claim("w", LEASE, LEASE)
                assert holder is not None
                self.passes.append(holder)
                await scene.store.release(holder)
            last = await scene.store.claim("w", LEASE, LEASE)
            assert last is not None
            self.passes.append(last)
            while (delivery := await scene.queue.next_ready(NOW)) is not None:
                self.deliveries.append(delivery)
        shutil.copyfile(self.prepared.path, self.path)
        self.clock.advance(MILLISECONDS)


def never(_: object) -> None:
    raise AssertionError("a lost pass's effect ran")


async def assert_writes_nothing(scene: Scene, lost: Pass, path: Path) -> None:
    before = everything(path)
    for write in (
        lambda: scene.store.record(lost, "first", 2),
        lambda: scene.store.record(lost, "new", 2),
        lambda: scene.store.transact(lost, "first", never),
        lambda: scene.store.transact(lost, "new", never),
    ):
        with pytest.raises(Fenced):
            await write()
    assert not await scene.store.extend(lost, LEASE, LEASE)
    assert not await scene.store.renew(lost, LEASE)
    await scene.store.release(lost)
    await scene.durable.end_pass(lost, Delivery("w", ""), ENDS["completed"])
    assert everything(path) == before


async def test_a_pass_of_the_lost_timeline_is_fenced_whatever_it_calls_and_its_token_never_repeats(
    path: Path, prepared: Prepared
):
    restored = Restored(path, prepared)
    await restored.happen()
    async with (scene := restored.scene()).database:
        for lost in restored.passes:
            await assert_writes_nothing(scene, lost, path)
        holder = await scene.store.claim("w", LEASE, LEASE)
        assert holder is not None
        assert holder.token > max(lost.token for lost in restored.passes)
        for lost in restored.passes:
            await assert_writes_nothing(scene, lost, path)
        assert (await scene.store.record(holder, "new", 1)).first


async def test_a_pass_that_the_copy_knows_goes_on_until_a_newer_one_takes_over(
    path: Path, prepared: Prepared
):
    restored = Restored(path, prepared)
    await restored.happen()
    async with (scene := restored.scene()).database:
        assert (await scene.store.record(scene.holder, "goes on", 1)).first
        await scene.store.release(scene.holder)
        assert await scene.store.claim("w", LEASE, LEASE)
        await assert_writes_nothing(scene, scene.holder, path)


async def test_a_receipt_of_the_lost_timeline_answers_nothing(path: Path, prepared: Prepared):
    restored = Restored(path, prepared)
    await restored.happen()
    assert {lost.workflow for lost in restored.deliveries} == {"w", "ready", "sleeper", "taken"}
    async with (scene := restored.scene()).database:
        taken: list[Delivery] = []
        for _ in range(2):  # before and after the copy's own deliveries are out
            before = everything(path)
            for lost in restored.deliveries:
                assert not await scene.queue.holds(lost)
                await scene.queue.done(lost)
                await scene.queue.wake_at(lost, scene.clock.now())
                assert await scene.queue.extend(lost, 9 * LEASE) == lost
                assert (await scene.durable.start_pass(lost, LEASE)).over == "gone"
            assert everything(path) == before
            while (delivery := await scene.queue.next_ready(NOW)) is not None:
                taken.append(delivery)
        assert sorted(one.workflow for one in taken) == ["ready", "sleeper", "taken", "w"]
        assert not {one.receipt for one in taken} & {one.receipt for one in restored.deliveries}
        assert all([await scene.queue.holds(one) for one in taken])


# --- the file of an open store ----------------------------------------------------------------


def delete(path: Path) -> None:
    path.unlink()


def move_away(path: Path) -> None:
    path.rename(path.with_name("moved"))


def move_its_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))


def replace_with_nothing(path: Path) -> None:
    path.with_name("other").touch()
    path.with_name("other").replace(path)


def replace_with_a_database(path: Path) -> None:
    with closing(sqlite3.connect(path.with_name("other"))) as other:
        other.execute("CREATE TABLE theirs (x)")
    path.with_name("other").replace(path)


def delete_the_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def delete_the_index_of_the_log(path: Path) -> None:
    Path(f"{path}-shm").unlink()


def replace_the_log(path: Path) -> None:
    path.with_name("other").touch()
    path.with_name("other").replace(f"{path}-wal")


def replace_with_a_database_and_its_log(path: Path) -> None:
    replace_the_log(path)
    replace_with_a_database(path)


LOSSES: tuple[Callable[[Path], None], ...] = (
    *(delete, move_away, move_its_folder),
    *(delete_the_log, delete_the_index_of_the_log, replace_the_log),
    *(replace_with_nothing, replace_with_a_database, replace_with_a_database_and_its_log),
)


def seen(folder: Path) -> list[object]:
    """What is there, told without opening any of it: that would drop the locks of what is open."""
    files = [file for file in sorted(folder.rglob("*")) if not file.name.endswith("-shm")]
    found = [(file, file.stat()) for file in files]
    return [(file.name, at.st_ino, at.st_size, at.st_mtime_ns) for file, at in found]


@posix_files
@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
async def test_a_call_on_a_file_that_is_no_longer_there_says_so_and_touches_nothing(
    tmp_path: Path, prepared: Prepared, lose: Callable[[Path], None]
):
    folder = tmp_path / "folder"
    folder.mkdir()
    restored = Restored(folder / "workflows.db", prepared)
    shutil.copyfile(prepared.path, restored.path)
    async with (scene := restored.scene()).database:
        await scene.store.supply("w", "opens the log", 1)
        lose(restored.path)
        found = seen(tmp_path)
        for name, call in (WRITES | READS).items():
            with pytest.raises(sqlite3.OperationalError, match="deleted or replaced") as lost:
                await call(scene)
            assert lost.value.sqlite_errorname == "SQLITE_READONLY_DBMOVED", name
            assert not scene.connection.in_transaction
        assert seen(tmp_path) == found
    if lose not in (delete_the_log, delete_the_index_of_the_log, replace_the_log):
        # In those three the file itself is in its place, and closing may write to it.
        assert seen(tmp_path) == found, "closing it touched what is there instead"
