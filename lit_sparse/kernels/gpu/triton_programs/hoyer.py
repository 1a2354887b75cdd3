"""Projection onto a target of l1 and l2 norm, and its Jacobian, in float64."""

from __future__ import annotations

import triton.language as tl

from lit_sparse.kernels.gpu.triton_programs.largest import chosen_of, order_of
from lit_sparse.kernels.gpu.triton_programs.tiles import (
    HUGE,
    NEWTON_PASSES,
    PASSES,
    any_of,
    compiled,
    load,
    marked,
    maxima,
    minima,
    over,
    parameter_of,
    program,
    rows_of,
    store,
    top_of,
    total,
)

__all__ = ["hoyer_jacobian", "project_hoyer"]

SLACK = tl.constexpr(1e-9)  # on the square of l1 / l2, against the number of equal largest entries
MOST = tl.constexpr(3.4028234663852886e38)


@compiled
def sums_above(z: tl.tensor, tau: tl.tensor) -> tl.tensor:
    """Return the number (rows,) of entries above tau, their mean, and the sum of squared distances from the mean."""
    above = z > over(tau)
    count = total(tl.where(above, 1.0, 0.0).to(z.dtype))
    mean = total(tl.where(above, z, 0.0)) / tl.maximum(count, 1.0)
    distance = tl.where(above, z - over(mean), 0.0)
    return count, mean, total(distance * distance)


@compiled
def solve_hoyer(z: tl.tensor, ratio: tl.tensor, live: tl.tensor) -> tl.tensor:
    """Return the thresholds (rows,) of the Hoyer projection where ``live``.

    Fewer than ratio^2 entries attain the maximum 0, and there are more than ratio^2 in all.

    A superset of the support gives, in closed form, a threshold below the root; Newton's method leads there from above.
    """
    tau = tl.where(live, -HUGE, ratio * 0)
    square = ratio * ratio
    size = tl.zeros_like(tau)
    lower = tl.zeros_like(tau) - HUGE
    upper = tl.zeros_like(tau)
    i = 0
    while any_of(live) & (i < PASSES):
        count, mean, spread = sums_above(z, tau)
        excess = tl.where(z > over(tau), z - over(tau), 0.0)
        mass = total(excess)
        energy = total(excess * excess)
        root = tl.sqrt(energy)
        left = (count > square) & ((i == 0) | (mass >= ratio * root))
        exact = mean - ratio * tl.sqrt(spread / tl.where(left, count * (count - square), 1.0))
        slope = tl.where(root > 0, (mass * mass / tl.where(root > 0, energy, 1.0) - count) / tl.where(root > 0, root, 1.0), 0.0)
        falls = slope < 0
        back = tau - (mass / tl.where(falls, root, 1.0) - ratio) / tl.where(falls, slope, 1.0)
        lower = tl.where(live & left, tl.maximum(lower, tau), lower)
        upper = tl.where(live & ~left, tl.minimum(upper, tau), upper)
        back = tl.where(
            falls & (back > lower) & (back < upper), back, tl.where(i < NEWTON_PASSES, lower, 0.5 * (lower + upper))
        )
        ahead = tl.where(left, tl.maximum(exact, tau), back)
        moves = live & ~(left & (count == size)) & (ahead != tau)
        tau = tl.where(moves, ahead, tau)
        size = tl.where(live, tl.where(left, count, 0.0), size)
        live = moves
        i += 1
    return tau


