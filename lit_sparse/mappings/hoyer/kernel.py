"""Projection of rows onto a target of l1 and l2 norm (Hoyer 2004), in linear time.

With z = x - max x, the projection is ``y = l2 (z - tau)_+ / ||(z - tau)_+||_2``, tau the root of the decreasing
``Psi = ||(z - tau)_+||_1 / ||(z - tau)_+||_2 - l1 / l2`` (Thom & Palm 2013; Thom, Rapp & Palm 2015). A set of entries that
holds the support gives, in closed form, a threshold to the left of the root; from the right, Newton's method leads back.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import REDUCTION_FLAGS, bits_of, compile_rows, empty, layout_of
from lit_sparse.kernels.cpu.rows import ends_of, gather_allowed, row_views, spread_allowed, unit_of
from lit_sparse.kernels.gpu import triton_rows
from lit_sparse.kernels.row_kernel import row_kernel

__all__ = ["project_hoyer"]

PASSES = 200
NARROW, SHRINK, FLOOR = 1e-3, 1e-9, -1e4
CANCELLED = 1e-4  # of a sum of squares: what is left when less of it remains has lost half of float32's digits
SLACK_OF_TIES = 1e-14  # rounding of the ratio that an entry at the threshold has
EDGE_SINGLE, EDGE_DOUBLE = 64.0 * float(np.finfo(np.float32).eps), 64.0 * float(np.finfo(np.float64).eps)
SLACK = 1e-9  # on the square of l1 / l2, against the number of equal largest entries
TINY = 1e-280  # below, float64 runs out of digits
UP = 2.0**700  # powers of two that bring float64 back from the ends of its range
DOWN = 2.0**-540


@compile_rows(REDUCTION_FLAGS)
def moments_above(z: Any, n: Any, tau: Any) -> Any:
    """Return number, sum and sum of squares of the first n entries of z above tau.

    The sums are of z, not of z - tau, because subtracting a distant tau would lose the differences of nearly equal float32
    entries.

    Args:
        z: (>= n,) values minus their maximum.
        n: number of values.
        tau: bound.
    """
    threshold = z.dtype.type(tau)
    count, total, square = np.int32(0), 0.0, 0.0
    for j in range(n):
        above = z[j] > threshold
        count += np.int32(above)
        value = np.float64(z[j]) if above else 0.0
        total += value
        square += value * value
    return count, total, square


@compile_rows(REDUCTION_FLAGS)
def spread_above(z: Any, n: Any, tau: Any, mean: Any) -> Any:
    """Return the sum of squared distances from the mean over the first n entries of z above tau."""
    threshold, center, zero = z.dtype.type(tau), z.dtype.type(mean), z.dtype.type(0)
    square = 0.0
    for j in range(n):
        distance = z[j] - center
        square += distance * distance if z[j] > threshold else zero
    return square


@compile_rows(REDUCTION_FLAGS)
def count_equal(a: Any, n: Any, value: Any) -> Any:
    """Return how many of the first n entries equal ``value``."""
    count = np.int32(0)
    for j in range(n):
        count += np.int32(a[j] == value)
    return count


@compile_rows()
def threshold_of(z: Any, n: Any, tau: Any, ratio: Any, count: Any, total: Any, square: Any) -> Any:
    """Return the threshold whose support is the set of entries above tau, given their number, sum and sum of squares.

    Args:
        z: (>= n,) values minus their maximum.
        n: number of values.
        tau: bound below the entries of the set.
        ratio: quotient of the l1 and the l2 norm.
        count: size of the set, above ratio^2.
        total: sum of its entries.
        square: sum of their squares.
    """
    mean = total / count
    spread = square - total * total / count
    if spread <= CANCELLED * square:
        spread = spread_above(z, n, tau, mean)
    return mean - ratio * math.sqrt(spread / (count * (count - ratio * ratio)))


@compile_rows()
def solve(z: Any, n: Any, ratio: Any) -> Any:
    """Return the threshold tau at which the l1 norm of ``(z - tau)_+`` is ``ratio`` times its l2 norm.

    Requires that fewer than ratio^2 entries attain the maximum 0, and ratio^2 < n.

    Args:
        z: (>= n,) values minus their maximum.
        n: number of values.
        ratio: quotient of the l1 and the l2 norm.
    """
    count, total, square = moments_above(z, n, -np.inf)
    mean, lower = total / n, threshold_of(z, n, -np.inf, ratio, count, total, square)
    deviation = (mean - lower) * math.sqrt(n - ratio * ratio) / ratio
    tau = max(mean + deviation * (math.log(0.5 * n / (ratio * ratio)) - 1.0), lower)  # right for exponential tails
    tau = tau if tau < 0.0 else mean
    lower = np.float64(z.dtype.type(lower))
    upper, size, refined = 0.0, 0, 0  # size: of the set that tau was computed from in closed form, else 0
    for i in range(PASSES):
        tau = np.float64(z.dtype.type(tau))  # what entries are compared with
        count, total, square = moments_above(z, n, tau)
        if count == size:  # found; but sums around a distant threshold may have misplaced it
            exact = threshold_of(z, n, tau, ratio, count, total, 0.0)
            if exact <= tau or refined == count:
                break
            tau, refined = exact, count
            continue
        excess = total - count * tau  # the maximum is 0, so neither difference cancels
        energy = square - tau * (total + excess)
        if count > ratio * ratio and excess >= ratio * math.sqrt(energy):
            lower = max(lower, tau)
            tau = max(threshold_of(z, n, tau, ratio, count, total, square), tau)
            size = count
            continue
        upper, size = min(upper, tau), 0
        slope = (excess * excess / energy - count) / math.sqrt(energy) if energy > 0.0 else 0.0
        ahead = tau - (excess / math.sqrt(energy) - ratio) / slope if slope < 0.0 else -np.inf
        if not lower < ahead < upper:
            ahead = lower if i < PASSES // 4 else 0.5 * (lower + upper)
        if ahead == tau:
            break
        tau = ahead
    return tau


@compile_rows()
def write_equal(a: Any, n: Any, top: Any, ties: Any, first: Any, second: Any, row: Any, out: Any) -> None:
    """Write ``first`` to the first of the largest entries, ``second`` to the next ``ties - 1`` of them, and zeros elsewhere.

    Args:
        a: (>= n,) values.
        n: number of values.
        top: their maximum.
        ties: number of the largest entries that get a value.
        first: result of the first of them.
        second: result of the others.
        row: which row.
        out: (rows, d) receives the results.
    """
    left = ties
    for j in range(n):
        out[row, j] = 0
        if a[j] == top and left > 0:
            out[row, j] = first if left == ties else second
            left -= 1


@compile_rows()
def rescale(a: Any, n: Any, top: Any, depth: Any, z: Any) -> None:
    """Write ``(a - top) / depth`` to z, so that squares cannot overflow; values far below the support are cut off.

    Args:
        a: (>= n,) values.
        n: number of values.
        top: their maximum.
        depth: unit of the results, > 0.
        z: (>= n,) receives the results.
    """
    scale, floor = 1.0 / depth, z.dtype.type(FLOOR)
    for j in range(n):
        z[j] = max((np.float64(a[j]) - top) * scale, floor)


@compile_rows()
def rescue(a: Any, n: Any, depth: Any) -> Any:
    """Scale a row near the limits of float64's range, in place, by a power of two, and return that power."""
    scale = UP if depth < TINY else (0.25 if depth == np.inf else 1.0)
    if scale != 1.0:
        for j in range(n):
            a[j] = a[j] * scale
    return scale


