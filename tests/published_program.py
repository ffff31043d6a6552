"""A program of the published design: its own statements, over a file that it shares with us."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from without_durability import Clock, inbox_key


class Published:
    """The program, on a connection of its own; durations are seconds."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock) -> None:
        self.connection, self.clock = connection, clock

    def _ask(self, sql: str, **asked: Any) -> list[tuple[Any, ...]]:
        known = {"now": self.clock.seconds(), "namespace": "workflow"} | asked
        return self.connection.execute(sql, known).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    def load(self, workflow: str) -> dict[str, object]:
        look = "SELECT step, value FROM workflow_checkpoint WHERE workflow = :workflow ORDER BY seq"
        return {step: json.loads(value) for step, value in self._ask(look, workflow=workflow)}

    def claim(self, workflow: str) -> int | None:
        for (token,) in self._ask(
            """
            INSERT INTO workflow_claim (workflow, token, held_until, alive_until, alive_for)
            VALUES (:workflow, 1, :now + 300, :now + 60, 60)
            ON CONFLICT (workflow) DO UPDATE SET token = token + 1,
                held_until = excluded.held_until, alive_until = excluded.alive_until,
                alive_for = excluded.alive_for
            WHERE alive_until <= :now RETURNING token""",
            workflow=workflow,
        ):
            return int(token)
        return None

    def record(self, workflow: str, token: int, step: str, value: object) -> bool:
        """Whether the fence let it through."""
        with self._transaction():
            if not self._ask(
                """
                UPDATE workflow_claim SET alive_until = min(held_until, :now + alive_for)
                WHERE workflow = :workflow AND token = :token RETURNING token""",
                workflow=workflow,
                token=token,
            ):
                return False
            self._insert(workflow, step, value)
            return True

    def _insert(self, workflow: str, step: str, value: object) -> None:
        self._ask(
            """
            INSERT INTO workflow_checkpoint (workflow, step, value)
            VALUES (:workflow, :step, :value) ON CONFLICT (workflow, step) DO NOTHING""",
            workflow=workflow,
            step=step,
            value=json.dumps(value),
        )

    def release(self, workflow: str, token: int) -> None:
        self._ask(
            """
            UPDATE workflow_claim SET held_until = 0, alive_until = 0
            WHERE workflow = :workflow AND token = :token""",
            workflow=workflow,
            token=token,
        )

    def arrive(self, workflow: str, step: str, value: object) -> None:
        with self._transaction():
            self._insert(workflow, step, value)
            self.make_ready(workflow)

    def deliver(self, workflow: str, value: object) -> str:
        with self._transaction():
            highest = "SELECT coalesce(max(seq), 0) + 1 FROM workflow_checkpoint"
            ((position,),) = self._ask(highest)
            self._insert(workflow, inbox_key(position), value)
            self.make_ready(workflow)
            return inbox_key(position)

    def discard(self, workflow: str) -> None:
        with self._transaction():
            self._ask(
                """
                UPDATE workflow_claim SET token = token + 1, held_until = 0, alive_until = 0
                WHERE workflow = :workflow""",
                workflow=workflow,
            )
            self._ask(
                "DELETE FROM workflow_checkpoint WHERE workflow = :workflow", workflow=workflow
            )

    def make_ready(self, workflow: str, ahead: float = 0) -> None:
        self._ask(
            """
            INSERT INTO workflow_queue (namespace, workflow, visible_at)
            VALUES (:namespace, :workflow, :now + :ahead)
            ON CONFLICT (namespace, workflow) DO UPDATE SET visible_at = excluded.visible_at""",
            workflow=workflow,
            ahead=ahead,
        )

    def take(self) -> tuple[str, float] | None:
        for workflow, receipt in self._ask(
            """
            UPDATE workflow_queue SET visible_at = :now + 60 WHERE (namespace, workflow) = (
                SELECT namespace, workflow FROM workflow_queue
                WHERE namespace = :namespace AND visible_at <= :now ORDER BY visible_at LIMIT 1)
            RETURNING workflow, visible_at"""
        ):
            return workflow, receipt
        return None

    def wake_at(self, workflow: str, receipt: float, ahead: float) -> None:
        self._ask(
            """
            UPDATE workflow_queue SET visible_at = :now + :ahead
            WHERE namespace = :namespace AND workflow = :workflow AND visible_at = :receipt""",
            workflow=workflow,
            receipt=receipt,
            ahead=ahead,
        )

    def done(self, workflow: str, receipt: float) -> None:
        self._ask(
            """
            DELETE FROM workflow_queue
            WHERE namespace = :namespace AND workflow = :workflow AND visible_at = :receipt""",
            workflow=workflow,
            receipt=receipt,
        )

    def cancel(self, workflow: str) -> None:
        self._ask(
            "DELETE FROM workflow_queue WHERE namespace = :namespace AND workflow = :workflow",
            workflow=workflow,
        )
