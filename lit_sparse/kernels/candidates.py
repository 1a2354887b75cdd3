"""Candidates for the support of rows of scores: entries above a bound of the threshold, found in two passes.

The maxima of blocks of entries are some of the row's entries. A mapping of them alone has a lower threshold than that of the
whole row. So each entry of the support is above it, and blocks whose maximum is not can be skipped.

A block has one entry of each of 32 parts of the row. So maxima are taken of whole parts, entry by entry.

The threshold of the maxima is bounded from below, too. For entmax the weights are ``u^(1 / eps)`` with eps = alpha - 1,
``u = 1 - s + eps (x - top) / gamma`` at most 1, and their sum is 1. With n, the smallest integer of at least ``1 / eps``, the
sum of ``u^n`` is not larger, and neither is its root s. Newton's method on the n-norm of u, convex in s, stays below the root.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import REDUCTION_FLAGS, compile_rows
from lit_sparse.kernels.cpu.threads import over_rows

__all__ = ["block_maxima", "list_candidates_of"]

#: Entries of a block.
WIDTH = 32
#: Steps of Newton's method; fewer give a lower bound, and some more candidates.
PASSES = 6
#: Largest n: beyond, all entries in reach of the largest one are candidates.
STEEP = 40
#: Margin for rounding, as a fraction of the distance within which an entry may have weight.
MARGIN = 1e-5
#: Blocks with candidates are many if they are more than all blocks by this.
DENSE = 8
#: Seconds per score.
COST = 0.2e-9


@compile_rows(REDUCTION_FLAGS)
def _power_sums(entries: Any, row: Any, top: Any, factor: Any, rest: Any, n: Any) -> Any:
    """Return the sums of ``u^n`` and ``u^(n - 1)``."""
    zero = entries.dtype.type(0)
    total, slope = zero, zero
    if n == 1:
        for j in range(entries.shape[1]):
            u = rest + factor * (entries[row, j] - top)
            total += max(u, zero)
            slope += entries.dtype.type(u > zero)
    elif n == 2:
        for j in range(entries.shape[1]):
            u = max(rest + factor * (entries[row, j] - top), zero)
            total += u * u
            slope += u
    else:
        for j in range(entries.shape[1]):
            u = rest + factor * (entries[row, j] - top)
            if u > zero:
                power = u
                for _ in range(n - 2):
                    power *= u
                slope += power
                total += power * u
    return total, slope


@compile_rows()
def _list(
    start: Any, stop: Any, lists: Any, counts: Any, x: Any, entries: Any, known: Any, eps: Any, gamma: Any, n: Any
) -> None:
    """List candidates; the first ``known`` entries are of the row elsewhere, and the others are the maxima of blocks."""
    size, most = x.shape[1], lists.shape[1]
    step = size // WIDTH
    infinity = x.dtype.type(math.inf)
    for row in range(start, stop):
        top, invalid = -infinity, False
        for j in range(entries.shape[1]):
            invalid |= not entries[row, j] < infinity  # NaN compares false
            top = max(top, entries[row, j])
        count = 0
        if invalid:
            for i in range(size):
                if not x[row, i] < infinity:
                    lists[row, 0] = i
                    count = 1
                    break
        elif top > -infinity:
            factor, s = x.dtype.type(eps / gamma), 0.0
            for _ in range(PASSES if n <= STEEP else 0):
                part, part_slope = _power_sums(entries, row, top, factor, x.dtype.type(1.0 - s), n)
                total, slope = float(part), float(part_slope)
                ahead = (total - total ** (1.0 - 1.0 / n)) / slope
                if not ahead > 1e-3 * (1.0 - s):
                    break
                s += ahead
            bound = x.dtype.type(top - gamma / eps * (1.0 - s + MARGIN) - 2e-6 * abs(top))
            hot = 0
            for j in range(known, entries.shape[1]):
                hot += entries[row, j] > bound
            if DENSE * hot > step:  # one pass in order
                for i in range(size):
                    if x[row, i] > bound:
                        if count < most:
                            lists[row, count] = i
                        count += 1
            else:
                for j in range(entries.shape[1] - known):
                    if entries[row, known + j] > bound:
                        first = j if j < step else (WIDTH - 1) * step + j
                        for i in range(first, max(first + 1, WIDTH * step), max(step, 1)):
                            if x[row, i] > bound:
                                if count < most:
                                    lists[row, count] = i
                                count += 1
                if 1 < count <= most:
                    lists[row, :count].sort()
        counts[row] = count


def block_maxima(scores: Tensor) -> Tensor:
    """Return the maxima (R, M) of blocks of scores (R, S); they are NaN or +inf if an entry of the block is."""
    step = scores.shape[1] // WIDTH
    maxima = scores[:, : WIDTH * step].unflatten(1, (WIDTH, step)).amax(1)  # type: ignore[no-untyped-call]
    return torch.cat([maxima, scores[:, WIDTH * step :]], 1) if scores.shape[1] % WIDTH else maxima


def list_candidates_of(scores: Tensor, alpha: float, gamma: float, lists: Tensor, known: Tensor | None = None) -> Tensor:
    """List the candidates of each row; return their number (R,), which may be larger than C.

    An invalid row lists its first NaN or +inf, if that is among the scores.

    Args:
        scores: (R, S), at least one column.
        alpha: alpha of the entmax, at least 1.
        gamma: strength of the mapping.
        lists: (R, C) int32; receives the places in increasing order. Entries past their number are arbitrary.
        known: (R, K) entries of the rows elsewhere, such as in other columns of a longer row; they raise the bound.
    """
    maxima, eps = block_maxima(scores), max(alpha - 1, 1e-9)
    entries = maxima if known is None else torch.cat([known, maxima], 1)
    n = math.ceil(1 / eps)
    if scores.is_cpu:
        counts = torch.empty(len(scores), dtype=torch.int32)
        arrays = [x.numpy() for x in (lists, counts, scores, entries)]
        over_rows(_list, (len(scores), scores.shape[1]), COST, *arrays, entries.shape[1] - maxima.shape[1], eps, gamma, n)
        return counts
    bound = _bound_reference(entries, eps, gamma, n)
    invalid = bound.isnan()
    above = torch.where(invalid, ~(scores < torch.inf), scores > bound)
    above &= ~invalid | (above.cumsum(-1) == 1)
    places = torch.where(above, torch.arange(scores.shape[1], device=scores.device), scores.shape[1])
    first = places.sort(-1).values[:, : lists.shape[1]]
    lists[:, : first.shape[1]] = first
    return above.sum(-1, dtype=torch.int32)


def _bound_reference(maxima: Tensor, eps: float, gamma: float, n: int) -> Tensor:
    """Return the bounds (R, 1) of rows with the maxima (R, M); NaN for invalid rows."""
    top = maxima.amax(-1, keepdim=True)
    u = 1 + eps / gamma * (maxima - torch.where(top.isinf(), 0.0, top))
    s = torch.zeros_like(top)
    for _ in range(PASSES if n <= STEEP else 0):
        rest = (u - s).clamp_min(0)
        total = rest.pow(n).sum(-1, keepdim=True)
        s = s + (total - total ** (1 - 1 / n)) / (rest.pow(n - 1) * (rest > 0)).sum(-1, keepdim=True)
    bound = top - gamma / eps * (1 - s.nan_to_num() + MARGIN) - 2e-6 * top.abs()
    return torch.where(top < torch.inf, bound, torch.nan)
