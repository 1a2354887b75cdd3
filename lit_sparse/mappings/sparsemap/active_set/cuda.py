"""SparseMAP on NVIDIA GPUs, one thread per row, from the source that also serves the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_sparse.kernels.gpu.numba_rows import ArraySpec, launch, numba_cuda, program_of
from lit_sparse.kernels.oracles import CompiledOracle
from lit_sparse.mappings.sparsemap.active_set.batch import Solution, Start, solution_shapes, solve_block
from lit_sparse.mappings.sparsemap.active_set.row import Workspace, capacity_of, workspace_shapes

__all__ = ["solve_batch"]

cuda: Any = None  # in the function below it is numba.cuda, once it is compiled


def solve_rows(
    marginals: Any,
    structures: Any,
    probs: Any,
    sizes: Any,
    gaps: Any,
    done: Any,
    scores: Any,
    links: Any,
    first: Any,
    first_probs: Any,
    first_extra: Any,
    vectors: Any,
    matrix: Any,
    factor: Any,
    lists: Any,
    slots: Any,
    scratch: Any,
    back: Any,
    kind: Any,
    budget: Any,
    tags: Any,
    max_iter: Any,
    tol: Any,
) -> None:
    """GPU program that solves SparseMAP, one row per thread."""
    row = cuda.grid(1)
    if row < scores.shape[0]:
        solution = Solution(marginals, structures, probs, sizes, gaps, done)
        oracle, start = CompiledOracle(kind, budget, tags, links), Start(first, first_probs, first_extra)
        work = Workspace(vectors[row], matrix[row], factor[row], lists[row], slots[row], scratch[row], back[row])
        solve_block(row, row + 1, solution, scores, oracle, start, max_iter, tol, work)


def solve_batch(scores: Tensor, oracle: CompiledOracle, start: Start, max_iter: int, tol: float) -> Any:
    """Solve SparseMAP for a batch on an NVIDIA GPU; return NotImplemented without numba-cuda or a GPU.

    Arguments and results are as for :func:`lit_sparse.mappings.sparsemap.active_set.batch.solve_batch`, with tensors on one
    device.
    """
    if numba_cuda() is None:
        return NotImplemented
    size, d = scores.shape
    capacity = capacity_of(d, max_iter, start.structures.shape[1])
    outs = [((size, *shape), getattr(torch, dtype)) for shape, dtype in solution_shapes(d, capacity)]
    solution = Solution(*[torch.empty(shape, dtype=dtype, device=scores.device) for shape, dtype in outs])
    work: list[ArraySpec] = [(shape, getattr(torch, dtype)) for shape, dtype in workspace_shapes(d, capacity)]
    tensors = (*solution, *[tensor.contiguous() for tensor in (scores, oracle.links, *start)])
    launch(program_of(solve_rows), size, tensors, work, (oracle.kind, oracle.budget, oracle.tags, max_iter, float(tol)))
    return solution
