"""Functions that the row kernels share: classification of rows, results of invalid rows, selection of large entries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import REDUCTION_FLAGS, bits_of, compile_rows, layout_of

__all__ = [
    "SIMD_BLOCK",
    "count_from",
    "gather_above",
    "is_broken",
    "key_range",
    "pad",
    "plain_top",
    "row_views",
    "top_of",
    "unit_of",
    "write_invalid",
    "write_zeros",
]
SIMD_BLOCK = 32


@compile_rows(REDUCTION_FLAGS)
def key_range(bits: Any, row: Any, low: Any, shift: Any) -> Any:
    """Return the smallest and the largest order key of a row.

    An order key is an integer that orders as its float does: the bits as they are, or, below zero, all but the sign
    flipped. Integers compare without the exceptions of NaN, so this pass is vectorized and finds them too.
    """
    least, most = low, ~low
    for i in range(bits.shape[1]):
        key = bits[row, i] ^ ((bits[row, i] >> shift) & low)
        least = min(least, key)
        most = max(most, key)
    return least, most


@compile_rows(REDUCTION_FLAGS)
def count_from(bits: Any, row: Any, low: Any, shift: Any, key: Any) -> Any:
    """Return how many entries of a row have an order key of at least ``key``."""
    count = 0
    for i in range(bits.shape[1]):
        if bits[row, i] ^ ((bits[row, i] >> shift) & low) >= key:
            count += 1
    return count


@compile_rows()
def write_invalid(x: Any, row: Any, y: Any) -> None:
    """Write NaN at the allowed entries of a row that holds NaN or +inf, and 0 where a score is -inf."""
    for i in range(x.shape[1]):
        y[row, i] = x.dtype.type(0) if x[row, i] == -np.inf else x.dtype.type(np.nan)


@compile_rows()
def write_zeros(row: Any, y: Any) -> None:
    """Write zeros to a row."""
    for i in range(y.shape[1]):
        y[row, i] = 0


@compile_rows()
def row_views(x: Any) -> Any:
    """Return the bits of an array, and a cell of its type with its bits, as :func:`top_of` takes them."""
    cell = np.empty(1, x.dtype)
    return bits_of(x), cell, bits_of(cell)


@compile_rows()
def top_of(x: Any, bits: Any, row: Any, y: Any, cell: Any, cell_bits: Any) -> Any:
    """Write the largest entry of an ordinary row to ``cell[0]``; write the result of any other.

    Args:
        x: (rows, d); ``bits`` are the same as integers.
        bits: the bits of x.
        row: which row.
        y: (rows, d); receives zeros, and NaN at the allowed entries of a row that holds NaN or +inf.
        cell: (1,) of the type of x; ``cell_bits`` are the same as an integer.
        cell_bits: the bits of cell.

    Returns:
        Whether the row is ordinary: without NaN and +inf, and with an entry above -inf.
    """
    low, shift, lowest, highest = layout_of(x)
    least, most = key_range(bits, row, low, shift)
    if most >= highest or least < lowest:
        write_invalid(x, row, y)
        return False
    write_zeros(row, y)
    if most == lowest:
        return False
    cell_bits[0] = most ^ ((most >> shift) & low)
    return True


@compile_rows()
def gather_above(x: Any, row: Any, top: Any, scale: Any, limit: Any, values: Any, places: Any) -> Any:
    """Collect ``(x - top) * scale`` wherever it exceeds ``limit``, with the places; return how many there are."""
    factor, bound = x.dtype.type(scale), x.dtype.type(limit)
    n = 0
    for i in range(x.shape[1]):  # without a branch: what is not kept is overwritten by the next
        value = (x[row, i] - top) * factor
        values[n] = value
        places[n] = i
        n += value > bound
    return n


@compile_rows()
def pad(z: Any, n: Any) -> Any:
    """Fill up with -inf to whole SIMD blocks; return their total length."""
    padded = (n + SIMD_BLOCK - 1) // SIMD_BLOCK * SIMD_BLOCK
    for j in range(n, padded):
        z[j] = -np.inf
    return padded


@compile_rows()
def plain_top(x: Any, row: Any) -> Any:
    """Return the state of a row, without reading bits, and its largest entry in float64.

    The state is 0 for an ordinary row, 1 for a row without allowed entries, 2 for a row with NaN or +inf.
    """
    top, invalid = -np.inf, False
    for i in range(x.shape[1]):
        value = np.float64(x[row, i])
        invalid = invalid or value != value or value == np.inf
        top = max(top, value)
    return (2 if invalid else (1 if top == -np.inf else 0)), top


@compile_rows()
def is_broken(y: Any, row: Any) -> Any:
    """Return whether a result holds NaN."""
    broken = False
    for i in range(y.shape[1]):
        broken = broken or y[row, i] != y[row, i]
    return broken


def unit_of(size: Tensor) -> Tensor:
    """Return a power of two (..., 1) for rows of magnitudes (..., d): 1, unless squares would overflow or vanish without it."""
    exponent = round(math.log2(torch.finfo(size.dtype).max))
    largest = size.detach().amax(-1, keepdim=True)
    one, two = torch.ones_like(largest), torch.full_like(largest, 2.0)  # exports round constants to float32's smaller range
    step, bound = two ** (exponent * 3 // 4), two ** (exponent // 2)
    unit = torch.where(largest > bound, step, one)
    return torch.where((largest < 1 / bound) & (largest > 0), 1 / step, unit)
