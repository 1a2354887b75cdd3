"""What a row of alpha-entmax for alpha > 2, and its Jacobian, needs beyond others, compiled.

There the derivative of y in its argument is unbounded: float32 would not give its own input's result, so scores are mapped in
float64, and the smallest entries of the support are computed anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lit_sparse.kernels.cpu.compile import compile_rows
from lit_sparse.kernels.cpu.vector_math import exponentials, logarithms

__all__ = ["CEILING_DOUBLE", "CEILING_SINGLE", "settle_steep", "steep_product"]

CEILING_SINGLE, CEILING_DOUBLE = 80.0, 600.0  # logarithms of weights in the Jacobian stay below
UNSURE, STEEP = 1e-10, 1e-4  # rounding of m = 1 + eps (z - t): its sign is unsure below, its root steep below
PASSES = 120


@compile_rows()
def sum_from(z: Any, n: Any, eps: Any, last: Any, least: Any) -> Any:
    """Return the sum of a row's weights as a function of the smallest one, and the derivative of the sum in it.

    Args:
        z: (>= n,) scaled scores ``(x - max x) / gamma``.
        n: number of scores.
        eps: alpha - 1, > 1.
        last: smallest score of the support.
        least: its weight.
    """
    total, slope, power = 0.0, 0.0, least**eps
    for j in range(n):
        if z[j] == last:
            total += least
            slope += 1.0
        elif z[j] > last:
            y = (power + eps * (z[j] - last)) ** (1.0 / eps)
            total += y
            slope += (least / y) ** (eps - 1.0)
    return total, slope


@compile_rows()
def settle_steep(z: Any, n: Any, eps: Any, t: Any, work: Any) -> None:
    """Recompute the weights y of a row for alpha > 2 if some of them are close to 0, where y is steep in the threshold t.

    Relative to the smallest score of the support, instead of the largest score, y is accurate to all digits. A score is
    in the support if the weights relative to it sum to less than one.

    Args:
        z: (>= n,) scaled scores ``(x - max x) / gamma``.
        n: number of scores.
        eps: alpha - 1, > 1.
        t: threshold, accurate to rounding in ``1 + eps (z - t)``.
        work: (3, >= n) float64 workspace; its first row holds the weights, and receives the new ones.
    """
    unsure, steep, last = 0, False, np.inf
    for j in range(n):
        m = 1.0 + eps * (z[j] - t)
        steep |= abs(m) < STEEP
        if m > UNSURE:
            last = min(last, z[j])
        elif m > -UNSURE:
            work[1, unsure] = z[j]
            unsure += 1
    if not steep:
        return
    ranked = np.sort(work[1, :unsure])
    first, end = 0, unsure  # those from ``end`` are in the support, those before ``first`` are not
    while first < end:
        middle = (first + end) // 2
        if sum_from(z, n, eps, ranked[middle], 0.0)[0] < 1.0:
            end = middle
        else:
            first = middle + 1
    if end < unsure:
        last = ranked[end]
    size = 0
    for j in range(n):
        size += z[j] >= last
    low, high = 0.0, 1.0 / size
    least = high
    for _ in range(PASSES):  # Newton's method on a convex sum, from above
        total, slope = sum_from(z, n, eps, last, least)
        if total >= 1.0:
            high = least
        else:
            low = least
        ahead = least - (total - 1.0) / slope
        if not low < ahead < high:
            ahead = 0.5 * (low + high)
        done = abs(ahead - least) <= 1e-15 * high
        least = ahead
        if done:
            break
    power = least**eps
    for j in range(n):
        work[0, j] = 0.0
        if z[j] == last:
            work[0, j] = least
        elif z[j] > last:
            work[0, j] = (power + eps * (z[j] - last)) ** (1.0 / eps)


@compile_rows(inline="source")
def steep_product(
    v: Any, y: Any, row: Any, power: Any, n: Any, scale: Any, places: Any, u: Any, work: Any, bits: Any, out: Any
) -> None:
    """Multiply a row of ``v`` by the Jacobian of entmax for alpha > 2, whose weights ``s = y^power`` may overflow.

    The product is ``s u - p sum s u`` with u = v - v_m and p = s / sum s, where m is the place of the largest weight,
    which is thus multiplied by zero.

    Args:
        v: (rows, d) directions.
        y: (rows, d) results of the mapping.
        row: which row.
        power: 2 - alpha, below 0.
        n: support size.
        scale: factor of the product.
        places: (>= n,) places of the support in the row.
        u: (>= n,) entries of v on the support.
        work: (3, >= n) workspace; its first row holds the entries of y on the support.
        bits: the memory of ``work`` as integers.
        out: (rows, d) receives the products.
    """
    exponent, broken = y.dtype.type(power), y[row, places[0]] != y[row, places[0]] if n > 0 else False
    most = 0
    for j in range(n):
        most = j if work[0, j] < work[0, most] else most
    origin, ceiling = u[most], y.dtype.type(CEILING_SINGLE if y.itemsize == 4 else CEILING_DOUBLE)
    logarithms(work, bits, n)
    top = work[0, most] * exponent
    for j in range(n):
        rate = work[0, j] * exponent
        work[0, j] = rate - top
        out[row, places[j]] = min(rate, ceiling)
        u[j] = u[j] - origin
    exponentials(work, bits, n)
    mass = 0.0
    for j in range(n):
        work[1, j] = work[0, j]
        mass += work[0, j]
        work[0, j] = out[row, places[j]]
    exponentials(work, bits, n)
    total = 0.0
    for j in range(n):
        work[0, j] = work[0, j] * u[j]
        total += work[0, j]
    share = y.dtype.type(np.nan if broken else total / mass)
    for j in range(n):
        out[row, places[j]] = (work[0, j] - work[1, j] * share) * scale
