"""Attention with entmax weights in blocks: the scores of a block of queries and one of keys exist only in registers.

A program of the forward pass has a block of queries. It passes over the blocks of keys and computes their scores again each
time: once for the largest scores, once for each Newton step of the thresholds, and once for the output. A block of keys whose
scores are all below the thresholds is marked, and later passes skip it; so do the programs of the gradients.

Names that the programs share:

- ``query`` (N, L, E), ``key`` (B, S, E), ``value`` (B, S, W) point to contiguous tensors, as do ``output``, ``slope`` (N, L, W)
  and the gradients. ``share`` heads of queries that follow each other have the same keys.
- ``statistics`` (N, 4, L) are, for each query, its largest score, its threshold, one over its mass, and the mean slope of its
  weights. The threshold counts from the largest score, in units of gamma; it is NaN for invalid queries.
- ``live`` (N, blocks of queries, blocks of keys) is 0 for blocks without weights.
- ``mask`` points to booleans; head n begins at ``places[n]``, and ``row_step`` and ``column_step`` are strides, or 0.
- ``rows`` and ``columns`` are the sizes of a block, ``width`` and ``depth`` are E and W rounded up to powers of 2.
- ``eps`` is alpha - 1. A weight is ``u^(1 / eps)`` with ``u = eps (z - threshold)`` and z the score in those units. Its
  derivative in z is ``u^(1 / eps - 1)``. ``power`` names the cases that need no logarithm: "one" and "two" for 1 / eps.
- ``operand`` is the type of the factors of products, ``precision`` how float32 factors are multiplied.
"""

from __future__ import annotations

import triton.language as tl

from lit_sparse.kernels.gpu.triton_programs.tiles import (
    COARSE_PASSES,
    HUGE,
    any_of,
    compiled,
    nan_to_inf,
    program,
)

__all__ = ["attend_blocks", "finite", "load_block", "score_block", "store_block", "weigh"]

# Excess of the mass over 1 after which one more Newton step ends the search.
SETTLED = tl.constexpr(1e-6)
# More steps than any row takes: each at least quarters excess times slope, as the function is convex and falls.
STEPS = tl.constexpr(48)


@compiled
def any_in(flag: tl.tensor) -> tl.tensor:
    """Return whether a flag (rows, columns) is set anywhere.

    One reduction: after one of each row, Triton 3.7 does not compile a second one for Blackwell.
    """
    return tl.max(flag.to(tl.int32)) > 0


@compiled
def load_block(
    x: tl.tensor, first: tl.tensor, size: tl.tensor, entries: tl.tensor, block: tl.constexpr, width: tl.constexpr
) -> tl.tensor:
    """Load rows ``first .. first + block - 1`` of a matrix (size, entries) as a tile, with zeros outside."""
    row = first + tl.arange(0, block)
    column = tl.arange(0, width)
    inside = (row < size)[:, None] & (column < entries)[None, :]
    return tl.load(x + row.to(tl.int64)[:, None] * entries + column[None, :], mask=inside, other=0)


@compiled
def store_block(x: tl.tensor, tile: tl.tensor, first: tl.tensor, size: tl.tensor, entries: tl.tensor) -> None:
    """Store a tile to the rows from ``first`` on of a matrix (size, entries)."""
    row = first + tl.arange(0, tile.shape[0])
    column = tl.arange(0, tile.shape[1])
    inside = (row < size)[:, None] & (column < entries)[None, :]
    tl.store(x + row.to(tl.int64)[:, None] * entries + column[None, :], tile.to(x.dtype.element_ty), mask=inside)


@compiled
def finite(tile: tl.tensor) -> tl.tensor:
    """Return a tile with NaN and infinities replaced by zeros, so that products with zero are zero.

    There are seldom any, and where Triton replaces them unasked, each warp does it for the whole tile.
    """
    broken = ~(tl.abs(tile.to(tl.float32)) < HUGE)
    if any_in(broken):
        tile = tl.where(broken, 0.0, tile).to(tile.dtype)
    return tile


