"""A statement of a call fails: the call is all there or not at all, and the next one works."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from injected_calls import (
    NOW,
    READS,
    WRITES,
    WRITES_AFTER_THE_CLOCK_WAS_SET_BACK,
    Call,
    Prepared,
    Scene,
    everything,
    prepared_in,
    read_through,
)
from injected_statements import ERRORS, Fault, Faulty, Moment

from older_files import BEFORE_SIGNS_OF_LIFE, PUBLISHED, VERSION_1
from thread_gates import plain
from without_durability.values import Started
from without_durability_sqlite import migrate

MOMENTS: tuple[Moment, ...] = get_args(Moment)
each_error = pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)


@pytest.fixture(scope="module")
def prepared(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared_in(tmp_path_factory.mktemp("injected"), migrated)


@asynccontextmanager
async def faulty_scene(
    prepared: Prepared, set_back: timedelta = NOW
) -> AsyncIterator[tuple[Scene, Path]]:
    """A scene whose every statement, on either of its connections, may be made to fail."""
    async with prepared.scene(set_back=set_back, factory=Faulty) as (scene, path):
        reading: Any = plain(path, factory=Faulty)
        reading.beside = scene.connection
        read_through(scene.database, reading)
        yield scene, path


@dataclass
class Reference:
    """What a call that nothing goes wrong in runs, and what the file holds before and after."""

    statements: list[str]
    before: Any
    after: Any


async def reference(prepared: Prepared, call: Call, set_back: timedelta) -> Reference:
    async with faulty_scene(prepared, set_back) as (scene, path):
        before = everything(path)
        scene.connection.disarm()
        await call(scene)
        statements = [*scene.connection.statements]
        assert everything(path) != before, "the call writes nothing"
        return Reference(statements, before, everything(path))


async def fail_at_every_statement(
    prepared: Prepared,
    call: Call,
    error: Callable[[], BaseException],
    rollback: Moment | None = None,
    moments: tuple[Moment, ...] = MOMENTS,
    set_back: timedelta = NOW,
) -> int:
    """How many faults the call has met, each on a file of its own."""
    expected = await reference(prepared, call, set_back)
    met = 0
    for moment in moments:
        for n in range(1, len(expected.statements) + 1):
            async with faulty_scene(prepared, set_back) as (scene, path):
                met += await fail_once(
                    scene, path, call, expected, Fault(n, moment, error()), rollback
                )
    return met


async def given(call: Call, scene: Scene) -> Sequence[Started]:
    """The passes that a call starts, of which there are some."""
    started: Any = await call(scene)
    assert started, "the delivery was kept"
    return started  # type: ignore[no-any-return]


async def fail_once(
    scene: Scene,
    path: Path,
    call: Call,
    expected: Reference,
    fault: Fault,
    rollback: Moment | None,
) -> bool:
    scene.connection.arm(fault, rollback)
    try:
        await call(scene)
    except BaseException as surfaced:
        assert surfaced is fault.error, (fault, surfaced)  # noqa: PT017 (any error whatever)
    else:
        assert fault.at is None, f"nobody heard of {fault}"
        return False
    happened = fault.at == "COMMIT" and fault.moment == "after_it_ran"
    if rollback != "before_it_ran":
        assert not scene.connection.in_transaction, f"left open after {fault}"
    if "COMMIT" in expected.statements[: fault.n - 1]:  # it was granted, and is given back
        scene.connection.disarm()
        assert all(one.holder for one in await given(call, scene)), "the claim was kept"
        return True
    wanted = expected.after if happened else expected.before
    assert everything(path) == wanted, f"half of it is there after {fault}"
    scene.connection.disarm()
    try:
        await call(scene)
    except ValueError:
        assert happened, "what did not happen cannot be asked for again"
    if not happened:
        assert everything(path) == expected.after, f"{fault} did harm that came out later"
    return True


@each_error
@pytest.mark.parametrize("name", WRITES)
async def test_a_fault_at_any_statement_leaves_all_of_a_write_or_none_and_the_store_usable(
    prepared: Prepared, name: str, error: Callable[[], BaseException]
):
    statements = (await reference(prepared, WRITES[name], NOW)).statements
    assert {"BEGIN IMMEDIATE", "COMMIT"} <= {*statements}
    met = await fail_at_every_statement(prepared, WRITES[name], error)
    assert met >= 2 * len(statements)


@pytest.mark.parametrize("name", WRITES_AFTER_THE_CLOCK_WAS_SET_BACK)
async def test_a_fault_while_a_clock_that_was_set_back_is_dealt_with_leaves_all_or_none(
    prepared: Prepared, name: str
):
    call, hours = WRITES_AFTER_THE_CLOCK_WAS_SET_BACK[name], timedelta(hours=3)
    assert await fail_at_every_statement(prepared, call, ERRORS["io"], set_back=hours)


@pytest.mark.parametrize("rollback", ["before_it_ran", "after_it_ran"])
@pytest.mark.parametrize("name", WRITES)
async def test_a_fault_is_what_surfaces_although_the_rollback_after_it_fails_too(
    prepared: Prepared, name: str, rollback: Moment
):
    moments: tuple[Moment, ...] = ("before_it_ran",)
    assert await fail_at_every_statement(prepared, WRITES[name], ERRORS["io"], rollback, moments)


HELD = """
INSERT INTO workflow_checkpoint (workflow, step, value, written_at)
VALUES ('w', 'a', '1', 5), ('w', 'inbox:00000000000000000001', '2', 5), ('at rest', 'a', '1', 5);
INSERT INTO workflow_queue (namespace, workflow, visible_at)
VALUES ('workflow', 'w', 5), ('workflow', 'sleeper', 9e9);
"""
OLDER: dict[str, str] = {
    "nothing": "",
    "published": PUBLISHED + "INSERT INTO workflow_claim VALUES ('w', 7, 5, 5, 60);",
    "published_and_in_use": PUBLISHED
    + HELD
    + "INSERT INTO workflow_claim VALUES ('w', 7, 5, 5, 60);",
    "the_release_before": VERSION_1
    + HELD
    + "INSERT INTO workflow_claim VALUES ('w', 7, 5, 5, 60, 5);",
    "before_signs_of_life": BEFORE_SIGNS_OF_LIFE
    + "INSERT INTO workflow_claim VALUES ('w', 7, 5);"
    + "INSERT INTO workflow_queue VALUES ('workflow', 'w', 5);",
}


@pytest.mark.parametrize("older", OLDER)
async def test_a_fault_at_any_statement_of_a_migration_leaves_the_older_file_or_the_new_one(
    tmp_path: Path, older: str
):
    with closing(sqlite3.connect(tmp_path / "prepared.db")) as made:
        made.execute("PRAGMA journal_mode = WAL")
        made.executescript(OLDER[older])
    prepared = Prepared(tmp_path / "prepared.db")
    for error in ERRORS.values():
        assert await fail_at_every_statement(prepared, lambda s: migrate(s.database), error) > 20


@each_error
@pytest.mark.parametrize("name", READS)
async def test_a_read_that_fails_says_so_and_the_next_one_answers(
    prepared: Prepared, name: str, error: Callable[[], BaseException]
):
    async with faulty_scene(prepared) as (scene, _):
        scene.connection.disarm()
        answer = await READS[name](scene)
        statements = len(scene.connection.statements)
        assert statements, "it asks the file nothing"
        for moment in MOMENTS:
            for n in range(1, statements + 1):
                fault = Fault(n, moment, error())
                scene.connection.arm(fault)
                with pytest.raises(type(fault.error)) as surfaced:
                    await READS[name](scene)
                assert surfaced.value is fault.error
                assert not scene.connection.in_transaction
                scene.connection.disarm()
                assert await READS[name](scene) == answer
        assert await scene.store.supply("w", "usable", 1) == 1
