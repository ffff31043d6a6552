"""Hunts for a difference between the memory store and the SQLite store: same calls, same time.

Two databases share one file, and either is asked; calls are cancelled at any moment.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from state_machine.clocks import Clocks

TestStepping = Clocks.TestCase
TestStepping.settings = settings(
    deadline=None,
    max_examples=60,
    stateful_step_count=50,
    suppress_health_check=[HealthCheck.too_slow],
)
