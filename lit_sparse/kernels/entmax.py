"""alpha-entmax of rows, and its Jacobian.

With ``eps = alpha - 1`` and ``z = (x - max x) / gamma`` the result is ``y = [1 + eps (z - t)]_+^(1 / eps)``, the deformed
exponential of ``z - t``, which becomes ``exp(z - t)`` as eps -> 0, t the deformed logarithm of the partition function.
Newton's method runs on ``(sum y)^eps = 1``: for alpha <= 2 its left side is a norm, convex in t and nearly linear.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import REDUCTION_FLAGS, bits_of, compile_rows
from lit_sparse.kernels.cpu.rows import SIMD_BLOCK, pad, top_of, write_odd
from lit_sparse.kernels.cpu.threads import over_rows
from lit_sparse.kernels.cpu.vector_math import exponentials, logarithms, logarithms_of_one_plus, workspace
from lit_sparse.kernels.gpu import triton_rows
from lit_sparse.kernels.row_kernel import RowKernel

__all__ = ["entmax_jacobian", "entmax_product", "map_entmax"]

SECONDS, PRODUCT_SECONDS = 3e-9, 1e-9  # for one element, on one thread
FLAT = 1e-9  # below this eps, softmax: the two differ by eps / 2 times the square of a score
NEWTON_PASSES, PASSES = 30, 120
TWIN_PASSES = 60
CHUNK = 1024
CEILING_SINGLE, CEILING_DOUBLE = 80.0, 600.0  # logarithms of weights in the Jacobian stay below
UNSURE, STEEP = 1e-10, 1e-4  # m = 1 + eps (z - t) is known but for rounding: is it above 0, and its root accurate?


@compile_rows(frozenset({"contract"}))
def deform(z: Any, n: Any, eps: Any, t: Any, work: Any, bits: Any) -> None:
    """Write the deformed exponentials of ``z[:n] - t`` to ``work[0]``."""
    e, shift, one, zero = z.dtype.type(eps), z.dtype.type(t), z.dtype.type(1), z.dtype.type(0)
    if eps == 1.0:
        for j in range(n):
            m = one + (z[j] - shift)
            work[0, j] = m if m > zero else zero
    elif eps <= FLAT:
        for j in range(n):
            work[0, j] = z[j] - shift
        exponentials(work, bits, n)
    else:
        least = z.dtype.type(-0.99999994 if z.itemsize == 4 else -0.9999999999999998)
        power = z.dtype.type(1.0 / eps)
        for j in range(n):
            work[0, j] = max(e * (z[j] - shift), least)
        logarithms_of_one_plus(work, bits, n)
        for j in range(n):
            work[0, j] = work[0, j] * power
        exponentials(work, bits, n)
        for j in range(n):
            work[0, j] = work[0, j] if e * (z[j] - shift) > -one else zero


@compile_rows(REDUCTION_FLAGS)
def chunk_sums(z: Any, work: Any, first: Any, last: Any, e: Any, shift: Any) -> Any:
    """Return the sums of y and of ``y^(1 - eps)``, in the type of y: for chunks that are short enough."""
    one, zero = z.dtype.type(1), z.dtype.type(0)
    total, slope = zero, zero
    for j in range(first, last):
        total += work[0, j]
        m = one + e * (z[j] - shift)
        slope += work[0, j] / m if m > zero else zero
    return total, slope


@compile_rows(REDUCTION_FLAGS)
def chunk_squares(z: Any, first: Any, last: Any, shift: Any) -> Any:
    """Return the same for eps = 1/2, without a look at y, and the size of the support."""
    zero = z.dtype.type(0)
    total, slope, count = zero, zero, 0
    one, half = z.dtype.type(1), z.dtype.type(0.5)
    for j in range(first, last):
        m = one + half * (z[j] - shift)
        count += m > zero
        m = m if m > zero else zero
        total += m * m
        slope += m
    return total, slope, count


@compile_rows(REDUCTION_FLAGS)
def sum_of(work: Any, n: Any) -> Any:
    """Return the sum of the first entries, in float64."""
    total = 0.0
    for j in range(n):
        total += work[0, j]
    return total


@compile_rows()
def long_sums(z: Any, work: Any, n: Any, eps: Any, shift: Any) -> Any:
    """Return the sums over any number of entries, added up in float64 from chunk to chunk."""
    total, slope = 0.0, 0.0
    for first in range(0, n, CHUNK):
        part, part_slope = chunk_sums(z, work, first, min(first + CHUNK, n), z.dtype.type(eps), shift)
        total += part
        slope += part_slope
    return total, slope


@compile_rows()
def long_squares(z: Any, n: Any, shift: Any) -> Any:
    """Return the same for eps = 1/2."""
    total, slope, count = 0.0, 0.0, 0
    for first in range(0, n, CHUNK):
        part, part_slope, part_count = chunk_squares(z, first, min(first + CHUNK, n), shift)
        total += part
        slope += part_slope
        count += part_count
    return total, slope, count


@compile_rows()
def solve_squares(z: Any, n: Any) -> Any:
    """Return the t at which the squares sum to 1, for eps = 1/2, and that sum.

    On a given support the sum is a quadratic in t. Its root is on the other side of the solution than the t that gave the
    support, so that roots close in from both sides; they meet where the support stays the same.
    """
    lower, upper = 0.0, 2.0 - 2.0 / math.sqrt(n)
    t, size = 0.5 * upper, 0
    for i in range(PASSES):
        if n <= CHUNK:
            part, part_slope, count = chunk_squares(z, 0, n, z.dtype.type(t))
            total, slope = float(part), float(part_slope)
        else:
            total, slope, count = long_squares(z, n, z.dtype.type(t))
        if count == size:
            break
        size = count
        rest = slope * slope - count * (total - 1.0)
        step = (slope - math.sqrt(rest)) / count if rest > 0.0 and i < NEWTON_PASSES else (total - math.sqrt(total)) / slope
        if total >= 1.0:
            lower = t
        else:
            upper = t
        t = t + 2.0 * step
        if not lower <= t <= upper:
            t = 0.5 * (lower + upper)
            size = 0
    return t, total


@compile_rows()
def solve(z: Any, n: Any, eps: Any, work: Any, bits: Any) -> Any:
    """Leave the deformed exponentials, their sum almost 1, in ``work[0]``; return that sum."""
    if eps <= FLAT:  # the result is exp(z) over its sum
        deform(z, n, eps, 0.0, work, bits)
        return sum_of(work, n)
    # Of the last step. What it leaves behind is its square while y is smooth in t, and less so as alpha goes to 2.
    tolerance = 1e-6 + math.exp(-16.0 * max(eps, 0.5)) if z.itemsize == 4 else 1e-9
    if eps > 1.0:  # where y is small it is steep in t
        tolerance = 1e-15
    lower, upper = 0.0, -math.expm1(-eps * math.log(n)) / eps
    t = 0.5 * upper
    for i in range(PASSES):
        deform(z, n, eps, t, work, bits)
        if n <= CHUNK:
            part, part_slope = chunk_sums(z, work, 0, n, z.dtype.type(eps), z.dtype.type(t))
            total, slope = float(part), float(part_slope)
        else:
            total, slope = long_sums(z, work, n, eps, z.dtype.type(t))
        if total >= 1.0:
            lower = t
        else:
            upper = t
        ahead = t - total / slope * math.expm1(-eps * math.log(total)) / eps
        if i > NEWTON_PASSES or not lower <= ahead <= upper:
            ahead = 0.5 * (lower + upper)
        step = abs(ahead - t)
        t = ahead
        if step <= tolerance or upper - lower <= 1e-15 * upper:
            break
    deform(z, n, eps, t, work, bits)
    if eps > 1.0:
        settle(z, n, eps, t, work)
    return sum_of(work, n)


@compile_rows()
def sum_from(z: Any, n: Any, eps: Any, last: Any, least: Any) -> Any:
    """Return the sum and the slope in ``least`` of the y whose smallest, that of the score ``last``, is ``least``."""
    total, slope, power = 0.0, 0.0, least**eps
    for j in range(n):
        if z[j] == last:
            total += least
            slope += 1.0
        elif z[j] > last:
            y = (power + eps * (z[j] - last)) ** (1.0 / eps)
            total += y
            slope += (least / y) ** (eps - 1.0)
    return total, slope


@compile_rows()
def settle(z: Any, n: Any, eps: Any, t: Any, work: Any) -> None:
    """Write y anew, for eps > 1, if some of it is close to 0, where it is steep in t.

    Relative to the smallest score of the support, rather than to the largest score, y is known to all digits. A score is in
    the support if y relative to it would leave something for itself.
    """
    unsure, steep, last = 0, False, np.inf
    for j in range(n):
        m = 1.0 + eps * (z[j] - t)
        steep |= abs(m) < STEEP
        if m > UNSURE:
            last = min(last, z[j])
        elif m > -UNSURE:
            work[1, unsure] = z[j]
            unsure += 1
    if not steep:
        return
    ranked = np.sort(work[1, :unsure])
    first, end = 0, unsure  # those from ``end`` are in the support, those before ``first`` are not
    while first < end:
        middle = (first + end) // 2
        if sum_from(z, n, eps, ranked[middle], 0.0)[0] < 1.0:
            end = middle
        else:
            first = middle + 1
    if end < unsure:
        last = ranked[end]
    size = 0
    for j in range(n):
        size += z[j] >= last
    low, high = 0.0, 1.0 / size
    least = high
    for _ in range(PASSES):  # Newton's method on a convex sum, from above
        total, slope = sum_from(z, n, eps, last, least)
        if total >= 1.0:
            high = least
        else:
            low = least
        ahead = least - (total - 1.0) / slope
        if not low < ahead < high:
            ahead = 0.5 * (low + high)
        done = abs(ahead - least) <= 1e-15 * high
        least = ahead
        if done:
            break
    power = least**eps
    for j in range(n):
        work[0, j] = 0.0
        if z[j] == last:
            work[0, j] = least
        elif z[j] > last:
            work[0, j] = (power + eps * (z[j] - last)) ** (1.0 / eps)


@compile_rows()
def map_row(x: Any, row: Any, top: Any, eps: Any, gamma: Any, z: Any, places: Any, work: Any, bits: Any, out: Any) -> None:
    """Write the result of one ordinary row, computed in the type of z."""
    limit = -np.inf if eps <= FLAT else -1.0 / eps
    factor, bound = z.dtype.type(1.0 / gamma), z.dtype.type(limit)
    n = 0
    for i in range(x.shape[1]):
        value = z.dtype.type(x[row, i] - top) * factor
        z[n] = value
        places[n] = i
        n += value > bound
    scale = z.dtype.type(1.0 / solve(z, pad(z, n), eps, work, bits))
    for j in range(n):
        out[row, places[j]] = work[0, j] * scale


@compile_rows(frozenset({"contract"}))
def shifted(x: Any, row: Any, top: Any, gamma: Any, z: Any) -> None:
    """Write ``(x - top) / gamma`` of a whole row."""
    factor = x.dtype.type(1.0 / gamma)
    for i in range(x.shape[1]):
        z[i] = (x[row, i] - top) * factor


@compile_rows(frozenset({"contract"}))
def write_squares(z: Any, row: Any, t: Any, total: Any, out: Any) -> None:
    """Write the normalized squares."""
    shift, scale = z.dtype.type(t), z.dtype.type(1.0 / total)
    one, half, zero = z.dtype.type(1), z.dtype.type(0.5), z.dtype.type(0)
    for i in range(out.shape[1]):
        m = one + half * (z[i] - shift)
        m = m if m > zero else zero
        out[row, i] = m * m * scale


@compile_rows()
def map_squares(x: Any, row: Any, top: Any, gamma: Any, z: Any, out: Any) -> None:
    """Write the result of one ordinary row for eps = 1/2, where a look at every entry costs less than choosing some."""
    shifted(x, row, top, gamma, z)
    n = pad(z, x.shape[1])
    t, total = solve_squares(z, n)
    write_squares(z, row, t, total, out)


@compile_rows()
def map_block(start: Any, stop: Any, out: Any, x: Any, alphas: Any, gamma: Any) -> None:
    """Map rows ``start .. stop - 1``."""
    d = x.shape[1] + SIMD_BLOCK
    bits = bits_of(x)
    cell = np.empty(1, x.dtype)
    cell_bits = bits_of(cell)
    z, places = np.empty(d, x.dtype), np.empty(d, np.int32)
    work, work_bits = workspace(x, d)
    steep = np.empty(0)
    steep_work, steep_bits = workspace(steep, 0)
    for row in range(start, stop):
        if not top_of(x, bits, row, out, cell, cell_bits):
            continue
        eps = alphas[row if len(alphas) > 1 else 0] - 1.0
        if not 0.0 <= eps < np.inf:
            write_odd(x, row, out)
        elif eps == 0.5:
            map_squares(x, row, cell[0], gamma, z, out)
        elif eps <= 1.0:
            map_row(x, row, cell[0], eps, gamma, z, places, work, work_bits, out)
        else:  # the derivative of y in its argument is unbounded: float32 would not give its own input's result
            if len(steep) == 0:
                steep = np.empty(d)
                steep_work, steep_bits = workspace(steep, d)
            map_row(x, row, cell[0], eps, gamma, steep, places, steep_work, steep_bits, out)


def _map_cpu(out: np.ndarray[Any, Any], x: np.ndarray[Any, Any], alphas: np.ndarray[Any, Any], gamma: float) -> None:
    over_rows(map_block, x.shape, SECONDS, out, x, alphas, gamma)


def _map_twin(x: Tensor, alpha: float | Tensor, gamma: float) -> Tensor:
    """Bracket the threshold and bisect, in the scale on which the largest score is 1."""
    eps = torch.as_tensor(alpha, dtype=x.dtype, device=x.device) - 1
    allowed = x != -torch.inf
    top = x.amax(-1, keepdim=True)
    odd = ~(top < torch.inf) | ~(eps >= 0)
    z = torch.where(odd | ~allowed.any(-1, keepdim=True), torch.zeros_like(x), (x - top) / gamma)
    safe = eps.clamp_min(1e-6)
    flat = eps < 1e-6

    def deformed(t: Tensor) -> Tensor:
        m = safe * (z - t)
        power = torch.exp(torch.log1p(m.clamp_min(-1 + 1e-7 if x.dtype == torch.float32 else -1 + 1e-15)) / safe)
        power = torch.where(m > -1, power, torch.zeros_like(power))
        return torch.where(allowed, torch.where(flat, torch.exp(z - t), power), torch.zeros_like(z))

    size = float(x.shape[-1])
    lower = torch.zeros_like(top)
    upper = torch.where(flat, math.log(size), -torch.expm1(-safe * math.log(size)) / safe) + 1e-3
    upper = upper.expand_as(lower)
    for _ in range(TWIN_PASSES):
        middle = 0.5 * (lower + upper)
        above = deformed(middle).sum(-1, keepdim=True) >= 1
        lower, upper = torch.where(above, middle, lower), torch.where(above, upper, middle)
    y = deformed(lower)
    y = y / y.sum(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    return torch.where(allowed & odd, torch.full_like(y, torch.nan), y)


map_entmax = RowKernel(
    "map_entmax", "(Tensor x, Tensor alpha, float gamma) -> Tensor", _map_cpu, _map_twin, triton_rows.map_entmax, parameters=1
)
"""Row kernel ``(x (..., d), alpha (..., 1) or a number, gamma) -> y (..., d)``: alpha-entmax of ``x / gamma``.

