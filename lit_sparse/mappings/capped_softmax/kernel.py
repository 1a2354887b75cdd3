"""Capped softmax of rows, and its Jacobian.

No probability of n allowed entries exceeds ``1 / (rho n)``: ``y = sigma(z - tau) / (rho n)``, where z = x / gamma, sigma is the
logistic function and tau makes the row sum to one, ``sum sigma(z - tau) = rho n``. Newton's method runs on the logarithm of
that sum, inside a bracket; exponentials are taken around a reference near tau, so that none overflows at any scale.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import REDUCTION_FLAGS, compile_rows, empty, layout_of
from lit_sparse.kernels.cpu.rows import (
    choose_largest,
    ends_of,
    gather_allowed,
    next_in_bracket,
    normalized,
    row_views,
    spread_allowed,
    write_invalid,
    write_keys,
)
from lit_sparse.kernels.cpu.vector_math import exponentials_around, workspace
from lit_sparse.kernels.gpu import triton_rows
from lit_sparse.kernels.loops import repeat
from lit_sparse.kernels.row_kernel import row_kernel

__all__ = ["capped_product", "map_capped"]

NEWTON_PASSES, PASSES, REFERENCE_PASSES = 30, 200, 64
CHUNK = 1024
DEEP = 64.0  # range of scores above which float32 loses digits of the small ones
NEAR, FAR = 20.0, 85.0  # how far tau may go from the reference, and where exponents are cut off
FARTHEST = 1e30  # from the threshold, where a sigmoid is 0 or 1
ENOUGH = 40.0  # beyond this, a sigmoid differs from its limit by less than rounding


def _halved(lower: Tensor, upper: Tensor, z: Tensor, allowed: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the half of a bracket that holds the threshold."""
    middle = lower + 0.5 * (upper - lower)
    above = torch.where(allowed, torch.sigmoid(z - middle), 0.0).sum(-1, keepdim=True) >= target
    return torch.where(above, middle, lower), torch.where(above, upper, middle)


@compile_rows(REDUCTION_FLAGS)
def chunk_sums(powers: Any, part: Any) -> Any:
    """Return the sums of ``sigma = e / (q + e)`` and of ``sigma (1 - sigma)`` over a short chunk, in the dtype of e.

    ``powers`` (m,) are the exponentials e, and ``part`` is q.
    """
    one, total, slope = powers.dtype.type(1), powers.dtype.type(0), powers.dtype.type(0)
    for j in range(len(powers)):
        inverse = one / (part + powers[j])
        share = powers[j] * inverse
        total += share
        slope += share * (part * inverse)
    return total, slope


@compile_rows()
def logistic_sums(work: Any, n: Any, q: Any) -> Any:
    """Return the sums of ``sigma = e / (q + e)`` and ``sigma (1 - sigma)`` over n entries, accumulated in float64 by chunks.

    Args:
        work: (3, >= n) workspace; its first row holds the exponentials e.
        n: number of entries.
        q: number in the denominator.
    """
    total, slope = 0.0, 0.0
    for first in range(0, n, CHUNK):
        part, part_slope = chunk_sums(work[0, first : min(first + CHUNK, n)], work.dtype.type(q))
        total += part
        slope += part_slope
    return total, slope


@compile_rows(REDUCTION_FLAGS)
def sum_and_least(z: Any, n: Any, work: Any) -> Any:
    """Return the sum of the n exponentials in ``work[0]``, and the smallest of the n scores z."""
    total, least = 0.0, z.dtype.type(0)
    for j in range(n):
        total += work[0, j]
        least = min(least, z[j])
    return total, least


