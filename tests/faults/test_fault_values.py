"""Values that cannot be kept, rows that cannot be read, and limits that leave nothing to read."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from test_fault_calls import AT_ONCE, RUN_CALLS, Scene, taking

from gated import Watched, about, listening, working
from stores import Stores, over_sqlite
from thread_gates import plain
from without_durability import Clock, SplitDurable, inbox_key, passes, work
from without_durability.memory import Stored
from without_durability_sqlite import Database
from without_durability_sqlite.files import main_file

SECOND = timedelta(seconds=1)


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


cycle: dict[str, object] = {}
cycle["me"] = [cycle]

UNSTORABLE = {
    "set": {1},
    "bytes": [b"x"],
    "nan": math.nan,
    "infinity": {"x": -math.inf},
    "mixed keys": {1: "a", "1": "b"},
    "key of a tuple": {(1, 2): 3},
    "cycle": cycle,
    "datetime": datetime(2030, 1, 1, tzinfo=UTC),
    "long integer": 10**5000,
    "too deep to decode": nested(501),
    "too deep to encode": nested(100_000),
}
STORING = {
    **{call: lambda value: {"value": value} for call, _ in taking("value")},
    **{call: lambda value: {"effect": lambda _: value} for call, _ in taking("effect")},
}
ITS_OWN_KEY = ("checkpointer.append", "durable.deliver")


@pytest.mark.parametrize("call", STORING)
async def test_fault_unstorable_value_names_workflow_key_and_type_and_keeps_the_claim(
    stores: Stores, call
):
    scene = await Scene.over(stores)
    for value in UNSTORABLE.values():
        key = "inbox" if call in ITS_OWN_KEY else "'k'"
        async with scene.refusal((TypeError, ValueError), "'w'", key, type(value).__name__):
            await scene.call(call, **STORING[call](value))


@pytest.mark.parametrize("call", ["step", "transact"])
async def test_fault_unstorable_value_of_a_step_names_workflow_key_and_type_on_every_pass(
    stores: Stores, call
):
    scene = await Scene.over(stores)
    for value in UNSTORABLE.values():

        async def returning(value: object = value) -> object:
            return value

        effect = returning if call == "step" else lambda _, value=value: value
        for _ in range(2):
            async with scene.refusal((TypeError, ValueError), "'w'", "'k'", type(value).__name__):
                await scene.asked(call, effect=effect)


SPOILT = {"not utf-8": b"\xff", "not json": b"{", "empty": b"", "deep": b"[" * 100_000}


def spoil(scene: Scene, value: bytes, key: str = "kept") -> None:
    """Leave something under a key of "w" that no longer decodes."""
    if scene.database is None:
        text = value.decode(errors="surrogateescape")
        scene.stores.checkpointer.hashes["w"][key] = Stored(text, scene.clock.now())
        return
    with closing(plain(main_file(scene.database.connection))) as other:
        update = "UPDATE workflow_checkpoint SET value = CAST(? AS TEXT) WHERE step = ?"
        assert other.execute(update, (value, key)).rowcount == 1


@pytest.mark.parametrize("kind", SPOILT)
async def test_fault_undecodable_record_is_a_value_error_naming_it_whoever_reads(
    stores: Stores, kind
):
    """Every call that answers with what is stored, and a pass, which begins with reading it."""
    scene = await Scene.over(stores)
    spoil(scene, SPOILT[kind])
    before = scene.contents()
    reading = ["checkpointer.load", "checkpointer.history", *(call for call, _ in taking("key"))]
    assert len(reading) == 6
    for call in reading:
        with pytest.raises(ValueError, match=r"'w'.*'kept'"):
            await scene.call(call, key="kept")
        assert scene.contents() == before, "a call that failed has written"
    with pytest.raises(ValueError, match=r"'w'.*'kept'"):
        await scene.asked("step")
    assert scene.effects == []
    assert (await scene.call("checkpointer.record", key="fine")).first, "others may be written"
    assert await scene.call("checkpointer.load", workflow="ready") == {}, "others may be read"
    assert await scene.call("durable.delete") == 3, "what nobody can read can be deleted"


@pytest.mark.parametrize("call", ["receive", "pending"])
async def test_fault_limit_below_one_is_a_value_error_and_nothing_is_recorded(stores: Stores, call):
    assert [name for name, _ in taking("limit", of=RUN_CALLS)] == ["receive", "pending"]
    scene = await Scene.over(stores)
    for limit in (0, -1, -(2**70), True, 1.0, "1"):
        async with scene.refusal(ValueError, "limit", repr(limit)):
            await scene.asked(call, limit=limit)
        for worker in (work, passes):
            async with scene.refusal(ValueError, "limit", repr(limit)):
                worker(stores.durable, scene.effect, limit=limit)
    assert (await scene.asked(call, limit=1)).value[0].value == "hello"


RECORD = "INSERT INTO workflow_checkpoint (workflow, step, value) VALUES "
QUEUED = "INSERT INTO workflow_queue (namespace, workflow, visible_at) VALUES ('workflow', "
BAD = {
    "a value that is not utf-8": f"{RECORD} ('bad', 'k', CAST(x'ff' AS TEXT))",
    "a value that is not json": f"{RECORD} ('bad', 'k', 'nope')",
    "a value that is a blob": f"{RECORD} ('bad', 'k', x'fe')",
    "a key that is not utf-8": f"{RECORD} ('bad', CAST(x'6bff' AS TEXT), '1')",
    "a message that is not json": f"{RECORD} ('bad', '{inbox_key(1)}', '')",
    "an id that is not utf-8": f"{QUEUED} CAST(x'ff' AS TEXT), 0)",
    "an id that is a blob": f"{QUEUED} x'626164', 0)",
}


async def taking_a_step(run: Any) -> str:
    await run.transact("done", lambda cursor: None, lambda stored: stored)
    return "done"


@pytest.mark.parametrize("row", BAD)
async def test_fault_unreadable_row_is_reported_and_set_aside_by_work_and_others_run(
    database: Database, clock: Clock, row
):
    stores = over_sqlite(database, clock)
    watched = Watched(stores.scheduler)
    with closing(sqlite3.connect(main_file(database.connection), isolation_level=None)) as other:
        other.execute(BAD[row])
    in_the_queue = BAD[row].startswith(QUEUED)
    for workflow in ("first", *(["bad"] * (not in_the_queue)), "last"):
        await stores.scheduler.make_ready(workflow)
    durable = SplitDurable(stores.checkpointer, watched)
    async with listening() as heard, working(durable, taking_a_step, now=clock.now) as worker:
        answers = dict([await watched.answers.get() for _ in range(3 - in_the_queue)])
        assert answers.pop("first") is answers.pop("last") is None, "others did not run"
        if in_the_queue:
            assert answers == {}
        else:
            assert about(answers["bad"] - clock.now(), SECOND), "it was not set aside"
            await heard.until("'bad'", "attempt 1")
        assert not worker.done(), "it ended the worker"
    for workflow in ("first", "last"):
        assert await stores.checkpointer.load(workflow) == {"done": None}
    if not in_the_queue:
        with pytest.raises(ValueError, match="'bad'"):
            await stores.checkpointer.load("bad")


@pytest.mark.parametrize("row", [row for row in BAD if BAD[row].startswith(QUEUED)])
async def test_fault_unreadable_queue_row_is_logged_and_never_handed_out(
    database: Database, clock: Clock, caplog, row
):
    stores = over_sqlite(database, clock)
    with closing(sqlite3.connect(main_file(database.connection), isolation_level=None)) as other:
        other.execute(BAD[row])
    await stores.scheduler.make_ready("good")
    assert (await stores.scheduler.next_ready(AT_ONCE)).workflow == "good"
    assert "not text" in caplog.text
    assert await stores.scheduler.next_ready(AT_ONCE) is None
    clock.advance(stores.scheduler.lease)
    assert (await stores.scheduler.next_ready(AT_ONCE)).workflow == "good", "it lapsed as any does"
