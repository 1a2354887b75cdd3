"""Limits on how many bits are one, of which convex hulls of simple structures consist."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CountConstraint"]


class CountConstraint(NamedTuple):
    """Between ``least`` and ``most`` of some bits are 1, where a negated bit b counts as 1 - b.

    Within the unit cube this is the convex hull of the bit vectors with that many ones.

    Attributes:
        entries: numbers of the bits.
        negated: places in ``entries`` of the negated ones.
        least: smallest number of ones.
        most: largest number of ones.
    """

    entries: tuple[int, ...]
    negated: tuple[int, ...] = ()
    least: int = 0
    most: int = 0
