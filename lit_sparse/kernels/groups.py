"""The Jacobian of mappings that tie entries together: averages over groups, around the mean of the support.

A label holds the number of a group in its higher bits and a code in its three lowest, as :func:`label_of` packs them.
``-1`` marks an entry without a group, on which the result does not depend.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import compile_rows, empty, zeros
from lit_sparse.kernels.cpu.rows import write_invalid, write_zeros
from lit_sparse.kernels.row_kernel import row_kernel
from lit_sparse.kernels.simplex import center_on_support, support_sums

__all__ = ["average_groups", "code_of", "group_product", "label_of", "write_invalid_labels"]


@compile_rows()
def label_of(group: Any, code: Any) -> Any:
    """Return a label that packs a group's number and a code in -2 .. 2."""
    return (group << 3) | (code + 2)


@compile_rows()
def write_invalid_labels(x: Any, row: Any, broken: Any, out: Any, labels: Any) -> None:
    """Write result and labels of a row that cannot be mapped: zeros if nothing is allowed, NaN in one group if it is broken.

    Args:
        x: (rows, d) scores, -inf where an entry is not allowed.
        row: which row.
        broken: whether the row has NaN or +inf, or an invalid parameter.
        out: (rows, d) receives the results.
        labels: (rows, d) int32 receives the labels.
    """
    if broken:
        write_invalid(x, row, out)
    else:
        write_zeros(row, out)
    for i in range(x.shape[1]):
        labels[row, i] = label_of(0, 0) if out[row, i] != 0 else -1


def code_of(labels: Tensor) -> Tensor:
    """Return the codes in -2 .. 2 that are packed in labels, a tensor of the same shape."""
    return (labels & 7) - 2


def group_sums(v: Tensor, ids: Tensor) -> Tensor:
    """Return (..., d), for each entry the sum of v over its group ``ids``, in differentiable operations.

    Args:
        v: (..., d).
        ids: (..., d) int64, the group of each entry, 0 .. d - 1.
    """
    return torch.zeros_like(v).scatter_add(-1, ids, v).gather(-1, ids)


def average_groups(v: Tensor, labels: Tensor, signed: bool) -> Tensor:
    """Return (..., d), for each entry the signed average of v over its group, in differentiable operations.

    Args:
        v: (..., d).
        labels: (..., d) int32.
        signed: whether negative codes mean a negative sign; v is multiplied by the sign before and after averaging.
    """
    sign = (labels >= 0).to(v.dtype)  # 0 for entries without a group
    if signed:
        sign = torch.where(code_of(labels) < 0, -sign, sign)
    ids = (labels >> 3).clamp_min(0).long()
    mean = group_sums(torch.where(sign != 0, sign * v, 0.0), ids) / group_sums(sign.abs(), ids).clamp_min(1)
    return torch.where(sign != 0, sign * mean, 0.0)


@compile_rows()
def product_block(start: Any, stop: Any, out: Any, v: Any, y: Any, labels: Any, gamma: Any, signed: Any) -> None:
    """Multiply rows of ``v`` by the transposed Jacobian of a mapping that ties entries together, at its result ``y``.

    Args:
        start: first row.
        stop: row after the last one.
        out: (rows, d) receives the products.
        v: (rows, d) directions.
        y: (rows, d) results of the mapping.
        labels: (rows, d) labels of the results.
        gamma: strength of the regularizer.
        signed: whether negative codes mean a negative sign.
    """
    d = y.shape[1]
    sums, counts = zeros(d, np.float64), zeros(d, np.int64)
    members, groups = empty(d, np.int32), empty(d, np.int32)
    zero = y.dtype.type(0)
    for row in range(start, stop):
        total, count, mass = support_sums(y, v, row)
        mean, n = total / count if mass == mass and count > 0 else np.nan, 0
        for i in range(d):  # without a branch
            out[row, i] = zero
            members[n] = i
            n += labels[row, i] >= 0
        for j in range(n):
            i = members[j]
            group = labels[row, i] >> 3
            sign = -1.0 if signed and (labels[row, i] & 7) < 2 else 1.0
            groups[j] = group
            counts[group] += 1
            if y[row, i] != zero:
                sums[group] += sign * (v[row, i] - mean)
        for j in range(n):
            i, group = members[j], groups[j]
            sign = -1.0 if signed and (labels[row, i] & 7) < 2 else 1.0
            out[row, i] = sign * sums[group] / (counts[group] * gamma)
        for j in range(n):
            sums[groups[j]] = 0.0
            counts[groups[j]] = 0


@row_kernel(product_block, seconds=1.5e-9)
def group_product(v: Tensor, y: Tensor, labels: Tensor, gamma: float, signed: bool) -> Tensor:
    """Return v (..., d), centered on the support of y and averaged over the groups of the labels, divided by gamma."""
    return average_groups(center_on_support.reference(v, y, gamma), labels, signed)
