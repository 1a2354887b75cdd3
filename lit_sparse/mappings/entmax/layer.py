"""alpha-entmax (Peters, Niculae & Martins 2019): softmax at alpha = 1, sparsemax at alpha = 2, and all other alpha > 0."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self, override

from lit_sparse.checks import SHAPE, Learnable, Number, check_number, check_parameter, check_positive, ranges
from lit_sparse.mappings.base import SparseMapping, Threshold, with_slope
from lit_sparse.mappings.entmax.kernel import entmax_product, map_entmax, map_entmax_root
from lit_sparse.mappings.row_function import RowFunction
from lit_sparse.mappings.softmax import softmax
from lit_sparse.mappings.sparsemax import ALL, Project

__all__ = ["Entmax", "LearnableEntmax", "entmax"]

LEAST = 1e-6  # smaller, alpha - 1 is -1 in float32, and no root is left
LARGEST = 100.0  # beyond, the result is a coin toss of rounding: y = m^(1 / (alpha - 1)) is 1 wherever m > 0
STEEPEST = 60.0  # how far the logarithm of y^(1 - alpha) may go: its exponential is a number of every type
SERIES = tuple(1 / math.factorial(n) for n in range(13, 1, -1))  # the first term left out is 6e-18 at 0.3
CLOSE = 1e-9  # below this size of alpha - 1, softmax to all digits


class _Entmax(RowFunction):
    """alpha-entmax of rows / gamma, differentiable in the scores and in alpha."""

    kernel = map_entmax
    product = entmax_product
    piecewise_linear = False
    has_parameter_gradient = True

    @classmethod
    @override
    def value_traced(cls, x: Tensor, *args: Any) -> Tensor:
        alpha, gamma = args
        if isinstance(alpha, Tensor) or alpha != 1.5 or x.shape[-1] == 0:
            return super().value_traced(x, *args)
        root: Tensor = map_entmax_root.traced(x, gamma)
        return root

    @staticmethod
    def parameter_jvp(y: Tensor, *args: Any) -> Tensor:
        """Return dy / dalpha, whose terms in 1 / (alpha - 1) are cancelled by hand.

        Define L = log y, H = -sum y L, g(u) = (exp(-u) - 1 + u) / u^2, G = sum y L^2 g(eps L) and Z = 1 + eps H + eps^2 G.
        The derivative is y ((1 - eps L) G - (1 + eps H) L^2 g(eps L)) / Z. It agrees with Correia, Niculae & Martins (2019),
        proposition 1, and with its limit y (sum y L^2 - L^2) / 2 at alpha = 1. For eps < 0, where these terms cancel, it is
        y (exp(-eps L) G / Z - L^2 g(eps L)) with Z = sum y exp(-eps L).
        """
        eps = args[0] - 1
        support = y != 0
        log = torch.where(support, torch.where(support, y, 1.0).log(), 0.0)
        excess = ((-eps * log).detach().amax(-1, keepdim=True) - STEEPEST).clamp_min(0)  # G and Z relative to exp(excess)
        square = log.square() * _second_remainder(eps * log, excess)
        entropy = -(y * log).sum(-1, keepdim=True)
        total = (y * square).sum(-1, keepdim=True)
        partition = (1 + eps * entropy) * torch.exp(-excess) + eps.square() * total
        change = ((1 - eps * log) * total - (1 + eps * entropy) * square) / partition
        weight = torch.exp(torch.where(eps < 0, -eps * log, 0.0))
        flatter = weight * (total / (y * weight).sum(-1, keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)) - square
        return torch.where(support, y * torch.where(eps < 0, flatter, change), 0.0)


def _second_remainder(u: Tensor, excess: Tensor | None = None) -> Tensor:
    """Return ``(exp(-u) - 1 + u) / u^2`` times ``exp(-excess)``, by its series where that cancels."""
    excess = torch.zeros_like(u) if excess is None else excess
    small = u.abs() < 0.3
    near, far = torch.where(small, u, 0.0), torch.where(small, 1.0, u)
    series = torch.full_like(near, SERIES[0])
    for coefficient in SERIES[1:]:
        series = coefficient - near * series
    scale = torch.exp(-excess)
    plain = torch.expm1(torch.where(excess > 0, 0.0, -far)) + far
    steep = torch.exp(-far - excess) - scale + scale * far
    return torch.where(small, scale * series, torch.where(excess > 0, steep, plain) / far.square())


def entmax(
    scores: Tensor, alpha: float | Tensor = 1.5, *, gamma: float = 1.0, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    r"""Return alpha-entmax of ``scores / gamma``: softmax at alpha = 1, sparsemax at alpha = 2, sparser as alpha grows.

    .. math:: y = \operatorname*{argmax}_{y \in \Delta} \; \langle y, x \rangle
        - \gamma\,\frac{\sum_i y_i^\alpha - 1}{\alpha (\alpha - 1)}
        = \left[(\alpha - 1)\, x / \gamma - \tau\right]_+^{1 / (\alpha - 1)}

    where x are the scores of a row, Delta is the probability simplex and tau the threshold at which y sums to one.

    Args:
        scores: floating tensor; length d along ``dim``.
        alpha: 1e-6 <= alpha <= 100; a number, or a tensor that broadcasts to the scores with size 1 along ``dim`` (one
            alpha a head, say) and gets a gradient. A row whose alpha is NaN is NaN, and so is one with alpha <= 0 where
            values cannot be checked (on a GPU, in a graph).
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed.

    Returns:
        Tensor of the scores' shape and dtype; exact zeros outside the support for alpha > 1, heavier tails than softmax
        for alpha < 1.

    Raises:
        ConfigurationError: if ``alpha`` or ``gamma`` is out of its range, the scores are not floating, or the mask or
            alpha does not fit.

    Source: Peters, Niculae & Martins (2019), Sparse Sequence-to-Sequence Models, eq. (10); the derivative with
    respect to alpha: Correia, Niculae & Martins (2019), Adaptively Sparse Transformers, proposition 1.
    """
    gamma = check_positive("gamma", gamma)
    alpha = check_parameter("alpha", alpha, LEAST, LARGEST)
    if not isinstance(alpha, Tensor):
        if abs(alpha - 1) < CLOSE:
            return softmax(scores, gamma=gamma, dim=dim, mask=mask)
        if alpha == 2:
            return Project.along(scores, mask, dim, gamma=gamma, options=ALL)
    return _Entmax.along(scores, mask, dim, alpha, gamma=gamma)


@ranges(alpha=Learnable(LEAST, LARGEST))
class Entmax(SparseMapping):
    """Layer that computes alpha-entmax: the larger alpha, the sparser; dense for alpha <= 1.

    For the formula, see :func:`~lit_sparse.mappings.functional.entmax`.

    Args:
        alpha: 1e-6 <= alpha <= 100, or a tensor of such values that broadcasts to the scores with size 1 along ``dim``.
            A ``nn.Parameter`` is learned; see :class:`LearnableEntmax` for one that stays in a range.
        gamma: strength of the regularizer ``(sum y^alpha - 1) / (alpha (alpha - 1))``, > 0.
        dim: dimension along which to map.

    Raises:
        ConfigurationError: if ``alpha`` or ``gamma`` is out of its range.

    Source: Peters, Niculae & Martins (2019), Sparse Sequence-to-Sequence Models.

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0, 0.4, -2.0])
        >>> [int((Entmax(alpha)(x) > 0).sum()) for alpha in (1.0, 1.5, 3.0)]
        [3, 2, 1]
    """

    alpha: float | Tensor

    def __init__(self, alpha: float | Tensor = 1.5, *, gamma: float = 1.0, dim: int = -1) -> None:
        super().__init__(gamma=gamma, dim=dim)
        self.keep_parameter("alpha", alpha)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: alphas at and between the special cases, and two to learn."""
        learnt = [cls(nn.Parameter(torch.tensor([alpha]))) for alpha in (1.7, 0.6)]
        return [cls(), cls(1.25, gamma=0.5), cls(1.0), cls(2.0), cls(1.0001), cls(0.5), cls(0.1, gamma=0.5), *learnt]

    @override
    def threshold(self) -> Threshold:
        return Threshold(self.alpha, gamma=self.gamma)

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``; see :func:`entmax`."""
        return entmax(scores, self.alpha, gamma=self.gamma, dim=dim, mask=mask)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return Omega(y), the negative Tsallis entropy ``(sum y^alpha - 1) / (alpha (alpha - 1))``, along ``dim``."""
        return tsallis(y, self.alpha, dim)

    @override
    def parameter_term(self, y: Tensor, dim: int, allowed: Tensor | None) -> Tensor | None:
        if not isinstance(self.alpha, Tensor):
            return None
        slope = _tsallis_slope(y, self.alpha.to(y.dtype), dim)
        return with_slope((self.alpha + torch.zeros_like(slope)).squeeze(dim), slope.squeeze(dim))


