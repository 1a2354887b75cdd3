"""alpha-entmax, and the Jacobians of entmax and of the projection onto the simplex."""

from __future__ import annotations

import triton.language as tl

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
    minima,
    over,
    parameter_of,
    peaks_of,
    place_in,
    program,
    rows_of,
    store,
    total,
)

__all__ = ["apply_jacobian", "map_entmax"]

FLAT = tl.constexpr(1e-12)  # size of alpha - 1 below which entmax equals softmax to all digits
FARTHEST = tl.constexpr(1e30)  # for eps < 0, weights are zero from this eps (z - t) on


@compiled
def eps_of(
    alpha: tl.tensor, row: tl.tensor, inside: tl.tensor, single: tl.constexpr, known: tl.constexpr, width: tl.constexpr
) -> tl.tensor:
    """Return alpha - 1 (rows,), of each row or, if ``single``, of all; 1/2 without reading it if alpha is ``known``."""
    if known:
        return (row * 0).to(width) + 0.5
    return (parameter_of(alpha, row, inside, single, 1.5, tl.float64) - 1.0).to(width)


@compiled
def exp_minus_one(u: tl.tensor) -> tl.tensor:
    """Return ``exp(u) - 1`` without cancellation.

    Kahan's quotient ``(p - 1) u / log(p)``, p = exp(u), cancels the rounding error of p.
    """
    power = tl.exp(u)
    near = power == 1.0
    far = tl.where(power > 0, (power - 1.0) * (u / tl.log(tl.where(near, 2.0, power))), -1.0)
    return tl.where(near, u, far)


@compiled
def deformed(z: tl.tensor, t: tl.tensor, eps: tl.tensor, halves: tl.tensor, squares: tl.constexpr) -> tl.tensor:
    """Return tiles of the weights ``y = [1 + eps (z - t)]_+^(1 / eps)`` and of ``y^(1 - eps)``, which is -dy/dt.

    Args:
        z: tile of scores, none above 0.
        t: (rows,), not below 0.
        eps: (rows,) alpha - 1, > -1 and not 0.
        halves: whether all eps are 1/2.
        squares: whether that is known at compile time.
    """
    m = over(eps) * (z - over(t))
    if squares:  # noqa: SIM114 - the compiler decides this, the program the next
        slope = tl.maximum(1.0 + m, 0.0)
        y = slope * slope
    elif halves:
        slope = tl.maximum(1.0 + m, 0.0)
        y = slope * slope
    else:
        positive = (m > -1.0) & (m < FARTHEST)
        m = tl.where(positive, m, 0.0)
        base = 1.0 + m
        inverse = 1.0 / base
        logarithm = tl.log(base) + (m - (base - 1.0)) * inverse  # corrected for the rounding of 1 + m
        y = tl.where(positive, tl.exp(logarithm * over(1.0 / eps)), 0.0)
        slope = y * inverse
    return y, slope


@compiled
def deformed_sums(
    z: tl.tensor,
    x: tl.tensor,
    top: tl.tensor,
    factor: tl.tensor,
    t: tl.tensor,
    eps: tl.tensor,
    halves: tl.tensor,
    d: tl.tensor,
    inside: tl.tensor,
    squares: tl.constexpr,
    long: tl.constexpr,
) -> tl.tensor:
    """Return the sums (rows,) over a row of ``y = [1 + eps (z - t)]_+^(1 / eps)`` and ``y^(1 - eps)``.

    In a ``long`` row, the scores are ``(x - top) * factor``.
    """
    if long:
        mass = tl.zeros_like(t).to(tl.float64)
        decline = tl.zeros_like(t).to(tl.float64)
        for start in range(0, d, z.shape[1] * z.shape[2]):
            tile = (load_scores(x, start, d, inside, z) - over(top)) * over(factor)
            y, slope = deformed(tile, t, eps, halves, squares)
            mass += total(y).to(tl.float64)
            decline += total(slope).to(tl.float64)
    else:
        y, slope = deformed(z, t, eps, halves, squares)
        mass = total(y)
        decline = total(slope)
    return mass.to(t.dtype), decline.to(t.dtype)


