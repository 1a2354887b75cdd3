"""Soft sorting and ranking (Blondel, Teboul, Berthet & Djolonga 2020): projections onto permutahedra, in n log n."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import Self

from lit_sparse.checks import POSITIVE, check_choice, check_positive, ranges
from lit_sparse.mappings.base import SparseMapping
from lit_sparse.mappings.row_function import RowFunction
from lit_sparse.mappings.soft_sort.kernel import rank_product, rank_softly, sort_jacobian, sort_product, sort_softly

__all__ = ["Regularization", "SoftRank", "SoftSort", "soft_rank", "soft_sort"]

Regularization = Literal["quadratic", "entropic"]
FORMS = ("quadratic", "entropic")


class _QuadraticRank(RowFunction):
    """Soft ranks of rows / gamma; the blocks are kept from the forward pass."""

    kernel = rank_softly
    product = rank_product


class _EntropicRank(_QuadraticRank):
    piecewise_linear = False


class _QuadraticSort(RowFunction):
    """Rows, softly sorted; order and blocks are kept from the forward pass."""

    kernel = sort_softly
    saves_input = True

    @staticmethod
    def product_arguments(*args: Any) -> tuple[Tensor, Tensor, Tensor, bool]:
        x, order, labels, _, entropic = args
        return x, order, labels, entropic

    @classmethod
    def jvp(cls, v: Tensor, y: Tensor, *args: Any) -> Tensor:
        return sort_jacobian(v, *cls.product_arguments(*args), transposed=False)

    @classmethod
    def vjp(cls, v: Tensor, y: Tensor, *args: Any) -> Tensor:
        return sort_jacobian(v, *cls.product_arguments(*args))

    @classmethod
    def last_vjp(cls, v: Tensor, y: Tensor, *args: Any) -> Tensor:
        return sort_product(v, *cls.product_arguments(*args))  # type: ignore[no-any-return]


class _EntropicSort(_QuadraticSort):
    piecewise_linear = False


def soft_sort(
    values: Tensor,
    strength: float = 1.0,
    regularization: Regularization = "quadratic",
    *,
    dim: int = -1,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Return the values sorted in ascending order, in a differentiable way.

    .. math:: y = \operatorname*{argmin}_{y \in \mathcal{P}(v)} \lVert y - \rho / \varepsilon \rVert^2

    where v are the values, rho = (1, ..., n), epsilon is the strength, and P(v), the permutahedron, is the convex hull
    of all permutations of v. This quadratic form returns exactly the sorted values if no gap between neighbours exceeds
    ``1 / strength``; as the strength grows, all results tend to the mean. For descending order, negate twice:
    ``-soft_sort(-values)``.

    The entropic form is ``-log y``, where y maximizes ``-<y, rho> / strength - sum y (log y - 1)`` over the
    permutahedron of ``exp(-values)``.

    Args:
        values: floating tensor; length n along ``dim``.
        strength: strength of the regularization, > 0.
        regularization: ``"quadratic"`` (piecewise linear, preserves the sum) or ``"entropic"`` (smooth within blocks of
            values that are near each other).
        dim: dimension along which to sort.
        mask: boolean, broadcastable to ``values``; True where a value takes part. These values are
            sorted among themselves; the results at other places are zero.

    Returns:
        Tensor of the values' shape and dtype.

    Raises:
        ConfigurationError: if an argument is out of its range, the values are not floating, or the mask does not fit.

    Source: Blondel, Teboul, Berthet & Djolonga (2020), Fast Differentiable Sorting and Ranking.

    Example:
        >>> import torch
        >>> x = torch.tensor([2.0, 0.0, 1.0])
        >>> soft_sort(x, 0.5).tolist(), soft_sort(x, 4.0).tolist()
        ([0.0, 1.0, 2.0], [0.75, 1.0, 1.25])
    """
    strength, entropic = check_positive("strength", strength), _is_entropic(regularization)
    form = _EntropicSort if entropic else _QuadraticSort
    return form.along(values, mask, dim, strength, options=(entropic,), shift=False)


