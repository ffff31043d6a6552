"""For tests: a movable clock, the contract for stores, and crashes for workflows.

- `Clock` and `passing`: to test a workflow's own methods.
- `certify(make, reopen)`: puts a store to every clause (docs/stores.md). The checks are importable
  one by one as `check_c1_…`, and all of them are in `CHECKS`; each takes a `Subject`.
- `crash_everywhere(body, make)`: runs a workflow once for every place where its process could die
  (docs/testing.md).
"""

from . import (
    claims_contract,
    deliveries_contract,
    durable_contract,
    ledger_contract,
    ledger_reading_contract,
    ledger_starts_contract,
    ledger_steering_contract,
    records_contract,
    refusals_contract,
    scheduler_contract,
)
from .basics import Clock, passing
from .certifying import CHECKS, Certificate, Check, Verdict, certify
from .claims_contract import *  # noqa: F403
from .crash_report import Crashed, CrashReport, StepReport
from .crashing import Unfinished, crash_everywhere
from .deliveries_contract import *  # noqa: F403
from .durable_contract import *  # noqa: F403
from .ledger_contract import *  # noqa: F403
from .ledger_reading_contract import *  # noqa: F403
from .ledger_starts_contract import *  # noqa: F403
from .ledger_steering_contract import *  # noqa: F403
from .records_contract import *  # noqa: F403
from .refusals_contract import *  # noqa: F403
from .scheduler_contract import *  # noqa: F403
from .subject import Make, Marks, NotApplicable, Opened, Subject

__all__ = [
    "CHECKS",
    "Certificate",
    "Check",
    "Clock",
    "CrashReport",
    "Crashed",
    "Make",
    "Marks",
    "NotApplicable",
    "Opened",
    "StepReport",
    "Subject",
    "Unfinished",
    "Verdict",
    "certify",
    "crash_everywhere",
    "passing",
]
__all__ += claims_contract.__all__
__all__ += records_contract.__all__
__all__ += refusals_contract.__all__
__all__ += scheduler_contract.__all__
__all__ += deliveries_contract.__all__
__all__ += durable_contract.__all__
__all__ += ledger_contract.__all__
__all__ += ledger_reading_contract.__all__
__all__ += ledger_starts_contract.__all__
__all__ += ledger_steering_contract.__all__
