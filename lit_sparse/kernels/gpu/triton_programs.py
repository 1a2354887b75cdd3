"""Triton programs for rows that are reduced as a whole: simplex projection, alpha-entmax, and their Jacobians.

Only :mod:`lit_sparse.kernels.gpu.triton_rows` imports this, and only where Triton is installed.

A program takes ``rows`` rows at a time and keeps them in registers: one read and one write, however often Newton's method looks
at them. A row that is too long for that (``long``) is read anew, a tile at a time, for each look. Either way the first looks
are at the maxima of groups of entries, which are few and hold nearly all of the support: a subset has less mass than the row,
so its threshold bounds that of the row from the same side as Newton's method.

Names that the programs share:

- ``x``, ``y``, ``v`` point to tensors (n, d); in functions that a program calls, to the first column of its rows, (rows, 1, 1).
- ``n`` is the number of rows; ``d = units * unit`` their length, written so that the compiler sees what divides it and loads
  as many entries at once.
- A tile (rows, depth, groups) holds consecutive columns, and what stands for nothing after the last. A group is what has the
  same last index; it is in one thread, if ``groups`` entries are what a warp loads at once. ``z`` is a tile: the whole row, or
  the first of a long one.
- ``inside`` (rows,) tells which rows exist, ``live`` (rows,) which are still at work, ``width`` is the type to compute in.
- A number that Python has in double precision comes as two floats, ``high`` and ``low``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

__all__ = ["apply_jacobian", "map_entmax", "project_simplex"]

compiled: Callable[[Callable[..., Any]], Any] = triton.jit
program: Callable[[Callable[..., Any]], Any] = triton.jit(do_not_specialize=["n", "k"])

COARSE_PASSES = tl.constexpr(16)
# Of Newton's method alone. Then bisection helps: there are rows, made rather than met, on which Newton's method gives up one
# entry a pass.
NEWTON_PASSES = tl.constexpr(24)
PASSES = tl.constexpr(152)
FLAT = tl.constexpr(1e-12)  # alpha - 1 from below: here entmax is softmax to all digits
HUGE = tl.constexpr(float("inf"))


@compiled
def rows_of(n: tl.tensor, rows: tl.constexpr) -> tl.tensor:
    """Return the numbers (rows,) of this program's rows, wide enough for any offset, and which of them exist."""
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    return row, row < n


@compiled
def over(value: tl.tensor) -> tl.tensor:
    """Return a value for each row (rows,) as (rows, 1, 1)."""
    return value[:, None, None]


@compiled
def total(tile: tl.tensor) -> tl.tensor:
    """Return the sums (rows,) of a tile; first over depth, which is within threads."""
    return tl.sum(tl.sum(tile, 1), 1)


@compiled
def any_of(flag: tl.tensor) -> tl.tensor:
    """Tell whether one of (rows,) is set."""
    return tl.max(flag.to(tl.int32), 0) > 0


@compiled
def columns(start: tl.tensor, depth: tl.constexpr, groups: tl.constexpr) -> tl.tensor:
    """Return the numbers (1, depth, groups) of the columns from ``start`` on."""
    return start + (tl.arange(0, depth) * groups)[None, :, None] + tl.arange(0, groups)[None, None, :]


@compiled
def load(
    x: tl.tensor,
    start: tl.tensor,
    d: tl.tensor,
    inside: tl.tensor,
    nothing: tl.constexpr,
    depth: tl.constexpr,
    groups: tl.constexpr,
    width: tl.constexpr,
) -> tl.tensor:
    """Load a tile from column ``start`` on, ``nothing`` standing where there is none."""
    column = columns(start, depth, groups)
    return tl.load(x + column, mask=over(inside) & (column < d), other=nothing).to(width)


@compiled
def load_scores(x: tl.tensor, start: tl.tensor, d: tl.tensor, inside: tl.tensor, like: tl.tensor) -> tl.tensor:
    """Load scores as a tile of the shape and type of another."""
    return load(x, start, d, inside, -HUGE, like.shape[1], like.shape[2], like.dtype)


@compiled
def store(y: tl.tensor, tile: tl.tensor, start: tl.tensor, d: tl.tensor, inside: tl.tensor) -> None:
    """Store a tile from column ``start`` on."""
    column = columns(start, tile.shape[1], tile.shape[2])
    if y.dtype.element_ty == tl.bfloat16:  # there is no other way to it from float64 in the interpreter
        tile = tile.to(tl.float32)
    tl.store(y + column, tile.to(y.dtype.element_ty), mask=over(inside) & (column < d))


