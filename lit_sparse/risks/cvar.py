"""Conditional value at risk: the mean loss of the worst examples."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import check_number
from lit_sparse.risks.base import Risk

__all__ = ["CVaR"]


class CVaR(Risk):
    """The mean over the worst fraction of the losses of a batch, by weight; the last example counts in part.

    ``min_a a + E (loss - a)_+ / level``. With weights it is that of their shares times their mean, so that ``CVaR(1.0)`` is
    :class:`lit_sparse.risks.Mean`. Of the batch alone, it is biased: smaller batches give smaller values. Of several processes
    each trains on the losses of all.

    Args:
        level: the fraction, in (0, 1].

    Raises:
        ConfigurationError: if it is outside.

    Source: Rockafellar & Uryasev (2000), Optimization of Conditional Value-at-Risk, theorem 1.

    Example:
        >>> import torch
        >>> float(CVaR(0.5)(torch.tensor([1.0, 8.0, 2.0, 4.0])))
        6.0
    """

    def __init__(self, level: float) -> None:
        super().__init__()
        self.level = check_number("level", level, 0.0, 1.0, open_low=True)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return some that take few examples, half of them, and all."""
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
