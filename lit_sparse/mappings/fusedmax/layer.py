"""Fusedmax (Niculae & Blondel 2017): sparse attention whose neighbours share one weight."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self, override

from lit_sparse.checks import SHAPE, Learnable, Number, check_parameter, check_positive, ranges
from lit_sparse.kernels.groups import code_of, group_product, group_sums
from lit_sparse.kernels.simplex import center_on_support
from lit_sparse.mappings.base import SparseMapping, with_slope
from lit_sparse.mappings.fusedmax.kernel import map_fused
from lit_sparse.mappings.row_function import RowFunction

__all__ = ["Fusedmax", "LearnableFusedmax", "fusedmax"]

LARGEST = 1e12
SOFT = 20.0  # beyond, log(1 + exp(a)) is a


class _Fusedmax(RowFunction):
    """Fusedmax of rows / gamma, differentiable in the scores and in lam; the runs are kept from the forward pass."""

    kernel = map_fused
    product = group_product
    has_parameter_gradient = True

    @staticmethod
    def product_arguments(*args: Any) -> tuple[Any, ...]:
        labels, _, gamma = args
        return labels, gamma, False

    @staticmethod
    def parameter_jvp(y: Tensor, *args: Any) -> Tensor:
        """Return dy / dlam: each run moves by (s_left - s_right) / n, the signs of the steps at its two ends."""
        labels = args[0]
        code = torch.where(labels >= 0, code_of(labels), 0).to(y.dtype)
        ids = (labels >> 3).clamp_min(0).long()
        size = group_sums((labels >= 0).to(y.dtype), ids).clamp_min(1)
        return center_on_support.reference(code / size, y, 1.0)  # type: ignore[no-any-return]


def fusedmax(
    scores: Tensor, lam: float | Tensor = 0.1, *, gamma: float = 1.0, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    r"""Return fusedmax of the scores: a point of the simplex with exact zeros, where neighbours share equal weights.

    .. math:: y = \operatorname*{argmax}_{y \in \Delta} \; \langle y, x \rangle - \gamma \left(\tfrac12 \lVert y \rVert^2
        + \lambda \sum_i \lvert y_{i+1} - y_i \rvert\right)

    where x are the scores of a row, Delta is the probability simplex, and i runs over neighbours that are both allowed.
    Computed exactly, as the simplex projection of the total-variation proximal operator of ``x / gamma``.

    Args:
        scores: floating tensor; length d along ``dim``, whose order matters.
        lam: strength of the fusion penalty (lambda in the paper), >= 0; a number, or a tensor that broadcasts to the
            scores with size 1 along ``dim`` and gets a gradient. A row whose lam is NaN is NaN, and so is one with lam
            < 0 where values cannot be checked (on a GPU, in a graph).
        gamma: strength of the whole regularizer, > 0.
        dim: dimension along which to map.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed. Only neighbours in the original
            order are fused, never over an entry that is not allowed.

    Returns:
        Tensor of the scores' shape and dtype; runs of equal weights, and exact zeros.

    Raises:
        ConfigurationError: if ``lam`` or ``gamma`` is out of its range, the scores are not floating, or the mask or lam
            does not fit.

    Source: Niculae & Blondel (2017), A Regularized Framework for Sparse and Structured Neural Attention, section 3.2; the
    signs of the derivative in lam are opposite to those in its proof of Lemma 1.
    """
    gamma, lam = check_positive("gamma", gamma), check_parameter("lam", lam, 0.0, LARGEST)
    return _Fusedmax.along(scores, mask, dim, lam, gamma=gamma)


@ranges(lam=Learnable(0.0, LARGEST))
class Fusedmax(SparseMapping):
    """Layer that computes fusedmax: attention to a few contiguous stretches, each with one weight.

    For the formula, see :func:`~lit_sparse.mappings.functional.fusedmax`.

    Args:
        lam: strength of the fusion penalty, >= 0, or a tensor of such values that broadcasts to the scores with size 1
            along ``dim``. A ``nn.Parameter`` is learned; see :class:`LearnableFusedmax` for one that stays positive.
        gamma: strength of the regularizer ``1/2 ||y||^2 + lam sum |y_(i+1) - y_i|``, > 0.
        dim: dimension along which to map.

    Raises:
        ConfigurationError: if ``lam`` or ``gamma`` is out of its range.

    Source: Niculae & Blondel (2017), A Regularized Framework for Sparse and Structured Neural Attention.

    Example:
        >>> import torch
        >>> y = Fusedmax(0.5)(torch.tensor([0.0, 1.0, 1.2, 0.9, -1.0]))
        >>> bool(y[1] == y[2]) and bool(y[2] == y[3]) and bool(y[4] == 0)
        True
    """

    ordered = True
    lam: float | Tensor

    def __init__(self, lam: float | Tensor = 0.1, *, gamma: float = 1.0, dim: int = -1) -> None:
        super().__init__(gamma=gamma, dim=dim)
        self.keep_parameter("lam", lam)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: weak, strong and no fusion, and a strength to learn."""
        return [cls(), cls(0.7, gamma=2.0), cls(0.0), cls(nn.Parameter(torch.tensor(0.3)), gamma=0.5)]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``; see :func:`fusedmax`."""
        return fusedmax(scores, self.lam, gamma=self.gamma, dim=dim, mask=mask)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return Omega(y) = ``1/2 ||y||^2 + lam sum |y_(i+1) - y_i|`` along ``dim``, over neighbours that are both allowed."""
        steps, lam = _variation(y, dim, allowed), self.lam
        penalty = lam * steps if not isinstance(lam, Tensor) else (lam * steps.unsqueeze(dim)).squeeze(dim)
        return 0.5 * y.square().sum(dim) + penalty

    @override
    def parameter_term(self, y: Tensor, dim: int, allowed: Tensor | None) -> Tensor | None:
        lam = self.lam
        if not isinstance(lam, Tensor):
            return None
        slope = _variation(y, dim, allowed)
        return with_slope((lam + torch.zeros_like(slope).unsqueeze(dim)).squeeze(dim), slope)


