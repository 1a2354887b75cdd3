"""Means over examples, all together or by group, that do not depend on batches or processes, apart from rounding."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from lit_sparse.checks import FEATURES, INTEGERS, POSITIVE, Count, check_tensor, ranges
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.metrics.exact_metric import ExactMetric

__all__ = ["BitsPerDim", "GroupMeans", "LogMeanExp", "MeanOverExamples"]


class MeanOverExamples(ExactMetric):
    """Metric: mean of one number per example, summed in float64.

    Args:
        options: keyword arguments of torchmetrics, such as ``sync_on_compute``.

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

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, values: Tensor) -> None:
        """Add the numbers (B,) of examples."""
        self.total += values.detach().double().sum()
        self.count += values.numel()

    def compute(self) -> Tensor:
        """Return the mean over all examples, NaN without examples."""
        return self.total / self.count


@ranges(max_groups=FEATURES)
class GroupMeans(ExactMetric):
    """Metric: mean of one number per example in each group of examples, and the worst of these means.

    Args:
        value: name of the averaged quantity, used in the names of the results.
        worst: ``"max"`` or ``"min"``, whether the largest or the smallest mean is the worst.
        max_groups: maximum number of groups.
        options: keyword arguments of torchmetrics, such as ``sync_on_compute``.

    Raises:
        ConfigurationError: for an argument outside its range.

    Example:
        >>> import torch
        >>> metric = GroupMeans("accuracy", "min")
        >>> metric.update(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0, 2, 0]))
        >>> {name: float(value) for name, value in metric.compute().items()}
        {'accuracy_group_0': 1.0, 'accuracy_group_2': 0.0, 'worst_group_accuracy': 0.0}
    """

    totals: Tensor
    counts: Tensor

    def __init__(self, value: str, worst: Literal["max", "min"], max_groups: int = 1024, **options: Any) -> None:
        super().__init__(**options)
        self.value, self.worst, self.max_groups = value, worst, max_groups
        self.add_state("totals", torch.zeros(max_groups, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("counts", torch.zeros(max_groups, dtype=torch.int64), dist_reduce_fx="sum")

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        """Whether higher values are better, which is so if the worst mean is the smallest."""
        return self.worst == "min"

    def update(self, values: Tensor, groups: Tensor) -> None:
        """Add the numbers (B,) of examples, whose groups (B,) count from 0; negative groups are ignored.

        Raises:
            ConfigurationError: for a group that is too large; on an accelerator such groups are ignored.
        """
        what = f"a group, a whole number, for each of the values {tuple(values.shape)}"
        check_tensor(groups, what, shape=values.shape, dtypes=(*INTEGERS, torch.bool))
        groups = groups.long()  # a number that is compared with integers of 8 bits would become one of them
        if groups.device.type == "cpu" and len(groups) and int(groups.max()) >= self.max_groups:
            raise ConfigurationError(
                f"Expected at most {self.max_groups} groups, numbered from 0, but got {int(groups.max())}. Renumber them."
            )
        known = (groups >= 0) & (groups < self.max_groups)
        places = torch.where(known, groups, 0)
        self.totals.index_add_(0, places, torch.where(known, values.detach().double(), 0.0))
        self.counts.index_add_(0, places, known.long())

    def compute(self) -> dict[str, Tensor]:
        """Return the mean of each group with an example, and the worst of them; nothing without examples."""
        there = self.counts.nonzero().flatten()
        if not len(there):
            return {}
        means = self.totals[there] / self.counts[there]
        named = {f"{self.value}_group_{group}": mean for group, mean in zip(there.tolist(), means, strict=True)}
        return named | {f"worst_group_{self.value}": means.amax() if self.worst == "max" else means.amin()}


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
        >>> metric.update(
        ...     torch.tensor([-10.0, -30.0]) * math.log(2),
        ...     torch.tensor([3.0, 4.0]) * math.log(2),
        ... )
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
        if standard_errors is not None:
            what = f"a standard error per log likelihood {tuple(log_likelihoods.shape)}"
            check_tensor(standard_errors, what, shape=log_likelihoods.shape, error=DataError)
            if standard_errors.device.type == "cpu" and bool((standard_errors < 0).any()):
                raise DataError(f"Expected standard errors of at least 0 but got {float(standard_errors.min())}.")
            self.variance += standard_errors.detach().double().square().sum()
        self.total -= log_likelihoods.detach().double().sum()
        self.count += log_likelihoods.numel()

    def compute(self) -> dict[str, Tensor]:
        """Return the mean and its standard error, in bits per dimension, as float64 scalars; NaN without examples."""
        scale = self.count * (self.dimensions * math.log(2.0))
        return {"mean": self.total / scale, "standard_error": self.variance.sqrt() / scale}
