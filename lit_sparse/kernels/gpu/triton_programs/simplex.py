"""Projection onto the simplex."""

from __future__ import annotations

import triton.language as tl

from lit_sparse.kernels.gpu.triton_programs.largest import chosen_of, kth_largest, order_of, value_of
from lit_sparse.kernels.gpu.triton_programs.tiles import (
    COARSE_PASSES,
    HUGE,
    NEWTON_PASSES,
    PASSES,
    any_of,
    compiled,
    load,
    load_scores,
    marked,
    maxima,
    over,
    peaks_of,
    program,
    rows_of,
    store,
    total,
)

__all__ = ["project_simplex"]


@compiled
def excess_over(
    z: tl.tensor,
    x: tl.tensor,
    top: tl.tensor,
    point: tl.tensor,
    least: tl.tensor,
    left: tl.tensor,
    d: tl.tensor,
    inside: tl.tensor,
    some: tl.constexpr,
    long: tl.constexpr,
) -> tl.tensor:
    """Return ``sum (z - point)_+`` and the number of its positive terms, each (rows,); a long row is ``x - top``.

    If only ``some`` entries of a long row take part, these have keys above ``least``, or are among the first ``left`` ties.
    """
    if long:
        mass = tl.zeros_like(point).to(tl.float64)
        count = tl.zeros_like(point).to(tl.int32)
        for start in range(0, d, z.shape[1] * z.shape[2]):
            value = load_scores(x, start, d, inside, z)
            excess = value - over(top) - over(point)
            if some:
                excess = tl.where(order_of(value, "value") > over(least), excess, 0.0)
            mass += total(tl.maximum(excess, 0.0)).to(tl.float64)
            count += total((excess > 0).to(tl.int32))
        if some:
            excess = value_of(least) - top - point
            mass += tl.where((left > 0) & (excess > 0), excess * left, 0.0).to(tl.float64)
            count += tl.where(excess > 0, left, 0)
    else:
        excess = z - over(point)
        mass = total(tl.maximum(excess, 0.0))
        count = total((excess > 0).to(tl.int32))
    return mass, count


@compiled
def solve_projection(
    z: tl.tensor,
    x: tl.tensor,
    top: tl.tensor,
    tau: tl.tensor,
    count: tl.tensor,
    live: tl.tensor,
    gamma: tl.tensor,
    least: tl.tensor,
    left: tl.tensor,
    d: tl.tensor,
    inside: tl.tensor,
    some: tl.constexpr,
    halve: tl.constexpr,
    passes: tl.constexpr,
    long: tl.constexpr,
) -> tl.tensor:
    """Return the simplex projection's threshold tau (rows,), the root of ``sum (z - tau)_+ = gamma``, where ``live``.

    A long row is ``x - top``.

    The initial ``tau`` is not above the root. It is the threshold of ``count`` entries; if as many are above it, they are
    the support. ``some`` is as in :func:`excess_over`. ``halve`` starts at half of tau, which is closer to the root for
    most rows and never much worse.

    Returns:
        tau, its count, and the rounding error of tau, which lets a long float32 row still sum to one.
    """
    upper = tl.zeros_like(tau)
    rest = tl.zeros_like(tau)
    i = 0
    while any_of(live) & (i < passes):
        between = (i % 2 == 0) & (i >= NEWTON_PASSES)
        if halve:
            between = between | (i == 0)
        point = tl.where(between, 0.5 * (tau + upper), tau)
        mass, above = excess_over(z, x, top, point, least, left, d, inside, some, long)
        step = ((mass - gamma) / tl.maximum(above, 1)).to(tau.dtype)
        ahead = point + step  # never beyond the root, from either side: the sum is convex in tau
        upper = tl.where(step < 0, tl.minimum(upper, point), upper)
        better = ahead > tau
        settled = ((above == count) | ~better) & ~between
        rest = tl.where(live & settled, step, rest)
        moves = live & better & ~settled
        tau = tl.where(moves, ahead, tau)
        count = tl.where(moves, above, count)
        live = live & ~settled
        i += 1
    return tau, count, rest


@compiled
def projection(z: tl.tensor, tau: tl.tensor, rest: tl.tensor, gamma: tl.tensor, invalid: tl.tensor) -> tl.tensor:
    """Return the projected tile ``(z - tau - rest)_+ / gamma``, where ``tau + rest`` is a threshold in two parts.

    The parts are subtracted one after the other, because rounding their sum would lose the rest.
    """
    excess = z - over(tau)
    y = tl.where(excess > 0, tl.maximum(excess - over(rest), 0.0) * over(1.0 / gamma), 0.0)
    return marked(z, y, invalid)


@program
def project_simplex(
    y: tl.tensor,
    x: tl.tensor,
    n: tl.tensor,
    units: tl.tensor,
    high: tl.tensor,
    low: tl.tensor,
    k: tl.tensor,
    some: tl.constexpr,
    unit: tl.constexpr,
    rows: tl.constexpr,
    depth: tl.constexpr,
    groups: tl.constexpr,
    width: tl.constexpr,
    long: tl.constexpr,
) -> None:
    """Triton program that projects rows of ``x / gamma`` onto the simplex, where ``gamma = high + low``.

    If ``some``, only their k largest entries take part, ties going to the lowest index.
    """
    _row, inside, d, at = rows_of(n, units, unit, rows)
    x += at
    y += at
    gamma = tl.zeros([rows], width) + high + low
    z = load(x, 0, d, inside, -HUGE, depth, groups, width)
    peaks = peaks_of(z, x, d, inside, long)
    top = maxima(peaks)
    invalid = top == HUGE
    live = (top > -HUGE) & ~invalid
    top = tl.where(live, top, 0.0)
    z = z - over(top)
    tau = -gamma
    count = tl.full([rows], 1, tl.int32)
    least = order_of(top, "value") * 0
    left = count * 0
    coarse: tl.constexpr = long or depth > 1  # whether the maxima of groups come first
    if coarse:
        peaks = peaks - over(top)
        tau, count, rest = solve_projection(
            peaks, x, top, tau, count, live, gamma, least, left, d, inside, False, True, COARSE_PASSES, False
        )
    tau, count, rest = solve_projection(
        z, x, top, tau, count, live, gamma, least, left, d, inside, False, not coarse, PASSES, long
    )
    crowded = top != top
    if some:
        _mass, above = excess_over(z, x, top, tau, least, left, d, inside, False, long)
        crowded = live & (above > k)
        if any_of(crowded):
            value = load_scores(x, 0, d, inside, z)  # not z, in which subtraction may have made ties
            key = order_of(value, "value")
            least, left = kth_largest(key, x, z, k, crowded, d, inside, "value", long)
            if not long:
                z = tl.where(over(crowded) & ~chosen_of(key, least, left), -HUGE, z)
            tau = tl.where(crowded, -gamma, tau)
            count = tl.where(crowded, 1, count)
            tau, count, more = solve_projection(
                z, x, top, tau, count, crowded, gamma, least, left, d, inside, True, True, PASSES, long
            )
            rest = tl.where(crowded, more, rest)
    if long:
        for start in range(0, d, depth * groups):
            value = load_scores(x, start, d, inside, z)
            tile = value - over(top)
            result = projection(tile, tau, rest, gamma, invalid)
            if some:
                key = order_of(value, "value")
                result = tl.where(over(crowded) & ~chosen_of(key, least, left), 0.0, result)
                left -= total((key == over(least)).to(tl.int32))
            store(y, result, start, d, inside)
    else:
        store(y, projection(z, tau, rest, gamma, invalid), 0, d, inside)
