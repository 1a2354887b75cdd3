"""JumpReLU (Rajamanoharan et al. 2024): scores above a learned threshold, unchanged."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from typing_extensions import Self, override

from lit_sparse.checks import POSITIVE, SHAPE, Count, check_parameter, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.distributed import reduce, world_size
from lit_sparse.ground.tensors import FLOATS, check_tensor
from lit_sparse.mappings.base import SparseMapping, with_slope
from lit_sparse.mappings.masking import allowed_scores, along_last, mark_invalid

__all__ = ["JumpReLU", "jump_relu"]

#: How much faster than other parameters an optimizer such as Adam moves the logarithms of thresholds.
SPEED = 10


def jump_relu(scores: Tensor, threshold: float | Tensor, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    r"""Return the scores above a threshold, and zero elsewhere.

    .. math:: y_i = x_i \text{ if } x_i > t_i, \text{ else } 0

    where t is the threshold.

    Args:
        scores: floating tensor; length d along ``dim``.
        threshold: a number of at least 0, or one for each of the d entries, (d,).
        dim: dimension of the entries.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed.

    Returns:
        Tensor of the scores' shape and dtype.

    Raises:
        ConfigurationError: if the scores are not floating, a threshold is below 0 or NaN, or thresholds or mask do not fit.

    Source: Rajamanoharan et al. (2024), Jumping Ahead: Improving Reconstruction Fidelity with JumpReLU Sparse Autoencoders.
    """
    check_parameter("threshold", threshold, 0.0, math.inf)
    return along_last(scores, mask, dim, lambda x: _cut(x, threshold))


def _cut(x: Tensor, threshold: float | Tensor) -> Tensor:
    if isinstance(threshold, Tensor) and threshold.shape not in ((), x.shape[-1:]):
        raise ConfigurationError(
            f"Expected one threshold, or one for each of {x.shape[-1]} entries, but got shape {tuple(threshold.shape)}."
        )
    return mark_invalid(x, torch.where(x > threshold, x.relu(), 0.0))


@ranges(k=Count(), shape=SHAPE, start=POSITIVE, bandwidth=POSITIVE)
class JumpReLU(SparseMapping):
    """Layer that keeps scores above learned thresholds and sets the others to zero.

    The derivative with respect to a threshold t, which is zero almost everywhere, is replaced in training by its
    average over a band of scores around the threshold: ``-t / bandwidth`` where ``|x - t| < bandwidth / 2``. Derivatives
    with respect to the scores are exact.

    Args:
        k: mean number of entries above their thresholds that :meth:`penalty` aims at.
        shape: shape of the thresholds: ``(d,)`` for one per entry, ``()`` for one for all.
        start: initial threshold, > 0.
        bandwidth: width of the band, > 0.
        dim: dimension of the entries.

    Raises:
        ConfigurationError: if an argument is out of its range.

    Source: Rajamanoharan et al. (2024), Jumping Ahead: Improving Reconstruction Fidelity with JumpReLU Sparse Autoencoders.

    Example:
        >>> import torch
        >>> JumpReLU(2, start=1.0)(torch.tensor([0.5, -3.0, 2.0, 1.5])).tolist()
        [0.0, 0.0, 2.0, 1.5]
    """

    on_simplex = False
    shift_invariant = False
    keeps_scores = True

    def __init__(
        self, k: int, *, shape: tuple[int, ...] = (), start: float = 1.0, bandwidth: float = 0.1, dim: int = -1
    ) -> None:
        super().__init__(dim=dim)
        self.k, self.shape, self.start, self.bandwidth = k, shape, start, bandwidth
        self.weight = nn.Parameter(torch.full(self.shape, math.log(self.start) / SPEED))

    @property
    def thresholds(self) -> Tensor:
        """The present thresholds, of the shape given to the constructor."""
        return (SPEED * self.weight).exp()

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: a high and a low threshold."""
        return [cls(2), cls(5, start=0.2, bandwidth=0.5)]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``; see :func:`jump_relu`."""
        t = self.thresholds
        y = jump_relu(scores, t.detach(), dim=dim, mask=mask)
        return y + self._slope(allowed_scores(scores, mask, dim), t, t.detach(), dim) if self._learns else y

    def penalty(self, scores: Tensor) -> Tensor:
        """Return the sparsity penalty ``(n / k - 1)^2``, n the mean number of scores above threshold over all processes.

        In training, it has a gradient with respect to the thresholds, averaged over the same band as the layer's.

        Args:
            scores: (..., d), floating.
        """
        t = self.thresholds
        check_tensor(scores, "floating scores (..., d)", dtypes=FLOATS)
        above = (scores > t).to(scores.dtype)
        if self._learns:
            above = above + self._slope(scores, t, 1.0, -1)
        number = above.sum(-1).mean()
        off = reduce(number.detach()) / (world_size() * self.k) - 1
        return off.square() + 2 * off * (number - number.detach()) / self.k

    @property
    def _learns(self) -> bool:
        return self.training and self.weight.requires_grad and torch.is_grad_enabled()

    def _slope(self, scores: Tensor, thresholds: Tensor, jump: Tensor | float, dim: int) -> Tensor:
        """Return zeros whose derivative with respect to each threshold is the slope of a jump there, averaged over the band."""
        x = scores.detach().movedim(dim, -1)
        near = (x - thresholds.detach()).abs() < self.bandwidth / 2
        slope = torch.where(near, -jump / self.bandwidth, 0.0).to(scores.dtype)
        return with_slope(thresholds.to(scores.dtype).expand_as(slope), slope).movedim(-1, dim)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return Omega(y) = ``1/2 ||y||^2`` plus ``t^2 / 2`` for each nonzero entry, along ``dim``; inf for a negative one."""
        paid = (y.movedim(dim, -1) != 0) * self.thresholds.detach().square()
        outside = torch.where((y < 0).any(dim), torch.inf, 0.0)
        return 0.5 * (y.square().sum(dim) + paid.sum(-1)) + outside

    @override
    def parameter_term(self, y: Tensor, dim: int, allowed: Tensor | None) -> Tensor | None:
        t, rows = self.thresholds.to(y.dtype), y.movedim(dim, -1)
        return with_slope(t.expand_as(rows), t.detach() * (rows != 0)).sum(-1)
