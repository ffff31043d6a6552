"""What makes no command, and the help that says what does."""

from __future__ import annotations

import pytest
from console import piped, said

from without_durability_sqlite.cli.commands import COMMANDS


@pytest.mark.parametrize(
    ("argv", "said_of_it"),
    [
        ([], "FILE"),
        (["orders.db"], "COMMAND"),
        (["orders.db", "frob"], "invalid choice: 'frob'"),
        (["orders.db", "show"], "ID"),
        (["orders.db", "show", "a", "b"], "unrecognized arguments: b"),
        (["orders.db", "list", "--state", "lost"], "--state"),
        (["orders.db", "list", "--limit", "0"], "--limit"),
        (["orders.db", "list", "--limit", "many"], "a whole number of at least 1, not 'many'"),
        (["orders.db", "list", "--limit", "9" * 5000], "a whole number of at least 1, not '999"),
        (["orders.db", "list", "--after", "-1"], "--after"),
        (["orders.db", "list", "--after", "x"], "the number that `list` gave"),
        (["orders.db", "list", "--after", "9" * 5000], "the number that `list` gave"),
        (["orders.db", "list", "--stat", "ready"], "--stat"),
        (["orders.db", "show", "\ud800"], "argument ID: '\\ud800' cannot be stored as UTF-8"),
        (["orders.db", "arrive", "a", "\ud800", "1"], "argument KEY: '\\ud800' cannot be stored"),
        (["orders.db", "list", "--prefix", "\ud800"], "argument --prefix: '\\ud800' cannot be"),
        (["orders.db", "why", "-x"], "what begins with a dash and is no option goes after `--`"),
        (["orders.db", "why", "a", "-x"], "what begins with a dash and is no option goes after"),
        (["orders.db", "list", "--prefix", "-x"], "is joined to its option: --option=-value"),
        (["orders.db", "x" * 10**6], "invalid choice: 'xxx"),
        (["orders.db", "retry"], "either an ID or --failed"),
        (["orders.db", "retry", "a", "--failed"], "either an ID or --failed"),
        (["orders.db", "retry", "a", "--namespace", "b"], "--namespace goes with --failed"),
        (["orders.db", "sweep"], "--older"),
        (["orders.db", "sweep", "--older", "long"], "no length of time"),
        (["orders.db", "sweep", "--older", "1d", "--state", "ready"], "--state"),
        (["orders.db", "backup"], "DEST"),
        (["orders.db", "list", "--\x1b[2J"], "--\\x1b[2J"),
    ],
    ids=lambda given: ascii(given)[:60],
)
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["words", "json"])
def test_what_makes_no_command_is_said_in_one_line(
    argv: list[str], said_of_it: str, form: list[str]
) -> None:
    answer = said(*form, *argv)
    assert (answer.code, answer.out) == (2, "")
    (line,) = answer.err.splitlines()
    assert line.startswith("without-durability: ")
    assert said_of_it in line
    assert len(line) < 1100


def test_a_dash_is_spoken_of_only_where_there_is_one() -> None:
    assert "dash" not in said("orders.db", "show").err
    assert "dash" not in said("orders.db", "show", "--", "-x", "-y").err
    assert "dash" not in said("orders.db", "list", "--limit", "0").err


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_reads_well(command: str) -> None:
    answer = piped("orders.db", *command.split(), "--help")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("usage: without-durability")
    assert "example" in answer.out
    assert "--json" in answer.out
