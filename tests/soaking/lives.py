"""One process under test, and what can be done to it."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from soaking.plan import LEASE

BLOWS = {  # the signal of each, and how often a deck has it for workers and for clients
    "kill": (signal.SIGKILL, 4, 3),
    "ambush": (signal.SIGUSR2, 5, 0),  # the worker kills itself, between two statements
    "freeze": (signal.SIGSTOP, 3, 1),
    "cancel": (signal.SIGTERM, 2, 0),  # the worker is cancelled
    "finish": (signal.SIGUSR1, 2, 0),  # the worker takes nothing new and lets its passes finish
}
DECK = [(blow, "worker") for blow in BLOWS for _ in range(BLOWS[blow][1])]
DECK += [(blow, "client") for blow in BLOWS for _ in range(BLOWS[blow][2])]
KILLED = ("kill", "ambush")
NEVER = float("inf")


@dataclass
class Life:
    """One process: what was done to it, and how it is to end."""

    name: str
    process: subprocess.Popen[bytes]
    errors: Path
    choose: random.Random
    fate: str = ""
    thaw_at: float = NEVER
    end_by: float = NEVER
    story: list[str] = field(default_factory=list)

    def suffer(self, blow: str) -> None:
        self.story.append(f"{blow} at {time.time():.2f}")
        if blow == "freeze":
            self.thaw_at = time.time() + self.choose.uniform(1.2, 2.5) * LEASE.total_seconds()
        else:
            self.fate, self.end_by = blow, time.time() + 30
        self.process.send_signal(BLOWS[blow][0])

    def lives(self) -> bool:
        """Thaw it when it is time, and tell whether it lives."""
        if time.time() > self.thaw_at:
            self.story.append(f"thaw at {time.time():.2f}")
            self.thaw_at = NEVER
            self.process.send_signal(signal.SIGCONT)
        if time.time() > self.end_by:
            self.process.kill()
        return self.process.poll() is None

    @property
    def is_up(self) -> bool:
        return self.errors.with_suffix(".up").exists()
