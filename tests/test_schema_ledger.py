"""Files from before the ledger: brought up to date in place, and shared with what wrote them."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from children import started
from older_files import PUBLISHED, PUBLISHED_AGAIN, VERSION_1, shape
from stores import Stores, over_sqlite
from thread_gates import plain
from upgraded_files import odd, upgraded
from without_durability import BUDGET, FINISHED, LEASE, Blocked, Clock, inbox_key
from without_durability.ledger import ended
from without_durability_sqlite import connect, migrate
from without_durability_sqlite.checking import oddities

HANG = 20.0
AT_ONCE = timedelta(0)
HOUR = timedelta(hours=1)
START = Clock().seconds()

MADE_BY = {"the release before": VERSION_1, "the published design": PUBLISHED}
made_by = pytest.mark.parametrize("made", MADE_BY.values(), ids=MADE_BY)

# Each with its namespace and how far ahead it is visible; "out" only where a release marked it.
QUEUED = [
    ("workflow", "queued", -5.0),
    ("workflow", "overdue", -5.0),
    ("workflow", "only queued", -5.0),
    ("workflow", "sleeping", 3600.0),
    ("workflow", "only sleeping", 7200.0),
    ("workflow", "claimed", 30.0),
    ("workflow", "claimed before", 30.0),
    ("other", "elsewhere", -5.0),
    ("other", "in two queues", 3600.0),
    ("workflow", "in two queues", -5.0),
    *(("workflow", odd, -5.0) for odd in ("", "a\0b", "\N{RECEIPT}")),
]
OUT = [("workflow", "out", 30.0), ("other", "out elsewhere", 30.0)]

# Budgets and signs of life end so far ahead.
CLAIMS = {
    "claimed": (7, 300.0, 30.0),
    "claimed before": (8, 300.0, -1.0),
    "released": (9, -START, -START),
}

RECORDED = [
    "queued",
    "overdue",
    "sleeping",
    "claimed",
    "claimed before",
    "released",
    "at rest",
    "elsewhere",
    "in two queues",
    *("", "\0", "a\0b", "\N{RECEIPT}"),
]

STATES = {
    **dict.fromkeys(("queued", "overdue", "only queued", "claimed", "elsewhere"), "ready"),
    **dict.fromkeys(("", "a\0b", "\N{RECEIPT}", "in two queues"), "ready"),
    **dict.fromkeys(("sleeping", "only sleeping", "claimed before"), "sleeping"),
    **dict.fromkeys(("released", "at rest", "\0"), "blocked"),
}
"""What each is found to be."""

MARKED = dict.fromkeys(("out", "out elsewhere"), "ready")
"""And those that a release said were out."""

RECORD = "INSERT INTO workflow_checkpoint (workflow, step, value, written_at) VALUES (?, ?, ?, ?)"
CLAIM = """
INSERT INTO workflow_claim (workflow, token, held_until, alive_until, alive_for)
VALUES (?, ?, ?, ?, 60.0)"""
QUEUE = "INSERT INTO workflow_queue (namespace, workflow, visible_at) VALUES (?, ?, ?)"

# Everything that a file from before the ledger holds, as it lies there.
HELD = {
    "records": """
        SELECT seq, CAST(workflow AS BLOB), typeof(workflow), CAST(step AS BLOB),
            CAST(value AS BLOB), typeof(value), written_at, typeof(written_at)
        FROM workflow_checkpoint ORDER BY seq""",
    "claims": """
        SELECT CAST(workflow AS BLOB), token, held_until, alive_until, alive_for
        FROM workflow_claim ORDER BY 1""",
    "queue": """
        SELECT CAST(namespace AS BLOB), CAST(workflow AS BLOB), visible_at
        FROM workflow_queue ORDER BY 1, 2""",
}
TAKES = "SELECT workflow, taken, taken_for FROM workflow_queue ORDER BY 1"


def filled(path: Path, made: str) -> None:
    """A file as it was left by who made it, with something in every state."""
    with closing(plain(path)) as other:
        other.execute("PRAGMA journal_mode = WAL").fetchall()
        other.executescript(made)
        for number, workflow in enumerate(RECORDED):
            other.execute(RECORD, (workflow, "a", json.dumps(number), START - 100 + number))
            other.execute(RECORD, (workflow, inbox_key(number), '"hello"', START - 50 + number))
        for workflow, (token, held, alive) in CLAIMS.items():
            other.execute(CLAIM, (workflow, token, START + held, START + alive))
        for namespace, workflow, ahead in QUEUED:
            other.execute(QUEUE, (namespace, workflow, START + ahead))
        if made == VERSION_1:
            for namespace, workflow, ahead in OUT:
                other.execute(QUEUE, (namespace, workflow, START + ahead))
            marked = "UPDATE workflow_queue SET taken = 'nonce', taken_for = 60 WHERE workflow = ?"
            other.executemany(marked, [("out",), ("out elsewhere",), ("overdue",)])


def expected(made: str) -> dict[str, str]:
    return STATES | (MARKED if made == VERSION_1 else {})


def held(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    with closing(plain(path)) as other:
        return {name: other.execute(look).fetchall() for name, look in HELD.items()}


def everything(path: Path) -> list[Any]:
    """The shape and the rows of all that is in the file."""
    with closing(plain(path)) as other:
        other.text_factory = bytes
        tables = other.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        rows = {
            name: other.execute(f"SELECT * FROM {name.decode()}").fetchall() for (name,) in tables
        }
        return [shape(other), rows]


# --- nothing is lost --------------------------------------------------------------------------


@made_by
async def test_records_moments_claims_and_queue_stay_as_they_were(path, clock, made):
    filled(path, made)
    before = held(path)
    with closing(plain(path)) as other:
        takes = other.execute(TAKES).fetchall() if made == VERSION_1 else None
    async with upgraded(path, clock) as stores:
        for number, workflow in enumerate(RECORDED):
            found = await stores.checkpointer.history(workflow)
            moments = [one.at.timestamp() - START for one in found.values()]
            assert moments == [number - 100, number - 50]
    assert held(path) == before
    if takes is not None:
        with closing(plain(path)) as other:
            assert other.execute(TAKES).fetchall() == takes


@made_by
async def test_a_claim_and_a_delivery_from_before_are_of_use_after(path, clock, made):
    filled(path, made)
    with closing(plain(path)) as other:
        kept = "SELECT token FROM workflow_claim WHERE workflow = 'claimed'"
        ((token,),) = other.execute(kept).fetchall()
    async with upgraded(path, clock) as stores:
        assert token == 7
        assert await stores.checkpointer.claim("claimed", LEASE, LEASE) is None, "it is held"
        clock.advance(LEASE)
        holder = await stores.checkpointer.claim("claimed", LEASE, LEASE)
        assert holder is not None
        assert holder.token > token
        taken = set()
        while (delivery := await stores.scheduler.next_ready(AT_ONCE)) is not None:
            taken.add(delivery.workflow)
        mine = {workflow for namespace, workflow, ahead in QUEUED if ahead < 60}
        mine -= {"elsewhere"}
        assert taken == mine | ({"out"} if made == VERSION_1 else set())


# --- the ledger is derived ----------------------------------------------------------------------


@made_by
async def test_every_workflow_that_is_known_has_a_row_in_the_state_it_is_in(path, clock, made):
    filled(path, made)
    async with upgraded(path, clock) as stores:
        page = await stores.durable.list(limit=1000)
        assert {one.workflow: one.state for one in page.items} == expected(made)
        assert page.next is None
        for workflow, state in expected(made).items():
            status = await stores.durable.status(workflow)
            assert (status.state, status.attempts, status.detail) == (state, 0, None)
            assert status.running is (workflow == "claimed")
        assert await odd(stores) == []


@made_by
async def test_the_counts_agree_with_the_rows(path, clock, made):
    filled(path, made)
    async with upgraded(path, clock) as stores:
        for namespace in (None, "workflow", "other", "nobody's"):
            counts = await stores.durable.counts(namespace)
            listed = (await stores.durable.list(namespace=namespace, limit=1000)).items
            for state, count in counts.items():
                assert count == sum(one.state == state for one in listed), (namespace, state)
        assert sum((await stores.durable.counts()).values()) == len(expected(made))


@made_by
async def test_rows_are_in_the_order_of_the_first_records_and_have_their_moments(path, clock, made):
    filled(path, made)
    async with upgraded(path, clock) as stores:
        oldest_first = [*reversed((await stores.durable.list(limit=1000)).items)]
        assert [one.workflow for one in oldest_first][: len(RECORDED)] == RECORDED
        for number, one in enumerate(oldest_first[: len(RECORDED)]):
            assert one.created_at.timestamp() == START - 100 + number
            assert one.updated_at.timestamp() == START - 50 + number
        for one in oldest_first[len(RECORDED) :]:
            assert one.created_at == one.updated_at == clock.now()


@made_by
async def test_a_sleeper_is_due_when_the_queue_says(path, clock, made):
    filled(path, made)
    async with upgraded(path, clock) as stores:
        for workflow, ahead in (("sleeping", 3600), ("only sleeping", 7200)):
            status = await stores.durable.status(workflow)
            assert status.due == datetime.fromtimestamp(START + ahead, UTC)
            assert "sleeps until" in await stores.durable.why(workflow)
        assert (await stores.durable.status("queued")).due is None


@made_by
async def test_a_row_is_in_the_queue_that_delivers_it_first(path, clock, made):
    filled(path, made)
    async with upgraded(path, clock) as stores:
        namespaces = {
            workflow: (await stores.durable.status(workflow)).namespace
            for workflow in ("elsewhere", "in two queues", "queued", "at rest")
        }
    assert namespaces == {
        "elsewhere": "other",
        "in two queues": "workflow",
        "queued": "workflow",
        "at rest": "workflow",
    }


@made_by
async def test_what_is_at_rest_is_blocked_is_never_swept_and_says_so(path, clock, made):
    filled(path, made)
    async with upgraded(path, clock) as stores:
        clock.advance(1000 * HOUR)
        assert await stores.durable.sweep(older=AT_ONCE, states=FINISHED) == 0
        for workflow in ("at rest", "released", "\0"):
            status = await stores.durable.status(workflow)
            assert (status.state, status.waiting, status.listening) == (
                "blocked",
                frozenset(),
                frozenset(),
            )
            why = await stores.durable.why(workflow)
            assert "was at rest" in why
            assert "when the ledger began" in why
            assert "waits for something, or has completed" in why


@made_by
async def test_what_is_at_rest_says_more_once_it_has_run(path, clock, made):
    filled(path, made)
    async with upgraded(path, clock) as stores:
        await stores.scheduler.make_ready("at rest")
        found = {one.delivery.workflow: one for one in await passes(stores)}
        one = found["at rest"]
        assert (await stores.durable.status("at rest")).state == "ready"
        end = ended(Blocked(frozenset({"approval"}), frozenset()))
        await stores.durable.end_pass(one.holder, one.delivery, end)
        assert (await stores.durable.status("at rest")).waiting == {"approval"}


async def passes(stores: Stores) -> Any:
    return await stores.durable.start_passes(100, AT_ONCE, BUDGET)


@made_by
async def test_messages_came_from_outside_and_steps_did_not(path, clock, made):
    filled(path, made)
    kept = ["inbox", "inbox;", "inboxes", "INBOX:1", "in", "", "a:inbox:1"]
    messages = ["inbox:", "inbox:1", f"inbox:{'9' * 20}", "inbox:x", "inbox:\N{RECEIPT}"]
    with closing(plain(path)) as other:
        for step in kept + messages:
            other.execute(RECORD, ("steps", step, "1", START))
    async with upgraded(path, clock):
        pass
    with closing(plain(path)) as other:
        found = other.execute(
            "SELECT step, supplied FROM workflow_checkpoint WHERE workflow = 'steps'"
        ).fetchall()
        assert {step for step, supplied in found if supplied} == {*messages}
        assert {step for step, supplied in found if not supplied} == {*kept}
        supplied = "SELECT count(*), sum(supplied) FROM workflow_checkpoint WHERE step <> 'a'"
        others = f"{supplied} AND workflow <> 'steps'"
        assert other.execute(others).fetchall() == [(len(RECORDED), len(RECORDED))]


ODD_IDS: dict[str, str] = {
    "a blob": "X'626c6f62'",
    "not UTF-8": "CAST(X'ff6e6f' AS TEXT)",
    "not UTF-8 either": "CAST(X'6eff' AS TEXT)",
}


@made_by
@pytest.mark.parametrize("workflow", ODD_IDS.values(), ids=ODD_IDS)
async def test_an_id_that_nobody_can_ask_for_is_nobody_elses_harm(path, clock, made, workflow):
    filled(path, made)
    with closing(plain(path)) as other:
        other.execute(RECORD.replace("(?,", f"({workflow},"), ("a", "1", START))
        other.execute(QUEUE.replace("?, ?, ?", f"'workflow', {workflow}, {START - 9}"))
        other.execute(CLAIM.replace("(?,", f"({workflow},"), (5, START + 9, START + 9))
    before = held(path)
    async with upgraded(path, clock) as stores:
        states = {one.workflow: one.state for one in (await stores.durable.list(limit=1000)).items}
        assert states.items() >= expected(made).items()
        assert len(states) == len(expected(made)) + (not workflow.startswith("X"))
        assert sum((await stores.durable.counts()).values()) == len(states)
        assert await odd(stores) == []
        assert held(path) == before
        started_now = {one.delivery.workflow for one in await passes(stores) if one.holder}
        assert "queued" in started_now


@made_by
@pytest.mark.parametrize("moment", ["yesterday", math.inf, -math.inf, 1e300, b"blob"])
async def test_a_moment_that_is_none_is_nobody_elses_harm(path, clock, made, moment):
    filled(path, made)
    with closing(plain(path)) as other:
        other.execute(RECORD, ("strange", "a", "1", moment))
        other.execute(RECORD, ("strange", "b", "1", START))
    before = held(path)
    async with upgraded(path, clock) as stores:
        assert held(path) == before
        status = await stores.durable.status("strange")
        assert status.state == "blocked"
        assert status.created_at <= clock.now()
        assert "at rest" in await stores.durable.why("strange")
        assert len((await stores.durable.list(limit=1000)).items) == len(expected(made)) + 1
        assert await stores.durable.arrive("strange", "c", 1) == 1
        assert (await stores.durable.status("strange")).updated_at == clock.now()
        assert await odd(stores) == []


async def test_a_claim_without_anything_queued_is_at_rest_as_far_as_the_ledger_knows(path, clock):
    """Somebody runs passes over it by hand: no worker would take it up."""
    filled(path, PUBLISHED)
    with closing(plain(path)) as other:
        other.execute(RECORD, ("by hand", "a", "1", START))
        other.execute(CLAIM, ("by hand", 5, START + 300, START + 30))
    async with upgraded(path, clock) as stores:
        assert (await stores.durable.status("by hand")).state == "blocked"
        assert await stores.checkpointer.claim("by hand", LEASE, LEASE) is None


async def test_how_far_the_clock_was_set_back_before_is_not_forgotten(path, clock):
    filled(path, VERSION_1)
    ahead = START + 5000
    with closing(plain(path)) as other:
        other.execute("UPDATE workflow_schema SET clock_ahead = ?", (ahead,))
        other.execute(RECORD, ("w", "a", "1", ahead))
        other.execute(RECORD, ("at rest", "b", "1", START - 1))
    async with upgraded(path, clock) as stores:
        await stores.checkpointer.supply("w", "b", 1)
        history = await stores.checkpointer.history("w")
        assert history["b"].at >= history["a"].at


async def test_an_empty_file_from_before_has_an_empty_ledger(path, clock):
    with closing(plain(path)) as other:
        other.executescript(VERSION_1)
    async with upgraded(path, clock) as stores:
        assert (await stores.durable.list()).items == ()
        assert set((await stores.durable.counts()).values()) == {0}


# --- again, and by many -------------------------------------------------------------------------


@made_by
async def test_migrating_again_changes_nothing(path, clock, made):
    filled(path, made)
    async with upgraded(path, clock) as stores:
        database = stores.checkpointer.database
        before = everything(path)
        clock.advance(HOUR)  # nor does it derive anything anew
        await migrate(database)
        assert everything(path) == before
        await stores.durable.arrive("at rest", "more", 1)
        before = everything(path)
    async with upgraded(path, clock):
        assert everything(path) == before


@made_by
async def test_a_file_that_lost_its_version_derives_nothing_anew(path, clock, made):
    """What the ledger says since counts, whoever tampered with the version."""
    filled(path, made)
    async with upgraded(path, clock) as stores:
        await stores.durable.cancel("queued", "enough")
        await stores.checkpointer.supply("new", "k", 1)
    with closing(plain(path)) as other:
        other.execute("DELETE FROM workflow_schema")
    async with upgraded(path, clock) as stores:
        assert (await stores.durable.status("queued")).state == "cancelled"
        assert await stores.durable.status("new") is None
        assert await odd(stores) == []


MIGRATING = """
async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    async with connect(path) as database:
        await migrate(database)
    print("ok", flush=True)
