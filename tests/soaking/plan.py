"""What a workflow and its client will do: a function of the seed and its id."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from without_durability import Retry, State

LEASE, BUDGET = timedelta(seconds=1), timedelta(seconds=3)
LONG, WITHIN = 3.3, timedelta(seconds=6)  # a step longer than the budget, and what it asks for
OPEN, BACKLOG = 10, 60  # workflows a client drives at once; queue rows that make it wait
CLIENTS = ("client-0", "client-1")
RETRY = Retry(
    attempts=4, first=timedelta(milliseconds=50), factor=2, cap=timedelta(milliseconds=500)
)
SUPPLIED = ("plan", "answer", "cure", "through")  # what comes from outside, beside the messages


@dataclass
class Plan:
    segments: list[tuple[str, Any]]
    groups: list[tuple[float, dict[int, list[Any]]]]  # a pause, and numbered calls at once
    ending: State = "completed"
    steering: list[tuple[str, float]] = field(default_factory=list)  # each after a pause
    afterwards: list[str] = field(default_factory=list)  # each once it has completed

    def __post_init__(self) -> None:
        self.calls = {n: call for _, group in self.groups for n, call in group.items()}
        self.deletion = next((n for n, call in self.calls.items() if call == ["delete"]), None)
        self.is_poisoned = any(kind == "poison" for kind, _ in self.segments)


def planned(seed: int, workflow: str) -> Plan:
    """The plan of a client's workflow, or of a fork of one: a "+" behind its id."""
    if workflow.endswith("+"):
        return Plan(planned(seed, workflow[:-1]).segments, [])
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
    is_deleted = choose.random() < 0.12
    ending: State = "completed"
    if not is_deleted:
        ending = choose.choices(("completed", "failed", "cancelled"), (0.92, 0.04, 0.04))[0]
        if ending == "failed" or (ending == "completed" and choose.random() < 0.06):
            segments.insert(choose.randint(0, len(segments)), ("poison", 0))
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
    if is_deleted:
        groups[choose.randint(1, len(groups)) :] = [[["delete"]]]
    number = itertools.count()
    pauses = [choose.uniform(0, choose.choice([0.2] * 9 + [2.5])) for _ in groups]
    numbered = [{next(number): call for call in group} for group in groups]
    steering = [("cancel", choose.uniform(0.1, 1.5))] if choose.random() < 0.12 else []
    steering += [("rewind", choose.uniform(0.1, 1.5))] if choose.random() < 0.15 else []
    choose.shuffle(steering)
    if ending == "cancelled":
        steering += [("stop", choose.uniform(0.1, 1.5))]
    afterwards = [
        act
        for act, chance in (("rewind", 0.1), ("fork", 0.12), ("delete", 0.4))
        if choose.random() < chance
    ]
    grouped = list(zip(pauses, numbered, strict=True))
    return Plan(segments, grouped, ending, steering, afterwards)
