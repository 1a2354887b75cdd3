"""Capped softmax and its Jacobian."""

from __future__ import annotations

import triton.language as tl

from lit_sparse.kernels.gpu.triton_programs.largest import kth_largest, order_of, value_of
from lit_sparse.kernels.gpu.triton_programs.tiles import (
    HUGE,
    NEWTON_PASSES,
    PASSES,
    any_of,
    compiled,
    load,
    load_scores,
    marked,
    minima,
    over,
    parameter_of,
    program,
    rows_of,
    store,
    top_of,
    total,
)

__all__ = ["capped_jacobian", "map_capped"]

DEEP = tl.constexpr(64.0)  # range of scores above which differences from the largest lose digits of the small ones
ENOUGH = tl.constexpr(40.0)  # beyond this, a sigmoid differs from its limit by less than rounding


@compiled
def sigmoid(u: tl.tensor) -> tl.tensor:
    """Return the sigmoid ``1 / (1 + exp(-u))`` and its derivative."""
    near = tl.exp(-tl.abs(u))
    inverse = 1.0 / (1.0 + near)
    return tl.where(u < 0, near * inverse, inverse), near * inverse * inverse


@compiled
def tile_sums(z: tl.tensor, origin: tl.tensor, factor: tl.tensor, tau: tl.tensor, logistic: tl.constexpr) -> tl.tensor:
    """Return sums (rows,) over a tile of ``u = (z - origin) factor - tau``: of sigmoid and derivative, or of exp(u) and 1."""
    u = (z - over(origin)) * over(factor) - over(tau)
    if logistic:
        share, slope = sigmoid(u)
    else:
        share = tl.exp(u)
        slope = tl.where(z != -HUGE, 1.0, 0.0)
    return total(share), total(slope)


@compiled
def row_sums(
    z: tl.tensor,
    x: tl.tensor,
    origin: tl.tensor,
    factor: tl.tensor,
    tau: tl.tensor,
    d: tl.tensor,
    inside: tl.tensor,
    logistic: tl.constexpr,
    long: tl.constexpr,
) -> tl.tensor:
    """Return the sums of :func:`tile_sums` over whole rows, of which z is the first tile."""
    share, slope = tile_sums(z, origin, factor, tau, logistic)
    if long:
        size: tl.constexpr = z.shape[1] * z.shape[2]
        for start in range(size, d, size):
            more, more_slope = tile_sums(load_scores(x, start, d, inside, z), origin, factor, tau, logistic)
            share += more
            slope += more_slope
    return share, slope


