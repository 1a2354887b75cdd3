"""Linear scores of many classes, a part of their matrix at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["rows_at_a_time", "score_ranges"]

#: For a range of classes: rows at a time, about the number of scores in memory, and the smallest number of classes.
ROWS, SCORES, RANGE = 2048, 1 << 22, 2048
#: For all scores of some rows: about the number of scores in memory, and the smallest number of rows.
ALL_SCORES, LEAST_ROWS = 1 << 23, 128


def score_ranges(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield parts of the scores ``W h + b``: all classes of some rows, in ranges, then the next rows; without a gradient.

    Args:
        hidden: (N, F) float32 or float64.
        weight: (V, F) of the same type.
        bias: (V,) of the same type, or None.

    Yields:
        Row slice, class slice, and scores (rows, classes), which may be written to and are valid until the next part.
    """
    hidden, weight, bias = hidden.detach(), weight.detach(), None if bias is None else bias.detach()
    for start in range(0, len(hidden), ROWS):
        rows = slice(start, min(len(hidden), start + ROWS))
        number = rows.stop - start
        columns = min(len(weight), max(RANGE, SCORES // number))
        buffer = hidden.new_empty(number * columns)
        for first in range(0, len(weight), columns):
            classes = slice(first, min(len(weight), first + columns))
            scores = buffer[: number * (classes.stop - first)].view(number, -1)
            if bias is None:
                torch.mm(hidden[rows], weight[classes].t(), out=scores)
            else:
                torch.addmm(bias[classes], hidden[rows], weight[classes].t(), out=scores)
            yield rows, classes, scores


def rows_at_a_time(classes: int) -> int:
    """Return the number of rows whose scores of all classes may be in memory at a time."""
    return max(LEAST_ROWS, ALL_SCORES // max(1, classes))
