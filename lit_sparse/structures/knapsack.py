"""Items that fit into a knapsack, by dynamic programming over its capacity.

For the items from i on and each capacity c, ``best[c] = max(best[c], best[c - weight] + value)``. Which of both it was is
kept, and read from the first item on. Items of no value are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import check_count
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.torch_internals import on_values
from lit_sparse.kernels.cpu.compile import compile_rows, empty, zeros
from lit_sparse.kernels.cpu.threads import over_rows
from lit_sparse.structures.base import Structure, best_by_search

__all__ = ["Knapsack"]

SECONDS = 2e-9  # of one thread for an item and a unit of capacity, about


@compile_rows()
def items_block(first: Any, stop: Any, values: Any, weights: Any, capacity: Any, chosen: Any) -> None:
    """Write the best sets of items of rows ``first .. stop - 1`` to ``chosen`` (B, d), bytes that are zero.

    ``values`` (B, d) float64 are finite, or -inf for forbidden items, whose ``weights`` (d,) are integers >= 0.
    """
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


#: Largest number of items times capacities, for each of which a thread keeps a byte.
MOST_CELLS = 100_000_000
#: Largest weight and capacity: the sum of a million of them is a 64-bit integer.
MOST_WEIGHT = 2**40


@dataclass(frozen=True)
class Knapsack(Structure):
    """Structure of the sets of items whose total weight is at most the capacity.

    The best set is found by dynamic programming, in time proportional to the number of items times the capacity, after both
    have been divided by the weights' greatest common divisor.

    Args:
        weights: integer weight of each item, >= 0.
        capacity: largest total weight, an integer >= 0.

    Raises:
        ConfigurationError: for other weights or another capacity, or if items times capacity is beyond 100 million.

    Example:
        >>> import torch
        >>> Knapsack((3, 4, 5), capacity=7).maximize(
        ...     torch.tensor([[2.0, 3.0, 4.0]])
        ... ).tolist()
        [[1.0, 1.0, 0.0]]
    """

    weights: tuple[int, ...]
    capacity: int

    def __post_init__(self) -> None:
        given: Any = self.weights
        given = given.tolist() if isinstance(given, np.ndarray | Tensor) else given
        if not isinstance(given, list | tuple) or not given:
            raise ConfigurationError(f"Expected argument `weights` to be a list of integers but got {self.weights!r}.")
        weights = tuple(check_count("weights", one, least=0, most=MOST_WEIGHT) for one in given)
        object.__setattr__(self, "weights", weights)
        check_count("capacity", self.capacity, least=0, most=MOST_WEIGHT)
        units = self._in_units()[1] + 1
        if len(weights) * units > MOST_CELLS:
            raise ConfigurationError(
                f"Expected at most {MOST_CELLS:,} items times units of capacity but got {len(weights)} * {units:,}."
                " Round the weights to multiples of a coarser unit."
            )

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: one with an item that never fits and a weightless one, and a trivial one."""
        return [cls((2, 3, 3, 5, 0, 9), 7), cls((1, 2, 4), 20)]

    @property
    @override
    def size(self) -> int:
        return len(self.weights)

    def _in_units(self) -> tuple[np.ndarray, int]:
        """Return weights and the capacity, divided by the weights' greatest common divisor."""
        unit = max(math.gcd(*self.weights), 1)
        weights = np.array(self.weights, np.int64) // unit
        return weights, min(self.capacity // unit, int(weights.sum()))

    @on_values
    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        """Return the best set of items for each row of scores (B, d); of equally good sets, one with the first of the items."""
        return best_by_search(self, scores, potentials, self._search, "a set of items", "")

    def _search(self, rows: np.ndarray) -> tuple[Any, Any]:
        weights, capacity = self._in_units()
        chosen = zeros(rows.shape, np.uint8)
        over_rows(items_block, (len(rows), len(weights) * (capacity + 1)), SECONDS, rows, weights, capacity, chosen)
        return chosen, np.ones(len(rows), np.bool_)

    @override
    def validate(self, structures: Tensor) -> Tensor:
        self.check(structures.shape[-1])
        weights = torch.tensor(self.weights, dtype=torch.float64, device=structures.device)
        return structures.double() @ weights <= self.capacity
