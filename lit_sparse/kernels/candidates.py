"""Candidates for the support of rows of scores: entries above a bound of the threshold, found in two passes.

The maxima of blocks of entries are some of the row's entries. A mapping of them alone has a lower threshold than that of the
whole row. So each entry of the support is above it, and blocks whose maximum is not can be skipped.

A block has one entry of each of 32 parts of the row. So maxima are taken of whole parts, entry by entry.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import compile_rows
from lit_sparse.kernels.cpu.threads import over_rows

__all__ = ["block_maxima", "list_above"]

#: Entries of a block.
WIDTH = 32
#: Seconds per score.
COST = 0.2e-9


@compile_rows()
def _list(start: Any, stop: Any, lists: Any, counts: Any, x: Any, maxima: Any, floor: Any) -> None:
    size, most = x.shape[1], lists.shape[1]
    step = size // WIDTH
    for row in range(start, stop):
        bound = floor[row]
        count = 0
        if bound != bound:
            for i in range(size):
                if not x[row, i] < x.dtype.type(float("inf")):  # NaN compares false
                    lists[row, 0] = i
                    count = 1
                    break
        else:
            for block in range(step):
                if maxima[row, block] > bound:
                    for i in range(block, WIDTH * step, step):
                        if x[row, i] > bound:
                            if count < most:
                                lists[row, count] = i
                            count += 1
            for i in range(WIDTH * step, size):
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


def list_above(scores: Tensor, maxima: Tensor, floor: Tensor, lists: Tensor) -> Tensor:
    """Write the places of the scores above a bound to lists; return the number (R,) of these, which may be larger than C.

    A row whose bound is NaN lists its first NaN or +inf.

    Args:
        scores: (R, S).
        maxima: (R, M) of :func:`block_maxima`.
        floor: (R,) the bounds, in the dtype of the scores.
        lists: (R, C) int32; receives the places in increasing order. What it holds past their number is arbitrary.
    """
    if scores.is_cpu:
        counts = torch.empty(len(scores), dtype=torch.int32)
        arrays = [x.numpy() for x in (lists, counts, scores, maxima, floor)]
        over_rows(_list, (len(scores), scores.shape[1]), COST, *arrays)
        return counts
    invalid = floor.isnan().unsqueeze(1)
    above = torch.where(invalid, ~(scores < torch.inf), scores > floor.unsqueeze(1))
    above &= ~invalid | (above.cumsum(-1) == 1)
    places = torch.where(above, torch.arange(scores.shape[1], device=scores.device), scores.shape[1])
    lists.copy_(places.sort(-1).values[:, : lists.shape[1]])
    return above.sum(-1, dtype=torch.int32)