@program
def project_hoyer(
    y: tl.tensor,
    x: tl.tensor,
    sparseness: tl.tensor,
    norm: tl.tensor,
    n: tl.tensor,
    units: tl.tensor,
    single: tl.constexpr,
    single_norm: tl.constexpr,
    nonneg: tl.constexpr,
    unit: tl.constexpr,
    rows: tl.constexpr,
    depth: tl.constexpr,
    groups: tl.constexpr,
    width: tl.constexpr,
    long: tl.constexpr,
) -> None:
    """Triton program that projects rows onto a Hoyer sparseness and an l2 norm; rows must fit into one tile."""
    row, inside, d, at = rows_of(n, units, unit, rows)
    sparseness = parameter_of(sparseness, row, inside, single, 0.5, width)
    norm = parameter_of(norm, row, inside, single_norm, 1.0, width)
    x += at
    y += at
    z = load(x, 0, d, inside, -HUGE, depth, groups, width)
    allowed = z != -HUGE
    invalid = top_of(z, x, d, inside, long) == HUGE
    a = z
    if not nonneg:
        a = tl.where(allowed, tl.abs(z), -HUGE)
    number = total(allowed.to(tl.int32)).to(width)
    live = (number > 0) & ~invalid
    a = tl.where(over(live), a, tl.where(allowed, 0.0, -HUGE))
    number = tl.maximum(number, 1.0)
    top = maxima(a)
    origin = tl.where(live, top, 0.0)
    least = minima(tl.where(allowed, a, HUGE))
    root = tl.sqrt(number)
    ratio = tl.minimum(tl.maximum(root - sparseness * (root - 1.0), 1.0), root)
    mass = norm * ratio
    goal = ratio * ratio - number * SLACK
    key = order_of(a, "value")
    least_key = order_of(top, "value")
    ties = total((key == over(least_key)).to(tl.int32))
    few = ties >= goal
    flat = number - ratio * ratio <= number * SLACK

    size = tl.minimum(tl.maximum(tl.ceil(goal), 1.0), tl.maximum(ties, 1).to(width))
    rest = tl.sqrt(tl.maximum(norm * norm - mass * mass / size, 0.0))
    first = mass / size + rest * tl.sqrt((size - 1.0) / size)
    others = tl.where(size > 1, mass / size - rest / tl.sqrt(tl.maximum(size * (size - 1.0), 1.0)), 0.0)
    equal = chosen_of(key, least_key, size.to(tl.int32))
    result = tl.where(equal, tl.where(chosen_of(key, least_key, ties * 0 + 1), over(first), over(others)), 0.0)
    result = tl.where(over(flat & ~few), over(mass / number), result)
    live = live & ~few & ~flat
    if any_of(live):
        scale = tl.where(live & (least < origin), origin - least, 1.0)
        a = tl.where(allowed, (a - over(origin)) / over(scale), -HUGE)
        tau = solve_hoyer(a, ratio, live)
        count, mean, spread = sums_above(a, tau)
        count = tl.maximum(count, 1.0)
        kappa = tl.sqrt(tl.maximum(norm * norm - mass * mass / count, 0.0) / tl.where(spread > 0, spread, 1.0))
        value = over(mass / count) + over(kappa) * (a - over(mean))
        result = tl.where(over(live), tl.where((a > over(tau)) & (value > 0), value, 0.0), result)
    if not nonneg:
        result = tl.where(z < 0, -result, result)
    store(y, marked(z, tl.where(allowed, result, 0.0), invalid), 0, d, inside)


@program
def hoyer_jacobian(
    out: tl.tensor,
    v: tl.tensor,
    y: tl.tensor,
    x: tl.tensor,
    n: tl.tensor,
    units: tl.tensor,
    unit: tl.constexpr,
    rows: tl.constexpr,
    depth: tl.constexpr,
    groups: tl.constexpr,
    width: tl.constexpr,
    long: tl.constexpr,
) -> None:
    """Triton program that multiplies rows of ``v`` by the Jacobian of the Hoyer projection at its result ``y``.

    Rows must fit into one tile.
    """
    _row, inside, d, at = rows_of(n, units, unit, rows)
    out += at
    point = load(y + at, 0, d, inside, 0.0, depth, groups, width)
    score = load(x + at, 0, d, inside, 0.0, depth, groups, width)
    push = load(v + at, 0, d, inside, 0.0, depth, groups, width)
    support = point != 0
    sign = tl.where(point < 0, -1.0, 1.0).to(width)
    number = tl.maximum(total(support.to(tl.int32)), 1)
    side = tl.where(support, sign * score, -HUGE)
    largest = maxima(side)
    side = tl.where(support, side - over(largest), 0.0)  # exact zeros for equal entries
    side = tl.where(support, side - over(total(side) / number), 0.0)
    push = tl.where(support, sign * push, 0.0)
    mass = total(tl.abs(point))
    spread = total(side * side)
    rest = total(point * point) - mass * mass / number
    safe = tl.where(spread > 0, spread, 1.0)
    kappa = tl.where(spread == 0, 0.0, tl.minimum(tl.sqrt(tl.maximum(rest, 0.0) / safe), MOST)) + (mass - mass)
    push = push - over(total(push) / number) - side * over(total(side * push) / safe)
    store(out, tl.where(support, sign * over(kappa) * push, 0.0), 0, d, inside)
