"""Robustness against reweighted examples within a Kullback-Leibler divergence, batch by batch."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import POSITIVE, ranges
from lit_sparse.risks.base import Risk

__all__ = ["KLDRO"]


@ranges(lam=POSITIVE)
class KLDRO(Risk):
    r"""Largest mean loss of a batch under any reweighting, minus ``lam`` times its Kullback-Leibler divergence.

    .. math:: \mathrm{lam} \log \mathrm{mean} \exp(\ell / \mathrm{lam})

    where l are the losses of the batch. With weights, the mean of the exponentials is weighted. Biased for mini-batches:
    the mean over batches is less than the objective over all examples, and much less for small batches.
    :class:`lit_sparse.risks.SafeKLDRO` is unbiased. In distributed training, losses are gathered from all processes.

    Args:
        lam: cost per unit of divergence, > 0, in units of the loss. Large values give the mean, small ones the largest
            loss.

    Raises:
        ConfigurationError: if ``lam`` is not positive.

    Source: Hu & Hong (2013), Kullback-Leibler Divergence Constrained Distributionally Robust Optimization. Levy, Carmon,
    Duchi & Sidford (2020), Large-Scale Methods for Distributionally Robust Optimization, arXiv:2010.05893. Gladin,
    Kroshnin, Zhu & Dvurechensky (2025), Improved Stochastic Optimization of LogSumExp, arXiv:2509.24894, equation 18.

    Example:
        >>> import torch
        >>> float(KLDRO(2.0)(torch.full((5,), 3.0)))
        3.0
    """

    def __init__(self, lam: float) -> None:
        super().__init__()
        self.lam = lam

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: a large and a small ``lam``."""
        return [cls(1.0), cls(0.1)]

    @override
    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        weights = torch.ones_like(losses) if weights is None else weights
        there = weights > 0
        top = torch.where(there, losses.detach(), -torch.inf).amax()
        scores = torch.where(there, (losses - top) / self.lam, 0.0)
        shares = weights / weights.sum()
        # With a large lam the logarithm is near 0; log1p keeps its digits.
        below = (shares * scores.expm1()).sum()
        near, far = below.clamp_min(-0.75).log1p(), torch.where(there, scores, -torch.inf).add(_log(shares)).logsumexp(0)
        return top + self.lam * (torch.where(below > -0.5, near, far) + weights.mean().log())


def _log(shares: Tensor) -> Tensor:
    """Return logarithms, with 0 in place of log 0."""
    return torch.where(shares > 0, shares, 1.0).log()
