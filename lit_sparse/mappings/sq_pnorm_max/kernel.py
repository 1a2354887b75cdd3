"""sq-pnorm-max of rows, and its Jacobian.

With ``z = (x - max x) / gamma``, ``r = 1 / (p - 1)`` and ``m = (z - tau)_+`` the result is ``y = m^r / sum m^r``, where tau in
[-1, 0) solves ``G = sum m^r / (sum m^(r + 1))^((2 - p) / p) = 1``. G is homogeneous of degree one in m, as a norm is, so that
Newton's method needs a few passes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import REDUCTION_FLAGS, compile_rows, empty
from lit_sparse.kernels.cpu.rows import (
    SIMD_BLOCK,
    gather_above,
    next_in_bracket,
    normalized,
    pad,
    row_views,
    scaled_scores,
    top_of,
    write_invalid,
)
from lit_sparse.kernels.cpu.vector_math import exponentials, logarithms, logarithms_of_one_plus, workspace
from lit_sparse.kernels.loops import bisect
from lit_sparse.kernels.row_kernel import row_kernel

__all__ = ["map_pnorm", "pnorm_product"]

NEWTON_PASSES, PASSES, REFERENCE_PASSES = 30, 120, 64


@compile_rows(frozenset({"contract"}))
def powers(z: Any, n: Any, r: Any, depth: Any, work: Any, bits: Any) -> None:
    """Write ``(m / max m)^r`` of the first n scores to ``work[0]``, where ``m / max m = 1 + z / depth`` and depth = -tau.

    Args:
        z: (>= n,) scaled scores ``(x - max x) / gamma``.
        n: number of scores.
        r: 1 / (p - 1).
        depth: -tau, > 0.
        work: (3, >= n) workspace; see :func:`~lit_sparse.kernels.cpu.vector_math.workspace`.
        bits: the memory of ``work`` as integers.
    """
    scale, one, zero = z.dtype.type(1.0 / depth), z.dtype.type(1), z.dtype.type(0)
    if r == 2.0:
        for j in range(n):
            m = one + z[j] * scale
            work[0, j] = m * m if m > zero else zero
    else:
        least = z.dtype.type(-0.99999994 if z.itemsize == 4 else -0.9999999999999998)
        power = z.dtype.type(r)
        for j in range(n):
            work[0, j] = max(z[j] * scale, least)
        logarithms_of_one_plus(work, bits, n)
        for j in range(n):
            work[0, j] = work[0, j] * power
        exponentials(work, bits, n)
        for j in range(n):
            work[0, j] = work[0, j] if z[j] * scale > -one else zero


@compile_rows(REDUCTION_FLAGS)
def moments(z: Any, n: Any, depth: Any, work: Any) -> Any:
    """Return the sums of ``u / m``, ``u`` and ``u m``, where m is divided by its maximum and ``u = m^r`` is in ``work[0]``.

    Args:
        z: (>= n,) scaled scores ``(x - max x) / gamma``.
        n: number of scores.
        depth: -tau, > 0.
        work: (3, >= n) workspace; its first row holds the powers.
    """
    scale, one, zero = z.dtype.type(1.0 / depth), z.dtype.type(1), z.dtype.type(0)
    low, middle, high = 0.0, 0.0, 0.0
    for j in range(n):
        m = one + z[j] * scale
        u = work[0, j]
        middle += u
        high += u * m if m > zero else zero
        low += u / m if m > zero else zero
    return low, middle, high


@compile_rows()
def solve(z: Any, n: Any, size: Any, p: Any, work: Any, bits: Any) -> Any:
    """Find the threshold of sq-pnorm-max for n scaled scores z; leave the powers there in ``work[0]`` and return their sum.

    Args:
        z: (>= n,) scaled scores ``(x - max x) / gamma``.
        n: number of scores, including -inf at the end.
        size: number of scores without those.
        p: exponent of the norm, in (1, 2].
        work: (3, >= n) workspace; see :func:`~lit_sparse.kernels.cpu.vector_math.workspace`.
        bits: the memory of ``work`` as integers.
    """
    r = 1.0 / (p - 1.0)
    tolerance = 1e-5 if z.itemsize == 4 else 1e-10  # of the last step; what it leaves behind is its square
    lower, upper = -1.0, -math.exp(-2.0 * (p - 1.0) / p * math.log(size))
    tau, total = 0.5 * (lower + upper), 1.0
    for i in range(PASSES):
        powers(z, n, r, -tau, work, bits)
        low, total, high = moments(z, n, -tau, work)
        shape = total * math.exp(-(2.0 - p) / p * math.log(high))  # G is depth times this
        value = -tau * shape
        slope = shape * (-r * low / total + (r - 1.0) * total / high)
        ahead = tau - (value - 1.0) / slope if slope < 0.0 else np.inf
        lower, upper, ahead = next_in_bracket(tau, value >= 1.0, lower, upper, ahead, i <= NEWTON_PASSES)
        step, tau = abs(ahead - tau), ahead
        if step <= tolerance * -tau or upper - lower <= -1e-16 * lower:
            break
    powers(z, n, r, -tau, work, bits)
    low, total, high = moments(z, n, -tau, work)
    return total


@compile_rows()
def map_block(start: Any, stop: Any, out: Any, x: Any, ps: Any, gamma: Any) -> None:
    """Write the sq-pnorm-max of rows ``start .. stop - 1`` of ``x`` to ``out``.

    Args:
        start: first row.
        stop: row after the last one.
        out: (rows, d) receives the results.
        x: (rows, d) scores, -inf where an entry is not allowed.
        ps: (rows,) exponents p in (1, 2], or (1,) for one that all rows share.
        gamma: strength of the regularizer.
    """
    d = x.shape[1] + SIMD_BLOCK
    bits, cell, cell_bits = row_views(x)
    z, places = empty(d, x.dtype), empty(d, np.int32)
    work, work_bits = workspace(x, d)
    for row in range(start, stop):
        if not top_of(x, bits, row, out, cell, cell_bits):
            continue
        p = ps[row if len(ps) > 1 else 0]
        if not 1.0 < p <= 2.0:
            write_invalid(x, row, out)
            continue
        n = gather_above(x, row, cell[0], 1.0 / gamma, -1.0, z, places)
        scale = x.dtype.type(1.0 / solve(z, pad(z, n), n, p, work, work_bits))
        for j in range(n):
            out[row, places[j]] = work[0, j] * scale


@row_kernel(map_block, seconds=4e-9)
def map_pnorm(x: Tensor, p: float | Tensor, gamma: float) -> Tensor:
    """Return sq-pnorm-max of ``x / gamma`` (..., d); p is (..., 1) or a number.

    ``-inf`` marks an entry that is not allowed; a row without allowed entries gives zeros, a row with NaN or +inf, or a p
    outside (1, 2], gives NaN at its allowed entries.

    This definition bisects for the threshold.
    """
    p = torch.as_tensor(p, dtype=x.dtype, device=x.device)
    r = 1 / (p - 1)
    z, allowed, invalid = scaled_scores(x, gamma, ~((p > 1) & (p <= 2)))

    def powers(tau: Tensor, z: Tensor, allowed: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        m = torch.where(allowed, (1 - z / tau), 0.0).clamp_min(0)
        return m, torch.where(m > 0, m, 1.0).pow(r) * (m > 0)

    def above(tau: Tensor, p: Tensor, *constants: Tensor) -> Tensor:
        m, u = powers(tau, *constants)
        return -tau * u.sum(-1, keepdim=True) >= (u * m).sum(-1, keepdim=True) ** ((2 - p) / p)

    ends = torch.full_like(z[..., :1], -1.0), torch.full_like(z[..., :1], -torch.finfo(x.dtype).tiny)
    lower = bisect(above, *ends, (p, z, allowed, r), REFERENCE_PASSES)
    return normalized(powers(lower, z, allowed, r)[1], allowed, invalid)


@compile_rows(REDUCTION_FLAGS - {"nnan"})
def product_sums(y: Any, u: Any, work: Any, n: Any) -> Any:
    """Return the sums of the powers s in ``work[0]``, of ``s u``, and of ``y u``.

    Args:
        y: (>= n,) results on the support.
        u: (>= n,) entries of v on the support.
        work: (3, >= n) workspace; its first row holds ``s = y^(2 - p)``.
        n: support size.
    """
    mass, weighted, plain = 0.0, 0.0, 0.0
    for j in range(n):
        mass += work[0, j]
        weighted += work[0, j] * u[j]
        plain += y[j] * u[j]
    return mass, weighted, plain


@compile_rows()
def product_block(start: Any, stop: Any, out: Any, v: Any, y: Any, ps: Any, gamma: Any) -> None:
    """Multiply rows ``start .. stop - 1`` of ``v`` by the Jacobian of sq-pnorm-max at its result ``y``.

    Args:
        start: first row.
        stop: row after the last one.
        out: (rows, d) receives the products.
        v: (rows, d) directions.
        y: (rows, d) results of the mapping.
        ps: (rows,) exponents p in (1, 2], or (1,) for one that all rows share.
        gamma: strength of the regularizer.
    """
    d = y.shape[1]
    places = empty(d, np.int32)
    u, support = empty(d, y.dtype), empty(d, y.dtype)
    work, bits = workspace(y, d)
    zero = y.dtype.type(0)
    for row in range(start, stop):
        p = ps[row if len(ps) > 1 else 0]
        n = 0
        for i in range(d):
            support[n] = y[row, i]
            u[n] = v[row, i]
            places[n] = i
            n += y[row, i] != zero
            out[row, i] = zero
        power = y.dtype.type(2.0 - p)
        if p == 1.5:
            for j in range(n):
                work[0, j] = np.sqrt(support[j])
        else:
            for j in range(n):
                work[0, j] = support[j]
            logarithms(work, bits, n)
            for j in range(n):
                work[0, j] = work[0, j] * power
            exponentials(work, bits, n)
        norm = 0.0  # sum y^p, from y^(2 - p): y^p = y^2 / y^(2 - p)
        for j in range(n):
            norm += support[j] * support[j] / work[0, j]
        norm = norm ** (1.0 / p)
        mass, weighted, plain = product_sums(support, u, work, n)
        lift, kappa = norm ** (p - 2.0), (2.0 - p) / (norm * norm)
        mean = (lift * weighted - kappa * plain) / (lift * mass - kappa)
        scale = 1.0 / (gamma * (p - 1.0))
        a, b = y.dtype.type(scale * lift), y.dtype.type(scale * kappa * (plain - mean))
        center = y.dtype.type(mean)
        for j in range(n):
            out[row, places[j]] = a * work[0, j] * (u[j] - center) - b * support[j]


@row_kernel(product_block, seconds=1e-9)
def pnorm_product(v: Tensor, y: Tensor, p: float | Tensor, gamma: float) -> Tensor:
    """Return ``J v``, where J is the Jacobian of sq-pnorm-max at its result y.

    With ``n = ||y||_p``, ``s = (y / n)^(2 - p)`` and ``kappa = (2 - p) / n^2`` on the support, it is
    ``(s (v - mean) - kappa y (<y, v> - mean)) / (gamma (p - 1))``, where the mean is such that its entries sum to zero.

    Args:
        v: (..., d) vectors.
        y: (..., d) results of sq-pnorm-max.
        p: exponent of the norm.
        gamma: strength of the regularizer.
    """
    p = torch.as_tensor(p, dtype=y.dtype, device=y.device)
    support = y != 0
    size = torch.where(support, y, 1.0)
    v = torch.where(support, v, 0.0)
    norm = torch.where(support, size**p, 0.0).sum(-1, keepdim=True).clamp_min(torch.finfo(y.dtype).tiny) ** (1 / p)
    s = torch.where(support, (size / norm) ** (2 - p), 0.0)
    kappa = (2 - p) / norm.square()
    plain = (y * v).sum(-1, keepdim=True)
    rest = s.sum(-1, keepdim=True) - kappa
    mean = ((s * v).sum(-1, keepdim=True) - kappa * plain) / torch.where(support.any(-1, keepdim=True), rest, 1.0)
    return torch.where(support, (s * (v - mean) - kappa * y * (plain - mean)) / (gamma * (p - 1)), 0.0)