@compile_rows()
def solve(z: Any, n: Any, rho: Any, near: Any, work: Any, bits: Any) -> Any:
    """Write exponentials e around a reference to ``work[0]``; return the q at which ``e / (q + e)`` sums to ``rho n``.

    The unknown is ``log q``, tau less the reference. If ``near``, it is known to be no farther from 0 than
    ENOUGH + log (n / rho); else all of z is below 0.

    Args:
        z: (n,) scaled scores.
        n: number of scores.
        rho: rho, in (0, 1).
        near: whether the solution is near 0.
        work: (3, >= n) workspace; see :func:`~lit_sparse.kernels.cpu.vector_math.workspace`.
        bits: the memory of ``work`` as integers.
    """
    target = rho * n
    tolerance = 1e-4 if z.itemsize == 4 else 1e-10  # of the last step; what it leaves behind is its square
    reference = 0.0
    exponentials_around(z, n, reference, FAR, work, bits)
    if near:
        far = ENOUGH + math.log(n / rho)
        lower, upper, offset = -far, far, 0.0
    else:
        far = NEAR
        total, least = sum_and_least(z, n, work)
        logit = math.log(rho) - math.log1p(-rho)
        lower, upper = least - logit, min(math.log(total / target), -logit)  # sigma is less than the exponential
        lower = min(lower, upper)
        offset = upper
    for i in range(PASSES):
        if abs(offset) > far:
            moved = np.float64(z.dtype.type(reference + offset))
            slack = 1e-15 * (abs(reference) + abs(moved))  # what rounding takes must not exclude the solution
            lower, upper = lower + (reference - moved) - slack, upper + (reference - moved) + slack
            reference, offset = moved, 0.0
            exponentials_around(z, n, reference, FAR, work, bits)
        total, slope = logistic_sums(work, n, math.exp(offset))
        ahead = offset + math.log(total / target) * total / slope if total > 0.0 and slope > 0.0 else np.inf
        lower, upper, ahead = next_in_bracket(offset, total >= target, lower, upper, ahead, i <= NEWTON_PASSES)
        step, offset = abs(ahead - offset), ahead
        if step <= tolerance or upper - lower <= tolerance:
            break
    return math.exp(offset)


@compile_rows()
def write_logistic(work: Any, n: Any, q: Any, scale: Any, row: Any, out: Any) -> None:
    """Write ``scale e / (q + e)`` to a row of ``out``, for the exponentials e of its first n entries in ``work[0]``.

    Args:
        work: (3, >= n) workspace; its first row holds the exponentials.
        n: number of entries.
        q: number in the denominator.
        scale: factor of the results.
        row: which row.
        out: (rows, d) receives the results.
    """
    part, factor = work.dtype.type(q), work.dtype.type(scale)
    for j in range(n):
        out[row, j] = work[0, j] / (part + work[0, j]) * factor


@compile_rows()
def map_block(start: Any, stop: Any, out: Any, x: Any, rhos: Any, gamma: Any) -> None:
    """Write the capped softmax of rows ``start .. stop - 1`` of ``x`` to ``out``.

    Args:
        start: first row.
        stop: row after the last one.
        out: (rows, d) receives the results.
        x: (rows, d) scores, -inf where an entry is not allowed.
        rhos: (rows,) rhos, or (1,) for one that all rows share; see
            :func:`lit_sparse.mappings.functional.capped_softmax`.
        gamma: strength of the regularizer.
    """
    d = x.shape[1]
    bits, cell, cell_bits = row_views(x)
    z, places = empty(d, x.dtype), empty(d, np.int32)
    work, work_bits = workspace(x, d)
    low, shift, _, _ = layout_of(x)
    keys, chosen = empty((1, d), bits.dtype), empty(d, np.uint8)
    factor = x.dtype.type(1.0 / gamma)
    for row in range(start, stop):
        if not ends_of(x, bits, row, out, cell, cell_bits):
            continue
        rho = rhos[row if len(rhos) > 1 else 0]
        if not 0.0 < rho < 1.0:
            write_invalid(x, row, out)
            continue
        n, least = gather_allowed(x, row, cell[1], z, places)
        origin, near = cell[0], (np.float64(cell[0]) - least) / gamma > DEEP
        if near:
            # The distance of the largest scores above their cap has no effect. Only differences near the score where hard caps
            # would end matter; farther away than ENOUGH the sum is right up to rounding.
            lowest, highest = write_keys(bits, row, low, shift, keys)
            choose_largest(keys, d, min(np.int64(rho * n), n - 1) + 1, lowest, highest, chosen)
            for i in range(d):
                origin = min(origin, x[row, i]) if chosen[i] else origin
        for j in range(n):
            z[j] = (z[j] - origin) * factor
        q = solve(z, n, rho, near, work, work_bits)
        total, _ = logistic_sums(work, n, q)
        write_logistic(work, n, q, 1.0 / total, row, out)
        spread_allowed(row, n, places, out)


