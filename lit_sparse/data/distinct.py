"""Random subsets, row by row, from given draws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_sparse.ground.torch_internals import on_values
from lit_sparse.kernels.cpu.compile import compile_rows
from lit_sparse.kernels.cpu.threads import over_rows

__all__ = ["distinct"]

SECONDS = 4e-9  # for one number, on one thread


@compile_rows()
def _distinct_block(start: Any, stop: Any, out: Any, draws: Any, sizes: Any) -> None:
    """Write the distinct numbers of rows ``start .. stop - 1``, by Floyd's algorithm."""
    count = draws.shape[1]
    for row in range(start, stop):
        for i in range(count):
            last = sizes[row] - count + i
            number = min(int(draws[row, i] * (last + 1)), last)
            for j in range(i):
                if out[row, j] == number:
                    number = last
                    break
            out[row, i] = number


@on_values
def distinct(draws: Tensor, sizes: Tensor) -> Tensor:
    """Return n distinct integers (B, n) of ``0 .. size - 1`` per row, all subsets equally likely, by Floyd's algorithm.

    Args:
        draws: (B, n) float64, uniform in [0, 1), on the CPU.
        sizes: (B,) int64 sizes, at least n.

    Example:
        >>> sorted(
        ...     distinct(
        ...         torch.tensor([[0.1, 0.9, 0.2]], dtype=torch.float64), torch.tensor([3])
        ...     )[0].tolist()
        ... )
        [0, 1, 2]
    """
    out = torch.empty(draws.shape, dtype=torch.int64)
    over_rows(_distinct_block, draws.shape, SECONDS, out.numpy(), draws.contiguous().numpy(), sizes.contiguous().numpy())
    return out
