"""The Cholesky factor of a matrix that grows and shrinks by a row and column: what least squares on a changing support needs.

The factor L of the matrix ``L L^T`` is the lower triangle of the first n rows of a larger array. The arrays are small and stay
on the CPU, also if the vectors, whose products the matrix holds, are on another device.
"""

from __future__ import annotations

import math
from typing import Any

from lit_sparse.kernels.cpu.compile import compile_rows

__all__ = ["grow", "shrink", "solve"]


@compile_rows()
def grow(factor: Any, n: int, column: Any, diagonal: float, least: float) -> float:
    """Append a row and column to the Cholesky factor of an n x n matrix; return the square of the new pivot.

    Args:
        factor: (C, C) with C > n, changed in place where the square of the pivot is above ``least``.
        n: present size of the matrix.
        column: (n,) inner products of the new vector with the others.
        diagonal: inner product of the new vector with itself.
        least: smallest squared pivot; below it, the new vector counts as linearly dependent.
    """
    squares = 0.0
    for i in range(n):
        value = column[i]
        for j in range(i):
            value -= factor[i, j] * factor[n, j]
        value /= factor[i, i]
        factor[n, i] = value
        squares += value * value
    pivot = diagonal - squares
    if pivot > least:
        factor[n, n] = math.sqrt(pivot)
    return pivot


@compile_rows()
def shrink(factor: Any, n: int, which: int) -> None:
    """Remove a row and column from the Cholesky factor of an n x n matrix, by Givens rotations.

    Args:
        factor: (C, C), changed in place; its first n - 1 rows are the new factor.
        n: size of the matrix.
        which: index of the row.
    """
    for i in range(which, n - 1):
        for j in range(i + 2):
            factor[i, j] = factor[i + 1, j]
    for i in range(which, n - 1):
        here, beside = factor[i, i], factor[i, i + 1]
        length = math.hypot(here, beside)
        cosine, sine = here / length, beside / length
        factor[i, i] = length
        factor[i, i + 1] = 0.0
        for row in range(i + 1, n - 1):
            left, right = factor[row, i], factor[row, i + 1]
            factor[row, i] = cosine * left + sine * right
            factor[row, i + 1] = cosine * right - sine * left


@compile_rows()
def solve(factor: Any, n: int, values: Any) -> None:
    """Solve a linear system by the Cholesky factor of its n x n matrix.

    Args:
        factor: (C, C), whose first n rows are the factor.
        n: size of the matrix.
        values: (n,) right-hand side, replaced by the solution.
    """
    for i in range(n):
        value = values[i]
        for j in range(i):
            value -= factor[i, j] * values[j]
        values[i] = value / factor[i, i]
    for i in range(n - 1, -1, -1):
        values[i] /= factor[i, i]
        for j in range(i):
            values[j] -= factor[i, j] * values[i]
