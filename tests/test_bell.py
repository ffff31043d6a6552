"""The bell: another process is told at once, only by its own user, and nothing depends on it."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from batches import together, unhurried
from bells import (
    HOUR,
    NOW,
    QUICK,
    SOMEBODY_ELSE,
    Rung,
    as_root,
    bells,
    bells_that_listen,
    dead,
    filed,
    folder_of,
    needs_bells,
    threads,
    waiting,
)
from children import ended
from gated import turns
from thread_gates import in_time, plain, until
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    connect,
    migrate,
)
from without_durability_sqlite.bell import Bell

pytestmark = needs_bells
listened = pytest.fixture(bells_that_listen)


# --- being told ---------------------------------------------------------------------------------


READIES = {
    "arrive": "d.arrive('v', 'k', 1)",
    "deliver": "d.deliver('v', 1)",
    "make_ready": "s.make_ready('v')",
    "schedule in the past": "s.schedule('v', now - MIN)",
    "schedule for soon": "s.schedule('v', now + MIN / 600)",
    "wake_at": "s.wake_at(out, now)",
    "wake_at soon": "s.wake_at(out, now + MIN / 600)",
    "end_pass": "d.end_pass(holder, out, Ended(now))",
    "retry": "d.cancel('v')\n        await d.retry('v')",
    "rewind": "cp.record(holder, 'k', 1)\n        await d.rewind('v', 'k')",
    "end_pass soon": "d.end_pass(holder, out, Ended(now + MIN / 600))",
}
"""What has "v" delivered, which is out with its holder."""


@pytest.mark.parametrize("name", READIES)
async def test_what_another_process_makes_ready_wakes_one_who_would_look_in_an_hour(
    path: Path, migrated: Path, name: str
):
    script = f"""
    async def main():
        await opened()
        holder, out = Pass("v", int(arguments[0])), Delivery("v", arguments[1])
        now = datetime.now(UTC)
        await {READIES[name]}
        await db.aclose()
    asyncio.run(main())
    """
    async with filed(path, migrated) as database:
        durable = SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database))
        await durable.scheduler.make_ready("v")
        ((out, holder, *_),) = await durable.start_passes(1, NOW, HOUR)
        assert holder is not None
        async with waiting(database) as task:
            child = await asyncio.to_thread(ended, script, path, str(holder.token), out.receipt)
            assert child.code == 0, child.err
            delivery = await in_time(task)
            assert delivery is not None, "nobody rang"
            assert delivery.workflow == "v"


async def test_a_sleeper_of_another_process_that_is_far_ahead_rings_at_nobody(
    path: Path, migrated: Path, listened: Any
):
    _, rung = listened()
    async with filed(path, migrated) as database:
        queue = SqliteScheduler(database)
        await queue.schedule("w", queue.now() + HOUR)
        await queue.make_ready("v")
        rung.came()
    assert rung.times == 1


async def test_one_commit_rings_once_however_much_it_made_ready(
    path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch
):
    rings: list[Bell] = []
    monkeypatch.setattr(Bell, "ring", lambda self: rings.append(self))
    async with filed(path, migrated) as database:
        queues = [SqliteScheduler(database, namespace) for namespace in "abc"]
        with unhurried():
            await together(
                database, *(queue.make_ready(f"{n}") for n in range(7) for queue in queues)
            )
        await database.run(lambda connection: None)  # the thread has rung by then
    assert len(rings) == 1


async def test_two_databases_of_one_process_ring_at_each_other(path: Path, migrated: Path):
    async with filed(path, migrated) as one, connect(path) as other:
        for waits, readies in ((one, other), (other, one)):
            async with waiting(waits) as task:
                await SqliteScheduler(readies).make_ready("w")
                assert (await in_time(task)).workflow == "w"
            await SqliteScheduler(one).cancel("w")
    assert not folder_of(path).exists()


def test_a_bell_does_not_ring_at_itself(path: Path, listened: Any):
    ours, rung = listened()
    other, its_rung = listened()
    ours.ring()
    its_rung.came()
    other.ring()
    rung.came()
    assert (rung.times, its_rung.times) == (1, 1)


def test_one_that_does_not_listen_rings_at_all_who_do(path: Path, listened: Any):
    rungs = [listened()[1] for _ in range(3)]
    Bell(str(path)).ring()
    for rung in rungs:
        rung.came()


async def test_any_datagram_is_a_ring_and_does_no_harm(
    path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch
):
    async with filed(path, migrated) as database, waiting(database) as task:
        (name,) = bells(path)
        monkeypatch.chdir(folder_of(path))  # its whole path may be longer than an address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
            for said in (b"", b"!", os.urandom(1000)):
                stranger.sendto(said, name)
        await turns()
        assert not task.done(), "a ring that nothing came with wakes nobody"
        with closing(plain(path)) as foreign:
            foreign.execute(
                "INSERT INTO workflow_queue (namespace, workflow, visible_at, taken_for) "
                "VALUES ('workflow', 'w', 1, 0)"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(b"?", name)
        assert (await in_time(task)).workflow == "w"


# --- where it cannot be had ---------------------------------------------------------------------


def of_another_mode(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o750)


def open_to_all(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o701)


def a_file(folder: Path) -> None:
    folder.write_text("precious")


def a_link(folder: Path) -> None:
    folder.with_name("elsewhere").mkdir(0o700)
    folder.symlink_to(folder.with_name("elsewhere"))


def a_dangling_link(folder: Path) -> None:
    folder.symlink_to(folder.with_name("nowhere"))


def of_another_user(folder: Path) -> None:
    folder.mkdir(0o700)
    os.chown(folder, SOMEBODY_ELSE, -1)


@pytest.mark.parametrize(
    "instead",
    [
        *(of_another_mode, open_to_all, a_file, a_link, a_dangling_link),
        pytest.param(of_another_user, marks=as_root),
    ],
)
async def test_in_a_place_that_others_might_enter_there_is_no_bell_and_waits_look_for_themselves(
    path: Path, migrated: Path, instead: Callable[[Path], None], nothing_left_open: None
):
    instead(folder_of(path))
    before = folder_of(path).lstat()
    async with (
        filed(path, migrated) as database,
        connect(path) as other,
        waiting(database, QUICK) as task,
    ):
        assert not threads()
        await SqliteScheduler(other).make_ready("w")
        assert (await in_time(task)).workflow == "w"
    after = folder_of(path).lstat()
    assert (after.st_ino, after.st_mode, after.st_uid) == (
        *(before.st_ino, before.st_mode, before.st_uid),
    ), "it was touched"
    for place in (folder_of(path), path.with_name("elsewhere")):
        if place.is_dir():
            assert list(place.iterdir()) == [], "a bell was put where others might enter"


@pytest.mark.parametrize(
    "opened_to",
    [
        lambda folder: folder.chmod(0o770),
        pytest.param(lambda folder: os.chown(folder, SOMEBODY_ELSE, -1), marks=as_root),
    ],
)
def test_in_a_folder_that_others_may_enter_nobody_rings(
    path: Path, listened: Any, opened_to: Callable[[Path], None]
):
    """Whatever stands there then may be anybody's."""
    _, rung = listened()
    opened_to(folder_of(path))
    Bell(str(path)).ring()
    os.chown(folder_of(path), os.geteuid(), -1)
    folder_of(path).chmod(0o700)
    Bell(str(path)).ring()
    rung.came()
    assert rung.times == 1


