"""Euclidean projection onto the probability simplex, and its Jacobian, row by row.

The projection is ``y = (z - tau)_+ / gamma`` with ``z = x - max(x)`` and ``tau`` the root of
``sum (z - tau)_+ = gamma``. Newton's method, monotone after its first step, stops after a few passes (Michelot 1986;
Condat 2016 compares the alternatives). Newton's method is slow on adversarial rows; there bisection within the same bracket
helps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import REDUCTION_FLAGS, bits_of, compile_rows, empty, floats_of, layout_of, zeros
from lit_sparse.kernels.cpu.rows import choose_largest, key_range, write_invalid, write_keys, write_zeros
from lit_sparse.kernels.cpu.threads import Array, over_rows
from lit_sparse.kernels.exact_support import SMALLEST, add_difference, stands_out
from lit_sparse.kernels.gpu import triton_rows
from lit_sparse.kernels.row_kernel import row_kernel

__all__ = ["center_on_support", "project_simplex", "project_sorted", "support_sums"]

SECONDS = 0.4e-9  # for one element, on one thread
NEWTON_PASSES = 24
BISECTION_PASSES = 128
SIMD_BLOCK = 64
PADDED_LENGTH = 512
TILE_ROWS = 32
TILE_ELEMENTS = 1 << 13
ROUNDINGS = 8.0  # of an excess
EPS_SINGLE, EPS_DOUBLE = float(np.finfo(np.float32).eps), float(np.finfo(np.float64).eps)


@compile_rows(REDUCTION_FLAGS)
def mass_above(x: Any, row: Any, top: Any, tau: Any) -> Any:
    """Return the sum, in float64, and the number of a row's values ``x - top`` that are above ``tau``."""
    total = 0.0
    count = 0
    for i in range(x.shape[1]):
        z = x[row, i] - top
        if z > tau:
            total += z
            count += 1
    return total, count


@compile_rows(REDUCTION_FLAGS)
def count_above(x: Any, row: Any, top: Any, tau: Any) -> Any:
    """Return how many of a row's values ``x - top`` are above ``tau``, which is not rounded to the dtype of x."""
    count = 0
    for i in range(x.shape[1]):
        if np.float64(x[row, i] - top) > tau:
            count += 1
    return count


@compile_rows()
def bisect(x: Any, row: Any, top: Any, gamma: Any, tau: Any) -> Any:
    """Return the simplex threshold, the root of ``sum (x - top - tau)_+ = gamma``, by bisection, and the support size.

    It starts from the lower bound ``tau`` and serves adversarial rows, on which Newton's method removes one entry per step.
    """
    upper, count = 0.0, 0
    for _ in range(BISECTION_PASSES):
        middle = 0.5 * (tau + upper)
        total, above = mass_above(x, row, top, x.dtype.type(middle))
        if above > 0 and total - above * middle > gamma:
            tau = max(middle, (total - gamma) / above)
        else:
            upper = middle
        total, above = mass_above(x, row, top, x.dtype.type(tau))
        if above == count:
            break
        count = above
        tau = max(tau, (total - gamma) / count)
    return tau, count


@compile_rows()
def rounding_of(x: Any, gamma: Any) -> Any:
    """Return the largest rounding error of a score's excess over the threshold."""
    return gamma * ROUNDINGS * (EPS_SINGLE if x.itemsize == 4 else EPS_DOUBLE)


@compile_rows()
def write_above(x: Any, row: Any, top: Any, tau: Any, scale: Any, y: Any) -> Any:
    """Write the projection ``scale * (x - top - tau)_+`` of a row; return how many entries equal tau up to rounding.

    Tau is split into two parts so that a long float32 row still sums to one.
    """
    high = x.dtype.type(tau)
    rest = x.dtype.type(tau - high)
    factor = x.dtype.type(scale)
    zero, bound, near = x.dtype.type(0), x.dtype.type(rounding_of(x, 1.0 / scale)), np.int32(0)
    for i in range(x.shape[1]):
        value = ((x[row, i] - top) - high) - rest
        y[row, i] = value * factor if value > zero else zero
        near += np.int32(abs(value) <= bound)
    return near


