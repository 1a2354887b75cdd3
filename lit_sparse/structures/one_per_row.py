"""Structures with one entry per row of a grid: a tag per position, a column per row, a head per node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.errors import ConfigurationError
from lit_sparse.structures.base import Structure, coarse_scores

__all__ = ["OnePerRow"]


class OnePerRow(Structure):
    """A structure whose entries form a grid with a single one per row; rows that are forbidden as a whole are left out."""

    @abstractmethod
    def grid(self, entries: Tensor) -> Tensor:
        """View entries (..., d) as (..., rows, columns).

        Raises:
            ConfigurationError: if d entries cannot be laid out.
        """

    @override
    def centered(self, scores: Tensor) -> Tensor:
        grid = self.grid(scores)
        if not grid.shape[-1]:
            return scores
        largest = grid.detach().amax(-1, keepdim=True)
        return (grid - torch.where(largest.isfinite(), largest, 0.0)).flatten(-2)

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
        """Return the best structures by a search on the CPU.

        Args:
            scores: (B, d).
            potentials: further scores.
            search: function of scores (B, rows, columns) that returns the structures, and which rows have one.
            what: a structure in words, for the message where forbidden entries leave none.
            advice: what to do then.

        Raises:
            ConfigurationError: if there is none, or scores are NaN or inf.
        """
        self.check_call(scores, potentials)
        grids: np.ndarray = self.grid(coarse_scores(scores.detach()).cpu()).numpy()
        if not bool((grids < np.inf).all()):
            raise ConfigurationError(
                "Expected scores that are finite, or -inf where an entry is forbidden, but got NaN or inf."
            )
        chosen, found = search(grids)
        if not found.all():
            raise ConfigurationError(
                f"Expected forbidden entries that leave {what} but row {int(found.argmin())} of the batch has none. {advice}"
            )
        return torch.from_numpy(chosen).reshape(scores.shape).to(scores)

    @staticmethod
    def marked(places: Sequence[Any], columns: int) -> Tensor:
        """Return structures (S, rows * columns) float64 with a one at the given places (S, rows)."""
        return torch.nn.functional.one_hot(torch.tensor(places, dtype=torch.int64), columns).flatten(1).double()
