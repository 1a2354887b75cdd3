"""Mean and standard deviation of rows that come in pieces."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Spread"]


class Spread:
    """Running mean (D,) and standard deviation (D,) of rows (N, D) float64 that come in pieces.

    Example:
        >>> spread = Spread()
        >>> for piece in torch.arange(12.0).double().view(6, 2).split(4):
        ...     spread.add(piece)
        >>> spread.mean, spread.std
        (tensor([5., 6.], dtype=torch.float64), tensor([3.4157, 3.4157], dtype=torch.float64))

    Source: Chan, Golub & LeVeque (1979), Updating Formulae and a Pairwise Algorithm for Computing Sample Variances.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean, self._squares, self._first = torch.zeros(()).double(), torch.zeros(()).double(), torch.zeros(()).double()
        self.constant = torch.ones((), dtype=torch.bool)

    def add(self, rows: Tensor) -> None:
        """Update mean and standard deviation by rows (n, D)."""
        if not len(rows):
            return
        if not self.count:
            self._first = rows[0]
        self.constant = self.constant & (rows == self._first).all(0)
        mean, count = rows.mean(0), self.count + len(rows)
        shift = mean - self.mean
        self._squares = self._squares + (rows - mean).square().sum(0) + shift.square() * self.count * len(rows) / count
        self.mean = self.mean + shift * len(rows) / count
        self.count = count

    @property
    def std(self) -> Tensor:
        """The standard deviation (D,), without Bessel's correction."""
        return (self._squares / self.count).sqrt()

    @property
    def scale(self) -> Tensor:
        """The standard deviation (D,), infinite for constant columns."""
        return torch.where(self.constant, torch.inf, self.std)
