"""Sparsemax (Martins & Astudillo 2016): the Euclidean projection onto the probability simplex."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import check_positive
from lit_sparse.kernels.simplex import center_on_support, project_simplex
from lit_sparse.mappings.base import SparseMapping, Threshold
from lit_sparse.mappings.row_function import RowFunction

__all__ = ["ALL", "Project", "Sparsemax", "sparsemax"]

ALL = (0,)  # entries take part


class Project(RowFunction):
    """Projection of the rows of x / gamma onto the simplex; with k > 0, of the k largest entries only."""

    kernel = project_simplex
    product = center_on_support

    @staticmethod
    def product_arguments(*args: Any) -> tuple[Any, ...]:
        """Return gamma, the only argument that the product of the Jacobian with a vector needs."""
        return args[:1]


def sparsemax(scores: Tensor, *, gamma: float = 1.0, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    r"""Return sparsemax of the scores: the Euclidean projection of ``scores / gamma`` onto the probability simplex.

    .. math:: y = \operatorname*{argmax}_{y \in \Delta} \; \langle y, x \rangle - \tfrac{\gamma}{2} \lVert y \rVert^2
        = [x / \gamma - \tau]_+

    where x are the scores of a row, Delta is the probability simplex and tau the threshold at which y sums to one.

    Args:
        scores: floating tensor; length d along ``dim``.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed.

    Returns:
        Tensor of the scores' shape and dtype; exact zeros outside the support.

    Raises:
        ConfigurationError: if ``gamma`` is not positive, the scores are not floating, or the mask does not fit.

    Source: Martins & Astudillo (2016), From Softmax to Sparsemax, eq. (2).
    """
    gamma = check_positive("gamma", gamma)
    return Project.along(scores, mask, dim, gamma=gamma, options=ALL)


class Sparsemax(SparseMapping):
    """Layer that computes sparsemax, a sparse alternative to softmax with exact zeros.

    For the formula, see :func:`~lit_sparse.mappings.functional.sparsemax`.

    Args:
        gamma: strength of the regularizer ``1/2 ||y||^2``, > 0. Larger values give larger supports.
        dim: dimension along which to map.

    Raises:
        ConfigurationError: if ``gamma`` is not a positive, finite number.

    Source: Martins & Astudillo (2016), From Softmax to Sparsemax.

    Example:
        >>> import torch
        >>> y = Sparsemax()(torch.tensor([[2.0, 1.9, 0.0], [0.0, 0.0, 0.0]]))
        >>> int((y[0] > 0).sum()), bool((y[1] == 1 / 3).all())
        (2, True)
    """

    @override
    def threshold(self) -> Threshold:
        return Threshold(2.0, gamma=self.gamma)

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``; see :func:`sparsemax`."""
        return sparsemax(scores, gamma=self.gamma, dim=dim, mask=mask)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return Omega(y) = ``1/2 ||y||^2`` along ``dim``."""
        return 0.5 * y.square().sum(dim)
