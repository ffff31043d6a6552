"""The command line on a real terminal, in a pipe that closes, and when it is interrupted."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from console import ROOT, Stream, command, environment, on_terminal, piped, said
from orders import now

from without_durability_sqlite.cli import watching
from without_durability_sqlite.cli.screen import Screen

pytestmark = pytest.mark.usefixtures("orders")

COLOUR = re.compile(r"\x1b\[\d+m")


def shown(*argv: str, columns: int = 100, **env: str) -> str:
    terminal = on_terminal("orders.db", *argv, columns=columns, **env)
    assert terminal.end() == 0
    return terminal.text.replace("\r\n", "\n")


def test_a_terminal_gets_colours() -> None:
    text = shown("list")
    assert "\x1b[31mfailed" in text
    assert "\x1b[32mcompleted" in text


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_a_terminal_that_wants_no_colours_gets_none(env: dict[str, str]) -> None:
    for argv in (["list"], ["status"], ["show", "order-4"], ["check"]):
        assert "\x1b" not in shown(*argv, **env)


def test_an_empty_no_color_asks_for_nothing() -> None:
    assert COLOUR.search(shown("list", NO_COLOR=""))


def test_a_pipe_gets_no_colours() -> None:
    assert "\x1b" not in piped("orders.db", "list").out


def test_the_table_follows_the_width_of_the_terminal() -> None:
    def widest(columns: int) -> int:
        lines = COLOUR.sub("", shown("list", columns=columns)).splitlines()
        assert len(lines) == 10
        return max(map(len, lines))

    assert widest(44) <= 44
    assert 44 < widest(90) <= 90


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\x04", 1)])
def test_a_question_is_asked_and_its_answer_heeded(answer: str, code: int) -> None:
    terminal = on_terminal("orders.db", "delete", "order-1")
    terminal.await_text("Delete order-1, which is completed, and its 2 records? [y/N] ")
    terminal.type(answer)
    assert terminal.end() == code
    assert piped("orders.db", "why", "order-1").code == 1 - code


def test_ctrl_c_at_a_question_does_nothing_and_leaves_no_traceback() -> None:
    terminal = on_terminal("orders.db", "delete", "order-1")
    terminal.await_text("[y/N]")
    terminal.interrupt()
    assert terminal.end() == 130
    assert "Traceback" not in terminal.text
    assert piped("orders.db", "why", "order-1").code == 0


def test_a_question_is_not_asked_where_its_text_would_not_be_seen() -> None:
    done = piped("orders.db", "delete", "order-1", typed="y\n")
    assert (done.code, done.out) == (1, "")
    assert "pass --yes" in done.err


@pytest.mark.parametrize("argv", [["list"], ["list", "--json"], ["show", "order-1", "--full"]])
def test_a_pipe_that_is_closed_early_is_no_error_to_be_told(argv: list[str]) -> None:
    with closing(sqlite3.connect("orders.db")) as connection, connection:
        connection.execute(
            "UPDATE workflow_run SET detail = ?", (json.dumps({"reason": "x" * 10**6}),)
        )
        connection.execute("UPDATE workflow_checkpoint SET value = ?", (json.dumps("x" * 10**6),))
        connection.execute("UPDATE workflow_run SET state = 'cancelled'")
    process = subprocess.Popen(
        command("orders.db", *argv),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) == 141


def test_output_that_the_encoding_lacks_is_escaped() -> None:
    piped("orders.db", "deliver", "注文", "1")
    done = piped("orders.db", "list", "--limit", "1", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.code == 0
    assert done.out.startswith("\\u6ce8\\u6587\tready")


@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)], ids=["ctrl-c", "SIGTERM"]
)
def test_watch_redraws_in_place_until_it_is_ended(how: signal.Signals, code: int) -> None:
    terminal = on_terminal("orders.db", "watch", NO_COLOR="1")
    terminal.await_text("approved by (arrive)")
    assert "brand-new" not in terminal.text
    assert piped("orders.db", "deliver", "brand-new", "1").code == 0
    terminal.await_text("brand-new")
    terminal.interrupt(how)
    assert terminal.end() == code
    assert "Traceback" not in terminal.text
    assert terminal.text.count("\x1b[2J") == 1, "only the first frame clears the screen"
    assert terminal.text.count("\x1b[H") >= 2
    assert set(re.findall(r"\x1b\[[^A-Za-z]*[A-Za-z]", terminal.text)) == {
        "\x1b[2J",
        "\x1b[H",
        "\x1b[K",
        "\x1b[J",
    }, "no mode is set that would have to be set back"


@pytest.mark.parametrize("options", [[], ["--full"]], ids=["", "full"])
def test_a_frame_never_scrolls_or_wraps(options: list[str]) -> None:
    terminal = on_terminal("orders.db", "watch", *options, columns=50, lines=12, NO_COLOR="1")
    terminal.await_text("\x1b[J")
    terminal.interrupt()
    assert terminal.end() == 0
    frame = terminal.text.split("\x1b[H")[1].split("\x1b[J")[0].replace("\x1b[K", "")
    lines = frame.split("\r\n")
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 50


@pytest.mark.parametrize(("options", "offset"), [([], "+09:00"), (["--utc"], "+00:00")])
def test_watch_in_a_pipe_writes_a_line_per_change(options: list[str], offset: str) -> None:
    process = watching_in_a_pipe(*options, TZ="Asia/Tokyo")
    assert process.stdout is not None
    first = [process.stdout.readline().split("\t")[1] for _ in range(9)]
    assert first[-1] == "order-8"
    assert piped("orders.db", "deliver", "brand-new", "1").code == 0
    moment, workflow, state, *_ = process.stdout.readline().split("\t")
    assert (workflow, state) == ("brand-new", "ready")
    assert moment.endswith(offset)
    assert piped("orders.db", "cancel", "order-2", "--yes").code == 0
    assert process.stdout.readline().split("\t")[1:3] == ["order-2", "cancelled"]
    assert piped("orders.db", "cancel", "brand-new", "--yes").code == 0
    assert process.stdout.readline().split("\t")[1:3] == ["brand-new", "cancelled"]
    assert ended(process) == (0, "")


def test_watch_in_json_writes_a_document_per_change() -> None:
    process = watching_in_a_pipe("--json")
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    assert len(first["changes"]) == 9
    assert first["counts"]["failed"] == 1
    assert piped("orders.db", "retry", "order-4").code == 0
    second = json.loads(process.stdout.readline())
    assert [one["workflow"] for one in second["changes"]] == ["order-4"]
    assert second["counts"]["failed"] == 0
    assert ended(process) == (0, "")


def test_watch_tells_a_change_made_by_a_clock_that_was_set_back() -> None:
    process = watching_in_a_pipe()
    assert process.stdout is not None
    with closing(sqlite3.connect("orders.db")) as connection, connection:
        query = "UPDATE workflow_run SET updated_at = ? WHERE workflow = 'order-1'"
        connection.execute(query, (4e9,))  # written by a clock that was ahead then
    while process.stdout.readline().split("\t")[1] != "order-1":
        pass
    assert piped("orders.db", "deliver", "brand-new", "1").code == 0
    while process.stdout.readline().split("\t")[1] != "brand-new":
        pass
    assert ended(process) == (0, "")


def watching_in_a_pipe(*options: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("orders.db", "watch", *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=environment(**more),
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    return process.returncode, err


def test_watch_looks_at_a_file_only_when_it_has_changed(
    orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    look = watching._looked

    def counted(*given: object) -> watching.Frame:
        looks.append(1)
        return look(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(watching, "_looked", counted)
    monkeypatch.setattr(watching, "SHARE", 1e9)
    screen = Screen(out=Stream(), err=Stream(), typed=None, terminal=True, width=90, clock=now)
    pauses = iter([nothing] * 5 + [lambda: said(orders, "deliver", "new", "1")] + [nothing] * 3)

    def pause(seconds: float) -> None:
        act = next(pauses, None)
        if act is None:
            raise KeyboardInterrupt
        act()

    from argparse import Namespace

    assert watching.watch("orders.db", Namespace(), screen, pause) == 0
    assert len(looks) == 2
    frames = screen.out.getvalue().split("\x1b[H")  # type: ignore[attr-defined]
    assert len(frames) == 11
    assert "new  " not in frames[6]
    assert "new  " in frames[7]


def nothing() -> None:
    pass


Act = Callable[[], object]


def test_a_file_that_is_gone_ends_a_watch_in_one_line(orders: Path) -> None:
    terminal = on_terminal("orders.db", "watch", NO_COLOR="1")
    terminal.await_text("approved by (arrive)")
    orders.unlink()
    assert terminal.end() == 1
    assert f"without-durability: there is no file {orders}" in terminal.text
    assert "Traceback" not in terminal.text


def test_importing_the_library_does_not_import_the_command_line() -> None:
    script = (
        "import sys, without_durability_sqlite\n"
        "print([name for name in sys.modules if 'sqlite.cli' in name or name == 'argparse'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment()
    )
    assert done.stdout == "[]\n"


def test_the_script_of_the_package_is_main() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, name = project["scripts"]["without-durability"].partition(":")
    __import__(module)
    assert callable(getattr(sys.modules[module], name))
    assert os.path.exists(ROOT / "src/without_durability_sqlite/__main__.py")
