"""CVaR of large batches, estimated without bias from small ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import EXAMPLES, ranges
from lit_sparse.risks.cvar import CVaR

__all__ = ["MultilevelCVaR"]


@ranges(smallest=EXAMPLES)
class MultilevelCVaR(CVaR):
    r"""Unbiased estimate of a large batch's CVaR from a few of its examples, by a telescoping sum over doubled sizes.

    .. math:: C_n + \sum_{j=1}^{J} 2^j \left( C_{2^j n} - \tfrac12 (C_{2^{j-1} n} + C'_{2^{j-1} n}) \right), \quad
        P(J \ge j) = 2^{-j}

    where C_m is the CVaR of the first m examples, C'_m the CVaR of the m examples after them, and n is ``smallest``. The
    level J is at most the largest for which the batch suffices. A model computes only the ``2^J n`` losses, on average ``n
    (1 + levels / 2)``. Value and gradient have the same expectations as CVaR of ``2^levels n`` examples. So it has the bias
    of a large batch at the cost of a small one, but a larger variance; it is unbiased for the CVaR of the data if the
    largest batch is all of the data. A single estimate may decrease as a loss increases. Each process makes its own
    estimate. In eval mode, CVaR of all losses is computed.

    Args:
        level: fraction of the weight, in (0, 1].
        smallest: n, number of examples of the smallest batches. At least ``1 / level``; best if the batch size is a power
            of two times it.

    Raises:
        ConfigurationError: for an argument outside its range.

    Source: Levy, Carmon, Duchi & Sidford (2020), Large-Scale Methods for Distributionally Robust Optimization, section 4,
    arXiv:2010.05893. They draw one term of the sum. The sum up to a random level, whose weights do not depend on the number
    of levels, is from Rhee & Glynn (2015), Unbiased Estimation with Square Root Convergence for SDE Models.

    Example:
        >>> import torch
        >>> risk = MultilevelCVaR(0.5, smallest=1)
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <torch...>
        >>> losses = torch.tensor([1.0, 8.0, 2.0, 4.0])
        >>> draws = [risk(losses[torch.randperm(4)]) for _ in range(10_000)]
        >>> bool((torch.stack(draws).mean() - 6.0).abs() < 0.3)
        True
    """

    def __init__(self, level: float, smallest: int = 16) -> None:
        super().__init__(level)
        self.smallest = smallest
        #: Number of rows that :meth:`draw_rows` chose for the next losses.
        self._drawn: int | None = None

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: one with several levels, and one with a single level."""
        return [cls(0.5, 2), cls(0.2, 16)]

    @override
    def draw_rows(self, size: int) -> Tensor | None:
        self._drawn = self._draw(size)
        return torch.randperm(size)[: self._drawn]

    @override
    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        if not self.training:
            return super().measure(losses, weights)
        count = self._drawn if self._drawn == len(losses) else self._draw(len(losses))
        self._drawn = None

        def cvar(first: int, last: int) -> Tensor:
            return super(MultilevelCVaR, self).measure(losses[first:last], None if weights is None else weights[first:last])

        half, factor = min(self.smallest, count), 1
        found = cvar(0, half)
        while 2 * half <= count:
            factor *= 2
            found = found + factor * (cvar(0, 2 * half) - 0.5 * (cvar(0, half) + cvar(half, 2 * half)))
            half *= 2
        return found

    def _draw(self, size: int) -> int:
        """Return a random number of rows, ``smallest`` times a power of two, or ``size`` if that is smaller."""
        if size <= self.smallest:
            return size
        most = (size // self.smallest).bit_length() - 1
        return self.smallest << min(most, int(-math.log2(1 - float(torch.rand(())))))

    def _over_processes(self, losses: Tensor, weights: Tensor | None, *columns: Tensor) -> Tensor:
        return self.measure(losses, weights)
