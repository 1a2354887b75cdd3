"""Product of the Jacobian of the Hoyer projection with a vector."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import REDUCTION_FLAGS, compile_rows, empty
from lit_sparse.kernels.cpu.rows import unit_of
from lit_sparse.kernels.gpu import triton_rows
from lit_sparse.kernels.row_kernel import row_kernel
from lit_sparse.mappings.hoyer.kernel import DOWN, TINY, UP

__all__ = ["hoyer_product"]

LARGEST_SINGLE, LARGEST_DOUBLE = float(np.finfo(np.float32).max), float(np.finfo(np.float64).max)


@compile_rows()
def signed(v: Any, y: Any, x: Any, row: Any, origin: Any, scale: Any, side: Any, push: Any) -> None:
    """Write the scaled, shifted magnitudes of a row of x, and v with the sign of y, on the support of y; zeros elsewhere.

    This is a function of its own because it must not be compiled with reassociation of sums, which would change the order of
    the two subtractions and lose digits.

    Args:
        v: (rows, d) directions.
        y: (rows, d) projections of x.
        x: (rows, d) values that were projected.
        row: which row.
        origin: magnitude that is subtracted.
        scale: factor of the differences.
        side: (d,) receives the magnitudes.
        push: (d,) receives the entries of v.
    """
    zero, factor = y.dtype.type(0), y.dtype.type(scale)
    center = origin * factor
    for i in range(y.shape[1]):
        flip = y[row, i] < zero
        side[i] = (-x[row, i] if flip else x[row, i]) * factor - center if y[row, i] != zero else zero
        push[i] = (-v[row, i] if flip else v[row, i]) if y[row, i] != zero else zero


@compile_rows()
def centered(y: Any, row: Any, center: Any, side: Any) -> None:
    """Subtract the center from ``side`` on the support of a row of y."""
    zero = y.dtype.type(0)
    for i in range(y.shape[1]):
        side[i] = side[i] - center if y[row, i] != zero else zero


@compile_rows(REDUCTION_FLAGS - {"nnan"})
def support_sums(y: Any, row: Any, side: Any, push: Any) -> Any:
    """Return the support size of a row of y, and the sums of ``side``, |y|, ``push`` and y^2 over it.

    Args:
        y: (rows, d) projections of x.
        row: which row.
        side: (d,) numbers, zero outside the support.
        push: (d,) numbers, zero outside the support.
    """
    zero = y.dtype.type(0)
    count = 0
    scores, mass, total, energy = 0.0, 0.0, 0.0, 0.0
    for i in range(y.shape[1]):
        count += y[row, i] != zero
        scores += side[i]
        total += push[i]
        mass += abs(y[row, i])
        energy += y[row, i] * y[row, i]
    return count, scores, mass, total, energy


@compile_rows(REDUCTION_FLAGS - {"nnan"})
def support_products(side: Any, push: Any) -> Any:
    """Return the sums of the distances in ``side``, of their squares, and of their products with ``push``."""
    reach, spread, product = 0.0, 0.0, 0.0
    for i in range(len(side)):
        wide = np.float64(side[i])
        reach += abs(wide)
        spread += wide * wide
        product += wide * push[i]
    return reach, spread, product


@compile_rows()
def product_block(start: Any, stop: Any, out: Any, v: Any, y: Any, x: Any, nonneg: Any) -> None:
    """Multiply rows ``start .. stop - 1`` of ``v`` by the Jacobian of the Hoyer projection at its result ``y``.

    Args:
        start: first row.
        stop: row after the last one.
        out: (rows, d) receives the products.
        v: (rows, d) directions.
        y: (rows, d) projections of x.
        x: (rows, d) values that were projected.
        nonneg: unused; the signs of y are read.
    """
    zero = y.dtype.type(0)
    side, push = empty(y.shape[1], y.dtype), empty(y.shape[1], y.dtype)
    for row in range(start, stop):
        origin = zero  # one of the entries: distances of equal ones from it are exact zeros
        for i in range(y.shape[1]):
            if y[row, i] != zero:
                origin = -x[row, i] if y[row, i] < zero else x[row, i]
                break
        scale = 1.0
        while True:
            signed(v, y, x, row, origin, scale, side, push)
            count, scores, mass, total, energy = support_sums(y, row, side, push)
            n = max(count, 1)
            center = y.dtype.type(scores / n)
            centered(y, row, center, side)
            reach, spread, product = support_products(side, push)
            if scale != 1.0 or reach == 0.0 or TINY < spread < np.inf:
                break
            scale = UP if spread <= TINY else (0.25 if y.itemsize == 4 else DOWN)
        kappa, slope = 0.0, 0.0
        if spread != 0.0:
            kappa = math.sqrt(max(energy - mass * mass / n, 0.0) / spread) if mass == mass else np.nan
            kappa = min(kappa * scale, LARGEST_SINGLE if y.itemsize == 4 else LARGEST_DOUBLE)
            slope = product / spread
        mean, factor, rate = y.dtype.type(total / n), y.dtype.type(kappa), y.dtype.type(slope)
        for i in range(y.shape[1]):
            value = factor * ((push[i] - mean) - rate * side[i])
            out[row, i] = (-value if y[row, i] < zero else value) if y[row, i] != zero else zero


@row_kernel(product_block, triton_rows.hoyer_product, seconds=0.6e-9)
def hoyer_product(v: Tensor, y: Tensor, x: Tensor, nonneg: bool) -> Tensor:
    """Return the product J v of the Jacobian of the Hoyer projection of x at its result y.

    Zero where the projection chose among equal entries: it is not differentiable there.

    Args:
        v: (..., d) directions.
        y: (..., d) projections.
        x: (..., d) values that were projected.
        nonneg: unused; the signs of y are read.
    """
    support = y != 0
    sign = torch.where(y < 0, -1.0, 1.0).to(y.dtype)
    n = support.sum(-1, keepdim=True).clamp_min(1)
    unit = unit_of(torch.where(support, x.abs(), 0.0))
    x = sign * x / unit
    largest = torch.where(support, x, -torch.inf).detach().amax(-1, keepdim=True)
    a = torch.where(support, x - largest, 0.0)  # exact zeros for equal entries
    distance = torch.where(support, a - a.sum(-1, keepdim=True) / n, 0.0)
    spread = distance.square().sum(-1, keepdim=True)
    flat = spread == 0
    spread = torch.where(flat, 1.0, spread)
    size = y.detach().abs()
    rest = (size.square().sum(-1, keepdim=True) - size.sum(-1, keepdim=True).square() / n).clamp_min(0)
    kappa = torch.where(flat, 0.0, rest.sqrt() / spread.sqrt()) / unit
    kappa = kappa.clamp_max(torch.finfo(kappa.dtype).max)
    w = torch.where(support, sign * v, 0.0)
    w = w - w.sum(-1, keepdim=True) / n - distance * ((distance * w).sum(-1, keepdim=True) / spread)
    return torch.where(support, sign * kappa * w, 0.0)
