"""Soft sorting and ranking of rows, and their Jacobians.

Both are projections P(s, w) of decreasing s onto the permutahedron of decreasing w, all vectors that are averages of w's
permutations: ``s - v``, v the decreasing isotonic regression of s against w. Within a block of v, in the quadratic form,
``v = mean s - mean w``; in the entropic form, which projects exp(s) onto the permutahedron of exp(w) by its entropy and takes
the logarithm, ``v = logsumexp s - logsumexp w``. Neighbouring blocks are pooled as long as v increases from one to the next.

Soft ranks take s = x / gamma and w = (n, ..., 1), in the entropic form its logarithm; soft sorting takes
s = (n, ..., 1) / strength and w = -x, so that values rise. A block is named by the place of its first entry in the row; entries
outside of blocks have -1, and all allowed entries of a row with NaN or +inf -2.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import compile_rows, empty, zeros
from lit_sparse.kernels.cpu.rows import highest_like, row_views, top_of
from lit_sparse.kernels.groups import group_sums
from lit_sparse.kernels.isotonic import KEYS, MEANS, ORDER, SPARE, STARTS, SUMS, sort_decreasing
from lit_sparse.kernels.loops import repeat_while
from lit_sparse.kernels.row_kernel import row_kernel

__all__ = ["rank_product", "rank_softly", "sort_jacobian", "sort_product", "sort_softly"]

OUTSIDE, BROKEN = -1, -2
LOWEST = float(np.finfo(np.float64).min)
ROWS = 4  # of either workspace
S, W = KEYS, SPARE  # rows of the float workspace once it is sorted
OF_S, OF_W = SUMS, MEANS  # rows of what a block's mean or logsumexp is above its first entry


def _blocks(s: Tensor, w: Tensor, inside: Tensor, entropic: bool) -> tuple[Tensor, Tensor]:
    """Return the index of each entry's block, and where the block starts, for sorted entries (..., d).

    All neighbours in violation are pooled at once until there are none; any order of pooling gives the same.

    Args:
        s: decreasing.
        w: decreasing.
        inside: boolean, True for the entries that take part, which come first.
        entropic: whether the regularization is entropic, rather than quadratic.
    """
    place = torch.arange(s.shape[-1], device=s.device).expand_as(inside)
    before = (place - 1).clamp_min(0)

    def violating(begins: Tensor, s: Tensor, w: Tensor, inside: Tensor, before: Tensor) -> Tensor:
        ids, first = _starts_of(begins)
        of_s, of_w = ((part - part.gather(-1, first)) for part in (s, w))
        if entropic:
            level = group_sums(of_s.exp(), ids).log() - group_sums(of_w.exp(), ids).log()
        else:
            level = group_sums(of_s - of_w, ids) / group_sums(torch.ones_like(s), ids)
        rises = [part - part.gather(-1, before) for part in (level, s.gather(-1, first), w.gather(-1, first))]
        return begins & inside & (rises[0] + rises[1] - rises[2] > 0)

    def pooled(begins: Tensor, *constants: Tensor) -> tuple[Tensor]:
        return (begins & ~violating(begins, *constants),)

    (begins,) = repeat_while(violating, pooled, (torch.ones_like(inside),), (s, w, inside, before))
    return _starts_of(begins)


def _starts_of(begins: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index of each entry's block, and where it starts, given where blocks begin."""
    ids = begins.long().cumsum(-1) - 1
    place = torch.arange(ids.shape[-1], device=ids.device).expand_as(ids)
    return ids, group_sums(torch.where(begins, place, 0), ids)


