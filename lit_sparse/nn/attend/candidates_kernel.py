"""Candidates for the support of rows of scores: entries above a bound of the threshold, found in two passes.

The maxima of blocks of entries are some of the row's entries. A mapping of them alone has a lower threshold than the whole row.
So each entry of the support is above it, and chunks of blocks whose maxima are not can be skipped.

The threshold of the maxima is bounded from below, too. For entmax the weights are ``u^(1 / eps)`` with eps = alpha - 1,
``u = 1 - s + eps (x - top) / gamma`` at most 1, and their sum is 1. With n, the smallest integer of at least ``1 / eps``, the
sum of ``u^n`` is not larger, and neither is its root s. Newton's method on the n-norm of u, convex in s, stays below the root.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lit_sparse.kernels.cpu.compile import LANES, REDUCTION_FLAGS, bits_above, compile_rows, empty, lowest_bit
from lit_sparse.kernels.cpu.threads import Array, over_rows

__all__ = ["list_candidates_of", "list_rows"]

#: Entries of a block. Chunks have a block for each lane of a vector, so neighbours in a block are a vector apart in the row.
WIDTH = 32
CHUNK = WIDTH * LANES
#: Steps of Newton's method; fewer give a lower bound, and some more candidates.
PASSES = 6
#: Largest n: beyond, all entries in reach of the largest one are candidates.
STEEP = 40
#: Margin for rounding, as a fraction of the distance within which an entry may have weight.
MARGIN = 1e-5
#: Seconds per score.
COST = 0.4e-9


@compile_rows(REDUCTION_FLAGS)
def _power_sums(entries: Any, top: Any, factor: Any, rest: Any, n: Any) -> Any:
    """Return the sums of ``u^n`` and ``u^(n - 1)``."""
    zero = entries.dtype.type(0)
    total, slope = zero, zero
    if n == 1:
        for j in range(len(entries)):
            u = rest + factor * (entries[j] - top)
            total += max(u, zero)
            slope += entries.dtype.type(u > zero)
    elif n == 2:
        for j in range(len(entries)):
            u = max(rest + factor * (entries[j] - top), zero)
            total += u * u
            slope += u
    else:
        for j in range(len(entries)):
            u = rest + factor * (entries[j] - top)
            if u > zero:
                power = u
                for _ in range(n - 2):
                    power *= u
                slope += power
                total += power * u
    return total, slope


@compile_rows(REDUCTION_FLAGS)
def _write_maxima(maxima: Any, line: Any) -> None:
    """Write the maxima of the lanes of each chunk, of which the last may be shorter."""
    chunks = len(line) // CHUNK
    for chunk in range(chunks):
        for lane in range(LANES):
            top = line[chunk * CHUNK + lane]
            for part in range(1, WIDTH):
                top = max(top, line[chunk * CHUNK + part * LANES + lane])
            maxima[chunk * LANES + lane] = top
    rest, tops = line[chunks * CHUNK :], maxima[chunks * LANES :]
    for lane in range(len(tops)):
        tops[lane] = rest[lane]
    for part in range(1, len(rest) // LANES):
        for lane in range(LANES):
            tops[lane] = max(tops[lane], rest[part * LANES + lane])
    last = rest[max(len(tops), len(rest) // LANES * LANES) :]
    for lane in range(len(last)):
        tops[lane] = max(tops[lane], last[lane])


@compile_rows()
def _any_invalid(line: Any) -> Any:
    """Return whether an entry is NaN or +inf."""
    invalid = False
    for i in range(len(line)):
        invalid |= not line[i] < line.dtype.type(math.inf)  # NaN compares false
    return invalid


@compile_rows()
def _list_above(found: Any, line: Any, maxima: Any, bound: Any) -> Any:
    """Write the places of the entries above the bound in increasing order; return their number."""
    count = 0
    for first in range(0, len(line), CHUNK):
        last, lanes = min(len(line), first + CHUNK), maxima[first // WIDTH : first // WIDTH + LANES]
        hot = False
        for lane in range(len(lanes)):
            hot |= lanes[lane] > bound
        if hot:
            whole = last - (last - first) % LANES
            for i in range(first, whole, LANES):
                bits = bits_above(line, i, bound)
                while bits:
                    found[count] = i + lowest_bit(bits)
                    count += 1
                    bits &= bits - 1
            for i in range(whole, last):
                found[count] = i
                count += line[i] > bound
    return count


@compile_rows()
def _bound(entries: Any, eps: Any, gamma: Any, n: Any) -> Any:
    """Return a number that is below all entries with weight, if the given ones are some of the row's."""
    top = entries[0]
    for j in range(len(entries)):
        top = max(top, entries[j])
    if top == -math.inf:
        return top
    factor, s = entries.dtype.type(eps / gamma), 0.0
    for _ in range(PASSES if n <= STEEP else 0):
        part, part_slope = _power_sums(entries, top, factor, entries.dtype.type(1.0 - s), n)
        total, slope = float(part), float(part_slope)
        root = 1.0 if n == 1 else math.sqrt(total) if n == 2 else total ** (1.0 - 1.0 / n)
        step = (total - root) / slope
        if not step > 1e-3 * (1.0 - s):
            break
        s += step
    return entries.dtype.type(top - gamma / eps * (1.0 - s + MARGIN) - 2e-6 * abs(top))