@compile_rows()
def write_largest(x: Any, bits: Any, row: Any, low: Any, shift: Any, top: Any, k: Any, gamma: Any, y: Any) -> Any:
    """Write the projection of the k largest entries of a row; return how many entries equal the threshold up to rounding.

    It is called for a row with more than k entries in its support, whose maximum is ``top``. The results go to a row of
    ``y`` (rows, d); for ``bits``, ``low`` and ``shift``, see :func:`~lit_sparse.kernels.cpu.rows.write_keys`.
    """
    d = x.shape[1]
    keys, chosen = empty((1, d), bits.dtype), empty(d, np.uint8)
    least, most = write_keys(bits, row, low, shift, keys)
    choose_largest(keys, d, k, least, most, chosen)
    total = 0.0
    for i in range(d):
        total += (x[row, i] - top) if chosen[i] else x.dtype.type(0)
    tau = (total - gamma) / k
    zero, bound, near = x.dtype.type(0), rounding_of(x, gamma), 0
    for i in range(d):
        excess = (x[row, i] - top) - tau
        y[row, i] = max(x.dtype.type(excess / gamma), zero) if chosen[i] else zero
        near += chosen[i] and abs(excess) <= bound
    return near


@compile_rows()
def project_tile(x: Any, bits: Any, start: Any, stop: Any, y: Any, gamma: Any, k: Any, state: Any) -> None:
    """Project rows ``start .. stop - 1`` onto the simplex, interleaving the passes over the rows.

    A pass over a short row ends before its sums have left the pipeline. A pass over the next row fills that time, while the
    next pass over the same row would have to wait. ``y`` may be ``x``.

    ``x`` and ``y`` are (rows, d); ``k`` is the number of largest entries that take part, or None for all. ``state`` receives
    the maximum and the threshold of each row, and in ``near`` how many entries :func:`settle` has to decide.
    """
    low, shift, lowest, highest = layout_of(x)
    tops, taus, counts, live, near = state
    waiting = 0
    for row in range(start, stop):
        least, most = key_range(bits, row, low, shift)
        j = row - start
        counts[j], near[j] = 0, 0
        if most >= highest or least < lowest:
            write_invalid(x, row, y)
        elif most == lowest:  # nothing is allowed
            write_zeros(row, y)
        else:
            tops[j] = most
            taus[j] = -0.5 * gamma  # for most rows nearer to the root than -gamma, which bounds it; never much worse
            live[waiting] = j
            waiting += 1
    values = floats_of(tops)
    for i in range(waiting):
        tops[live[i]] = tops[live[i]] ^ ((tops[live[i]] >> shift) & low)  # the key of the maximum, read as a float
    for _ in range(NEWTON_PASSES):
        moved = 0
        for i in range(waiting):
            j = live[i]
            total, above = mass_above(x, start + j, values[j], x.dtype.type(taus[j]))
            live[moved] = j
            if above != counts[j]:
                moved += 1
                taus[j] = (total - gamma) / above
            counts[j] = above
        waiting = moved
        if waiting == 0:
            break
    for i in range(waiting):
        j = live[i]
        taus[j], counts[j] = bisect(x, start + j, values[j], gamma, taus[j])
    for row in range(start, stop):
        j = row - start
        if counts[j] == 0:
            continue
        if k is None:  # decided when it is compiled
            near[j] = write_above(x, row, values[j], taus[j], 1.0 / gamma, y)
        elif counts[j] > k or k < count_above(x, row, values[j], taus[j]):
            near[j] = write_largest(x, bits, row, low, shift, values[j], k, gamma, y)
        else:
            near[j] = write_above(x, row, values[j], taus[j], 1.0 / gamma, y)


