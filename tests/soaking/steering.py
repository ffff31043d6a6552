"""What somebody who operates the file does meanwhile: looks, retries, cancels, rewinds, sweeps."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from soaking.books import Books
from soaking.plan import SUPPLIED, planned
from soaking.processes import rows
from without_durability import INBOX, JSON, State, Status
from without_durability_sqlite import SqliteDurable
from without_durability_sqlite.checking import oddities
from without_durability_sqlite.errors import is_busy
from without_durability_sqlite.looking import looked
from without_durability_sqlite.lookups import counted, listed

OLDER = 4.0  # seconds after which what has completed is swept; by half of that it is noted
TURN = 0.1  # seconds between two rounds
LOOKING = 0.3  # and between two looks


class Steward:
    """Steers each workflow as planned, notes what has completed, and tidies up."""

    def __init__(self, books: Books, durable: SqliteDurable, path: Path, draining: Path) -> None:
        self.books, self.durable, self.path, self.draining = books, durable, path, draining
        self.did: Counter[str] = Counter()
        self.begun: set[str] = set()
        self.steering: set[str] = set()
        self.held: set[str] = set()  # cancelled, and not to be retried with what has failed
        self.exclusive = asyncio.Lock()
        self.noted: dict[str, datetime] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.look())
            while True:
                self.books.listen()
                for workflow in sorted(self.books.plans.keys() - self.begun):
                    self.begun.add(workflow)
                    self.steering.add(workflow)
                    group.create_task(self.steer(workflow))
                await self.retry_what_failed()
                await self.see_what_is_cancelled()
                began = time.time()
                await self.note_what_completed()
                if time.time() - began < OLDER / 2 and not self.draining.exists():
                    await self.sweep()
                await asyncio.sleep(TURN)

    async def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """A call that is asked again while the file is locked for long."""
        while True:
            try:
                return await getattr(self.durable, name)(*arguments, **options)
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise

    async def listed(self, state: State) -> AsyncIterator[Status]:
        after = None
        while True:
            page = await self.call("list", state=state, after=after, limit=50)
            for status in page.items:
                if status.workflow in self.books.plans:
                    yield status
            if (after := page.next) is None:
                return

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(TURN / 2)

    # --- one workflow -----------------------------------------------------------------------

    async def steer(self, workflow: str) -> None:
        plan, books = self.books.plans[workflow], self.books
        choose = random.Random(f"{books.seed} how {workflow} is steered")
        for act, pause in plan.steering:
            await asyncio.sleep(pause)
            await getattr(self, act)(workflow, choose)
        if plan.ending == "completed" and plan.deletion is None:
            await self.until(lambda: books.through(workflow))
            if "+" not in workflow:  # a fork has it from its origin
                await self.call("arrive", workflow, "through", True)
            for act in plan.afterwards:
                await self.until(lambda: workflow in books.finals)
                await getattr(self, act)(workflow, choose)
        self.steering.discard(workflow)

    async def cancel(self, workflow: str, choose: random.Random) -> None:
        """Stop it, see that nothing is written from there on, and start it again."""
        if not await self.stopped(workflow):
            return
        written = await self.entries(workflow)
        await asyncio.sleep(choose.uniform(0.1, 1.5))
        status = await self.call("status", workflow)
        if await self.entries(workflow) != written:
            self.books.wrong.append(f"{workflow} was cancelled, and wrote all the same")
        if status is not None and status.state != "cancelled":
            self.books.wrong.append(f"{workflow} was cancelled, and is {status}")
        self.held.discard(workflow)
        answers = await asyncio.gather(*(self.call("retry", workflow) for _ in range(2)))
        was_deleted = self.books.plans[workflow].deletion is not None
        if sum(answers) != 1 and not (was_deleted and not any(answers)):
            self.books.wrong.append(f"{workflow} was cancelled, and two retries said {answers}")
        self.did["retried"] += sum(answers)

    async def stop(self, workflow: str, choose: random.Random) -> None:
        """Cancel it for good."""
        while not await self.stopped(workflow):
            await asyncio.sleep(TURN)

    async def stopped(self, workflow: str) -> bool:
        async with self.exclusive:
            self.held.add(workflow)
            self.books.steered_at.setdefault(workflow, time.time())
            token = await self.newest(workflow)
            if await self.call("cancel", workflow, "as told"):
                await self.fenced(workflow, token)
                self.did["cancelled"] += 1
                return True
            self.held.discard(workflow)
            return False

    async def rewind(self, workflow: str, choose: random.Random) -> None:
        history = await self.durable.checkpointer.history(workflow)
        own = [key for key in history if key not in SUPPLIED and not key.startswith(INBOX)]
        if not own:
            return
        self.books.steered_at.setdefault(workflow, time.time())
        token = await self.newest(workflow)
        if await self.call("rewind", workflow, choose.choice(own)):
            await self.fenced(workflow, token)
            self.did["rewound"] += 1
            self.books.rewound[workflow] += 1
            self.books.finals.pop(workflow, None)
            self.noted.pop(workflow, None)

    async def fork(self, workflow: str, choose: random.Random) -> None:
        into = f"{workflow}+"
        if await self.call("fork", workflow, into, before=choose.choice([None, "tail", "done"])):
            self.did["forked"] += 1
            self.books.plans[into] = planned(self.books.seed, into)

    async def delete(self, workflow: str, choose: random.Random) -> None:
        self.books.deleted_at[workflow] = time.time()
        await self.call("delete", workflow)

    async def entries(self, workflow: str) -> int:
        query = "SELECT count(*) FROM soak_ledger WHERE workflow = ?"
        ((count,),) = await rows(self.durable.checkpointer.database, query, workflow)
        return int(count)

    async def newest(self, workflow: str) -> int:
        query = "SELECT coalesce(max(token), 0) FROM workflow_claim WHERE workflow = ?"
        ((token,),) = await rows(self.durable.checkpointer.database, query, workflow)
        return int(token)

    async def fenced(self, workflow: str, token: int) -> None:
        """From here on the pass with the token writes nothing."""
        query = "SELECT coalesce(max(rowid), 0) FROM soak_ledger"
        ((last,),) = await rows(self.durable.checkpointer.database, query)
        self.books.fences[workflow].append((last, token))

    # --- all of them ------------------------------------------------------------------------

    async def retry_what_failed(self) -> None:
        """Each parked one that is not to stay so; one of several at once is told it did."""
        rested = set()
        async for status in self.listed("failed"):
            workflow, plan = status.workflow, self.books.plans[status.workflow]
            if status.error is None or not status.attempts:
                self.books.wrong.append(f"parked without an error: {status}")
            if plan.ending == "failed":
                rested.add(workflow)
                continue
            if plan.is_poisoned:
                await self.durable.checkpointer.supply(workflow, "cure", True)
            async with self.exclusive:
                if workflow not in self.held:
                    both = [self.call("retry", workflow) for _ in range(2)]
                    answers = await asyncio.gather(*both)
                    self.did["retried"] += sum(answers)
                    if sum(answers) > 1:
                        self.books.wrong.append(f"two retries of {workflow} won")
        self.books.rested["failed"] = rested

    async def see_what_is_cancelled(self) -> None:
        self.books.rested["cancelled"] = {
            status.workflow
            async for status in self.listed("cancelled")
            if self.books.plans[status.workflow].ending == "cancelled"
        }

    async def note_what_completed(self) -> None:
        """Keep the records of what has completed, before it is swept."""
        async for status in self.listed("completed"):
            workflow = status.workflow
            if self.noted.get(workflow) == status.updated_at:
                continue
            history = await self.durable.checkpointer.history(workflow)
            if await self.call("status", workflow) != status:  # rewound meanwhile
                continue
            plan = self.books.plans[workflow]
            if status.result != len(plan.segments) or status.attempts:
                self.books.wrong.append(f"{workflow} completed, and the ledger says {status}")
            if plan.ending != "completed" or plan.deletion is not None:
                self.books.wrong.append(f"{workflow} was not to complete: {status}")
            self.books.finals[workflow] = history
            self.noted[workflow] = status.updated_at

    async def sweep(self) -> None:
        with suppress(sqlite3.OperationalError):  # locked for long: the next round
            older = timedelta(seconds=OLDER)
            self.did["swept"] += await self.durable.sweep(older=older, limit=20)

    async def look(self) -> None:
        """Ask as somebody beside does, who can only read, and as somebody within."""
        while True:
            self.books.wrong += await asyncio.to_thread(looked, self.path, disagreements)
            for status in (await self.call("list", limit=5)).items:
                if not await self.call("why", status.workflow):
                    self.books.wrong.append(f"nobody knows why: {status}")
            if min((await self.call("counts")).values()) < 0:
                self.books.wrong.append("fewer than none are counted")
            self.did["looks"] += 1
            await asyncio.sleep(LOOKING)


def disagreements(connection: sqlite3.Connection) -> list[str]:
    """Whatever should not be at one moment, be it in the middle of everything."""
    now = time.time()
    wrong = [f"at {now:.2f}: {odd}" for odd in oddities(connection, now)]
    found: list[Status] = []
    after = None
    while True:
        page = listed(connection, JSON, now, None, None, None, after, 50)
        found += page.items
        if (after := page.next) is None:
            break
    numbers = [status.seq for status in found]
    if numbers != sorted({*numbers}, reverse=True):
        wrong.append(f"at {now:.2f}: the pages are not in order: {numbers}")
    counts = Counter(status.state for status in found)
    kept = {state: count for state, count in counted(connection, None).items() if count}
    if counts != kept:
        wrong.append(f"at {now:.2f}: {kept} are counted, and listed are {counts}")
    return wrong