asyncio.run(main())
"""


@made_by
def test_many_processes_may_migrate_at_once(path, made):
    filled(path, made)
    before = held(path)
    children = [started(MIGRATING, path) for _ in range(8)]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("now\n")
            child.stdin.flush()
        for child in children:
            out, err = child.communicate(timeout=HANG)
            assert (child.returncode, out) == (0, "ok\n"), err
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert held(path) == before
    with closing(plain(path)) as other:
        assert other.execute("SELECT max(version) FROM workflow_schema").fetchall() == [(2,)]
        rows = other.execute("SELECT workflow FROM workflow_run").fetchall()
        assert sorted(rows) == sorted((workflow,) for workflow in expected(made))
        kept = "SELECT sum(count) FROM workflow_count"
        assert other.execute(kept).fetchall() == [(len(rows),)]


# --- what is refused ----------------------------------------------------------------------------


@contextmanager
def refused(path: Path, error: type[sqlite3.Error], *facts: str) -> Iterator[None]:
    """An error that names the file and the facts, and nothing in the file is changed by it."""
    before = everything(path)
    with pytest.raises(error) as caught:
        yield
    for fact in (str(path), *facts):
        assert fact in str(caught.value)
    assert everything(path) == before


@made_by
async def test_a_file_of_a_newer_release_is_refused_by_its_version(path, clock, made):
    filled(path, made)
    with closing(plain(path)) as other:
        other.execute(
            "CREATE TABLE IF NOT EXISTS workflow_schema "
            "(version INTEGER PRIMARY KEY NOT NULL, clock_ahead REAL NOT NULL DEFAULT 0)"
        )
        other.execute("INSERT INTO workflow_schema VALUES (3, 0)")
    with refused(path, sqlite3.NotSupportedError, "version 3", "version 2", "newer"):
        async with upgraded(path, clock):
            pass


OWN = "seq INTEGER PRIMARY KEY NOT NULL, workflow TEXT NOT NULL, namespace TEXT NOT NULL, "
REST = "detail TEXT, attempts INTEGER NOT NULL DEFAULT 0, created_at REAL NOT NULL"

FOREIGN = {
    "another table": ("workflow_run", "id INTEGER PRIMARY KEY, name TEXT", "workflow"),
    "a state that is a number": (
        "workflow_run",
        f"{OWN} state INTEGER NOT NULL, {REST}, updated_at REAL NOT NULL, UNIQUE (workflow)",
        "state",
    ),
    "an id that may come twice": (
        "workflow_run",
        f"{OWN} state TEXT NOT NULL, {REST}, updated_at REAL NOT NULL",
        "workflow",
    ),
    "a column that is missing": (
        "workflow_run",
        f"{OWN} state TEXT NOT NULL, {REST}, UNIQUE (workflow)",
        "updated_at",
    ),
    "a column that must be named": (
        "workflow_run",
        f"{OWN} state TEXT NOT NULL, {REST}, updated_at REAL NOT NULL, note TEXT NOT NULL, "
        "UNIQUE (workflow)",
        "note",
    ),
    "counts of something else": ("workflow_count", "state TEXT, count INTEGER", "namespace"),
}


@made_by
@pytest.mark.parametrize(("table", "shaped", "named"), FOREIGN.values(), ids=FOREIGN)
async def test_a_ledger_of_a_foreign_shape_is_refused_by_name(
    path, clock, made, table, shaped, named
):
    filled(path, made)
    with closing(plain(path)) as other:
        other.execute(f"CREATE TABLE {table} ({shaped})")
    with refused(path, sqlite3.DatabaseError, table, "at odds", named):
        async with upgraded(path, clock):
            pass


# --- the published design -----------------------------------------------------------------------


@made_by
async def test_their_schema_run_again_on_the_upgraded_file_changes_nothing(path, clock, made):
    filled(path, made)
    async with upgraded(path, clock) as stores:
        before = everything(path)
        with closing(plain(path)) as other:
            other.executescript(PUBLISHED_AGAIN)
        assert everything(path) == before
        await migrate(stores.checkpointer.database)
        assert everything(path) == before


@pytest.mark.parametrize(
    "lost", ["TABLE workflow_count", "TRIGGER workflow_run_recounted", "INDEX workflow_run_state"]
)
async def test_counts_that_a_file_lost_are_counted_anew(path: Path, clock: Clock, lost: str):
    async with connect(path, clock=clock.seconds) as database:
        await migrate(database)
        durable = over_sqlite(database, clock).durable
        for workflow in ("one", "two", "three"):
            await durable.arrive(workflow, "k", 1)
        await database.run(lambda connection: connection.execute(f"DROP {lost}").close())
        if not lost.startswith("TABLE"):  # then nothing can be changed
            await durable.cancel("one")
        await migrate(database)
        await durable.cancel("one")
        counts = await durable.counts()
        assert (counts["ready"], counts["cancelled"]) == (2, 1)
        assert len((await durable.list(state="ready")).items) == 2
        assert await database.run(lambda at: oddities(at, clock.seconds())) == []
