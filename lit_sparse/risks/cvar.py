"""Conditional value at risk: the mean loss of the worst examples, also estimated from small batches without bias."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import EXAMPLES, Number, ranges
from lit_sparse.risks.base import Risk

__all__ = ["CVaR", "MultilevelCVaR"]


@ranges(level=Number(0.0, 1.0, open_low=True))
class CVaR(Risk):
    r"""Conditional value at risk: mean of the largest losses of a batch, which hold the fraction ``level`` of the weight.

    .. math:: \min_a \; a + E (\ell - a)_+ / \mathrm{level}

    where E is the weighted mean over the losses l of the batch; the optimal a is the (1 - level)-quantile. The example at
    the boundary counts in part. Weights are normalized, and the result is multiplied by their mean, so that ``CVaR(1.0)``
    is :class:`lit_sparse.risks.Mean`. Biased for mini-batches: smaller batches give smaller values. In distributed
    training, losses are gathered from all processes.

    Args:
        level: fraction of the weight, in (0, 1].

    Raises:
        ConfigurationError: if ``level`` is outside its range.

    Source: Rockafellar & Uryasev (2000), Optimization of Conditional Value-at-Risk, theorem 1, doi:10.21314/JOR.2000.038.

    Example:
        >>> import torch
        >>> float(CVaR(0.5)(torch.tensor([1.0, 8.0, 2.0, 4.0])))
        6.0
    """

    def __init__(self, level: float) -> None:
        super().__init__()
        self.level = level

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests, which average few examples, half of them, and all."""
        return [cls(0.1), cls(0.5), cls(1.0)]

    @override
    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        weights = torch.ones_like(losses) if weights is None else weights
        ranked, order = losses.sort(descending=True)
        mass = weights[order]
        total = mass.sum()
        before = mass.cumsum(0) - mass
        taken = torch.minimum((self.level * total - before).clamp_min(0.0), mass)
        return (taken * ranked).sum() / (self.level * losses.shape[0])


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