@compiled
def solve_entmax(
    z: tl.tensor,
    x: tl.tensor,
    top: tl.tensor,
    factor: tl.tensor,
    t: tl.tensor,
    eps: tl.tensor,
    halves: tl.tensor,
    live: tl.tensor,
    highest: tl.tensor,
    tolerance: tl.tensor,
    d: tl.tensor,
    inside: tl.tensor,
    squares: tl.constexpr,
    passes: tl.constexpr,
    long: tl.constexpr,
) -> tl.tensor:
    """Return the entmax thresholds t (rows,), roots of ``sum y = 1``, where ``live``.

    In a ``long`` row, the scores are ``(x - top) * factor``.

    Newton's method is applied to ``(sum y)^eps``, for eps <= 1 a norm, convex in t and nearly linear. It starts from ``t``,
    stays between 0 and ``highest``, and ends with a step of at most ``tolerance``; the remaining error is its square or,
    for eps > 1/2, its power ``1 / eps``.
    """
    lower = tl.zeros_like(t)
    upper = highest
    i = 0
    while any_of(live) & (i < passes):
        mass, decline = deformed_sums(z, x, top, factor, t, eps, halves, d, inside, squares, long)
        lower = tl.where(mass >= 1.0, t, lower)
        upper = tl.where(mass >= 1.0, upper, t)
        if squares:
            ahead = t + 2.0 * (mass - tl.sqrt(mass)) / decline
        else:
            ahead = t - mass / decline * exp_minus_one(-eps * tl.log(mass)) / eps
        good = (ahead >= lower) & (ahead <= upper) & (i <= NEWTON_PASSES)
        ahead = tl.where(good, ahead, 0.5 * (lower + upper))
        step = tl.abs(ahead - t)
        t = tl.where(live, ahead, t)  # finished rows do not move, so that results do not depend on other rows
        size = tl.maximum(1.0 - eps * t, 1.0)  # scale of the step, for eps < 0
        live = live & (step > tolerance * size) & (upper - lower > 1e-15 * upper)
        i += 1
    return t


