"""Durable workflows for async Python: the contract, the step runner, the worker.

Knows nothing of any store but the in-memory ones; `without_durability_sqlite` keeps workflows
in one SQLite file.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .codec import JSON, CheckpointCodec, JsonCodec
    from .durations import Milliseconds
    from .interfaces import (
        BUDGET,
        INBOX,
        INBOX_DIGITS,
        LEASE,
        Checkpointer,
        Contended,
        Delivery,
        Durable,
        Ended,
        Entry,
        Fenced,
        Interruption,
        Pass,
        PassDurable,
        PassesDurable,
        Recorded,
        Scheduler,
        SplitDurable,
        Started,
        Written,
        check_duration,
        claimed,
        inbox_key,
    )
    from .ledger import (
        FINISHED,
        STATES,
        Failure,
        Ledger,
        Page,
        Retry,
        State,
        Status,
        WorkflowCancelled,
        WorkflowFailed,
    )
    from .memory import Claim, MemoryCheckpointer, MemoryEffect, MemoryScheduler, Stored
    from .memory_ledger import MemoryDurable, MemoryRun
    from .observing import (
        ClaimLost,
        Event,
        Observer,
        Parked,
        PassEnded,
        PassFailed,
        PassStarted,
        RenewalLate,
        StepRecorded,
    )
    from .stepwise import (
        Blocked,
        Completed,
        Extend,
        InputNeeded,
        MessageNeeded,
        Outcome,
        Parse,
        Run,
        ScheduledWakeup,
        Sleeping,
        StepKey,
        Suspended,
        Swallowed,
        extending,
        now_utc,
        parse_bound,
        parse_deadline,
        resume,
    )
    from .testing import (
        Certificate,
        Clock,
        Crashed,
        CrashReport,
        Marks,
        StepReport,
        Subject,
        Unfinished,
        Verdict,
        certify,
        crash_everywhere,
        passing,
    )
    from .worker import (
        BLOCKING,
        CONTENDED,
        POOL,
        RENEWALS,
        TICK,
        passes,
        ready,
        waking,
        work,
    )

__all__ = [
    "BLOCKING",
    "BUDGET",
    "CONTENDED",
    "FINISHED",
    "INBOX",
    "INBOX_DIGITS",
    "JSON",
    "LEASE",
    "POOL",
    "RENEWALS",
    "STATES",
    "TICK",
    "Blocked",
    "Certificate",
    "CheckpointCodec",
    "Checkpointer",
    "Claim",
    "ClaimLost",
    "Clock",
    "Completed",
    "Contended",
    "CrashReport",
    "Crashed",
    "Delivery",
    "Durable",
    "Ended",
    "Entry",
    "Event",
    "Extend",
    "Failure",
    "Fenced",
    "InputNeeded",
    "Interruption",
    "JsonCodec",
    "Ledger",
    "Marks",
    "MemoryCheckpointer",
    "MemoryDurable",
    "MemoryEffect",
    "MemoryRun",
    "MemoryScheduler",
    "MessageNeeded",
    "Milliseconds",
    "Observer",
    "Outcome",
    "Page",
    "Parked",
    "Parse",
    "Pass",
    "PassDurable",
    "PassEnded",
    "PassFailed",
    "PassStarted",
    "PassesDurable",
    "Recorded",
    "RenewalLate",
    "Retry",
    "Run",
    "ScheduledWakeup",
    "Scheduler",
    "Sleeping",
    "SplitDurable",
    "Started",
    "State",
    "Status",
    "StepKey",
    "StepRecorded",
    "StepReport",
    "Stored",
    "Subject",
    "Suspended",
    "Swallowed",
    "Unfinished",
    "Verdict",
    "WorkflowCancelled",
    "WorkflowFailed",
    "Written",
    "certify",
    "check_duration",
    "claimed",
    "crash_everywhere",
    "extending",
    "inbox_key",
    "now_utc",
    "parse_bound",
    "parse_deadline",
    "passes",
    "passing",
    "ready",
    "resume",
    "waking",
    "work",
]


_MODULES = (
    *("durations", "codec", "interfaces", "stepwise", "worker", "memory"),
    *("ledger", "observing", "memory_ledger", "testing"),
)


def __getattr__(name: str) -> Any:
    """A public name, or a module that has some, imported when somebody asks for it.

    A program that runs no worker, or no test, then pays for none.
    """
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    for module in _MODULES if not name.startswith("_") else ():
        found = import_module(f".{module}", __name__)
        if name in (found.__all__ if module == "testing" else __all__) and hasattr(found, name):
            return globals().setdefault(name, getattr(found, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
