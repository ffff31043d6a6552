"""What the parent knows about each workflow, and every check of it."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections import Counter, defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

from soaking.lives import KILLED, NEVER, Life
from soaking.plan import CLIENTS, LEASE, Plan, planned
from soaking.processes import noted, rows
from without_durability import INBOX, State, Status, Written
from without_durability_sqlite import SqliteDurable
from without_durability_sqlite.checking import oddities


class Books:
    """What the parent knows about each workflow, and every check of it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder = seed, folder
        self.logs = [(folder / f"{slot}.log").open("a+b") for slot in CLIENTS]
        self.plans: dict[str, Plan] = {}
        self.intended: Counter[tuple[str, int]] = Counter()
        self.answers: dict[tuple[str, int | None], Any] = {}
        self.deleted_at: dict[str, float] = {}
        self.steered_at: dict[str, float] = {}  # cancelled or rewound for the first time
        self.rewound: Counter[str] = Counter()
        # What was written later than this row of the ledger is of a newer token than this one.
        self.fences: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self.rested: dict[State, set[str]] = {}  # failed or cancelled, as they are to stay
        self.finals: dict[str, dict[str, Written]] = {}  # the records of what is finished
        self.ledger: defaultdict[str, list[Any]] = defaultdict(list)
        self.ever: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)  # all records
        self.wrong: list[str] = []
        self.lost: set[str] = set()
        self.told: Counter[str] = Counter()
        self.endings: Counter[State] = Counter()
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
        rested = {workflow for ended in self.rested.values() for workflow in ended}
        rested = {workflow for workflow in rested if self.through(workflow)}
        return sorted(self.plans.keys() - self.finals.keys() - deleted - rested)

    async def check(self, durable: SqliteDurable, lives: dict[str, Life]) -> None:
        database = durable.checkpointer.database
        tables = ("workflow_queue", "workflow_claim", "workflow_checkpoint", "workflow_run")
        left = {table: await rows(database, f"SELECT workflow, * FROM {table}") for table in tables}
        for workflow in self.unfinished():
            held = {table: [row[1:] for row in left[table] if row[0] == workflow] for table in left}
            client = f"its client is through: {self.through(workflow)}"
            self.lose(workflow, f"not finished at {time.time():.2f}; {client}; {held}")
        await self.check_states(durable)
        query = "SELECT rowid, * FROM soak_ledger ORDER BY rowid"
        for number, workflow, *row in await rows(database, query):
            self.ledger[workflow].append(row)
            for last, token in self.fences[workflow]:
                if number > last and row[3] <= token:
                    text = f"{row} was written after token {token} had been fenced"
                    self.wrong.append(f"{workflow}: {text}")
        query = "SELECT workflow, step, value FROM soak_forgotten ORDER BY rowid"
        for workflow, step, value in await rows(database, query):
            self.ever[workflow, step].append(json.loads(value))
        for workflow in {*self.plans, *self.ledger}:
            self.check_ledger(workflow, self.ledger[workflow])
        ((total,),) = await rows(database, "SELECT amount FROM soak_total")
        if total != sum(entry[1] for entries in self.ledger.values() for entry in entries):
            self.wrong.append(f"the running total is {total}, which is not the ledger's sum")
        for workflow, records in self.finals.items():
            if self.plans[workflow].ending == "completed":
                self.check_records(workflow, records)
            self.check_calls(workflow, records)
        self.check_outside(lives)
        for table in tables:
            for row in await rows(database, f"SELECT workflow, * FROM {table}"):
                lapsed = table == "workflow_claim" and row[0] in self.plans
                if not (lapsed and row[4] <= time.time()):
                    self.wrong.append(f"left behind in {table}: {row}")
        checked = await rows(database, "PRAGMA integrity_check")
        if checked != [("ok",)]:
            self.wrong.append(f"integrity check: {checked}")

    async def check_states(self, durable: SqliteDurable) -> None:
        """The ledger at the end: each as it was planned, counted, and gone once it is deleted."""
        statuses: list[Status] = []
        after = None
        while True:
            page = await durable.list(after=after)
            statuses += page.items
            if (after := page.next) is None:
                break
        states = {status.workflow: status.state for status in statuses}
        for status in statuses:
            plan = self.plans.get(status.workflow)
            is_planned = plan is not None and plan.ending == status.state
            if not (is_planned or status.workflow in self.lost):
                self.wrong.append(f"in the end it is {status}, planned {plan}")
        for workflow, plan in self.plans.items():
            if plan.ending != "completed" and states.get(workflow) != plan.ending:
                self.lose(workflow, f"it is {states.get(workflow)}, not {plan.ending}")
        counts = {state: count for state, count in (await durable.counts()).items() if count}
        if counts != Counter(states.values()):
            self.wrong.append(f"{counts} are counted in the end, and there are {states}")
        self.endings = Counter(states.values())
        database = durable.checkpointer.database
        self.wrong += map(str, await database.run(lambda at: oddities(at, time.time())))
        for workflow in states:
            history = await durable.checkpointer.history(workflow)
            if workflow not in self.lost:
                self.finals[workflow] = history
            if await durable.delete(workflow) != len(history):
                self.wrong.append(f"{workflow}: its deletion counts otherwise than its history")

    def check_ledger(self, workflow: str, entries: list[Any]) -> None:
        """The inside ledger: an entry for each record, by the newest pass, none after deletion."""
        if workflow not in self.plans:
            self.wrong.append(f"{workflow} is in the ledger, and no client knows it: {entries}")
            return
        recorded = {
            step: [value for value in values if is_amount_of(workflow, value)]
            for (name, step), values in self.ever.items()
            if name == workflow
        }
        for step in {entry[0] for entry in entries} | recorded.keys():
            done = [entry[:4] for entry in entries if entry[0] == step]
            told = (
                [[step, value["amount"], value["life"], value["token"]] for value in recorded[step]]
                if step in recorded
                else []
            )
            if done != told or len(done) > 1 + self.rewound[workflow]:
                self.doubled += len(done) > len(told)
                text = f"{step!r} was done {len(done)} times: {done}, recorded {told}"
                self.wrong.append(f"{workflow}: {text}")
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
        expected = {"plan", "through", "tail", "done"}
        for number, (kind, detail) in enumerate(plan.segments):
            step = f"{number} {kind}"
            amounts |= {step: detail} if kind == "transact" else {}
            if kind not in ("answer", "messages", "pause", "poison"):
                expected |= {f"{step} a", f"{step} b"} if kind == "group" else {step}
        sums = {
            step: value["amount"]
            for step, value in held.items()
            if isinstance(value, dict) and "amount" in value
        }
        if sums != amounts or last > first or not expected <= held.keys():
            self.lose(workflow, f"planned {plan.segments}, ledger {sums}, records {held}")
        own = [key for key in held if re.match(r"\d+ ", key) and " in pass " not in key]
        if own != sorted(own, key=lambda key: int(key.split()[0])):
            self.wrong.append(f"{workflow}: its steps are out of order: {own}")
        token, awake = 0, records["plan"].at
        for key, value in held.items():
            if key.endswith(" sleep"):
                awake = datetime.fromisoformat(value)
            elif isinstance(value, dict):
                too_early = records[key].at < awake and " in pass " not in key
                if value["token"] < token or too_early:
                    self.wrong.append(f"{workflow}: {key!r} was recorded out of turn: {records}")
                token = value["token"]

    def check_calls(self, workflow: str, records: dict[str, Written]) -> None:
        """Whatever its client was told is there, is there."""
        plan, held = self.plans[workflow], {key: written.value for key, written in records.items()}
        inbox = [value for key, value in held.items() if key.startswith(INBOX)]
        for n, (name, *arguments) in plan.calls.items():
            answer, intended = self.answers[workflow, n], self.intended[workflow, n]
            kept = held.get(answer) if name == "deliver" else answer
            wanted = [n, *arguments] if name == "deliver" else held.get(arguments[0])
            if kept != wanted or sum(value[0] == n for value in inbox) > intended:
                call = f"{name} {arguments}, called {intended} times, was acknowledged: {answer}"
                self.lose(workflow, f"{call}; records {held}")

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
            ever = {value["nonce"] for value in self.ever[workflow, step]}
            standing = [line["nonce"] for line in lines if line["nonce"] in settled | ever]
            twice = len(standing) > 1 + self.rewound[workflow]
            missing = {*standing} - ever or ({final} - {None} - {*standing} and "+" not in workflow)
            if twice or missing:
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
        """A pass is refused for silence, its budget or what was done to it; a lock may last."""
        reasons = {
            "locked": not line["fenced"] and "database is locked" in line["error"],
            "silent": line["fenced"] and line["silent"] >= LEASE.total_seconds(),
            "over budget": line["fenced"] and line["over"] >= 0,
            "deleted": line["fenced"] and line["t"] >= self.deleted_at.get(line["workflow"], NEVER),
            "steered": line["fenced"] and line["t"] >= self.steered_at.get(line["workflow"], NEVER),
        }
        if not any(reasons.values()):
            self.wrong.append(f"a pass heard of and within its budget was refused: {line}")
        self.told[f"calls {next((one for one in reasons if reasons[one]), 'WRONGLY')}"] += 1


def is_amount_of(workflow: str, value: Any) -> bool:
    """Whether a transact recorded it, and of this workflow, not the one it is forked from."""
    return isinstance(value, dict) and "amount" in value and value["workflow"] == workflow
