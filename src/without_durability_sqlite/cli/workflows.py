"""A workflow's status in a cell, in a sentence and as facts."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from without_durability.codec import JSON
from without_durability.explaining import Waiting, explained, in_words
from without_durability.ledger import Status
from without_durability.values import shown
from without_durability_sqlite import lookups
from without_durability_sqlite.rows import rows

from .contents import one_line
from .moments import iso, many
from .refusals import Refused
from .screen import Screen, as_json
from .text import escaped, named

QUEUE = "workflow"
"""The queue of a workflow that is queued nowhere, unless one is named."""

RECORDS = "SELECT count(*) FROM workflow_checkpoint WHERE workflow = :workflow"


class Known(NamedTuple):
    """What a file knows of a workflow, all of it at one moment.

    `row` is the ledger's; `waiting` is what is queued for a workflow that has none, and `due` when
    that is looked at, if it lies ahead.
    """

    workflow: str
    row: lookups.Found | None
    waiting: Waiting | None
    due: datetime | None
    records: int

    @property
    def status(self) -> Status | None:
        """Where the ledger says that it stands."""
        return None if self.row is None else self.row.status

    @property
    def anything(self) -> bool:
        """Whether it has a row, a record or a wakeup."""
        return bool(self.row or self.waiting or self.records)

    @property
    def queue(self) -> str:
        """Where it was made ready last."""
        at = self.status or self.waiting
        return QUEUE if at is None else at.namespace

    @property
    def state(self) -> str:
        """Where it stands, in a word or a few."""
        if self.status is not None:
            return shown_state(self.status)
        if self.waiting is None:
            return "known by its records alone"
        return "queued" if self.due is None else "scheduled"


def known(connection: sqlite3.Connection, workflow: str, now: datetime) -> Known:
    """What is known of a workflow."""
    row = found(connection, workflow, now)
    waiting = None if row is not None else lookups.waiting(connection, workflow, now.timestamp())
    due = None if waiting is None or waiting.taken else waiting.visible_at
    ((records,),) = rows(connection, RECORDS, {"workflow": workflow})
    return Known(workflow, row, waiting, due if due is not None and due > now else None, records)


def unknown(workflow: str) -> Refused:
    """The refusal for an id that nothing is known of."""
    return Refused(f"nothing is known of workflow {escaped(shown(workflow))}")


def found(connection: sqlite3.Connection, workflow: str, now: datetime) -> lookups.Found | None:
    """The workflow's row; `None` where the ledger has none."""
    return lookups.found(connection, JSON, workflow, now.timestamp())


def shown_state(status: Status) -> str:
    """The state, with the ready ones that are running told apart."""
    return "running" if status.running else escaped(str(status.state))


def sentence(screen: Screen, at: Known, now: datetime) -> str:
    """Why it stands where it stands (L15)."""
    if at.row is None and at.waiting is None and at.records:
        has = many(at.records, "record")
        return escaped(f"{shown(at.workflow)} has {has}, and never arrived or started here.")
    standing = at.waiting if at.row is None else at.row.standing
    said = escaped(explained(at.workflow, at.status, standing, now, screen.moment))
    lost = at.status is not None and unreadable(at.status)
    return f"{said} What goes with its state cannot be read." if lost else said


def lost(status: Status) -> str:
    """What of a state's detail could not be kept, or cannot be read; empty where all is there."""
    if status.unstored is not None:
        return f"a result of type {escaped(status.unstored)}, which could not be stored"
    reason = unreadable(status)
    if reason is None:
        return ""
    what = "a result that" if status.state == "completed" else "what goes with its state"
    return f"{what} cannot be read ({escaped(reason)})"


def unreadable(status: Status) -> str | None:
    """Why what is stored with the state is no value of the codec's."""
    told = status.detail.get("unreadable") if isinstance(status.detail, Mapping) else None
    return told if isinstance(told, str) else None


def about(screen: Screen, status: Status, now: datetime) -> str:
    """What it waits for, or what became of it, in few words."""
    if said := lost(status):
        return said
    if status.state == "completed":
        return "" if status.result is None else one_line(status.result)
    if status.state == "cancelled":
        return escaped(status.reason)
    if status.state == "blocked":
        waits = [f"{named(key)} (arrive)" for key in sorted(status.waiting)]
        waits += [f"{named(key)} (deliver)" for key in sorted(status.listening)]
        return ", ".join(waits)
    error = escaped(" ".join(str(status.error).split())) if status.error else ""
    due = f"in {in_words(status.due - now)}" if status.due and status.due > now else ""
    if status.state == "sleeping":
        return f"due {due}" if due else "due now"
    if status.state == "ready" and due:
        return f"again {due}: {error}" if error else f"due {due}"
    return error


def facts(status: Status) -> dict[str, Any]:
    """The status for `--json`; what does not go with its state is left out."""
    told: dict[str, Any] = {
        "workflow": status.workflow,
        "namespace": status.namespace,
        "state": status.state,
        "running": status.running,
        "attempts": status.attempts,
        "seq": status.seq,
        "created_at": iso(status.created_at),
        "updated_at": iso(status.updated_at),
        "due": iso(status.due),
    }
    if status.state == "blocked":
        told |= {"waiting": sorted(status.waiting), "listening": sorted(status.listening)}
    if status.unstored is not None:
        told["unstored"] = status.unstored
    elif (reason := unreadable(status)) is not None:
        told["unreadable"] = reason
    elif status.state == "completed":
        told["result"] = _plain(status.result)
    if status.state == "cancelled":
        told["reason"] = status.reason
    if status.error is not None:
        error = status.error
        told["error"] = {
            "type": error.type,
            "message": error.message,
            "traceback": error.traceback,
        }
    return told


def _plain(value: Any) -> Any:
    """A value that JSON can hold; Python reads more than that, such as `NaN`."""
    try:
        as_json(value)
    except (ValueError, RecursionError):
        return repr(value)
    return value
