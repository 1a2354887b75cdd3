"""Exponentials and logarithms of the first entries of an array, in SIMD for float32.

Numba calls the C library once an entry, which no compiler vectorizes. In float32 a polynomial between powers of two is as
good, for eight or sixteen entries at a time; float64 keeps the C library and all its digits.

All of them work in place on ``work[0, :n]``, called x below; ``work`` and ``bits`` are what :func:`workspace` returns. They are
two-dimensional arrays, because each array in a tuple would cost a call its reference counts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lit_sparse.kernels.cpu.compile import bits_of, choose_by_types, compile_rows, empty

__all__ = ["exponentials", "exponentials_around", "logarithms", "logarithms_of_one_plus", "workspace"]

F = np.float32
LOG2_E = F(math.log2(math.e))
LN2_HIGH, LN2_LOW = F(0.693359375), F(math.log(2) - 0.693359375)  # in two parts: the first times an exponent is exact
LOWEST = F(-87.0)  # its exponential is just above the smallest normal number
# Least-squares fits, reweighted towards the largest error: (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2, worst relative
# error of the exponential 1e-8; (log(1 + f) - f + f^2 / 2) / f^3 for 1/sqrt(2) <= 1 + f <= sqrt(2), worst error 1e-8.
E0, E1, E2, E3, E4 = F(0.5), F(0.16666576), F(0.04166637), F(0.00836327), F(0.00139413)
L0, L1, L2, L3 = F(0.33333325386047363), F(-0.25000280141830444), F(0.20001880824565887), F(-0.16643470525741577)
L4, L5, L6, L7 = F(0.14190180599689484), F(-0.12943607568740845), F(0.12799490988254547), F(-0.08305481821298599)
ROOT_HALF, MANTISSA = np.int32(0x3F3504F3), np.int32(23)


@compile_rows()
def workspace(like: Any, n: Any) -> Any:
    """Return scratch arrays for n entries: three rows of the dtype of ``like``, and the same memory viewed as integers."""
    work = empty((3, n), like.dtype)
    return work, bits_of(work)


@compile_rows(frozenset({"contract"}))
def _exponentials(work: Any, bits: Any, n: Any) -> None:
    for i in range(n):
        value = max(work[0, i], LOWEST)
        power = np.floor(value * LOG2_E + F(0.5))
        r = (value - power * LN2_HIGH) - power * LN2_LOW
        work[0, i] = F(1) + (r + r * r * (E0 + r * (E1 + r * (E2 + r * (E3 + r * E4)))))
        bits[2, i] = np.int32(power)
    for i in range(n):
        bits[0, i] += bits[2, i] << MANTISSA


@compile_rows()
def _split_one_plus(work: Any, n: Any) -> None:
    """Write 1 + x to the second row, and what rounding lost, relative to it, over x."""
    for i in range(n):
        total = F(1) + work[0, i]
        work[1, i] = total
        work[0, i] = (work[0, i] - (total - F(1))) / total


@compile_rows(frozenset({"contract"}))
def _add_logarithms(work: Any, bits: Any, n: Any) -> None:
    """Add the logarithms of the second row to x; the second row is lost."""
    for i in range(n):
        bits[2, i] = (bits[1, i] - ROOT_HALF) >> MANTISSA
        bits[1, i] -= bits[2, i] << MANTISSA
    for i in range(n):
        f, power = work[1, i] - F(1), F(bits[2, i])
        tail = L0 + f * (L1 + f * (L2 + f * (L3 + f * (L4 + f * (L5 + f * (L6 + f * L7))))))
        work[0, i] += power * LN2_HIGH + (power * LN2_LOW + (f - f * f * (F(0.5) - f * tail)))


@compile_rows()
def _copy(work: Any, n: Any) -> None:
    for i in range(n):
        work[1, i] = work[0, i]
        work[0, i] = 0


@compile_rows()
def _exponentials_double(work: Any, bits: Any, n: Any) -> None:
    for i in range(n):
        work[0, i] = math.exp(work[0, i])


@compile_rows()
def _logarithms_double(work: Any, bits: Any, n: Any) -> None:
    for i in range(n):
        work[0, i] = math.log(work[0, i])


@compile_rows()
def _logarithms_of_one_plus_double(work: Any, bits: Any, n: Any) -> None:
    for i in range(n):
        work[0, i] = math.log1p(work[0, i])


@compile_rows()
def _logarithms(work: Any, bits: Any, n: Any) -> None:
    _copy(work, n)
    _add_logarithms(work, bits, n)


@compile_rows()
def _logarithms_of_one_plus(work: Any, bits: Any, n: Any) -> None:
    _split_one_plus(work, n)
    _add_logarithms(work, bits, n)


@choose_by_types
def exponentials(work: Any, bits: Any, n: Any) -> Any:
    """Replace the first n entries x of ``work[0]`` by exp(x); in float32, x < 88, and results are at least exp(-87)."""
    return _exponentials_double if work.dtype.bitwidth == 64 else _exponentials


@choose_by_types
def logarithms(work: Any, bits: Any, n: Any) -> Any:
    """Replace the first n entries x > 0 of ``work[0]`` by log(x)."""
    return _logarithms_double if work.dtype.bitwidth == 64 else _logarithms


@choose_by_types
def logarithms_of_one_plus(work: Any, bits: Any, n: Any) -> Any:
    """Replace the first n entries x > -1 of ``work[0]`` by log(1 + x), accurate for small x."""
    return _logarithms_of_one_plus_double if work.dtype.bitwidth == 64 else _logarithms_of_one_plus


@compile_rows()
def exponentials_around(z: Any, n: Any, reference: Any, far: Any, work: Any, bits: Any) -> None:
    """Write ``exp(z - reference)`` of the first n scores to ``work[0]``, with exponents clipped at ``far``.

    Args:
        z: (>= n,) scores.
        n: number of scores.
        reference: number that is subtracted from them.
        far: largest size of an exponent.
        work: (3, >= n) workspace; see :func:`workspace`.
        bits: the memory of ``work`` as integers.
    """
    center, most = z.dtype.type(reference), z.dtype.type(far)
    for j in range(n):
        work[0, j] = min(z[j] - center, most)
    exponentials(work, bits, n)
