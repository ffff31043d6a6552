"""Ids, keys, values and errors that were written to do harm: no screen lets them through."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from console import said
from orders import BUDGET, START, durable, now

from without_durability.ledger import Failure, ended, raised
from without_durability.outcomes import Blocked, Completed
from without_durability.testing import Clock
from without_durability_sqlite.cli.text import cells

EVIL = "\x1b[2J\x1b]52;c;aGk=\x07\r\n\x9b31m\u202e\u200b\t\x00"
IDS = [
    EVIL,
    "two\nlines",
    "quo'te\"s\\",
    "🎉👩\u200d👩\u200d👧",
    "e" + "\u0301" * 5000,
    "日本語" * 40,
    "",
    " ",
    "--yes",
    "long" * 250_000,
]


async def make(path: Path) -> None:
    clock = Clock(START)
    async with durable(path, clock, EVIL) as shop:
        waits = Blocked(frozenset({EVIL}), frozenset({EVIL}))
        failure = Failure(EVIL, EVIL, f"Traceback{EVIL}\n  {EVIL}")
        ends = [ended(waits), raised(failure, None), ended(Completed(EVIL))]
        ends.append(raised(failure, START + timedelta(days=9999)))
        for n, workflow in enumerate(IDS):
            await shop.arrive(workflow, EVIL, {EVIL: [EVIL]})
            await shop.deliver(workflow, EVIL)
            delivery = await shop.scheduler.next_ready(timedelta(0))
            assert delivery is not None
            start = await shop.start_pass(delivery, BUDGET)
            assert start.holder is not None
            await shop.checkpointer.record(start.holder, f"step {EVIL}", EVIL)
            if n != len(ends):
                await shop.end_pass(start.holder, delivery, ends[n % len(ends)])
        await shop.arrive("cancelled", "key", 1)
        await shop.cancel("cancelled", EVIL)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "hostile.db"
    asyncio.run(make(path))
    return path


def harmless(text: str) -> bool:
    return all(c == "\n" or c.isprintable() for c in text)


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("full", [[], ["--full"]], ids=["short", "full"])
@pytest.mark.parametrize("argv", [["status"], ["list"], ["check"]], ids=lambda argv: argv[0])
def test_no_screen_lets_a_control_character_through(
    argv: list[str], full: list[str], terminal: bool, hostile: Path
) -> None:
    done = said(hostile, *argv, *full, clock=now, terminal=terminal, width=90)
    assert done.code == 0, done.err
    assert harmless(done.out.replace("\t", "")), repr(done.out[:2000])
    if not terminal:
        assert len({line.count("\t") for line in done.lines}) == 1 or argv != ["list"]


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("full", [[], ["--full"]], ids=["short", "full"])
@pytest.mark.parametrize("command", ["show", "why"])
@pytest.mark.parametrize("workflow", [*IDS, "cancelled"], ids=lambda workflow: ascii(workflow[:9]))
def test_no_workflow_lets_a_control_character_through(
    workflow: str, command: str, full: list[str], terminal: bool, hostile: Path
) -> None:
    done = said(hostile, *full, command, "--", workflow, clock=now, terminal=terminal, width=90)
    assert done.code == 0, done.err
    assert harmless(done.out), repr(done.out[:2000])


def test_no_line_of_status_wraps_however_long_the_ids_in_it(hostile: Path) -> None:
    done = said(hostile, "status", clock=lambda: START.timestamp() + 1, terminal=True, width=90)
    assert "1 pass is running: " in done.out
    assert max(map(cells, done.lines)) <= 90


def test_a_list_has_one_line_for_each_however_long_its_id(hostile: Path) -> None:
    done = said(hostile, "list", clock=now, terminal=True, width=90)
    assert len(done.lines) == 1 + len(IDS) + 1
    assert max(map(cells, done.lines)) <= 90
    assert max(map(len, done.lines)) < 500
    assert len(said(hostile, "list", clock=now).lines) == len(IDS) + 1


def test_json_gives_every_id_as_it_is(hostile: Path) -> None:
    done = said(hostile, "list", "--json", clock=now)
    assert done.out.isascii()
    assert [json.loads(line)["workflow"] for line in done.lines] == ["cancelled", *IDS[::-1]]
    shown = json.loads(said(hostile, "show", "--json", "--", EVIL, clock=now).out)
    assert shown["workflow"] == EVIL
    assert [record["value"] for record in shown["records"]] == [{EVIL: [EVIL]}, EVIL, EVIL]


@pytest.mark.parametrize("workflow", IDS, ids=lambda workflow: ascii(workflow[:9]))
def test_every_id_can_be_steered_and_what_is_said_of_it_is_harmless(
    workflow: str, hostile: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    assert said(hostile, "backup", copy).code == 0
    for argv in (
        ["deliver", "--", workflow, json.dumps(EVIL)],
        ["arrive", "--", workflow, EVIL, json.dumps({EVIL: [EVIL]})],
        ["cancel", "--yes", "--reason", EVIL, "--", workflow],
        ["retry", "--", workflow],
        ["fork", "--", workflow, f"new {workflow}"],
        ["rewind", "--yes", "--", workflow, f"step {EVIL}"],
        ["delete", "--yes", "--", workflow],
    ):
        done = said(copy, *argv, clock=now)
        if workflow == IDS[2] and argv[0] == "cancel":  # it has completed
            assert done.code in (0, 1)
            continue
        assert done.code == 0, (argv, done.err)
        assert harmless(done.out)
        assert done.out.count("\n") == 1


LONG = IDS[-1]


def test_a_long_id_is_shortened_in_what_is_said_unless_it_is_wanted_in_full(
    hostile: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    assert said(hostile, "backup", copy).code == 0
    for argv in (
        ["deliver", LONG, f'"{LONG}"'],
        ["arrive", LONG, LONG, f'"{LONG}"'],
        ["arrive", LONG, LONG, "1"],
        ["arrive", LONG, LONG, "1", "--namespace", LONG],
        ["rewind", LONG, LONG, "--yes"],
        ["rewind", LONG, "no step", "--yes"],
        ["fork", LONG, f"new {LONG}"],
        ["fork", LONG, f"new {LONG}"],
        ["cancel", LONG, "--yes"],
        ["cancel", LONG, "--yes"],
        ["retry", LONG],
        ["retry", LONG],
        ["retry", "--failed", "--namespace", LONG, "--yes"],
        ["delete", LONG],
        ["delete", LONG, "--yes"],
        ["delete", LONG, "--yes"],
        ["show", LONG],
        ["why", LONG],
        ["list", "--state", LONG],
        ["list", "--after", LONG],
    ):
        done = said(copy, *argv, clock=now, terminal=True)
        assert 0 < len(done.out + done.err) < 2_000, argv[0]
    done = said(copy, "deliver", LONG, "1", "--full")
    assert LONG in done.out


def test_in_a_pipe_a_long_id_widens_no_other_row(hostile: Path) -> None:
    for argv in (["status"], ["status", "--full"]):
        lines = said(hostile, *argv, clock=now).lines
        assert len([line for line in lines if len(line) > 10_000]) <= 2, argv


def test_a_refusal_is_one_harmless_line(hostile: Path) -> None:
    for argv in (
        ["show", "nobody" + EVIL],
        ["why", "nobody" + EVIL],
        ["rewind", "--yes", "two\nlines", EVIL],
        ["backup", f"/nowhere{EVIL}/x"],
        ["list", "--state", EVIL],
        [EVIL],
    ):
        done = said(hostile, *argv, clock=now)
        assert done.out == ""
        assert done.err.count("\n") == 1
        assert harmless(done.err)


@pytest.fixture
def odd(orders: Path) -> sqlite3.Connection:
    """A file whose columns hold what no release writes there."""
    with closing(sqlite3.connect(orders, isolation_level=None)) as connection:
        connection.execute("UPDATE workflow_run SET detail = CAST(x'ff1b5b324a' AS TEXT)")
        connection.execute("UPDATE workflow_run SET state = 'lost' WHERE workflow = 'order-1'")
        connection.execute("UPDATE workflow_run SET updated_at = 1e300 WHERE workflow = 'order-2'")
        connection.execute("UPDATE workflow_checkpoint SET value = CAST(x'fe1b' AS TEXT)")
        connection.execute(
            "UPDATE workflow_checkpoint SET written_at = 1e300 WHERE workflow = 'order-3'"
        )
        connection.execute(
            "INSERT INTO workflow_run (workflow, namespace, state, created_at, updated_at) "
            "VALUES (CAST(x'ff1b5b324a' AS TEXT), CAST(x'fe1b' AS TEXT), 'ready', 0, 0)"
        )
        connection.execute(
            "INSERT INTO workflow_checkpoint (workflow, step, value, written_at) "
            "VALUES ('no row', 'step', '1', 0)"
        )
    return connection


@pytest.mark.usefixtures("odd")
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["words", "json"])
def test_what_no_release_writes_is_shown_and_breaks_nothing(form: list[str]) -> None:
    for argv in (
        ["status"],
        ["list"],
        *(["show", f"order-{n}"] for n in range(1, 9)),
        *(["why", f"order-{n}"] for n in range(1, 9)),
        ["show", "no row"],
        ["check"],
    ):
        done = said("orders.db", *argv, *form, clock=now, terminal=True, width=90)
        assert done.code == (1 if argv == ["check"] else 0), (argv, done)
        assert harmless(done.out), (argv, done.out)
        for line in done.lines if form else ():
            json.loads(line)


@pytest.mark.usefixtures("odd")
def test_what_is_odd_is_named() -> None:
    assert (
        "is in state 'lost', which this release does not know"
        in said("orders.db", "why", "order-1").out
    )
    assert "no moment" in said("orders.db", "show", "order-3").out
    assert said("orders.db", "show", "no row").out.startswith(
        "'no row' has 1 record, and never arrived or started here.\n"
    )


def test_a_huge_value_is_read_only_as_far_as_it_is_shown(orders: Path) -> None:
    with closing(sqlite3.connect(orders, isolation_level=None)) as connection:
        huge = json.dumps("x" * 50_000_000)
        connection.execute(
            "UPDATE workflow_checkpoint SET value = ? WHERE workflow = 'order-1'", (huge,)
        )
    done = said(orders, "show", "order-1", clock=now, terminal=True, width=90)
    assert max(map(cells, done.lines)) <= 90
    assert len(said(orders, "show", "order-1", "--full", clock=now).out) > 50_000_000
