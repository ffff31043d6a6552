"""The processes, what is done to them, and what came of it."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from soaking.books import Books
from soaking.lives import DECK, KILLED, NEVER, Life
from soaking.plan import CLIENTS
from soaking.processes import durable_over
from soaking.steering import Steward
from without_durability_sqlite import (
    SqliteCheckpointer,
    connect,
    migrate,
)

DRAIN = 90.0  # seconds after the chaos within which everything must be finished
TABLES = """
CREATE TABLE soak_ledger (workflow, step, amount, life, token, newest);
CREATE INDEX soak_ledger_workflow ON soak_ledger (workflow);
CREATE TABLE soak_total (amount);
INSERT INTO soak_total VALUES (0);
CREATE TABLE soak_forgotten (workflow, step, value);
CREATE TRIGGER soak_forgotten AFTER DELETE ON workflow_checkpoint BEGIN
    INSERT INTO soak_forgotten VALUES (OLD.workflow, OLD.step, OLD.value);
END;"""
EXPECTED = re.compile(
    r"INFO |WARNING (the event loop was blocked|aclose waits for work)"
    r"|WARNING .*(lost its claim to its own budget|was cancelled and does not end)"
    r"|WARNING .*was taken from that pass"
    r"|ERROR .* is parked after \d+ attempts"
    r"|WARNING .*(could not be renewed|the store refused|not handed back).*database is locked"
)
FAILED = re.compile(r"ERROR .*failed.*\n(.*\n)*.*(Flaky: as told|database is locked|Fenced: .*)\n*")


SCRIPT = Path(__file__).parent.parent / "soak.py"


class Chaos:
    """The processes, and what is done to them."""

    def __init__(self, options: argparse.Namespace, folder: Path, path: Path) -> None:
        self.options, self.folder, self.path = options, folder, path
        self.choose, self.books = random.Random(options.seed), Books(options.seed, folder)
        self.start_at = dict.fromkeys((f"worker-{n}" for n in range(options.processes)), 0.0)
        self.start_at |= dict.fromkeys(CLIENTS, 0.0)
        self.living: dict[str, Life] = {}
        self.lives: dict[str, Life] = {}
        self.did: Counter[str] = Counter()
        self.steered: Counter[str] = Counter()
        self.draining = folder / "draining"

    def tend(self) -> None:
        """Thaw the frozen, bury the dead, start the missing."""
        for slot, at in self.start_at.items():
            life = self.living.get(slot)
            if life is not None and not life.lives():
                self.start_at[slot] = self.bury(self.living.pop(slot))
            elif life is None and time.time() >= at:
                name = f"{slot}.{sum(life.startswith(f'{slot}.') for life in self.lives)}"
                role = [str(self.folder), str(self.path), name, str(self.options.seed)]
                command = [sys.executable, "-W", "always", SCRIPT, "--role", *role]
                path = self.folder / f"{name}.err"
                choose = random.Random(f"{self.options.seed} what befalls {name}")
                with path.open("wb") as errors:
                    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors)
                self.living[slot] = self.lives[name] = Life(name, process, path, choose)

    def bury(self, life: Life) -> float:
        """Look at how it ended, and what it said; the moment to start the next one."""
        life.process.stdin.close()
        code, said = life.process.returncode, life.errors.read_text(errors="replace")
        life.story.append(f"ended with {code}")
        drained = life.name.startswith("client") and self.draining.exists() and code == 0
        if code != (-signal.SIGKILL if life.fate in KILLED else 0) or not (life.fate or drained):
            self.books.wrong.append(f"{life.name} was to end by {life.fate or 'nothing'}: {code}")
        self.read(life.name, said)
        return NEVER if drained else time.time() + life.choose.uniform(0, 0.3)

    def read(self, name: str, said: str) -> None:
        """Whatever a process said beside the usual words about blows, pauses and failures."""
        for text in said.split("\x1e"):
            usual = EXPECTED.match(text) if text.count("\n") <= 1 else FAILED.fullmatch(text)
            if text and not usual:
                self.books.wrong.append(f"{name} said: {text}")
            elif text and not text.startswith("INFO"):
                self.books.told[f"{text.split()[0].lower()}s"] += 1

    def strike(self, blow: str, role: str) -> bool:
        """Deal a blow to one who is up; whether there was one."""
        able = [
            life
            for life in self.living.values()
            if life.name.startswith(role) and not life.fate and life.is_up
            if blow == "kill" or life.thaw_at == NEVER
        ]
        if able:
            self.did["kill" if blow == "ambush" else blow] += 1
            self.choose.choice(able).suffer(blow)
        return bool(able)

    async def run(self) -> None:
        async with connect(self.path) as database:
            await migrate(database)
            await database.run(lambda connection: connection.executescript(TABLES).close())
            durable = durable_over(SqliteCheckpointer(database))
            steward = Steward(self.books, durable, self.path, self.draining)
            self.steered = steward.did
            try:
                async with asyncio.TaskGroup() as group:
                    steering = group.create_task(steward.run())
                    await self.strikes()
                    await self.drain(steward)
                    steering.cancel()
                await self.books.check(durable, self.lives)
            finally:
                for life in self.living.values():
                    life.process.kill()
                    life.process.wait()
                for log in self.books.logs:
                    log.close()
        self.read("the parent", (self.folder / "parent.err").read_text())

    async def strikes(self) -> None:
        ends, strike_at = time.time() + self.options.duration, time.time() + 1.0
        deck: list[tuple[str, str]] = []
        while time.time() < ends:
            self.tend()
            if time.time() >= strike_at:
                deck = deck or self.choose.sample(DECK, len(DECK))
                if self.strike(*deck[-1]):
                    deck.pop()
                    strike_at += self.options.pace * self.choose.uniform(0.4, 1.6)
            await asyncio.sleep(0.02)

    async def drain(self, steward: Steward) -> None:
        """No more blows: let everything finish, and stop the workers in good order."""
        self.draining.touch()
        for life in self.living.values():
            if life.fate == "ambush":  # one with nothing to do would wait for long
                life.process.kill()
        ends = time.time() + DRAIN
        while time.time() < ends:
            self.tend()
            up = all(life.is_up for life in self.living.values())
            is_fed = up and not {*CLIENTS} & {*self.living}
            if is_fed and not steward.steering and not self.books.unfinished():
                break
            await asyncio.sleep(0.05)
        for pid in (os.getpid(), *(life.process.pid for life in self.living.values())):
            descriptors = Path(f"/proc/{pid}/fd")
            if descriptors.exists() and len([*descriptors.iterdir()]) > 40:
                self.books.wrong.append(f"process {pid} has more than 40 open files")
        for life in self.living.values():
            life.suffer("cancel")
        while self.living:
            self.start_at = dict.fromkeys(self.start_at, NEVER)
            self.tend()
            await asyncio.sleep(0.05)

    def show(self) -> bool:
        """Print what is wrong and the figures; whether all is well."""
        did, books, wrong = self.did, self.books, self.books.wrong
        if did["kill"] < self.options.duration / 3 or not books.finals:
            wrong.append(f"too little happened: {did}, {len(books.finals)} finished")
        if did["freeze"] >= 20 and not books.told["calls silent"]:
            wrong.append("no pass of a frozen process was ever refused")
        acts = ("retried", "cancelled", "rewound", "forked", "swept", "looks")
        if self.options.duration >= 30 and not all(self.steered[act] for act in acts):
            wrong.append(f"too little was steered: {self.steered}")
        shown = [f"WRONG: {text[:4000]}" for text in wrong[:30]]
        for text in shown:
            print(text)
        for name in sorted({*re.findall(r"(?:worker|client)-\d+\.\d+", " ".join(shown))}):
            life = self.lives[name]
            print(f"involved: {name}, pid {life.process.pid}: {', '.join(life.story)}")
        print(
            f"{len(books.finals):,} workflows finished; {len(self.lives)} processes made "
            f"{sum(books.intended.values()):,} client calls; {dict(books.told)}"
        )
        print(
            f"soak: seed {self.options.seed}, {self.options.duration:g} s, "
            f"{self.options.processes} processes: {len(books.plans):,} workflows, "
            f"{did['kill']} kills, {did['freeze']} stops, "
            f"{did['cancel'] + did['finish']} restarts, "
            f"lost {len(books.lost)}, doubled {books.doubled} "
            f"(outside: {books.repeats:,} repeats of {books.steps:,} steps, "
            f"{'all explained' if not wrong else f'{len(wrong)} things WRONG'}); "
            f"{', '.join(f'{self.steered[act]:,} {act}' for act in acts)}; left in the end: "
            f"{', '.join(f'{count} {state}' for state, count in sorted(books.endings.items()))}",
            flush=True,
        )
        return not wrong
