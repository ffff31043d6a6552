"""A process that writes until its power is cut, a model of what it wrote, and the cuts."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from children import started
from without_durability import INBOX

LATER = 4_000_000_000.0
"""Queue rows from here on are sleepers, each at its call's own number past it."""

HEAD, FRAME = 32, 24 + 4096
"""Bytes before the first frame of a log, and of each frame."""

# A batch is begun together, as callers do it: its calls may share a transaction or have one each.
# Claims and a second queue's takes run beside them and are nobody's promise.
WRITES = """
import json

seed, later, batches = int(arguments[0]), float(arguments[1]), int(arguments[2])
choose = random.Random(seed)
holders, number = {}, 0

def effect(w, key, value):
    return lambda c: c.execute("INSERT INTO app VALUES (?, ?, ?)", (w, key, value)) and value

CALLS = {
    "record": lambda w, key, value: cp.record(holders[w], key, value),
    "transact": lambda w, key, value: cp.transact(holders[w], key, effect(w, key, value)),
    "supply": lambda w, key, value: cp.supply(w, key, value),
    "append": lambda w, _, value: cp.append(w, value),
    "arrive": lambda w, key, value: d.arrive(w, key, value),
    "deliver": lambda w, _, value: d.deliver(w, value),
    "schedule": lambda w, _, value: s.schedule(w, datetime.fromtimestamp(later + value, UTC)),
    "make_ready": lambda w, *_: s.make_ready(w),
    "cancel": lambda w, *_: s.cancel(w),
    "discard": lambda w, *_: cp.discard(w),
    "delete": lambda w, *_: d.delete(w),
}
deck = []

def drawn():
    if not deck:
        deck.extend(choose.sample([*CALLS, "record", "transact", "arrive"], len(CALLS) + 3))
    return deck.pop()

async def beside(other):
    for w in {*"abc"} - holders.keys():
        holders[w] = await cp.claim(w, 5 * MIN, MIN)
    await cp.renew(holders["a"], MIN)
    await other.make_ready("x")
    delivery = await other.next_ready(0 * MIN)
    if delivery is not None:
        await other.done(await other.extend(delivery, MIN))

async def main():
    global number
    await opened()
    await db.run(lambda c: c.execute("PRAGMA wal_autocheckpoint = 0").close())
    other = SqliteScheduler(db, "other")
    for turn in range(batches):
        if turn % 3 == 0 or len(holders) < 3:
            await beside(other)
        batch, gone = [], set()
        for _ in range(choose.randrange(1, 5)):
            number += 1
            name, w, key = drawn(), choose.choice("abc"), f"k{choose.randrange(6)}"
            if name in ("record", "transact") and w in gone:
                name = "supply"
            if name in ("discard", "delete"):
                gone.add(w)
            batch.append([name, w, key, number])
        await asyncio.gather(*(CALLS[name](*call) for name, *call in batch))
        print(json.dumps([batch, os.stat(f"{path}-wal").st_size]), flush=True)
        for w in gone:
            del holders[w]
    print("over", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@dataclass
class Written:
    """The calls in the order they were made, and how many were acknowledged at which length."""

    calls: list[tuple[str, str, str, int]] = field(default_factory=list)
    acknowledged: list[tuple[int, int]] = field(default_factory=list)

    def acknowledged_at(self, length: int) -> int:
        return max((calls for calls, size in self.acknowledged if size <= length), default=0)

    def states(self) -> list[Any]:
        """What the file holds after each number of calls, none included."""
        model = Model()
        states = [model.shown()]
        for call in self.calls:
            model.apply(*call)
            states.append(model.shown())
        return states


@dataclass
class Model:
    records: dict[str, dict[str, int]] = field(default_factory=dict)
    app: list[tuple[str, str, int]] = field(default_factory=list)
    queue: dict[str, float] = field(default_factory=dict)

    def apply(self, name: str, w: str, key: str, number: int) -> None:
        records = self.records.setdefault(w, {})
        if name == "transact" and key not in records:
            self.app.append((w, key, number))
        if name in ("record", "transact", "supply", "arrive"):
            records.setdefault(key, number)
        if name in ("append", "deliver"):
            records[f"message {number}"] = number
        if name in ("discard", "delete"):
            records.clear()
        if name in ("arrive", "deliver", "make_ready"):
            self.queue[w] = 0
        if name == "schedule":
            self.queue[w] = LATER + number
        if name in ("cancel", "delete"):
            self.queue.pop(w, None)

    def shown(self) -> Any:
        records = {w: list(kept.items()) for w, kept in self.records.items() if kept}
        return records, [*self.app], dict(sorted(self.queue.items()))


def found(connection: sqlite3.Connection) -> Any:
    """What the file holds, as the model shows it."""
    model = Model()
    query = "SELECT workflow, step, value FROM workflow_checkpoint ORDER BY seq"
    for w, step, value in connection.execute(query):
        key = f"message {value}" if step.startswith(INBOX) else step
        model.records.setdefault(w, {})[key] = json.loads(value)
    model.app = connection.execute("SELECT * FROM app ORDER BY rowid").fetchall()
    query = "SELECT workflow, visible_at FROM workflow_queue WHERE namespace = 'workflow'"
    model.queue = {w: at if at >= LATER else 0 for w, at in connection.execute(query)}
    return model.shown()


def written(path: Path, seed: int, batches: int) -> Written:
    """Let a process write to the file, and kill it: what it had been told is acknowledged."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE app (w, key, value)")
    told = Written()
    with started(WRITES, path, str(seed), str(LATER), str(batches)) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "over\n":
                break
            batch, size = json.loads(line)
            told.calls += [tuple(call) for call in batch]
            told.acknowledged.append((len(told.calls), size))
        process.kill()
        _, errors = process.communicate(timeout=10)
        assert len(told.acknowledged) == batches, errors
    return told


@dataclass
class Cut:
    """What a disk was left with: the log's first `length` bytes as they were, then `rest`."""

    length: int
    rest: bytes = b""


def cuts(log: bytes, choose: random.Random) -> Iterator[Cut]:
    """At every frame, at random bytes, and with garbage from there on; shortest first."""
    frames = range(HEAD, len(log) + 1, FRAME)
    lengths = [0, *frames, *(choose.randrange(len(log)) for _ in range(40))]
    for length in sorted(lengths):
        yield Cut(length)
        if choose.random() < 0.2:  # the file had grown, and what was to fill it had not come
            garbage = choose.randbytes(min(len(log) - length, 3 * FRAME))
            yield Cut(length, choose.choice([garbage, bytes(len(garbage))]))
        if length < len(log) and choose.random() < 0.2:  # one page of several did not come
            flipped = bytes([log[length] ^ 0xFF])
            yield Cut(length, flipped + log[length + 1 :])
