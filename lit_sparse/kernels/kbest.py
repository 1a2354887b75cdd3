"""The exact k best bit vectors of a row of scores, by the smallest sums of the costs of changing bits.

The best vector sets the bits of positive score. Any other vector changes some of them, and each change costs |score|. So the k
best vectors correspond to the k subsets of the magnitudes with the smallest sums. Only the k - 1 smallest magnitudes can be in
these subsets: the empty set and the j - 1 smaller magnitudes alone come before any subset with the j-th smallest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.checks import FLOATS, check_count, check_tensor
from lit_sparse.ground.torch_internals import on_values
from lit_sparse.kernels.cpu.compile import compile_rows, empty
from lit_sparse.kernels.cpu.rows import plain_top
from lit_sparse.kernels.cpu.threads import over_rows
from lit_sparse.kernels.row_kernel import HALVES

__all__ = ["best_bits"]

# On one thread: for a score, for a subset that is merged, for a bit that is written.
SCORE_SECONDS, MERGE_SECONDS, WRITE_SECONDS = 3e-9, 4e-9, 0.5e-9
INSERTED = 64  # up to so many of the smallest are kept in order by insertion, more of them by sorting the row


@compile_rows()
def insert_smallest(x: Any, row: Any, n: Any, costs: Any, places: Any) -> Any:
    """Write the n smallest finite magnitudes of a row in ascending order, with their places; return how many there are.

    Args:
        x: (rows, d) scores.
        row: which row.
        n: largest number of magnitudes.
        costs: (n,) float64 receives the magnitudes.
        places: (n,) int64 receives their places in the row.
    """
    count = 0
    for i in range(x.shape[1]):
        cost = abs(np.float64(x[row, i]))
        if cost == np.inf or (count == n and (n == 0 or cost >= costs[n - 1])):
            continue
        count = min(count + 1, n)
        j = count - 1
        while j > 0 and costs[j - 1] > cost:
            costs[j] = costs[j - 1]
            places[j] = places[j - 1]
            j -= 1
        costs[j] = cost
        places[j] = i
    return count


@compile_rows()
def sort_smallest(x: Any, row: Any, n: Any, costs: Any, places: Any) -> Any:
    """Write the n smallest finite magnitudes of a row, as :func:`insert_smallest` does, by sorting the whole row."""
    magnitudes = np.abs(x[row].astype(np.float64))
    order = np.argsort(magnitudes, kind="mergesort")
    count = 0
    while count < n and magnitudes[order[count]] < np.inf:
        costs[count] = magnitudes[order[count]]
        places[count] = order[count]
        count += 1
    return count


@compile_rows()
def best_block(start: Any, stop: Any, bits: Any, counts: Any, x: Any) -> None:
    """Write the k best bit vectors (rows, k, d) of rows ``start .. stop - 1``, and how many of the k exist.

    Args:
        start: first row.
        stop: row after the last one.
        bits: (rows, k, d) receives the vectors, best first, zero beyond their number.
        counts: (rows,) receives their number.
        x: (rows, d) scores; -inf forbids a bit.
    """
    k, d = bits.shape[1], bits.shape[2]
    n = min(d, k - 1)
    costs, places = empty(n, np.float64), empty(n, np.int64)
    # A subset is a node: its largest element, and the node of the others. Node 0 is the empty set.
    elements, rest = empty(n * k + 1, np.int64), empty(n * k + 1, np.int64)
    sums, nodes = empty(k, np.float64), empty(k, np.int64)
    next_sums, next_nodes = empty(k, np.float64), empty(k, np.int64)
    for row in range(start, stop):
        if plain_top(x, row)[0] == 2:
            bits[row] = 0
            for i in range(d):
                bits[row, 0, i] = 0 if x[row, i] == -np.inf else np.nan
            counts[row] = 1
            continue
        count = insert_smallest(x, row, n, costs, places) if n <= INSERTED else sort_smallest(x, row, n, costs, places)
        sums[0], nodes[0], size, made = 0.0, 0, 1, 1
        for element in range(count):
            cost = costs[element]
            if size == k and cost >= sums[k - 1]:
                break  # nor do any of the later ones
            total = min(2 * size, k)
            without, within = 0, 0  # the next subset of each kind; of equal sums the one without the element goes first
            for i in range(total):
                if without < size and sums[without] <= sums[within] + cost:
                    next_sums[i], next_nodes[i] = sums[without], nodes[without]
                    without += 1
                else:
                    next_sums[i], next_nodes[i] = sums[within] + cost, made
                    elements[made], rest[made] = element, nodes[within]
                    made += 1
                    within += 1
            sums, next_sums = next_sums, sums
            nodes, next_nodes = next_nodes, nodes
            size = total
        for i in range(size):
            for j in range(d):
                bits[row, i, j] = x[row, j] > 0
            node = nodes[i]
            while node > 0:
                place = places[elements[node]]
                bits[row, i, place] = 1 - bits[row, i, place]
                node = rest[node]
        bits[row, size:] = 0
        counts[row] = size


def _best_cpu(bits: Tensor, counts: Tensor, x: Tensor) -> None:
    rows, k, d = bits.shape
    seconds = d * SCORE_SECONDS + min(d, k) * k * MERGE_SECONDS + k * d * WRITE_SECONDS
    over_rows(best_block, (rows, d), seconds / d, bits.numpy(), counts.numpy(), x.numpy())


def _best_reference(bits: Tensor, counts: Tensor, x: Tensor) -> None:
    """Write the k best bit vectors of all rows by torch operations; NaN, which sorts last, marks forbidden bits."""
    rows, k, d = bits.shape
    n = min(d, k - 1)
    broken = (x.isnan() | (x == torch.inf)).any(-1)
    forbidden = x == -torch.inf
    magnitudes = torch.where(forbidden, torch.nan, x.double().abs())
    costs, places = magnitudes.sort(dim=-1, stable=True)
    sums = costs.new_zeros(rows, 1)
    flips = torch.zeros(rows, 1, n, dtype=torch.bool, device=x.device)
    for element in range(n):
        flipped = flips.clone()
        flipped[..., element] = True
        sums, order = torch.cat([sums, sums + costs[:, element : element + 1]], 1).sort(dim=-1, stable=True)
        sums, order = sums[:, :k], order[:, :k]
        flips = torch.cat([flips, flipped], 1).gather(1, order.unsqueeze(-1).expand(-1, -1, n))
    size = (2.0 ** (~forbidden).sum(-1).clamp_max(62)).clamp_max(k).long()
    size = torch.where(broken, 1, size)
    signs = (x > 0).unsqueeze(1).expand(rows, k, d)
    changed = torch.zeros_like(bits, dtype=torch.bool).scatter(2, places[:, None, :n].expand(-1, k, -1), flips)
    found = (signs ^ changed) & (torch.arange(k, device=x.device) < size.unsqueeze(-1)).unsqueeze(-1)
    wrong = broken[:, None] & ~forbidden
    bits.copy_(torch.where(broken[:, None, None], 0.0, found.to(bits.dtype)))
    bits[:, 0].masked_fill_(wrong, torch.nan)
    counts.copy_(size)


@on_values
def best_bits(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k bit vectors z of largest score ``<scores, z>`` for each row, best first and without repetition.

    A score of -inf forbids its bit, which is 0 in every vector; m allowed bits have only 2^m vectors. The best vector sets
    the bits of positive score. Among vectors of equal score, bits of low index change before bits of high index: rank the
    bits by |score|, and equal ones by index; of two vectors, the one that agrees with the best vector at the highest-ranked
    bit in which they differ comes first. Sums are computed in float64, in the order of the ranks. A row with NaN or +inf
    has one vector, NaN at every allowed bit. There is no gradient.

    Args:
        scores: (B, D) floating.
        k: number of vectors, >= 1.

    Returns:
        Bits (B, k', D) of the scores' dtype, k' = min(k, 2^D), zero beyond a row's count; and the counts (B,), int64:
        min(k, 2^m) for a row of m allowed bits.

    Raises:
        ConfigurationError: if the scores are not floating or not (B, D), or ``k`` is not an integer >= 1.

    Example:
        >>> bits, counts = best_bits(torch.tensor([[2.0, -0.5, 1.0]]), 3)
        >>> bits.tolist(), counts.tolist()
        ([[[1.0, 0.0, 1.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]], [3])
    """
    check_tensor(scores, "floating scores of shape (batch, bits)", shape=(None, None), dtypes=FLOATS)
    k = check_count("k", k)
    rows, d = scores.shape
    x = scores.detach()
    x = (x.float() if x.dtype in HALVES else x).contiguous()
    size = k if d >= k.bit_length() else min(k, 2**d)
    bits = torch.empty(rows, size, d, dtype=x.dtype, device=x.device)
    counts = torch.ones(rows, dtype=torch.int64, device=x.device)
    if rows and d:
        (_best_cpu if x.is_cpu else _best_reference)(bits, counts, x)
    return bits.to(scores.dtype), counts
