"""Weighted sums, products, norms and exact sums of rows of a matrix, without a copy of them.

Rows are spread over memory, so that what counts is how often each is read. Sums are float64 and do not depend on the
number of threads. The products and norms of a row do not depend on other rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.checks import check_indices, check_tensor
from lit_sparse.ground.torch_internals import on_values
from lit_sparse.kernels.cpu.compile import compile_rows
from lit_sparse.kernels.cpu.threads import over_rows

__all__ = ["add_exactly", "measured", "row_products", "row_sum"]

#: Number of partial sums over rows, independent of the number of threads.
PARTS = 16
#: Seconds an entry takes.
COST = 4e-10


@compile_rows()
def _sum_parts(start: int, stop: int, parts: Any, matrix: Any, indices: Any, weights: Any) -> None:
    for part in range(start, stop):
        first, last = len(indices) * part // len(parts), len(indices) * (part + 1) // len(parts)
        fours = last - (last - first) % 4
        # Four rows at once: memory answers several questions in the time of one.
        for i in range(first, fours, 4):
            a, b, c, d = indices[i], indices[i + 1], indices[i + 2], indices[i + 3]
            of_a, of_b, of_c, of_d = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
            for j in range(matrix.shape[1]):
                parts[part, j] += (of_a * matrix[a, j] + of_b * matrix[b, j]) + (of_c * matrix[c, j] + of_d * matrix[d, j])
        for i in range(fours, last):
            row, weight = indices[i], weights[i]
            for j in range(matrix.shape[1]):
                parts[part, j] += weight * matrix[row, j]


@compile_rows(frozenset({"reassoc", "contract"}))
def _products(start: int, stop: int, out: Any, matrix: Any, indices: Any, direction: Any) -> None:
    for i in range(start, stop):
        row = i if indices is None else indices[i]  # decided when it is compiled
        product = 0.0
        for j in range(matrix.shape[1]):
            product += matrix[row, j] * direction[j]
        out[i] = product


@compile_rows()
def _measure(start: int, stop: int, norms: Any, sums: Any, errors: Any, matrix: Any) -> None:
    for part in range(start, stop):
        for i in range(len(matrix) * part // len(sums), len(matrix) * (part + 1) // len(sums)):
            square = 0.0
            for j in range(matrix.shape[1]):
                entry = np.float64(matrix[i, j])
                square += entry * entry
                before = sums[part, j]
                after = before + entry
                added = after - before
                errors[part, j] += (before - (after - added)) + (entry - added)  # what rounding took from the sum
                sums[part, j] = after
            norms[i] = np.sqrt(square)


@on_values
def row_sum(matrix: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of some rows of a matrix, ``sum_i weights_i matrix[indices_i]``, (S,) float64.

    Args:
        matrix: (N, S) contiguous float32 or float64 on the CPU.
        indices: (n,) int64.
        weights: (n,).

    Raises:
        ConfigurationError: for weights of another shape.
        IndexError: for an index outside 0 .. N - 1.
    """
    check_indices(indices, len(matrix))
    check_tensor(weights, f"real weights ({len(indices)},), one per index,", shape=indices.shape)
    parts = torch.zeros(PARTS, matrix.shape[1], dtype=torch.float64)
    arrays = (parts.numpy(), matrix.numpy(), indices.numpy(), weights.double().numpy())
    over_rows(_sum_parts, (PARTS, len(indices) * matrix.shape[1] // PARTS), COST, *arrays)
    return parts.sum(0)


@on_values
def row_products(matrix: Tensor, indices: Tensor | None, direction: Tensor) -> Tensor:
    """Return the inner products (n,) float64 of some rows of a matrix with a direction.

    Args:
        matrix: (N, S) contiguous float32 or float64 on the CPU.
        indices: (n,) int64; None for all rows.
        direction: (S,).

    Raises:
        ConfigurationError: for a direction of another shape.
        IndexError: for an index outside 0 .. N - 1.
    """
    check_tensor(direction, f"a real direction ({matrix.shape[1]},)", shape=matrix.shape[1:])
    chosen = None if indices is None else check_indices(indices, len(matrix)).numpy()
    out = torch.empty(len(matrix) if chosen is None else len(chosen), dtype=torch.float64)
    arrays = (out.numpy(), matrix.numpy(), chosen, direction.double().numpy())
    over_rows(_products, (len(out), matrix.shape[1]), COST, *arrays)
    return out


@on_values
def measured(matrix: Tensor, norms: Tensor) -> Tensor:
    """Write the Euclidean norms of all rows, and return their sum as two parts (2, S) for :func:`add_exactly`.

    Args:
        matrix: (N, S) contiguous float32 or float64 on the CPU, finite.
        norms: (N,) float64.
    """
    sums, errors = torch.zeros(2, PARTS, matrix.shape[1], dtype=torch.float64)
    arrays = (norms.numpy(), sums.numpy(), errors.numpy(), matrix.numpy())
    over_rows(_measure, (PARTS, len(matrix) * matrix.shape[1] // PARTS), COST, *arrays)
    return add_exactly(torch.cat([sums, errors]))


def add_exactly(parts: Tensor) -> Tensor:
    """Return the sum of rows (p, S) as two rows (2, S): the correctly rounded sum, and its remaining error.

    Sums of such sums therefore do not depend on how rows were divided, as if they were rounded once, at the end.

    Args:
        parts: (p, S) float64.

    Source: Ogita, Rump & Oishi (2005), Accurate Sum and Dot Product, doi:10.1137/030601818.

    Example:
        >>> add_exactly(torch.tensor([[1e16], [1.0], [-1e16]], dtype=torch.float64))[
        ...     0
        ... ].item()
        1.0
    """
    total, error = torch.zeros_like(parts[0]), torch.zeros_like(parts[0])
    for part in (*parts, None):
        entry = error if part is None else part
        after = total + entry
        added = after - total
        lost = (total - (after - added)) + (entry - added)
        total, error = after, lost if part is None else error + lost
    return torch.stack([total, error])
