"""Workflows for the calls of a ledger to find: ended in either way, and out without a claim."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from without_durability import LEASE, Clock, Delivery, Ended
from without_durability_sqlite.receipts import Receipt

ENDS = {
    "completed": Ended(None, "completed", {"result": "done"}, 0),
    "failed": Ended(None, "failed", {"error": {"type": "KeyError", "message": "k"}}),
}
"""How the workflows ended that are called so."""

TAKEN = Delivery("taken", str(Receipt((Clock().now() + LEASE).timestamp(), "known")))
"""A delivery that is out, of a workflow that nobody has claimed; taken when the clock starts."""

KNOWN = "UPDATE workflow_queue SET taken = 'known' WHERE workflow = 'taken'"


async def steer(durable: Any) -> None:
    """Have a durable over a file, whose clock has just been started, hold them."""
    at_once = timedelta(0)
    for workflow, end in ENDS.items():
        await durable.arrive(workflow, "a", 1)
        (started,) = await durable.start_passes(1, at_once, LEASE)
        await durable.end_pass(started.holder, started.delivery, end)
    await durable.scheduler.make_ready(TAKEN.workflow)
    assert await durable.scheduler.next_ready(at_once) is not None
    await durable.checkpointer.database.run(lambda connection: connection.execute(KNOWN).close())
    assert await durable.scheduler.holds(TAKEN)
