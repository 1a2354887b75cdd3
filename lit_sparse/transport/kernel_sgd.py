"""Stochastic gradient ascent on the dual of entropic optimal transport, for potentials that are sums of Gaussian bumps.

Every iteration evaluates sums over all the iterations before it, so n of them take n^2 exponentials, too many for Python.
They are computed here for several entries at a time, to all but the last digit of float64.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lit_sparse.checks import check_tensor
from lit_sparse.ground.torch_internals import on_values
from lit_sparse.kernels.cpu.compile import bits_of, compile_rows, empty
from lit_sparse.kernels.cpu.threads import over_rows

__all__ = ["gaussian_sum", "run_kernel_sgd"]

#: Entries that are worked on at once; the cache nearest to the processor holds them.
BLOCK = 512
# Adding this number leaves the nearest integer in the low bits: there is no other way to it for several entries at a time.
ROUNDING = np.float64(1.5 * 2.0**52)
MANTISSA = np.int64(52)
#: Seconds a bump takes.
COST = 1.5e-9
LOG2_E = math.log2(math.e)
LN2_HIGH, LN2_LOW = 0.693145751953125, 1.4286068203094172e-06  # in two parts: the first times an exponent is exact
LOWEST = -708.0  # its exponential is just above the smallest normal number
# Taylor's coefficients: for |r| <= ln(2) / 2 what is left out is below 1e-17.
E2, E3, E4, E5, E6, E7, E8, E9, E10, E11, E12, E13 = (1 / math.factorial(k) for k in range(2, 14))


@compile_rows(frozenset({"contract"}))
def _exponentials(work: Any, bits: Any, n: Any) -> None:
    """Replace x <= 0 in the first of three rows by exp(x), and by 0 below -708."""
    for i in range(n):
        work[2, i] = work[0, i]
        value = max(work[0, i], LOWEST)
        rounded = value * LOG2_E + ROUNDING
        power = rounded - ROUNDING
        r = (value - power * LN2_HIGH) - power * LN2_LOW
        high = E8 + r * (E9 + r * (E10 + r * (E11 + r * (E12 + r * E13))))
        low = E2 + r * (E3 + r * (E4 + r * (E5 + r * (E6 + r * (E7 + r * high)))))
        work[0, i] = 1.0 + (r + r * r * low)
        work[1, i] = rounded
    for i in range(n):
        bits[0, i] += bits[1, i] << MANTISSA
    for i in range(n):
        work[0, i] = 0.0 if work[2, i] < LOWEST else work[0, i]


@compile_rows(frozenset({"reassoc", "contract"}))
def _weigh(work: Any, coefficients: Any, start: Any, n: Any) -> float:
    total = 0.0
    for i in range(n):
        total += coefficients[start + i] * work[0, i]
    return total


@compile_rows(frozenset({"contract"}))
def _sum_at(point: Any, centres: Any, coefficients: Any, n: Any, scale: Any, work: Any, bits: Any) -> float:
    """Return ``sum_j coefficients_j exp(-scale |point - centre_j|^2)`` over the first n centres, columns of (d, N)."""
    total = 0.0
    for start in range(0, n, BLOCK):
        size = min(BLOCK, n - start)
        for i in range(size):
            work[0, i] = 0.0
        for axis in range(len(point)):
            for i in range(size):
                away = centres[axis, start + i] - point[axis]
                work[0, i] -= scale * (away * away)
        _exponentials(work, bits, size)
        total += _weigh(work, coefficients, start, size)
    return total


@compile_rows()
def _sums(start: Any, stop: Any, out: Any, points: Any, centres: Any, coefficients: Any, scale: Any) -> None:
    work = empty((3, BLOCK), np.float64)
    bits = bits_of(work)
    for i in range(start, stop):
        out[i] = _sum_at(points[i], centres, coefficients, len(coefficients), scale, work, bits)


@compile_rows()
def _ascend(
    source: Any, target: Any, sources: Any, targets: Any, coefficients: Any, first: int, numbers: Any, safe: bool, sums: Any
) -> int:
    """Run an iteration for each row of ``source`` and ``target``, and return how many coefficients are not finite.

    Args:
        source: (B, d) points x.
        target: (B, d) points y.
        sources: (d, N) all the points x, including the points of this call.
        targets: (d, N) all the points y.
        coefficients: (N,) b, of which ``first .. first + B - 1`` are written.
        first: iterations done before.
        numbers: (5,) 1 / (2 width^2), eps, ln rho, rho, step size.
        safe: whether the exponential is replaced by the sigmoid.
        sums: (B,) receives u(x) + v(y) before the iteration.
    """
    scale, eps, log_rho, rho, step_size = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    work = empty((3, BLOCK), np.float64)
    bits = bits_of(work)
    broken = 0
    for i in range(len(source)):
        n = first + i
        u = _sum_at(source[i], sources, coefficients, n, scale, work, bits)
        v = _sum_at(target[i], targets, coefficients, n, scale, work, bits)
        cost = 0.0
        for axis in range(source.shape[1]):
            away = source[i, axis] - target[i, axis]
            cost += away * away
        surplus = (u + v - cost) / eps
        if safe:
            surplus += log_rho
            # Whichever form does not overflow.
            density = 1.0 / (1.0 + math.exp(-surplus)) if surplus > 0 else math.exp(surplus) / (1.0 + math.exp(surplus))
            density /= rho
        else:
            density = math.exp(surplus)
        sums[i] = u + v
        coefficients[n] = step_size / math.sqrt(n + 1.0) * (1.0 - density)
        if not math.isfinite(coefficients[n]):
            broken += 1
    return broken


@on_values
def run_kernel_sgd(
    sources: Tensor,
    targets: Tensor,
    coefficients: Tensor,
    first: int,
    last: int,
    *,
    width: float,
    step_size: float,
    eps: float,
    rho: float,
    objective: Literal["safe", "dual"],
) -> tuple[Tensor, int]:
    r"""Run iterations ``first + 1 .. last`` of stochastic gradient ascent on the transport dual, with kernel potentials.

    .. math:: b_i = \frac{C}{\sqrt i} (1 - t_i), \quad u = \sum_{j < i} b_j\, k(\cdot, x_j), \quad
        v = \sum_{j < i} b_j\, k(\cdot, y_j), \quad k(x, x') = e^{-\lVert x - x' \rVert^2 / (2\, \mathrm{width}^2)}

    where iteration i uses the i-th pair of points, C is ``step_size``, and t_i is the density of the plan at the pair:
    ``sigmoid(s_i / eps + ln rho) / rho``, or ``exp(s_i / eps)`` for ``"dual"``, with
    ``s_i = u(x_i) + v(y_i) - |x_i - y_i|^2``.

    Args:
        sources: (N, d) float64 on the CPU, the points x, of which the first ``last`` are read.
        targets: (N, d) the points y.
        coefficients: (N,) contiguous, b; entries ``first .. last - 1`` are written in place.
        first: number of iterations already done.
        last: number of iterations done afterwards, at most N.
        width: width of the Gaussian kernel.
        step_size: C, the initial learning rate.
        eps: strength of the entropy.
        rho: inverse of the bound on the plan's density; unused for ``"dual"``.
        objective: ``"safe"`` or ``"dual"``.

    Returns:
        (last - first,) float64, ``u(x_i) + v(y_i)`` before each iteration, and how many of the new coefficients are not
        finite; after an overflow, all further ones are inf or NaN.

    Raises:
        ValueError: for arrays that are not of these shapes.

    Source: Gladin, Kroshnin, Zhu & Dvurechensky (2025), Improved Stochastic Optimization of LogSumExp, arXiv:2509.24894,
    appendix B.1; ``"dual"`` is Genevay, Cuturi, Peyre & Bach (2016).
    """
    size = len(coefficients)
    if sources.shape != targets.shape or sources.shape[:1] != coefficients.shape or not 0 <= first <= last <= size:
        raise ValueError(
            f"Expected points (N, d), coefficients (N,) and 0 <= first <= last <= N but got {tuple(sources.shape)},"
            f" {tuple(targets.shape)}, {tuple(coefficients.shape)}, {first} and {last}."
        )
    x, y = (_rows(points[:last]) for points in (sources, targets))
    b = coefficients.numpy()
    if b.dtype != np.float64 or not b.flags.c_contiguous:
        raise ValueError(f"Expected contiguous float64 coefficients but got {coefficients.dtype}.")
    sums = empty(last - first, np.float64)
    numbers = np.array([0.5 / width**2, eps, math.log(rho), rho, step_size])
    columns = (np.ascontiguousarray(x.T), np.ascontiguousarray(y.T))
    broken = _ascend(x[first:], y[first:], *columns, b, first, numbers, objective == "safe", sums)
    return torch.from_numpy(sums), int(broken)


@on_values
def gaussian_sum(points: Tensor, centres: Tensor, coefficients: Tensor, width: float) -> Tensor:
    """Return a weighted sum of Gaussian kernels, ``sum_j b_j exp(-|x - x_j|^2 / (2 width^2))``, at points x, (B,) float64.

    Args:
        points: (B, d) on the CPU.
        centres: (N, d), x_j.
        coefficients: (N,), b.
        width: width of the Gaussian kernel.

    Raises:
        ValueError: for arrays that are not of these shapes.
    """
    what = "points (B, d), centres (N, d) and coefficients (N,)"
    check_tensor(points, what, shape=(None, *centres.shape[1:]), error=ValueError)
    check_tensor(coefficients, what, shape=centres.shape[:1], error=ValueError)
    out = empty(len(points), np.float64)
    arrays = (out, _rows(points), np.ascontiguousarray(_rows(centres).T), _rows(coefficients))
    over_rows(_sums, (len(points), len(centres)), COST, *arrays, 0.5 / width**2)
    return torch.from_numpy(out)


def _rows(points: Tensor) -> Any:
    return np.ascontiguousarray(points.detach().double().numpy())