``-inf`` marks an entry that is not allowed; a row without allowed entries gives zeros, a row with NaN or +inf, or an alpha
below 1, gives NaN at its allowed entries.
"""


@compile_rows(REDUCTION_FLAGS - {"nnan"})
def weighted_sums(work: Any, v: Any, n: Any) -> Any:
    """Return the sums of ``s`` and of ``s v``."""
    mass, total = 0.0, 0.0
    for j in range(n):
        mass += work[0, j]
        total += work[0, j] * v[j]
    return mass, total


@compile_rows(REDUCTION_FLAGS - {"nnan"})
def root_sums(y: Any, v: Any, row: Any) -> Any:
    """Return the sums of ``s = sqrt(y)`` and of ``s v`` over the support of a row."""
    mass, total, zero = 0.0, 0.0, y.dtype.type(0)
    for i in range(y.shape[1]):
        s = np.sqrt(y[row, i])
        mass += s
        total += s * v[row, i] if y[row, i] != zero else zero
    return mass, total


@compile_rows()
def write_root_product(y: Any, v: Any, row: Any, mean: Any, scale: Any, out: Any) -> None:
    """Write ``sqrt(y) (v - mean) scale`` on the support."""
    zero, center, factor = y.dtype.type(0), y.dtype.type(mean), y.dtype.type(scale)
    for i in range(y.shape[1]):
        out[row, i] = np.sqrt(y[row, i]) * (v[row, i] - center) * factor if y[row, i] != zero else zero


@compile_rows()
def steep_product(
    v: Any, y: Any, row: Any, power: Any, n: Any, scale: Any, places: Any, u: Any, work: Any, bits: Any, out: Any
) -> None:
    """Multiply a row by the Jacobian for a negative power, where weights ``s = y^power`` may be too large for their type.

    With u = v - v_m, m the place of the largest weight, it is ``s u - p sum s u``, p = s / sum s: the largest weight itself
    is multiplied by zero.
    """
    exponent, broken = y.dtype.type(power), y[row, places[0]] != y[row, places[0]] if n > 0 else False
    most = 0
    for j in range(n):
        most = j if work[0, j] < work[0, most] else most
    origin, ceiling = u[most], y.dtype.type(CEILING_SINGLE if y.itemsize == 4 else CEILING_DOUBLE)
    logarithms(work, bits, n)
    top = work[0, most] * exponent
    for j in range(n):
        rate = work[0, j] * exponent
        work[0, j] = rate - top
        out[row, places[j]] = min(rate, ceiling)
        u[j] = u[j] - origin
    exponentials(work, bits, n)
    mass = 0.0
    for j in range(n):
        work[1, j] = work[0, j]
        mass += work[0, j]
        work[0, j] = out[row, places[j]]
    exponentials(work, bits, n)
    total = 0.0
    for j in range(n):
        work[0, j] = work[0, j] * u[j]
        total += work[0, j]
    share = y.dtype.type(np.nan if broken else total / mass)
    for j in range(n):
        out[row, places[j]] = (work[0, j] - work[1, j] * share) * scale


@compile_rows()
def product_block(start: Any, stop: Any, out: Any, v: Any, y: Any, alphas: Any, gamma: Any) -> None:
    """Multiply rows ``start .. stop - 1`` of ``v`` by the Jacobian at ``y``."""
    d = y.shape[1]
    places = np.empty(d, np.int64)
    u = np.empty(d, y.dtype)
    work, bits = workspace(y, d)
    scale, zero = y.dtype.type(1.0 / gamma), y.dtype.type(0)
    for row in range(start, stop):
        eps = alphas[row if len(alphas) > 1 else 0] - 1.0
        if eps == 0.5:
            mass, total = root_sums(y, v, row)
            write_root_product(y, v, row, total / mass, 1.0 / gamma, out)
            continue
        n = 0
        for i in range(d):
            work[0, n] = y[row, i]
            u[n] = v[row, i]
            places[n] = i
            n += y[row, i] != zero
            out[row, i] = zero
        if eps == 1.0:
            for j in range(n):
                work[0, j] = work[0, j] / work[0, j]
        elif eps > 1.0:
            steep_product(v, y, row, 1.0 - eps, n, scale, places, u, work, bits, out)
            continue
        elif eps > FLAT:
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


def _product_cpu(
    out: np.ndarray[Any, Any], v: np.ndarray[Any, Any], y: np.ndarray[Any, Any], alphas: np.ndarray[Any, Any], gamma: float
) -> None:
    over_rows(product_block, y.shape, PRODUCT_SECONDS, out, v, y, alphas, gamma)


def entmax_jacobian(v: Tensor, y: Tensor, alpha: float | Tensor, gamma: float) -> Tensor:
    """Return the Jacobian of alpha-entmax at its result y, times v, in differentiable operations.

    With ``s = y^(2 - alpha)`` it is ``s (v - sum s v / sum s) / gamma``. For alpha > 2 the s of a small y may be too large for
    its type: with u = v - v_m, m the place of the largest s, and p = s / sum s it is ``(s u - p sum s u) / gamma``.
    """
    support = y != 0
    power = 2 - torch.as_tensor(alpha, dtype=y.dtype, device=y.device)
    base = torch.where(support, y, 1.0)
    base = torch.where(power < 0, base.clamp_min(4 * torch.finfo(y.dtype).tiny), base)  # whose inverse is finite
    rate = torch.where(support, power * base.detach().log(), -torch.inf)
    most = rate.detach().argmax(-1, keepdim=True)
    peak = base.gather(-1, most)
    ceiling = CEILING_DOUBLE if y.dtype == torch.float64 else CEILING_SINGLE
    fine = support & ~(rate > ceiling)
    s = torch.where(fine, torch.where(fine, base, 1.0) ** power, torch.full_like(base, math.exp(ceiling)))
    p = torch.where(support, (base / peak) ** power, 0.0)
    p = torch.where(y.isnan(), y, p)  # NaN to the power of 0 is 1
    p = p / p.sum(-1, keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)
    v = torch.where(support, v - v.gather(-1, most), 0.0)  # what arrives at an entry outside is never looked at
    pull = torch.where(support, s * v, 0.0)
    return torch.where(support, (pull - p * pull.sum(-1, keepdim=True)) / gamma, 0.0).to(v.dtype)


entmax_product = RowKernel(
    "entmax_product",
    "(Tensor v, Tensor y, Tensor alpha, float gamma) -> Tensor",
    _product_cpu,
    entmax_jacobian,
    triton_rows.entmax_product,
    parameters=1,
)
"""Row kernel ``(v (..., d), y (..., d), alpha, gamma) -> (..., d)``: the Jacobian of alpha-entmax at its result y, times v."""