@ranges(shape=SHAPE, high=Number(LEAST, LARGEST, open_low=True))
class LearnableEntmax(Entmax):
    r"""Layer that computes alpha-entmax with a learned alpha, kept inside a range.

    .. math:: \alpha = \mathrm{low} + (\mathrm{high} - \mathrm{low}) \, \sigma(a)

    where the parameter a (the attribute ``weight``) has the given shape.

    Args:
        shape: shape of alpha; it broadcasts to the scores with size 1 along ``dim``. ``(heads, 1, 1)`` gives each head
            of an attention layer its own.
        start: initial alpha; low < start < high.
        low: lower bound of alpha, >= 1e-6.
        high: upper bound of alpha, <= 100.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.

    Raises:
        ConfigurationError: if a number is out of its range.

    Source: Correia, Niculae & Martins (2019), Adaptively Sparse Transformers, eq. (11).

    Example:
        >>> import torch
        >>> mapping = LearnableEntmax(shape=(8, 1, 1))
        >>> mapping(torch.randn(2, 8, 5, 5)).sum().backward()
        >>> mapping.weight.grad.shape
        torch.Size([8, 1, 1])
    """

    def __init__(
        self,
        shape: tuple[int, ...] = (),
        start: float = 1.5,
        low: float = 1.0,
        high: float = 2.0,
        *,
        gamma: float = 1.0,
        dim: int = -1,
    ) -> None:
        SparseMapping.__init__(self, gamma=gamma, dim=dim)
        self.shape, self.high = shape, high
        self.low = check_number("low", low, LEAST, self.high, open_high=True)
        self.start = check_number("start", start, self.low, self.high, open_low=True, open_high=True)
        share = torch.full(self.shape, (self.start - self.low) / (self.high - self.low))
        self.weight = nn.Parameter(torch.logit(share))

    @property
    def alpha(self) -> Tensor:  # type: ignore[override]
        """The present value of alpha, of the shape given to the constructor."""
        return self.low + (self.high - self.low) * torch.sigmoid(self.weight)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests, with several ranges and initial values of alpha."""
        return [cls(), cls(start=2.5, low=1.5, high=4.0, gamma=0.5), cls(start=0.7, low=0.2)]


def tsallis(y: Tensor, alpha: float | Tensor, dim: int) -> Tensor:
    """Return the negative Tsallis entropy ``(sum y^alpha - 1) / (alpha (alpha - 1))`` along ``dim``.

    It is computed as ``sum y expm1((alpha - 1) log y) / (alpha (alpha - 1))``, which is accurate near alpha = 1.

    Args:
        y: (..., d, ...) probabilities.
        alpha: number, or tensor that broadcasts to y with size 1 along ``dim``.
        dim: dimension of length d.

    Returns:
        Tensor of y's shape without ``dim``.
    """
    if not isinstance(alpha, Tensor):
        if abs(alpha - 1) < CLOSE:
            entropy: Tensor = torch.special.entr(y).sum(dim)
            return -entropy
        alpha = torch.tensor(alpha, dtype=y.dtype, device=y.device)
    eps = (alpha - 1).to(y.dtype)
    support = y > 0
    log = _logarithm(y)
    u = eps * log
    # expm1(u) / eps = log (1 + u (1/2 - ...)): by its series, since alpha = 1 is allowed and has a derivative
    terms = y * log * (1 + u * _second_remainder(-u)) / (1 + eps)
    terms = torch.where(support | (eps <= 0), terms, -y / (alpha * torch.where(eps > 0, eps, 1.0)))  # 0, with its slope
    outside = torch.where((y < 0).any(dim), torch.inf, 0.0)
    # (sum y^alpha - 1) rests on sum y = 1
    return terms.sum(dim) + outside


def _tsallis_slope(y: Tensor, alpha: Tensor, dim: int) -> Tensor:
    """Return the derivative of the negative Tsallis entropy with respect to alpha, with ``dim`` kept.

    With u = (alpha - 1) log y, f = (exp(u) - 1) / u and r = (f - 1) / u, whose derivative f' is f - r, the entropy is
    sum y log y f / alpha.
    """
    log = _logarithm(y)
    u = (alpha - 1) * log
    r = _second_remainder(-u)
    f = 1 + u * r
    return (y * log * (log * (f - r) - f / alpha) / alpha).sum(dim, keepdim=True)


def _logarithm(y: Tensor) -> Tensor:
    """Return log y, 0 where y is 0; the powers of y in (0, 1) that it gives are numbers of its type."""
    support = y > 0
    return torch.where(support, torch.where(support, y, 1.0).clamp_min(torch.finfo(y.dtype).tiny).log(), 0.0)
