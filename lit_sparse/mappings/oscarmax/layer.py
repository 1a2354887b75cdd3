"""Oscarmax (Niculae & Blondel 2017): sparse attention that ties entries wherever they stand."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import Self

from lit_sparse.checks import Number, check_number, check_positive, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.kernels.groups import average_groups, group_product
from lit_sparse.kernels.simplex import center_on_support
from lit_sparse.mappings.base import SparseMapping
from lit_sparse.mappings.oscarmax.kernel import map_oscar
from lit_sparse.mappings.row_function import RowFunction

__all__ = ["Oscarmax", "oscarmax"]

LARGEST = 1e12


class _Oscarmax(RowFunction):
    """Oscarmax of rows / gamma; the groups are kept from the forward pass.

    The Jacobian of the published composition, J_projection J_prox / gamma, is not symmetric: its groups may hold entries
    outside the support, and entries of either sign.
    """

    kernel = map_oscar
    product = group_product

    @staticmethod
    def product_arguments(*args: Any) -> tuple[Any, ...]:
        labels, _, gamma, exact = args
        return labels, gamma, not exact

    @classmethod
    def jvp(cls, v: Tensor, y: Tensor, *args: Any) -> Tensor:
        labels, gamma, signed = cls.product_arguments(*args)
        return center_on_support.reference(average_groups(v, labels, signed), y, gamma)  # type: ignore[no-any-return]

    @classmethod
    def vjp(cls, v: Tensor, y: Tensor, *args: Any) -> Tensor:
        return super().jvp(v, y, *args)


def oscarmax(
    scores: Tensor,
    lam: float = 0.01,
    *,
    exact: bool = True,
    gamma: float = 1.0,
    dim: int = -1,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Return oscarmax of the scores: a point of the simplex with exact zeros and groups of equal weights.

    .. math:: y = \operatorname*{argmax}_{y \in \Delta} \; \langle y, x \rangle - \gamma \left(\tfrac12 \lVert y \rVert^2
        + \lambda \sum_{i < j} \max(y_i, y_j)\right)

    where x are the scores of a row, Delta is the probability simplex, and the sum is over pairs of allowed entries.

    Args:
        scores: floating tensor; length d along ``dim``.
        lam: strength of the pairwise penalty (lambda in the paper), >= 0.
        exact: True for the mapping as defined. False for what the paper computes instead, the simplex projection of the
            penalty's proximal operator, for comparison with its tables; it depends on shifts and signs of the scores,
            and can be far off.
        gamma: strength of the whole regularizer, > 0.
        dim: dimension along which to map.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed.

    Returns:
        Tensor of the scores' shape and dtype; groups of equal weights, and exact zeros.

    Raises:
        ConfigurationError: if ``lam`` or ``gamma`` is out of its range, the scores are not floating, or the mask does
            not fit.

    Source: Niculae & Blondel (2017), A Regularized Framework for Sparse and Structured Neural Attention, section 3.3;
    exactly by isotonic regression, since the penalty is linear on sorted points of the simplex.
    """
    gamma, lam = check_positive("gamma", gamma), check_number("lam", lam, 0.0, LARGEST)
    return _Oscarmax.along(scores, mask, dim, lam, gamma=gamma, options=(exact,), shift=exact)


@ranges(lam=Number(0.0, LARGEST))
class Oscarmax(SparseMapping):
    """Layer that computes oscarmax: a few groups of entries, anywhere in the row, each with one weight.

    For the formula, see :func:`~lit_sparse.mappings.functional.oscarmax`.

    Args:
        lam: strength of the pairwise penalty, >= 0.
        exact: True for the mapping as defined; False for the paper's approximation, which has neither a value nor a
            loss.
        gamma: strength of the regularizer ``1/2 ||y||^2 + lam sum_(i<j) max(y_i, y_j)``, > 0.
        dim: dimension along which to map.

    Raises:
        ConfigurationError: if ``lam`` or ``gamma`` is out of its range.

    Source: Niculae & Blondel (2017), A Regularized Framework for Sparse and Structured Neural Attention.

    Example:
        >>> import torch
        >>> y = Oscarmax(0.1)(torch.tensor([1.0, -3.0, 0.9]))
        >>> bool(y[0] == y[2]) and bool(y[1] == 0)
        True
    """

    groups: ClassVar[Literal["neighbours", "tied"]] = "tied"

    def __init__(self, lam: float = 0.01, *, exact: bool = True, gamma: float = 1.0, dim: int = -1) -> None:
        super().__init__(gamma=gamma, dim=dim)
        self.lam, self.exact = lam, exact
        self.shift_invariant = exact
        self.has_value = exact

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: weak, strong and no ties, and the paper's approximation."""
        return [cls(), cls(0.2, gamma=0.5), cls(0.0), cls(0.05, exact=False)]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``; see :func:`oscarmax`."""
        return oscarmax(scores, self.lam, exact=self.exact, gamma=self.gamma, dim=dim, mask=mask)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return Omega(y) = ``1/2 ||y||^2 + lam sum_(i<j) max(y_i, y_j)`` along ``dim``, over pairs that are both allowed.

        Raises:
            ConfigurationError: with ``exact=False``, which maximizes no objective.
        """
        if not self.exact:
            raise ConfigurationError(
                "Expected Oscarmax(exact=True): the published composition maximizes no objective, so it has no value."
            )
        size = y.shape[dim] if allowed is None else allowed.sum(dim, keepdim=True)
        ranked = y.sort(dim=dim, descending=True).values.movedim(dim, -1)
        rank = torch.arange(1, y.shape[dim] + 1, device=y.device)
        larger = size - rank if isinstance(size, int) else size.movedim(dim, -1) - rank
        return 0.5 * y.square().sum(dim) + self.lam * (ranked * larger).sum(-1)