@compile_rows()
def _list(
    first: Any, last: Any, lists: Any, counts: Any, x: Any, known: Any, ahead: Any, low: Any, eps: Any, gamma: Any, n: Any
) -> None:
    """List the candidates of rows ``first .. last - 1``, see :func:`list_rows`."""
    period, most, others = lists.shape[1], lists.shape[2], known.shape[1]
    infinity = x.dtype.type(math.inf)
    space = empty(others + (x.shape[1] // CHUNK + 1) * LANES, x.dtype)
    found = empty(x.shape[1] + 1, np.int32)
    for row in range(first, last):
        group, number = row // period, row % period
        size = min(x.shape[1], max(0, number + ahead + 1))
        line, entries = x[row, :size], space[: others + size // CHUNK * LANES + min(LANES, size % CHUNK)]
        maxima = entries[others:]
        entries[:others] = known[row]
        count = 0
        if _any_invalid(known[row]) or _any_invalid(line):
            for i in range(size):
                if not line[i] < infinity:
                    found[0] = i
                    count = 1
                    break
        elif len(entries):
            _write_maxima(maxima, line)
            count = _list_above(found, line, maxima, _bound(entries, eps, gamma, n))
        counts[group, number] = count
        for slot in range(min(count, most)):
            lists[group, number, slot] = found[slot] + low
        for slot in range(count, most):
            lists[group, number, slot] = -1


def list_rows(
    scores: Array, alpha: float, gamma: float, lists: Array, counts: Array, known: Array, *, low: int, ahead: int | None
) -> None:
    """List the candidates of rows on a CPU, as :func:`list_candidates_of` does, for G groups of P rows.

    Args:
        scores: (G P, S), contiguous.
        alpha: alpha of the entmax, at least 1.
        gamma: strength of the mapping's regularizer.
        lists: (G, P, C) int32, receives the indices of the candidates.
        counts: (G, P) int32, receives the number of candidates.
        known: (G P, K) entries of the rows elsewhere; K may be 0.
        low: index of the first column.
        ahead: row r of a group has only the columns 0 .. r + ahead; None for all columns.
    """
    eps, last = max(alpha - 1, 1e-9), scores.shape[1] if ahead is None else ahead
    over_rows(_list, scores.shape, COST, lists, counts, scores, known, last, low, eps, gamma, math.ceil(1 / eps))


def list_candidates_of(
    scores: Tensor,
    alpha: float,
    gamma: float,
    lists: Tensor,
    known: Tensor | None = None,
    *,
    low: int = 0,
    ahead: int | None = None,
) -> Tensor:
    """List the candidates of each row of scores, which may have weight under entmax; return their number (..., R) int32.

    The number may be larger than C.

    An invalid row lists its first NaN or +inf, if that is among the scores.

    Args:
        scores: (..., R, S), at least one column.
        alpha: alpha of the entmax, at least 1.
        gamma: strength of the mapping's regularizer.
        lists: (..., R, C) int32, of two or three dimensions; receives the indices of the candidates in increasing order,
            followed by -1. A row with more than C has any C of them.
        known: (..., R, K) entries of the rows elsewhere, such as in other columns of a longer row; they raise the bound.
        low: index of the first column.
        ahead: row r has only the columns 0 .. r + ahead; by default all of them.
    """
    shape = lists.shape
    if scores.is_cpu:
        counts = torch.empty(shape[:-1], dtype=torch.int32)
        rows = scores.contiguous().numpy().reshape(counts.numel(), scores.shape[-1])
        others = rows[:, :0] if known is None else known.numpy().reshape(len(rows), known.shape[-1])
        places, number = (x.numpy() if lists.dim() == 3 else x.numpy()[None] for x in (lists, counts))
        list_rows(rows, alpha, gamma, places, number, others, low=low, ahead=ahead)
        return counts
    eps = max(alpha - 1, 1e-9)
    period, length = shape[-2:]
    known = scores[..., :0] if known is None else known
    scores, known = scores.flatten(0, -2), known.flatten(0, -2)
    columns = torch.arange(scores.shape[1], device=scores.device)
    if ahead is not None:
        reach = torch.arange(len(scores), device=scores.device).unsqueeze(1) % period + ahead
        scores = scores.masked_fill(columns > reach, -torch.inf)
    maxima = _maxima_reference(scores)
    bound = _bound_reference(torch.cat([known, maxima], 1), eps, gamma, math.ceil(1 / eps))
    invalid = bound.isnan()
    above = torch.where(invalid, ~(scores < torch.inf), scores > bound)
    above &= ~invalid | (above.cumsum(-1) == 1)
    first = torch.where(above, columns, scores.shape[1]).sort(-1).values[:, :length]
    listed = torch.where(first < scores.shape[1], first + low, -1)
    lists.fill_(-1)[..., : first.shape[1]] = listed.view(*shape[:-1], -1)
    return above.sum(-1, dtype=torch.int32).view(shape[:-1])


def _maxima_reference(scores: Tensor) -> Tensor:
    """Return the maxima (R, M) of the blocks of scores (R, S)."""
    chunks, rest = divmod(scores.shape[1], CHUNK)
    tail = F.pad(scores[:, chunks * CHUNK :], (0, -rest % LANES), value=-torch.inf)
    blocks = [scores[:, : chunks * CHUNK].reshape(len(scores), chunks, WIDTH, LANES), tail.reshape(len(scores), 1, -1, LANES)]
    return torch.cat([part.amax(2).flatten(1) for part in blocks if part.numel()], 1)


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
