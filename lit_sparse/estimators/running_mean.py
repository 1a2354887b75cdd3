"""Running mean over all numbers so far, of all processes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lit_sparse.ground.distributed import reduce
from lit_sparse.ground.kept_dtype import KeepsDtype

__all__ = ["RunningMean"]


class RunningMean(KeepsDtype):
    """Running mean of all numbers so far that is the same on all processes and part of checkpoints.

    Its state is parameters without a gradient, not buffers. DistributedDataParallel broadcasts buffers in every call, which
    hangs if processes make different numbers of calls, as in validation.

    Example:
        >>> mean = RunningMean()
        >>> mean.update(torch.tensor([1.0, 2.0])), mean.update(torch.tensor([6.0]))
        (None, None)
        >>> float(mean.value)
        3.0
    """

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros((), dtype=torch.float64), requires_grad=False)
        self.count = nn.Parameter(torch.zeros((), dtype=torch.float64), requires_grad=False)

    @torch.no_grad()
    def update(self, numbers: Tensor, used: Tensor | None = None) -> None:
        """Add numbers to the mean, ignoring those that are not finite; in a distributed run, all processes must call it.

        Args:
            numbers: tensor of any shape.
            used: mask of the numbers that count, of the same shape; by default all. Infinite numbers and NaN never count.
        """
        some = numbers.isfinite() if used is None else used & numbers.isfinite()
        total, count = reduce(torch.stack([torch.where(some, numbers, 0.0).double().sum(), some.double().sum()])).unbind()
        self.count.add_(count)
        self.value.add_(torch.where(count > 0, (total - count * self.value) / self.count.clamp_min(1.0), 0.0))
