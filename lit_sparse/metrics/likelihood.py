"""Bits per dimension of the data under a model."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lit_sparse.checks import Count, ranges
from lit_sparse.errors import DataError
from lit_sparse.metrics.exact_metric import ExactMetric

__all__ = ["BitsPerDim"]


@ranges(dimensions=Count())
class BitsPerDim(ExactMetric):
    """Metric: mean bits per dimension, ``-log2 p(x) / dimensions``, and its standard error.

    If each log p(x) is an estimate from independent samples, with its own standard error, the error of the mean over N
    examples is ``sqrt(sum of squared errors) / N``. It measures the estimates for these N examples, not the variation
    between examples.

    Args:
        dimensions: number of dimensions of an example, such as pixels.
        options: keyword arguments of torchmetrics, such as ``sync_on_compute``.

    Raises:
        ConfigurationError: if ``dimensions`` is not a positive integer.

    Example:
        >>> import math, torch
        >>> metric = BitsPerDim(dimensions=10)
        >>> metric.update(torch.tensor([-10.0, -30.0]) * math.log(2), torch.tensor([3.0, 4.0]) * math.log(2))
        >>> {name: round(float(value), 6) for name, value in metric.compute().items()}
        {'mean': 2.0, 'standard_error': 0.25}
    """

    higher_is_better: bool | None = False
    total: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, dimensions: int, **options: Any) -> None:
        super().__init__(**options)
        self.dimensions = dimensions
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("variance", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, log_likelihoods: Tensor, standard_errors: Tensor | None = None) -> None:
        """Add the log-likelihoods of examples.

        Args:
            log_likelihoods: (B,) log p(x) in nats.
            standard_errors: (B,) standard error of each estimate, in nats; None for exact values.

        Raises:
            DataError: for standard errors of another shape, or negative ones, which is not checked on an accelerator.
        """
        if standard_errors is not None and standard_errors.shape != log_likelihoods.shape:
            raise DataError(
                f"Expected a standard error per log likelihood {tuple(log_likelihoods.shape)} but got shape "
                f"{tuple(standard_errors.shape)}."
            )
        if standard_errors is not None and standard_errors.device.type == "cpu" and bool((standard_errors < 0).any()):
            raise DataError(f"Expected standard errors of at least 0 but got {float(standard_errors.min())}.")
        self.total -= log_likelihoods.detach().double().sum()
        self.count += log_likelihoods.numel()
        if standard_errors is not None:
            self.variance += standard_errors.detach().double().square().sum()

    def compute(self) -> dict[str, Tensor]:
        """Return the mean and its standard error, in bits per dimension, as float64 scalars; NaN without examples."""
        scale = self.count * (self.dimensions * math.log(2.0))
        return {"mean": self.total / scale, "standard_error": self.variance.sqrt() / scale}
