"""The rows of the Jacobian of alpha-entmax, compiled.

With ``s = y^(2 - alpha)`` it is ``s (v - sum s v / sum s) / gamma`` on the support of the result y.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lit_sparse.kernels.cpu.compile import REDUCTION_FLAGS, compile_rows, empty
from lit_sparse.kernels.cpu.vector_math import exponentials, logarithms, workspace
from lit_sparse.mappings.entmax.forward import FLAT, is_power
from lit_sparse.mappings.entmax.steep import steep_product

__all__ = ["product_block", "root_product_block"]


@compile_rows(REDUCTION_FLAGS - {"nnan"})
def root_sums(y: Any, v: Any, row: Any, fourth: Any) -> Any:
    """Return the sums of ``s`` and of ``s v`` over the support of a row; s is sqrt(y), or y^(3/4) if ``fourth``.

    Args:
        y: (rows, d) results of the mapping.
        v: (rows, d) directions.
        row: which row.
        fourth: whether alpha is 1.25, and not 1.5.
    """
    mass, total, zero = 0.0, 0.0, y.dtype.type(0)
    for i in range(y.shape[1]):
        s = np.sqrt(y[row, i])
        s = s * np.sqrt(s) if fourth else s
        mass += s
        total += s * v[row, i] if y[row, i] != zero else zero
    return mass, total


@compile_rows()
def write_root_product(y: Any, v: Any, row: Any, fourth: Any, mean: Any, scale: Any, out: Any) -> None:
    """Write ``s (v - mean) scale`` to the support of a row; s is sqrt(y), or y^(3/4) if ``fourth``.

    Args:
        y: (rows, d) results of the mapping.
        v: (rows, d) directions.
        row: which row.
        fourth: whether alpha is 1.25, and not 1.5.
        mean: mean of v, weighted by s.
        scale: factor of the product.
        out: (rows, d) receives the products.
    """
    zero, center, factor = y.dtype.type(0), y.dtype.type(mean), y.dtype.type(scale)
    for i in range(y.shape[1]):
        s = np.sqrt(y[row, i])
        s = s * np.sqrt(s) if fourth else s
        out[row, i] = s * (v[row, i] - center) * factor if y[row, i] != zero else zero


@compile_rows(REDUCTION_FLAGS - {"nnan"})
def weighted_sums(work: Any, v: Any, n: Any) -> Any:
    """Return the sums of the first n weights s in ``work`` and of ``s v``."""
    mass, total = 0.0, 0.0
    for j in range(n):
        mass += work[0, j]
        total += work[0, j] * v[j]
    return mass, total


@compile_rows()
def root_product_block(start: Any, stop: Any, out: Any, v: Any, y: Any, alphas: Any, gamma: Any) -> None:
    """Multiply the rows of ``v`` with alpha 1.5 or 1.25, among ``start .. stop - 1``, by the Jacobian of entmax at ``y``.

    Args:
        start: first row.
        stop: row after the last one.
        out: (rows, d) receives the products.
        v: (rows, d) directions.
        y: (rows, d) results of the mapping.
        alphas: (rows,) alphas, or (1,) for one that all rows share.
        gamma: strength of the regularizer.
    """
    for row in range(start, stop):
        alpha = alphas[row if len(alphas) > 1 else 0]
        if is_power(alpha):
            mass, total = root_sums(y, v, row, alpha == 1.25)
            write_root_product(y, v, row, alpha == 1.25, total / mass, 1.0 / gamma, out)


@compile_rows()
def product_block(start: Any, stop: Any, out: Any, v: Any, y: Any, alphas: Any, gamma: Any, steep: Any) -> None:
    """Multiply rows of ``v``, among ``start .. stop - 1``, by the Jacobian at ``y``: those with alpha not 1.5 or 1.25.

    Args:
        start: first row.
        stop: row after the last one.
        out: (rows, d) receives the products.
        v: (rows, d) directions.
        y: (rows, d) results of the mapping.
        alphas: (rows,) alphas, or (1,) for one that all rows share.
        gamma: strength of the regularizer.
        steep: None for the rows with alpha <= 2; else those with alpha > 2 are multiplied.
    """
    d, zero = y.shape[1], y.dtype.type(0)
    places, u = empty(d, np.int64), empty(d, y.dtype)
    work, bits = workspace(y, d)
    scale = y.dtype.type(1.0 / gamma)
    for row in range(start, stop):
        alpha = alphas[row if len(alphas) > 1 else 0]
        eps = alpha - 1.0
        if is_power(alpha) or (eps > 1.0) == (steep is None):
            continue
        n = 0
        for i in range(d):  # without a branch: the next overwrites what does not count
            work[0, n] = y[row, i]
            u[n] = v[row, i]
            places[n] = i
            n += y[row, i] != zero
            out[row, i] = zero
        if steep is not None:  # decided when it is compiled
            steep_product(v, y, row, 1.0 - eps, n, scale, places, u, work, bits, out)
            continue
        if eps == 1.0:
            for j in range(n):
                work[0, j] = work[0, j] / work[0, j]
        elif abs(eps) > FLAT:
            power = y.dtype.type(1.0 - eps)
            logarithms(work, bits, n)
            for j in range(n):
                work[0, j] = work[0, j] * power
            exponentials(work, bits, n)
        mass, total = weighted_sums(work, u, n)
        mean = y.dtype.type(total / mass)
        if n > 0 and y[row, places[0]] != y[row, places[0]]:  # no bit trick of a logarithm lets NaN through
            mean = y.dtype.type(np.nan)
        for j in range(n):
            out[row, places[j]] = work[0, j] * (u[j] - mean) * scale
