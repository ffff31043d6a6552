"""Orders with money and stock in them, killed half-way and finished by another process.

    PYTHONPATH=src python3 docs/examples/order.py [FILE]

Six orders run in a worker process. While card charges are under way the worker is killed the
hard way (SIGKILL); a second one takes the orders over and finishes them. Then the books are
checked: stock moved once per order, every card charged once. Exits 1 if they do not balance.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypedDict, cast

from without_durability import Run, work
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteEffect,
    SqliteScheduler,
    connect,
    migrate,
)
from without_durability_sqlite.store import transacted

LEASE = timedelta(seconds=2)  # a minute in real life: here nobody wants to wait that long
STOCK = {"teapot": 10, "kettle": 10}
STARTED = time.monotonic()


class Order(TypedDict):
    item: str
    quantity: int
    cents: int


ORDERS: dict[str, Order] = {
    f"order-{number}": {"item": item, "quantity": quantity, "cents": cents}
    for number, (item, quantity, cents) in enumerate(
        [
            ("teapot", 1, 2400),
            ("kettle", 2, 9800),
            ("teapot", 3, 7200),
            ("kettle", 1, 4900),
            ("teapot", 2, 4800),
            ("kettle", 4, 19600),
        ],
        start=1,
    )
}


def say(who: str, what: str) -> None:
    print(f"{clock_time(datetime.now(UTC))}  {who:<9} {what}", flush=True)


def clock_time(moment: datetime) -> str:
    return f"{moment.astimezone():%H:%M:%S.%f}"[:-3]


# --- the workflow ------------------------------------------------------------------------------


@dataclass
class Shop:
    """What the workflow's steps need from the outside."""

    database: Database
    gateway: int  # the port of the card gateway, which is another process
    name: str

    async def order(self, run: Run[SqliteEffect]) -> str:
        """One order. It runs from the top on every pass, and skips what is recorded."""
        await self.count_pass(run)
        order = await run.awaiting("order", as_order)
        await run.transact("reserve stock", self.reserve(run.workflow, order), as_int)
        await run.step("charge card", partial(self.charge, run.workflow, order["cents"]), str)
        await run.sleep("cooling off", timedelta(seconds=2))
        approver = await run.awaiting("approved by", str)
        notes = await run.receive("notes")
        said = " and ".join(str(note.value) for note in notes)
        async with asyncio.TaskGroup() as group:
            for task in ("pack", "print label", f"write to {approver}"):
                group.create_task(run.step(task, partial(self.do, run, task), str))
        return await run.step("finish", partial(self.do, run, f"finish ({said})"), str)

    def reserve(self, workflow: str, order: Order) -> SqliteEffect:
        """Move stock in the transaction that records the step: both happen, or neither."""
        quantity, item = order["quantity"], order["item"]

        def effect(cursor: sqlite3.Cursor) -> int:
            cursor.execute(
                "UPDATE shop_stock SET pieces = pieces - ? WHERE item = ?", (quantity, item)
            )
            cursor.execute("INSERT INTO shop_move VALUES (?, ?, ?)", (workflow, item, quantity))
            ((left,),) = cursor.execute(
                "SELECT pieces FROM shop_stock WHERE item = ?", (item,)
            ).fetchall()
            say(self.name, f"{workflow}: reserve {quantity} {item}(s), {left} left")
            return int(left)

        return effect

    async def charge(self, workflow: str, cents: int) -> str:
        """Ask the gateway, with the workflow's id as the key that makes asking twice harmless."""
        say(self.name, f"{workflow}: charge card")
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway)
        try:
            writer.write(json.dumps({"key": workflow, "cents": cents}).encode() + b"\n")
            return str(json.loads(await reader.readline()))
        finally:
            writer.close()

    async def do(self, run: Run[SqliteEffect], task: str) -> str:
        say(self.name, f"{run.workflow}: {task}")
        await asyncio.sleep(0.3)
        return f"by {self.name}"

    async def count_pass(self, run: Run[SqliteEffect]) -> None:
        """For the summary only: how often a body began, killed passes included."""
        say(self.name, f"{run.workflow}: pass begins, {len(run.recorded)} things are recorded")

        def count(cursor: sqlite3.Cursor) -> None:
            cursor.execute("INSERT INTO shop_pass VALUES (?)", (run.workflow,))

        await self.database.run(lambda connection: transacted(connection, count))


def as_order(value: object) -> Order:
    return cast(Order, value)


def as_int(value: object) -> int:
    assert isinstance(value, int)
    return value


# --- the worker process ------------------------------------------------------------------------


def durable_over(database: Database) -> SqliteDurable:
    return SqliteDurable(SqliteCheckpointer(database), SqliteScheduler(database, lease=LEASE))


