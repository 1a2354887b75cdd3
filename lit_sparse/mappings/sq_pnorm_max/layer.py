"""sq-pnorm-max (Niculae & Blondel 2017): the squared p-norm as the regularizer."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import Self

from lit_sparse.checks import Number, check_number, check_positive, ranges
from lit_sparse.mappings.base import SparseMapping
from lit_sparse.mappings.row_function import RowFunction
from lit_sparse.mappings.sparsemax import ALL, Project
from lit_sparse.mappings.sq_pnorm_max.kernel import map_pnorm, pnorm_product

__all__ = ["SqPNormMax", "sq_pnorm_max"]


class _SqPNormMax(RowFunction):
    """sq-pnorm-max of rows / gamma."""

    kernel = map_pnorm
    product = pnorm_product
    piecewise_linear = False


def sq_pnorm_max(scores: Tensor, p: float = 1.5, *, gamma: float = 1.0, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    r"""Return sq-pnorm-max of the scores: the point of the simplex that maximizes a linear function minus a squared p-norm.

    .. math:: y = \operatorname*{argmax}_{y \in \Delta} \; \langle y, x \rangle - \tfrac{\gamma}{2} \lVert y \rVert_p^2

    where x are the scores of a row and Delta is the probability simplex.

    Args:
        scores: floating tensor; length d along ``dim``.
        p: 1 < p <= 2; at 2 it is sparsemax, and the closer to 1 the sparser.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed.

    Returns:
        Tensor of the scores' shape and dtype; exact zeros outside the support.

    Raises:
        ConfigurationError: if ``p`` or ``gamma`` is out of its range, the scores are not floating, or the mask does not
            fit.

    Source: Niculae & Blondel (2017), A Regularized Framework for Sparse and Structured Neural Attention, section 3.1;
    solved by scalar root finding instead of its iteration.
    """
    gamma, p = check_positive("gamma", gamma), check_number("p", p, 1.0, 2.0, open_low=True)
    if p == 2:
        return Project.along(scores, mask, dim, gamma=gamma, options=ALL)
    return _SqPNormMax.along(scores, mask, dim, p, gamma=gamma)


@ranges(p=Number(1.0, 2.0, open_low=True))
class SqPNormMax(SparseMapping):
    """Layer that computes sq-pnorm-max: sparser than sparsemax, with weights that differ more.

    For the formula, see :func:`~lit_sparse.mappings.functional.sq_pnorm_max`.

    Args:
        p: exponent of the norm, 1 < p <= 2; at 2 it is sparsemax, and the closer to 1 the sparser.
        gamma: strength of the regularizer ``1/2 ||y||_p^2``, > 0.
        dim: dimension along which to map.

    Raises:
        ConfigurationError: if ``p`` or ``gamma`` is out of its range.

    Source: Niculae & Blondel (2017), A Regularized Framework for Sparse and Structured Neural Attention.

    Example:
        >>> import torch
        >>> from lit_sparse.mappings import Sparsemax
        >>> x = torch.randn(4, 9)
        >>> torch.equal(SqPNormMax(2.0)(x), Sparsemax()(x))
        True
    """

    def __init__(self, p: float = 1.5, *, gamma: float = 1.0, dim: int = -1) -> None:
        super().__init__(gamma=gamma, dim=dim)
        self.p = p

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: the default p, one closer to 1, and 2."""
        return [cls(), cls(1.2, gamma=0.5), cls(2.0)]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``; see :func:`sq_pnorm_max`."""
        return sq_pnorm_max(scores, self.p, gamma=self.gamma, dim=dim, mask=mask)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return Omega(y) = ``1/2 ||y||_p^2`` along ``dim``, where ``||y||_p = (sum y^p)^(1/p)``."""
        return 0.5 * y.pow(self.p).sum(dim).pow(2 / self.p)
