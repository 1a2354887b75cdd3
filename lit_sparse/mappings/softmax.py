"""Softmax as a regularized mapping: the dense member of the family, safe on masked rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import check_positive
from lit_sparse.ground.torch_internals import can_read_values, softmax_backward
from lit_sparse.mappings.base import SparseMapping
from lit_sparse.mappings.row_function import RowFunction

__all__ = ["Softmax", "softmax"]


class _Softmax(RowFunction):
    """Softmax of rows / gamma; forbidden entries, and rows of nothing else, are zero."""

    piecewise_linear = False

    @classmethod
    @override
    def value_traced(cls, x: Tensor, *args: Any) -> Tensor:
        return cls.traced(x, gamma=args[0])

    @classmethod
    @override
    def traced(cls, x: Tensor, *args: Any, gamma: float | None = None, shift: bool = True) -> Tensor:
        # A row without allowed entries is taken out before the exponential, where its gradient would be NaN.
        forbidden = x == -torch.inf
        empty = forbidden.all(-1, keepdim=True)
        return _plain(torch.where(empty, 0.0, x), gamma or 1.0).masked_fill(forbidden, 0.0)

    @staticmethod
    def kernel(x: Tensor, gamma: float) -> Tensor:
        if x.is_cpu and x.numel() and can_read_values() and bool(x.detach().amin() > -torch.inf):
            return _softmax(x, gamma)
        return _plain(x, gamma)

    @staticmethod
    def jvp(v: Tensor, y: Tensor, *args: Any) -> Tensor:
        v = torch.where(y != 0, v, 0.0)  # incoming gradients at forbidden entries are ignored
        product: Tensor = y * (v - (y * v).sum(-1, keepdim=True)) / args[0]
        return product

    @staticmethod
    def last_vjp(v: Tensor, y: Tensor, *args: Any) -> Tensor:
        (gamma,) = args
        if y.dtype != v.dtype or y.numel() == 0:
            return _Softmax.jvp(v, y, gamma)
        if not (y.is_cpu and can_read_values() and bool(y.amin() > 0)):
            v = torch.where(y != 0, v, 0.0)
        grad = softmax_backward(v, y)
        return grad if gamma == 1.0 else grad / gamma


def _softmax(x: Tensor, gamma: float) -> Tensor:
    if gamma != 1.0 and x.shape[-1] > 0:
        x = (x - x.amax(-1, keepdim=True)) / gamma  # the other order could overflow
    width = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    return torch.softmax(x, -1, dtype=width).to(x.dtype)


def _plain(x: Tensor, gamma: float) -> Tensor:
    """Softmax in torch operations whose values, though not all gradients, are safe on forbidden rows."""
    return _softmax(x, gamma).masked_fill(x == -torch.inf, 0.0)


def softmax(scores: Tensor, *, gamma: float = 1.0, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    r"""Return the softmax of ``scores / gamma`` along ``dim``; zeros at masked entries and where nothing is allowed.

    .. math:: y = \frac{e^{x / \gamma}}{\sum_i e^{x_i / \gamma}}
        = \operatorname*{argmax}_{y \in \Delta} \; \langle y, x \rangle - \gamma \sum_i y_i \ln y_i

    where x are the scores of a row and Delta is the probability simplex.

    Args:
        scores: floating tensor; length d along ``dim``.
        gamma: strength of the regularizer (the temperature), > 0.
        dim: dimension along which to map.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed.

    Returns:
        Tensor of the scores' shape and dtype.

    Raises:
        ConfigurationError: if ``gamma`` is not positive, the scores are not floating, or the mask does not fit.
    """
    gamma = check_positive("gamma", gamma)
    return _Softmax.along(scores, mask, dim, gamma=gamma)


class Softmax(SparseMapping):
    """Layer that computes softmax, with a mask, and zeros on rows where nothing is allowed.

    For the formula, see :func:`~lit_sparse.mappings.functional.softmax`.

    Args:
        gamma: strength of the regularizer ``sum y log y`` (the temperature), > 0.
        dim: dimension along which to map.

    Raises:
        ConfigurationError: if ``gamma`` is not a positive, finite number.

    Example:
        >>> import torch
        >>> x = torch.randn(3, 5)
        >>> torch.equal(Softmax()(x), torch.softmax(x, -1))
        True
    """

    sparse = False

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``; see :func:`softmax`."""
        return softmax(scores, gamma=self.gamma, dim=dim, mask=mask)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return Omega(y), the negative entropy ``sum y log y`` along ``dim``."""
        entropy: Tensor = torch.special.entr(y).sum(dim)
        return -entropy
