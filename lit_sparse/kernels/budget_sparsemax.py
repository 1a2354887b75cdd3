"""Projection of rows onto ``0 <= y <= 1, sum y <= k``, and its Jacobian.

With ``z = x / gamma`` the result is ``y = min((z - tau)_+, 1)``, with tau = 0 where that keeps to the budget, and else the tau
at which the sum is k. The sum is piecewise linear in tau. The root is kept as ``base - delta``, so that huge scores lose no
digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import compile_rows, empty
from lit_sparse.kernels.cpu.rows import highest_like, next_in_bracket, row_views, top_of, write_invalid
from lit_sparse.kernels.gpu import triton_rows
from lit_sparse.kernels.loops import bisect, repeat
from lit_sparse.kernels.row_kernel import row_kernel

__all__ = ["budget_product", "map_budget"]

PASSES = 2200  # halvings of all numbers there are, and two steps of Newton's method for each
SORTED_PASSES, REFERENCE_PASSES = 40, 60
ROUNDING = 2e-15  # of a sum of terms in 0 .. 1, relative to it
EDGE = 32.0  # roundings of the sum that a y may be from 0 or 1 and stand there
HIGHEST, EPS = float(np.finfo(np.float64).max), float(np.finfo(np.float64).eps)
FIXED, FREE, TIED = -1, 0, 1  # labels: y is 0 or 1; it is z; it shares what the budget leaves


@compile_rows()
def clipped_sum(z: Any, n: Any, base: Any, delta: Any) -> Any:
    """Return the sum of ``min((z - base + delta)_+, 1)`` over n scores, and how many of the terms are in [0, 1).

    Args:
        z: (>= n,) float64, scaled scores ``x / gamma``.
        n: number of scores.
        base: first part of the threshold ``base - delta``.
        delta: second part.
    """
    total, inside = 0.0, 0
    for j in range(n):
        y = (z[j] - base) + delta
        inside += 0.0 <= y < 1.0
        total += min(max(y, 0.0), 1.0)
    return total, inside


@compile_rows()
def solve(z: Any, n: Any, top: Any, k: Any) -> Any:
    """Return the threshold tau > 0 of budget sparsemax as ``base`` and ``delta``, for n scores z > 0 with maximum ``top``.

    Args:
        z: (>= n,) float64, scaled scores ``x / gamma``.
        n: number of scores.
        top: their maximum.
        k: sum of the weights, >= 0.
    """
    lower, upper, tau = 0.0, top, 0.0
    for i in range(PASSES):
        total, inside = clipped_sum(z, n, tau, 0.0)
        if abs(total - k) <= ROUNDING * k:
            upper = tau
            break
        ahead = tau + (total - k) / inside if inside > 0 else np.inf
        lower, upper, tau = next_in_bracket(tau, total > k, lower, upper, ahead, i % 3 < 2)
        if tau in (lower, upper):
            tau = lower + 0.5 * (upper - lower)
            if tau in (lower, upper):  # no number is between
                break
    delta, size = 0.0, 0
    for _ in range(n + 1):  # from below the root, since the scores above ``base`` can only reach 1
        total, inside = clipped_sum(z, n, upper, delta)
        if inside in (0, size):
            break
        delta, size = delta + (k - total) / inside, inside
    return upper, delta


@compile_rows()
def map_block(start: Any, stop: Any, out: Any, labels: Any, x: Any, ks: Any, gamma: Any) -> None:
    """Write the budget sparsemax of rows ``start .. stop - 1`` of ``x``, in float64, and labels of how entries depend on x.

    Args:
        start: first row.
        stop: row after the last one.
        out: (rows, d) receives the results.
        labels: (rows, d) int32 receives ``FIXED`` for a weight of 0 or 1, ``FREE`` for one that depends on its own
            score alone, ``TIED`` for one that depends on all scores with this label.
        x: (rows, d) scores, -inf where an entry is not allowed.
        ks: (rows,) largest sums of the weights, or (1,) for one that all rows share.
        gamma: strength of the regularizer.
    """
    d = x.shape[1]
    bits, cell, cell_bits = row_views(x)
    z, places = empty(d + 1, np.float64), empty(d + 1, np.int32)
    for row in range(start, stop):
        k = ks[row if len(ks) > 1 else 0]
        ordinary = top_of(x, bits, row, out, cell, cell_bits)
        if ordinary and not k >= 0.0:
            write_invalid(x, row, out)
        for i in range(d):
            labels[row, i] = TIED if out[row, i] != out[row, i] else FIXED
        if not ordinary or not k >= 0.0:
            continue
        n, top = 0, 0.0
        for i in range(d):  # without a branch: the next overwrites what does not count
            z[n] = min(np.float64(x[row, i]) / gamma, HIGHEST)
            places[n] = i
            top = max(top, z[n])
            n += z[n] > 0.0
        total, _ = clipped_sum(z, n, 0.0, 0.0)
        base, delta, label = 0.0, 0.0, FREE
        if total > k:
            base, delta = solve(z, n, top, k)
            label = TIED
        edge = EDGE * EPS * k if label == TIED else 0.0
        for j in range(n):
            y = (z[j] - base) + delta
            y = 0.0 if y <= edge else 1.0 if y >= 1.0 - edge else y
            out[row, places[j]] = y
            labels[row, places[j]] = label if 0.0 < y < 1.0 else FIXED


@row_kernel(map_block, triton_rows.map_budget, seconds=6e-9, auxiliary=(torch.int32,))
def map_budget(x: Tensor, k: float | Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Return ``x / gamma`` (..., d), projected with a budget k (..., 1) or a number, and labels.

    The labels say how y depends on x: not at all, -1; on its own score alone, 0; on all scores of that label, 1. ``-inf`` marks
    an entry that is not allowed; a row without allowed entries gives zeros, a row with NaN or +inf, or a k below 0, gives NaN
    at its allowed entries.

    This definition searches the sorted scores for the last at which the sum is within the budget, and bisects from there.
    """
    k = torch.as_tensor(k, dtype=x.dtype, device=x.device)
    allowed = x != -torch.inf
    invalid = ~(x < torch.inf).all(-1, keepdim=True) | ~(k >= 0)
    z = torch.where(allowed & ~invalid, x / gamma, 0.0).clamp_min(0)
    z = torch.minimum(z, highest_like(z[..., :1]))
    ranked = z.sort(dim=-1, descending=True).values
    loose = z.clamp_max(1).sum(-1, keepdim=True) <= k

    def searched(first: Tensor, last: Tensor, z: Tensor, ranked: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        middle = (first + last) // 2
        within = (z - ranked.gather(-1, middle)).clamp(0, 1).sum(-1, keepdim=True) <= k
        return torch.where(within, middle, first), torch.where(within, last, middle)

    def within(delta: Tensor, above: Tensor, k: Tensor) -> Tensor:
        return (above + delta).clamp(0, 1).sum(-1, keepdim=True) <= k

    zeros = torch.zeros_like(z[..., :1])
    ends = zeros.long(), (torch.ones_like(z).sum(-1, keepdim=True)).long()
    first, _ = repeat(searched, ends, (z, ranked, k), SORTED_PASSES)
    base = ranked.gather(-1, first)
    above = torch.where(z >= base, z - base, -2.0)
    delta = bisect(within, zeros, zeros + 1, (above, k), REFERENCE_PASSES)
    point = above + delta
    inside = (point >= 0) & (point < 1)
    rest = (k - point.clamp(0, 1).sum(-1, keepdim=True)) / inside.sum(-1, keepdim=True).clamp_min(1)
    y = torch.where(loose, z, point + torch.where(inside, rest, 0.0)).clamp(0, 1)
    edge = torch.where(loose, 0.0, EDGE * torch.finfo(x.dtype).eps * k)
    y = torch.where(y <= edge, 0.0, torch.where(y >= 1 - edge, 1.0, y))
    labels = torch.where((y > 0) & (y < 1), torch.where(loose, FREE, TIED), FIXED)
    broken = allowed & invalid
    return torch.where(broken, torch.nan, y), torch.where(broken, TIED, labels).to(torch.int32)


@compile_rows()
def product_block(start: Any, stop: Any, out: Any, v: Any, y: Any, labels: Any, gamma: Any) -> None:
    """Multiply rows ``start .. stop - 1`` of ``v`` by the Jacobian of budget sparsemax at its result ``y``.

    Args:
        start: first row.
        stop: row after the last one.
        out: (rows, d) receives the products.
        v: (rows, d) directions.
        y: (rows, d) results of the mapping.
        labels: (rows, d) labels of the results.
        gamma: strength of the regularizer.
    """
    for row in range(start, stop):
        total, count = 0.0, 0
        for i in range(y.shape[1]):
            if labels[row, i] == TIED:
                total += v[row, i] + 0 * y[row, i]  # NaN for a broken row
                count += 1
        mean = total / count if count > 0 else 0.0
        for i in range(y.shape[1]):
            if labels[row, i] == FIXED:
                out[row, i] = 0
            else:
                out[row, i] = (v[row, i] - (mean if labels[row, i] == TIED else 0.0)) / gamma


@row_kernel(product_block, triton_rows.budget_product, seconds=1e-9)
def budget_product(v: Tensor, y: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """Return the product of the Jacobian of :data:`map_budget` at its result y and v, both (..., d)."""
    tied = labels == TIED
    v = torch.where(labels != FIXED, v, 0.0)  # incoming gradients that do not matter are ignored
    whole = torch.where(y.isnan().any(-1, keepdim=True), torch.nan, 1.0)
    mean = torch.where(tied, v, 0.0).sum(-1, keepdim=True) / tied.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(labels != FIXED, (v - torch.where(tied, mean, 0.0)) * whole / gamma, 0.0)
