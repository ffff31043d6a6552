"""A bell among neighbours that died, hang or are odd, on long paths and in forks."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bells import (
    HOUR,
    QUICK,
    Rung,
    bells,
    bells_that_listen,
    dead,
    filed,
    folder_of,
    needs_bells,
    threads,
    waiting,
)
from children import ended, started
from systems import descriptors, forks, posix_signals
from thread_gates import HANG, in_time, until
from without_durability_sqlite import (
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    bell,
    connect,
)
from without_durability_sqlite.bell import Bell

pytestmark = needs_bells
listened = pytest.fixture(bells_that_listen)


# --- neighbours that died, hang or are odd ------------------------------------------------------


@posix_signals
async def test_the_bell_of_a_killed_process_is_removed_by_the_next_ring(path: Path, migrated: Path):
    script = """
    async def main():
        await opened()
        asyncio.ensure_future(s.next_ready(MIN))
        while not os.path.exists(f"{path}-bell") or not os.listdir(f"{path}-bell"):
            await asyncio.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)
    asyncio.run(main())
    """
    path.write_bytes(migrated.read_bytes())
    child = await asyncio.to_thread(ended, script, path)
    assert child.code == -9, child.err
    assert len(left := bells(path)) == 1
    async with filed(path, migrated) as database, waiting(database) as task:
        assert left < bells(path)
        async with connect(path) as other:
            await SqliteScheduler(other).make_ready("w")
            await in_time(task)
        assert not left & bells(path)
    assert not folder_of(path).exists()


@pytest.mark.parametrize("names", [("00", "01"), ("zz", "zy"), ("00", "zz")])
def test_dead_bells_keep_no_ring_from_the_living(path: Path, listened: Any, names: tuple[str, ...]):
    _, rung = listened()
    gone = [dead(folder_of(path), name) for name in names]
    Bell(str(path)).ring()
    rung.came()
    assert not any(one.exists() for one in gone)


def test_one_that_another_has_just_removed_keeps_no_ring_from_the_living(
    path: Path, listened: Any, monkeypatch: pytest.MonkeyPatch
):
    """Two find the same dead bell at the same time."""
    rungs = [listened()[1] for _ in range(2)]
    dead(folder_of(path), "dead")
    living = bells(path) - {"dead"}
    monkeypatch.setattr(os, "listdir", lambda _: ["dead", *living])  # it comes first
    real = os.unlink

    def removed_by_another(name: Any) -> None:
        real(name)
        real(name)

    monkeypatch.setattr(os, "unlink", removed_by_another)
    Bell(str(path)).ring()
    monkeypatch.undo()
    for rung in rungs:
        rung.came()


@pytest.mark.parametrize("kind", ["folder", "stream"])
def test_what_does_not_belong_in_the_folder_keeps_no_ring_from_the_others(
    path: Path, listened: Any, monkeypatch: pytest.MonkeyPatch, kind: str
):
    _, rung = listened()
    (name,) = bells(path)
    odd = folder_of(path) / "odd"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        if kind == "stream":
            stream.bind(str(odd))
        else:
            odd.mkdir()
        with monkeypatch.context() as patched:
            patched.setattr(os, "listdir", lambda _: ["odd", name])
            Bell(str(path)).ring()
        rung.came()
    with suppress(OSError):
        odd.rmdir() if kind == "folder" else odd.unlink()


async def test_one_who_reads_no_rings_keeps_nobody_from_writing(path: Path, migrated: Path):
    folder_of(path).mkdir(0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(folder_of(path) / "deaf"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filling:
            filling.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    filling.sendto(b"!", str(folder_of(path) / "deaf"))
        async with filed(path, migrated) as database, waiting(database) as task:
            async with connect(path) as other:
                durable = SqliteDurable(SqliteCheckpointer(other), SqliteScheduler(other))
                for n in range(3):
                    await in_time(durable.arrive("w", f"{n}", n))
            assert (await in_time(task)).workflow == "w"
        assert bells(path) == {"deaf"}, "one that lives is left where it is"


def test_one_whose_bell_is_full_is_rung_at_again_later(path: Path, listened: Any):
    """A ring that did not get through came on top of others that did."""
    folder_of(path).mkdir(0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as slow:
        slow.bind(str(folder_of(path) / "slow"))
        slow.settimeout(HANG)
        for _ in range(1000):
            Bell(str(path)).ring()
        slow.recv(1)
        Bell(str(path)).ring()
        assert slow.recv(1) == b"!"


async def test_a_bell_whose_folder_was_removed_by_hand_ends_with_its_database(
    path: Path, migrated: Path, nothing_left_open: None
):
    before = threads()
    async with filed(path, migrated) as database, waiting(database):
        (thread,) = {*threads()} - {*before}
        for name in bells(path):
            (folder_of(path) / name).unlink()
        folder_of(path).rmdir()
    await until(lambda: not thread.is_alive())


async def test_waits_go_on_after_the_folder_was_removed_by_hand(path: Path, migrated: Path):
    async with filed(path, migrated) as database, waiting(database, QUICK) as task:
        for name in bells(path):
            (folder_of(path) / name).unlink()
        folder_of(path).rmdir()
        async with connect(path) as other:
            await SqliteScheduler(other).make_ready("w")
            assert (await in_time(task)).workflow == "w"


# --- paths, forks, descriptors ------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no short way to a long path")
@pytest.mark.parametrize("length", [70, 90, 100, 110, 250])
async def test_a_path_of_any_length_will_do(
    tmp_path: Path, migrated: Path, length: int, nothing_left_open: None
):
    """A socket's address may be some hundred bytes long."""
    folder = tmp_path
    while len(f"{folder}/w.db-bell/0123456789abcdef") < length - 1:
        missing = length - 1 - len(f"{folder}/w.db-bell/0123456789abcdef")
        folder /= "ü" * (min(missing, 100) // 2) or "u"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "w.db"
    before = threads()
    async with filed(path, migrated) as database, connect(path) as other, waiting(database) as task:
        assert len(bells(path)) == 1
        await SqliteScheduler(other).make_ready("w")
        assert (await in_time(task)).workflow == "w"
    assert [file.name for file in folder.iterdir()] == [path.name]
    await until(lambda: {*threads()} <= {*before})  # which close what they listen at


async def test_where_no_address_is_long_enough_waits_look_for_themselves(
    tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch, nothing_left_open: None
):
    monkeypatch.setattr(bell, "_OPEN_FOLDERS", "/nowhere")
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    path = folder / "w.db"
    path.write_bytes(migrated.read_bytes())
    async with (
        filed(path, migrated) as database,
        connect(path) as other,
        waiting(database, QUICK) as task,
    ):
        await SqliteScheduler(other).make_ready("w")
        assert (await in_time(task)).workflow == "w"


@forks
async def test_a_forked_child_that_ends_takes_no_bell_away(path: Path, migrated: Path):
    script = """
    async def main():
        await opened()
        ours = db
        waits = asyncio.create_task(s.next_ready(MIN))
        while not os.path.exists(f"{path}-bell") or not os.listdir(f"{path}-bell"):
            await asyncio.sleep(0.001)
        warnings.simplefilter("ignore")
        child = os.fork()
        if child == 0:
            ours = waits = None
            del globals()["db"], globals()["cp"], globals()["d"], globals()["s"]
            gc.collect()
            import atexit
            atexit._run_exitfuncs()
            os._exit(0)
        os.waitpid(child, 0)
        print("forked", flush=True)
        print((await waits).workflow, flush=True)
        await ours.aclose()
    asyncio.run(main())
    """
    path.write_bytes(migrated.read_bytes())
    with started(script, path) as child:
        assert child.stdout is not None
        try:
            assert await asyncio.to_thread(child.stdout.readline) == "forked\n"
            assert len(bells(path)) == 1
            async with connect(path) as database:
                await SqliteScheduler(database, poll=HOUR).make_ready("w")
            out, errors = await asyncio.to_thread(child.communicate, timeout=HANG)
        finally:
            child.kill()
    assert (child.returncode, out) == (0, "w\n"), errors
    assert not folder_of(path).exists()


async def test_rings_leave_no_descriptor_open(path: Path, migrated: Path):
    folder_of(path).mkdir(0o700)
    dead(folder_of(path), "dead")
    async with filed(path, migrated) as database, connect(path) as other, waiting(database) as task:
        await SqliteScheduler(other).make_ready("v")
        assert (await in_time(task)).workflow == "v"
        before = descriptors()
        for n in range(30):
            await SqliteScheduler(other).make_ready(f"{n}")
        await other.run(lambda connection: None)
        assert descriptors() <= before  # and fewer, once nobody listens any more


def test_bells_leave_no_descriptor_open(path: Path, nothing_left_open: None):
    for _ in range(5):
        ours, other = Bell(str(path)), Bell(str(path))
        rung = Rung()
        before = threads()
        ours.listen(rung)
        (thread,) = {*threads()} - {*before}
        other.ring()
        rung.came()
        ours.close()
        thread.join(HANG)
        assert not thread.is_alive()
