"""Limits on how many bits are one, of which convex hulls of simple structures consist."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CountConstraint"]


class CountConstraint(NamedTuple):
    """Constraint that between ``least`` and ``most`` of some bits are 1, where a negated bit b counts as 1 - b.

    Within the unit cube this is the convex hull of the bit vectors with that many ones.

    Attributes:
        entries: indices of the bits.
        negated: positions in ``entries`` of the negated bits.
        least: smallest number of ones.
        most: largest number of ones.
    """

    entries: tuple[int, ...]
    negated: tuple[int, ...] = ()
    least: int = 0
    most: int = 0
