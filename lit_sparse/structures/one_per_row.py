"""Structures with one entry per row of a grid: a tag per position, a column per row, a head per node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.errors import ConfigurationError
from lit_sparse.structures.base import Structure, best_by_search, less_the_largest

__all__ = ["OnePerRow"]

#: Largest number of structures that are enumerated.
MOST_LISTED = 2**20


class OnePerRow(Structure):
    """Base class of structures whose entries form a grid with exactly one 1 per row.

    Rows that are forbidden as a whole are left out.
    """

    @abstractmethod
    def shape(self, d: int) -> tuple[int, int]:
        """Return the numbers of rows and columns of a grid with d entries.

        Raises:
            ConfigurationError: if d entries do not form such a grid.
        """

    def grid(self, entries: Tensor) -> Tensor:
        """View entries (..., d) as a grid (..., rows, columns)."""
        return entries.reshape(*entries.shape[:-1], *self.shape(entries.shape[-1]))

    @override
    def check(self, d: int) -> None:
        self.shape(d)

    @override
    def centered(self, scores: Tensor) -> Tensor:
        return less_the_largest(self.grid(scores)).flatten(-2)

    @override
    def validate(self, structures: Tensor) -> Tensor:
        fits: Tensor = (self.grid(structures).sum(-1) <= 1).all(-1)
        return fits

    @override
    def fits(self, structures: Tensor, allowed: Tensor) -> Tensor:
        open_ = self.grid(allowed.expand_as(structures)).any(-1)
        return super().fits(structures, allowed) & ((self.grid(structures).sum(-1) > 0) == open_).all(-1)

    def searched(
        self, scores: Tensor, potentials: Tensor | None, search: Callable[[np.ndarray], tuple[Any, Any]], what: str, advice: str
    ) -> Tensor:
        """Return the best structure of each row by a search over scores (B, rows, columns); see :func:`best_by_search`."""

        def of_grids(rows: np.ndarray) -> tuple[Any, Any]:
            return search(rows.reshape(-1, *self.shape(rows.shape[-1])))

        return best_by_search(self, scores, potentials, of_grids, what, advice)

    @staticmethod
    def marked(places: Iterable[Any], number: int, columns: int) -> Tensor:
        """Return ``number`` structures (S, rows * columns) float64 with a one in each row, at the given columns (S, rows).

        Raises:
            ConfigurationError: if there are more than :data:`MOST_LISTED`.
        """
        if number > MOST_LISTED:
            raise ConfigurationError(
                f"Expected at most {MOST_LISTED:,} structures to enumerate but there are more. Enumerate fewer entries."
            )
        return torch.nn.functional.one_hot(torch.tensor(list(places), dtype=torch.int64), columns).flatten(1).double()
