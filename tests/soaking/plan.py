"""What a workflow and its client will do: a function of the seed and its id."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

LEASE, BUDGET = timedelta(seconds=1), timedelta(seconds=3)
LONG, WITHIN = 3.3, timedelta(seconds=6)  # a step longer than the budget, and what it asks for
OPEN, BACKLOG = 10, 60  # workflows a client drives at once; queue rows that make it wait
CLIENTS = ("client-0", "client-1")


@dataclass
class Plan:
    segments: list[tuple[str, Any]]
    groups: list[tuple[float, dict[int, list[Any]]]]  # a pause, and numbered calls at once

    def __post_init__(self) -> None:
        self.calls = {n: call for _, group in self.groups for n, call in group.items()}
        self.deletion = next((n for n, call in self.calls.items() if call == ["delete"]), None)


def planned(seed: int, workflow: str) -> Plan:
    choose = random.Random(f"{seed} {workflow}")
    segments: list[tuple[str, Any]] = []
    for kind, chances, low, high in (
        ("transact", (1.0, 0.5, 0.2), 1, 99),  # an amount
        ("step", (1.0, 0.5), 0, 0.1),  # seconds it takes, here and below
        ("group", (0.4,), 0, 0.1),
        ("long", (0.01,), LONG, LONG),
        ("pause", (0.3,), 0.02, 0.3),
        ("sleep", (0.5,), 0.05, 2),
        ("flaky", (0.05,), 1, 2),  # times it fails
        ("answer", (0.4,), 0, 0),
        ("messages", (0.6,), 0, 0),
    ):
        draw = choose.randint if kind in ("transact", "flaky") else choose.uniform
        segments += [(kind, draw(low, high)) for chance in chances if choose.random() < chance]
    choose.shuffle(segments)
    kinds = dict(segments)
    middle: list[list[list[Any]]] = [[["arrive", "plan", "too late"]]][choose.randint(0, 1) :]
    if "messages" in kinds:
        sent = [["deliver", f"m{i}", choose.randint(1, 99)] for i in range(choose.randint(0, 5))]
        sent += sent[: choose.randint(0, 1)]  # the same message once more
        middle += filter(None, (sent[:2], sent[2:4], sent[4:]))
    if "answer" in kinds:
        middle += [[["arrive", "answer", f"ä{i}"]] for i in range(choose.randint(1, 2))]
    choose.shuffle(middle)
    groups = [[["arrive", "plan", segments]], *middle]
    if "messages" in kinds:
        groups += [[["deliver", "close", 0]]] * choose.randint(1, 2)
    if choose.random() < 0.12:
        groups[choose.randint(1, len(groups)) :] = [[["delete"]]]
    number = itertools.count()
    pauses = [choose.uniform(0, choose.choice([0.2] * 9 + [2.5])) for _ in groups]
    numbered = [{next(number): call for call in group} for group in groups]
    return Plan(segments, list(zip(pauses, numbered, strict=True)))
