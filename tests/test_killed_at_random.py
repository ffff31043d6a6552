"""A process killed at a random moment: what it had acknowledged is there, and nothing by half."""

from __future__ import annotations

import copy
import json
import random
import sqlite3
import threading
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from children import started
from without_durability import BUDGET, INBOX, LEASE
from without_durability_sqlite import SqliteCheckpointer, connect, migrate

ROUNDS = 14
HOUR = timedelta(hours=1).total_seconds()
LATER = datetime(2100, 1, 1, tzinfo=UTC).timestamp()

# Says what it calls before it calls it, and again once the call has returned.
WRITES = """
import json

seed, ahead, later = map(float, arguments)
choose, stall = random.Random(seed), random.Random(seed)
holders = {}

def effect(*row):
    return lambda cursor: cursor.execute("INSERT INTO app VALUES (?, ?, ?)", row) and row[-1]

async def claim(w, *_):
    holders[w] = await cp.claim(w, 5 * MIN, MIN)
    return holders[w].token

def say(what, said):
    sys.stdout.write(f"{what} {json.dumps(said)}\\n")
    sys.stdout.flush()

async def forget(call, w):
    await call(w)
    holders.pop(w, None)

CALLS = {
    "claim": claim,
    "record": lambda w, key, value: cp.record(holders[w], key, value),
    "transact": lambda w, key, value: cp.transact(holders[w], key, effect(w, key, value)),
    "supply": lambda w, key, value: cp.supply(w, key, value),
    "append": lambda w, _, value: cp.append(w, value),
    "arrive": lambda w, key, value: d.arrive(w, key, value),
    "deliver": lambda w, _, value: d.deliver(w, value),
    "make_ready": lambda w, *_: s.make_ready(w),
    "schedule": lambda w, _, value: s.schedule(w, datetime.fromtimestamp(later + value, UTC)),
    "discard": lambda w, *_: forget(cp.discard, w),
    "delete": lambda w, *_: forget(d.delete, w),
}
SINGLE = ["record", "supply", "append", "make_ready", "schedule", "discard"]
OFTEN = SINGLE + ["transact", "arrive", "deliver"] * 3 + ["delete"]  # what could be half done

async def main():
    await opened(clock=lambda: time.time() + ahead)
    # A pause before each statement: the end comes between any two of them, not in a commit only.
    db.connection.set_trace_callback(lambda _: time.sleep(stall.random() * 0.001))
    for value in range(1_000_000):
        name = choose.choice(OFTEN)
        w, key = choose.choice("abc"), f"k{choose.randrange(9)}"
        if name in ("record", "transact") and w not in holders:
            name = "claim"
        say("begun", [name, w, key, value])
        answer = await CALLS[name](w, key, value)
        say("done", answer if name == "claim" else None)
        await asyncio.sleep(stall.random() * 0.001)

asyncio.run(main())
"""


@dataclass
class Held:
    """What the file should hold: records in order, the application's rows, and the queue."""

    records: defaultdict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    app: list[tuple[str, str, int]] = field(default_factory=list)
    queue: dict[str, float] = field(default_factory=dict)

    def after(self, name: str, w: str, key: str, value: int) -> Held:
        """The same once the call has happened; a message goes by its rank, 0 is "at once"."""
        held = copy.deepcopy(self)
        records = held.records[w]
        if name == "transact" and key not in records:
            held.app.append((w, key, value))
        if name in ("record", "transact", "supply", "arrive"):
            records.setdefault(key, value)
        if name in ("append", "deliver"):
            records[f"message {sum(one.startswith('message') for one in records)}"] = value
        if name in ("discard", "delete"):
            records.clear()
        if name in ("arrive", "deliver", "make_ready"):
            held.queue[w] = 0
        if name == "schedule":
            held.queue[w] = LATER + value
        if name == "delete":
            held.queue.pop(w, None)
        return held

    def shown(self) -> object:
        records = {w: list(kept.items()) for w, kept in self.records.items() if kept}
        return records, self.app, self.queue


