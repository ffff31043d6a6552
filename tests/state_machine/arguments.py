"""Arguments of every kind, plain and odd, as Hypothesis draws them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from state_machine.calls import as_is
from without_durability import INBOX, inbox_key

START = datetime(1970, 1, 1, tzinfo=UTC)
NOW = timedelta(0)
MICROSECOND = timedelta(microseconds=1)
LIFE = 60 * MICROSECOND
SPAN = 300 * MICROSECOND
LATER = timedelta(days=10_000)


@dataclass(frozen=True)
class Kind:
    """Arguments of one kind: the plain ones, and every odd one."""

    plain: st.SearchStrategy[Any]
    odd: st.SearchStrategy[Any]


TEXT = st.text()
LONG = st.builds(lambda text, times: text * times, st.text(min_size=1), st.just(5_000))
ALIKE = st.sampled_from(
    ["", "W", "w ", "w\0", "\0", "é", "e\u0301", "%", "'", '"; --', "🦆", "\u202e"]
)
NO_UTF8 = st.builds(lambda *parts: "".join(parts), TEXT, st.characters(categories=["Cs"]), TEXT)
NO_TEXT = st.sampled_from([None, 0, 1.5, b"w", ("w",), ["w"], object()])
# Where neither store numbers by itself, and where nothing may be supplied.
POSITIONS = st.just(0) | st.integers(2**40, 2**62) | st.integers(2**62, 10**21)
INBOXES = st.one_of(
    POSITIONS.map(inbox_key),
    st.builds(INBOX.__add__, st.text("0123456789٣ -+_") | TEXT),
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, -(2**64), 10**4000, -0.0, 1e308, 5e-324])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters())
)
NAMES = TEXT | st.integers() | st.booleans() | st.none() | st.floats()
JSON_VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(TEXT, inner, max_size=4)
        | st.dictionaries(NAMES, inner, max_size=3)
    ),
    max_leaves=12,
)
CYCLE: list[Any] = []
CYCLE.append({"round": CYCLE})


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


NEVER_JSON = st.builds(
    lambda odd, wrap: wrap(odd),
    st.sampled_from([float("nan"), float("inf"), {1}, b"x", CYCLE, Decimal(1), 1j, object()])
    | st.sampled_from([10**5000, {1: 1, "1": 2}, {None: 1, "null": 2}, {(1,): 2}, date.max])
    | st.sampled_from([501, 2_000, 60_000]).map(nested),
    st.sampled_from([as_is, lambda odd: [1, odd], lambda odd: {"k": odd}]),
)
NO_JSON = NEVER_JSON | st.just(nested(500))

ZONES = st.builds(
    timezone, st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59))
)
FIRST, LAST = datetime(1, 1, 1), datetime.max  # noqa: DTZ001, DTZ901
AWARE = st.one_of(
    st.datetimes(timezones=ZONES),
    st.builds(
        lambda moment, zone: moment.replace(tzinfo=zone), st.sampled_from([FIRST, LAST]), ZONES
    ),
    st.timedeltas(-LATER, LATER).map(START.__add__),
    st.timedeltas(-SPAN, SPAN).map(START.__add__),
)
NO_MOMENT = st.datetimes() | st.sampled_from([FIRST, LAST, None, 0, 1.5, "2030-01-01", date.max])
SHORT = st.sampled_from([1, 20, 60, 90]).map(MICROSECOND.__mul__)
ANY_DURATION = st.timedeltas() | st.sampled_from([timedelta.min, timedelta.max, NOW, -LIFE])
NO_DURATION = st.sampled_from([None, 0, 60, 1.5, "60", float("inf"), date.max])

WORKFLOW = Kind(st.sampled_from("wwv"), TEXT | LONG | ALIKE | NO_UTF8 | NO_TEXT)
KEY = Kind(st.sampled_from("abc"), TEXT | LONG | ALIKE | NO_UTF8 | NO_TEXT | INBOXES)
VALUE = Kind(st.integers(0, 2), JSON_VALUES | NO_JSON)
TOKEN = Kind(
    st.sampled_from([1, 1, 1, 2, 3]),
    st.integers()
    | st.sampled_from([0, -1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**5000, None, "1"]),
)
DURATION = Kind(SHORT, ANY_DURATION | NO_DURATION)
MOMENT = Kind(AWARE, NO_MOMENT)
# A number stands for the delivery taken that many takes ago.
RECEIPT = Kind(
    st.sampled_from([0, 0, 0, 1, 2]),
    TEXT
    | NO_UTF8
    | st.sampled_from(["nan", "inf x", "1e999 x", "0.0", "0.0 ", "-0 x", "60.0 \0", "1_0 x"]),
)