@compiled
def score_block(
    q: tl.tensor,
    k: tl.tensor,
    row: tl.tensor,
    start: tl.tensor,
    mask: tl.tensor,
    row_step: tl.tensor,
    column_step: tl.tensor,
    length: tl.tensor,
    size: tl.tensor,
    scale: tl.tensor,
    masked: tl.constexpr,
    causal: tl.constexpr,
    operand: tl.constexpr,
    precision: tl.constexpr,
) -> tl.tensor:
    """Return the scores (rows, columns) of a block of keys from ``start`` on, -inf where a pair is not allowed or not there."""
    column = start + tl.arange(0, k.shape[0])
    x = tl.dot(q.to(operand), tl.trans(k.to(operand)), input_precision=precision) * scale
    allowed = (row < length)[:, None] & (column < size)[None, :]
    if causal:
        allowed = allowed & (column[None, :] <= row[:, None])
    if masked:
        place = row.to(tl.int64)[:, None] * row_step + column.to(tl.int64)[None, :] * column_step
        allowed = allowed & (tl.load(mask + place, mask=allowed, other=0) != 0)
    return tl.where(allowed, x, -HUGE)


@compiled
def weigh(z: tl.tensor, threshold: tl.tensor, eps: tl.tensor, power: tl.constexpr) -> tl.tensor:
    """Return tiles of the unnormalized weights and of their derivatives; 0 where z is not above the threshold."""
    u = eps * (z - threshold[:, None])
    above = u > 0
    u = tl.where(above, u, 0.0)
    if power == "one":
        weight = u
        decline = tl.where(above, 1.0, 0.0)
    elif power == "two":
        weight = u * u
        decline = u
    else:
        safe = tl.where(above, u, 1.0)
        weight = tl.where(above, tl.exp(tl.log(safe) / eps), 0.0)
        decline = weight / safe
    return weight, decline


@compiled
def newton_step(mass: tl.tensor, decline: tl.tensor, eps: tl.tensor, power: tl.constexpr) -> tl.tensor:
    """Return the Newton step of thresholds (rows,) towards a mass of 1, for the ``eps``-th power of the mass.

    That power is convex in the threshold, so the step never leads beyond the root, up to rounding.
    """
    some = mass > 0
    mass = tl.where(some, mass, 1.0)
    decline = tl.where(some, decline, 1.0)
    if power == "one":
        step = (mass - 1.0) / decline
    elif power == "two":
        step = 2.0 * (mass - tl.sqrt(mass)) / decline
    else:
        step = mass * (1.0 - tl.exp(-eps * tl.log(mass))) / (eps * decline)
    return tl.where(some, step, 0.0)


@compiled
def still_live(x: tl.tensor, z: tl.tensor, threshold: tl.tensor) -> tl.tensor:
    """Return whether a block may have nonzero weights: a score above its threshold, or an allowed pair of an invalid query."""
    return any_in((x != -HUGE) & ~(z <= threshold[:, None]))