async def test_in_memory_and_without_a_log_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for database in (connect(":memory:"), Database(plain(tmp_path / "rollback.db"))):
        async with database:
            await migrate(database)
            async with waiting(database) as task:
                assert not list(tmp_path.glob("*-bell"))
                assert not threads()
                await SqliteScheduler(database).make_ready("w")
                assert (await in_time(task)).workflow == "w"


async def test_nobody_has_one_before_they_wait(path: Path, migrated: Path):
    async with filed(path, migrated) as database:
        durable = SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database))
        await durable.arrive("w", "k", 1)
        await durable.checkpointer.load("w")
        assert not folder_of(path).exists()


async def test_however_often_somebody_waits_there_is_one_bell(path: Path, migrated: Path):
    async with filed(path, migrated) as database:
        for _ in range(3):
            async with waiting(database):
                assert len(bells(path)) == 1
                assert len(threads()) == 1


# --- the folder ---------------------------------------------------------------------------------


async def test_only_its_user_may_enter_the_folder(path: Path, migrated: Path):
    async with filed(path, migrated) as database, waiting(database):
        found = folder_of(path).lstat()
        assert stat.S_ISDIR(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o700
        assert found.st_uid == os.geteuid()


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def test_with_an_open_umask_only_its_user_may_enter(path: Path, listened: Any):
    with umask(0):
        _, rung = listened()
    assert stat.S_IMODE(folder_of(path).stat().st_mode) == 0o700
    Bell(str(path)).ring()
    rung.came()


CLOSED_UMASK = """
os.umask(0o077)
import tempfile
from without_durability_sqlite.bell import Bell
folder = tempfile.mkdtemp()
if os.geteuid() == 0:
    os.chown(folder, 65534, 65534)
    os.setuid(65534)
os.umask(int(arguments[0], 8))
rung = threading.Event()
ours = Bell(f"{folder}/w.db")
print(ours.listen(rung.set))
Bell(f"{folder}/w.db").ring()
if arguments[1] == "heard":
    assert rung.wait(5)
ours.close()
print(os.listdir(folder))
os.chmod(folder, 0o700)
for left in os.listdir(folder):
    os.rmdir(f"{folder}/{left}")
os.rmdir(folder)
"""


@pytest.mark.parametrize("mask", ["000", "022", "077"])
def test_an_ordinary_user_has_a_bell_under_any_usual_umask(mask: str):
    child = ended(CLOSED_UMASK, "", mask, "heard")
    assert (child.code, child.out) == (0, "True\n[]\n"), child.err


def test_under_a_umask_that_closes_everything_there_is_none_and_nothing_is_left():
    child = ended(CLOSED_UMASK, "", "777", "unheard")
    assert (child.code, child.out) == (0, "False\n[]\n"), child.err


def test_the_folder_goes_with_the_last_bell(path: Path, listened: Any):
    one, _ = listened()
    other, rung = listened()
    assert len(bells(path)) == 2
    one.close()
    assert len(bells(path)) == 1
    Bell(str(path)).ring()
    rung.came()
    other.close()
    assert not folder_of(path).exists()


async def test_a_database_that_is_closed_leaves_neither_bell_nor_folder_nor_thread(
    path: Path, migrated: Path, nothing_left_open: None
):
    before = threads()
    async with filed(path, migrated) as database, waiting(database):
        assert bells(path)
        assert len(threads()) == len(before) + 1
        (thread,) = {*threads()} - {*before}
    await until(lambda: not thread.is_alive())
    assert [file.name for file in path.parent.iterdir()] == [path.name]


async def test_a_program_that_forgets_to_close_leaves_nothing_either(path: Path, migrated: Path):
    path.write_bytes(migrated.read_bytes())
    script = """
    async def main():
        await opened()
        asyncio.ensure_future(s.next_ready(MIN))
        while not os.path.exists(f"{path}-bell"):
            await asyncio.sleep(0.001)
    asyncio.run(main())
    """
    child = ended(script, path)
    assert child.code == 0, child.err
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_bell_that_is_closed_is_not_put_up_again(path: Path):
    ours = Bell(str(path))
    ours.close()
    assert not ours.listen(Rung())
    ours.close()
    ours.ring()
    assert not folder_of(path).exists()


def test_a_folder_that_goes_while_a_bell_is_put_up_is_made_anew(
    path: Path, listened: Any, monkeypatch: pytest.MonkeyPatch
):
    """The last one to leave removes it between two steps of the next one to come."""
    real, gone = Bell._is_ours, []

    def then_gone(self: Bell) -> bool:
        found = real(self)
        if not gone:
            gone.append(folder_of(path).rmdir())
        return found

    monkeypatch.setattr(Bell, "_is_ours", then_gone)
    _, rung = listened()
    assert gone
    Bell(str(path)).ring()
    rung.came()


async def test_the_next_to_close_removes_what_a_killed_process_left(path: Path, migrated: Path):
    async with filed(path, migrated) as database, waiting(database):
        dead(folder_of(path), "killed")
    assert not folder_of(path).exists()


def test_where_no_thread_is_to_be_had_there_is_no_bell(
    path: Path, monkeypatch: pytest.MonkeyPatch, nothing_left_open: None
):
    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fails)
    bell = Bell(str(path))
    assert not bell.listen(print)
    assert not folder_of(path).exists()
    bell.close()


def test_a_bell_that_somebody_removed_is_put_up_again(path: Path):
    bell, rung = Bell(str(path)), Rung()
    assert bell.listen(rung)
    (name,) = bells(path)
    (folder_of(path) / name).unlink()
    assert bell.listen(rung)
    Bell(str(path)).ring()
    rung.came()
    bell.close()
    assert not folder_of(path).exists()
