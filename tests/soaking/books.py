"""What the parent knows about each workflow, and every check of it."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from collections import Counter, defaultdict
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from soaking.lives import KILLED, NEVER, Life
from soaking.plan import CLIENTS, LEASE, Plan, planned
from soaking.processes import noted, rows
from without_durability import INBOX, Written
from without_durability_sqlite import (
    Database,
    SqliteDurable,
)


class Books:
    """What the parent knows about each workflow, and every check of it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder = seed, folder
        self.logs = [(folder / f"{slot}.log").open("a+b") for slot in CLIENTS]
        self.plans: dict[str, Plan] = {}
        self.intended: Counter[tuple[str, int]] = Counter()
        self.answers: dict[tuple[str, int | None], Any] = {}
        self.deleted_at: dict[str, float] = {}
        self.finals: dict[str, dict[str, Written]] = {}  # the records of what is finished
        self.ledger: defaultdict[str, list[Any]] = defaultdict(list)
        self.wrong: list[str] = []
        self.lost: set[str] = set()
        self.told: Counter[str] = Counter()
        self.doubled = self.steps = self.repeats = 0

    def lose(self, workflow: str, text: str) -> None:
        self.lost.add(workflow)
        self.wrong.append(f"lost {workflow}: {text}")

    def listen(self) -> None:
        """Read on in the clients' logs."""
        for line in itertools.chain.from_iterable(map(noted, self.logs)):
            workflow, n = line["workflow"], line["n"]
            if workflow not in self.plans:
                self.plans[workflow] = planned(self.seed, workflow)
            if line["what"] == "acknowledged":
                self.answers[workflow, n] = line["answer"]
                continue
            self.intended[workflow, n] += 1
            if n == self.plans[workflow].deletion:
                self.deleted_at.setdefault(workflow, line["t"])

    def through(self, workflow: str) -> bool:
        """Whether its client has had every call of its plan acknowledged."""
        return all((workflow, n) in self.answers for n in self.plans[workflow].calls)

    def unfinished(self) -> list[str]:
        self.listen()
        deleted = {workflow for workflow, n in self.answers if n == self.plans[workflow].deletion}
        return sorted(self.plans.keys() - self.finals.keys() - deleted)

    async def clean(self, durable: SqliteDurable) -> None:
        """Keep the records of what is finished, and delete it."""
        query = "SELECT workflow FROM workflow_checkpoint WHERE step = 'done'"
        while True:
            self.listen()
            for (workflow,) in await rows(durable.checkpointer.database, query):
                if self.through(workflow) and self.plans[workflow].deletion is None:
                    history = await durable.checkpointer.history(workflow)
                    self.deleted_at[workflow] = time.time()
                    with suppress(sqlite3.OperationalError):  # locked for long: the next round
                        await durable.delete(workflow)
                        self.finals[workflow] = history
            await asyncio.sleep(0.1)

    async def check(self, database: Database, lives: dict[str, Life]) -> None:
        tables = ("workflow_queue", "workflow_claim", "workflow_checkpoint")
        left = {table: await rows(database, f"SELECT workflow, * FROM {table}") for table in tables}
        for workflow in self.unfinished():
            held = {table: [row[1:] for row in left[table] if row[0] == workflow] for table in left}
            client = f"its client is through: {self.through(workflow)}"
            self.lose(workflow, f"not finished at {time.time():.2f}; {client}; {held}")
        for workflow, *row in await rows(database, "SELECT * FROM soak_ledger ORDER BY rowid"):
            self.ledger[workflow].append(row)
        for workflow in {*self.plans, *self.ledger}:
            self.check_ledger(workflow, self.ledger[workflow])
        ((total,),) = await rows(database, "SELECT amount FROM soak_total")
        if total != sum(entry[1] for entries in self.ledger.values() for entry in entries):
            self.wrong.append(f"the running total is {total}, which is not the ledger's sum")
        for workflow, records in self.finals.items():
            self.check_records(workflow, records)
        self.check_outside(lives)
        for table, row in ((name, row) for name in tables for row in left[name]):
            lapsed = table == "workflow_claim" and row[0] in self.plans and row[4] <= time.time()
            if row[0] not in self.lost and not lapsed:
                self.wrong.append(f"left behind in {table}: {row}")
        checked = await rows(database, "PRAGMA integrity_check")
        if checked != [("ok",)]:
            self.wrong.append(f"integrity check: {checked}")

    def check_ledger(self, workflow: str, entries: list[Any]) -> None:
        """The inside ledger: each step once, by the newest pass, and none once it is deleted."""
        if workflow not in self.plans:
            self.wrong.append(f"{workflow} is in the ledger, and no client knows it: {entries}")
            return
        for step, count in Counter(entry[0] for entry in entries).items():
            if count > 1:
                self.doubled += 1
                doubles = [entry for entry in entries if entry[0] == step]
                self.wrong.append(f"{workflow}: {step!r} was done {count} times: {doubles}")
        newest_so_far = 0
        for *_, token, newest in entries:
            newest_so_far = max(newest, newest_so_far)
            if token != newest_so_far:
                text = f"token {token} wrote after {newest_so_far} was given out: {entries}"
                self.wrong.append(f"{workflow}: {text}")
        counted = self.answers.get((workflow, self.plans[workflow].deletion), len(entries))
        if counted != len(entries):
            text = f"{counted} entries when its deletion was acknowledged, now {entries}"
            self.wrong.append(f"{workflow}: {text}")

    def check_records(self, workflow: str, records: dict[str, Written]) -> None:
        """A finished workflow's records: all that was planned and acknowledged, and in order."""
        plan, held = self.plans[workflow], {key: written.value for key, written in records.items()}
        inbox = {key: value for key, value in held.items() if key.startswith(INBOX)}
        last = max((key for key, (_, name, _) in inbox.items() if name != "close"), default="")
        first = min((key for key, (_, name, _) in inbox.items() if name == "close"), default="~")
        amounts = {key: 0 for key in held if key == "done" or " in pass " in key}
        amounts |= {f"message {key}": inbox[key][2] for key in inbox if key <= last}
        expected = {"plan", "done"}
        for number, (kind, detail) in enumerate(plan.segments):
            step = f"{number} {kind}"
            amounts |= {step: detail} if kind == "transact" else {}
            if kind not in ("answer", "messages", "pause"):
                expected |= {f"{step} a", f"{step} b"} if kind == "group" else {step}
        sums = {entry[0]: entry[1] for entry in self.ledger[workflow]}
        if sums != amounts or last > first or not expected <= held.keys():
            self.lose(workflow, f"planned {plan.segments}, ledger {sums}, records {held}")
        for n, (name, *arguments) in plan.calls.items():
            answer, intended = self.answers[workflow, n], self.intended[workflow, n]
            kept = held.get(answer) if name == "deliver" else answer
            wanted = [n, *arguments] if name == "deliver" else held.get(arguments[0])
            if kept != wanted or sum(value[0] == n for value in inbox.values()) > intended:
                call = f"{name} {arguments}, called {intended} times, was acknowledged: {answer}"
                self.lose(workflow, f"{call}; records {held}")
        token, awake = 0, records["plan"].at
        for key, value in held.items():
            if key.endswith(" sleep"):
                awake = datetime.fromisoformat(value)
            elif isinstance(value, dict):
                too_early = records[key].at < awake and " in pass " not in key
                if value["token"] < token or too_early:
                    self.wrong.append(f"{workflow}: {key!r} was recorded out of turn: {records}")
                token = value["token"]

    def check_outside(self, lives: dict[str, Life]) -> None:
        """Each effect of a step is recorded, or it was refused, or its process was killed."""
        ran: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        settled, refused = set(), set()
        with (self.folder / "outside.log").open("rb") as log:
            for line in noted(log):
                if line["what"] == "ran":
                    ran[line["workflow"], line["step"]].append(line)
                elif line["what"] == "refused":
                    refused.add((line["workflow"], line["step"], line["token"]))
                    self.check_refusal(line)
                else:
                    settled.add(line["nonce"])
                    if not line["nonce"].startswith(f"{line['life']}/"):
                        self.wrong.append(f"a record came second and was not refused: {line}")
        for (workflow, step), lines in ran.items():
            written = self.finals.get(workflow, {}).get(step)
            final = written.value["nonce"] if written else None
            self.steps += 1
            self.repeats += len(lines) - 1
            standing = [line["nonce"] for line in lines if line["nonce"] in settled | {final}]
            if len(standing) > 1 or (workflow in self.finals and [final] != standing):
                self.wrong.append(f"{workflow}: {step!r} is {final}, standing {standing}: {lines}")
            for line in lines:
                if line["nonce"] in standing:
                    continue
                if (workflow, step, line["token"]) in refused:
                    self.told["effects refused"] += 1
                elif lives[line["life"]].fate in KILLED:
                    self.told["effects killed"] += 1
                else:
                    self.wrong.append(f"an effect was not recorded, refused or killed: {line}")

    def check_refusal(self, line: dict[str, Any]) -> None:
        """A pass is refused for its silence, its budget or a deletion; a lock may last a while."""
        reasons = {
            "locked": not line["fenced"] and "database is locked" in line["error"],
            "silent": line["fenced"] and line["silent"] >= LEASE.total_seconds(),
            "over budget": line["fenced"] and line["over"] >= 0,
            "deleted": line["fenced"] and line["t"] >= self.deleted_at.get(line["workflow"], NEVER),
        }
        if not any(reasons.values()):
            self.wrong.append(f"a pass heard of and within its budget was refused: {line}")
        self.told[f"calls {next((one for one in reasons if reasons[one]), 'WRONGLY')}"] += 1
