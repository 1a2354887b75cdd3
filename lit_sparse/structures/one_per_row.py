"""Structures with one entry per row of a grid: a tag per position, a column per row, a head per node."""

from __future__ import annotations

from abc import abstractmethod

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

    def to_search(self, scores: Tensor) -> np.ndarray:
        """Return scores (B, d) as an array (B, rows, columns) on the CPU, for a search that refuses NaN and inf.

        Raises:
            ConfigurationError: if some are NaN or inf.
        """
        grids: np.ndarray = self.grid(coarse_scores(scores.detach()).cpu()).numpy()
        if not bool((grids < np.inf).all()):
            raise ConfigurationError(
                "Expected scores that are finite, or -inf where an entry is forbidden, but got NaN or inf."
            )
        return grids
