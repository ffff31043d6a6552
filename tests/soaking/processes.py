"""The processes under test: a worker that runs the workflows, and a client that feeds them."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO, Any

from soaking.plan import BACKLOG, BUDGET, LEASE, OPEN, RETRY, WITHIN, planned
from without_durability import Fenced, Pass, Run, work
from without_durability_sqlite import (
    Database,
    SqliteCheckpointer,
    SqliteDurable,
    SqliteScheduler,
    connect,
)
from without_durability_sqlite.errors import is_busy


class Log:
    """Appended lines; one that a kill cut short ends where the next begins, and is none."""

    def __init__(self, path: Path, **common: object) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._common = common

    def note(self, what: str, **facts: object) -> None:
        line = {"what": what, "t": time.time(), **self._common, **facts}
        os.write(self._file, b"\n%s\n" % json.dumps(line).encode())


def noted(log: IO[bytes]) -> Iterator[dict[str, Any]]:
    """The lines from here on, but for one that is still being written."""
    while (raw := log.readline()).endswith(b"\n"):
        with suppress(ValueError):
            yield json.loads(raw)
    log.seek(-len(raw), os.SEEK_CUR)


def durable_over(checkpointer: SqliteCheckpointer) -> SqliteDurable:
    return SqliteDurable(checkpointer, SqliteScheduler(checkpointer.database, lease=LEASE))


async def rows(database: Database, query: str, *arguments: object) -> list[Any]:
    return await database.run(lambda connection: connection.execute(query, arguments).fetchall())


class Watched(SqliteCheckpointer):
    """Notes every refusal, with how long its pass had not been heard and had outrun its budget."""

    def __init__(self, database: Database, log: Log) -> None:
        super().__init__(database)
        signs: dict[Pass, tuple[float, float]] = {}  # when last heard, and the budget's end
        vars(self).update(log=log, signs=signs)
        for name in ("renew", "extend", "record", "transact"):
            vars(self)[name] = partial(self.heard, name, getattr(super(), name))

    def _claiming(
        self, budget: timedelta, alive: timedelta
    ) -> Callable[[Any, float, str], Pass | None]:
        """What claims, be it by itself or where a whole pass is started."""
        claiming = super()._claiming(budget, alive)

        def claimed(cursor: Any, now: float, workflow: str) -> Pass | None:
            began = time.monotonic()
            holder = claiming(cursor, now, workflow)
            if holder is not None:
                self.signs[holder] = (began, began + budget.total_seconds())
            return holder

        return claimed

    async def heard(self, name: str, call: Any, holder: Pass, *arguments: Any) -> Any:
        began, failure = time.monotonic(), None
        try:
            answer = await call(holder, *arguments)
        except (Exception, Fenced) as error:
            answer, failure = False, error
        heard, until = self.signs[holder]
        facts = {"workflow": holder.workflow, "token": holder.token, "step": str(arguments[0])}
        if answer is False:
            fenced = failure is None or isinstance(failure, Fenced)
            facts |= {"silent": time.monotonic() - heard, "over": time.monotonic() - until}
            self.log.note("refused", call=name, fenced=fenced, error=repr(failure), **facts)
        else:
            bought = arguments[0].total_seconds() if name == "extend" else 0.0
            self.signs[holder] = (max(heard, began), max(until, began + bought))
        if failure is not None:
            raise failure
        if name == "record" and isinstance(answer.value, dict):
            self.log.note("settled", nonce=answer.value["nonce"], **facts)
        return answer


class Flaky(Exception):
    pass


class Bodies:
    """The workflow: whatever segments its plan has, one after another, and a last record."""

    def __init__(self, database: Database, log: Log, life: str) -> None:
        self.database, self.log, self.life = database, log, life
        self.count, self.tries = itertools.count(), Counter[str]()

    async def body(self, run: Run[Any]) -> int:
        segments = await run.awaiting("plan", list)
        for number, (kind, detail) in enumerate(segments):
            await getattr(self, kind)(run, f"{number} {kind}", detail)
        await run.awaiting("through", bool)  # nothing more will come: it may be swept
        await self.step(run, "tail", 0)
        await self.transact(run, "done", 0)
        return len(segments)

    async def transact(self, run: Run[Any], step: str, amount: int) -> None:
        def effect(cursor: sqlite3.Cursor) -> object:
            query = "SELECT token FROM workflow_claim WHERE workflow = ?"
            ((newest,),) = cursor.execute(query, (run.workflow,)).fetchall()
            row = (run.workflow, step, amount, self.life, run.holder.token, newest)
            cursor.execute("INSERT INTO soak_ledger VALUES (?, ?, ?, ?, ?, ?)", row)
            cursor.execute("UPDATE soak_total SET amount = amount + ?", (amount,))
            told = {"workflow": run.workflow, "life": self.life, "token": run.holder.token}
            return {"amount": amount, **told}

        await run.transact(step, effect, dict)

    async def step(self, run: Run[Any], step: str, detail: float) -> None:
        is_flaky, is_long = "flaky" in step, "long" in step

        async def effect() -> object:
            await asyncio.sleep(0 if is_flaky else detail)
            self.tries[run.workflow] += is_flaky
            if is_flaky and self.tries[run.workflow] <= detail:
                raise Flaky("as told")
            ran = {"nonce": f"{self.life}/{next(self.count)}", "token": run.holder.token}
            self.log.note("ran", workflow=run.workflow, step=step, **ran)
            return ran

        await run.step(step, effect, dict, within=WITHIN if is_long else None)

    long = flaky = step

    async def poison(self, run: Run[Any], step: str, _: float) -> None:
        if "cure" not in run.recorded:
            raise Flaky("as told")

    async def group(self, run: Run[Any], step: str, seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.step(run, f"{step} a", seconds))
            group.create_task(self.step(run, f"{step} b", seconds / 2))

    async def sleep(self, run: Run[Any], step: str, seconds: float) -> None:
        await run.sleep(step, timedelta(seconds=seconds))

    async def answer(self, run: Run[Any], step: str, _: float) -> None:
        await run.awaiting("answer", str)

    async def pause(self, run: Run[Any], step: str, seconds: float) -> None:
        """A write of this pass alone: nothing but the fence stops it in a pass that is over."""
        if "done" not in run.recorded:
            await asyncio.sleep(seconds)
            await self.transact(run, f"{step} in pass {run.holder.token}", 0)

    async def messages(self, run: Run[Any], step: str, _: int) -> None:
        after = None
        for turn in itertools.count():
            take = run.receive if turn else run.pending
            for entry in await take(f"{step} {turn}", after=after, limit=3):
                after, (_, name, amount) = entry.key, entry.value  # type: ignore[misc]
                if name == "close":
                    return
                await self.transact(run, f"message {entry.key}", amount)


async def worker(folder: Path, path: Path, life: str, seed: int) -> None:
    log, stopping = Log(folder / "outside.log", life=life, pid=os.getpid()), asyncio.Event()
    loop, chance = asyncio.get_running_loop(), random.Random(f"{seed} {life}")
    ambush: list[None] = []

    def traced(statement: str) -> None:
        """Stall here and there, so that a blow falls between any two statements."""
        time.sleep(max(0.0, chance.uniform(-0.008, 0.002)))
        if ambush and "EXISTS" not in statement:  # a look at the queue is none that counts
            ambush.pop()
            if not ambush:
                os.kill(os.getpid(), signal.SIGKILL)

    loop.add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    loop.add_signal_handler(signal.SIGUSR1, stopping.set)
    loop.add_signal_handler(signal.SIGUSR2, lambda: ambush.extend([None] * chance.randint(1, 40)))
    with suppress(asyncio.CancelledError):
        async with connect(path) as database:
            database.connection.set_trace_callback(traced)
            body = Bodies(database, log, life).body
            durable = durable_over(Watched(database, log))
            (folder / f"{life}.up").touch()
            await work(durable, body, budget=BUDGET, limit=8, stopping=stopping, retry=RETRY)


class Client:
    """Drives workflows through their plans, and goes on where an earlier life of it was killed."""

    def __init__(self, durable: SqliteDurable, log: Log, seed: int) -> None:
        self.durable, self.log, self.seed = durable, log, seed
        self.acknowledged: defaultdict[str, set[int]] = defaultdict(set)

    async def drive(self, workflow: str) -> None:
        for pause, group in planned(self.seed, workflow).groups:
            missing = group.keys() - self.acknowledged[workflow]
            if missing:
                await asyncio.sleep(pause)
                await asyncio.gather(*(self.call(workflow, n, *group[n]) for n in sorted(missing)))

    async def call(self, workflow: str, n: int, name: str, *arguments: Any) -> None:
        while True:
            self.log.note("intended", workflow=workflow, n=n)
            try:
                answer = await self.answer(workflow, n, name, *arguments)
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
            else:
                self.log.note("acknowledged", workflow=workflow, n=n, answer=answer)
                return

    async def answer(self, workflow: str, n: int, name: str, *arguments: Any) -> object:
        if name == "arrive":
            return await self.durable.arrive(workflow, *arguments)
        if name == "deliver":
            return (await self.durable.deliver(workflow, [n, *arguments])).key
        await self.durable.delete(workflow)
        query = "SELECT * FROM soak_ledger WHERE workflow = ?"  # nothing may come after these
        return len(await rows(self.durable.checkpointer.database, query, workflow))


async def client(folder: Path, path: Path, life: str, seed: int) -> None:
    slot, draining = life.split(".")[0], folder / "draining"
    async with connect(path) as database:
        durable = durable_over(SqliteCheckpointer(database))
        one = Client(durable, Log(folder / f"{slot}.log", life=life), seed)
        with (folder / f"{slot}.log").open("rb") as log:
            for line in noted(log):
                acknowledged = one.acknowledged[line["workflow"]]
                if line["what"] == "acknowledged":
                    acknowledged.add(line["n"])
        begun = max((int(workflow.rsplit("-", 1)[1]) for workflow in one.acknowledged), default=0)
        driving = {asyncio.create_task(one.drive(workflow)) for workflow in [*one.acknowledged]}
        (folder / f"{life}.up").touch()
        while driving or not draining.exists():
            ended = {task for task in driving if task.done()}
            driving -= ended
            for task in ended:
                task.result()
            queued = len(await rows(database, "SELECT * FROM workflow_queue"))
            if len(driving) < OPEN and queued < BACKLOG and not draining.exists():
                begun += 1
                driving.add(asyncio.create_task(one.drive(f"{slot}-{begun}")))
            else:
                await asyncio.sleep(0.05)
