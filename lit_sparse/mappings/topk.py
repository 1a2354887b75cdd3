"""Top-k sparsemax (Correia et al. 2020) and top-k entmax: over the k largest scores."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import Count, Number, check_count, check_positive, ranges
from lit_sparse.mappings.base import SparseMapping, Threshold
from lit_sparse.mappings.entmax.layer import LARGEST, entmax, tsallis
from lit_sparse.mappings.masking import allowed_scores
from lit_sparse.mappings.sparsemax import Project

__all__ = ["TopKEntmax", "TopKSparsemax", "topk_entmax", "topk_sparsemax"]


def topk_sparsemax(scores: Tensor, k: int, *, gamma: float = 1.0, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    r"""Return the projection of the k largest entries of ``scores / gamma`` onto the simplex, and zero elsewhere.

    .. math:: y = \operatorname*{argmax}_{y \in \Delta,\; \lVert y \rVert_0 \le k} \; \langle y, x \rangle
        - \tfrac{\gamma}{2} \lVert y \rVert^2

    where x are the scores of a row and Delta is the probability simplex. It equals sparsemax if the support of
    sparsemax has at most k entries.

    Args:
        scores: floating tensor; length d along ``dim``.
        k: maximum support size, >= 1; more than the allowed entries means all of them. Ties go to the lowest index.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed.

    Returns:
        Tensor of the scores' shape and dtype, with at most k entries above zero in each row.

    Raises:
        ConfigurationError: if ``k`` is not an integer >= 1, ``gamma`` is not positive, the scores are not floating, or
            the mask does not fit.

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity, section 4.1.
    """
    gamma, k = check_positive("gamma", gamma), min(check_count("k", k), 2**62)
    return Project.along(scores, mask, dim, gamma=gamma, options=(k,))


@ranges(k=Count())
class TopKSparsemax(SparseMapping):
    """Layer that computes sparsemax of the k largest scores, with zeros elsewhere.

    For the formula, see :func:`~lit_sparse.mappings.functional.topk_sparsemax`.

    Args:
        k: maximum support size, >= 1; more than the allowed entries means all of them.
        gamma: strength of the regularizer ``1/2 ||y||^2``, > 0.
        dim: dimension along which to map.

    Raises:
        ConfigurationError: if ``k`` is not an integer >= 1 or ``gamma`` is not a positive, finite number.

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity.

    Example:
        >>> import torch
        >>> y = TopKSparsemax(2)(torch.zeros(5))
        >>> y.tolist()
        [0.5, 0.5, 0.0, 0.0, 0.0]
    """

    def __init__(self, k: int, *, gamma: float = 1.0, dim: int = -1) -> None:
        super().__init__(gamma=gamma, dim=dim)
        self.k = k

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: a small k, k = 1, and one that rarely cuts."""
        return [cls(3), cls(1, gamma=0.5), cls(50, gamma=2.0)]

    @override
    def threshold(self) -> Threshold:
        return Threshold(2.0, self.k, self.gamma)

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``; see :func:`topk_sparsemax`."""
        return topk_sparsemax(scores, self.k, gamma=self.gamma, dim=dim, mask=mask)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return Omega(y) = ``1/2 ||y||^2`` along ``dim``; inf for more than k entries above zero."""
        size = (y != 0).sum(dim)
        return torch.where(size > self.k, torch.inf, 0.5 * y.square().sum(dim))


def topk_entmax(
    scores: Tensor, k: int, alpha: float = 1.5, *, gamma: float = 1.0, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    r"""Return alpha-entmax of the k largest scores; all others get zero.

    .. math:: y_S = \operatorname{entmax}_\alpha(x_S / \gamma), \qquad y_i = 0 \;\text{ for }\; i \notin S

    where S holds the k largest scores of a row; see :func:`~lit_sparse.mappings.functional.entmax`.

    Args:
        scores: floating tensor; length d along ``dim``.
        k: maximum support size, >= 1; more than the allowed entries means all of them. Ties go to the lowest index.
        alpha: exponent of the entmax, > 1.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed.

    Returns:
        Tensor of the scores' shape and dtype, with at most k entries above zero in each row.

    Raises:
        ConfigurationError: if an argument is out of its range, the scores are not floating, or the mask does not fit.
    """
    k, x = check_count("k", k), allowed_scores(scores, mask, dim)
    size = x.shape[dim]
    if k >= size:
        return entmax(x, alpha, gamma=gamma, dim=dim)
    given = x.detach()
    least = given.topk(k, dim).values.narrow(dim, k - 1, 1)
    above, equal = given > least, given == least
    first = equal.cumsum(dim) <= k - above.sum(dim, keepdim=True)
    invalid = ~(given < torch.inf).all(dim, keepdim=True)
    return entmax(x, alpha, gamma=gamma, dim=dim, mask=above | (equal & first) | invalid)


@ranges(k=Count(), alpha=Number(1.0, LARGEST, open_low=True))
class TopKEntmax(SparseMapping):
    """Layer that computes alpha-entmax of the k largest scores; with alpha = 2 it is :class:`TopKSparsemax`.

    For the formula, see :func:`~lit_sparse.mappings.functional.topk_entmax`.

    Args:
        k: maximum support size, >= 1; more than the allowed entries means all of them.
        alpha: exponent of the entmax, > 1.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.

    Raises:
        ConfigurationError: if an argument is out of its range.

    Example:
        >>> import torch
        >>> TopKEntmax(2)(torch.zeros(5)).tolist()
        [0.5, 0.5, 0.0, 0.0, 0.0]
    """

    def __init__(self, k: int, alpha: float = 1.5, *, gamma: float = 1.0, dim: int = -1) -> None:
        super().__init__(gamma=gamma, dim=dim)
        self.k, self.alpha = k, alpha

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: a small k, k = 1, and one that rarely cuts."""
        return [cls(3), cls(1, 1.25, gamma=0.5), cls(50, gamma=2.0)]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``; see :func:`topk_entmax`."""
        return topk_entmax(scores, self.k, self.alpha, gamma=self.gamma, dim=dim, mask=mask)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return Omega(y), the negative Tsallis entropy along ``dim``; inf for more than k entries above zero."""
        return torch.where((y != 0).sum(dim) > self.k, torch.inf, tsallis(y, self.alpha, dim))
