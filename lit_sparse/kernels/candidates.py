"""Candidates for the support of rows of scores: entries above a bound of the threshold, found in two passes.

The maxima of blocks of entries are some of the row's entries. A mapping of them alone has a lower threshold than that of the
whole row. So each entry of the support is above it, and blocks whose maximum is not can be skipped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import bits_of, compile_rows, floats_of, layout_of
from lit_sparse.kernels.cpu.threads import over_rows

__all__ = ["block_maxima", "list_above"]

#: Entries of a block.
WIDTH = 32
MAXIMA_COST, LIST_COST = 0.15e-9, 0.1e-9


@compile_rows()
def _maxima(start: Any, stop: Any, keys: Any, bits: Any, invalid: Any) -> None:
    low, shift, lowest, highest = layout_of(floats_of(bits))
    length = bits.shape[1]
    for row in range(start, stop):
        least = highest
        most = lowest
        for block in range(keys.shape[1]):
            first = block * WIDTH
            top = lowest
            if first + WIDTH <= length:
                for i in range(first, first + WIDTH):
                    key = bits[row, i] ^ ((bits[row, i] >> shift) & low)
                    top = max(top, key)
                    least = min(least, key)
            else:
                for i in range(first, length):
                    key = bits[row, i] ^ ((bits[row, i] >> shift) & low)
                    top = max(top, key)
                    least = min(least, key)
            most = max(most, top)
            keys[row, block] = top ^ ((top >> shift) & low)
        invalid[row] = most >= highest or least < lowest


@compile_rows()
def _list(start: Any, stop: Any, lists: Any, counts: Any, x: Any, maxima: Any, floor: Any, invalid: Any) -> None:
    most = lists.shape[1]
    for row in range(start, stop):
        count = 0
        if invalid[row]:
            for i in range(x.shape[1]):
                if not (x[row, i] < np.inf):  # NaN compares false
                    lists[row, 0] = i
                    count = 1
                    break
        else:
            bound = floor[row]
            for block in range(maxima.shape[1]):
                if maxima[row, block] > bound:
                    for i in range(block * WIDTH, min(x.shape[1], (block + 1) * WIDTH)):
                        if x[row, i] > bound:
                            if count < most:
                                lists[row, count] = i
                            count += 1
        counts[row] = count
        for slot in range(min(count, most), most):
            lists[row, slot] = -1


def block_maxima(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maxima (R, ceil(S / 32)) of blocks of scores (R, S), and the rows (R,) with NaN or +inf."""
    blocks = -(-scores.shape[1] // WIDTH)
    if scores.is_cpu:
        maxima = scores.new_empty(len(scores), blocks)
        invalid = torch.empty(len(scores), dtype=torch.bool)
        arrays = (bits_of(maxima.numpy()), bits_of(scores.numpy()), invalid.numpy())
        over_rows(_maxima, (len(scores), scores.shape[1]), MAXIMA_COST, *arrays)
        return maxima, invalid
    padded = torch.nn.functional.pad(scores, (0, blocks * WIDTH - scores.shape[1]), value=-torch.inf)
    return padded.view(-1, blocks, WIDTH).amax(-1), ~(scores < torch.inf).all(-1)


def list_above(scores: Tensor, maxima: Tensor, floor: Tensor, invalid: Tensor, lists: Tensor) -> Tensor:
    """Write the places of the scores above a bound to lists; return the number (R,) of these, which may be larger than C.

    An invalid row lists its first NaN or +inf.

    Args:
        scores: (R, S).
        maxima: (R, blocks) of :func:`block_maxima`.
        floor: (R,) the bounds, in the dtype of the scores.
        invalid: (R,) boolean.
        lists: (R, C) int32; receives the places in increasing order, then -1.
    """
    if scores.is_cpu:
        counts = torch.empty(len(scores), dtype=torch.int32)
        arrays = [x.numpy() for x in (lists, counts, scores, maxima, floor, invalid)]
        over_rows(_list, (len(scores), scores.shape[1]), LIST_COST, *arrays)
        return counts
    above = torch.where(invalid.unsqueeze(1), ~(scores < torch.inf), scores > floor.unsqueeze(1))
    above &= ~invalid.unsqueeze(1) | (above.cumsum(-1) == 1)
    places = torch.where(above, torch.arange(scores.shape[1], device=scores.device), scores.shape[1])
    first = places.sort(-1).values[:, : lists.shape[1]].int()
    lists.copy_(
        torch.nn.functional.pad(
            torch.where(first == scores.shape[1], -1, first), (0, lists.shape[1] - first.shape[1]), value=-1
        )
    )
    return above.sum(-1, dtype=torch.int32)