@compile_rows()
def project_block(start: Any, stop: Any, x: Any, y: Any, gamma: Any, k: Any, length: Any, thresholds: Any) -> None:
    """Project rows ``start .. stop - 1`` onto the simplex, in tiles that stay in the cache.

    Args:
        start: first row.
        stop: one past the last row.
        x: (rows, d) scores.
        y: (rows, d) receives the results.
        gamma: strength of the regularizer.
        k: number of largest entries that take part, or None for all.
        length: length to which rows are padded with -inf, or None. Padding short rows is cheaper than scalar loop
            remainders.
        thresholds: (rows + 1,) receives the threshold of each row that :func:`settle_block` has to decide, NaN for others,
            and last, 1 if there are such rows.
    """
    size = max(1, min(min(TILE_ROWS, TILE_ELEMENTS // x.shape[1]), stop - start))
    bits = bits_of(x)
    numbers = empty((3, size), np.int64)
    state = (empty(size, bits.dtype), empty(size, np.float64), numbers[0], numbers[1], numbers[2])
    if length is not None:
        copies = empty((size, length), x.dtype)
    for first in range(start, stop, size):
        rows = min(size, stop - first)
        if length is None:
            project_tile(x, bits, first, first + rows, y, gamma, k, state)
        else:
            for row in range(rows):
                for i in range(x.shape[1]):
                    copies[row, i] = x[first + row, i]
                for i in range(x.shape[1], length):
                    copies[row, i] = -np.inf
            project_tile(copies, bits_of(copies), 0, rows, copies, gamma, k, state)
            for row in range(rows):
                for i in range(x.shape[1]):
                    y[first + row, i] = copies[row, i]
        for j in range(rows):
            thresholds[first + j] = state[1][j] if state[4][j] > 0 else np.nan
            if state[4][j] > 0:
                thresholds[-1] = 1.0


@compile_rows()
def settle(x: Any, row: Any, top: Any, tau: Any, gamma: Any, k: Any, y: Any) -> None:
    """Decide exactly which of a row's entries close to the threshold are in the support.

    Starting from a superset of the support, entries that are not above its threshold are removed until all are. The
    results in a row of ``y`` (rows, d) are corrected; ``top`` is the row's maximum, ``tau`` its threshold below that.
    """
    bound = rounding_of(x, gamma)
    high, low, size = 0.0, 0.0, 0
    inside = zeros(x.shape[1], np.bool_)
    for i in range(x.shape[1]):
        inside[i] = y[row, i] > 0 or (k == 0 and abs(np.float64(x[row, i] - top) - tau) <= bound)
        if inside[i]:
            high, low = add_difference(high, low, np.float64(x[row, i]), np.float64(top))
            size += 1
    changed, out = True, -np.inf  # out: largest score that does not stand out
    while changed:
        changed = False
        for i in range(x.shape[1]):
            if inside[i] and y[row, i] * gamma <= bound:
                own_high, own_low = add_difference(0.0, 0.0, np.float64(x[row, i]), np.float64(top))
                if x[row, i] > out and stands_out(own_high, own_low, 0, 1, high, low, 0, size, gamma, 0.0):
                    y[row, i] = max(y[row, i], x.dtype.type(SMALLEST))
                else:
                    out = max(out, np.float64(x[row, i]))
                    high, low = add_difference(high, low, -own_high, own_low)
                    size, changed = size - 1, True
                    y[row, i], inside[i] = 0, False


@compile_rows()
def settle_block(start: Any, stop: Any, x: Any, y: Any, gamma: Any, k: Any, thresholds: Any) -> None:
    """Decide exactly which entries close to the threshold are in the support, for the projected rows that have any.

    For the arguments, see :func:`project_block`, which wrote ``y`` and ``thresholds``.
    """
    for row in range(start, stop):
        if thresholds[row] == thresholds[row]:
            top = x[row, 0]
            for i in range(1, x.shape[1]):
                top = max(top, x[row, i])
            settle(x, row, top, thresholds[row], gamma, k, y)


def _project_cpu(out: Array, x: Array, gamma: float, k: int) -> None:
    thresholds, d = np.empty(len(x) + 1), x.shape[1]
    thresholds[-1] = 0.0
    length = (d + SIMD_BLOCK - 1) // SIMD_BLOCK * SIMD_BLOCK if d % SIMD_BLOCK and d <= PADDED_LENGTH else None
    over_rows(project_block, x.shape, SECONDS, x, out, gamma, k or None, length, thresholds)
    if thresholds[-1]:
        over_rows(settle_block, x.shape, SECONDS, x, out, gamma, k, thresholds)


def project_sorted(x: Tensor, gamma: float | Tensor, k: int, roundings: float | Tensor) -> Tensor:
    """Return the projection of ``x / gamma`` onto the simplex by sorting, independent of the compiled kernel.

    Args:
        x: (..., d).
        gamma: strength of the regularizer.
        k: number of largest entries that take part; 0 for all.
        roundings: an entry is in the support if it exceeds the threshold by this many machine epsilons, relative to gamma.

    Source: Held, Wolfe & Crowder (1974), Validation of Subgradient Optimization.
    """
    d = x.shape[-1]
    allowed = x != -torch.inf
    top = x.amax(-1, keepdim=True)
    invalid = ~(x < torch.inf).all(-1, keepdim=True)  # NaN compares false
    empty = ~allowed.any(-1, keepdim=True)
    z = torch.where(invalid | empty, torch.zeros_like(x), x - top)
    order = z.argsort(dim=-1, descending=True, stable=True)
    ranked = z.gather(-1, order)
    count = torch.arange(1, d + 1, device=x.device)
    finite = torch.where(ranked == -torch.inf, torch.zeros_like(ranked), ranked)
    slack = roundings * torch.finfo(x.dtype).eps * gamma
    inside = (gamma + count * (ranked - slack) > finite.cumsum(-1)) & (ranked > -torch.inf) | (ranked == 0)
    if k > 0:
        inside = inside & (count <= k)
    support = inside.sum(-1, keepdim=True)
    tau = (torch.where(inside, finite, torch.zeros_like(finite)).sum(-1, keepdim=True) - gamma) / support
    excess = torch.where(inside, ranked - tau, torch.zeros_like(ranked)).clamp_min(0)
    # The rounding error of tau is distributed among small numbers, where it is exact.
    excess = torch.where(inside, excess - (excess.sum(-1, keepdim=True) - gamma) / support, excess).clamp_min(0)
    y = torch.zeros_like(x).scatter(-1, order, excess / gamma)
    y = torch.where(invalid, torch.full_like(y, torch.nan), y)
    return torch.where(allowed & ~empty, y, torch.zeros_like(y))


@row_kernel(_project_cpu, triton_rows.project_simplex)
def project_simplex(x: Tensor, gamma: float, k: int) -> Tensor:
    """Return the projection of ``x / gamma`` (..., d) onto the simplex.

    Only the ``k`` largest entries take part when ``k > 0``, ties going to the lowest index. ``-inf`` marks an entry that is
    not allowed; a row without allowed entries gives zeros, a row with NaN or +inf gives NaN at its allowed entries.
    """
    return project_sorted(x, gamma, k, ROUNDINGS)


@compile_rows(REDUCTION_FLAGS - {"nnan"})
def support_sums(y: Any, v: Any, row: Any) -> Any:
    """Return the sum of ``v`` over the support of a row of ``y``, the support size, and the sum of ``y``."""
    total, mass = 0.0, y.dtype.type(0)
    count = 0
    for i in range(y.shape[1]):
        if y[row, i] != 0:
            total += v[row, i]
            count += 1
        mass += y[row, i]
    return total, count, mass


@compile_rows()
def center_block(start: Any, stop: Any, out: Any, v: Any, y: Any, gamma: Any) -> None:
    """Write ``(v - m) / gamma`` on the support of y, m the mean of v there, and 0 elsewhere, for rows ``start .. stop - 1``.

    ``out`` receives the result; all arrays are (rows, d).
    """
    scale, zero = v.dtype.type(1.0 / gamma), v.dtype.type(0)
    for row in range(start, stop):
        total, count, mass = support_sums(y, v, row)
        mean = v.dtype.type(total / count if mass == mass else np.nan)
        for i in range(y.shape[1]):
            out[row, i] = (v[row, i] - mean) * scale if y[row, i] != 0 else zero


@row_kernel(center_block, triton_rows.center_on_support, seconds=0.13e-9)
def center_on_support(v: Tensor, y: Tensor, gamma: float) -> Tensor:
    """Return ``(v - m) / gamma`` on the support of y, m the mean of v there, and 0 elsewhere, all (..., d).

    This is the Jacobian of the simplex projection at ``y``, times ``v``. It is symmetric and constant on each support.
    """
    support = y != 0
    count = support.sum(-1, keepdim=True).clamp_min(1)
    mean = torch.where(support, v, 0.0).sum(-1, keepdim=True) / count
    whole = torch.where(y.isnan().any(-1, keepdim=True), torch.nan, 1.0)  # a broken row has a broken derivative
    return torch.where(support, (v - mean) * whole / gamma, 0.0)
