"""norm-max (Blondel, Martins & Niculae 2020): a norm as the regularizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self, override

from lit_sparse.checks import Learnable, check_parameter, check_positive, ranges
from lit_sparse.mappings.base import SparseMapping, with_slope
from lit_sparse.mappings.norm_max.kernel import map_norm, norm_product, norm_weights
from lit_sparse.mappings.row_function import RowFunction

__all__ = ["NormMax", "norm_max"]

LARGEST = 1000.0  # beyond, results are the uniform distribution on a support up to a thousandth of a logarithm


class _NormMax(RowFunction):
    """norm-max of rows / gamma, differentiable in the scores and in alpha."""

    kernel = map_norm
    product = norm_product
    piecewise_linear = False
    has_parameter_gradient = True

    @staticmethod
    def parameter_jvp(y: Tensor, *args: Any) -> Tensor:
        """Return dy / dalpha.

        With p = y / ||y||, L = log p, s = p^(2 - alpha) and E = sum p^alpha L it is
        ``||y|| / (alpha - 1) (y sum p L - p L + (s - y sum s) ||y|| E / alpha)``.
        """
        alpha = args[0].to(y.dtype)
        support = y != 0
        norm, p, s = norm_weights(y, alpha)
        log = p.log()
        plain = p * log
        share = norm * (torch.where(support, p**alpha, 0.0) * log).sum(-1, keepdim=True) / alpha
        change = y * plain.sum(-1, keepdim=True) - plain + (s - y * s.sum(-1, keepdim=True)) * share
        return torch.where(support, norm * change / (alpha - 1), 0.0)


def norm_max(
    scores: Tensor, alpha: float | Tensor = 2.0, *, gamma: float = 1.0, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    r"""Return norm-max of ``scores / gamma``: the point of the simplex that maximizes a linear function minus an alpha-norm.

    .. math:: y = \operatorname*{argmax}_{y \in \Delta} \; \langle y, x \rangle - \gamma \lVert y \rVert_\alpha
        \;\propto\; [x / \gamma - \tau]_+^{1 / (\alpha - 1)}

    where x are the scores of a row, Delta is the probability simplex, and tau the threshold at which
    ``sum_i [x_i / gamma - tau]_+^(alpha / (alpha - 1))`` is one.

    Args:
        scores: floating tensor; length d along ``dim``.
        alpha: 1 < alpha <= 1000; a number, or a tensor that broadcasts to the scores with size 1 along ``dim`` and gets
            a gradient. The closer to 1, the sparser; towards infinity, the weights on the support become equal. A row
            whose alpha is NaN is NaN, and so is one with alpha <= 1 where values cannot be checked (on a GPU, in a
            graph).
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed.

    Returns:
        Tensor of the scores' shape and dtype; exact zeros outside the support.

    Raises:
        ConfigurationError: if ``alpha`` or ``gamma`` is out of its range, the scores are not floating, or the mask or
            alpha does not fit.

    Source: Blondel, Martins & Niculae (2020), Learning with Fenchel-Young Losses, section 4.3: norm entropies.
    """
    gamma = check_positive("gamma", gamma)
    alpha = check_parameter("alpha", alpha, 1.0, LARGEST, open_low=True)
    return _NormMax.along(scores, mask, dim, alpha, gamma=gamma)


@ranges(alpha=Learnable(1.0, LARGEST, open_low=True))
class NormMax(SparseMapping):
    """Layer that computes norm-max: sparse, with nearly equal weights on the support for a large alpha.

    For the formula, see :func:`~lit_sparse.mappings.functional.norm_max`.

    Args:
        alpha: 1 < alpha <= 1000, or a tensor of such values that broadcasts to the scores with size 1 along ``dim``. A
            ``nn.Parameter`` is learned.
        gamma: strength of the regularizer ``||y||_alpha``, > 0.
        dim: dimension along which to map.

    Raises:
        ConfigurationError: if ``alpha`` or ``gamma`` is out of its range.

    Source: Blondel, Martins & Niculae (2020), Learning with Fenchel-Young Losses, section 4.3.

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0, 0.75, 0.5, 0.25, 0.0])
        >>> NormMax(1000.0)(x).mul(100).round().tolist()
        [33.0, 33.0, 33.0, 0.0, 0.0]
    """

    alpha: float | Tensor

    def __init__(self, alpha: float | Tensor = 2.0, *, gamma: float = 1.0, dim: int = -1) -> None:
        super().__init__(gamma=gamma, dim=dim)
        self.keep_parameter("alpha", alpha)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: the default alpha, smaller and larger ones, and one to learn."""
        return [cls(), cls(1.3, gamma=0.5), cls(4.0), cls(nn.Parameter(torch.tensor([2.5])))]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``; see :func:`norm_max`."""
        return norm_max(scores, self.alpha, gamma=self.gamma, dim=dim, mask=mask)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return Omega(y), the alpha-norm ``||y||_alpha`` along ``dim``."""
        top, total = _powers(y, self.alpha, dim)
        alpha = self.alpha.to(y.dtype) if isinstance(self.alpha, Tensor) else self.alpha
        return (top * total ** (1 / alpha)).squeeze(dim)

    @override
    def parameter_term(self, y: Tensor, dim: int, allowed: Tensor | None) -> Tensor | None:
        if not isinstance(self.alpha, Tensor):
            return None
        alpha = self.alpha.to(y.dtype)
        top, total = _powers(y, alpha, dim)
        p = torch.where(y != 0, y, top) / top
        mean = (torch.where(y != 0, p**alpha, 0.0) * p.log()).sum(dim, keepdim=True) / total
        slope = top * total ** (1 / alpha) * (mean - total.log() / alpha) / alpha
        return with_slope((self.alpha + torch.zeros_like(slope)).squeeze(dim), slope.squeeze(dim))


def _powers(y: Tensor, alpha: float | Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the largest entry and ``sum (y / largest)^alpha``, ``dim`` kept; 1 for the second where the first is 0."""
    top = y.detach().amax(dim, keepdim=True)
    ratio = y / torch.where(top == 0, 1.0, top)
    alpha = alpha.to(y.dtype) if isinstance(alpha, Tensor) else alpha
    return top, torch.where(top == 0, 1.0, (ratio**alpha).sum(dim, keepdim=True))
