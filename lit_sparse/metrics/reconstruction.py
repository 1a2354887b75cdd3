"""How well sparse codes reconstruct vectors, and how many units they use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_sparse.checks import INPUTS, check_tensor, ranges
from lit_sparse.metrics.exact_metric import ExactMetric

__all__ = ["DeadFraction", "ExplainedVariance"]


@ranges(features=INPUTS)
class ExplainedVariance(ExactMetric):
    r"""Metric: fraction of the variance of vectors that their reconstructions explain.

    .. math:: 1 - \frac{\sum_n \lVert x_n - \hat x_n \rVert^2}{\sum_n \lVert x_n - \bar x \rVert^2}

    where x_n are the vectors, x_n with a hat their reconstructions, and x with a bar is the mean vector.

    Args:
        features: number of entries of a vector.
        options: keyword arguments of torchmetrics, such as ``sync_on_compute``.

    Raises:
        ConfigurationError: if ``features`` is not a positive integer.

    Example:
        >>> import torch
        >>> metric = ExplainedVariance(features=1)
        >>> metric.update(torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [2.5]]))
        >>> float(metric.compute())
        0.875
    """

    higher_is_better = True
    error: Tensor
    squares: Tensor
    total: Tensor
    count: Tensor

    def __init__(self, features: int, **options: Any) -> None:
        super().__init__(**options)
        self.features = features
        for name, size in (("error", ()), ("squares", ()), ("total", (features,))):
            self.add_state(name, torch.zeros(size, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, vectors: Tensor, made: Tensor) -> None:
        """Add vectors (B, D) and their reconstructions (B, D).

        Raises:
            ConfigurationError: for other shapes.
        """
        shape = check_tensor(vectors, f"vectors (B, {self.features})", shape=(None, self.features)).shape
        check_tensor(made, f"a reconstruction for each vector {tuple(shape)}", shape=shape)
        vectors = vectors.detach().double()
        self.error += (vectors - made.detach()).square().sum()
        self.squares += vectors.square().sum()
        self.total += vectors.sum(0)
        self.count += len(vectors)

    def compute(self) -> Tensor:
        """Return the explained fraction of the variance; NaN if the vectors do not vary."""
        return 1 - self.error / (self.squares - self.total.square().sum() / self.count)


@ranges(width=INPUTS)
class DeadFraction(ExactMetric):
    """Metric: fraction of units that are active for no example.

    Args:
        width: number of units.
        options: keyword arguments of torchmetrics, such as ``sync_on_compute``.

    Raises:
        ConfigurationError: if ``width`` is not a positive integer.

    Example:
        >>> import torch
        >>> metric = DeadFraction(width=4)
        >>> metric.update(torch.tensor([[0.0, 2.0, 0.0, 0.0], [0.0, 1.0, 0.5, 0.0]]))
        >>> float(metric.compute())
        0.5
    """

    higher_is_better = False
    active: Tensor

    def __init__(self, width: int, **options: Any) -> None:
        super().__init__(**options)
        self.width = width
        self.add_state("active", torch.zeros(width, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, activity: Tensor) -> None:
        """Add the activity (B, width) of a batch of examples.

        Raises:
            ConfigurationError: for another shape.
        """
        check_tensor(activity, f"the activity (B, {self.width}) of units", shape=(None, self.width))
        self.active += (activity.detach() != 0).sum(0)

    def compute(self) -> Tensor:
        """Return the fraction of units that were active for no example."""
        return (self.active == 0).double().mean()
