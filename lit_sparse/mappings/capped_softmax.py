"""Capped softmax: softmax with a bound on every probability, by the safe Kullback-Leibler divergence."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Self

from lit_sparse.kernels.capped import capped_product, map_capped
from lit_sparse.mappings.base import SparseMapping
from lit_sparse.mappings.rowwise import RowFunction, along_last, check_number, check_positive

__all__ = ["CappedSoftmax", "capped_softmax"]


class _CappedSoftmax(RowFunction):
    """Capped softmax of rows / gamma; the number of allowed entries is read from the scores."""

    kernel = map_capped
    product = staticmethod(capped_product)
    jacobian = staticmethod(capped_product.twin)
    keeps_scores = True
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
    gamma, rho = check_positive("gamma", gamma), _check_rho(rho)
    if not torch.compiler.is_compiling():
        return along_last(scores, mask, dim, lambda x: _CappedSoftmax.of(x, rho, gamma))
    return along_last(scores, mask, dim, lambda x: _CappedSoftmax.traced(x, rho, 1.0, gamma=gamma))


class CappedSoftmax(SparseMapping):
    """Capped softmax as a layer: dense, with no probability above ``1 / (rho d)``.

    Its Fenchel-Young loss is bounded below only for targets that keep to the bound, ``max q <= 1 / (rho d)``; for others,
    one-hot ones with rho d > 1 among them, Omega(q) is infinite and left out, and the loss has no minimum. Smooth such labels.

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

    def __init__(self, rho: float, *, gamma: float = 1.0, dim: int = -1) -> None:
        super().__init__(gamma=gamma, dim=dim)
        self.rho = _check_rho(rho)

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

    def regularizer_of_target(self, q: Tensor, dim: int, allowed: Tensor | None = None) -> Tensor:
        """Return Omega(q), and 0 where it is infinite: see the class."""
        omega = self.regularizer(q, dim, allowed)
        return torch.where(omega.isinf(), 0.0, omega)


def _check_rho(rho: float) -> float:
    return check_number("rho", rho, 0.0, 1.0, open_low=True, open_high=True)
