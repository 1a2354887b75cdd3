"""Capped softmax: softmax with a bound on every probability, by the safe Kullback-Leibler divergence."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Self

from lit_sparse.checks import Number, check_positive, ranges
from lit_sparse.mappings.base import SparseMapping
from lit_sparse.mappings.capped_softmax.kernel import capped_product, map_capped
from lit_sparse.mappings.row_function import RowFunction

__all__ = ["CappedSoftmax", "capped_softmax"]

RHO = Number(0.0, 1.0, open_low=True, open_high=True)


class _CappedSoftmax(RowFunction):
    """Capped softmax of rows / gamma; the number of allowed entries is read from the scores."""

    kernel = map_capped
    product = capped_product
    saves_input = True
    piecewise_linear = False


def capped_softmax(scores: Tensor, rho: float, *, gamma: float = 1.0, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Return softmax of ``scores / gamma`` with no probability above ``1 / (rho d)``, d the number of allowed entries.

    ``y_i = (1 / d) e^(s_i) / (1 + rho e^(s_i))`` with ``s_i = x_i / gamma - tau`` and tau such that the sum is one. As rho
    goes to 0 it becomes softmax, as rho goes to 1 the uniform distribution.

    Args:
        scores: floating tensor; length d along ``dim``.
        rho: 0 < rho < 1.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed.

    Returns:
        Tensor of the scores' shape and dtype.

    Raises:
        ConfigurationError: if ``rho`` or ``gamma`` is out of its range, the scores are not floating, or the mask does not fit.

    Source: the maximizer in the safe Kullback-Leibler LogSumExp over a uniform measure: its conjugate is a softplus.
    """
    gamma, rho = check_positive("gamma", gamma), RHO("rho", rho)
    return _CappedSoftmax.along(scores, mask, dim, rho, gamma=gamma)


@ranges(rho=RHO)
class CappedSoftmax(SparseMapping):
    """Capped softmax as a layer: dense, with no probability above ``1 / (rho d)``.

    Its Fenchel-Young loss smooths a target above the bound, such as a class label with rho d > 1, just so much that it keeps
    to it: by a mixture with the uniform distribution. No result could be nearer to it, and the loss would be infinite.

    Args:
        rho: 0 < rho < 1.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.

    Raises:
        ConfigurationError: if ``rho`` or ``gamma`` is out of its range.

    Example:
        >>> import torch
        >>> y = CappedSoftmax(0.5)(torch.tensor([100.0, 0.0, 0.0, 0.0]))
        >>> bool(y.max() <= 0.5) and bool((y.sum() - 1).abs() < 1e-6)
        True
    """

    sparse = False

    def __init__(self, rho: float, *, gamma: float = 1.0, dim: int = -1) -> None:
        super().__init__(gamma=gamma, dim=dim)
        self.rho = rho

    @classmethod
    def examples(cls) -> list[Self]:
        """Return a bound that matters, one that hardly does, and a tight one."""
        return [cls(0.3), cls(0.01, gamma=0.5), cls(0.8, gamma=0.5)]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """See :func:`capped_softmax`."""
        return capped_softmax(scores, self.rho, gamma=self.gamma, dim=dim, mask=mask)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return the safe divergence from the uniform distribution; inf where an entry exceeds the bound.

        ``sum y log(d y) + sum (1 - rho d y) log(1 - rho d y) / (rho d) + 1``
        """
        if allowed is None:
            allowed = torch.ones_like(y, dtype=torch.bool)
        size = allowed.sum(dim, keepdim=True).clamp_min(1).to(y.dtype)
        room = 1 - self.rho * size * y
        eps = torch.finfo(y.dtype).eps
        room = torch.where((room < 0) & (room > -min(max(8 * eps, 1e-6), eps**0.5)), 0.0, room)  # only rounding
        entropy = torch.special.entr(y) + torch.special.entr(room) / (self.rho * size)
        terms = y * size.log() - entropy
        return torch.where(allowed, terms, 0.0).sum(dim) + 1

    def admissible(self, q: Tensor, dim: int, allowed: Tensor) -> Tensor:
        """Return q, mixed with the uniform distribution as far as the bound asks for."""
        if q.shape[dim] == 0:
            return q
        size = allowed.sum(dim, keepdim=True).clamp_min(1).to(q.dtype)
        top, bound = q.amax(dim, keepdim=True), 1 / (self.rho * size)
        share = ((top - bound) / torch.where(top > bound, top - 1 / size, 1.0)).clamp(0, 1)
        return torch.where(top > bound, (1 - share) * q + share * torch.where(allowed, 1 / size, 0.0), q)
