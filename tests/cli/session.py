"""Commands over `orders.db`, as most tests ask them: that they are done, or refused in a line."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
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


def status(workflow: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(done("show", workflow, "--json"))
    return answer


def queued(workflow: str) -> list[str]:
    """The queues that hold a row of it."""
    with closing(sqlite3.connect("orders.db")) as connection:
        query = "SELECT namespace FROM workflow_queue WHERE workflow = ? ORDER BY 1"
        return [namespace for (namespace,) in connection.execute(query, (workflow,))]
