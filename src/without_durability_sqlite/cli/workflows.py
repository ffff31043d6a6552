"""A workflow's status in a cell, in a sentence and as facts."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from without_durability.codec import JSON
from without_durability.explaining import Standing, explained, in_words
from without_durability.ledger import Status
from without_durability_sqlite import lookups

from .contents import one_line
from .moments import iso
from .screen import Screen, as_json
from .text import escaped, named


def found(connection: sqlite3.Connection, workflow: str, now: datetime) -> lookups.Found | None:
    """The workflow's row; `None` where the ledger has none."""
    return lookups.found(connection, JSON, workflow, now.timestamp())


def shown_state(status: Status) -> str:
    """The state, with the ready ones that are running told apart."""
    return "running" if status.running else escaped(str(status.state))


def sentence(screen: Screen, workflow: str, told: lookups.Found | None, now: datetime) -> str:
    """Why it stands where it stands (L15)."""
    if told is None:
        return escaped(explained(workflow, None, Standing(), now))
    said = escaped(explained(workflow, told.status, told.standing, now, screen.moment))
    return f"{said} What goes with its state cannot be read." if unreadable(told.status) else said


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
