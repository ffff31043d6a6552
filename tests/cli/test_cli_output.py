"""Where the output cannot be written, and where the process is ended: early, and half way."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from console import Said, command, environment, on_terminal, said

pytestmark = pytest.mark.usefixtures("orders")

FULL = Path("/dev/full")

LOOKING = [
    ["status"],
    ["list"],
    ["list", "--json"],
    ["show", "order-1"],
    ["why", "order-1"],
    ["check"],
    ["watch"],
    ["sweep", "--older", "1s", "--dry-run"],
]
ACTING = [
    ["arrive", "order-2", "approved by", "1"],
    ["deliver", "order-2", "1", "--json"],
    ["retry", "order-4"],
    ["retry", "--failed", "--yes"],
    ["cancel", "order-3", "--yes"],
    ["rewind", "order-4", "charge", "--yes"],
    ["fork", "order-4", "order-4b"],
    ["delete", "order-1", "--yes"],
    ["sweep", "--older", "1s", "--yes"],
    ["backup", "copy.db"],
]


def redirected(redirection: str, *argv: str) -> Said:
    """A command in a shell that sends its output there."""
    line = " ".join(f"'{one}'" for one in command("orders.db", *argv))
    done = subprocess.run(
        ["sh", "-c", f"{line} {redirection}"],
        capture_output=True,
        encoding="utf-8",
        env=environment(),
        timeout=30,
    )
    return Said(done.returncode, done.stdout, done.stderr)


REDIRECTIONS = [
    pytest.param(
        ">/dev/full",
        "No space left on device",
        marks=pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here"),
    ),
    pytest.param(">&-", "it is closed"),
    pytest.param("1</dev/null", "Bad file descriptor"),
]


@pytest.mark.parametrize(("redirection", "reason"), REDIRECTIONS)
@pytest.mark.parametrize("argv", [*LOOKING, *ACTING], ids=lambda argv: " ".join(argv[:2]))
def test_an_output_that_cannot_be_written_is_named_and_what_was_done_is_told(
    argv: list[str], redirection: str, reason: str
) -> None:
    done = redirected(redirection, *argv)
    acts = "; what was asked for is done" if argv in ACTING else ""
    assert done == Said(
        74, "", f"without-durability: cannot write to standard output: {reason}{acts}\n"
    )


def test_what_is_told_as_done_is_done() -> None:
    assert "is done" in redirected(">&-", "deliver", "order-2", "17").err
    records = json.loads(said("orders.db", "show", "order-2", "--json").out)["records"]
    assert records[-1]["value"] == 17


def test_a_value_that_was_not_recorded_is_not_told_as_done() -> None:
    done = redirected(">&-", "arrive", "order-2", "order", "17")
    assert done.code == 74
    assert "; the value was not recorded: another stands under its key" in done.err


@pytest.mark.parametrize("redirection", ["2>&-", "2</dev/null", "<&- 2>&-"])
@pytest.mark.parametrize(
    ("argv", "code"), [(["why", "order-1"], 0), (["why", "nobody"], 1), (["delete", "order-1"], 1)]
)
def test_where_nobody_can_be_told_the_exit_code_still_tells(
    argv: list[str], code: int, redirection: str
) -> None:
    done = redirected(redirection, *argv)
    assert (done.code, done.out == "", done.err) == (code, code != 0, "")
    closed = redirected(f"{redirection} >&-", *argv)
    assert closed == Said(code or 74, "", "")


def test_a_terminal_that_is_closed_ends_a_watch() -> None:
    terminal = on_terminal("orders.db", "watch", NO_COLOR="1")
    terminal.await_text("approved by (arrive)")
    os.close(terminal.descriptor)
    terminal.interrupt(signal.SIGHUP)
    assert terminal.process.wait(30) == 129


def test_a_hangup_that_is_ignored_stays_so() -> None:
    script = (
        "import os, signal, sys\n"
        "from without_durability_sqlite.cli import commands, main\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "commands.COMMANDS['status'] = lambda *given: os.kill(os.getpid(), signal.SIGHUP) or 0\n"
        "sys.exit(main.main(['orders.db', 'status']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environment(), timeout=30)
    assert done.returncode == 0


INTERRUPTING = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""


@pytest.mark.parametrize("module", ["main", "commands", "listing", "sweeping", "screen"])
def test_ctrl_c_during_the_imports_leaves_no_traceback(module: str, tmp_path: Path) -> None:
    name = f"without_durability_sqlite.cli.{module}"
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING.format(name))
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    done = subprocess.run(
        command("orders.db", "list"),
        capture_output=True,
        text=True,
        env=environment(PYTHONPATH=path),
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_during_the_imports_of_the_script_leaves_no_traceback() -> None:
    script = (
        "from without_durability_sqlite.cli.main import main\n"
        + INTERRUPTING.format("without_durability_sqlite.cli.commands")
        + "sys.exit(main(['orders.db', 'list']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


# The process is ended when a call has been made so often.
ENDING = """
import os, sys
from without_durability_sqlite import SqliteDurable
from without_durability_sqlite.cli import main, steering
steering.AT_ONCE = 20

def ending(name, after):
    call, calls = getattr(SqliteDurable, name), []
    async def counted(self, *given, **named):
        calls.append(1)
        if len(calls) > after:
            os.kill(os.getpid(), {})
        return await call(self, *given, **named)
    setattr(SqliteDurable, name, counted)

ending("sweep", 2)
ending("list", 1)
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["sweep", "--older", "1d", "--yes"], "at least 40 of 70 were swept before it ended"),
        (["retry", "--failed", "--yes"], "at least 20 of 71 were retried before it ended"),
    ],
    ids=["sweep", "retry"],
)
def test_a_long_act_that_is_interrupted_says_how_far_it_came(
    argv: list[str], told: str, how: signal.Signals
) -> None:
    state = "completed" if argv[0] == "sweep" else "failed"
    with closing(sqlite3.connect("orders.db")) as connection, connection:
        query = (
            "INSERT INTO workflow_run (workflow, namespace, state, created_at, updated_at) "
            "VALUES (?, 'workflow', ?, 0, 0)"
        )
        connection.execute("DELETE FROM workflow_run WHERE state = 'completed'")
        connection.executemany(query, [(f"old-{n}", state) for n in range(70)])
    done = subprocess.run(
        [sys.executable, "-c", ENDING.format(int(how)), "orders.db", *argv],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + how, "", f"{told}\n")
