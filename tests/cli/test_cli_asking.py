"""What cannot be taken back is asked about, and done for nothing less than a yes."""

from __future__ import annotations

from pathlib import Path

import pytest
from console import Stream, said
from orders import now
from session import done, refused

pytestmark = pytest.mark.usefixtures("orders")


DESTRUCTIVE = [
    ["cancel", "order-3"],
    ["rewind", "order-4", "charge"],
    ["delete", "order-1"],
    ["sweep", "--older", "1min"],
    ["retry", "--failed"],
]


@pytest.mark.parametrize("argv", DESTRUCTIVE, ids=lambda argv: argv[0])
def test_what_cannot_be_taken_back_needs_a_yes_where_nobody_can_be_asked(argv: list[str]) -> None:
    before = done("list")
    assert "pass --yes" in refused(*argv)
    assert "pass --yes" in refused(*argv, typed=Stream("y\n"))
    assert done("list") == before


@pytest.mark.parametrize("argv", DESTRUCTIVE, ids=lambda argv: argv[0])
@pytest.mark.parametrize("answer", ["", "\n", "n\n", "nope\n", "yesterday\n"], ids=repr)
def test_anything_but_a_yes_is_a_no(argv: list[str], answer: str) -> None:
    before = done("list")
    reply = said("orders.db", *argv, clock=now, terminal=True, typed=Stream(answer, terminal=True))
    assert (reply.code, reply.out) == (1, "")
    assert reply.err.endswith(" [y/N] without-durability: nothing was done\n")
    assert done("list") == before


@pytest.mark.parametrize("argv", DESTRUCTIVE, ids=lambda argv: argv[0])
@pytest.mark.parametrize("answer", ["y\n", "YES\n"], ids=repr)
def test_a_yes_is_a_yes(argv: list[str], answer: str) -> None:
    before = done("list")
    reply = said("orders.db", *argv, clock=now, terminal=True, typed=Stream(answer, terminal=True))
    assert reply.code == 0
    assert done("list") != before


@pytest.mark.parametrize(
    ("argv", "question"),
    [
        (["cancel", "order-3"], "Cancel order-3, which is sleeping? [y/N] "),
        (
            ["rewind", "order-4", "charge"],
            "Forget charge and every step recorded after it in order-4? [y/N] ",
        ),
        (["delete", "order-5"], "Delete order-5, which is running, and its 1 record? [y/N] "),
        (
            ["sweep", "--older", "1min"],
            "Delete 1 workflow (1 completed, unchanged for 1 min)? [y/N] ",
        ),
        (["retry", "--failed"], "Run 1 failed workflow again? [y/N] "),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_the_question_names_what_will_happen(argv: list[str], question: str) -> None:
    reply = said("orders.db", *argv, clock=now, terminal=True, typed=Stream("n\n", terminal=True))
    assert reply.err.startswith(question)


class GoneMeanwhile(Stream):
    """Whoever is asked takes the file away before saying yes."""

    def readline(self, size: int = -1, /) -> str:
        Path("orders.db").unlink()
        return "y\n"


def test_a_file_that_is_gone_when_the_answer_comes_is_not_made_anew() -> None:
    typed = GoneMeanwhile(terminal=True)
    reply = said("orders.db", "delete", "order-1", clock=now, terminal=True, typed=typed)
    assert (reply.code, reply.out) == (1, "")
    assert "there is no file" in reply.err
    assert list(Path().iterdir()) == []