@program
def attend_blocks(
    output: tl.tensor,
    statistics: tl.tensor,
    live: tl.tensor,
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    mask: tl.tensor,
    places: tl.tensor,
    row_step: tl.tensor,
    column_step: tl.tensor,
    length: tl.tensor,
    size: tl.tensor,
    entries: tl.tensor,
    value_entries: tl.tensor,
    share: tl.tensor,
    scale: tl.tensor,
    inverse_gamma: tl.tensor,
    eps: tl.tensor,
    power: tl.constexpr,
    masked: tl.constexpr,
    causal: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    width: tl.constexpr,
    depth: tl.constexpr,
    operand: tl.constexpr,
    precision: tl.constexpr,
) -> None:
    """Triton program that computes the attention output and statistics of a block of queries, and marks nonzero blocks."""
    row_blocks = tl.cdiv(length, rows)
    column_blocks = tl.cdiv(size, columns)
    block = tl.program_id(0) % row_blocks
    head = (tl.program_id(0) // row_blocks).to(tl.int64)
    first = block * rows
    row = first + tl.arange(0, rows)
    query += head * length * entries
    key += head // share * size * entries
    value += head // share * size * value_entries
    live += (head * row_blocks + block) * column_blocks
    if masked:
        mask += tl.load(places + head)
    high = tl.minimum(size, first + rows) if causal else size
    q = load_block(query, first, length, entries, rows, width)

    peaks = tl.full([rows, columns], -HUGE, tl.float32)  # the largest of the scores that are so many columns apart
    for start in range(0, high, columns):
        k = load_block(key, start, size, entries, columns, width)
        x = score_block(q, k, row, start, mask, row_step, column_step, length, size, scale, masked, causal, operand, precision)
        peaks = tl.maximum(peaks, nan_to_inf(x))
        tl.store(live + start // columns, any_in(x != -HUGE).to(tl.int8))
    top = tl.max(peaks, 1)
    invalid = top == HUGE
    searching = (top > -HUGE) & ~invalid
    top = tl.where(searching, top, 0.0)
    threshold = tl.where(searching, -1.0 / eps, tl.where(invalid, float("nan"), 0.0))

    # The peaks are some of the scores: their threshold is a lower bound.
    z = (peaks - top[:, None]) * inverse_gamma
    coarse = searching
    i = 0
    while any_of(coarse) & (i < COARSE_PASSES):
        weight, decline = weigh(z, threshold, eps, power)
        mass = tl.sum(weight, 1)
        step = newton_step(mass, tl.sum(decline, 1), eps, power)
        threshold = tl.where(coarse & (step > 0), threshold + step, threshold)
        coarse = coarse & (mass > 1.01)
        i += 1

    i = 0
    while any_of(searching) & (i < STEPS):
        tl.debug_barrier()  # the marks of the pass before are read
        mass = tl.zeros([rows], tl.float32)
        slope = tl.zeros([rows], tl.float32)
        for start in range(0, high, columns):
            if tl.load(live + start // columns) != 0:
                k = load_block(key, start, size, entries, columns, width)
                x = score_block(
                    q, k, row, start, mask, row_step, column_step, length, size, scale, masked, causal, operand, precision
                )
                z = (x - top[:, None]) * inverse_gamma
                weight, decline = weigh(z, threshold, eps, power)
                mass += tl.sum(weight, 1)
                slope += tl.sum(decline, 1)
                tl.store(live + start // columns, still_live(x, z, threshold).to(tl.int8))
        ahead = threshold + newton_step(mass, slope, eps, power)
        better = ahead > threshold
        threshold = tl.where(searching & better, ahead, threshold)
        searching = searching & better & (mass > 1.0 + SETTLED)
        i += 1

    tl.debug_barrier()
    mass = tl.zeros([rows], tl.float32)
    result = tl.zeros([rows, depth], tl.float32)
    for start in range(0, high, columns):
        if tl.load(live + start // columns) != 0:
            k = load_block(key, start, size, entries, columns, width)
            x = score_block(
                q, k, row, start, mask, row_step, column_step, length, size, scale, masked, causal, operand, precision
            )
            z = (x - top[:, None]) * inverse_gamma
            weight, _decline = weigh(z, threshold, eps, power)
            mass += tl.sum(weight, 1)
            v = load_block(value, start, size, value_entries, columns, depth).to(operand)
            result += tl.dot(weight.to(operand), finite(v), input_precision=precision)
            broken = ~(tl.abs(v.to(tl.float32)) < HUGE)
            if any_in(broken):  # only queries with weight on them are affected
                touched = tl.dot((weight > 0).to(operand), broken.to(operand), input_precision=precision)
                result = tl.where(touched > 0, float("nan"), result)
            tl.store(live + start // columns, still_live(x, z, threshold).to(tl.int8))
    inverse = 1.0 / tl.where(mass > 0, mass, 1.0)
    result = tl.where(invalid[:, None], float("nan"), result * inverse[:, None])
    store_block(output + head * length * value_entries, result, first, length, value_entries)
    statistics += head * 4 * length + row
    tl.store(statistics, top, mask=row < length)
    tl.store(statistics + length, threshold, mask=row < length)
    tl.store(statistics + 2 * length, inverse, mask=row < length)