@compiled
def nan_to_inf(tile: tl.tensor) -> tl.tensor:
    """Make one odd case of two."""
    return tl.where(tile == tile, tile, HUGE)


@compiled
def peaks_of(z: tl.tensor, x: tl.tensor, d: tl.tensor, inside: tl.tensor, long: tl.constexpr) -> tl.tensor:
    """Return the maxima of groups of a row's entries as a tile, a NaN counting as +inf."""
    peaks = nan_to_inf(z)
    if long:
        size: tl.constexpr = z.shape[1] * z.shape[2]
        for start in range(size, d, size):
            peaks = tl.maximum(peaks, nan_to_inf(load_scores(x, start, d, inside, z)))
    else:
        peaks = tl.max(peaks, 1)[:, None, :]
    return peaks


@compiled
def marked(z: tl.tensor, y: tl.tensor, odd: tl.tensor) -> tl.tensor:
    """Return the result ``y`` for scores ``z``; where ``odd`` (rows,), NaN at their allowed entries."""
    return tl.where(over(odd), tl.where(z == -HUGE, 0.0, float("nan")), y)


# Projection onto the simplex


@compiled
def excess_over(
    z: tl.tensor,
    x: tl.tensor,
    top: tl.tensor,
    point: tl.tensor,
    d: tl.tensor,
    inside: tl.tensor,
    long: tl.constexpr,
) -> tl.tensor:
    """Return ``sum (z - point)_+`` and the number of its positive terms, each (rows,); a long row is ``x - top``."""
    if long:
        mass = tl.zeros_like(point).to(tl.float64)
        count = tl.zeros_like(point).to(tl.int32)
        for start in range(0, d, z.shape[1] * z.shape[2]):
            excess = load_scores(x, start, d, inside, z) - over(top) - over(point)
            mass += total(tl.maximum(excess, 0.0)).to(tl.float64)
            count += total((excess > 0).to(tl.int32))
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
    d: tl.tensor,
    inside: tl.tensor,
    halve: tl.constexpr,
    passes: tl.constexpr,
    long: tl.constexpr,
) -> tl.tensor:
    """Find the root tau of ``sum (z - tau)_+ = gamma``, where ``live``; a long row is ``x - top``.

    ``tau`` is not above the root, and the threshold of ``count`` entries: where as many are above it, they are the support.
    ``halve`` says to look at half of tau first, which for most rows is nearer to the root, and never much worse.

    Returns:
        tau; its count; and what rounding left between tau and the root, so that a long float32 row still sums to one.
    """
    upper = tl.zeros_like(tau)
    rest = tl.zeros_like(tau)
    i = 0
    while any_of(live) & (i < passes):
        between = (i % 2 == 0) & (i >= NEWTON_PASSES)
        if halve:
            between = between | (i == 0)
        point = tl.where(between, 0.5 * (tau + upper), tau)
        mass, above = excess_over(z, x, top, point, d, inside, long)
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
def largest(x: tl.tensor, z: tl.tensor, k: tl.tensor, d: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Return ``z`` with -inf outside the k largest entries of each row, ties going to the lowest index.

    The k-th largest is found bit by bit on integers that order as the floats do.
    """
    value = load_scores(x, 0, d, inside, z)  # not z, in which subtraction may have made ties
    if value.dtype == tl.float64:
        bits = value.to(tl.int64, bitcast=True)
        sign = 63
    else:
        bits = value.to(tl.int32, bitcast=True)
        sign = 31
    one = tl.zeros_like(bits) + 1
    key = bits ^ ((bits >> sign) & ~(one << sign))
    bit = tl.max(tl.max(one, 1), 1)
    least = bit << sign
    i = 0
    while i <= sign:
        ahead = least ^ (bit << (sign - i))
        least = tl.where(total((key >= over(ahead)).to(tl.int32)) >= k, ahead, least)
        i += 1
    greater = key > over(least)
    tied = (key == over(least)).to(tl.int32)
    before = tl.sum(tied, 2)
    before = tl.cumsum(before, 1) - before
    place = tl.cumsum(tied, 2) + before[:, :, None]
    left = k - total(greater.to(tl.int32))
    return tl.where(greater | ((tied > 0) & (place <= over(left))), z, -HUGE)


@compiled
def projection(z: tl.tensor, tau: tl.tensor, rest: tl.tensor, gamma: tl.tensor, odd: tl.tensor) -> tl.tensor:
    """Return ``(z - tau - rest)_+ / gamma``; tau and rest are not added first, for rounding would take rest."""
    excess = z - over(tau)
    y = tl.where(excess > 0, tl.maximum(excess - over(rest), 0.0) * over(1.0 / gamma), 0.0)
    return marked(z, y, odd)


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
    """Project rows of ``x / gamma`` onto the simplex, ``gamma = high + low``.

    If ``some``, only their k largest entries take part, and no row may be long.
    """
    d = units * unit
    row, inside = rows_of(n, rows)
    x += over(row) * d
    y += over(row) * d
    gamma = tl.zeros([rows], width) + high + low
    z = load(x, 0, d, inside, -HUGE, depth, groups, width)
    peaks = peaks_of(z, x, d, inside, long)
    top = tl.max(tl.max(peaks, 1), 1)
    odd = top == HUGE
    live = (top > -HUGE) & ~odd
    top = tl.where(live, top, 0.0)
    z = z - over(top)
    tau = -gamma
    count = tl.full([rows], 1, tl.int32)
    if long or depth > 1:
        peaks = peaks - over(top)
        tau, count, rest = solve_projection(peaks, x, top, tau, count, live, gamma, d, inside, True, COARSE_PASSES, False)
        tau, count, rest = solve_projection(z, x, top, tau, count, live, gamma, d, inside, False, PASSES, long)
    else:
        tau, count, rest = solve_projection(z, x, top, tau, count, live, gamma, d, inside, True, PASSES, long)
    if some:
        crowded = live & (total((z > over(tau)).to(tl.int32)) > k)
        if any_of(crowded):
            z = tl.where(over(crowded), largest(x, z, k, d, inside), z)
            tau = tl.where(crowded, -gamma, tau)
            count = tl.where(crowded, 1, count)
            tau, count, left = solve_projection(z, x, top, tau, count, crowded, gamma, d, inside, True, PASSES, False)
            rest = tl.where(crowded, left, rest)
    if long:
        for start in range(0, d, depth * groups):
            tile = load_scores(x, start, d, inside, z) - over(top)
            store(y, projection(tile, tau, rest, gamma, odd), start, d, inside)
    else:
        store(y, projection(z, tau, rest, gamma, odd), 0, d, inside)


# alpha-entmax


@compiled
def eps_of(
    alpha: tl.tensor, row: tl.tensor, inside: tl.tensor, single: tl.constexpr, known: tl.constexpr, width: tl.constexpr
) -> tl.tensor:
    """Return alpha - 1 (rows,): of each row, or the ``single`` one; 1/2, without a look, if it is ``known``."""
    if known:
        eps = (row * 0).to(width) + 0.5
    else:
        if single:
            row = row * 0
        eps = (tl.load(alpha + row, mask=inside, other=1.5).to(tl.float64) - 1.0).to(width)
    return eps


@compiled
def exp_minus_one(u: tl.tensor) -> tl.tensor:
    """Return ``exp(u) - 1`` to all digits: the quotient gives back what rounding took from the power."""
    power = tl.exp(u)
    near = power == 1.0
    far = tl.where(power > 0, (power - 1.0) * (u / tl.log(tl.where(near, 2.0, power))), -1.0)
    return tl.where(near, u, far)


@compiled
def deformed(z: tl.tensor, t: tl.tensor, eps: tl.tensor, halves: tl.tensor, squares: tl.constexpr) -> tl.tensor:
    """Return the tiles ``y = [1 + eps (z - t)]_+^(1 / eps)`` and ``y^(1 - eps)``, which is minus its derivative in t.

    Args:
        z: tile of scores, none above 0.
        t: (rows,), not below 0.
        eps: (rows,) alpha - 1, > 0.
        halves: whether all eps are 1/2.
        squares: whether that is known when this is compiled.
    """
    m = over(eps) * (z - over(t))
    if squares:  # noqa: SIM114 - the compiler decides this, the program the next
        slope = tl.maximum(1.0 + m, 0.0)
        y = slope * slope
    elif halves:
        slope = tl.maximum(1.0 + m, 0.0)
        y = slope * slope
    else:
        positive = m > -1.0
        m = tl.where(positive, m, 0.0)
        base = 1.0 + m
        inverse = 1.0 / base
        logarithm = tl.log(base) + (m - (base - 1.0)) * inverse  # with what rounding took from 1 + m
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
    """Return the sums (rows,) of both over a row; a long one is ``(x - top) * factor``."""
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
    """Return the root t (rows,) of ``sum y = 1``, where ``live``; a long row is ``(x - top) * factor``.

    Newton's method runs on ``(sum y)^eps``, for eps <= 1 a norm, convex in t and nearly linear; it starts from ``t`` and keeps
    between 0 and ``highest``. It ends with a step of at most ``tolerance``, and leaves the square of that, or, for eps > 1/2,
    its power of ``1 / eps``.
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
        t = tl.where(live, ahead, t)  # a row that is done rests: its neighbours must not change it
        live = live & (step > tolerance) & (upper - lower > 1e-15 * upper)
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
    """Map rows of ``x * scale`` by alpha-entmax, ``scale = high + low``.

    ``alpha`` is one of each row, or a ``single`` one; if ``squares``, it is 1.5 and not read. ``part`` tells which rows to map:
    0 all, 1 those with alpha <= 2 or an invalid one, 2 those with alpha > 2.
    """
    d = units * unit
    row, inside = rows_of(n, rows)
    eps = eps_of(alpha, row, inside, single, squares, width)
    if part == 1:
        inside = inside & ~(eps > 1)
    if part == 2:
        inside = inside & (eps > 1)
    if part != 0:  # noqa: SIM102 - the compiler decides this, the program the next
        if ~any_of(inside):
            return
    x += over(row) * d
    y += over(row) * d
    odd = ~((eps >= 0) & (eps < HUGE))
    eps = tl.maximum(tl.where(odd, 0.5, eps), FLAT)
    halves = ~any_of(eps != 0.5)
    z = load(x, 0, d, inside, -HUGE, depth, groups, width)
    peaks = peaks_of(z, x, d, inside, long)
    top = tl.max(tl.max(peaks, 1), 1)
    odd = odd | (top == HUGE)
    live = (top > -HUGE) & ~odd
    top = tl.where(live, top, 0.0)
    factor = tl.where(live, tl.zeros([rows], width) + high + low, 1.0)
    z = (z - over(top)) * over(factor)
    highest = -exp_minus_one(-eps * tl.log(tl.zeros([rows], width) + d)) / eps
    t = 0.5 * highest
    # Of float32 only rows with alpha <= 2 are computed in float32. Towards 2 the sum gets kinks in t, beyond it is steep.
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
            store(y, marked(tile, result * over(inverse), odd), start, d, inside)
    else:
        result, _slope = deformed(z, t, eps, halves, squares)
        mass = total(result)
        inverse = 1.0 / tl.where(mass > 0, mass, 1.0)
        store(y, marked(z, result * over(inverse), odd), 0, d, inside)


# The Jacobians of both


@compiled
def weights_of(
    y: tl.tensor, eps: tl.tensor, halves: tl.tensor, least: tl.tensor, ceiling: tl.constexpr, power: tl.constexpr
) -> tl.tensor:
    """Return ``s = y^(1 - eps)`` on the support of y, 0 elsewhere, and NaN where y is; and the same relative to a largest s.

    For eps > 1 the smallest y of the row, ``least``, has the largest s, which may be too large for its type: s is cut off at
    ``exp(ceiling)``. Else both are s.
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
    """Return the sums (rows,) of the relative weights and of the weighted v less its origin, not looked at elsewhere."""
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
    """Return ``(weight (v - origin) - relative share) * scale``, 0 without weight; without an origin ``weight (v - share)``."""
    if power == "any":
        result = (weight * (v - over(origin)) - relative * over(share)) * over(scale)
    else:
        result = weight * (v - over(share)) * over(scale)
    return tl.where(weight != 0, result, 0.0)


@compiled
def least_of(y: tl.tensor, v: tl.tensor, least: tl.tensor, origin: tl.tensor) -> tl.tensor:
    """Return the smallest y above 0 (rows,) and the v of one place where it stands, given both for the tiles before."""
    smallest = tl.min(tl.min(tl.where(y > 0, y, HUGE), 2), 1)
    holds = tl.where(y == over(smallest), 1, 0)
    before = tl.sum(holds, 2)
    before = tl.cumsum(before, 1) - before
    first = (holds > 0) & (tl.cumsum(holds, 2) + before[:, :, None] == 1)
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
    """Multiply rows of ``v`` by the Jacobian of alpha-entmax at ``y`` times ``scale``: ``s (v - sum s v / sum s)``.

    ``s = y^(2 - alpha)`` is y to the ``power`` "zero" (projection onto the simplex), "half", or "any": of ``alpha``, which is
    one of each row, or a ``single`` one. ``scale = high + low``.
    """
    d = units * unit
    row, inside = rows_of(n, rows)
    eps = eps_of(alpha, row, inside, single, power != "any", width)
    halves = ~any_of(eps != 0.5)
    scale = tl.zeros([rows], width) + high + low
    v += over(row) * d
    y += over(row) * d
    out += over(row) * d
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