@row_kernel(map_block, triton_rows.map_capped, seconds=4e-9)
def map_capped(x: Tensor, rho: float | Tensor, gamma: float) -> Tensor:
    """Return capped softmax of ``x / gamma`` (..., d); rho is (..., 1) or a number.

    ``-inf`` marks an entry that is not allowed; a row without allowed entries gives zeros, a row with NaN or +inf, or a rho
    outside (0, 1), gives NaN at its allowed entries.

    This definition bisects for the threshold, relative to the score at which hard caps would end.
    """
    rho = torch.as_tensor(rho, dtype=x.dtype, device=x.device)
    allowed = x != -torch.inf
    invalid = ~(x < torch.inf).all(-1, keepdim=True) | ~((rho > 0) & (rho < 1))
    n = allowed.sum(-1, keepdim=True).clamp_min(1)
    target = rho * n
    scores = torch.where(allowed, torch.where(invalid, 0.0, x), -torch.inf)
    ranked = scores.sort(dim=-1, descending=True).values
    rank = torch.where(invalid, 0.0, target).long().clamp_max(n - 1)
    z = ((scores - ranked.gather(-1, rank)) / gamma).clamp(-FARTHEST, FARTHEST)
    # Farther away the sum is right up to rounding.
    upper = ENOUGH + torch.ones_like(x).sum(-1, keepdim=True).log() - torch.where(invalid, 1.0, rho).log()
    lower, _ = repeat(_halved, (-upper, upper), (z, allowed, target), REFERENCE_PASSES)
    return normalized(torch.where(allowed, torch.sigmoid(z - lower), 0.0), allowed, invalid)


@compile_rows(REDUCTION_FLAGS - {"nnan"})
def count_allowed(x: Any, row: Any) -> Any:
    """Return the number of entries of a row that are not -inf, which are the allowed ones."""
    n = 0
    for i in range(x.shape[1]):
        n += x[row, i] != -np.inf
    return n


@compile_rows(REDUCTION_FLAGS - {"nnan"})
def weighted_sums(v: Any, y: Any, row: Any, limit: Any) -> Any:
    """Return the sums of ``c = y (1 - limit y)`` and of ``c v`` over a row's nonzero y.

    Args:
        v: (rows, d) directions.
        y: (rows, d) results of the mapping.
        row: which row.
        limit: rho times the number of allowed entries.
    """
    one, zero, factor = y.dtype.type(1), y.dtype.type(0), y.dtype.type(limit)
    mass, total = 0.0, 0.0
    for i in range(y.shape[1]):
        c = y[row, i] * (one - factor * y[row, i])
        mass += c
        total += c * v[row, i] if y[row, i] != zero else zero
    return mass, total


@compile_rows()
def product_block(start: Any, stop: Any, out: Any, v: Any, y: Any, x: Any, rhos: Any, gamma: Any) -> None:
    """Multiply rows ``start .. stop - 1`` of ``v`` by the Jacobian of capped softmax at its result ``y``.

    Args:
        start: first row.
        stop: row after the last one.
        out: (rows, d) receives the products.
        v: (rows, d) directions.
        y: (rows, d) results of the mapping.
        x: (rows, d) scores, -inf where an entry is not allowed.
        rhos: (rows,) rhos, or (1,) for one that all rows share; see
            :func:`lit_sparse.mappings.functional.capped_softmax`.
        gamma: strength of the regularizer.
    """
    one, zero, scale = y.dtype.type(1), y.dtype.type(0), y.dtype.type(1.0 / gamma)
    for row in range(start, stop):
        limit = rhos[row if len(rhos) > 1 else 0] * count_allowed(x, row)
        factor = y.dtype.type(limit)
        mass, total = weighted_sums(v, y, row, limit)
        mean = y.dtype.type(total / mass) if mass != 0.0 else zero
        for i in range(y.shape[1]):
            c = y[row, i] * (one - factor * y[row, i])
            out[row, i] = c * (v[row, i] - mean) * scale if y[row, i] != zero else zero


@row_kernel(product_block, triton_rows.capped_product, seconds=0.5e-9)
def capped_product(v: Tensor, y: Tensor, x: Tensor, rho: float | Tensor, gamma: float) -> Tensor:
    """Return the product of the Jacobian of capped softmax of x at its result y and v, all (..., d)."""
    rho = torch.as_tensor(rho, dtype=y.dtype, device=y.device)
    support = y != 0
    c = y * (1 - rho * (x != -torch.inf).sum(-1, keepdim=True) * y)
    v = torch.where(support, v, 0.0)
    mass = c.sum(-1, keepdim=True)
    mean = (c * v).sum(-1, keepdim=True) / torch.where(mass == 0, 1.0, mass)
    return torch.where(support, c * (v - mean) / gamma, 0.0)