@ranges(shape=SHAPE, start=Number(0.0, LARGEST, open_low=True))
class LearnableFusedmax(Fusedmax):
    r"""Layer that computes fusedmax with a learned, positive fusion strength lam.

    .. math:: \lambda = \ln(1 + e^a)

    where the parameter a (the attribute ``weight``) has the given shape.

    Args:
        shape: shape of lam; it broadcasts to the scores with size 1 along ``dim``. ``(heads, 1, 1)`` gives each head of
            an attention layer its own.
        start: initial lam, > 0.
        gamma: strength of the whole regularizer, > 0.
        dim: dimension along which to map.

    Raises:
        ConfigurationError: if an argument is out of its range.

    Source: the derivative in lam: Niculae & Blondel (2017), section 3.2, with the signs of :func:`fusedmax`.

    Example:
        >>> import torch
        >>> mapping = LearnableFusedmax(start=0.2)
        >>> mapping(torch.randn(3, 9)).square().sum().backward()
        >>> mapping.weight.grad.shape
        torch.Size([])
    """

    def __init__(self, shape: tuple[int, ...] = (), start: float = 0.1, *, gamma: float = 1.0, dim: int = -1) -> None:
        SparseMapping.__init__(self, gamma=gamma, dim=dim)
        self.shape, self.start = shape, start
        raw = self.start if self.start > SOFT else math.log(math.expm1(self.start))
        self.weight = nn.Parameter(torch.full(self.shape, raw))

    @property
    def lam(self) -> Tensor:  # type: ignore[override]
        """The present value of lam, of the shape given to the constructor."""
        return nn.functional.softplus(self.weight)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: a weak initial fusion and a strong one."""
        return [cls(), cls(start=0.8, gamma=0.5)]


def _variation(y: Tensor, dim: int, allowed: Tensor | None) -> Tensor:
    """Return the sum of the absolute differences of neighbours that are both allowed."""
    steps = y.diff(dim=dim).abs()
    if allowed is not None:
        both = allowed.narrow(dim, 1, y.shape[dim] - 1) & allowed.narrow(dim, 0, y.shape[dim] - 1)
        steps = torch.where(both, steps, 0.0)
    return steps.sum(dim)
