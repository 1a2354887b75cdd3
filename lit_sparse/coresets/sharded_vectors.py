"""Vectors that are distributed over processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import check_indices
from lit_sparse.coresets.vectors import MOST_GATHERED, DenseVectors, Vectors
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.distributed import broadcast, gather, gather_unequal, is_first, rank, reduce
from lit_sparse.kernels.row_sums import row_sum

__all__ = ["ShardedVectors"]


class ShardedVectors(Vectors):
    """Vectors of a coreset problem that are distributed over processes, in the order of ranks.

    All processes make the same calls and get the same results, so selectors need no changes.

    Args:
        share: vectors of this process; may be empty.
        group: the processes; None for all of them.

    Raises:
        ConfigurationError: if S or the dtype differs between processes.
    """

    def __init__(self, share: Vectors | Tensor, group: Any = None) -> None:
        self.share = share if isinstance(share, Vectors) else DenseVectors(share)
        self.group = group
        self.dtype, self.device = self.share.dtype, self.share.device
        double = int(self.dtype == torch.float64)
        mine = torch.tensor([*self.share.shape, double], device=self.device)
        theirs = torch.stack(gather(mine, group)).tolist()
        if len({(width, kind) for _, width, kind in theirs}) > 1:
            shapes = ", ".join(f"({size}, {width}) float{64 if kind else 32}" for size, width, kind in theirs)
            raise ConfigurationError(f"Expected vectors of equal length and dtype on all processes but got {shapes}.")
        self.sizes = [size for size, _, _ in theirs]
        self.first = sum(self.sizes[: rank(group)])
        self.shape = (sum(self.sizes), self.share.shape[1])

    @override
    def correlate(self, direction: Tensor) -> Tensor:
        return self._joined(self.share.correlate(direction))

    @override
    def rows(self, indices: Tensor) -> Tensor:
        return self._collected(indices, self.share.rows, self.shape[1])

    @override
    def correlate_some(self, indices: Tensor, direction: Tensor) -> Tensor:
        return self._collected(indices, lambda own: self.share.correlate_some(own, direction))

    @override
    def combine(self, indices: Tensor, weights: Tensor) -> Tensor:
        if self.device.type == "cpu" and len(indices) <= MOST_GATHERED:  # the same order of sums as in one process
            return row_sum(self.rows(indices), torch.arange(len(indices)), weights).to(self.dtype)
        mine, own = self._own(indices)
        part = self.share.combine(own, weights[mine]) if len(mine) else weights.new_zeros(self.shape[1])
        return torch.stack(gather(part, self.group)).sum(0)

    @override
    def divided(self, unit: float) -> ShardedVectors:
        return ShardedVectors(self.share.divided(unit), self.group)

    @override
    def subset(self, indices: Tensor) -> ShardedVectors:
        return ShardedVectors(self.share.subset(self._own(indices)[1]), self.group)

    @override
    def measure(self) -> tuple[Tensor, Tensor]:
        norms, total = self.share.measure()
        parts = total if total.ndim == 2 else total.unsqueeze(0)
        return self._joined(norms), torch.cat(gather_unequal(parts, self.group))

    @override
    def agree(self, value: Tensor) -> Tensor:
        return broadcast(value.to(self.device), self.group)

    @property
    @override
    def is_first(self) -> bool:
        return is_first(self.group)

    def _own(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions, among some indices (n,), of the indices that this process owns, and these as local indices."""
        check_indices(indices, self.shape[0])
        mine = ((indices >= self.first) & (indices < self.first + self.share.shape[0])).nonzero().squeeze(-1)
        return mine, indices[mine] - self.first

    def _collected(self, indices: Tensor, of_share: Callable[[Tensor], Tensor], *width: int) -> Tensor:
        """Return the values (n, *width) for some indices (n,), each from the process that owns the index."""
        # Each comes from one process; the others add zeros, which is exact.
        found = torch.zeros(len(indices), *width, dtype=self.dtype, device=self.device)
        mine, own = self._own(indices)
        if len(mine):
            found[mine] = of_share(own)
        return reduce(found, self.group)

    def _joined(self, value: Tensor) -> Tensor:
        """Return the values (n, ...) of all processes, concatenated (N, ...)."""
        return torch.cat(gather_unequal(value, self.group))
