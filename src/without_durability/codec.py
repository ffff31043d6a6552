"""How values become what a store keeps, and back."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol, TypeVar

from .values import said, shown

Encoded = TypeVar("Encoded")

NESTING = 500
"""How deep `JsonCodec` lets a value nest: what one thread or Python can write, all can read."""

_STRING_OR_BRACKET = r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]'


_TOO_DEEP = f"nested more than {NESTING} levels deep"


class CheckpointCodec(Protocol[Encoded]):
    """A round trip: `decode(encode(v)) == v` for whatever steps return.

    Deterministic too: equal values of equal types encode equal. Either direction may raise;
    stores turn that into an error that names the workflow and the key.
    """

    def encode(self, value: object, /) -> Encoded: ...

    def decode(self, encoded: Encoded, /) -> object: ...


@dataclass(frozen=True, slots=True)
class JsonCodec:
    """The standard library's `json`, keys sorted, NaN and infinities refused.

    A tuple comes back a list and an `int` key as text, on the first pass as on every later
    one. `TypeError` or `ValueError` for what JSON cannot hold: keys that do not sort together
    (`1` beside `"1"` would become one), and more than `NESTING` levels, among others.
    """

    def encode(self, value: object, /) -> str:
        try:
            text = _json()[0](value)
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
        if text.count("[") + text.count("{") > NESTING and _depth(text) > NESTING:
            raise ValueError(_TOO_DEEP)
        return text

    def decode(self, encoded: str, /) -> object:
        return _json()[1](encoded)


@cache
def _json() -> tuple[Callable[[object], str], Callable[[str], object]]:
    """Both directions, made once: `json` costs a program that stores nothing some milliseconds."""
    import json

    read = json.JSONDecoder().raw_decode

    def decode(encoded: str) -> object:
        try:
            value, end = read(encoded)
        except (TypeError, ValueError):
            end = -1  # space before the value, or none at all: `loads` tells
        return value if end == len(encoded) else json.loads(encoded)

    return json.JSONEncoder(sort_keys=True, allow_nan=False).encode, decode


JSON = JsonCodec()
"""The shared instance, every store's default."""


def encoded(
    codec: CheckpointCodec[Encoded], workflow: str, key: str, value: object
) -> tuple[Encoded, object]:
    """The encoding of `value` and what it decodes to, before anything is written (C16, C19).

    `TypeError` or `ValueError`, naming the workflow, the key and the type, when either
    direction fails: what cannot be read back is not stored.
    """
    try:
        encoding = codec.encode(value)
        return encoding, codec.decode(encoding)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a value may run code of its own, and raise anything
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"workflow {shown(workflow)}, key {shown(key)}: a value of type "
            f"{type(value).__qualname__} cannot be stored: {_reason(error)}"
        ) from error


def decoded(codec: CheckpointCodec[Encoded], workflow: str, key: str, encoding: Encoded) -> object:
    """What a store holds under `key`, or a `ValueError` naming the workflow and the key."""
    try:
        return codec.decode(encoding)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ValueError(
            f"workflow {shown(workflow)}, key {shown(key)}: what is stored cannot be decoded: "
            f"{_reason(error)}"
        ) from error


def _depth(text: str) -> int:
    depth = deepest = 0
    for token in re.finditer(_STRING_OR_BRACKET, text):
        bracket = text[token.start()]
        if bracket in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif bracket in "]}":
            depth -= 1
    return deepest


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "nested too deep"
    return said(error)
