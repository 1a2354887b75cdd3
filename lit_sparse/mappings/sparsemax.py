"""Sparsemax (Martins & Astudillo 2016): the Euclidean projection onto the probability simplex."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_sparse.kernels.simplex import center_on_support, project_simplex
from lit_sparse.mappings.base import SparseMapping
from lit_sparse.mappings.rowwise import RowFunction, along_last, check_positive

__all__ = ["Sparsemax", "centered", "project_rows", "sparsemax"]


class Project(RowFunction):
    """Projection of rows / gamma onto the simplex, of their k largest entries alone when k > 0."""

    kernel = project_simplex

    @staticmethod
    def product(v: Tensor, y: Tensor, *args: Any) -> Tensor:
        return center_on_support(v, y, args[0])  # type: ignore[no-any-return]

    @staticmethod
    def jacobian(v: Tensor, y: Tensor, *args: Any) -> Tensor:
        return centered(v, y, args[0])


def centered(v: Tensor, y: Tensor, gamma: float) -> Tensor:
    """Return ``(v - mean of v over the support of y) / gamma`` there, else 0, in differentiable operations."""
    support = y != 0
    count = support.sum(-1, keepdim=True).clamp_min(1)
    mean = torch.where(support, v, 0.0).sum(-1, keepdim=True) / count
    whole = torch.where(y.isnan(), torch.nan, 1.0)  # a broken row has a broken derivative
    return torch.where(support, (v - mean) * whole / gamma, 0.0)


def project_rows(x: Tensor, gamma: float, k: int = 0) -> Tensor:
    """Project the rows of ``x / gamma`` onto the simplex, differentiably.

    Args:
        x: (..., d) scores; -inf where an entry is not allowed.
        gamma: strength, > 0.
        k: how many of the largest entries take part; 0 means all.
    """
    if not torch.compiler.is_compiling():
        return Project.of(x, gamma, k)
    return Project.traced(x, 1.0, k, gamma=gamma)


def sparsemax(scores: Tensor, *, gamma: float = 1.0, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Project ``scores / gamma`` onto the probability simplex.

    ``y = argmax_{y in simplex} <y, x> - gamma / 2 ||y||^2 = (x / gamma - tau)_+``

    Args:
        scores: floating tensor; length d along ``dim``.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed.

    Returns:
        Tensor of the scores' shape and dtype; exact zeros outside the support.

    Raises:
        ConfigurationError: if ``gamma`` is not positive, the scores are not floating, or the mask does not fit.

    Source: Martins & Astudillo (2016), From Softmax to Sparsemax, eq. (2).
    """
    gamma = check_positive("gamma", gamma)
    return along_last(scores, mask, dim, lambda x: project_rows(x, gamma))


class Sparsemax(SparseMapping):
    """Sparsemax as a layer: a sparse, exact alternative to softmax.

    Args:
        gamma: strength of the regularizer ``1/2 ||y||^2``, > 0. Larger values give larger supports.
        dim: dimension along which to map.

    Raises:
        ConfigurationError: if ``gamma`` is not a positive, finite number.

    Source: Martins & Astudillo (2016), From Softmax to Sparsemax.

    Example:
        >>> import torch
        >>> y = Sparsemax()(torch.tensor([[2.0, 1.9, 0.0], [0.0, 0.0, 0.0]]))
        >>> int((y[0] > 0).sum()), bool((y[1] == 1 / 3).all())
        (2, True)
    """

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """See :func:`sparsemax`."""
        return sparsemax(scores, gamma=self.gamma, dim=dim, mask=mask)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return ``1/2 ||y||^2``."""
        return 0.5 * y.square().sum(dim)
