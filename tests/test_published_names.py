"""The published names, signatures, fields and values: what a program written for them relies on."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any, get_args

import pytest

import without_durability as core
import without_durability_sqlite as sqlite
from without_durability import interfaces, ledger, retrying, stepwise, testing, worker
from without_durability_sqlite import store

MODULES = {
    "interfaces": """Checkpointer Scheduler Durable SplitDurable Pass Recorded Written Entry
        Delivery Interruption Contended Fenced claimed check_duration inbox_key LEASE BUDGET INBOX
        INBOX_DIGITS""",
    "durations": "Milliseconds",
    "codec": "CheckpointCodec JsonCodec JSON",
    "stepwise": """Run resume Outcome Completed Sleeping Blocked Suspended InputNeeded MessageNeeded
        ScheduledWakeup Swallowed extending now_utc parse_deadline parse_bound StepKey Extend
        Parse""",
    "worker": "work passes ready waking TICK BLOCKING POOL CONTENDED RENEWALS",
    "memory": "MemoryCheckpointer MemoryScheduler MemoryEffect Stored Claim",
    "ledger": """Ledger Status Page Failure Retry State STATES FINISHED WorkflowFailed
        WorkflowCancelled""",
    "memory_ledger": "MemoryDurable MemoryRun",
    "observing": """Observer Event PassStarted StepRecorded PassEnded PassFailed Parked ClaimLost
        RenewalLate""",
    "testing": " ".join(testing.__all__),
}
PUBLISHED = [(module, name) for module, names in MODULES.items() for name in names.split()]

SQLITE = [
    "SCHEMA",
    "SqliteEffect",
    "Database",
    "connect",
    "migrate",
    "SqliteCheckpointer",
    "SqliteScheduler",
    "SqliteDurable",
]


@pytest.mark.parametrize(("module", "name"), PUBLISHED)
def test_a_core_name_is_its_modules_and_the_packages(module: str, name: str) -> None:
    owner = importlib.import_module(f"without_durability.{module}")
    assert getattr(owner, name) is getattr(core, name)
    assert name in core.__all__ or module == "testing"


def test_the_test_kit_is_there_for_whoever_imports_the_package_alone() -> None:
    code = "import without_durability as core; core.testing.Clock, core.Clock, core.certify"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        core.nonsense  # noqa: B018


@pytest.mark.parametrize("name", SQLITE)
def test_a_sqlite_name_is_the_stores_and_the_packages(name: str) -> None:
    assert getattr(store, name) is getattr(sqlite, name)
    assert name in sqlite.__all__


CONSTANTS = [
    (interfaces.LEASE, timedelta(minutes=1)),
    (interfaces.BUDGET, timedelta(minutes=5)),
    (interfaces.INBOX, "inbox:"),
    (interfaces.INBOX_DIGITS, 20),
    (worker.TICK, timedelta(milliseconds=50)),
    (worker.BLOCKING, timedelta(seconds=1)),
    (worker.POOL, 20),
    (worker.CONTENDED, timedelta(seconds=1)),
    (worker.RENEWALS, 3),
    (store.POLL, timedelta(milliseconds=50)),
    (store.BUSY_TIMEOUT, core.Milliseconds(5000)),
    (core.StepKey, str),
    (core.JSON, core.JsonCodec()),
    (get_args(core.Outcome)[1:], (core.Sleeping, core.Blocked)),
    (core.STATES, ("ready", "sleeping", "blocked", "completed", "failed", "cancelled")),
    (core.FINISHED, ("completed", "failed", "cancelled")),
    (ledger.COMPLETED, ("completed",)),
    (ledger.PAGE, 100),
    (ledger.SWEPT, 1000),
    (retrying.FIRST, timedelta(seconds=1)),
    (retrying.CAP, timedelta(minutes=5)),
]


@pytest.mark.parametrize(("constant", "value"), CONSTANTS)
def test_a_constant_has_its_published_value(constant: object, value: object) -> None:
    assert constant == value


# As in a `def`: names, order, kinds and defaults, each default under the name it is known by.
DEFAULTS = {
    "LEASE": interfaces.LEASE,
    "BUDGET": interfaces.BUDGET,
    "JSON": core.JSON,
    "now_utc": stepwise.now_utc,
    "TICK": worker.TICK,
    "BLOCKING": worker.BLOCKING,
    "POOL": worker.POOL,
    "CONTENDED": worker.CONTENDED,
    "POLL": store.POLL,
    "BUSY_TIMEOUT": store.BUSY_TIMEOUT,
    "time": time.time,
    "monotonic": time.monotonic,
    "None": None,
    "workflow": "workflow",
    "FIRST": retrying.FIRST,
    "CAP": retrying.CAP,
    "COMPLETED": ledger.COMPLETED,
    "PAGE": ledger.PAGE,
    "SWEPT": ledger.SWEPT,
}

SIGNATURES: dict[Any, str] = {
    core.claimed: "checkpointer, workflow, budget=BUDGET, alive=LEASE",
    core.check_duration: "name, duration",
    core.inbox_key: "position",
    core.resume: "holder, checkpointer, body, *, extend=None, now=now_utc",
    core.extending: "checkpointer, granted=None, alive=None, now=now_utc",
    core.now_utc: "",
    core.parse_deadline: "key, recorded",
    core.parse_bound: "key, recorded",
    core.passing: "holder, checkpointer, recorded=None",
    core.work: "durable, body, *, tick=TICK, within=BLOCKING, budget=BUDGET, contended=CONTENDED, "
    "limit=POOL, now=now_utc, stopping=None, retry=None, observe=None",
    core.passes: "durable, body, limit=POOL, *, lease=LEASE, budget=BUDGET, contended=CONTENDED, "
    "now=now_utc",
    core.ready: "scheduler, within=BLOCKING, idle=LEASE",
    core.waking: "scheduler",
    core.Run: "holder, checkpointer, recorded, extend, now=now_utc, claimed=..., reached=...",
    core.Run.step: "self, key, effect, parse, *, within=None",
    core.Run.transact: "self, key, effect, parse, *, within=None",
    core.Run.sleep: "self, key, duration",
    core.Run.awaiting: "self, key, parse",
    core.Run.receive: "self, key, *, after=None, limit=None",
    core.Run.pending: "self, key, *, after=None, limit=None",
    core.Run.claim: "self, key",
    core.Run.note: "self, suspension",
    core.Pass: "workflow, token",
    core.Recorded: "value, first",
    core.Written: "value, at",
    core.Entry: "key, value",
    core.Delivery: "workflow, receipt",
    core.Milliseconds: "count",
    core.Milliseconds.of: "duration",
    core.Completed: "value",
    core.Sleeping: "key, due",
    core.Blocked: "waiting, listening",
    core.Suspended: "key, waiting",
    core.InputNeeded: "key",
    core.MessageNeeded: "key",
    core.ScheduledWakeup: "key, due",
    core.SplitDurable: "checkpointer, scheduler",
    core.MemoryCheckpointer: "hashes=..., claims=..., codec=JSON, now=now_utc, data=..., *, "
    "clock=monotonic",
    core.MemoryScheduler: "queue=..., sleeping=..., outstanding=..., arrived=..., receipts=..., "
    "lease=LEASE, *, clock=monotonic",
    core.Stored: "encoded, at, supplied=False",
    core.Claim: "token, held_until, alive_until, alive",
    sqlite.Database: "connection, guard=..., *, clock=time",
    sqlite.Database.run: "self, work",
    sqlite.Database.aclose: "self",
    sqlite.connect: "path, *, timeout=BUSY_TIMEOUT, clock=time",
    sqlite.migrate: "database",
    sqlite.SqliteCheckpointer: "database, codec=JSON",
    sqlite.SqliteScheduler: "database, namespace=workflow, lease=LEASE, poll=POLL, now=now_utc",
    sqlite.SqliteDurable: "checkpointer, scheduler",
    store.transacted: "connection, work",
    core.MemoryDurable: "checkpointer, scheduler, runs=...",
    core.Status: "seq, workflow, namespace, state, detail, attempts, created_at, updated_at, "
    "running=False, due=None",
    core.Page: "items, next",
    core.Failure: "type, message, traceback=''",
    # Its 20 is no pool's, and the same number.
    core.Retry: "attempts=POOL, first=FIRST, factor=2.0, cap=CAP, jitter=0.2",
    core.WorkflowFailed: "workflow, failure",
    core.WorkflowCancelled: "workflow, reason=''",
    core.PassStarted: "workflow, token, attempt",
    core.StepRecorded: "workflow, token, key, took",
    core.PassEnded: "workflow, token, outcome, took",
    core.PassFailed: "workflow, token, attempt, error, pause, took",
    core.Parked: "workflow, attempts, error",
    core.ClaimLost: "workflow, token, took",
    core.RenewalLate: "workflow, token, late",
}


def spelled(call: Any) -> str:
    """A signature in the notation above."""
    parts: list[str] = []
    for parameter in inspect.signature(call).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        assert parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        default = parameter.default
        if default is parameter.empty:
            parts.append(parameter.name)
        else:
            parts.append(f"{parameter.name}={known_as(default)}")
    return ", ".join(parts)


def known_as(default: object) -> str:
    if repr(default) == "<factory>":  # made anew for each instance
        return "..."
    return next((name for name, value in DEFAULTS.items() if value is default), repr(default))


@pytest.mark.parametrize("call", SIGNATURES, ids=lambda call: call.__qualname__)
def test_a_call_has_its_published_signature(call: Any) -> None:
    assert spelled(call) == SIGNATURES[call]


METHODS: dict[str, dict[str, str]] = {
    "Checkpointer": {
        "load": "workflow",
        "history": "workflow",
        "claim": "workflow, budget, alive",
        "extend": "holder, budget, alive",
        "renew": "holder, alive",
        "record": "holder, key, value",
        "transact": "holder, key, effect",
        "supply": "workflow, key, value",
        "append": "workflow, value",
        "discard": "workflow",
        "release": "holder",
    },
    "Scheduler": {
        "prepare": "",
        "make_ready": "workflow",
        "wake_at": "delivery, when",
        "wake_due": "now",
        "next_ready": "within",
        "reclaim": "idle",
        "extend": "delivery, within",
        "cancel": "workflow",
        "done": "delivery",
    },
    "Durable": {
        "arrive": "workflow, key, value",
        "deliver": "workflow, value",
        "delete": "workflow",
    },
    "Ledger": {
        "start_pass": "delivery, budget, attempts=None",
        "end_pass": "holder, delivery, ended",
        "status": "workflow",
        "list": "*, state=None, namespace=None, prefix=None, after=None, limit=PAGE",
        "counts": "namespace=None",
        "why": "workflow",
        "result": "workflow, *, within",
        "retry": "workflow",
        "cancel": "workflow, reason=''",
        "rewind": "workflow, to",
        "fork": "workflow, into, *, before=None",
        "sweep": "*, older, states=COMPLETED, limit=SWEPT",
    },
    "PassesDurable": {"start_passes": "limit, within, budget, attempts=None"},
}
IMPLEMENTED_BY: dict[str, list[Any]] = {
    "Checkpointer": [core.Checkpointer, core.MemoryCheckpointer, sqlite.SqliteCheckpointer],
    "Scheduler": [core.Scheduler, core.MemoryScheduler, sqlite.SqliteScheduler],
    "Durable": [core.Durable, core.SplitDurable, core.MemoryDurable, sqlite.SqliteDurable],
    "Ledger": [core.Ledger, core.MemoryDurable, sqlite.SqliteDurable],
    "PassesDurable": [core.PassesDurable, sqlite.SqliteDurable],
}


@pytest.mark.parametrize(
    ("protocol", "kind"),
    [(protocol, kind) for protocol, kinds in IMPLEMENTED_BY.items() for kind in kinds],
)
def test_every_store_has_the_methods_of_its_protocol(protocol: str, kind: Any) -> None:
    for name, parameters in METHODS[protocol].items():
        method = getattr(kind, name)
        assert inspect.iscoroutinefunction(method), f"{kind.__name__}.{name} is not async"
        assert spelled(method).removeprefix("self").removeprefix(", ") == parameters


@pytest.mark.parametrize("kind", [core.MemoryScheduler, sqlite.SqliteScheduler])
def test_a_scheduler_has_what_is_optional_and_schedule(kind: Any) -> None:
    assert spelled(kind.schedule) == "self, workflow, visible_at"
    assert spelled(kind.holds) == "self, delivery"


def test_what_is_a_property_and_what_a_generator() -> None:
    assert isinstance(core.Scheduler.lease, property)
    assert isinstance(core.Durable.checkpointer, property)
    assert isinstance(core.Durable.scheduler, property)
    assert isinstance(core.Run.workflow, property)
    assert isinstance(core.Milliseconds.duration, property)
    assert isinstance(core.Blocked.keys, property)
    assert inspect.isasyncgenfunction(core.ready)
    assert inspect.iscoroutinefunction(core.resume)
    assert inspect.iscoroutinefunction(core.waking(core.MemoryScheduler()))


FROZEN = [
    core.Pass,
    core.Recorded,
    core.Written,
    core.Entry,
    core.Delivery,
    core.Milliseconds,
    core.Completed,
    core.Sleeping,
    core.Blocked,
    core.Run,
    core.SplitDurable,
    core.JsonCodec,
    core.MemoryCheckpointer,
    core.MemoryScheduler,
    core.Stored,
    core.Claim,
    core.MemoryDurable,
    core.MemoryRun,
    core.Status,
    core.Page,
    core.Failure,
    core.Retry,
    core.PassStarted,
    core.StepRecorded,
    core.PassEnded,
    core.PassFailed,
    core.Parked,
    core.ClaimLost,
    core.RenewalLate,
    sqlite.Database,
    sqlite.SqliteCheckpointer,
    sqlite.SqliteScheduler,
    sqlite.SqliteDurable,
]


@pytest.mark.parametrize("kind", FROZEN)
def test_a_value_is_a_frozen_slotted_dataclass(kind: Any) -> None:
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    assert "__slots__" in vars(kind)
    assert "__dict__" not in dir(kind)


def fields(kind: Any, flag: str) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if getattr(field, flag)]


def test_what_is_left_out_of_repr_and_eq() -> None:
    assert fields(sqlite.Database, "repr") == ["connection"]
    assert fields(sqlite.Database, "compare") == ["connection"]
    published = ["database", "namespace", "lease", "poll", "now"]
    assert fields(sqlite.SqliteScheduler, "repr") == published
    assert fields(sqlite.SqliteScheduler, "compare") == published
    assert fields(sqlite.SqliteScheduler, "init") == published


async def test_derived_seconds_follow_from_the_durations(database: sqlite.Database) -> None:
    scheduler = sqlite.SqliteScheduler(database, lease=timedelta(seconds=3))
    assert (scheduler.lease_seconds, scheduler.poll_seconds) == (3.0, 0.05)
