"""Which groups of entries are in the support of a simplex projection, decided without rounding.

A sum is kept as two float64 numbers, the second of which holds what rounding took from the first: more than 100 bits. Only
groups that are at the threshold up to rounding need this.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lit_sparse.kernels.cpu.compile import compile_rows

__all__ = ["ROUNDING", "SMALLEST", "add", "add_difference", "square", "stands_out"]

SPLITTER = 134217729.0  # 2^27 + 1: splits a float64 into two halves of its digits (Veltkamp 1968)
HALF = 67108864.0  # 2^26
ROUNDING = 2.0**-95  # of sums of two numbers each, with some digits to spare
HALF_STEP = 2.0**-53  # how far a parameter may be from the decimal number that it stands for
#: Least weight that is written for an entry of the support.
SMALLEST = float(np.finfo(np.float32).tiny)


@compile_rows()
def add(high: Any, low: Any, value: Any) -> Any:
    """Return a sum in two parts (high, low) after adding a number, with twice the precision of float64."""
    total = high + value
    added = total - high
    rest = low + ((high - (total - added)) + (value - added))
    high = total + rest
    return high, rest - (high - total)


@compile_rows()
def add_difference(high: Any, low: Any, value: Any, top: Any) -> Any:
    """Return a sum in two parts (high, low) after adding ``value - top``, which is not rounded first."""
    difference = value - top
    added = difference - value
    high, low = add(high, low, difference)
    return add(high, low, (value - (difference - added)) + (-top - added))


@compile_rows()
def add_multiple(high: Any, low: Any, value: Any, times: Any) -> Any:
    """Return a sum in two parts (high, low) after adding an integer multiple, below 2^52, of a number.

    The product is exact.
    """
    scaled = SPLITTER * value
    most = scaled - (scaled - value)
    many = math.floor(times / HALF) * HALF
    for factor in (many, times - many):
        high, low = add(high, low, factor * most)
        high, low = add(high, low, factor * (value - most))
    return high, low


@compile_rows()
def square(high: Any, low: Any) -> Any:
    """Return the square of a number in two parts (high, low), in two parts."""
    scaled = SPLITTER * high
    most = scaled - (scaled - high)
    least = high - most
    total, rest = add(most * most, 0.0, 2.0 * most * least)
    total, rest = add(total, rest, least * least)
    return add(total, rest, 2.0 * high * low + low * low)


@compile_rows()
def is_long(value: Any) -> Any:
    """Return whether a parameter has more digits than float32, so that it stands for a nearby decimal number such as 0.1."""
    return value != np.float64(np.float32(value))


@compile_rows()
def stands_out(
    high: Any, low: Any, code: Any, size: Any, all_high: Any, all_low: Any, all_code: Any, all_size: Any, gamma: Any, lam: Any
) -> Any:
    """Return whether the mean of a group of entries is above the simplex threshold of a set of groups that contains it.

    The group has n entries whose scores sum to ``s + gamma lam c``, c an integer; the set has m entries whose scores sum to
    ``S + gamma lam C``. The mean of the group exceeds the threshold ``(S + gamma lam C - gamma) / m`` if ``m (s + gamma lam
    c) > n (S + gamma lam C - gamma)``. A group is not above where both sides are equal for the decimal numbers that gamma
    and lam stand for.

    Args:
        high: first part of s.
        low: second part of s.
        code: c.
        size: n.
        all_high: first part of S.
        all_low: second part of S.
        all_code: C.
        all_size: m.
        gamma: strength of the regularizer.
        lam: strength of the penalty.
    """
    n, m = np.float64(size), np.float64(all_size)
    shift = m * code - n * all_code
    left, rest = add_multiple(0.0, 0.0, high, m)
    left, rest = add_multiple(left, rest, low, m)
    left, rest = add_multiple(left, rest, -all_high, n)
    left, rest = add_multiple(left, rest, -all_low, n)
    left, rest = add_multiple(left, rest, gamma, n)
    slack = ROUNDING * n * m * gamma * (1.0 + 4.0 * lam)
    if shift != 0.0:
        scaled, other = SPLITTER * gamma, SPLITTER * lam
        most, of_lam = scaled - (scaled - gamma), other - (other - lam)
        for part in (most, gamma - most):
            left, rest = add_multiple(left, rest, part * of_lam, shift)
            left, rest = add_multiple(left, rest, part * (lam - of_lam), shift)
        if is_long(lam):
            slack += HALF_STEP * gamma * lam * abs(shift)
        if is_long(gamma):
            slack += HALF_STEP * gamma * abs(n + lam * shift)
    return left > slack
