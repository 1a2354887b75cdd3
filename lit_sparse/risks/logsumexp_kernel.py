"""Root at which the density of the safe Kullback-Leibler LogSumExp has mass one.

For a row x of points with weights w, the safe LogSumExp is a minimum over a number a, attained where
``sum w sigma(x - a + ln rho) = rho``, sigma being the logistic function. Newton's method runs on the logarithm of that sum
inside a bracket; exponentials are taken around a reference near the solution, so that none overflows at any scale.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import REDUCTION_FLAGS, compile_rows, empty
from lit_sparse.kernels.cpu.threads import Array, over_rows
from lit_sparse.kernels.cpu.vector_math import exponentials_around, workspace
from lit_sparse.kernels.row_kernel import RowKernel

__all__ = ["mass_tolerance", "safe_threshold", "weighted_safe_threshold"]

SECONDS = 5e-9  # for one element, on one thread
NEWTON_PASSES, PASSES, REFERENCE_PASSES = 40, 400, 64
SATURATED = 45.0  # beyond, what is left of a sigma is less than rounding
DEEP = 1e4  # a range of scores over which float64 loses digits of differences around the threshold
NARROW = 64.0  # range of scores up to which float32 keeps all digits of the small ones
TOLERANCES = {4: 1e-6, 8: 1e-12}  # by which rounding may make a total mass less than what it should be, by bytes of a number


def mass_tolerance(dtype: torch.dtype) -> float:
    """Return the fraction of a total mass that counts as a rounding error in this dtype."""
    return TOLERANCES[8 if dtype == torch.float64 else 4]


@compile_rows(REDUCTION_FLAGS)
def _sums(work: Any, w: Any, n: Any, q: Any) -> Any:
    """Return the sums of ``w sigma`` and ``w sigma (1 - sigma)``, where ``sigma = e / (q + e)``."""
    total, slope, part = 0.0, 0.0, work.dtype.type(q)
    for j in range(n):
        inverse = work.dtype.type(1) / (part + work[0, j])
        share = w[j] * (work[0, j] * inverse)
        total += share
        slope += share * (part * inverse)
    return total, slope


@compile_rows(REDUCTION_FLAGS)
def _weighed(work: Any, w: Any, n: Any) -> Any:
    total = 0.0
    for j in range(n):
        total += w[j] * work[0, j]
    return total


@compile_rows()
def _solve(z: Any, w: Any, n: Any, least: Any, rho: Any, mass: Any, work: Any, bits: Any) -> Any:
    """Return tau with ``sum w sigma(z - tau) = rho``, for z between ``least`` and 0 whose positive w sum to at least rho."""
    near, far, tolerance = (20.0, 85.0, 1e-5) if z.itemsize == 4 else (50.0, 600.0, 1e-9)
    room = max(math.log(max(mass - rho, 0.0) / rho), -SATURATED)  # of a row of equal scores
    reference = 0.0
    exponentials_around(z, n, reference, far, work, bits)
    lower = least + room
    upper = max(lower, min(room, math.log(_weighed(work, w, n) / rho)))  # sigma is less than the exponential
    tau = upper
    for i in range(PASSES):
        if abs(tau - reference) > near:
            reference = np.float64(z.dtype.type(tau))
            exponentials_around(z, n, reference, far, work, bits)
        total, slope = _sums(work, w, n, math.exp(tau - reference))
        if total >= rho:
            lower = tau
        else:
            upper = tau
        ahead = tau + math.log(total / rho) * total / slope if total > 0.0 and slope > 0.0 else upper + 1.0
        if i > NEWTON_PASSES or not lower <= ahead <= upper:
            ahead = lower + 0.5 * (upper - lower)
        step, tau = abs(ahead - tau), ahead
        if step <= tolerance or not lower < tau < upper:
            break
    return tau


@compile_rows()
def _gather(x: Any, row: Any, weights: Any, of: Any, v: Any, w: Any) -> Any:
    """Collect the scores that count, and their weights; return their number, mass, least and largest, and their state.

    The state is 1 for a row with NaN or a weight that cannot be, else 2 for one with +inf, else 0.
    """
    n, mass, state, least, top = 0, 0.0, 0, np.inf, -np.inf
    for j in range(x.shape[1]):
        weight, value = np.float64(weights[of, j]), np.float64(x[row, j])
        if weight == 0.0:
            continue  # values of weight zero are ignored
        if not 0.0 < weight < np.inf or value != value:
            state = 1
        elif value == np.inf:
            state = max(state, 2) if state != 1 else 1
        elif value != -np.inf:
            v[n], w[n] = value, weight
            mass += weight
            least, top = min(least, value), max(top, value)
            n += 1
    return n, mass, least, top, state


@compile_rows()
def _center(v: Any, w: Any, n: Any, rho: Any, mass: Any) -> Any:
    """Return the score at which hard caps would end: those above it have a mass below rho.

    The scores become differences from it. Farther from it than what rounding leaves of a sigma, they are cut off.
    """
    order = np.argsort(v[:n])
    above, origin = 0.0, v[order[0]]
    for k in range(n - 1, -1, -1):
        above += w[order[k]]
        if above >= rho:
            origin = v[order[k]]
            break
    limit = 2.0 * (SATURATED + math.log(max(mass / rho, 1.0)))  # how far scores matter
    for j in range(n):
        v[j] = min(max(v[j] - origin, -limit), limit)
    return origin


@compile_rows()
def _threshold_block(start: Any, stop: Any, out: Any, x: Any, weights: Any, rho: Any) -> None:
    """Write the a of rows ``start .. stop - 1``."""
    d = x.shape[1]
    slack = 1e-6 if x.itemsize == 4 else 1e-12
    v, w = empty(d, np.float64), empty(d, np.float64)
    z, weight = empty(d, x.dtype), empty(d, x.dtype)
    work, bits = workspace(x, d)
    wide, wide_bits = workspace(v, d)
    for row in range(start, stop):
        n, mass, least, top, state = _gather(x, row, weights, row if len(weights) > 1 else 0, v, w)
        if state == 1:
            out[row, 0] = np.nan
        elif state == 2:
            out[row, 0] = np.inf
        elif n == 0 or mass < rho * (1.0 - slack):
            out[row, 0] = -np.inf
        elif top - least > DEEP:
            origin = _center(v, w, n, rho, mass)
            least, top = np.min(v[:n]), np.max(v[:n])
            for j in range(n):
                v[j] -= top
            tau = _solve(v, w, n, least - top, rho, mass, wide, wide_bits)
            out[row, 0] = origin + (top + tau + math.log(rho))
        else:
            for j in range(n):
                v[j] -= top
            if top - least <= NARROW:  # in the rows' own type
                for j in range(n):
                    z[j], weight[j] = v[j], w[j]
                tau = _solve(z, weight, n, least - top, rho, mass, work, bits)
            else:
                tau = _solve(v, w, n, least - top, rho, mass, wide, wide_bits)
            out[row, 0] = top + (tau + math.log(rho))


def _cpu(out: Array, x: Array, rho: float) -> None:
    over_rows(_threshold_block, x.shape, SECONDS, out, x, np.ones((1, x.shape[1])), rho)


def _reference(x: Tensor, rho: float) -> Tensor:
    return _weighted_reference(x, torch.ones_like(x), rho)


def _weighted_reference(x: Tensor, w: Tensor, rho: float) -> Tensor:
    """Bisect for the same."""
    slack = mass_tolerance(x.dtype)
    if x.device.type != "mps":  # which has no float64
        x, w = x.double(), w.double()
    there = w != 0
    broken = (there & (x.isnan() | ~(w > 0) | (w == torch.inf))).any(-1, keepdim=True)
    infinite = (there & (x == torch.inf)).any(-1, keepdim=True)
    used = there & x.isfinite() & (w > 0)
    w = torch.where(used, w, 0.0)
    mass = w.sum(-1, keepdim=True)
    ordinary = ~broken & ~infinite & (mass >= rho * (1 - slack))
    room = ((mass - rho) / rho).clamp_min(math.exp(-SATURATED)).log()
    # Relative to the score at which hard caps would end; what is far from it is cut off, see the kernel.
    counted = torch.where(used & ordinary, x, -torch.inf)
    ranked, order = counted.sort(dim=-1, descending=True)
    fits = (w.gather(-1, order).cumsum(-1) < rho) & (ranked > -torch.inf)
    last = (counted > -torch.inf).sum(-1, keepdim=True) - 1
    origin = torch.where(ordinary, ranked.gather(-1, torch.minimum(fits.sum(-1, keepdim=True), last).clamp_min(0)), 0.0)
    limit = 2 * (SATURATED + (mass / rho).clamp_min(1).log())
    z = torch.where(used & ordinary, torch.minimum(torch.maximum(x - origin, -limit), limit), 0.0)
    lower, upper = z.amin(-1, keepdim=True) + room, z.amax(-1, keepdim=True) + room
    for _ in range(REFERENCE_PASSES):
        middle = lower + 0.5 * (upper - lower)
        above = (w * torch.sigmoid(z - middle)).sum(-1, keepdim=True) >= rho
        lower, upper = torch.where(above, middle, lower), torch.where(above, upper, middle)
    special = torch.where(broken, torch.nan, torch.where(infinite, torch.inf, -torch.inf))
    return torch.where(ordinary, origin + (lower + math.log(rho)), special)


safe_threshold = RowKernel("safe_threshold", "(Tensor x, float rho) -> Tensor", _cpu, _reference, reduces=True)
"""Row kernel ``(x (..., d), rho) -> a (..., 1)`` for points of weight one.

Points at -inf are left out. NaN for a row with NaN, +inf for one with +inf, -inf where the points that are left have a mass
below rho.
"""

weighted_safe_threshold = RowKernel(
    "weighted_safe_threshold",
    "(Tensor x, Tensor w, float rho) -> Tensor",
    _threshold_block,
    _weighted_reference,
    seconds=SECONDS,
    reduces=True,
)
"""Row kernel ``(x, w (..., d), rho) -> a (..., 1)`` for points of weights w; points of weight zero are ignored.

NaN also for a row with a weight that is negative, infinite or NaN.
"""
