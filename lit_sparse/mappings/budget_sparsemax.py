"""Budget sparsemax: the projection onto weights in [0, 1] whose sum has a bound."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from lit_sparse.checks import Number, check_number, check_positive, ranges
from lit_sparse.kernels.budget_sparsemax import budget_product, map_budget
from lit_sparse.mappings.base import SparseMapping
from lit_sparse.mappings.row_function import RowFunction

__all__ = ["BudgetSparsemax", "budget_sparsemax"]


class _BudgetSparsemax(RowFunction):
    """Projection of rows / gamma; labels of the entries are kept from the forward pass."""

    kernel = map_budget
    product = budget_product

    @staticmethod
    def product_arguments(*args: Any) -> tuple[Any, ...]:
        labels, _, gamma = args
        return labels, gamma


def budget_sparsemax(scores: Tensor, k: float, *, gamma: float = 1.0, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    r"""Return the Euclidean projection of ``scores / gamma`` onto weights in [0, 1] that sum to at most k.

    .. math:: y = \operatorname*{argmin}_{0 \le y \le 1,\; \sum_i y_i \le k} \lVert y - x / \gamma \rVert^2
        = \min\{[x / \gamma - \tau]_+, 1\}

    where tau is 0 if the sum is then at most k, and otherwise the value at which the sum is k.

    Args:
        scores: floating tensor; length d along ``dim``.
        k: largest sum of the weights, >= 0, not necessarily an integer; infinity for no limit.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed.

    Returns:
        Tensor of the scores' shape and dtype; exact zeros and ones.

    Raises:
        ConfigurationError: if ``k`` or ``gamma`` is out of its range, the scores are not floating, or the mask does not
            fit.

    Source: Blondel (2019), Structured Prediction with Projection Oracles: the budget polytope.
    """
    gamma, k = check_positive("gamma", gamma), check_number("k", k, 0.0, math.inf)
    return _BudgetSparsemax.along(scores, mask, dim, k, gamma=gamma, shift=False)


@ranges(k=Number(0.0, math.inf))
class BudgetSparsemax(SparseMapping):
    """Layer whose weights in [0, 1] sum to at most k in each row: a soft selection of k entries.

    Where scores are far apart, the k largest of the positive scores get weight 1; see :func:`budget_sparsemax`.

    Args:
        k: largest sum of the weights, >= 0, not necessarily an integer; infinity for no limit.
        gamma: strength of the regularizer ``1/2 ||y||^2``, > 0.
        dim: dimension along which to map.

    Raises:
        ConfigurationError: if ``k`` or ``gamma`` is out of its range.

    Source: Blondel (2019), Structured Prediction with Projection Oracles.

    Example:
        >>> import torch
        >>> BudgetSparsemax(2)(torch.tensor([5.0, 1.0, 0.75, -1.0])).tolist()
        [1.0, 0.625, 0.375, 0.0]
    """

    on_simplex = False
    shift_invariant = False

    def __init__(self, k: float, *, gamma: float = 1.0, dim: int = -1) -> None:
        super().__init__(gamma=gamma, dim=dim)
        self.k = k

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: an integer budget, a fractional one, and one that rarely matters."""
        return [cls(2), cls(0.7, gamma=0.5), cls(50, gamma=2.0)]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``; see :func:`budget_sparsemax`."""
        return budget_sparsemax(scores, self.k, gamma=self.gamma, dim=dim, mask=mask)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return Omega(y) = ``1/2 ||y||^2`` along ``dim``; inf outside ``0 <= y <= 1, sum y <= k``."""
        slack = torch.finfo(y.dtype).eps ** 0.5  # only rounding
        outside = ((y < -slack) | (y > 1 + slack)).any(dim) | (y.sum(dim) > self.k * (1 + slack))
        return torch.where(outside, torch.inf, 0.5 * y.square().sum(dim))
