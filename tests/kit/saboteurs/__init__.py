"""Stores that break one clause each, in a small way that somebody could have meant."""

from . import both, claims, confusing, mislaid, newest, queue, racing, records
from .breaking import SABOTEURS

__all__ = [
    "SABOTEURS",
    "both",
    "claims",
    "confusing",
    "mislaid",
    "newest",
    "queue",
    "racing",
    "records",
]