@program
def map_capped(
    y: tl.tensor,
    x: tl.tensor,
    rho: tl.tensor,
    n: tl.tensor,
    units: tl.tensor,
    high: tl.tensor,
    low: tl.tensor,
    single: tl.constexpr,
    unit: tl.constexpr,
    rows: tl.constexpr,
    depth: tl.constexpr,
    groups: tl.constexpr,
    width: tl.constexpr,
    long: tl.constexpr,
) -> None:
    """Triton program that computes capped softmax of rows of ``x * scale``, where ``scale = high + low``.

    With m allowed entries, ``y = sigmoid(z - tau) / (rho m)`` sums to one. Newton's method runs on the logarithm of the
    sum, within a bracket. If scores are far apart, they are taken relative to the score at which hard caps would end.
    """
    row, inside, d, at = rows_of(n, units, unit, rows)
    rho = parameter_of(rho, row, inside, single, 0.5, width)
    x += at
    y += at
    z = load(x, 0, d, inside, -HUGE, depth, groups, width)
    top = top_of(z, x, d, inside, long)
    least = minima(tl.where(z == -HUGE, HUGE, z))
    if long:
        for start in range(depth * groups, d, depth * groups):
            tile = load_scores(x, start, d, inside, z)
            least = tl.minimum(least, minima(tl.where(tile == -HUGE, HUGE, tile)))
    invalid = (top == HUGE) | ~((rho > 0) & (rho < 1))
    live = (top > -HUGE) & ~invalid
    origin = tl.where(live, top, 0.0)
    rho = tl.where(live, rho, 0.5)
    factor = tl.zeros([rows], width) + high + low
    mass, number = row_sums(z, x, origin, factor, rho * 0, d, inside, False, long)
    number = tl.maximum(number, 1.0)
    target = rho * number
    logit = tl.log(rho / (1.0 - rho))
    upper = tl.minimum(tl.log(tl.where(live, mass, 1.0) / target), -logit)
    lower = tl.minimum(tl.where(live, (least - origin) * factor, 0.0) - logit, upper)
    tau = upper
    deep = live & ((origin - least) * factor > DEEP)
    if any_of(deep):
        k = tl.minimum(target, number - 1.0).to(tl.int32) + 1
        key, _left = kth_largest(order_of(z, "value"), x, z, k, deep, d, inside, "value", long)
        origin = tl.where(deep, value_of(tl.where(deep, key, order_of(origin, "value"))), origin)
        far = tl.log(number / rho) + ENOUGH
        lower = tl.where(deep, -far, lower)
        upper = tl.where(deep, far, upper)
        tau = tl.where(deep, 0.0, tau)
    tolerance: tl.constexpr = 1e-10 if width == tl.float64 else 1e-4
    i = 0
    while any_of(live) & (i < PASSES):
        mass, slope = row_sums(z, x, origin, factor, tau, d, inside, True, long)
        lower = tl.where(mass >= target, tau, lower)
        upper = tl.where(mass >= target, upper, tau)
        some = (mass > 0) & (slope > 0)
        ahead = tau + tl.log(tl.where(some, mass, target) / target) * mass / tl.where(some, slope, 1.0)
        good = some & (ahead >= lower) & (ahead <= upper) & (i <= NEWTON_PASSES)
        ahead = tl.where(good, ahead, 0.5 * (lower + upper))
        step = tl.abs(ahead - tau)
        tau = tl.where(live, ahead, tau)
        live = live & (step > tolerance) & (upper - lower > tolerance)
        i += 1
    mass, _slope = row_sums(z, x, origin, factor, tau, d, inside, True, long)
    inverse = 1.0 / tl.where(mass > 0, mass, 1.0)
    for start in range(0, d, depth * groups):
        tile = load_scores(x, start, d, inside, z) if long else z
        share, _part = sigmoid((tile - over(origin)) * over(factor) - over(tau))
        store(y, marked(tile, share * over(inverse), invalid), start, d, inside)


@program
def capped_jacobian(
    out: tl.tensor,
    v: tl.tensor,
    y: tl.tensor,
    x: tl.tensor,
    rho: tl.tensor,
    n: tl.tensor,
    units: tl.tensor,
    high: tl.tensor,
    low: tl.tensor,
    single: tl.constexpr,
    unit: tl.constexpr,
    rows: tl.constexpr,
    depth: tl.constexpr,
    groups: tl.constexpr,
    width: tl.constexpr,
    long: tl.constexpr,
) -> None:
    """Triton program that multiplies rows of ``v`` by the Jacobian of capped softmax at ``y`` times ``high + low``.

    The product is ``c (v - sum c v / sum c)`` with ``c = y (1 - rho m y)`` for m allowed entries.
    """
    row, inside, d, at = rows_of(n, units, unit, rows)
    limit = parameter_of(rho, row, inside, single, 0.5, width)
    scale = tl.zeros([rows], width) + high + low
    out += at
    v += at
    y += at
    x += at
    number = tl.zeros([rows], tl.int32)
    for start in range(0, d, depth * groups):
        number += total((load(x, start, d, inside, -HUGE, depth, groups, width) != -HUGE).to(tl.int32))
    limit = limit * number
    mass = tl.zeros([rows], width)
    moment = tl.zeros([rows], width)
    for start in range(0, d, depth * groups):
        point = load(y, start, d, inside, 0.0, depth, groups, width)
        value = load(v, start, d, inside, 0.0, depth, groups, width)
        c = point * (1.0 - over(limit) * point)
        mass += total(c)
        moment += total(tl.where(point != 0, c * value, 0.0))
    mean = moment / tl.where(mass == 0, 1.0, mass)
    for start in range(0, d, depth * groups):
        point = load(y, start, d, inside, 0.0, depth, groups, width)
        value = load(v, start, d, inside, 0.0, depth, groups, width)
        c = point * (1.0 - over(limit) * point)
        store(out, tl.where(point != 0, c * (value - over(mean)) * over(scale), 0.0), start, d, inside)
