"""SparseMAP on NVIDIA GPUs, one thread a row, from the source that also serves the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_sparse.kernels.active_set import LISTS, VECTORS, capacity_of, solve_one
from lit_sparse.kernels.cuda_rows import launch, numba_cuda, program_of

__all__ = ["solve_batch"]

cuda: Any = None  # in the function below it is numba.cuda, once it is compiled


def solve_rows(
    marginals: Any,
    bits: Any,
    probs: Any,
    sizes: Any,
    gaps: Any,
    done: Any,
    scores: Any,
    links: Any,
    first: Any,
    first_probs: Any,
    first_extra: Any,
    rows: Any,
    scratch: Any,
    matrix: Any,
    factor: Any,
    lists: Any,
    back: Any,
    slots: Any,
    kind: Any,
    budget: Any,
    tags: Any,
    max_iter: Any,
    tol: Any,
) -> None:
    """Solve one row a thread."""
    row = cuda.grid(1)
    if row < scores.shape[0]:
        solve_one(
            row, marginals, bits, probs, sizes, gaps, done, scores, kind, budget, tags, links, first, first_probs, first_extra,
            max_iter, tol, rows[row], scratch[row], matrix[row], factor[row], lists[row], back[row], slots[row],
        )  # fmt: skip


def solve_batch(
    scores: Tensor,
    kind: int,
    budget: int,
    tags: int,
    links: Tensor,
    start: tuple[Tensor, Tensor, Tensor],
    max_iter: int,
    tol: float,
) -> Any:
    """See :func:`lit_sparse.kernels.active_set.solve_batch`; arguments and results are tensors on one device.

    Returns NotImplemented where numba-cuda is not installed or finds no GPU.
    """
    if numba_cuda() is None:
        return NotImplemented
    size, d = scores.shape
    capacity = capacity_of(d, max_iter, start[0].shape[1])
    shapes: list[tuple[tuple[int, ...], torch.dtype]] = [
        ((d,), torch.float64),
        ((capacity, d), torch.uint8),
        ((capacity,), torch.float64),
        ((), torch.int64),
        ((), torch.float64),
        ((), torch.uint8),
    ]
    results = tuple(torch.empty((size, *shape), dtype=dtype, device=scores.device) for shape, dtype in shapes)
    work = [
        ((VECTORS, d), torch.float64),
        ((d,), torch.float64),
        ((capacity, d), torch.uint8),
        ((capacity, capacity), torch.float64),
        ((LISTS, capacity), torch.float64),
        ((d,), torch.int32),
        ((capacity,), torch.int32),
    ]
    batched = (*results, scores.contiguous(), links.contiguous(), *[tensor.contiguous() for tensor in start])
    launch(program_of(solve_rows), size, batched, work, (kind, budget, tags, max_iter, float(tol)))
    return results
