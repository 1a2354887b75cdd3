"""The rows of alpha-entmax, compiled.

With ``eps = alpha - 1`` and ``z = (x - max x) / gamma`` the result is ``y = [1 + eps (z - t)]_+^(1 / eps)``. Newton's method
runs on ``(sum y)^eps = 1``: for 1 < alpha <= 2 its left side is a norm, convex in t and nearly linear; for alpha < 1 it is a
power mean, concave in t, and all results are above zero.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lit_sparse.kernels.cpu.compile import REDUCTION_FLAGS, compile_rows, empty
from lit_sparse.kernels.cpu.rows import (
    SIMD_BLOCK,
    ends_of,
    gather_above,
    next_in_bracket,
    pad,
    row_views,
    top_of,
    write_invalid,
)
from lit_sparse.kernels.cpu.vector_math import exponentials, logarithms_of_one_plus, workspace
from lit_sparse.kernels.exact_support import ROUNDING, SMALLEST, add, add_difference, square
from lit_sparse.mappings.entmax.steep import settle_steep

__all__ = ["FLAT", "is_power", "map_block", "map_powers_block"]

FLAT = 1e-9  # below this size of eps, softmax: the two differ by eps / 2 times the square of a score
FARTHEST = 1e30  # an eps (z - t) that, for eps < 0, has no weight
NEWTON_PASSES, PASSES = 30, 120
CHUNK = 1024
QUARTER = 0.25
# How far rounding may take the base of a power, by type.
EDGE_SINGLE, EDGE_DOUBLE = 16.0 * float(np.finfo(np.float32).eps), 16.0 * float(np.finfo(np.float64).eps)


@compile_rows()
def is_power(alpha: Any) -> Any:
    """Return whether alpha makes entmax weights squares (1.5) or fourth powers (1.25) of shifted scores."""
    return alpha == 1.5 or alpha == 1.25


@compile_rows(frozenset({"contract"}))
def deform(z: Any, n: Any, eps: Any, t: Any, work: Any, bits: Any) -> None:
    """Write ``[1 + eps (z - t)]_+^(1 / eps)``, which is exp(z - t) for eps = 0, of the first n scores to ``work[0]``.

    Args:
        z: (>= n,) scaled scores ``(x - max x) / gamma``.
        n: number of scores.
        eps: alpha - 1.
        t: threshold.
        work: (3, >= n) workspace; see :func:`~lit_sparse.kernels.cpu.vector_math.workspace`.
        bits: the memory of ``work`` as integers.
    """
    e, shift, one, zero = z.dtype.type(eps), z.dtype.type(t), z.dtype.type(1), z.dtype.type(0)
    if eps == 1.0:
        for j in range(n):
            m = one + (z[j] - shift)
            work[0, j] = m if m > zero else zero
    elif abs(eps) <= FLAT:
        for j in range(n):
            work[0, j] = z[j] - shift
        exponentials(work, bits, n)
    else:
        least = z.dtype.type(-0.99999994 if z.itemsize == 4 else -0.9999999999999998)
        power, most = z.dtype.type(1.0 / eps), z.dtype.type(FARTHEST)
        for j in range(n):
            work[0, j] = min(max(e * (z[j] - shift), least), most)
        logarithms_of_one_plus(work, bits, n)
        for j in range(n):
            work[0, j] = work[0, j] * power
        exponentials(work, bits, n)
        for j in range(n):
            work[0, j] = work[0, j] if -one < e * (z[j] - shift) < most else zero


@compile_rows(REDUCTION_FLAGS)
def chunk_sums(z: Any, y: Any, e: Any, shift: Any) -> Any:
    """Return the sums of y and of ``y^(1 - eps)`` over a chunk short enough to be summed in the dtype of y.

    ``y = [1 + e (z - shift)]_+^(1 / e)`` are weights of the scaled scores z, both (m,), with e = eps = alpha - 1.
    """
    one, zero = z.dtype.type(1), z.dtype.type(0)
    total, slope = zero, zero
    for j in range(len(z)):
        total += y[j]
        m = one + e * (z[j] - shift)
        slope += y[j] / m if m > zero else zero
    return total, slope


@compile_rows()
def long_sums(z: Any, work: Any, n: Any, eps: Any, shift: Any) -> Any:
    """Return the sums of weights y and of ``y^(1 - eps)`` over n entries, as :func:`chunk_sums`, but in float64 by chunks."""
    total, slope = 0.0, 0.0
    for first in range(0, n, CHUNK):
        last = min(first + CHUNK, n)
        part, part_slope = chunk_sums(z[first:last], work[0, first:last], z.dtype.type(eps), shift)
        total += part
        slope += part_slope
    return total, slope


@compile_rows(REDUCTION_FLAGS)
def sum_of(work: Any, n: Any) -> Any:
    """Return the sum of the first n entries of ``work[0]``, in float64."""
    total = 0.0
    for j in range(n):
        total += work[0, j]
    return total


@compile_rows(inline="source")
def solve(z: Any, n: Any, eps: Any, work: Any, bits: Any) -> Any:
    """Return the t at which ``[1 + eps (z - t)]_+^(1 / eps)`` sums to one, and leave these powers in ``work[0]``.

    Args:
        z: (>= n,) scaled scores ``(x - max x) / gamma``.
        n: number of scores.
        eps: alpha - 1.
        work: (3, >= n) workspace; see :func:`~lit_sparse.kernels.cpu.vector_math.workspace`.
        bits: the memory of ``work`` as integers.
    """
    # Tolerance for the last step. The remaining error is its square if y is smooth in t, and grows as alpha approaches 2.
    tolerance = 1e-6 + math.exp(-16.0 * max(eps, 0.5)) if z.itemsize == 4 else 1e-9
    if eps > 1.0:  # small y are steep in t
        tolerance = 1e-15
    done = abs(eps) <= FLAT  # the result is exp(z) over its sum
    lower, upper = 0.0, 0.0 if done else -math.expm1(-eps * math.log(n)) / eps
    t, passes = 0.5 * upper, 0
    while True:
        deform(z, n, eps, t, work, bits)
        if done:
            return t
        total, slope = long_sums(z, work, n, eps, z.dtype.type(t))
        ahead = t - total / slope * math.expm1(-eps * math.log(total)) / eps
        lower, upper, ahead = next_in_bracket(t, total >= 1.0, lower, upper, ahead, passes <= NEWTON_PASSES)
        step, t = abs(ahead - t), ahead
        passes += 1
        size = max(1.0 - eps * t, 1.0)  # what the step is relative to, for eps < 0
        done = step <= tolerance * size or upper - lower <= 1e-15 * upper or passes == PASSES


@compile_rows(inline="source")
def write_normalized(row: Any, work: Any, n: Any, padded: Any, places: Any, out: Any) -> None:
    """Write the first n entries of ``work[0]``, normalized to sum to one, to their places in the row.

    The row is zero elsewhere; ``padded``, at least n, is how many entries are summed, those after the n-th being zero.
    """
    scale = work.dtype.type(1.0 / sum_of(work, padded))
    for j in range(n):
        out[row, places[j]] = work[0, j] * scale


@compile_rows(REDUCTION_FLAGS)
def chunk_powers(z: Any, shift: Any, fourth: Any) -> Any:
    """Return the sums of m^2 and m, and the number of m > 0, over a short chunk, with ``m = [1 + (z - shift) / 2]_+``.

    If ``fourth`` is not None, they are the sums of m^4 and m^3, uncounted, with ``m = [1 + (z - shift) / 4]_+``.
    """
    zero = z.dtype.type(0)
    total, slope, count = zero, zero, 0
    one, part = z.dtype.type(1), z.dtype.type(0.5 if fourth is None else QUARTER)
    for j in range(len(z)):
        m = one + part * (z[j] - shift)
        if fourth is None:  # decided when it is compiled
            count += m > zero
        m = m if m > zero else zero
        power = m if fourth is None else m * m * m
        total += power * m
        slope += power
    return total, slope, count


@compile_rows()
def long_powers(z: Any, n: Any, shift: Any, fourth: Any) -> Any:
    """Return the sums and the number of :func:`chunk_powers` over n entries, accumulated in float64 by chunks."""
    total, slope, count = 0.0, 0.0, 0
    for first in range(0, n, CHUNK):
        last = min(first + CHUNK, n)
        part, part_slope, part_count = chunk_powers(z[first:last], shift, fourth)
        total += part
        slope += part_slope
        count += part_count
    return total, slope, count


@compile_rows(inline="source")
def solve_squares(z: Any, n: Any) -> Any:
    """Return the t at which ``[1 + (z - t) / 2]_+^2`` sums to one, and that sum: the threshold of 1.5-entmax.

    On a given support, the sum is a quadratic in t. Its root and the t that gave the support lie on opposite sides of
    the solution, so the roots close in from both sides and meet where the support stays the same. If the quadratic has
    no root, the support is not the solution's, and Newton steps leave it.
    """
    lower, upper = 0.0, 2.0 - 2.0 / math.sqrt(n)
    t, size = 0.5 * upper, 0
    for i in range(PASSES):
        total, slope, count = long_powers(z, n, z.dtype.type(t), None)
        if count == size:
            break
        rest = slope * slope - count * (total - 1.0)
        has_root = rest > 0.0 and i < NEWTON_PASSES
        size = count if has_root else 0
        step = (slope - math.sqrt(rest)) / count if has_root else (total - math.sqrt(total)) / slope
        ahead = t + 2.0 * step
        lower, upper, t = next_in_bracket(t, total >= 1.0, lower, upper, ahead, True)
        size = size if t == ahead else 0
    return t, total


@compile_rows(inline="source")
def solve_fourths(z: Any, n: Any) -> Any:
    """Return the t at which ``[1 + (z - t) / 4]_+^4`` sums to one: the threshold of 1.25-entmax.

    It is found by Newton's method on the fourth root of that sum, which is convex in t and nearly linear. The error after the
    last step is about the square of that step.
    """
    tolerance = 1e-4 if z.itemsize == 4 else 1e-9
    lower, upper = 0.0, 4.0 - 4.0 / math.sqrt(math.sqrt(n))
    t = 0.5 * upper
    for i in range(PASSES):
        total, slope, _ = long_powers(z, n, z.dtype.type(t), True)
        ahead = t + 4.0 * (total - total / math.sqrt(math.sqrt(total))) / slope
        lower, upper, ahead = next_in_bracket(t, total >= 1.0, lower, upper, ahead, i <= NEWTON_PASSES)
        step, t = abs(ahead - t), ahead
        if step <= tolerance or upper - lower <= 1e-15 * upper:
            break
    return t


@compile_rows(frozenset({"contract"}))
def shifted(x: Any, row: Any, top: Any, gamma: Any, z: Any) -> None:
    """Write the scaled scores ``(x - top) / gamma`` of a whole row to z."""
    factor = x.dtype.type(1.0 / gamma)
    for i in range(x.shape[1]):
        z[i] = (x[row, i] - top) * factor


@compile_rows(frozenset({"contract"}))
def write_powers(z: Any, row: Any, eps: Any, t: Any, total: Any, out: Any) -> Any:
    """Write a row's entmax ``max(1 + eps (z - t), 0)^(1 / eps) / total``; return how many entries are at the threshold.

    An entry is at the threshold if ``1 + eps (z - t)`` is zero up to rounding.

    Args:
        z: (d,) scaled scores of the row.
        row: which row.
        eps: 1/2 for squares, 1/4 for fourth powers.
        t: threshold.
        total: sum of the powers.
        out: (rows, d) receives the results.
    """
    e, shift, scale = z.dtype.type(eps), z.dtype.type(t), z.dtype.type(1.0 / total)
    one, zero, fourth, near = z.dtype.type(1), z.dtype.type(0), eps == QUARTER, np.int32(0)
    bound = z.dtype.type(EDGE_SINGLE if z.itemsize == 4 else EDGE_DOUBLE)
    for i in range(out.shape[1]):
        m = one + e * (z[i] - shift)
        near += np.int32(abs(m) <= bound)
        m = m if m > zero else zero
        m = m * m if fourth else m
        out[row, i] = m * m * scale
    return near


@compile_rows()
def settle(x: Any, row: Any, top: Any, eps: Any, gamma: Any, z: Any, t: Any, out: Any) -> None:
    """Decide exactly which entries close to the threshold are in the support of 1.5-entmax or 1.25-entmax.

    An entry b is in the support if the sum of ``(eps (a - b) / gamma)^(1 / eps)`` over the entries a above it is less
    than one.

    Args:
        x: (rows, d) scores, -inf where an entry is not allowed.
        row: which row.
        top: maximum of the row.
        eps: 1/2 for 1.5-entmax, 1/4 for 1.25-entmax.
        gamma: strength of the regularizer.
        z: (d,) scaled scores of the row.
        t: threshold.
        out: (rows, d) results, of which those close to the threshold are corrected.
    """
    bound = EDGE_SINGLE if x.itemsize == 4 else EDGE_DOUBLE
    for i in range(x.shape[1]):
        if not abs(1.0 + eps * (z[i] - t)) <= 2.0 * bound:
            continue
        limit, rest = square(gamma, 0.0)
        total, lost = 0.0, 0.0
        for j in range(x.shape[1]):
            if x[row, j] > x[row, i]:
                high, low = add_difference(0.0, 0.0, np.float64(x[row, j]), np.float64(x[row, i]))
                high, low = square(eps * high, eps * low)  # eps is a power of two
                if eps == QUARTER:
                    high, low = square(high, low)
                total, lost = add(total, lost, high)
                total, lost = add(total, lost, low)
        if eps == QUARTER:
            limit, rest = square(limit, rest)
        short, lost = add_difference(limit, rest, -total, lost)
        out[row, i] = max(out[row, i], x.dtype.type(SMALLEST)) if short > ROUNDING * limit else x.dtype.type(0)


@compile_rows()
def map_powers_block(start: Any, stop: Any, out: Any, x: Any, alphas: Any, gamma: Any) -> None:
    """Write the entmax of those rows ``start .. stop - 1`` of ``x`` whose alpha is 1.5 or 1.25 to ``out``.

    Args:
        start: first row.
        stop: row after the last one.
        out: (rows, d) receives the results.
        x: (rows, d) scores, -inf where an entry is not allowed.
        alphas: (rows,) alphas, or (1,) for one that all rows share.
        gamma: strength of the regularizer.
    """
    d = x.shape[1]
    bits, cell, cell_bits = row_views(x)
    z = empty(d + SIMD_BLOCK, x.dtype)
    for row in range(start, stop):
        alpha = alphas[row if len(alphas) > 1 else 0]
        if is_power(alpha) and ends_of(x, bits, row, out, cell, cell_bits):
            shifted(x, row, cell[0], gamma, z)
            padded = pad(z, d)
            if alpha == 1.5:
                t, total = solve_squares(z, padded)
            else:
                t, total = solve_fourths(z, padded), 1.0
            if write_powers(z, row, alpha - 1.0, t, total, out) > 0:
                settle(x, row, cell[0], alpha - 1.0, gamma, z, t, out)


@compile_rows()
def map_block(start: Any, stop: Any, out: Any, x: Any, alphas: Any, gamma: Any, like: Any, steep: Any) -> None:
    """Write the entmax of those rows ``start .. stop - 1`` of ``x`` whose alpha is <= 2 (not 1.5 or 1.25), or > 2, to ``out``.

    Args:
        start: first row.
        stop: row after the last one.
        out: (rows, d) receives the results.
        x: (rows, d) scores, -inf where an entry is not allowed.
        alphas: (rows,) alphas, or (1,) for one that all rows share.
        gamma: strength of the regularizer.
        like: array of the type to compute in.
        steep: None for the rows with alpha <= 2; else those with alpha > 2 are mapped.
    """
    d = x.shape[1] + SIMD_BLOCK
    bits, cell, cell_bits = row_views(x)
    z, places = empty(d, like.dtype), empty(d, np.int32)
    work, work_bits = workspace(z, d)
    for row in range(start, stop):
        alpha = alphas[row if len(alphas) > 1 else 0]
        eps = alpha - 1.0
        if is_power(alpha) or (eps > 1.0) == (steep is None) or not top_of(x, bits, row, out, cell, cell_bits):
            continue
        if not -1.0 < eps < np.inf:
            write_invalid(x, row, out)
            continue
        limit = -1.0 / eps if eps > FLAT else -np.inf
        n = gather_above(x, row, cell[0], 1.0 / gamma, limit, z, places)
        padded = pad(z, n)
        t = solve(z, padded, eps, work, work_bits)
        if steep is not None:  # decided when it is compiled
            settle_steep(z, padded, eps, t, work)
        write_normalized(row, work, n, padded, places, out)
