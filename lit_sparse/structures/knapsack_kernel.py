"""The most valuable items that fit into a knapsack, by dynamic programming over its capacity.

For the items from i on and each capacity c, ``best[c] = max(best[c], best[c - weight] + value)``. Which of both it was is
kept, and read from the first item on. Items of no value are left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lit_sparse.kernels.cpu.compile import compile_rows, empty, zeros
from lit_sparse.kernels.cpu.threads import over_rows

__all__ = ["best_items"]

SECONDS = 2e-9  # of one thread for an item and a unit of capacity, about


@compile_rows()
def items_block(first: Any, stop: Any, values: Any, weights: Any, capacity: Any, chosen: Any) -> None:
    """Write the best sets of items of rows ``first .. stop - 1`` to ``chosen`` (B, d); see :func:`best_items`."""
    d = values.shape[1]
    best, taken = empty(capacity + 1, np.float64), empty((d, capacity + 1), np.uint8)
    for row in range(first, stop):
        for left in range(capacity + 1):
            best[left] = 0.0
        for item in range(d - 1, -1, -1):
            value, weight = values[row, item], weights[item]
            if value <= 0.0:
                continue
            for left in range(capacity, weight - 1, -1):
                more = best[left - weight] + value
                taken[item, left] = more >= best[left]  # of equal ones the first items
                best[left] = max(more, best[left])
        left = capacity
        for item in range(d):
            if values[row, item] > 0.0 and weights[item] <= left and taken[item, left]:
                chosen[row, item] = 1
                left -= weights[item]


def best_items(values: Any, weights: Any, capacity: int) -> Any:
    """Return the most valuable set of items that fits into a knapsack for each row, bytes (B, d).

    Args:
        values: float64 array (B, d), finite, or -inf for forbidden items.
        weights: int64 array (d,) of weights >= 0.
        capacity: largest total weight, >= 0.
    """
    chosen = zeros(values.shape, np.uint8)
    over_rows(items_block, (len(values), len(weights) * (capacity + 1)), SECONDS, values, weights, capacity, chosen)
    return chosen