@compile_rows()
def stands_out(a: Any, n: Any, value: Any, ratio: Any) -> Any:
    """Return whether a value is above the threshold by more than rounding.

    It is if the excess of the entries over it has a lower ratio of l1 to l2 norm.

    Args:
        a: (>= n,) values.
        n: number of values.
        value: one of them.
        ratio: quotient of the l1 and the l2 norm.
    """
    unit, excess, energy = np.float64(value), 0.0, 0.0
    for j in range(n):
        more = max(np.float64(a[j]) - unit, 0.0)
        excess += more
        energy += more * more
    return excess < ratio * math.sqrt(energy) * (1.0 - SLACK_OF_TIES)


@compile_rows()
def project_row(a: Any, n: Any, least: Any, most: Any, sparseness: Any, norm: Any, z: Any, row: Any, out: Any) -> None:
    """Write the Hoyer projection of the first n values of ``a``, which lie in ``least .. most``, to a row of ``out``.

    Args:
        a: (>= n,) values; they may be scaled.
        n: number of values.
        least: smallest value.
        most: largest value.
        sparseness: Hoyer sparseness of the result, in [0, 1].
        norm: l2 norm of the result.
        z: (>= n,) workspace.
        row: which row.
        out: (rows, d), whose row receives the result in its first n entries.
    """
    root = math.sqrt(n)
    ratio = min(max(root - sparseness * (root - 1.0), 1.0), root)
    total = norm * ratio  # the l1 norm
    ties = count_equal(a, n, most)
    if ties >= ratio * ratio - SLACK * n:  # every feasible point on the largest entries is nearest: take the first few
        size = min(max(math.ceil(ratio * ratio - SLACK * n), 1), ties)
        rest = math.sqrt(max(norm * norm - total * total / size, 0.0))
        first = total / size + rest * math.sqrt((size - 1.0) / size)
        second = total / size - rest / math.sqrt(size * (size - 1.0)) if size > 1 else 0.0
        write_equal(a, n, most, size, first, second, row, out)
        return
    if n - ratio * ratio <= SLACK * n:
        for j in range(n):
            out[row, j] = total / n
        return
    scale = rescue(a, n, np.float64(most) - np.float64(least))
    top, tau = np.float64(most) * scale, 0.0
    depth = top - np.float64(least) * scale
    for _ in range(PASSES):  # next to an entry far below, all others are nearly equal: rescale to their differences
        rescale(a, n, top, depth, z)
        tau = solve(z, n, ratio)
        if tau <= -NARROW:
            break
        depth *= -tau if tau < -SHRINK else SHRINK
    count, scores, _square = moments_above(z, n, tau)
    mean = scores / count
    spread = spread_above(z, n, tau, mean)
    threshold, center, zero = z.dtype.type(tau), z.dtype.type(mean), z.dtype.type(0)
    kappa = z.dtype.type(math.sqrt(max(norm * norm - total * total / count, 0.0) / spread))
    base = z.dtype.type(total / count)
    bound = z.dtype.type(EDGE_SINGLE if z.itemsize == 4 else EDGE_DOUBLE) * base
    near = np.int32(0)
    for j in range(n):
        value = base + kappa * (z[j] - center)
        out[row, j] = value if value > zero and z[j] > threshold else zero
        near += np.int32(abs(value) <= bound)
    if near > 0:
        for j in range(n):
            if zero < out[row, j] <= bound and not stands_out(a, n, a[j], ratio):
                out[row, j] = zero


