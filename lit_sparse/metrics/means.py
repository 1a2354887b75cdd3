"""Means over examples that do not depend on batches or processes."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_sparse.metrics.exact_metric import ExactMetric

__all__ = ["MeanOverExamples"]


class MeanOverExamples(ExactMetric):
    """Mean of one number per example, summed in float64.

    Example:
        >>> import torch
        >>> metric = MeanOverExamples()
        >>> metric.update(torch.tensor([1.0, 2.0]))
        >>> metric.update(torch.tensor([6.0]))
        >>> float(metric.compute())
        3.0
    """

    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, values: Tensor) -> None:
        """Add the numbers (B,) of examples."""
        self.total += values.detach().double().sum()
        self.count += values.numel()

    def compute(self) -> Tensor:
        """Return the mean, NaN without examples."""
        return self.total / self.count