def found(path: Path) -> Held:
    held = Held()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        query = "SELECT workflow, step, value FROM workflow_checkpoint ORDER BY seq"
        for w, step, value in connection.execute(query):
            messages = sum(one.startswith("message") for one in held.records[w])
            key = f"message {messages}" if step.startswith(INBOX) else step
            held.records[w][key] = json.loads(value)
        held.app = connection.execute("SELECT * FROM app ORDER BY rowid").fetchall()
        for w, moment in connection.execute("SELECT workflow, visible_at FROM workflow_queue"):
            held.queue[w] = moment if moment >= LATER else 0
    return held


@dataclass
class Told:
    """What a killed process had said: each call it began, with its answer once acknowledged."""

    acknowledged: list[tuple[list[Any], Any]]
    in_flight: list[Any] | None

    @property
    def tokens(self) -> dict[str, int]:
        """The newest token it knew it had, of each workflow it had not thrown away since."""
        tokens: dict[str, int] = {}
        for (name, w, *_), answer in self.acknowledged:
            if name == "claim":
                tokens[w] = answer
            if name in ("discard", "delete"):
                tokens.pop(w, None)
        if self.in_flight is not None and self.in_flight[0] in ("discard", "delete"):
            tokens.pop(self.in_flight[1], None)
        return tokens


def killed(path: Path, seed: int, ahead: float) -> Told:
    """Let a process write until its end comes, at a moment after its first call nobody chose."""
    with started(WRITES, path, str(seed), str(ahead), str(LATER)) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        end = threading.Timer(random.uniform(0, 0.25), process.kill)
        end.start()
        lines += process.stdout
        end.join()
        _, errors = process.communicate(timeout=10)
        assert process.returncode != 0, "it ended by itself"
        assert "Traceback" not in errors, errors
    told: Told = Told([], None)
    for line in lines:
        if not line.endswith("\n"):  # it was killed in the middle of saying so
            break
        what, said = line.split(" ", 1)
        if what == "begun":
            told.in_flight = json.loads(said)
        else:
            assert told.in_flight is not None
            told.acknowledged.append((told.in_flight, json.loads(said)))
            told.in_flight = None
    return told


def assert_all_acknowledged_and_no_half(before: Held, told: Told, now: Held, turn: int) -> None:
    certain = before
    for call, _ in told.acknowledged:
        certain = certain.after(*call)
    possible = [certain.shown()]
    if told.in_flight is not None and told.in_flight[0] != "claim":
        possible.append(certain.after(*told.in_flight).shown())
    assert now.shown() in possible, (
        f"round {turn}: after {told.acknowledged[-5:]}, and {told.in_flight} under way"
    )


async def assert_claimed_after_the_lease_only(path: Path, told: Told, ahead: float) -> None:
    claim_under_way = told.in_flight[1] if told.in_flight and told.in_flight[0] == "claim" else None
    async with connect(path, clock=lambda: time.time() + ahead) as database:
        store = SqliteCheckpointer(database)
        for workflow in told.tokens:
            assert await store.claim(workflow, BUDGET, LEASE) is None, "a claim was forgotten"
    async with connect(path, clock=lambda: time.time() + ahead + LEASE.total_seconds()) as database:
        store = SqliteCheckpointer(database)
        for workflow in {*told.tokens, claim_under_way} - {None}:
            holder = await store.claim(workflow, BUDGET, LEASE)
            assert holder is not None, "the claim of a dead process did not lapse"
            assert holder.token > told.tokens.get(workflow, 0)
            await store.release(holder)


async def test_what_a_killed_process_had_acknowledged_is_there_and_nothing_is_there_by_half(
    path: Path,
) -> None:
    async with connect(path) as database:
        await migrate(database)
        await database.run(lambda c: c.execute("CREATE TABLE app (w, key, value)").close())
    held = Held()
    for turn in range(ROUNDS):
        ahead = turn * HOUR
        told = killed(path, turn, ahead)
        assert told.acknowledged, "nothing was acknowledged for this to be about"
        now = found(path)
        assert_all_acknowledged_and_no_half(held, told, now, turn)
        await assert_claimed_after_the_lease_only(path, told, ahead)
        held = now
