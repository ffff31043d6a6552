"""Stores that break one clause each, in a small way that somebody could have meant."""

from . import (
    arrivals,
    both,
    claims,
    confusing,
    copying,
    looking,
    mislaid,
    newest,
    passes,
    queue,
    racing,
    records,
    steering,
)
from .breaking import SABOTEURS

__all__ = [
    "SABOTEURS",
    "arrivals",
    "both",
    "claims",
    "confusing",
    "copying",
    "looking",
    "mislaid",
    "newest",
    "passes",
    "queue",
    "racing",
    "records",
    "steering",
]
