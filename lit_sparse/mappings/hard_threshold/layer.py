"""Hard thresholding: the k largest magnitudes, unchanged."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from lit_sparse.checks import Count, check_count, ranges
from lit_sparse.mappings.base import SparseMapping
from lit_sparse.mappings.hard_threshold.kernel import chosen_product, threshold_hard
from lit_sparse.mappings.row_function import RowFunction

__all__ = ["HardThreshold", "hard_threshold"]


class _HardThreshold(RowFunction):
    """The k largest magnitudes of rows; which they were is kept, for a zero can be among them."""

    kernel = threshold_hard
    product = chosen_product

    @staticmethod
    def product_arguments(*args: Any) -> tuple[Any, ...]:
        return args[:1]


def hard_threshold(x: Tensor, k: int, *, nonneg: bool = False, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    r"""Return the k entries of largest magnitude, or the k largest positive ones, and zero elsewhere.

    .. math:: y = \operatorname*{argmin}_{\lVert y \rVert_0 \le k} \lVert y - x \rVert^2

    where, with ``nonneg``, y is also nonnegative.

    Args:
        x: floating tensor; length d along ``dim``.
        k: how many entries stay, >= 1; more than the allowed entries means all of them. Ties go to the lowest index.
        nonneg: keep only positive entries.
        dim: dimension along which to choose.
        mask: boolean, broadcastable to ``x``; True where an entry is allowed.

    Returns:
        Tensor of x's shape and dtype.

    Raises:
        ConfigurationError: if ``k`` is not an integer >= 1, x is not floating, or the mask does not fit.

    Source: Thom & Palm (2013), Sparse Activity and Sparse Connectivity in Supervised Learning: the transfer function of
    SOAE-L0.
    """
    k = check_count("k", k)
    return _HardThreshold.along(x, mask, dim, options=(k, nonneg))


@ranges(k=Count())
class HardThreshold(SparseMapping):
    """Layer that keeps the k entries of largest magnitude in each row, and sets the others to zero.

    For the formula, see :func:`~lit_sparse.mappings.functional.hard_threshold`.

    Args:
        k: how many entries stay, >= 1.
        nonneg: keep only positive entries.
        dim: dimension along which to choose.

    Raises:
        ConfigurationError: if ``k`` is not an integer >= 1.

    Example:
        >>> import torch
        >>> HardThreshold(2)(torch.tensor([1.0, -3.0, 2.0, 0.5])).tolist()
        [0.0, -3.0, 2.0, 0.0]
    """

    on_simplex = False
    shift_invariant = False
    keeps_scores = True

    def __init__(self, k: int, *, nonneg: bool = False, dim: int = -1) -> None:
        super().__init__(dim=dim)
        self.k, self.nonneg = k, nonneg

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: a small k, a small k with ``nonneg``, and a k that keeps all entries."""
        return [cls(2), cls(3, nonneg=True), cls(50)]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``; see :func:`hard_threshold`."""
        return hard_threshold(scores, self.k, nonneg=self.nonneg, dim=dim, mask=mask)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return Omega(y) = ``1/2 ||y||^2`` along ``dim``; inf for over k nonzero entries or, with ``nonneg``, a negative."""
        outside = (y != 0).sum(dim) > self.k
        if self.nonneg:
            outside = outside | (y < 0).any(dim)
        return torch.where(outside, torch.inf, 0.5 * y.square().sum(dim))
