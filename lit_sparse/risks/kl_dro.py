"""Robustness against any reweighting of the examples that is near in Kullback-Leibler divergence, batch by batch."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import check_positive
from lit_sparse.risks.base import Risk

__all__ = ["KLDRO"]


class KLDRO(Risk):
    """``lam log mean exp(loss / lam)`` of a batch: the largest mean loss under a reweighting, less lam times its divergence.

    Of the batch alone, it is biased: its mean over batches is less than that of all examples, and much less for small batches,
    for a gradient looks at no other batch. :class:`lit_sparse.risks.SafeKLDRO` is not. Of several processes each trains on the
    losses of all. With weights the exponentials are weighted.

    Args:
        lam: what a unit of divergence costs, > 0, in units of the loss. Large: the mean; small: the largest loss.

    Raises:
        ConfigurationError: if it is not positive.

    Source: Hu & Hong (2013); Levy et al. (2020), Large-Scale Methods for Distributionally Robust Optimization; equation 18 of
    Improved Stochastic Optimization of LogSumExp.

    Example:
        >>> import torch
        >>> float(KLDRO(2.0)(torch.full((5,), 3.0)))
        3.0
    """

    def __init__(self, lam: float) -> None:
        super().__init__()
        self.lam = check_positive("lam", lam)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return a mild one and a severe one."""
        return [cls(1.0), cls(0.1)]

    @override
    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        weights = torch.ones_like(losses) if weights is None else weights
        there = weights > 0
        top = torch.where(there, losses.detach(), -torch.inf).amax()
        scores = torch.where(there, (losses - top) / self.lam, 0.0)
        shares = weights / weights.sum()
        # Of a large lam the logarithm is near 0, and digits would be lost in 1 + it.
        below = (shares * scores.expm1()).sum()
        near, far = below.clamp_min(-0.75).log1p(), torch.where(there, scores, -torch.inf).add(_log(shares)).logsumexp(0)
        return top + self.lam * (torch.where(below > -0.5, near, far) + weights.mean().log())


def _log(shares: Tensor) -> Tensor:
    """Return logarithms, 0 in place of that of 0."""
    return torch.where(shares > 0, shares, 1.0).log()