async def worker(path: str, gateway: int, name: str) -> None:
    """Run passes until the parent closes our standard input."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def watch() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(stopping.set)

    threading.Thread(target=watch, daemon=True).start()
    async with connect(path) as database:
        shop = Shop(database, gateway, name)
        await work(durable_over(database), shop.order, stopping=stopping)


def start_worker(path: Path, gateway: int, name: str) -> subprocess.Popen[bytes]:
    say("main", f"starting {name}")
    return subprocess.Popen(
        [sys.executable, __file__, "--worker", str(path), str(gateway), name],
        stdin=subprocess.PIPE,
    )


# --- the card gateway --------------------------------------------------------------------------


@dataclass
class Gateway:
    """Somebody else's server with a ledger of its own, idempotent by key as real ones are."""

    ledger: dict[str, int] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    busy: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError), closing(writer):
            line = await reader.readline()
            if not line.endswith(b"\n"):  # killed before it had said what it wants
                return
            request = json.loads(line)
            key, cents = request["key"], request["cents"]
            self.asked[key] += 1
            again = key in self.ledger
            self.ledger.setdefault(key, cents)
            say("gateway", f"{key}: {'already charged' if again else f'charged {cents / 100:.2f}'}")
            if len(self.ledger) == len(ORDERS) // 2:
                self.busy.set()  # some cards are charged and their answers still under way
            await asyncio.sleep(0.5)
            writer.write(json.dumps(f"R-{key}").encode() + b"\n")
            await writer.drain()


# --- the play ----------------------------------------------------------------------------------


async def play(path: Path) -> bool:
    gateway = Gateway()
    server = await asyncio.start_server(gateway.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with connect(path) as database:
        await migrate(database)
        await database.run(make_shop)
        durable = durable_over(database)
        for name, order in ORDERS.items():
            await durable.arrive(name, "order", order)
            await durable.deliver(name, f"please wrap {name}")
        first = start_worker(path, port, "worker-1")
        await until(first, gateway.busy.is_set)
        first.kill()
        first.wait()
        say("main", "worker-1 was killed while cards were being charged (no goodbye: SIGKILL)")
        second = start_worker(path, port, "worker-2")
        await asyncio.sleep(4)
        for name in ORDERS:
            say("main", f"{name}: approve")
            await durable.arrive(name, "approved by", "Ada")
            await asyncio.sleep(0.2)
        for name in ORDERS:
            while "finish" not in await durable.checkpointer.load(name):
                await until(second, lambda: True)
        assert second.stdin is not None
        second.stdin.close()
        second.wait()
        say("main", "worker-2 has stopped in good order")
        await show(durable)
        proved = await prove(database, gateway)
    server.close()
    return proved


async def until(worker: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    """Wait a moment, and on until the condition holds; a worker that ended early ends it all."""
    while True:
        await asyncio.sleep(0.01)
        if worker.poll() is not None:
            raise SystemExit(f"the worker ended by itself with status {worker.returncode}")
        if condition():
            return


def make_shop(connection: sqlite3.Connection) -> None:
    """The application's own tables, in the same file."""

    def create(cursor: sqlite3.Cursor) -> None:
        cursor.execute("CREATE TABLE shop_stock (item TEXT PRIMARY KEY, pieces INTEGER NOT NULL)")
        cursor.execute("CREATE TABLE shop_move (workflow TEXT, item TEXT, quantity INTEGER)")
        cursor.execute("CREATE TABLE shop_pass (workflow TEXT)")
        cursor.executemany("INSERT INTO shop_stock VALUES (?, ?)", list(STOCK.items()))

    transacted(connection, create)


async def show(durable: SqliteDurable) -> None:
    """What the file holds of each order."""
    for name in ORDERS:
        print(f"\n{name}")
        for key, written in (await durable.checkpointer.history(name)).items():
            print(f"  {key:<26}  {clock_time(written.at)}  {json.dumps(written.value)}")


async def prove(database: Database, gateway: Gateway) -> bool:
    """The line of proof: whether everything that counts happened exactly once."""

    def read(connection: sqlite3.Connection) -> tuple[Counter[str], dict[str, int], int]:
        moves = Counter(row[0] for row in connection.execute("SELECT workflow FROM shop_move"))
        left = dict(connection.execute("SELECT item, pieces FROM shop_stock"))
        ((passes,),) = connection.execute("SELECT count(*) FROM shop_pass").fetchall()
        return moves, left, passes

    moves, left, passes = await database.run(read)
    once = dict.fromkeys(ORDERS, 1)
    expected = dict(STOCK)
    for order in ORDERS.values():
        expected[order["item"]] -= order["quantity"]
    stock_ok = moves == once and left == expected
    money_ok = gateway.ledger == {name: order["cents"] for name, order in ORDERS.items()}
    print(
        f"\nPROOF {'holds' if stock_ok and money_ok else 'FAILS'}: {len(ORDERS)} orders; "
        f"stock moved {sum(moves.values())} times, left {left}; "
        f"{len(gateway.ledger)} charges for {sum(gateway.asked.values())} askings; "
        f"{passes} passes, one worker killed; {time.monotonic() - STARTED:.1f} s"
    )
    return stock_ok and money_ok


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        asyncio.run(worker(sys.argv[2], int(sys.argv[3]), sys.argv[4]))
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(sys.argv[1]) if sys.argv[1:] else Path(folder, "orders.db")
        if path.exists():
            sys.exit(f"{path} exists already: name a new file")
        say("main", f"the workflows live in {path}")
        try:
            proved = asyncio.run(asyncio.wait_for(play(path), 60))
        except TimeoutError:
            sys.exit("PROOF FAILS: the orders were not finished within a minute")
    sys.exit(0 if proved else 1)


if __name__ == "__main__":
    main()
