"""Values, durations, signals: what is frozen, what is refused, what survives a pickle."""

from __future__ import annotations

import copy
import pickle
import re
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from without_durability import (
    Blocked,
    Completed,
    Contended,
    Delivery,
    Entry,
    Fenced,
    InputNeeded,
    Interruption,
    MemoryCheckpointer,
    MessageNeeded,
    Milliseconds,
    Pass,
    Recorded,
    ScheduledWakeup,
    Sleeping,
    Suspended,
    Swallowed,
    Written,
    check_duration,
    claimed,
    inbox_key,
)
from without_durability.values import shown

MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        Pass("w", 1),
        Recorded(1, True),
        Written(1, MOMENT),
        Entry("k", 1),
        Delivery("w", "1"),
        Milliseconds(1),
        Completed(1),
        Sleeping("k", MOMENT),
        Blocked(frozenset("a"), frozenset()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_frozen_slotted_and_equal_to_its_pickle(value):
    name = type(value).__slots__[0]
    with pytest.raises(FrozenInstanceError):
        setattr(value, name, None)
    assert not hasattr(value, "__dict__")
    assert pickle.loads(pickle.dumps(value)) == value


# --- durations --------------------------------------------------------------------------------


def test_milliseconds_are_whole():
    assert Milliseconds(1500).duration == timedelta(seconds=1.5)
    assert Milliseconds.of(timedelta(seconds=1.5)) == Milliseconds(1500)


@given(st.integers(-(10**12), 10**12))
def test_milliseconds_and_durations_convert_without_loss(count: int):
    assert Milliseconds.of(Milliseconds(count).duration) == Milliseconds(count)


@pytest.mark.parametrize(
    "duration", [timedelta(microseconds=1), timedelta(microseconds=-1), timedelta.max]
)
def test_a_duration_finer_than_milliseconds_is_refused(duration: timedelta):
    with pytest.raises(ValueError, match=r"whole.*milliseconds"):
        Milliseconds.of(duration)


@pytest.mark.parametrize("duration", [timedelta(0), timedelta(microseconds=-1), timedelta.min])
def test_a_duration_that_is_not_positive_is_refused_by_name(duration: timedelta):
    with pytest.raises(ValueError, match="lease must be positive"):
        check_duration("lease", duration)


@pytest.mark.parametrize("duration", [1, 1.5, None, "1"])
def test_what_is_no_duration_is_a_type_error_by_name(duration: object):
    with pytest.raises(TypeError, match="lease"):
        check_duration("lease", duration)


@pytest.mark.parametrize("duration", [timedelta(microseconds=1), timedelta.max])
def test_a_positive_duration_passes(duration: timedelta):
    check_duration("lease", duration)


# --- inbox keys -------------------------------------------------------------------------------


def test_an_inbox_key_is_its_position_padded_to_twenty_digits():
    assert inbox_key(7) == "inbox:00000000000000000007"


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_inbox_keys_sort_as_their_positions_do(one: int, other: int):
    assert (inbox_key(one) < inbox_key(other)) == (one < other)


# --- outcomes and signals ---------------------------------------------------------------------


def test_a_blocked_pass_waits_for_something():
    with pytest.raises(ValueError, match="at least one"):
        Blocked(frozenset(), frozenset())


def test_the_keys_of_a_blocked_pass_are_the_sorted_union():
    assert Blocked(frozenset({"b", "a"}), frozenset({"c", "a"})).keys == ("a", "b", "c")


SIGNALS = [
    Interruption("text"),
    Contended("text", workflow="w"),
    Contended("text"),
    Fenced("text", workflow="w", token=3),
    Fenced("text"),
    Suspended("k", "the moon"),
    InputNeeded("k"),
    MessageNeeded("k"),
    ScheduledWakeup("k", MOMENT),
    Swallowed(("a", "b")),
]


@pytest.mark.parametrize("duplicated", [lambda one: pickle.loads(pickle.dumps(one)), copy.copy])
@pytest.mark.parametrize("signal", SIGNALS, ids=lambda one: type(one).__name__)
def test_an_exception_keeps_its_text_and_its_facts(signal: BaseException, duplicated):
    twin = duplicated(signal)
    assert type(twin) is type(signal)
    assert (str(twin), twin.args, vars(twin)) == (str(signal), signal.args, vars(signal))


class Lost(Fenced):
    """A signal of a user's own store, with a constructor of its own."""

    def __init__(self, shard: int) -> None:
        super().__init__(f"shard {shard} lost", workflow="w")
        self.shard = shard


def test_a_users_own_signal_pickles_without_its_constructor_being_asked():
    twin = pickle.loads(pickle.dumps(Lost(4)))
    assert (type(twin), twin.shard, twin.workflow, str(twin)) == (Lost, 4, "w", "shard 4 lost")


@pytest.mark.parametrize("kind", [Contended, Fenced])
def test_one_text_argument_stays_legal_and_the_facts_are_keyword_only(kind):
    signal = kind("text")
    assert (str(signal), signal.workflow) == ("text", None)
    with pytest.raises(TypeError):
        kind("text", "w")
    facts = {"workflow": "w", "token": 3} if kind is Fenced else {"workflow": "w"}
    assert vars(kind("text", **facts)) == facts


def test_signals_are_interruptions_and_no_exceptions_but_swallowed_is_one():
    for signal in SIGNALS[:-1]:
        assert isinstance(signal, Interruption)
        assert not isinstance(signal, Exception)
    assert isinstance(SIGNALS[-1], Exception)


def test_a_suspension_says_what_it_waits_for():
    assert ScheduledWakeup("k", MOMENT).due == MOMENT
    for signal in (InputNeeded("k"), MessageNeeded("k"), ScheduledWakeup("k", MOMENT)):
        assert isinstance(signal, Suspended)
        assert signal.key == "k"
        assert isinstance(signal.waiting, str)
        assert signal.waiting in str(signal)


async def test_a_contended_claim_names_its_workflow():
    store = MemoryCheckpointer()
    assert await claimed(store, "w") == Pass("w", 1)
    with pytest.raises(Contended, match="'w'") as caught:
        await claimed(store, "w")
    assert caught.value.workflow == "w"


# --- shown ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    ["a" * 10**6 + "z", b"a" * 10**6, ["x" * 10**6] * 1000, {"k" * 10**6: "v" * 10**6}],
    ids=["text", "bytes", "list", "dict"],
)
def test_what_is_huge_is_shown_short(value: object):
    assert len(shown(value)) < 1200


def test_a_long_text_is_shortened_in_the_middle():
    assert re.fullmatch(r"'aaa.*\.\.\..*z'", shown("a" * 10**6 + "z"))


@pytest.mark.parametrize("value", ["", "w", "a'b\n\ud800", None, 7, "x" * 100])
def test_what_is_short_is_shown_whole(value: object):
    assert shown(value) == repr(value)


class Unshowable:
    def __repr__(self) -> str:
        raise LookupError("no repr")


@pytest.mark.parametrize("value", [Unshowable(), 10**5000], ids=["repr", "huge int"])
def test_an_error_text_never_fails_on_what_it_shows(value: object):
    assert isinstance(shown(value), str)
