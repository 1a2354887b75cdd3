"""The log-mean-exp of losses: the objective of robust training with the Kullback-Leibler divergence."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lit_sparse.checks import POSITIVE, ranges
from lit_sparse.metrics.exact_metric import ExactMetric

__all__ = ["LogMeanExp"]


@ranges(lam=POSITIVE)
class LogMeanExp(ExactMetric):
    r"""Metric: the objective of Kullback-Leibler robust training, the log-mean-exp of the losses over all examples.

    .. math:: \mathrm{lam} \ln \operatorname{mean} e^{\ell / \mathrm{lam}}

    where l are the losses. Computed in float64, for any batches and any number of processes.

    Args:
        lam: temperature, > 0, in units of the loss.
        options: keyword arguments of torchmetrics, such as ``sync_on_compute``.

    Raises:
        ConfigurationError: if ``lam`` is not positive.

    Example:
        >>> import torch
        >>> metric = LogMeanExp(1.0)
        >>> metric.update(torch.tensor([0.0, 1000.0]))
        >>> metric.update(torch.tensor([1000.0, 0.0]))
        >>> round(float(metric.compute()), 4)
        999.3069
    """

    higher_is_better: bool | None = False
    log_total: Tensor
    count: Tensor

    def __init__(self, lam: float, **options: Any) -> None:
        super().__init__(**options)
        self.lam = lam
        self.add_state("log_total", torch.tensor(-math.inf, dtype=torch.float64), dist_reduce_fx=_joined)
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, losses: Tensor) -> None:
        """Add the losses (B,) of examples."""
        scores = losses.detach().double().flatten() / self.lam
        self.log_total = torch.logaddexp(self.log_total, torch.logsumexp(scores, 0)) if len(scores) else self.log_total
        self.count += scores.numel()

    def compute(self) -> Tensor:
        """Return the log-mean-exp of all losses as a float64 scalar, NaN without examples."""
        return self.lam * (self.log_total - self.count.double().log()) if int(self.count) else self.log_total * math.nan


def _joined(parts: Tensor) -> Tensor:
    return torch.logsumexp(parts, 0)