@compile_rows()
def magnitudes(bits: Any, n: Any, low: Any) -> Any:
    """Replace n floats, given by their bits, by their magnitudes; return the bits of the smallest and the largest."""
    least, most = low, bits.dtype.type(0)
    for j in range(n):
        bits[j] &= low
        least, most = min(least, bits[j]), max(most, bits[j])
    return least, most


@compile_rows()
def project_block(start: Any, stop: Any, out: Any, x: Any, sparsenesses: Any, norms: Any, nonneg: Any) -> None:
    """Write the Hoyer projections of rows ``start .. stop - 1`` of ``x`` to ``out``.

    Args:
        start: first row.
        stop: row after the last one.
        out: (rows, d) receives the results.
        x: (rows, d) values, -inf where an entry is not allowed.
        sparsenesses: (rows,) Hoyer sparseness of each result, or (1,) for one that all rows share.
        norms: (rows,) l2 norm of each result, or (1,) for one that all rows share.
        nonneg: whether the result is nonnegative; otherwise it has the signs of x.
    """
    d = x.shape[1]
    bits, cell, cell_bits = row_views(x)
    a, z, places = empty(d, x.dtype), empty(d, x.dtype), empty(d, np.int32)
    a_bits = bits_of(a)
    low, _, _, _ = layout_of(x)
    for row in range(start, stop):
        if not ends_of(x, bits, row, out, cell, cell_bits):
            continue
        n, cell[1] = gather_allowed(x, row, cell[1], a, places)
        if not nonneg:
            cell_bits[1], cell_bits[0] = magnitudes(a_bits, n, low)
        s = sparsenesses[row if len(sparsenesses) > 1 else 0]
        project_row(a, n, cell[1], cell[0], s, norms[row if len(norms) > 1 else 0], z, row, out)
        spread_allowed(row, n, places, out)
        if not nonneg:
            for i in range(d):
                out[row, i] = -out[row, i] if x[row, i] < 0 else out[row, i]


