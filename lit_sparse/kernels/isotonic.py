"""Decreasing isotonic regression of rows, by pooling adjacent violators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import compile_rows
from lit_sparse.kernels.groups import group_sums
from lit_sparse.kernels.loops import repeat_while

__all__ = ["COUNTS", "KEYS", "MEANS", "ORDER", "SPARE", "STARTS", "SUMS", "isotonic_blocks", "pool_sorted", "sort_decreasing"]

KEYS, SPARE, SUMS, MEANS = 0, 1, 2, 3  # rows of the float workspace
ORDER, SPARE_ORDER, STARTS, COUNTS = 0, 1, 2, 3  # rows of the integer workspace
INSERTION = 8


@compile_rows()
def sort_decreasing(n: Any, floats: Any, ints: Any) -> None:
    """Sort keys in decreasing order, and their places with them, by a stable merge sort.

    Args:
        n: number of keys.
        floats: (>= 2, >= n) float64 workspace, the keys in row KEYS.
        ints: (>= 2, >= n) int32 workspace, the places in row ORDER.
    """
    for first in range(0, n, INSERTION):
        last = min(first + INSERTION, n)
        for i in range(first + 1, last):
            key, place = floats[KEYS, i], ints[ORDER, i]
            j = i
            while j > first and floats[KEYS, j - 1] < key:
                floats[KEYS, j] = floats[KEYS, j - 1]
                ints[ORDER, j] = ints[ORDER, j - 1]
                j -= 1
            floats[KEYS, j] = key
            ints[ORDER, j] = place
    width, source, target = INSERTION, KEYS, SPARE
    while width < n:
        for first in range(0, n, 2 * width):
            middle, last = min(first + width, n), min(first + 2 * width, n)
            i, j = first, middle
            for k in range(first, last):
                left = j >= last or (i < middle and floats[source, i] >= floats[source, j])
                index = i if left else j
                floats[target, k] = floats[source, index]
                ints[target, k] = ints[source, index]
                i += left
                j += not left
        source, target = target, source
        width *= 2
    if source != KEYS:
        for i in range(n):
            floats[KEYS, i] = floats[SPARE, i]
            ints[ORDER, i] = ints[SPARE_ORDER, i]


@compile_rows()
def pool_sorted(n: Any, d: Any, lam: Any, floats: Any, ints: Any) -> Any:
    """Fit decreasing values to ``z_(i) - lam (d - i)`` of the first n sorted keys z, by pooling adjacent violators.

    Args:
        n: number of keys.
        d: number of entries of the row.
        lam: strength of the penalty; for lam > 0 equal keys share a block.
        floats: (4, >= n) float64 workspace, the keys in row KEYS; rows SUMS and MEANS receive sums and means of the blocks.
        ints: (3, >= n + 1) int32 workspace; row STARTS receives where each block starts, and n after the last.

    Returns:
        The number of blocks.
    """
    blocks = 0
    for i in range(n):
        total, start = floats[KEYS, i] - lam * (d - 1 - i), i
        mean = total
        while blocks > 0 and (
            floats[MEANS, blocks - 1] < mean or (lam > 0.0 and floats[KEYS, start - 1] == floats[KEYS, start])
        ):
            blocks -= 1
            total += floats[SUMS, blocks]
            start = ints[STARTS, blocks]
            mean = total / (i + 1 - start)
        floats[SUMS, blocks] = total
        floats[MEANS, blocks] = mean
        ints[STARTS, blocks] = start
        blocks += 1
    ints[STARTS, blocks] = n
    return blocks


def isotonic_blocks(a: Tensor, tied: Tensor) -> tuple[Tensor, Tensor]:
    """Return the decreasing isotonic regression of rows, and the index of each entry's block.

    All violating neighbours are pooled at once until there are none; the order of pooling does not matter.

    Args:
        a: (..., d).
        tied: (..., d - 1), True where neighbours must share a block.
    """
    (joined,) = repeat_while(_violating, lambda joined, a: (joined | _violating(joined, a),), (tied,), (a,))
    return _means(joined, a)


def _violating(joined: Tensor, a: Tensor) -> Tensor:
    """Return the neighbouring blocks (..., d - 1) whose means increase."""
    mean, _ = _means(joined, a)
    return ~joined & (mean[..., :-1] < mean[..., 1:])


def _means(joined: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    ids = torch.cat([torch.zeros_like(a[..., :1]).long(), (~joined).long()], -1).cumsum(-1)
    return group_sums(a, ids) / group_sums(torch.ones_like(a), ids), ids