def soft_rank(
    values: Tensor,
    strength: float = 1.0,
    regularization: Regularization = "quadratic",
    *,
    dim: int = -1,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Return the ranks of the values, 1 for the smallest, in a differentiable way.

    .. math:: y = \operatorname*{argmax}_{y \in \mathcal{P}(\rho)} \; \langle y, v \rangle - \varepsilon\,\Omega(y)

    where v are the values, epsilon is the strength, rho = (1, ..., n), P(rho) is the convex hull of its permutations,
    and ``Omega(y)`` is ``1/2 ||y||^2`` or ``sum y (log y - 1)``. As the strength goes to zero, y tends to the ranks,
    equal values sharing their mean rank; as it grows, all results tend to the mean rank. ``soft_rank(-values)`` ranks
    the largest value first.

    Args:
        values: floating tensor; length n along ``dim``.
        strength: strength of the regularization, > 0. In the quadratic form, a value at least that far from its
            neighbours gets exactly its rank.
        regularization: ``"quadratic"`` (piecewise linear) or ``"entropic"`` (curved).
        dim: dimension along which to rank.
        mask: boolean, broadcastable to ``values``; True where a value takes part. Others get zero.

    Returns:
        Tensor of the values' shape and dtype, whose sum is ``n (n + 1) / 2``.

    Raises:
        ConfigurationError: if an argument is out of its range, the values are not floating, or the mask does not fit.

    Source: Blondel, Teboul, Berthet & Djolonga (2020), Fast Differentiable Sorting and Ranking.

    Example:
        >>> import torch
        >>> x = torch.tensor([2.0, 0.0, 1.0, 1.0])
        >>> soft_rank(x, 0.5).tolist(), soft_rank(x, 4.0).tolist()
        ([4.0, 1.0, 2.5, 2.5], [2.75, 2.25, 2.5, 2.5])
    """
    strength, entropic = check_positive("strength", strength), _is_entropic(regularization)
    form = _EntropicRank if entropic else _QuadraticRank
    return form.along(values, mask, dim, gamma=strength, options=(entropic,))


@ranges(strength=POSITIVE)
class _SoftOrder(SparseMapping):
    """What both layers have in common."""

    on_simplex = False
    sparse = False

    def __init__(self, strength: float = 1.0, regularization: Regularization = "quadratic", *, dim: int = -1) -> None:
        super().__init__(gamma=strength, dim=dim)
        self.regularization = regularization

    @property
    def strength(self) -> float:
        """The strength of the regularization, a mapping's gamma."""
        return self.gamma

    @classmethod
    def examples(cls) -> list[Self]:
        """Return both forms, with blocks of few entries and of many."""
        return [cls(), cls(0.3), cls(1.0, "entropic"), cls(3.0, "entropic")]


class SoftSort(_SoftOrder):
    """Layer that sorts values in ascending order in a differentiable way; see :func:`soft_sort`.

    Args:
        strength: strength of the regularization, > 0.
        regularization: ``"quadratic"`` or ``"entropic"``.
        dim: dimension along which to sort.

    Raises:
        ConfigurationError: if an argument is out of its range.

    Example:
        >>> import torch
        >>> SoftSort(0.5)(torch.tensor([2.0, 0.0, 1.0])).tolist()
        [0.0, 1.0, 2.0]

    Source: Blondel, Teboul, Berthet & Djolonga (2020), Fast Differentiable Sorting and Ranking.
    """

    shift_invariant = False
    has_value = False

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``; see :func:`soft_sort`."""
        return soft_sort(scores, self.strength, self.regularization, dim=dim, mask=mask)


class SoftRank(_SoftOrder):
    """Layer that computes ranks in a differentiable way, 1 for the smallest value; see :func:`soft_rank`.

    Args:
        strength: strength of the regularization, > 0.
        regularization: ``"quadratic"`` or ``"entropic"``.
        dim: dimension along which to rank.

    Raises:
        ConfigurationError: if an argument is out of its range.

    Example:
        >>> import torch
        >>> SoftRank(0.5)(torch.tensor([20.0, -3.0, 1.0])).tolist()
        [3.0, 1.0, 2.0]

    Source: Blondel, Teboul, Berthet & Djolonga (2020), Fast Differentiable Sorting and Ranking.
    """

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``; see :func:`soft_rank`."""
        return soft_rank(scores, self.strength, self.regularization, dim=dim, mask=mask)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return Omega(y), ``1/2 ||y||^2`` or ``sum y (log y - 1)``; inf outside the permutahedron of ``(1, ..., n)``."""
        quadratic = self.regularization == "quadratic"
        omega = 0.5 * y.square() if quadratic else -torch.special.entr(y) - y
        ranked = y.sort(dim=dim, descending=True).values.movedim(dim, -1)
        allowed = torch.ones_like(y, dtype=torch.bool) if allowed is None else allowed
        n = allowed.movedim(dim, -1).sum(-1, keepdim=True)
        most = (n - torch.arange(y.shape[dim], device=y.device)).clamp_min(0).cumsum(-1)
        excess = ranked.cumsum(-1) - most
        slack = torch.finfo(y.dtype).eps ** 0.5 * (1 + most)  # only rounding
        outside = (excess > slack).any(-1) | (excess[..., -1:] < -slack[..., -1:]).any(-1)
        return torch.where(outside, torch.inf, omega.sum(dim))


def _is_entropic(regularization: Regularization) -> bool:
    return check_choice("regularization", regularization, FORMS) == "entropic"
