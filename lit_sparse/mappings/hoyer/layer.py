"""Projection onto a given sparseness (Hoyer 2004; Thom & Palm 2013)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from lit_sparse.checks import POSITIVE, Number, check_number, check_positive, ranges
from lit_sparse.mappings.base import SparseMapping
from lit_sparse.mappings.hoyer.backward import hoyer_product
from lit_sparse.mappings.hoyer.kernel import project_hoyer
from lit_sparse.mappings.row_function import RowFunction

__all__ = ["HoyerProjection", "hoyer_projection"]


class _HoyerProjection(RowFunction):
    """Projection of rows onto a Hoyer sparseness and an l2 norm."""

    kernel = project_hoyer
    product = hoyer_product
    saves_input = True
    piecewise_linear = False

    @staticmethod
    def product_arguments(*args: Any) -> tuple[Any, ...]:
        x, _, _, nonneg = args
        return x, nonneg


def hoyer_projection(
    x: Tensor, sparseness: float, *, nonneg: bool = False, norm: float = 1.0, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    r"""Return the nearest point of a given Hoyer sparseness and Euclidean norm.

    .. math:: y = \operatorname{sign}(x)\,\mathrm{norm}\,\frac{[\lvert x \rvert - \tau]_+}
        {\lVert [\lvert x \rvert - \tau]_+ \rVert_2},
        \qquad \frac{\sqrt d - \lVert y \rVert_1 / \lVert y \rVert_2}{\sqrt d - 1} = \mathrm{sparseness}

    where d is the number of allowed entries and the second equation, Hoyer's sparseness, determines tau. Sparseness is
    0 if all magnitudes are equal and 1 if a single entry is nonzero. The algorithm takes linear time.

    Args:
        x: floating tensor; length d along ``dim``.
        sparseness: the sparseness of the result, in [0, 1].
        nonneg: whether the result is nonnegative; otherwise it has the signs of x.
        norm: Euclidean norm of the result, > 0.
        dim: dimension along which to project.
        mask: boolean, broadcastable to ``x``; True where an entry is allowed. d counts those.

    Returns:
        Tensor of x's shape and dtype. If equal entries make the nearest point ambiguous, the first ones are taken, and
        the gradient is zero. A single allowed entry becomes plus or minus the norm.

    Raises:
        ConfigurationError: if ``sparseness`` or ``norm`` is out of its range, x is not floating, or the mask does not
            fit.

    Source: Hoyer (2004), Non-negative Matrix Factorization with Sparseness Constraints. Thom & Palm (2013), Sparse Activity
    and Sparse Connectivity in Supervised Learning. Linear time: Thom, Rapp & Palm (2015).
    """
    sparseness, norm = check_number("sparseness", sparseness, 0.0, 1.0), check_positive("norm", norm)
    return _HoyerProjection.along(x, mask, dim, sparseness, norm, options=(nonneg,))


@ranges(sparseness=Number(0.0, 1.0), norm=POSITIVE)
class HoyerProjection(SparseMapping):
    """Layer that projects rows onto vectors of a given Hoyer sparseness and Euclidean norm.

    For the formula, see :func:`~lit_sparse.mappings.functional.hoyer_projection`.

    Args:
        sparseness: the sparseness of the result, in [0, 1].
        nonneg: whether the result is nonnegative; otherwise it has the signs of the input.
        norm: Euclidean norm of the result, > 0.
        dim: dimension along which to project.

    Raises:
        ConfigurationError: if ``sparseness`` or ``norm`` is out of its range.

    Source: Hoyer (2004), Thom & Palm (2013), and Thom, Rapp & Palm (2015).

    Example:
        >>> import torch
        >>> y = HoyerProjection(0.75)(torch.randn(64))
        >>> sparseness = (8 - y.abs().sum() / y.norm()) / 7
        >>> bool((sparseness - 0.75).abs() < 1e-5) and bool((y.norm() - 1).abs() < 1e-5)
        True
    """

    on_simplex = False
    shift_invariant = False

    def __init__(self, sparseness: float, *, nonneg: bool = False, norm: float = 1.0, dim: int = -1) -> None:
        super().__init__(dim=dim)
        self.sparseness, self.nonneg, self.norm = sparseness, nonneg, norm

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests, with and without signs, of low and high sparseness."""
        return [cls(0.6), cls(0.6, nonneg=True, norm=2.0), cls(0.15), cls(0.9, nonneg=True)]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``; see :func:`hoyer_projection`."""
        return hoyer_projection(scores, self.sparseness, nonneg=self.nonneg, norm=self.norm, dim=dim, mask=mask)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return Omega(y) = 0: the norms of the result are fixed, and nothing else is penalized."""
        return torch.zeros_like(y).sum(dim)
