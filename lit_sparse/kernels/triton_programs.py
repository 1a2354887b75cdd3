"""Triton programs for rows that are reduced as a whole: simplex projection, alpha-entmax, and their Jacobians.

Only :mod:`lit_sparse.kernels.triton_rows` imports this, and only where Triton is installed.

A program takes ``rows`` rows at a time, padded with -inf to ``block`` columns, and keeps them in registers: one read and one
write, however often Newton's method looks at them. A row that is too long for that (``long``) is read anew, a block at a time,
for each look. Either way the first looks go to the maxima of groups of entries: few, and they hold nearly all of the support.
Because a subset has less mass, its threshold bounds that of the row from the same side as Newton's method.

Names that the programs share: ``x``, ``y``, ``v`` are pointers, those of a program's own rows once :func:`rows_of` has moved
them; ``n`` is the number of rows, ``d = units * unit`` their length, written so that the compiler sees what divides it and
loads as many entries at once; ``inside`` (rows,) tells which rows exist; ``width`` is the type that is computed in. A number
that Python has in double precision comes as two floats, ``high`` and ``low``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

__all__ = ["apply_jacobian", "map_entmax", "project_simplex"]

compiled: Callable[[Callable[..., Any]], Any] = triton.jit
unspecialized: Callable[[Callable[..., Any]], Any] = triton.jit(do_not_specialize=["n", "k"])

GROUPS = tl.constexpr(128)  # as many entries as the threads of a warp load at once, so that a group lies in one thread
COARSE_PASSES = tl.constexpr(16)
# Of Newton's method alone. Then every other pass bisects: there are rows, made rather than met, on which Newton's method
# gives up one entry a pass.
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
def number(high: tl.tensor, low: tl.tensor, rows: tl.constexpr, width: tl.constexpr) -> tl.tensor:
    """Return ``high + low`` (rows,)."""
    return tl.zeros([rows], width) + high + low


@compiled
def load(x: tl.tensor, start: tl.tensor, d: tl.tensor, inside: tl.tensor, block: tl.constexpr, width: tl.constexpr, other: tl.constexpr) -> tl.tensor:
    """Load (rows, block) entries from column ``start`` on; ``other`` stands where there is none."""
    column = start + tl.arange(0, block)[None, :]
    return tl.load(x + column, mask=inside[:, None] & (column < d), other=other).to(width)


@compiled
def store(y: tl.tensor, value: tl.tensor, start: tl.tensor, d: tl.tensor, inside: tl.tensor, block: tl.constexpr) -> None:
    """Store (rows, block) entries from column ``start`` on."""
    column = start + tl.arange(0, block)[None, :]
    tl.store(y + column, value.to(y.dtype.element_ty), mask=inside[:, None] & (column < d))


@compiled
def peaks_of(x: tl.tensor, d: tl.tensor, inside: tl.tensor, rows: tl.constexpr, block: tl.constexpr, width: tl.constexpr, long: tl.constexpr) -> tl.tensor:
    """Return the row if it fits, and maxima (rows, ...) of groups of its entries, a NaN counting as +inf."""
    value = load(x, 0, d, inside, block, width, -HUGE)
    peaks = tl.where(value == value, value, HUGE)
    if long:
        for start in range(block, d, block):
            ahead = load(x, start, d, inside, block, width, -HUGE)
            peaks = tl.maximum(peaks, tl.where(ahead == ahead, ahead, HUGE))
    elif block > 2 * GROUPS:
        peaks = tl.max(tl.reshape(peaks, (rows, block // GROUPS, GROUPS)), 1)
    return value, peaks


@compiled
def excess_over(z: tl.tensor, point: tl.tensor) -> tl.tensor:
    """Return ``sum (z - point)_+`` and the number of its positive terms, each (rows,)."""
    excess = z - point[:, None]
    return tl.sum(tl.maximum(excess, 0.0), 1), tl.sum((excess > 0).to(tl.int32), 1)


@compiled
def excess_of_row(
    z: tl.tensor, x: tl.tensor, top: tl.tensor, point: tl.tensor, d: tl.tensor, inside: tl.tensor,
    rows: tl.constexpr, block: tl.constexpr, width: tl.constexpr, long: tl.constexpr,
) -> tl.tensor:
    """Return the same for a whole row, be it in registers (``z``) or in memory (``x - top``)."""
    if long:
        total = tl.zeros([rows], tl.float64)
        count = tl.zeros([rows], tl.int32)
        for start in range(0, d, block):
            part, above = excess_over(load(x, start, d, inside, block, width, -HUGE) - top[:, None], point)
            total += part.to(tl.float64)
            count += above
    else:
        total, count = excess_over(z, point)
    return total, count


@compiled
def solve_projection(
    z: tl.tensor, x: tl.tensor, top: tl.tensor, tau: tl.tensor, count: tl.tensor, live: tl.tensor, gamma: tl.tensor, d: tl.tensor, inside: tl.tensor, halve: tl.constexpr,
    passes: tl.constexpr, rows: tl.constexpr, block: tl.constexpr, width: tl.constexpr, long: tl.constexpr,
) -> tl.tensor:
    """Find the root of ``sum (z - tau)_+ = gamma`` where ``live``.

    Args:
        tau: (rows,) not above the root.
        count: (rows,) of how many entries tau is the threshold; found again above tau, they are the support.
        halve: look at half of tau first, which for most rows is nearer to the root, and never much worse.

    Returns:
        tau, its count, and what rounding left between tau and the root, so that a long float32 row still sums to one.
    """
    upper = tl.zeros([rows], width)
    rest = tl.zeros([rows], width)
    i = 0
    while (tl.max(live.to(tl.int32), 0) > 0) & (i < passes):
        between = (i % 2 == 0) & (i >= NEWTON_PASSES)
        if halve:
            between = between | (i == 0)
        point = tl.where(between, 0.5 * (tau + upper), tau)
        total, above = excess_of_row(z, x, top, point, d, inside, rows, block, width, long)
        step = ((total - gamma) / tl.maximum(above, 1)).to(width)
        ahead = point + step  # never beyond the root, from either side: the sum is convex in tau
        upper = tl.where(step < 0, tl.minimum(upper, point), upper)
        better = ahead > tau
        settled = (above == count) | ~better
        settled = settled & ~between
        rest = tl.where(live & settled, step, rest)
        moves = live & better & ~settled
        tau = tl.where(moves, ahead, tau)
        count = tl.where(moves, above, count)
        live = live & ~settled
        i += 1
    return tau, count, rest


@compiled
def largest(x: tl.tensor, z: tl.tensor, k: tl.tensor, d: tl.tensor, inside: tl.tensor, block: tl.constexpr, width: tl.constexpr) -> tl.tensor:
    """Return ``z`` with -inf outside the k largest entries of each row, ties going to the lowest index.

    The k-th largest is found bit by bit on integers that order as the floats do.
    """
    value = load(x, 0, d, inside, block, width, -HUGE)  # not z, in which subtraction may have made ties
    if width == tl.float64:
        bits = value.to(tl.int64, bitcast=True)
        sign: tl.constexpr = 63
        one = tl.full([1], 1, tl.int64)
    else:
        bits = value.to(tl.int32, bitcast=True)
        sign: tl.constexpr = 31
        one = tl.full([1], 1, tl.int32)
    lowest = one << sign
    key = bits ^ ((bits >> sign) & ~lowest)
    least = tl.max(key, 1) * 0 + lowest
    for i in range(sign + 1):
        ahead = least ^ (one << (sign - i))
        least = tl.where(tl.sum((key >= ahead[:, None]).to(tl.int32), 1) >= k, ahead, least)
    greater = key > least[:, None]
    tied = key == least[:, None]
    place = tl.cumsum(tied.to(tl.int32), 1)
    left = k - tl.sum(greater.to(tl.int32), 1)
    return tl.where(greater | (tied & (place <= left[:, None])), z, -HUGE)


@compiled
def projection(z: tl.tensor, tau: tl.tensor, rest: tl.tensor, scale: tl.tensor, odd: tl.tensor) -> tl.tensor:
    """Return ``scale * (z - tau - rest)_+``, tau and rest not added first; NaN at the allowed entries where ``odd``."""
    excess = z - tau[:, None]
    y = tl.where(excess > 0, tl.maximum(excess - rest[:, None], 0.0) * scale[:, None], 0.0)
    return tl.where(odd[:, None], tl.where(z == -HUGE, 0.0, float("nan")), y)


@unspecialized
def project_simplex(
    y: tl.tensor, x: tl.tensor, n: tl.tensor, units: tl.tensor, gamma_high: tl.tensor, gamma_low: tl.tensor, k: tl.tensor, some: tl.constexpr,
    unit: tl.constexpr, rows: tl.constexpr, block: tl.constexpr, width: tl.constexpr, long: tl.constexpr,
) -> None:
    """Project rows of ``x / gamma`` onto the simplex; only their k largest entries if ``some``, never of long rows."""
    d = units * unit
    row, inside = rows_of(n, rows)
    x += row[:, None] * d
    y += row[:, None] * d
    gamma = number(gamma_high, gamma_low, rows, width)
    value, peaks = peaks_of(x, d, inside, rows, block, width, long)
    top = tl.max(peaks, 1)
    odd = top == HUGE
    live = (top > -HUGE) & ~odd
    top = tl.where(live, top, 0.0)
    z = value - top[:, None]
    tau = -gamma
    count = tl.full([rows], 1, tl.int32)
    grouped: tl.constexpr = long or block > 2 * GROUPS
    if grouped:
        tau, count, _ = solve_projection(
            peaks - top[:, None], x, top, tau, count, live, gamma, d, inside, True, COARSE_PASSES, rows, block, width, False
        )
    tau, count, rest = solve_projection(
        z, x, top, tau, count, live, gamma, d, inside, not grouped, PASSES, rows, block, width, long
    )
    if some:
        crowded = live & (tl.sum((z > tau[:, None]).to(tl.int32), 1) > k)
        if tl.max(crowded.to(tl.int32), 0) > 0:
            chosen = largest(x, z, k, d, inside, block, width)
            z = tl.where(crowded[:, None], chosen, z)
            tau = tl.where(crowded, -gamma, tau)
            count = tl.where(crowded, 1, count)
            tau, count, left = solve_projection(
                z, x, top, tau, count, crowded, gamma, d, inside, True, PASSES, rows, block, width, False
            )
            rest = tl.where(crowded, left, rest)
    if long:
        for start in range(0, d, block):
            z = load(x, start, d, inside, block, width, -HUGE) - top[:, None]
            store(y, projection(z, tau, rest, 1.0 / gamma, odd), start, d, inside, block)
    else:
        store(y, projection(z, tau, rest, 1.0 / gamma, odd), 0, d, inside, block)


@compiled
def exp_minus_one(u: tl.tensor) -> tl.tensor:
    """Return ``exp(u) - 1`` to all digits: the quotient gives back what rounding took from the power."""
    power = tl.exp(u)
    near = power == 1.0
    far = tl.where(power > 0, (power - 1.0) * (u / tl.log(tl.where(near, 2.0, power))), -1.0)
    return tl.where(near, u, far)


@compiled
def deformed(z: tl.tensor, t: tl.tensor, eps: tl.tensor, halves: tl.tensor, squares: tl.constexpr) -> tl.tensor:
    """Return ``y = [1 + eps (z - t)]_+^(1 / eps)``, and ``y^(1 - eps)``, which is minus its derivative in t.

    Args:
        z: (rows, ...) scores, none above 0.
        t: (rows,), not below 0.
        eps: (rows,) alpha - 1, > 0.
        halves: whether all eps are 1/2.
        squares: whether that is known beforehand.
    """
    m = eps[:, None] * (z - t[:, None])
    if squares:
        slope = tl.maximum(1.0 + m, 0.0)
        y = slope * slope
    elif halves:
        slope = tl.maximum(1.0 + m, 0.0)
        y = slope * slope
    else:
        inside = m > -1.0
        m = tl.where(inside, m, 0.0)
        base = 1.0 + m
        inverse = 1.0 / base
        logarithm = tl.log(base) + (m - (base - 1.0)) * inverse  # with what rounding took from 1 + m
        y = tl.where(inside, tl.exp(logarithm * (1.0 / eps)[:, None]), 0.0)
        slope = y * inverse
    return y, slope


@compiled
def sums_of_row(
    z: tl.tensor, x: tl.tensor, top: tl.tensor, factor: tl.tensor, t: tl.tensor, eps: tl.tensor, halves: tl.tensor, d: tl.tensor, inside: tl.tensor, squares: tl.constexpr,
    rows: tl.constexpr, block: tl.constexpr, width: tl.constexpr, long: tl.constexpr,
) -> tl.tensor:
    """Return the sums (rows,) of both over a row, be it in registers (``z``) or in memory (``(x - top) * factor``)."""
    if long:
        total = tl.zeros([rows], tl.float64)
        decline = tl.zeros([rows], tl.float64)
        for start in range(0, d, block):
            z = (load(x, start, d, inside, block, width, -HUGE) - top[:, None]) * factor[:, None]
            y, slope = deformed(z, t, eps, halves, squares)
            total += tl.sum(y, 1).to(tl.float64)
            decline += tl.sum(slope, 1).to(tl.float64)
    else:
        y, slope = deformed(z, t, eps, halves, squares)
        total = tl.sum(y, 1)
        decline = tl.sum(slope, 1)
    return total.to(width), decline.to(width)


@compiled
def solve_entmax(
    z: tl.tensor, x: tl.tensor, top: tl.tensor, factor: tl.tensor, t: tl.tensor, eps: tl.tensor, halves: tl.tensor, live: tl.tensor, d: tl.tensor, inside: tl.tensor, highest: tl.tensor,
    tolerance: tl.tensor, passes: tl.constexpr, squares: tl.constexpr,
    rows: tl.constexpr, block: tl.constexpr, width: tl.constexpr, long: tl.constexpr,
) -> tl.tensor:
    """Return the root t (rows,) of ``sum y = 1`` where ``live``, by Newton's method on ``(sum y)^eps``, in a bracket.

    For eps <= 1 that is a norm, convex in t and nearly linear.

    Args:
        t: (rows,) where to start.
        highest: (rows,) not below the root; 0 is not above it.
        tolerance: (rows,) of the last step; the error left behind is its square.
    """
    lower = tl.zeros([rows], width)
    upper = highest
    i = 0
    while (tl.max(live.to(tl.int32), 0) > 0) & (i < passes):
        total, slope = sums_of_row(z, x, top, factor, t, eps, halves, d, inside, squares, rows, block, width, long)
        lower = tl.where(total >= 1.0, t, lower)
        upper = tl.where(total >= 1.0, upper, t)
        if squares:
            ahead = t + 2.0 * (total - tl.sqrt(total)) / slope
        else:
            ahead = t - total / slope * exp_minus_one(-eps * tl.log(total)) / eps
        good = (ahead >= lower) & (ahead <= upper) & (i <= NEWTON_PASSES)
        ahead = tl.where(good, ahead, 0.5 * (lower + upper))
        step = tl.abs(ahead - t)
        t = tl.where(live, ahead, t)  # a row that is done rests: its neighbours must not change it
        live = live & (step > tolerance) & (upper - lower > 1e-15 * upper)
        i += 1
    return t


@unspecialized
def map_entmax(
    y: tl.tensor, x: tl.tensor, alpha: tl.tensor, n: tl.tensor, units: tl.tensor, high: tl.tensor, low: tl.tensor, part: tl.constexpr, single: tl.constexpr,
    squares: tl.constexpr, unit: tl.constexpr, rows: tl.constexpr, block: tl.constexpr, width: tl.constexpr,
    long: tl.constexpr,
) -> None:
    """Map rows of ``x * scale`` by alpha-entmax, ``scale = high + low``.

    Args:
        alpha: one of each row, or a ``single`` one; not read if ``squares``, which says that alpha is 1.5.
        part: which rows to map: 0 all, 1 those with alpha <= 2 or invalid, 2 those with alpha > 2.
    """
    d = units * unit
    row, inside = rows_of(n, rows)
    eps = eps_of(alpha, row, inside, single, squares, rows, width)
    if part == 1:
        inside = inside & ~(eps > 1)
    if part == 2:
        inside = inside & (eps > 1)
    if part != 0:
        if tl.max(inside.to(tl.int32), 0) == 0:
            return
    x += row[:, None] * d
    y += row[:, None] * d
    odd = ~((eps >= 0) & (eps < HUGE))
    eps = tl.maximum(tl.where(odd, 0.5, eps), FLAT)
    halves = tl.sum((eps != 0.5).to(tl.int32), 0) == 0
    value, peaks = peaks_of(x, d, inside, rows, block, width, long)
    top = tl.max(peaks, 1)
    odd = odd | (top == HUGE)
    live = (top > -HUGE) & ~odd
    top = tl.where(live, top, 0.0)
    factor = tl.where(live, number(high, low, rows, width), 1.0)
    z = (value - top[:, None]) * factor[:, None]
    size = tl.zeros([rows], width) + d
    highest = -exp_minus_one(-eps * tl.log(size)) / eps
    t = 0.5 * highest
    if width == tl.float32:
        tolerance = tl.full([rows], 3e-4, width)
    else:  # where alpha > 2, y is steep in t at its zeros
        tolerance = tl.where(eps > 1, 1e-15, 1e-9)
    if long or block > 2 * GROUPS:
        peaks = (peaks - top[:, None]) * factor[:, None]
        coarse = tl.full([rows], 1e-2, width)
        t = solve_entmax(
            peaks, x, top, factor, t, eps, halves, live, d, inside, highest, coarse, COARSE_PASSES, squares,
            rows, block, width, False,
        )
    t = solve_entmax(
        z, x, top, factor, t, eps, halves, live, d, inside, highest, tolerance, PASSES, squares, rows, block, width, long
    )
    if long:
        total, _ = sums_of_row(z, x, top, factor, t, eps, halves, d, inside, squares, rows, block, width, long)
        for start in range(0, d, block):
            z = (load(x, start, d, inside, block, width, -HUGE) - top[:, None]) * factor[:, None]
            result, _ = deformed(z, t, eps, halves, squares)
            store(y, normalized(z, result, total, odd), start, d, inside, block)
    else:
        result, _ = deformed(z, t, eps, halves, squares)
        store(y, normalized(z, result, tl.sum(result, 1), odd), 0, d, inside, block)


@compiled
def eps_of(
    alpha: tl.tensor, row: tl.tensor, inside: tl.tensor, single: tl.constexpr, squares: tl.constexpr, rows: tl.constexpr, width: tl.constexpr
) -> tl.tensor:
    """Return alpha - 1 (rows,)."""
    if squares:
        eps = tl.full([rows], 0.5, width)
    else:
        if single:
            row = row * 0
        eps = (tl.load(alpha + row, mask=inside, other=1.5).to(tl.float64) - 1.0).to(width)
    return eps


@compiled
def normalized(z: tl.tensor, y: tl.tensor, total: tl.tensor, odd: tl.tensor) -> tl.tensor:
    """Return ``y / total``; NaN at the allowed entries where ``odd``."""
    y = y * (1.0 / tl.where(total > 0, total, 1.0))[:, None]
    return tl.where(odd[:, None], tl.where(z == -HUGE, 0.0, float("nan")), y)


@compiled
def weights_of(y: tl.tensor, eps: tl.tensor, halves: tl.tensor, power: tl.constexpr) -> tl.tensor:
    """Return ``y^(1 - eps)`` on the support of y, 0 elsewhere, and NaN where y is."""
    support = y != 0
    if power == "zero":
        weight = tl.where(support, 1.0 + (y - y), 0.0)
    elif power == "half":
        weight = tl.sqrt(y)
    elif halves:
        weight = tl.sqrt(y)
    else:
        weight = tl.where(support, tl.exp((1.0 - eps)[:, None] * tl.log(tl.where(support, y, 1.0))), 0.0)
    return weight


@unspecialized
def apply_jacobian(
    out: tl.tensor, v: tl.tensor, y: tl.tensor, alpha: tl.tensor, n: tl.tensor, units: tl.tensor, high: tl.tensor, low: tl.tensor, single: tl.constexpr, power: tl.constexpr,
    unit: tl.constexpr, rows: tl.constexpr, block: tl.constexpr, width: tl.constexpr, long: tl.constexpr,
) -> None:
    """Multiply rows of ``v`` by ``scale`` times the Jacobian of alpha-entmax at ``y``: ``s (v - sum s v / sum s)``.

    Args:
        alpha: one of each row, or a ``single`` one; only read if ``power`` is "any".
        power: what ``s = y^(2 - alpha)`` is: y to the power of "zero" (projection onto the simplex), "half", or "any".
    """
    d = units * unit
    row, inside = rows_of(n, rows)
    eps = eps_of(alpha, row, inside, single, power != "any", rows, width)
    halves = tl.sum((eps != 0.5).to(tl.int32), 0) == 0
    scale = number(high, low, rows, width)
    v += row[:, None] * d
    y += row[:, None] * d
    out += row[:, None] * d
    if long:
        mass = tl.zeros([rows], tl.float64)
        total = tl.zeros([rows], tl.float64)
        for start in range(0, d, block):
            weight = weights_of(load(y, start, d, inside, block, width, 0.0), eps, halves, power)
            product = tl.where(weight != 0, load(v, start, d, inside, block, width, 0.0) * weight, 0.0)
            mass += tl.sum(weight, 1).to(tl.float64)
            total += tl.sum(product, 1).to(tl.float64)
        mean = (total / mass).to(width)
        for start in range(0, d, block):
            weight = weights_of(load(y, start, d, inside, block, width, 0.0), eps, halves, power)
            value = load(v, start, d, inside, block, width, 0.0)
            store(out, tl.where(weight != 0, weight * (value - mean[:, None]) * scale[:, None], 0.0), start, d, inside, block)
    else:
        weight = weights_of(load(y, 0, d, inside, block, width, 0.0), eps, halves, power)
        value = load(v, 0, d, inside, block, width, 0.0)
        mean = tl.sum(tl.where(weight != 0, value * weight, 0.0), 1) / tl.sum(weight, 1)
        store(out, tl.where(weight != 0, weight * (value - mean[:, None]) * scale[:, None], 0.0), 0, d, inside, block)
