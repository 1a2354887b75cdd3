"""How well sparse codes reconstruct vectors, how many units they use, and how sparse they are."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lit_sparse.checks import INPUTS, INTEGER, check_dim, check_tensor, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import checked
from lit_sparse.metrics.exact_metric import ExactMetric

__all__ = ["DeadFraction", "ExplainedVariance", "HoyerSparseness", "hoyer_sparseness"]


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
    moments: Tensor

    def __init__(self, features: int, **options: Any) -> None:
        super().__init__(**options)
        self.features = features
        self.add_state("error", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        # Number of vectors, sum of their squared distances from their mean, and the mean.
        self.add_state("moments", torch.zeros(2 + features, dtype=torch.float64), dist_reduce_fx=_merged)

    def update(self, vectors: Tensor, made: Tensor) -> None:
        """Add vectors (B, D) and their reconstructions (B, D).

        Raises:
            ConfigurationError: for other shapes.
        """
        shape = check_tensor(vectors, f"vectors (B, {self.features})", shape=(None, self.features)).shape
        check_tensor(made, f"a reconstruction for each vector {tuple(shape)}", shape=shape)
        vectors = vectors.detach().double()
        self.error += (vectors - made.detach()).square().sum()
        if len(vectors):
            shifted = vectors - vectors[0]
            shift = shifted.mean(0)  # exactly 0, if all vectors are equal
            own = [shift.new_tensor([len(vectors)]), (shifted - shift).square().sum().reshape(1), vectors[0] + shift]
            self.moments = _merged(torch.stack([self.moments, torch.cat(own)]))

    def compute(self) -> Tensor:
        """Return the explained fraction of the variance; NaN if the vectors do not vary."""
        variation = self.moments[1]
        return 1 - self.error / torch.where(variation > 0, variation, torch.nan)


def _merged(parts: Tensor) -> Tensor:
    """Return the moments (2 + D,) of the vectors of several parts (P, 2 + D).

    Differences of means take the place of squares, which would cancel for vectors that vary little around a large mean.

    Source: Chan, Golub & LeVeque (1983), Algorithms for Computing the Sample Variance, doi:10.1080/00031305.1983.10483115.
    """
    counts, variations, means = parts[:, 0], parts[:, 1], parts[:, 2:]
    shares = (counts / counts.sum().clamp_min(1)).unsqueeze(-1)
    first = means.index_select(0, counts.argmax().reshape(1))[0]  # of a part with vectors; it is the mean if all are equal
    mean = first + (shares * (means - first)).sum(0)
    between = (counts.unsqueeze(-1) * (means - mean).square()).sum()
    return torch.cat([torch.stack([counts.sum(), variations.sum() + between]), mean])


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


@checked
def hoyer_sparseness(x: Tensor, dim: int | tuple[int, ...] = -1) -> Tensor:
    r"""Return the Hoyer sparseness of vectors: 0 if all magnitudes are equal, 1 for one-hot vectors.

    .. math:: \frac{\sqrt d - \lVert x \rVert_1 / \lVert x \rVert_2}{\sqrt d - 1}

    where x is a vector of dimension d.

    Args:
        x: (..., d, ...) floating.
        dim: dimension, or dimensions, along which the vectors lie.

    Returns:
        Tensor of x's shape without ``dim``; NaN for a zero vector and for d < 2, where it is undefined.

    Raises:
        ConfigurationError: if x is not floating, or ``dim`` is not a dimension of x or repeats one.

    Source: Hoyer (2004), Non-negative Matrix Factorization with Sparseness Constraints, arXiv:cs/0408058.

    Example:
        >>> hoyer_sparseness(
        ...     torch.tensor([[1.0, -1.0, 1.0, 1.0], [0.0, -3.0, 0.0, 0.0]])
        ... ).tolist()
        [0.0, 1.0]
    """
    dims = tuple(check_dim(one, x, "vectors") for one in (dim if isinstance(dim, tuple) else (dim,)))
    if len({one % x.dim() for one in dims}) < len(dims):
        raise ConfigurationError(f"Expected argument `dim` without repetition but got {dim}.")
    size = math.prod(x.shape[one] for one in dims)
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if size < 2:
        return torch.full_like(x.sum(dims), torch.nan)
    x = x / x.abs().amax(dims, keepdim=True)  # squares of very small or large numbers would vanish or overflow
    root = size**0.5
    ratio = x.abs().sum(dims) / x.square().sum(dims).sqrt()
    sparseness: Tensor = (root - ratio) / (root - 1)
    return sparseness


@ranges(dim=INTEGER)
class HoyerSparseness(ExactMetric):
    """Metric: mean Hoyer sparseness of vectors, see :func:`hoyer_sparseness`; undefined values are left out.

    The sparseness is undefined for zero vectors and for vectors of size 0 or 1.

    Args:
        dim: dimension along which the vectors lie.
        options: keyword arguments of torchmetrics, such as ``sync_on_compute``.

    Example:
        >>> metric = HoyerSparseness()
        >>> metric.update(
        ...     torch.tensor(
        ...         [[1.0, 1.0, 1.0, 1.0], [0.0, 3.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
        ...     )
        ... )
        >>> float(metric.compute())
        0.5
    """

    total: Tensor
    count: Tensor

    def __init__(self, dim: int = -1, **options: Any) -> None:
        super().__init__(**options)
        self.dim = dim
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, x: Tensor) -> None:
        """Add vectors (..., d, ...)."""
        found = hoyer_sparseness(x.detach(), self.dim)
        undefined = x.detach().eq(0).all(self.dim) | (x.shape[self.dim] < 2)
        self.total += found.masked_fill(undefined, 0.0).double().sum()
        self.count += (~undefined).sum()

    def compute(self) -> Tensor:
        """Return the mean sparseness, NaN without vectors."""
        return self.total / self.count
