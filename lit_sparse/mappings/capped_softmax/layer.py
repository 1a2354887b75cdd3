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
    r"""Return the softmax of ``scores / gamma`` under an upper bound of ``1 / (rho d)`` on each probability, d allowed entries.

    .. math:: y_i = \frac{1}{d} \, \frac{e^{s_i}}{1 + \rho\,e^{s_i}}, \qquad s_i = x_i / \gamma - \tau

    where tau is the number at which the probabilities sum to one and d the number of allowed entries. The limit rho ->
    0 is softmax, the limit rho -> 1 the uniform distribution.

    Args:
        scores: floating tensor; length d along ``dim``.
        rho: the bound in units of the uniform probability is 1 / rho; 0 < rho < 1.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed.

    Returns:
        Tensor of the scores' shape and dtype.

    Raises:
        ConfigurationError: if ``rho`` or ``gamma`` is out of its range, the scores are not floating, or the mask does
            not fit.

    Source: the maximizer in the safe Kullback-Leibler LogSumExp over a uniform measure, see
    :class:`lit_sparse.risks.SafeKLDRO`.
    """
    gamma, rho = check_positive("gamma", gamma), RHO("rho", rho)
    return _CappedSoftmax.along(scores, mask, dim, rho, gamma=gamma)


@ranges(rho=RHO)
class CappedSoftmax(SparseMapping):
    """Layer that computes softmax with no probability above ``1 / (rho d)``, d the number of allowed entries.

    For the formula, see :func:`~lit_sparse.mappings.functional.capped_softmax`.

    A target above the bound, such as a class label with rho d > 1, would have an infinite Fenchel-Young loss. The loss
    therefore mixes it with the uniform distribution, just enough to meet the bound.

    Args:
        rho: the bound in units of the uniform probability is 1 / rho; 0 < rho < 1.
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
        """Return instances for the shared tests: bounds that bind, hardly bind, and bind tightly."""
        return [cls(0.3), cls(0.01, gamma=0.5), cls(0.8, gamma=0.5)]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``; see :func:`capped_softmax`."""
        return capped_softmax(scores, self.rho, gamma=self.gamma, dim=dim, mask=mask)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return the safe Kullback-Leibler divergence of y from the uniform distribution; inf above the bound.

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
        """Return q mixed with the uniform distribution, just enough to meet the bound ``1 / (rho d)``."""
        if q.shape[dim] == 0:
            return q
        size = allowed.sum(dim, keepdim=True).clamp_min(1).to(q.dtype)
        top, bound = q.amax(dim, keepdim=True), 1 / (self.rho * size)
        share = ((top - bound) / torch.where(top > bound, top - 1 / size, 1.0)).clamp(0, 1)
        return torch.where(top > bound, (1 - share) * q + share * torch.where(allowed, 1 / size, 0.0), q)
