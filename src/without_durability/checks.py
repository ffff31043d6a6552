"""What every store refuses before anything is written (C18, C19)."""

from __future__ import annotations

import inspect
from datetime import datetime

from .values import INBOX, INBOX_SUPPLIED, Delivery, inbox_key, inbox_position, shown


def check_text(name: str, text: str) -> None:
    """Any string that UTF-8 can hold is an id or a key; anything else is not.

    Raises `TypeError` for what is not a `str` and `ValueError` for a lone surrogate.
    """
    if type(text) is str and text.isascii():
        return
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str, not {type(text).__name__}: {shown(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} {shown(text)} cannot be stored as UTF-8: {error.reason}"
        ) from None


def check_count(name: str, count: int) -> None:
    """`ValueError` naming `name` for a count below 1, or one that is no whole number."""
    if type(count) is not int or count < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {count!r}")


def check_limit(limit: int) -> None:
    """`ValueError` for a limit below 1, or one that is no whole number."""
    check_count("limit", limit)


def check_attempts(attempts: int | None) -> None:
    """`ValueError` for a limit of attempts that is neither `None` nor a whole number from 1 on."""
    if attempts is not None:
        check_count("attempts", attempts)


def check_delivery(delivery: Delivery) -> None:
    """`TypeError` or `ValueError` for what no taker was given; any text may be a receipt."""
    check_text("workflow", delivery.workflow)
    if not isinstance(delivery.receipt, str):
        raise TypeError(f"receipt must be a str, not {type(delivery.receipt).__name__}")


def check_step_key(key: str) -> None:
    """`ValueError` for a key that passes may not record: the inbox space is the store's (C18)."""
    check_text("step key", key)
    if key.startswith(INBOX):
        raise ValueError(f"step key {shown(key)} lies in the inbox space, which is the store's own")


def check_supplied_key(key: str) -> None:
    """As `check_step_key`, but well-formed inbox keys pass: that is how a workflow is copied."""
    check_text("key", key)
    if key.startswith(INBOX):
        position = inbox_position(key)
        if position is None or position >= INBOX_SUPPLIED:
            raise ValueError(f"key {shown(key)} is not {inbox_key(0)!r} or a later inbox key")


def check_aware(name: str, moment: datetime) -> None:
    """`ValueError` for a naive moment: read in another zone it is hours wrong without a sound."""
    if not isinstance(moment, datetime):
        raise TypeError(f"{name} must be a datetime, not {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise ValueError(f"{name} must be timezone-aware, not the naive {moment!r}")


def check_synchronous(result: object) -> None:
    """`TypeError` when what a synchronous call returned is still to be awaited."""
    if inspect.isawaitable(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            f"it runs inside a transaction and must be synchronous, but returned a "
            f"{type(result).__name__} to await"
        )
