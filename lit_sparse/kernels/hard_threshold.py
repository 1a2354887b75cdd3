"""Hard thresholding of rows: the k largest entries of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import bits_of, compile_rows, layout_of
from lit_sparse.kernels.cpu.rows import count_from, row_views, top_of
from lit_sparse.kernels.cpu.threads import over_rows
from lit_sparse.kernels.row_kernel import RowKernel

__all__ = ["threshold_hard"]

SECONDS = 4e-9  # for one element, on one thread


@compile_rows()
def threshold_block(start: Any, stop: Any, out: Any, chosen: Any, x: Any, k: Any, nonneg: Any) -> None:
    """Keep the k largest magnitudes, or the k largest positive entries, of rows ``start .. stop - 1``."""
    d = x.shape[1]
    bits, cell, cell_bits = row_views(x)
    size = np.empty((1, d), x.dtype)
    size_bits, places = bits_of(size), np.empty(d, np.int32)
    low, shift, _, highest = layout_of(x)
    for row in range(start, stop):
        for i in range(d):
            chosen[row, i] = x[row, i] != -np.inf
        if not top_of(x, bits, row, out, cell, cell_bits):
            continue
        n = 0
        for i in range(d):
            value = x[row, i]
            size[0, n] = value if nonneg else abs(value)
            places[n] = i
            chosen[row, i] = 0
            n += value > 0 if nonneg else value != -np.inf
        key = size_bits.dtype.type(-1)
        if n > k:  # the largest key that k entries reach: the bits of magnitudes order as they do
            for j in range(n, d):
                size[0, j] = 0
            below = highest
            key = size_bits.dtype.type(0)
            while key + 1 < below:
                middle = (key & below) + ((key ^ below) >> size_bits.dtype.type(1))
                if count_from(size_bits, 0, low, shift, middle) >= k:
                    key = middle
                else:
                    below = middle
        left = k
        for j in range(n):
            left -= size_bits[0, j] > key
        for j in range(n):
            keep = size_bits[0, j] > key
            if size_bits[0, j] == key and left > 0:
                keep = True
                left -= 1
            if keep:
                out[row, places[j]] = x[row, places[j]]
                chosen[row, places[j]] = 1


def _threshold_cpu(
    out: np.ndarray[Any, Any], chosen: np.ndarray[Any, Any], x: np.ndarray[Any, Any], k: int, nonneg: bool
) -> None:
    over_rows(threshold_block, x.shape, SECONDS, out, chosen, x, k, nonneg)


def _threshold_reference(x: Tensor, k: int, nonneg: bool) -> tuple[Tensor, Tensor]:
    allowed = x != -torch.inf
    invalid = ~(x < torch.inf).all(-1, keepdim=True) & allowed
    size = torch.where(allowed & (x > 0) if nonneg else allowed, x.abs(), -1.0)
    order = size.argsort(dim=-1, descending=True, stable=True)
    first = torch.zeros_like(x).scatter(-1, order[..., :k], 1.0)
    chosen = ((first > 0) & (size >= 0)) | invalid
    return torch.where(invalid, torch.nan, torch.where(chosen, x, 0.0)), chosen.to(torch.uint8)


threshold_hard = RowKernel(
    "threshold_hard",
    "(Tensor x, int k, bool nonneg) -> (Tensor, Tensor)",
    _threshold_cpu,
    _threshold_reference,
    auxiliary=(torch.uint8,),
    wide=False,
)
"""Row kernel ``(x (..., d), k, nonneg) -> (y, chosen)``: the k largest magnitudes (or positive entries) of a row, others zero.

``chosen`` is 1 where an entry was kept. Ties go to the lowest index; a row with NaN or +inf gives NaN at its allowed entries.
"""
