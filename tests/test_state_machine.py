"""Hunts for a difference between the memory store and the SQLite store: same calls, same time.

Two databases share one file, and either is asked; calls are cancelled at any moment, and share
transactions in which others fail.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batches import unhurried
from state_machine.batches import FAULTS, WANTED, Batches, Wanted
from state_machine.ledgers import Ledgers


@pytest.fixture(scope="module", autouse=True)
def all_that_wait_share() -> Iterator[None]:
    with unhurried():
        yield


TestStepping = Batches.TestCase
TestStepping.settings = settings(
    deadline=None,
    max_examples=40,
    stateful_step_count=50,
    suppress_health_check=[HealthCheck.too_slow],
)

TestLedgers = Ledgers.TestCase
TestLedgers.settings = settings(
    deadline=None,
    max_examples=35,
    stateful_step_count=50,
    suppress_health_check=[HealthCheck.too_slow],
)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**16),
    batches=st.lists(
        st.tuples(
            st.lists(WANTED, min_size=2, max_size=7),
            st.sampled_from(FAULTS),
            st.integers(0, 6),
            st.integers(1, 3),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_what_fails_in_a_shared_transaction_costs_only_its_own_caller(
    seed: int, batches: list[tuple[list[Wanted], str, int, int]]
):
    """One batch after another, whose contents and answers are those of memory."""
    stores = Batches()
    try:
        stores.take_turns(seed=seed)
        for wanted, fault, victim, statement in batches:
            stores.write_together(wanted=wanted, fault=fault, victim=victim, statement=statement)
    finally:
        stores.teardown()
