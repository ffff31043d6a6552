"""Commands over `orders.db`, as most tests ask them: that they are done, or refused in a line."""

from __future__ import annotations

from typing import Any

from console import said
from orders import now


def done(*argv: str, **options: Any) -> str:
    answer = said("orders.db", *argv, clock=now, **options)
    assert (answer.code, answer.err) == (0, ""), answer
    return answer.out


def refused(*argv: str, code: int = 1, **options: Any) -> str:
    answer = said("orders.db", *argv, clock=now, **options)
    assert (answer.code, answer.out) == (code, ""), answer
    (line,) = answer.err.splitlines()
    return line.removeprefix("without-durability: ")
