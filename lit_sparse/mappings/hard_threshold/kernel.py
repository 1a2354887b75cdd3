"""Hard thresholding of rows: the k largest entries of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import REDUCTION_FLAGS, compile_rows, empty, layout_of
from lit_sparse.kernels.cpu.rows import choose_largest, ends_of, row_views
from lit_sparse.kernels.gpu import triton_rows
from lit_sparse.kernels.row_kernel import row_kernel

__all__ = ["chosen_product", "threshold_hard"]


@compile_rows(REDUCTION_FLAGS)
def magnitude_keys(bits: Any, row: Any, low: Any, infinite: Any, nonneg: Any, keys: Any) -> Any:
    """Write integer sort keys of a row's magnitudes, or of its positive entries; -1 for entries that must not be chosen.

    Args:
        bits: (rows, d) the bits of the entries, as integers.
        row: which row.
        low: integer of all bits but the sign.
        infinite: bits of infinity.
        nonneg: whether only positive entries may be chosen.
        keys: (1, d) integers, receives the keys.

    Returns:
        The number of entries that may be chosen, and their smallest and largest key.
    """
    none = keys.dtype.type(-1)
    count, least, most = np.int32(0), infinite, none
    for i in range(bits.shape[1]):
        key = bits[row, i] & low
        if (bits[row, i] <= 0) if nonneg else (key == infinite):
            key = none
        keys[0, i] = key
        count += np.int32(key >= 0)
        least = min(least, key if key >= 0 else infinite)
        most = max(most, key)
    return count, least, most


@compile_rows()
def threshold_block(start: Any, stop: Any, out: Any, chosen: Any, x: Any, k: Any, nonneg: Any) -> None:
    """Write rows ``start .. stop - 1`` of ``x``, all but the k largest magnitudes (or positive entries) set to zero.

    Args:
        start: first row.
        stop: row after the last one.
        out: (rows, d) receives the results.
        chosen: (rows, d) uint8 receives 1 where an entry is kept, else 0.
        x: (rows, d) entries, -inf where one is not allowed.
        k: number of entries to keep in each row.
        nonneg: whether only positive entries may be kept.
    """
    bits, cell, cell_bits = row_views(x)
    keys, zero = empty((1, x.shape[1]), bits.dtype), x.dtype.type(0)
    low, _, _, infinite = layout_of(x)
    for row in range(start, stop):
        if not ends_of(x, bits, row, out, cell, cell_bits):
            for i in range(x.shape[1]):
                chosen[row, i] = x[row, i] != -np.inf
            continue
        n, least, most = magnitude_keys(bits, row, low, infinite, nonneg, keys)
        if n > k:
            choose_largest(keys, n, k, least, most, chosen[row])
        else:
            for i in range(x.shape[1]):
                chosen[row, i] = keys[0, i] >= 0
        for i in range(x.shape[1]):
            out[row, i] = x[row, i] if chosen[row, i] else zero


@row_kernel(threshold_block, triton_rows.threshold_hard, seconds=1e-9, auxiliary=(torch.uint8,), wide=False)
def threshold_hard(x: Tensor, k: int, nonneg: bool) -> tuple[Tensor, Tensor]:
    """Return the k largest magnitudes (or positive entries) of rows x (..., d), others zero, and 1 where an entry was kept.

    Ties go to the lowest index; a row with NaN or +inf gives NaN at its allowed entries.
    """
    allowed = x != -torch.inf
    invalid = ~(x < torch.inf).all(-1, keepdim=True) & allowed
    size = torch.where(allowed & (x > 0) if nonneg else allowed, x.abs(), -1.0)
    order = size.argsort(dim=-1, descending=True, stable=True)
    first = torch.zeros_like(x).scatter(-1, order[..., :k], 1.0)
    chosen = ((first > 0) & (size >= 0)) | invalid
    return torch.where(invalid, torch.nan, torch.where(chosen, x, 0.0)), chosen.to(torch.uint8)


@compile_rows()
def product_block(start: Any, stop: Any, out: Any, v: Any, y: Any, chosen: Any) -> None:
    """Write the chosen entries of rows ``start .. stop - 1`` of ``v`` to ``out``, zeros elsewhere; NaN where y is NaN.

    Args:
        start: first row.
        stop: row after the last one.
        out: (rows, d) receives the results.
        v: (rows, d) directions.
        y: (rows, d) results of the mapping.
        chosen: (rows, d) 1 where an entry was kept, else 0.
    """
    zero, broken = v.dtype.type(0), v.dtype.type(np.nan)
    for row in range(start, stop):
        for i in range(v.shape[1]):
            value = v[row, i] if y[row, i] == y[row, i] else broken
            out[row, i] = value if chosen[row, i] else zero


@row_kernel(product_block, triton_rows.chosen_product, seconds=0.2e-9, wide=False)
def chosen_product(v: Tensor, y: Tensor, chosen: Tensor) -> Tensor:
    """Return the chosen entries of v, NaN where y is, others zero, all (..., d)."""
    return torch.where(chosen != 0, v * torch.where(y.isnan(), torch.nan, 1.0).to(v.dtype), 0.0)
