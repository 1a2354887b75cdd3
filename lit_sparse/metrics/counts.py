"""Histograms of counts, such as support sizes and decoder calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_sparse.checks import INPUTS, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.metrics.exact_metric import ExactMetric

__all__ = ["CountHistogram", "DecoderCalls", "SupportSize"]


@ranges(max_count=INPUTS)
class CountHistogram(ExactMetric):
    """Metric: mean, percentiles and total of one count per decision, from an integer histogram.

    Percentiles are exact over any number of processes.

    Args:
        max_count: largest count with its own bin; larger ones share the last bin but enter mean and total exactly.
        options: keyword arguments of torchmetrics, such as ``sync_on_compute``.

    Raises:
        ConfigurationError: if ``max_count`` is not a positive integer.

    Example:
        >>> import torch
        >>> metric = CountHistogram(max_count=10)
        >>> metric.update(torch.tensor([1, 1, 1, 10]))
        >>> {name: float(value) for name, value in metric.compute().items()}
        {'mean': 3.25, 'p10': 1.0, 'median': 1.0, 'p90': 10.0, 'total': 13.0}
    """

    counts: Tensor
    total: Tensor

    def __init__(self, max_count: int = 1024, **options: Any) -> None:
        super().__init__(**options)
        self.max_count = max_count
        self.add_state("counts", torch.zeros(max_count + 1, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("total", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, counts: Tensor) -> None:
        """Add counts to the histogram.

        Args:
            counts: integers >= 0 of any shape, one per decision.

        Raises:
            ConfigurationError: for another dtype, or, on the CPU, a negative count.
        """
        if counts.is_floating_point() or counts.is_complex():
            raise ConfigurationError(f"Expected counts in an integer tensor but got {counts.dtype}.")
        counts = counts.detach().reshape(-1).long()
        if counts.device.type == "cpu" and len(counts) and int(counts.min()) < 0:
            raise ConfigurationError(f"Expected counts of at least 0 but got {int(counts.min())}.")
        self.counts.index_add_(0, counts.clamp(max=self.max_count), torch.ones_like(counts))
        self.total += counts.sum()

    def compute(self) -> dict[str, Tensor]:
        """Return mean, 10th percentile, median, 90th percentile (nearest rank) and total, as float64 scalars."""
        number = self.counts.sum()
        cumulated = self.counts.cumsum(0)

        def percentile(percent: int) -> Tensor:
            rank = ((percent * number + 99) // 100).clamp(min=1)
            value = (cumulated < rank).sum().double()
            return torch.where(number > 0, value, torch.nan)

        return {
            "mean": self.total.double() / number,
            "p10": percentile(10),
            "median": percentile(50),
            "p90": percentile(90),
            "total": self.total.double(),
        }


class SupportSize(CountHistogram):
    """Metric: statistics of the support size of each decision, the number of values with a probability above zero."""


class DecoderCalls(CountHistogram):
    """Metric: statistics of the number of rows that the decoder evaluated for a decision."""