def _sorted(x: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return masks of invalid and of used entries of x, the decreasing order of the keys, and the keys in that order."""
    invalid = ~(x < torch.inf).all(-1, keepdim=True)
    allowed = x != -torch.inf
    use = allowed & ~invalid
    order = torch.where(use, keys, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    return allowed & invalid, use, order, torch.where(use, keys, 0.0).gather(-1, order)


@compile_rows()
def log_sum(a: Any, b: Any) -> Any:
    """Return ``log(exp(a) + exp(b))`` of two numbers without overflow."""
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


@compile_rows()
def pool(n: Any, entropic: Any, floats: Any, ints: Any) -> Any:
    """Compute an isotonic regression of n entries by pooling: write where its blocks start, and return their number.

    Rows S and W of ``floats`` hold s and w (see the head of this module), whose difference is fitted. Row STARTS of ``ints``
    receives the starts, and n after the last. ``entropic`` is whether blocks have log-sum-exps in place of means.
    """
    blocks = 0
    for i in range(n):
        a, b, start = 0.0, 0.0, i
        while blocks > 0:
            first, of_s, of_w = ints[STARTS, blocks - 1], floats[OF_S, blocks - 1], floats[OF_W, blocks - 1]
            next_s, next_w = a + (floats[S, start] - floats[S, first]), b + (floats[W, start] - floats[W, first])
            if not (of_s - next_s) - (of_w - next_w) < 0.0:
                break
            if entropic:
                a, b = log_sum(of_s, next_s), log_sum(of_w, next_w)
            else:
                share = (i + 1 - start) / (i + 1 - first)
                a, b = of_s + share * (next_s - of_s), of_w + share * (next_w - of_w)
            blocks, start = blocks - 1, first
        floats[OF_S, blocks], floats[OF_W, blocks], ints[STARTS, blocks] = a, b, start
        blocks += 1
    ints[STARTS, blocks] = n
    return blocks


@compile_rows()
def start_labels(row: Any, out: Any, labels: Any) -> None:
    """Initialize the labels (rows, d) of a row to no blocks, or as invalid where its result in ``out`` is NaN."""
    for i in range(out.shape[1]):
        labels[row, i] = BROKEN if out[row, i] != out[row, i] else OUTSIDE


@compile_rows()
def rank_block(start: Any, stop: Any, out: Any, labels: Any, x: Any, gamma: Any, entropic: Any) -> None:
    """Write the soft ranks of rows ``start .. stop - 1`` of ``x`` to ``out``, computed in float64.

    ``x``, ``out`` and ``labels``, which receives the blocks of the entries, are (rows, d); ``gamma`` is the strength, and
    ``entropic`` whether the form is entropic instead of quadratic.
    """
    d = x.shape[1]
    bits, cell, cell_bits = row_views(x)
    floats, ints = empty((ROWS, d + 1), np.float64), empty((ROWS, d + 1), np.int32)
    for row in range(start, stop):
        ordinary, n = top_of(x, bits, row, out, cell, cell_bits), 0
        start_labels(row, out, labels)
        for i in range(d if ordinary else 0):  # without a branch: the next entry overwrites one that is not allowed
            floats[KEYS, n] = max((np.float64(x[row, i]) - np.float64(cell[0])) / gamma, LOWEST)
            ints[ORDER, n] = i
            n += x[row, i] != -np.inf
        sort_decreasing(n, floats, ints)
        for i in range(n):
            floats[W, i] = math.log(n - i) if entropic else n - i
        for block in range(pool(n, entropic, floats, ints)):
            first, end = ints[STARTS, block], ints[STARTS, block + 1]
            total, mean = 0.0, n - 0.5 * (first + end - 1)  # mean of n - i
            for i in range(first, end):
                step = floats[S, i] - floats[S, first]
                total += math.exp(step) if entropic else step
            for i in range(first, end):
                step, place = floats[S, i] - floats[S, first], ints[ORDER, i]
                out[row, place] = (
                    math.exp(step) * (mean * (end - first) / total) if entropic else mean + (step - total / (end - first))
                )
                labels[row, place] = ints[ORDER, first]


@compile_rows()
def sort_block(start: Any, stop: Any, out: Any, order: Any, labels: Any, x: Any, strengths: Any, entropic: Any) -> None:
    """Write rows ``start .. stop - 1`` of ``x``, softly sorted, to ``out``, computed in float64.

    All arrays are (rows, d): ``order`` receives the entry of x that stands at each place, ``labels`` its block.
    ``strengths`` holds one strength for each row, or one for all.
    """
    d = x.shape[1]
    bits, cell, cell_bits = row_views(x)
    floats, ints = empty((ROWS, d + 1), np.float64), empty((ROWS, d + 1), np.int32)
    places = empty(d + 1, np.int32)
    for row in range(start, stop):
        strength = strengths[row if len(strengths) > 1 else 0]
        ordinary, n = top_of(x, bits, row, out, cell, cell_bits), 0
        start_labels(row, out, labels)
        for i in range(d):
            order[row, i] = i if labels[row, i] == BROKEN else OUTSIDE
        for i in range(d if ordinary else 0):
            floats[KEYS, n] = -np.float64(x[row, i])
            ints[ORDER, n], places[n] = i, i
            n += x[row, i] != -np.inf
        sort_decreasing(n, floats, ints)
        for i in range(n):
            floats[W, i] = floats[KEYS, i]
            floats[S, i] = -i / strength
        for block in range(pool(n, entropic, floats, ints)):
            first, end = ints[STARTS, block], ints[STARTS, block + 1]
            total, spread, middle = 0.0, 0.0, 0.5 * (first + end - 1)
            for i in range(first, end):
                step = floats[W, i] - floats[W, first]
                total += math.exp(step) if entropic else step
                spread += math.exp(-(i - first) / strength)
            shift = -math.log(total) + math.log(spread) if entropic else -total / (end - first)
            for i in range(first, end):
                slot = places[i]
                away = i - first if entropic else i - middle
                out[row, slot] = shift - floats[W, first] + away / strength
                order[row, slot], labels[row, slot] = ints[ORDER, i], ints[ORDER, first]


@row_kernel(rank_block, seconds=40e-9, auxiliary=(torch.int32,))
def rank_softly(x: Tensor, gamma: float, entropic: bool) -> tuple[Tensor, Tensor]:
    """Return the soft ranks of ``x / gamma`` (..., d), and their blocks.

    The smallest has rank 1. ``-inf`` marks an entry that is not allowed and gets 0; a row with NaN or +inf gives NaN at its
    allowed entries.
    """
    top = x.amax(-1, keepdim=True)
    keys = torch.maximum((x - torch.where(top.isfinite(), top, 0.0)) / gamma, -highest_like(top))
    broken, use, order, s = _sorted(x, keys)
    place = torch.arange(x.shape[-1], device=x.device)
    n = use.sum(-1, keepdim=True)
    inside = place < n
    rank = torch.where(inside, n - place, 1).to(x.dtype)
    ids, first = _blocks(s, rank.log() if entropic else rank, inside, entropic)
    step = s - s.gather(-1, first)
    if entropic:
        y = step.exp() * (group_sums(rank, ids) / group_sums(step.exp(), ids))
    else:
        size = group_sums(torch.ones_like(s), ids)
        y = group_sums(rank, ids) / size + (step - group_sums(step, ids) / size)
    y = torch.zeros_like(x).scatter(-1, order, torch.where(inside, y, 0.0))
    labels = torch.zeros_like(order).scatter(-1, order, torch.where(inside, order.gather(-1, first), OUTSIDE))
    return torch.where(broken, torch.nan, y), torch.where(broken, BROKEN, labels).to(torch.int32)


@row_kernel(sort_block, seconds=40e-9, auxiliary=(torch.int32, torch.int32))
def sort_softly(x: Tensor, strength: float | Tensor, entropic: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows x (..., d), softly sorted and rising, which entry stands at each place, and its block.

    The strength is (..., 1) or a number. ``-inf`` marks an entry that is not allowed: the others are sorted among their places,
    and it gets 0. A row with NaN or +inf gives NaN at its allowed entries.
    """
    strength = torch.as_tensor(strength, dtype=x.dtype, device=x.device)
    broken, use, order, w = _sorted(x, -x)
    place = torch.arange(x.shape[-1], device=x.device).expand_as(order)
    inside = place < use.sum(-1, keepdim=True)
    s = -place / strength
    ids, first = _blocks(s, w, inside, entropic)
    step, back = w - w.gather(-1, first), s - s.gather(-1, first)
    if entropic:
        y = group_sums(back.exp(), ids).log() - group_sums(step.exp(), ids).log() - back
    else:
        y = (group_sums(back, ids) - group_sums(step, ids)) / group_sums(torch.ones_like(s), ids) - back
    y = y - w.gather(-1, first)
    slots = (~use).to(torch.int32).argsort(dim=-1, stable=True)
    y = torch.zeros_like(x).scatter(-1, slots, torch.where(inside, y, 0.0))
    sources, labels = (
        torch.where(broken, rest, torch.zeros_like(order).scatter(-1, slots, torch.where(inside, part, OUTSIDE)))
        for part, rest in ((order, place), (order.gather(-1, first), BROKEN))
    )
    return torch.where(broken, torch.nan, y), sources.to(torch.int32), labels.to(torch.int32)


@compile_rows()
def rank_product_block(start: Any, stop: Any, out: Any, v: Any, y: Any, labels: Any, gamma: Any, entropic: Any) -> None:
    """Multiply rows ``start .. stop - 1`` of ``v`` by the Jacobian of soft ranks at their result ``y``.

    All arrays are (rows, d); ``labels`` are the blocks of the entries, and ``out`` receives the products.
    """
    d = y.shape[1]
    sums = zeros((2, d), np.float64)
    for row in range(start, stop):
        for i in range(d):
            if labels[row, i] >= 0:
                weight = y[row, i] if entropic else 1.0
                sums[0, labels[row, i]] += weight * v[row, i]
                sums[1, labels[row, i]] += weight
        for i in range(d):
            block = labels[row, i]
            out[row, i] = np.nan if block == BROKEN else 0.0
            if block >= 0:
                weight = y[row, i] if entropic else 1.0
                mean = sums[0, block] / sums[1, block] if sums[1, block] > 0.0 else 0.0
                out[row, i] = weight * (v[row, i] - mean) / gamma
        for i in range(d):
            if labels[row, i] >= 0:
                sums[0, labels[row, i]], sums[1, labels[row, i]] = 0.0, 0.0


def whole_rows(labels: Tensor) -> Tensor:
    """Return the factor (..., d) of each entry's derivative: NaN in rows whose input was NaN or infinite, else 1."""
    return torch.where(labels == BROKEN, torch.nan, 1.0)


@row_kernel(rank_product_block, seconds=3e-9)
def rank_product(v: Tensor, y: Tensor, labels: Tensor, gamma: float, entropic: bool) -> Tensor:
    """Return the product J v of the symmetric Jacobian of soft ranks at ``y``.

    In a block it is ``(v - mean(v)) / gamma`` for the quadratic form and ``y (v - m) / gamma`` for the entropic one,
    where m is the mean of v weighted by y.
    """
    inside, ids = labels != OUTSIDE, labels.clamp_min(0).long()
    weight = torch.where(inside, y if entropic else torch.ones_like(y), 0.0)
    v = torch.where(inside, v, 0.0)
    total = group_sums(weight, ids)
    mean = group_sums(weight * v, ids) / torch.where(total > 0, total, 1.0)
    return torch.where(inside, weight * (v - mean) * whole_rows(labels) / gamma, 0.0)


@compile_rows()
def sort_product_block(start: Any, stop: Any, out: Any, v: Any, x: Any, order: Any, labels: Any, entropic: Any) -> None:
    """Multiply rows ``start .. stop - 1`` of ``v`` by the transposed Jacobian of soft sorting at ``x``.

    All arrays are (rows, d); ``order`` and ``labels`` are results of :func:`sort_block`, and ``out`` receives the products.
    """
    d = v.shape[1]
    sums = zeros((2, d), np.float64)
    for row in range(start, stop):
        for i in range(d):
            block = labels[row, i]
            out[row, i] = np.nan if block == BROKEN else 0.0
            if block >= 0:
                sums[0, block] += v[row, i]
                sums[1, block] += math.exp(np.float64(x[row, block]) - x[row, order[row, i]]) if entropic else 1.0
        for i in range(d):
            block, source = labels[row, i], order[row, i]
            if block >= 0:
                weight = math.exp(np.float64(x[row, block]) - x[row, source]) if entropic else 1.0
                out[row, source] = weight * sums[0, block] / sums[1, block]
        for i in range(d):
            if labels[row, i] >= 0:
                sums[0, labels[row, i]], sums[1, labels[row, i]] = 0.0, 0.0


def sort_jacobian(v: Tensor, x: Tensor, order: Tensor, labels: Tensor, entropic: bool, transposed: bool = True) -> Tensor:
    """Return the product of the Jacobian of soft sorting at ``x``, or its transpose, with v, in differentiable operations.

    Each result of a block depends on the block's entries with equal weights (quadratic) or the weights ``softmax(-x)``
    (entropic).
    """
    inside, ids, source = labels != OUTSIDE, labels.clamp_min(0).long(), order.clamp_min(0).long()
    weight = inside.to(v.dtype)
    if entropic:
        weight = torch.where(
            inside, torch.exp(torch.where(inside, x.detach().gather(-1, ids) - x.gather(-1, source), 0.0)), 0.0
        )
    total = group_sums(weight, ids)
    weight = weight / torch.where(total > 0, total, 1.0)
    v = torch.where(inside, v if transposed else v.gather(-1, source), 0.0)
    if transposed:
        pull = torch.where(inside, weight * group_sums(v, ids) * whole_rows(labels), 0.0)
        return torch.zeros_like(v).scatter_add(-1, source, pull)
    return torch.where(inside, group_sums(weight * v, ids) * whole_rows(labels), 0.0)


@row_kernel(sort_product_block, seconds=3e-9)
def sort_product(v: Tensor, x: Tensor, order: Tensor, labels: Tensor, entropic: bool) -> Tensor:
    """Return the product of the transposed Jacobian of soft sorting at x and v, all (..., d)."""
    return sort_jacobian(v, x, order, labels, entropic)
