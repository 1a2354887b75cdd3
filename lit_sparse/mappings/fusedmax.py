"""Fusedmax (Niculae & Blondel 2017): sparse attention whose neighbours share one weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lit_sparse.errors import ConfigurationError
from lit_sparse.kernels.fused import map_fused
from lit_sparse.kernels.groups import average_groups, code_of, group_product
from lit_sparse.mappings.base import SparseMapping, with_slope
from lit_sparse.mappings.rowwise import RowFunction, along_last, check_parameter, check_positive
from lit_sparse.mappings.sparsemax import centered

__all__ = ["Fusedmax", "fusedmax"]

LARGEST = 1e12


class _Fusedmax(RowFunction):
    """Fusedmax of rows / gamma, differentiable in the scores and in lam; the runs are kept from the forward pass."""

    kernel = map_fused
    sensitive = True

    @staticmethod
    def jacobian(v: Tensor, y: Tensor, *args: Any) -> Tensor:
        labels, _, gamma = args
        return average_groups(centered(v, y, gamma), labels, False)

    @staticmethod
    def product(v: Tensor, y: Tensor, *args: Any) -> Tensor:
        labels, _, gamma = args
        return group_product(v, y, labels, gamma, False)  # type: ignore[no-any-return]

    @staticmethod
    def sensitivity(y: Tensor, *args: Any) -> Tensor:
        """Return dy / dlam: each run moves by (s_left - s_right) / n, the signs of the steps at its two ends."""
        labels = args[0]
        code = torch.where(labels >= 0, code_of(labels), 0).to(y.dtype)
        ids = (labels >> 3).clamp_min(0).long()
        size = torch.zeros_like(y).scatter_add(-1, ids, (labels >= 0).to(y.dtype)).gather(-1, ids).clamp_min(1)
        return centered(code / size, y, 1.0)


def fusedmax(
    scores: Tensor, lam: float | Tensor = 0.1, *, gamma: float = 1.0, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    """Return the point of the simplex that maximizes ``<y, x> - gamma (1/2 ||y||^2 + lam sum |y_(i+1) - y_i|)``.

    It is the simplex projection of the total-variation proximal operator of ``x / gamma``, both exact.

    Args:
        scores: floating tensor; length d along ``dim``, whose order matters.
        lam: strength of the fusion penalty (lambda in the paper), >= 0; a number, or a tensor that broadcasts to the scores
            with size 1 along ``dim`` and gets a gradient. A row whose lam is below 0 is NaN.
        gamma: strength of the whole regularizer, > 0.
        dim: dimension along which to map.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed. Only neighbours in the original order are
            fused, never over an entry that is not allowed.

    Returns:
        Tensor of the scores' shape and dtype; runs of equal weights, and exact zeros.

    Raises:
        ConfigurationError: if ``lam`` or ``gamma`` is out of its range, the scores are not floating, or the mask or lam does
            not fit.

    Source: Niculae & Blondel (2017), A Regularized Framework for Sparse and Structured Neural Attention, section 3.2; the
    signs of the derivative in lam are opposite to those in its proof of Lemma 1.
    """
    gamma, lam = check_positive("gamma", gamma), check_parameter("lam", lam, 0.0, LARGEST)
    if not torch.compiler.is_compiling():
        return along_last(scores, mask, dim, lambda x, strength: _Fusedmax.of(x, strength, gamma), lam)
    return along_last(scores, mask, dim, lambda x, strength: _Fusedmax.traced(x, strength, 1.0, gamma=gamma), lam)


class Fusedmax(SparseMapping):
    """Fusedmax as a layer: attention to a few contiguous stretches, each with one weight.

    Args:
        lam: strength of the fusion penalty, >= 0, or a tensor of such values that broadcasts to the scores with size 1 along
            ``dim``. A ``nn.Parameter`` is learnt.
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
        checked = check_parameter("lam", lam, 0.0, LARGEST)
        if isinstance(checked, Tensor) and not checked.is_meta and not bool((checked.detach() >= 0).all()):
            raise ConfigurationError(f"Expected every `lam` to be at least 0 but got {checked.flatten()[:5].tolist()}.")
        if isinstance(checked, Tensor) and not isinstance(checked, nn.Parameter):
            self.register_buffer("lam", checked, persistent=False)
        else:
            self.lam = checked

    @classmethod
    def examples(cls) -> list[Self]:
        """Return weak and strong fusion, none, and a strength to learn."""
        return [cls(), cls(0.7, gamma=2.0), cls(0.0), cls(nn.Parameter(torch.tensor(0.3)), gamma=0.5)]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """See :func:`fusedmax`."""
        return fusedmax(scores, self.lam, gamma=self.gamma, dim=dim, mask=mask)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return ``1/2 ||y||^2 + lam sum |y_(i+1) - y_i|``, over neighbours that are both allowed."""
        steps, lam = _variation(y, dim, allowed), self.lam
        penalty = lam * steps if not isinstance(lam, Tensor) else (lam * steps.unsqueeze(dim)).squeeze(dim)
        return 0.5 * y.square().sum(dim) + penalty

    def parameter_term(self, y: Tensor, dim: int, allowed: Tensor | None) -> Tensor | None:
        """See the base class; lam is the parameter."""
        lam = self.lam
        if not isinstance(lam, Tensor):
            return None
        slope = _variation(y, dim, allowed)
        return with_slope((lam + torch.zeros_like(slope).unsqueeze(dim)).squeeze(dim), slope)


def _variation(y: Tensor, dim: int, allowed: Tensor | None) -> Tensor:
    """Return the sum of the absolute differences of neighbours that are both allowed."""
    steps = y.diff(dim=dim).abs()
    if allowed is not None:
        both = allowed.narrow(dim, 1, y.shape[dim] - 1) & allowed.narrow(dim, 0, y.shape[dim] - 1)
        steps = torch.where(both, steps, 0.0)
    return steps.sum(dim)