@program
def map_entmax(
    y: tl.tensor,
    x: tl.tensor,
    alpha: tl.tensor,
    n: tl.tensor,
    units: tl.tensor,
    high: tl.tensor,
    low: tl.tensor,
    part: tl.constexpr,
    single: tl.constexpr,
    squares: tl.constexpr,
    unit: tl.constexpr,
    rows: tl.constexpr,
    depth: tl.constexpr,
    groups: tl.constexpr,
    width: tl.constexpr,
    long: tl.constexpr,
) -> None:
    """Triton program that computes alpha-entmax of rows of ``x * scale``, where ``scale = high + low``.

    There is one ``alpha`` per row, or a ``single`` one. With ``squares``, alpha is 1.5 and is not read. ``part`` selects
    the rows: 0 for all, 1 for those with an alpha <= 2 or an invalid alpha, 2 for those with alpha > 2.
    """
    row, inside, d, at = rows_of(n, units, unit, rows)
    eps = eps_of(alpha, row, inside, single, squares, width)
    if part == 1:
        inside = inside & ~(eps > 1)
    if part == 2:
        inside = inside & (eps > 1)
    if part != 0:  # noqa: SIM102 - the compiler decides this, the program the next
        if ~any_of(inside):
            return
    x += at
    y += at
    invalid = ~((eps > -1) & (eps < HUGE))
    eps = tl.where(tl.abs(eps) < FLAT, FLAT, tl.where(invalid, 0.5, eps))
    halves = ~any_of(eps != 0.5)
    z = load(x, 0, d, inside, -HUGE, depth, groups, width)
    peaks = peaks_of(z, x, d, inside, long)
    top = maxima(peaks)
    invalid = invalid | (top == HUGE)
    live = (top > -HUGE) & ~invalid
    top = tl.where(live, top, 0.0)
    factor = tl.where(live, tl.zeros([rows], width) + high + low, 1.0)
    z = (z - over(top)) * over(factor)
    highest = -exp_minus_one(-eps * tl.log(tl.zeros([rows], width) + d)) / eps
    t = 0.5 * highest
    # Only float32 rows with alpha <= 2 are computed in float32. Near 2 the sum gets kinks in t, above 2 it is steep.
    tolerance = tl.where(eps > 1, 1e-15, 1e-9 if width == tl.float64 else 1e-6 + tl.exp(-16.0 * tl.maximum(eps, 0.5)))
    if long or depth > 1:
        peaks = (peaks - over(top)) * over(factor)
        coarse = tl.zeros_like(t) + 1e-2
        t = solve_entmax(peaks, x, top, factor, t, eps, halves, live, highest, coarse, d, inside, squares, COARSE_PASSES, False)
    t = solve_entmax(z, x, top, factor, t, eps, halves, live, highest, tolerance, d, inside, squares, PASSES, long)
    if long:
        mass, _decline = deformed_sums(z, x, top, factor, t, eps, halves, d, inside, squares, long)
        inverse = 1.0 / tl.where(mass > 0, mass, 1.0)
        for start in range(0, d, depth * groups):
            tile = (load_scores(x, start, d, inside, z) - over(top)) * over(factor)
            result, _slope = deformed(tile, t, eps, halves, squares)
            store(y, marked(tile, result * over(inverse), invalid), start, d, inside)
    else:
        result, _slope = deformed(z, t, eps, halves, squares)
        mass = total(result)
        inverse = 1.0 / tl.where(mass > 0, mass, 1.0)
        store(y, marked(z, result * over(inverse), invalid), 0, d, inside)


@compiled
def weights_of(
    y: tl.tensor, eps: tl.tensor, halves: tl.tensor, least: tl.tensor, ceiling: tl.constexpr, power: tl.constexpr
) -> tl.tensor:
    """Return ``s = y^(1 - eps)`` on the support of y, 0 elsewhere, NaN where y is NaN; and s relative to the largest one.

    For eps > 1, the smallest y of the row, ``least``, has the largest s, which may overflow, so s is clipped at
    ``exp(ceiling)``. Otherwise both results are s.
    """
    support = y != 0
    if power == "zero":
        weight = tl.where(support, 1.0 + (y - y), 0.0)
        relative = weight
    elif power == "half":  # noqa: SIM114 - the compiler decides this, the program the next
        weight = tl.sqrt(y)
        relative = weight
    elif halves:
        weight = tl.sqrt(y)
        relative = weight
    else:
        rate = over(1.0 - eps) * tl.log(tl.where(support, y, 1.0))
        top = tl.where(eps > 1, (1.0 - eps) * tl.log(tl.where(eps > 1, least, 1.0)), 0.0)
        broken = y - y
        weight = tl.where(support, tl.exp(tl.minimum(rate, ceiling)) + broken, 0.0)
        relative = tl.where(support, tl.exp(tl.minimum(rate - over(top), 0.0)) + broken, 0.0)
    return weight, relative


@compiled
def moments(weight: tl.tensor, relative: tl.tensor, v: tl.tensor, origin: tl.tensor) -> tl.tensor:
    """Return the sums (rows,), over nonzero weights, of the relative weights and of the weighted ``v - origin``."""
    return total(relative), total(tl.where(weight != 0, (v - over(origin)) * weight, 0.0))


