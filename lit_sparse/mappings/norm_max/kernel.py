"""norm-max of rows, and its Jacobian.

With ``z = (x - max x) / gamma``, ``r = 1 / (alpha - 1)`` and ``m = (z - tau)_+`` the result is ``y = m^r / sum m^r``, where tau
in [-1, 0) solves ``sum m^(r + 1) = 1``: the norm of m that is dual to the alpha-norm is one. It is convex in tau, so that
Newton's method needs a few passes. For alpha = 2 a given support leaves a quadratic equation, and the passes end with the
support.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import compile_rows, empty
from lit_sparse.kernels.cpu.rows import next_in_bracket, normalized, row_views, scaled_scores, top_of, write_invalid
from lit_sparse.kernels.loops import bisect
from lit_sparse.kernels.row_kernel import row_kernel
from lit_sparse.mappings.entmax.steep import CEILING_DOUBLE, CEILING_SINGLE

__all__ = ["map_norm", "norm_product", "norm_weights"]

NEWTON_PASSES, PASSES, REFERENCE_PASSES = 30, 120, 64
LAST_BITS = 4e-16  # of a root
ROUNDINGS = 16.0  # of an m that is zero
EPS = float(np.finfo(np.float64).eps)
UNSURE, STEEP = 1e-10, 1e-4  # rounding of m = z - tau: its sign is unsure below, its root steep below


@compile_rows()
def norm_sums(z: Any, n: Any, r: Any, last: Any, least: Any) -> Any:
    """Return the sums of ``m^r`` and ``m^(r + 1)`` and the number of m > 0, with ``m = least + (z - last)`` for scores z.

    Args:
        z: (>= n,) scaled scores ``(x - max x) / gamma``.
        n: number of scores.
        r: 1 / (alpha - 1).
        last: score at which m is ``least``.
        least: the value of m there.
    """
    low, high, count = 0.0, 0.0, 0
    for j in range(n):
        m = least + (z[j] - last)
        if m > 0.0:
            u = m if r == 1.0 else m * m if r == 2.0 else m**r
            low += u
            high += u * m
            count += 1
    return low, high, count


@compile_rows()
def solve(z: Any, n: Any, alpha: Any) -> Any:
    """Return the threshold tau of norm-max for the first n scaled scores z, accurate to the last bits.

    Args:
        z: (>= n,) scaled scores ``(x - max x) / gamma``.
        n: number of scores, >= 1.
        alpha: exponent of the norm, > 1.
    """
    lower, upper = -1.0, -math.exp(-(alpha - 1.0) / alpha * math.log(n))
    tau, size = 0.5 * (lower + upper), 0
    for i in range(PASSES):
        low, high, count = norm_sums(z, n, 1.0 / (alpha - 1.0), tau, 0.0)
        if count == size:
            break
        ahead = tau + (high - high ** (1.0 / alpha)) / low
        rest = low * low - count * (high - 1.0)
        if alpha == 2.0 and rest > 0.0:
            ahead, size = tau + (low - math.sqrt(rest)) / count, count
        lower, upper, inside = next_in_bracket(tau, high >= 1.0, lower, upper, ahead, i <= NEWTON_PASSES)
        size = size if inside == ahead else 0
        step, tau = abs(inside - tau), inside
        if step <= LAST_BITS * -tau or upper - lower <= LAST_BITS * -lower:
            break
    return tau


@compile_rows()
def settle(z: Any, n: Any, alpha: Any, tau: Any, near: Any) -> Any:
    """Return the smallest score of the support and its excess m over tau, accurate to all digits.

    It is needed for alpha > 2, where the weight is steep in a small m.

    A score is in the support if ``sum m^(r + 1)`` is below one at the threshold that equals the score.

    Args:
        z: (>= n,) scaled scores ``(x - max x) / gamma``.
        n: number of scores.
        alpha: exponent of the norm, > 2.
        tau: threshold.
        near: (>= n,) float64 workspace.
    """
    r, unsure, last = 1.0 / (alpha - 1.0), 0, np.inf
    for j in range(n):
        if z[j] - tau > UNSURE:
            last = min(last, z[j])
        elif z[j] - tau > -UNSURE:
            near[unsure] = z[j]
            unsure += 1
    ranked = np.sort(near[:unsure])
    first, end = 0, unsure  # those from ``end`` are in the support, those before ``first`` are not
    while first < end:
        middle = (first + end) // 2
        if norm_sums(z, n, r, ranked[middle], 0.0)[1] < 1.0:
            end = middle
        else:
            first = middle + 1
    if end < unsure:
        last = ranked[end]
    lower, upper = 0.0, 1.0
    least = min(max(last - tau, UNSURE), 1.0)
    for i in range(PASSES):
        low, high, _ = norm_sums(z, n, r, last, least)  # those below ``last`` are counted from their own m > 0 on
        ahead = least - (high - high ** (1.0 / alpha)) / low
        lower, upper, ahead = next_in_bracket(least, high < 1.0, lower, upper, ahead, i <= NEWTON_PASSES)
        step, least = abs(ahead - least), ahead
        if step <= LAST_BITS * least or upper - lower <= LAST_BITS * lower:
            break
    return last, least


@compile_rows()
def map_block(start: Any, stop: Any, out: Any, x: Any, alphas: Any, gamma: Any) -> None:
    """Write the norm-max of rows ``start .. stop - 1`` of ``x`` to ``out``, computed in float64.

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
    z, near, places = empty(d + 1, np.float64), empty(d, np.float64), empty(d + 1, np.int32)
    for row in range(start, stop):
        if not top_of(x, bits, row, out, cell, cell_bits):
            continue
        alpha = alphas[row if len(alphas) > 1 else 0]
        if not 1.0 < alpha < np.inf:
            write_invalid(x, row, out)
            continue
        n = 0
        for i in range(d):  # without a branch: the next overwrites what does not count
            z[n] = (np.float64(x[row, i]) - np.float64(cell[0])) / gamma
            places[n] = i
            n += z[n] > -1.0
        r, last, least = 1.0 / (alpha - 1.0), solve(z, n, alpha), 0.0
        if alpha > 2.0:
            smallest = np.inf
            for j in range(n):
                smallest = min(smallest, abs(z[j] - last))
            if smallest < STEEP:
                last, least = settle(z, n, alpha, last, near)
        total = 0.0
        for j in range(n):
            m = least + (z[j] - last)
            z[j] = m**r if m >= least and (least > 0.0 or m > ROUNDINGS * EPS) else 0.0
            total += z[j]
        for j in range(n):
            out[row, places[j]] = z[j] / total


