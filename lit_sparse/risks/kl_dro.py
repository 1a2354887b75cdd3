"""Robustness against any reweighting of the examples that is near in Kullback-Leibler divergence, batch by batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import Self

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

    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        """See :class:`lit_sparse.risks.Risk`."""
        scores = losses / self.lam
        if weights is not None:
            there = weights > 0
            scores = torch.where(there, scores + torch.where(there, weights, 1.0).log(), -torch.inf)
        return self.lam * (torch.logsumexp(scores, 0) - math.log(len(losses)))
