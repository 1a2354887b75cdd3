"""Robustness against reweighted examples within a divergence, batch by batch."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import POSITIVE, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.risks.base import Risk

__all__ = ["KLDRO", "ChiSquareDRO"]


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
        near, logs = below.clamp_min(-0.75).log1p(), torch.where(shares > 0, shares, 1.0).log()
        far = torch.where(there, scores, -torch.inf).add(logs).logsumexp(0)
        return top + self.lam * (torch.where(below > -0.5, near, far) + weights.mean().log())


@ranges(radius=POSITIVE, lam=POSITIVE)
class ChiSquareDRO(Risk):
    r"""Largest mean loss of a batch under reweighting, with a limit on or a penalty of the chi-square divergence.

    .. math:: \max_q \; q^\top \ell \;\text{ with }\; D(q) \le \mathrm{radius}
        \qquad\text{or}\qquad \max_q \; q^\top \ell - \mathrm{lam} D(q),
        \qquad D(q) = \tfrac12 \sum_i (q_i - p_i)^2 / p_i

    where l are the losses of the batch, q a distribution over its examples, and p the uniform distribution or the
    normalized weights. Both problems are solved exactly by sorting: ``q_i`` is proportional to ``p_i (loss_i - tau)_+``,
    and q is the gradient. With a penalty and without weights, q is ``sparsemax(losses, gamma=lam * B)``. In the interior,
    where no q is 0, the ball gives the mean plus ``sqrt(2 radius variance)``. The result is multiplied by the mean weight,
    so that a small radius gives :class:`lit_sparse.risks.Mean`. Biased for mini-batches: smaller batches give smaller
    values, and a batch of B examples cannot distinguish radii above (B - 1) / 2. In distributed training, losses are
    gathered from all processes.

    Args:
        radius: largest divergence D, > 0. Small values give the mean, large ones the largest loss.
        lam: used in place of a radius: cost per unit of divergence, > 0, in units of the loss. Large values give the mean.

    Raises:
        ConfigurationError: unless exactly one of the two is given, and positive.

    Source: Levy, Carmon, Duchi & Sidford (2020), Large-Scale Methods for Distributionally Robust Optimization, section 2,
    arXiv:2010.05893. Namkoong & Duchi (2017), Variance-based Regularization with Convex Objectives, arXiv:1610.02581.

    Example:
        >>> import torch
        >>> losses = torch.tensor([1.0, 2.0, 3.0])
        >>> risk = ChiSquareDRO(0.03)
        >>> torch.isclose(
        ...     risk(losses), losses.mean() + (0.06 * losses.var(correction=0)).sqrt()
        ... )
        tensor(True)
    """

    def __init__(self, radius: float | None = None, *, lam: float | None = None) -> None:
        super().__init__()
        if (radius is None) == (lam is None):
            raise ConfigurationError(
                f"Expected either argument `radius` or argument `lam` but got radius={radius} and lam={lam}. Give one of them."
            )
        self.radius, self.lam = radius, lam

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: limits and penalties with small and large effect."""
        return [cls(0.05), cls(2.0), cls(lam=0.1), cls(lam=10.0)]

    @override
    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        weights = torch.ones_like(losses) if weights is None else weights
        x = losses.double()
        shares = weights.double() / weights.double().sum()
        support = self._support(x.detach(), shares)
        inside = torch.where(support, shares, 0.0)
        mass = inside.sum()
        mean = (inside * x).sum() / mass
        variance = (inside * (x - mean).square()).sum() / mass
        if self.lam is not None:
            # tau = mean - lam / mass; the maximum is tau + E (x - tau)_+^2 / (2 lam) + lam / 2.
            found = mean + 0.5 * mass * variance / self.lam + 0.5 * self.lam * (1 - 1 / mass)
        else:
            # The maximum is the least tau + sqrt((1 + 2 radius) E (x - tau)_+^2).
            room = ((1 + 2 * self._ball) * mass - 1).clamp_min(0.0) * variance
            found = mean + torch.where(room > 0, torch.where(room > 0, room, 1.0).sqrt(), 0.0)
        return found.to(losses.dtype) * weights.mean()

    def _support(self, x: Tensor, shares: Tensor) -> Tensor:
        """Return whether the maximizing q (B,) is positive: whether x > tau. Either is right if it equals tau."""
        top = torch.where(shares > 0, x, -torch.inf).amax()
        ranked, order = torch.where(shares > 0, x - top, 0.0).sort(descending=True)
        mass = shares[order]
        first, second = (mass * ranked).cumsum(0), (mass * ranked.square()).cumsum(0)
        before = mass.cumsum(0)
        excess = first - before * ranked  # E (x - t)_+ at t = ranked
        if self.lam is not None:
            inside = excess < self.lam
        else:
            squared = second - 2 * ranked * first + before * ranked.square()  # E (x - t)_+^2
            inside = (ranked == 0) | (squared > (1 + 2 * self._ball) * excess.square())
        return inside.gather(0, order.argsort()) & (shares > 0)

    @property
    def _ball(self) -> float:
        return 0.0 if self.radius is None else self.radius
