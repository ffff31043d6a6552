"""The JSON codec: what comes back equal, what is refused, and errors that name their place."""

from __future__ import annotations

import json
import math
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from without_durability import JSON, JsonCodec
from without_durability.codec import decoded, encoded


def nested_list(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def nested_dict(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth - 1):
        value = {"k": value}
    return value


def nested_both(depth: int) -> Any:
    value: Any = []
    for level in range(depth - 1):
        value = {"k": value} if level % 2 else [value]
    return value


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


@given(values)
def test_what_json_can_hold_comes_back_equal(value: object):
    encoding = JSON.encode(value)
    back = JSON.decode(encoding)
    assert back == value
    assert JSON.encode(back) == encoding


@given(st.dictionaries(st.text(), scalars, min_size=2), st.randoms(use_true_random=False))
def test_equal_values_encode_equal_whatever_order_they_were_built_in(
    value: dict[str, object], randomness: random.Random
):
    items = list(value.items())
    randomness.shuffle(items)
    assert JSON.encode(dict(items)) == JSON.encode(value)


def test_keys_are_sorted_at_every_level():
    text = JSON.encode({"b": {"d": 1, "c": 2}, "a": 3})
    assert text == '{"a": 3, "b": {"c": 2, "d": 1}}'


@pytest.mark.parametrize("value", [2**70, -(2**70), 1e308, 5e-324, "\ud800", "\x00", "é", True])
def test_k35_an_unusual_value_comes_back_equal(value: object):
    back = JSON.decode(JSON.encode(value))
    assert (back, type(back)) == (value, type(value))


def test_k35_minus_zero_keeps_its_sign():
    assert math.copysign(1, JSON.decode(JSON.encode(-0.0))) == -1


@pytest.mark.parametrize("value", [(1, 2), [(1, (2,))], {"k": (1,)}])
def test_a_tuple_comes_back_a_list(value: object):
    assert JSON.decode(JSON.encode(value)) == json.loads(json.dumps(value))
    assert JSON.encode(value) == JSON.encode(JSON.decode(JSON.encode(value)))


@pytest.mark.parametrize(
    ("value", "back"),
    [
        ({1: "a"}, {"1": "a"}),
        ({None: 1}, {"null": 1}),
        ({True: 1}, {"true": 1}),
        ({1: "a", 2: "b"}, {"1": "a", "2": "b"}),
    ],
)
def test_k32_a_key_that_is_no_text_comes_back_as_text(value: object, back: object):
    assert JSON.decode(JSON.encode(value)) == back


CYCLE: list[object] = []
CYCLE.append(CYCLE)

REFUSED = {
    "nan": float("nan"),
    "infinity": float("inf"),
    "minus infinity": [-float("inf")],
    "nan as a key": {float("nan"): 1},
    "keys that collide": {1: "a", "1": "b"},
    "None and its name": {None: "a", "null": "b"},
    "True and its name": {True: "a", "true": "b"},
    "deep keys that collide": [{"k": {2: "a", "2": "b"}}],
    "mixed keys": {1: "a", "b": "c"},
    "set": {1},
    "bytes": b"x",
    "moment": datetime(2030, 1, 1, tzinfo=UTC),
    "decimal": Decimal(1),
    "huge": 10**5000,
    "cycle": CYCLE,
    "key of no kind": {(1, 2): 3},
    "object": object(),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_k31_what_json_would_lose_is_refused(value: object):
    with pytest.raises((TypeError, ValueError)):
        JSON.encode(value)


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_k31_a_refusal_names_workflow_key_and_type(value: object):
    with pytest.raises((TypeError, ValueError)) as caught:
        encoded(JSON, "order-1", "charge", value)
    for fact in ("'order-1'", "'charge'", type(value).__name__):
        assert fact in str(caught.value)


@pytest.mark.parametrize("nested", [nested_list, nested_dict, nested_both])
@pytest.mark.parametrize("depth", [1, 499, 500])
def test_k34_500_levels_come_back_equal(nested, depth: int):
    assert JSON.decode(JSON.encode(nested(depth))) == nested(depth)


@pytest.mark.parametrize("nested", [nested_list, nested_dict, nested_both])
@pytest.mark.parametrize("depth", [501, 1_000, 1_500, 50_000, 66_000])
def test_k34_more_levels_are_a_value_error_and_no_crash(nested, depth: int):
    with pytest.raises(ValueError, match=r"'w'.*'k'.*nested"):
        encoded(JSON, "w", "k", nested(depth))


@pytest.mark.parametrize("depth", [501, 1_500])
def test_k34_the_codec_by_itself_refuses_any_depth_with_a_value_error(depth: int):
    with pytest.raises(ValueError, match="nested"):
        JSON.encode(nested_list(depth))


@pytest.mark.parametrize(
    "value",
    [
        "[" * 2000,
        "{" * 2000,
        ['"' + "[" * 2000 + '\\"'],
        {"[" * 1000: "{" * 1000},
        ["\\" * 7 + "[" * 2000],
        [[]] * 2000,
        [{}] * 2000,
    ],
    ids=["text", "braces", "quoted", "keys", "backslashes", "lists in a row", "dicts in a row"],
)
def test_brackets_inside_strings_and_side_by_side_are_no_levels(value: object):
    assert JSON.decode(JSON.encode(value)) == value


@settings(max_examples=50)
@given(st.lists(st.text(alphabet='[]{}"\\a'), max_size=600), st.sampled_from([499, 500, 501, 502]))
def test_levels_are_counted_right_among_any_strings(texts: list[str], depth: int):
    value: Any = [*texts]
    for _ in range(depth - 1):
        value = [value]
    if depth <= 500:
        assert JSON.decode(JSON.encode(value)) == value
    else:
        with pytest.raises(ValueError, match="500"):
            JSON.encode(value)


# --- errors that name their place -------------------------------------------------------------


class Breaking:
    """A codec that fails in one direction."""

    def __init__(self, *, encode: Exception | None = None, decode: Exception | None = None):
        self._encode, self._decode = encode, decode

    def encode(self, value: object) -> object:
        if self._encode is not None:
            raise self._encode
        return value

    def decode(self, encoding: object) -> object:
        if self._decode is not None:
            raise self._decode
        return encoding


@pytest.mark.parametrize("direction", ["encode", "decode"])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TypeError("why"), TypeError),
        (ValueError("why"), ValueError),
        (LookupError("why"), ValueError),
        (RecursionError("why"), ValueError),
    ],
)
def test_what_cannot_be_encoded_or_read_back_names_workflow_key_and_type(direction, error, kind):
    with pytest.raises(kind, match=r"'w'.*'k'.*int") as caught:
        encoded(Breaking(**{direction: error}), "w", "k", 7)
    assert caught.value.__cause__ is error


def test_encoded_gives_the_encoding_and_what_it_decodes_to():
    assert encoded(JSON, "w", "k", (1, 2)) == ("[1, 2]", [1, 2])


@pytest.mark.parametrize("text", ["", "{", "nul", "\x00", "[" * 100_000])
def test_what_is_stored_and_no_longer_decodes_names_workflow_and_key(text: str):
    with pytest.raises(ValueError, match=r"'w'.*'k'"):
        decoded(JSON, "w", "k", text)


def test_decoded_gives_the_value():
    assert decoded(JSON, "w", "k", "[1]") == [1]


def test_the_shared_instance_is_one_of_equal_ones():
    assert JsonCodec() == JSON
