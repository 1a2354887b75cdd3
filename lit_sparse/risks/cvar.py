"""Conditional value at risk: the mean loss of the worst examples."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import Number, ranges
from lit_sparse.risks.base import Risk

__all__ = ["CVaR"]


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