@row_kernel(map_block, seconds=30e-9)
def map_norm(x: Tensor, alpha: float | Tensor, gamma: float) -> Tensor:
    """Return norm-max of ``x / gamma`` (..., d); alpha is (..., 1) or a number.

    ``-inf`` marks an entry that is not allowed; a row without allowed entries gives zeros, a row with NaN or +inf, or an alpha
    that is not above 1, gives NaN at its allowed entries.

    This definition bisects for the threshold.
    """
    alpha = torch.as_tensor(alpha, dtype=x.dtype, device=x.device)
    good = (alpha > 1) & (alpha < torch.inf)
    z, allowed, invalid = scaled_scores(x, gamma, ~good)
    r = 1 / (torch.where(good, alpha, 2.0) - 1)

    def powers(tau: Tensor, z: Tensor, allowed: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        m = torch.where(allowed, z - tau, 0.0).clamp_min(0)
        return m, torch.where(m > 0, m, 1.0).pow(r) * (m > 0)

    def above(tau: Tensor, *constants: Tensor) -> Tensor:
        m, u = powers(tau, *constants)
        return (u * m).sum(-1, keepdim=True) >= 1

    zeros, size = torch.zeros_like(z[..., :1]), torch.ones_like(x).sum(-1, keepdim=True)
    lower = bisect(above, zeros - 1.0, zeros - size ** (-1 / (1 + r)), (z, allowed, r), REFERENCE_PASSES)
    m, u = powers(lower, z, allowed, r)
    return normalized(torch.where(m > ROUNDINGS * torch.finfo(x.dtype).eps, u, 0.0), allowed, invalid)


@compile_rows()
def product_block(start: Any, stop: Any, out: Any, v: Any, y: Any, alphas: Any, gamma: Any) -> None:
    """Multiply rows ``start .. stop - 1`` of ``v`` by the Jacobian of norm-max at its result ``y``, in float64.

    Args:
        start: first row.
        stop: row after the last one.
        out: (rows, d) receives the products.
        v: (rows, d) directions.
        y: (rows, d) results of the mapping.
        alphas: (rows,) alphas, or (1,) for one that all rows share.
        gamma: strength of the regularizer.
    """
    d = y.shape[1]
    places, s = empty(d + 1, np.int32), empty(d, np.float64)
    ceiling = CEILING_SINGLE if y.itemsize == 4 else CEILING_DOUBLE
    for row in range(start, stop):
        alpha = alphas[row if len(alphas) > 1 else 0]
        n, top = 0, 0.0
        for i in range(d):
            places[n] = i
            n += y[row, i] != 0
            top = max(top, y[row, i])
            out[row, i] = 0
        total, mean, pull = 0.0, 0.0, 0.0
        for j in range(n):
            total += (y[row, places[j]] / top) ** alpha
            mean += np.float64(y[row, places[j]]) * v[row, places[j]]
        norm = top * total ** (1.0 / alpha)
        for j in range(n):
            rate = (2.0 - alpha) * math.log(y[row, places[j]] / norm)
            s[j] = math.exp(min(rate, ceiling))
            pull += s[j] * (v[row, places[j]] - mean)
        scale = norm / ((alpha - 1.0) * gamma)
        for j in range(n):
            i = places[j]
            out[row, i] = scale * (s[j] * (v[row, i] - mean) - y[row, i] * pull)


def norm_weights(y: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the alpha-norm of y (..., 1), ``p = y / norm`` (1 outside the support), and ``p^(2 - alpha)`` (0 outside)."""
    support = y != 0
    top = y.detach().amax(-1, keepdim=True)
    top = torch.where(top == 0, 1.0, top)
    base = torch.where(support, y, top)
    total = torch.where(support, (base / top) ** alpha, 0.0).sum(-1, keepdim=True)
    norm = top * torch.where(total == 0, 1.0, total) ** (1 / alpha)
    p = torch.where(support, base / norm, 1.0)
    ceiling = CEILING_DOUBLE if y.dtype == torch.float64 else CEILING_SINGLE
    return norm, p, torch.where(support, torch.exp(((2 - alpha) * p.log()).clamp_max(ceiling)), 0.0)


@row_kernel(product_block, seconds=10e-9)
def norm_product(v: Tensor, y: Tensor, alpha: float | Tensor, gamma: float) -> Tensor:
    """Return the product of the Jacobian of norm-max at its result y and v, both (..., d).

    It is ``||y|| (s (v - <y, v>) - y <s, v - <y, v>>) / ((alpha - 1) gamma)`` with ``s = (y / ||y||)^(2 - alpha)``.
    """
    alpha = torch.as_tensor(alpha, dtype=y.dtype, device=y.device)
    support = y != 0
    norm, _, s = norm_weights(y, alpha)
    v = torch.where(support, v, 0.0)  # incoming gradients outside the support are ignored
    v = torch.where(support, v - (y * v).sum(-1, keepdim=True), 0.0)
    pull = (s * v).sum(-1, keepdim=True)
    return torch.where(support, norm * (s * v - y * pull) / ((alpha - 1) * gamma), 0.0)
