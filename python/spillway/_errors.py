"""What the package raises and warns of: one line that says what is wrong and what mends it."""

from __future__ import annotations


class SpillwayError(RuntimeError):
    """Spillway cannot do what was asked, and did nothing."""


class SpillwayWarning(UserWarning):
    """Something was asked for that Spillway does in another way."""