@compiled
def centered(
    weight: tl.tensor,
    relative: tl.tensor,
    v: tl.tensor,
    origin: tl.tensor,
    share: tl.tensor,
    scale: tl.tensor,
    power: tl.constexpr,
) -> tl.tensor:
    """Return ``(weight (v - origin) - relative share) * scale``, or ``weight (v - share) * scale`` without an origin.

    It is 0 where the weight is 0.
    """
    if power == "any":
        result = (weight * (v - over(origin)) - relative * over(share)) * over(scale)
    else:
        result = weight * (v - over(share)) * over(scale)
    return tl.where(weight != 0, result, 0.0)


@compiled
def least_of(y: tl.tensor, v: tl.tensor, least: tl.tensor, origin: tl.tensor) -> tl.tensor:
    """Return the smallest y > 0 (rows,) of all tiles so far, and the v at one place where it occurs."""
    smallest = minima(tl.where(y > 0, y, HUGE))
    holds = tl.where(y == over(smallest), 1, 0)
    first = (holds > 0) & (place_in(holds) == 1)
    value = total(tl.where(first, v, 0.0))
    better = smallest < least
    return tl.where(better, smallest, least), tl.where(better, value, origin)


@program
def apply_jacobian(
    out: tl.tensor,
    v: tl.tensor,
    y: tl.tensor,
    alpha: tl.tensor,
    n: tl.tensor,
    units: tl.tensor,
    high: tl.tensor,
    low: tl.tensor,
    power: tl.constexpr,
    single: tl.constexpr,
    unit: tl.constexpr,
    rows: tl.constexpr,
    depth: tl.constexpr,
    groups: tl.constexpr,
    width: tl.constexpr,
    long: tl.constexpr,
) -> None:
    """Triton program that multiplies rows of ``v`` by the Jacobian of alpha-entmax at ``y`` times ``high + low``.

    The product is ``s (v - sum s v / sum s)`` with ``s = y^(2 - alpha)``. The ``power`` of y is "zero" (projection onto the
    simplex), "half", or "any", which reads ``alpha``, one per row or a ``single`` one.
    """
    row, inside, d, at = rows_of(n, units, unit, rows)
    eps = eps_of(alpha, row, inside, single, power != "any", width)
    halves = ~any_of(eps != 0.5)
    scale = tl.zeros([rows], width) + high + low
    v += at
    y += at
    out += at
    ceiling: tl.constexpr = 600.0 if width == tl.float64 else 80.0
    least = tl.full([rows], HUGE, width)
    origin = tl.zeros([rows], width)
    if long:
        if power == "any":
            for start in range(0, d, depth * groups):
                value = load(v, start, d, inside, 0.0, depth, groups, width)
                least, origin = least_of(load(y, start, d, inside, 0.0, depth, groups, width), value, least, origin)
        mass = tl.zeros([rows], tl.float64)
        moment = tl.zeros([rows], tl.float64)
        for start in range(0, d, depth * groups):
            point = load(y, start, d, inside, 0.0, depth, groups, width)
            weight, relative = weights_of(point, eps, halves, least, ceiling, power)
            value = load(v, start, d, inside, 0.0, depth, groups, width)
            part, part_moment = moments(weight, relative, value, origin)
            mass += part.to(tl.float64)
            moment += part_moment.to(tl.float64)
        share = (moment / mass).to(width)
        for start in range(0, d, depth * groups):
            point = load(y, start, d, inside, 0.0, depth, groups, width)
            weight, relative = weights_of(point, eps, halves, least, ceiling, power)
            value = load(v, start, d, inside, 0.0, depth, groups, width)
            store(out, centered(weight, relative, value, origin, share, scale, power), start, d, inside)
    else:
        point = load(y, 0, d, inside, 0.0, depth, groups, width)
        value = load(v, 0, d, inside, 0.0, depth, groups, width)
        if power == "any":
            least, origin = least_of(point, value, least, origin)
        weight, relative = weights_of(point, eps, halves, least, ceiling, power)
        mass, moment = moments(weight, relative, value, origin)
        store(out, centered(weight, relative, value, origin, moment / mass, scale, power), 0, d, inside)
