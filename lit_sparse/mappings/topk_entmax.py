"""Top-k entmax: alpha-entmax over the k largest scores."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Self

from lit_sparse.checks import check_count, check_number
from lit_sparse.mappings.base import SparseMapping
from lit_sparse.mappings.entmax.layer import LARGEST, entmax, tsallis
from lit_sparse.mappings.masking import allowed_scores

__all__ = ["TopKEntmax", "topk_entmax"]


def topk_entmax(
    scores: Tensor, k: int, alpha: float = 1.5, *, gamma: float = 1.0, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    """Return alpha-entmax of the k largest scores; all others get zero.

    Args:
        scores: floating tensor; length d along ``dim``.
        k: largest support, >= 1; more than the allowed entries means all of them. Ties go to the lowest index.
        alpha: of the entmax, > 1.
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


class TopKEntmax(SparseMapping):
    """alpha-entmax over the k largest scores, as a layer; with alpha = 2 it is :class:`TopKSparsemax`.

    Args:
        k: largest support, >= 1; more than the allowed entries means all of them.
        alpha: of the entmax, > 1.
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
        self.k = check_count("k", k)
        self.alpha = check_number("alpha", alpha, 1.0, LARGEST, open_low=True)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances with a small k, k = 1, and one that rarely cuts."""
        return [cls(3), cls(1, 1.25, gamma=0.5), cls(50, gamma=2.0)]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """See :func:`topk_entmax`."""
        return topk_entmax(scores, self.k, self.alpha, gamma=self.gamma, dim=dim, mask=mask)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return the negative Tsallis entropy, inf for more than k entries above zero."""
        return torch.where((y != 0).sum(dim) > self.k, torch.inf, tsallis(y, self.alpha, dim))
