"""Projection onto ``0 <= y <= 1, sum y <= k``, and its Jacobian: SparseMAP of bits, with a budget or without."""

from __future__ import annotations

import triton.language as tl

from lit_sparse.kernels.gpu.triton_programs.tiles import (
    HUGE,
    any_of,
    compiled,
    load,
    load_scores,
    marked,
    over,
    parameter_of,
    program,
    rows_of,
    store,
    top_of,
    total,
)

__all__ = ["budget_jacobian", "map_budget"]

HIGHEST = tl.constexpr(1.7976931348623157e308)
LENGTH_OF_SEARCH = tl.constexpr(2200)  # halvings of all numbers there are, and two steps of Newton's method for each
ROUNDING = tl.constexpr(2e-15)  # of a sum of terms in 0 .. 1, relative to it
EDGE = tl.constexpr(32.0 * 2.220446049250313e-16)  # how far from 0 or 1, relative to k, y may be and stand there
FIXED, FREE, TIED = tl.constexpr(-1), tl.constexpr(0), tl.constexpr(1)  # labels


@compiled
def scaled(z: tl.tensor, gamma: tl.tensor) -> tl.tensor:
    """Return scores over gamma, clipped to 0 below and to the largest float above."""
    return tl.minimum(tl.maximum(z / over(gamma), 0.0), HIGHEST)


@compiled
def clipped_sums(
    z: tl.tensor,
    x: tl.tensor,
    gamma: tl.tensor,
    base: tl.tensor,
    delta: tl.tensor,
    d: tl.tensor,
    inside: tl.tensor,
    long: tl.constexpr,
) -> tl.tensor:
    """Return the sums (rows,) of ``min((z - base + delta)_+, 1)``, and how many terms of positive scores are in [0, 1)."""
    mass = tl.zeros_like(base)
    count = tl.zeros_like(base)
    for start in range(0, d, z.shape[1] * z.shape[2]):
        tile = scaled(load_scores(x, start, d, inside, z), gamma) if long else scaled(z, gamma)
        y = (tile - over(base)) + over(delta)
        count += total(tl.where((y >= 0) & (y < 1) & (tile > 0), 1.0, 0.0).to(base.dtype))
        mass += total(tl.where(tile > 0, tl.minimum(tl.maximum(y, 0.0), 1.0), 0.0))
    return mass, count


@program
def map_budget(
    y: tl.tensor,
    labels: tl.tensor,
    x: tl.tensor,
    k: tl.tensor,
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
    """Triton program that computes budget sparsemax of rows of ``x / gamma``, where ``gamma = high + low``, in float64.

    A bracketed search for the threshold ends where the sum is k or no float lies between the ends. From the upper end,
    Newton's method adds ``delta``. The labels tell how y depends on x: not at all, on its own score, or on all tied ones.
    """
    row, inside, d, at = rows_of(n, units, unit, rows)
    k = parameter_of(k, row, inside, single, 1.0, width)
    gamma = tl.zeros([rows], width) + high + low
    x += at
    y += at
    labels += at
    z = load(x, 0, d, inside, -HUGE, depth, groups, width)
    top = top_of(z, x, d, inside, long)
    invalid = (top == HUGE) | ~(k >= 0)
    live = (top > 0) & ~invalid
    upper = tl.minimum(tl.where(live, top / gamma, 0.0), HIGHEST)
    lower = tl.zeros_like(upper)
    delta = tl.zeros_like(upper)
    base = tl.zeros_like(upper)
    mass, inner = clipped_sums(z, x, gamma, base, delta, d, inside, long)
    tied = live & (mass > k)
    live = tied
    i = 0
    while any_of(live) & (i < LENGTH_OF_SEARCH):
        mass, inner = clipped_sums(z, x, gamma, base, delta, d, inside, long)
        found = tl.abs(mass - k) <= k * ROUNDING
        lower = tl.where(live & ~found & (mass > k), base, lower)
        upper = tl.where(live & (found | (mass <= k)), base, upper)
        ahead = base + (mass - k) / tl.maximum(inner, 1.0)
        good = (inner > 0) & (ahead > lower) & (ahead < upper) & (i % 3 < 2)
        ahead = tl.where(good, ahead, lower + 0.5 * (upper - lower))
        live = live & ~found & (ahead > lower) & (ahead < upper)
        base = tl.where(live, ahead, base)
        i += 1
    base = tl.where(tied, upper, 0.0)
    size = tl.zeros_like(upper)
    live = tied
    i = 0
    while any_of(live) & (i <= d):
        mass, inner = clipped_sums(z, x, gamma, base, delta, d, inside, long)
        live = live & (inner > 0) & (inner != size)
        delta = tl.where(live, delta + (k - mass) / tl.maximum(inner, 1.0), delta)
        size = tl.where(live, inner, size)
        i += 1
    edge = tl.where(tied, k * EDGE, 0.0)
    for start in range(0, d, depth * groups):
        tile = load_scores(x, start, d, inside, z) if long else z
        score = scaled(tile, gamma)
        point = tl.where(score > 0, (score - over(base)) + over(delta), 0.0)
        point = tl.where(point <= over(edge), 0.0, tl.where(point >= 1.0 - over(edge), 1.0, point))
        label = tl.where((point > 0) & (point < 1), tl.where(over(tied), TIED, FREE), FIXED)
        label = tl.where(over(invalid), tl.where(tile != -HUGE, TIED, FIXED), label)
        store(y, marked(tile, point, invalid), start, d, inside)
        store(labels, label, start, d, inside)


@program
def budget_jacobian(
    out: tl.tensor,
    v: tl.tensor,
    y: tl.tensor,
    labels: tl.tensor,
    n: tl.tensor,
    units: tl.tensor,
    high: tl.tensor,
    low: tl.tensor,
    unit: tl.constexpr,
    rows: tl.constexpr,
    depth: tl.constexpr,
    groups: tl.constexpr,
    width: tl.constexpr,
    long: tl.constexpr,
) -> None:
    """Triton program that multiplies rows of ``v`` by the Jacobian of budget sparsemax at ``y`` times ``high + low``.

    Tied entries lose their mean.
    """
    _row, inside, d, at = rows_of(n, units, unit, rows)
    scale = tl.zeros([rows], width) + high + low
    out += at
    v += at
    y += at
    labels += at
    mass = tl.zeros([rows], width)
    count = tl.zeros([rows], tl.int32)
    for start in range(0, d, depth * groups):
        point = load(y, start, d, inside, 0.0, depth, groups, width)
        value = load(v, start, d, inside, 0.0, depth, groups, width)
        tied = load(labels, start, d, inside, -1.0, depth, groups, width) == TIED
        mass += total(tl.where(tied, value + 0.0 * point, 0.0))  # NaN for a broken row
        count += total(tied.to(tl.int32))
    mean = mass / tl.maximum(count, 1)
    for start in range(0, d, depth * groups):
        value = load(v, start, d, inside, 0.0, depth, groups, width)
        label = load(labels, start, d, inside, -1.0, depth, groups, width)
        value = (value - tl.where(label == TIED, over(mean), 0.0)) * over(scale)
        store(out, tl.where(label == FIXED, 0.0, value), start, d, inside)
