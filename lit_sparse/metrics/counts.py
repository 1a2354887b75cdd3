"""Counts of sparse decisions: positive weights and their groups, decoder calls, and histograms of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_sparse.checks import INPUTS, INTEGERS, check_mask, check_tensor, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import checked
from lit_sparse.metrics.exact_metric import ExactMetric

__all__ = ["CountHistogram", "DecoderCalls", "SupportSize", "group_counts", "support_sizes", "tied_groups"]


@checked
def support_sizes(weights: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return the support size of each row of weights, the number of nonzero entries, (...,) int64.

    Entries that are not finite count as zero: a row of NaN has an empty support.

    Args:
        weights: (..., S), such as the attention over S source positions.
        allowed: boolean, broadcastable to (..., S); other entries are ignored. None allows all.

    Example:
        >>> support_sizes(torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]))
        tensor([2, 1])
    """
    return _present(weights, allowed).sum(-1)


@checked
def group_counts(weights: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return the number of groups of neighbours with equal nonzero weights in each row, (...,) int64.

    A group is a maximal run of neighbours with exactly the same nonzero weight; a single entry is a group, too. A masked
    position ends a run, because fusedmax fuses only neighbours in the original sequence.

    Args:
        weights: (..., S).
        allowed: as in :func:`support_sizes`.

    Source: Niculae & Blondel (2017), A Regularized Framework for Sparse and Structured Neural Attention, section 3.2,
    arXiv:1705.07704.

    Example:
        >>> int(group_counts(torch.tensor([0.25, 0.25, 0.0, 0.25, 0.1, 0.15])))
        4
    """
    present = _present(weights, allowed)
    goes_on = present[..., 1:] & present[..., :-1] & (weights[..., 1:] == weights[..., :-1])
    return present.sum(-1) - goes_on.sum(-1)


@checked
def tied_groups(weights: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return the number of different nonzero weights in each row, (...,) int64: the clusters of oscarmax.

    Args:
        weights: (..., S).
        allowed: as in :func:`support_sizes`.

    Source: Niculae & Blondel (2017), section 3.3, arXiv:1705.07704.

    Example:
        >>> int(tied_groups(torch.tensor([0.25, 0.25, 0.0, 0.25, 0.1, 0.15])))
        3
    """
    ordered = torch.where(_present(weights, allowed), weights, 0).sort(-1).values
    repeated = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] != 0)
    return (ordered != 0).sum(-1) - repeated.sum(-1)


def _present(weights: Tensor, allowed: Tensor | None) -> Tensor:
    """Return which entries (..., S) are allowed and not zero."""
    if not weights.dim() or weights.is_complex():
        raise ConfigurationError(f"Expected real weights (..., S) but got {weights.dtype} {tuple(weights.shape)}.")
    present = weights.isfinite() & (weights != 0)
    if allowed is None:
        return present
    check_mask(allowed, "an entry counts")
    if (
        any(m not in (1, s) for m, s in zip(allowed.shape[::-1], weights.shape[::-1], strict=False))
        or allowed.dim() > weights.dim()
    ):
        raise ConfigurationError(f"Expected a mask for weights {tuple(weights.shape)} but got shape {tuple(allowed.shape)}.")
    return present & allowed


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
        check_tensor(counts, "counts in an integer tensor", dtypes=(*INTEGERS, torch.bool))
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

        percentiles = {name: percentile(percent) for name, percent in (("p10", 10), ("median", 50), ("p90", 90))}
        return {"mean": self.total.double() / number, **percentiles, "total": self.total.double()}


class SupportSize(CountHistogram):
    """Metric: statistics of the support size of each decision, the number of values with a probability above zero."""


class DecoderCalls(CountHistogram):
    """Metric: statistics of the number of rows that the decoder evaluated for a decision."""
