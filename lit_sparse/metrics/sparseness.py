"""Hoyer sparseness of activities and of weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lit_sparse.checks import INTEGER, check_dim, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import checked
from lit_sparse.metrics.means import MeanOverExamples

__all__ = ["HoyerSparseness", "hoyer_sparseness"]


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
        >>> hoyer_sparseness(torch.tensor([[1.0, -1.0, 1.0, 1.0], [0.0, -3.0, 0.0, 0.0]])).tolist()
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
class HoyerSparseness(MeanOverExamples):
    """Metric: mean Hoyer sparseness of vectors, see :func:`hoyer_sparseness`; undefined values are left out.

    The sparseness is undefined for zero vectors and for vectors of size 0 or 1.

    Args:
        dim: dimension along which the vectors lie.
        options: keyword arguments of torchmetrics, such as ``sync_on_compute``.

    Example:
        >>> metric = HoyerSparseness()
        >>> metric.update(torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 3.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]))
        >>> float(metric.compute())
        0.5
    """

    def __init__(self, dim: int = -1, **options: Any) -> None:
        super().__init__(**options)
        self.dim = dim

    def update(self, x: Tensor) -> None:
        """Add vectors (..., d, ...)."""
        found = hoyer_sparseness(x.detach(), self.dim)
        undefined = x.detach().eq(0).all(self.dim) | (x.shape[self.dim] < 2)
        self.total += found.masked_fill(undefined, 0.0).double().sum()
        self.count += (~undefined).sum()