@row_kernel(project_block, triton_rows.project_hoyer, seconds=2e-9)
def project_hoyer(x: Tensor, sparseness: float | Tensor, norm: float | Tensor, nonneg: bool) -> Tensor:
    """Return the points nearest to x (..., d) of a Hoyer sparseness and an l2 norm, which are (..., 1) or numbers.

    ``-inf`` marks an entry that is not allowed; a row without allowed entries gives zeros, a row with NaN or +inf gives NaN at
    its allowed entries.

    This definition sorts: the support is the first d entries that keep the next one out.
    """
    sparseness, norm = (torch.as_tensor(number, dtype=x.dtype, device=x.device) for number in (sparseness, norm))
    allowed = x != -torch.inf
    n = allowed.sum(-1, keepdim=True)
    invalid = ~(x < torch.inf).all(-1, keepdim=True)
    unit = unit_of(torch.where(allowed & ~invalid, x.abs(), 0.0))
    a = (x if nonneg else x.abs()) / unit
    top = torch.where(allowed, a, -torch.inf).amax(-1, keepdim=True)
    z = torch.where(invalid | (n == 0) | ~allowed, torch.full_like(x, -torch.inf), a - top)
    z = torch.where(invalid & allowed, 0.0, z)
    root = n.clamp_min(1).to(x.dtype).sqrt()
    ratio = torch.minimum((root - sparseness * (root - 1)).clamp_min(1), root)
    total = norm * ratio
    order = z.argsort(dim=-1, descending=True, stable=True)
    ranked = z.gather(-1, order)
    value = torch.where(ranked == -torch.inf, 0.0, ranked)
    count = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
    sums, squares = value.cumsum(-1), value.square().cumsum(-1)
    below = torch.cat([value[..., 1:], value[..., -1:]], -1)
    excess, energy = sums - count * below, squares - 2 * below * sums + count * below.square()
    ties = (ranked == 0).sum(-1, keepdim=True)
    fits = (excess.square() >= ratio.square() * energy) & (count > ratio.square()) & (count > ties)
    size = torch.where(fits & (count < n), count, torch.inf).amin(-1, keepdim=True)
    size = torch.minimum(size, n.to(x.dtype))
    tied = ties >= ratio.square() - SLACK * n
    few = torch.minimum((ratio.square() - SLACK * n).ceil().clamp_min(1), ties.to(x.dtype))
    size = torch.where(tied, few, size).clamp_min(1)
    inside = (count <= size) & (ranked > -torch.inf)
    mean = torch.where(inside, value, 0.0).sum(-1, keepdim=True) / size
    centered = torch.where(inside, value - mean, 0.0)
    # On tied entries any direction is as good; the first is taken.
    unit = torch.where(count == 1, 1.0, 0.0) - 1 / size
    centered = torch.where(tied, torch.where(inside, unit, 0.0), centered)
    spread = centered.square().sum(-1, keepdim=True)
    rest = (norm * norm - total.square() / size).clamp_min(0)
    kappa = torch.where(spread > 0, (rest / torch.where(spread > 0, spread, 1.0)).sqrt(), 0.0)
    p = torch.where(inside, total / size + kappa * centered, 0.0).clamp_min(0)
    y = torch.zeros_like(x).scatter(-1, order, p)
    y = y if nonneg else torch.where(x < 0, -y, y)
    y = torch.where(invalid, torch.full_like(y, torch.nan), y)
    return torch.where(allowed & (n > 0), y, torch.zeros_like(y))
