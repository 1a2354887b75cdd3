"""The k largest entries of rows, and hard thresholding."""

from __future__ import annotations

import triton.language as tl

from lit_sparse.kernels.gpu.triton_programs.tiles import (
    HUGE,
    any_of,
    compiled,
    load,
    load_scores,
    marked,
    maxima,
    minima,
    over,
    place_in,
    program,
    rows_of,
    store,
    top_of,
    total,
)

__all__ = ["chosen_of", "keep_chosen", "kth_largest", "order_of", "threshold_hard", "value_of"]


@compiled
def swapped(bits: tl.tensor) -> tl.tensor:
    """Turn the bits of floats into integers of the same order, and back."""
    sign: tl.constexpr = bits.dtype.primitive_bitwidth - 1
    return bits ^ ((bits >> sign) & ((1 << sign) - 1))


@compiled
def order_of(value: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """Return integer keys that order as the floats do, by their ``kind``: "value", "magnitude", or "positive".

    The latter two are -1 for entries that must not be chosen: -inf and, for "positive", entries <= 0.
    """
    bits = value.to(tl.int64 if value.dtype == tl.float64 else tl.int32, bitcast=True)
    if kind == "value":
        key = swapped(bits)
        key = tl.where(key == -1, 0, key)  # -0.0 is a tie with 0.0
    elif kind == "magnitude":
        low: tl.constexpr = (1 << (bits.dtype.primitive_bitwidth - 1)) - 1
        key = tl.where(value == -HUGE, -1, bits & low)
    else:
        key = tl.where(bits <= 0, -1, bits)
    return key


@compiled
def value_of(key: tl.tensor) -> tl.tensor:
    """Return the float whose key of the kind "value" is ``key``."""
    bits = swapped(key)
    return bits.to(tl.float64 if bits.dtype == tl.int64 else tl.float32, bitcast=True)


@compiled
def number_from(
    key: tl.tensor,
    x: tl.tensor,
    z: tl.tensor,
    least: tl.tensor,
    d: tl.tensor,
    inside: tl.tensor,
    kind: tl.constexpr,
    long: tl.constexpr,
) -> tl.tensor:
    """Return how many entries (rows,) have a key >= ``least`` (rows,)."""
    count = total((key >= over(least)).to(tl.int32))
    if long:
        size: tl.constexpr = z.shape[1] * z.shape[2]
        for start in range(size, d, size):
            count += total((order_of(load_scores(x, start, d, inside, z), kind) >= over(least)).to(tl.int32))
    return count


@compiled
def smallest_from(
    key: tl.tensor,
    x: tl.tensor,
    z: tl.tensor,
    least: tl.tensor,
    d: tl.tensor,
    inside: tl.tensor,
    kind: tl.constexpr,
    long: tl.constexpr,
) -> tl.tensor:
    """Return the smallest key (rows,) that is >= ``least`` (rows,)."""
    most: tl.constexpr = (1 << (key.dtype.primitive_bitwidth - 1)) - 1
    found = minima(tl.where(key >= over(least), key, most))
    if long:
        size: tl.constexpr = z.shape[1] * z.shape[2]
        for start in range(size, d, size):
            more = order_of(load_scores(x, start, d, inside, z), kind)
            found = tl.minimum(found, minima(tl.where(more >= over(least), more, most)))
    return found


@compiled
def kth_largest(
    key: tl.tensor,
    x: tl.tensor,
    z: tl.tensor,
    k: tl.tensor,
    live: tl.tensor,
    d: tl.tensor,
    inside: tl.tensor,
    kind: tl.constexpr,
    long: tl.constexpr,
) -> tl.tensor:
    """Return the k-th largest key (rows,), and how many of the entries with this key are among the k largest.

    It is found bit by bit, until exactly k entries reach the bound, or all bits are known. If there are fewer than k
    entries, it is the smallest.

    Args:
        key: keys of the row, or of the first tile of a long row.
        x: scores; see the package's docstring.
        z: tile of that shape and of the dtype to compute in.
        k: at least 1.
        live: (rows,) whether to search.
        d: length of a row.
        inside: (rows,) which rows exist.
        kind: kind of key; see :func:`order_of`.
        long: whether a row does not fit into one tile.
    """
    sign: tl.constexpr = key.dtype.primitive_bitwidth - 1
    bit = maxima(key * 0 + 1)
    least = bit << sign
    i = 0
    while any_of(live) & (i <= sign):
        ahead = least ^ (bit << (sign - i))
        count = number_from(key, x, z, ahead, d, inside, kind, long)
        least = tl.where(live & (count >= k), ahead, least)
        live = live & (count != k)
        i += 1
    least = smallest_from(key, x, z, least, d, inside, kind, long)
    return least, k - number_from(key, x, z, least + 1, d, inside, kind, long)


@compiled
def chosen_of(key: tl.tensor, least: tl.tensor, left: tl.tensor) -> tl.tensor:
    """Return which entries of a tile are chosen: keys above ``least`` (rows,), and the first ``left`` (rows,) equal to it."""
    tied = (key == over(least)).to(tl.int32)
    return (key > over(least)) | ((tied > 0) & (place_in(tied) <= over(left)))


@program
def threshold_hard(
    y: tl.tensor,
    chosen: tl.tensor,
    x: tl.tensor,
    n: tl.tensor,
    units: tl.tensor,
    k: tl.tensor,
    kind: tl.constexpr,
    unit: tl.constexpr,
    rows: tl.constexpr,
    depth: tl.constexpr,
    groups: tl.constexpr,
    width: tl.constexpr,
    long: tl.constexpr,
) -> None:
    """Triton program that keeps the k largest entries of rows, by their ``kind``, and marks them in ``chosen``."""
    _row, inside, d, at = rows_of(n, units, unit, rows)
    x += at
    y += at
    chosen += at
    z = load(x, 0, d, inside, -HUGE, depth, groups, width)
    invalid = top_of(z, x, d, inside, long) == HUGE
    least, left = kth_largest(order_of(z, kind), x, z, k, inside & ~invalid, d, inside, kind, long)
    if long:
        for start in range(0, d, depth * groups):
            tile = load_scores(x, start, d, inside, z)
            left = keep(y, chosen, tile, least, left, invalid, start, d, inside, kind)
    else:
        keep(y, chosen, z, least, left, invalid, 0, d, inside, kind)


@program
def keep_chosen(
    out: tl.tensor,
    v: tl.tensor,
    y: tl.tensor,
    chosen: tl.tensor,
    n: tl.tensor,
    units: tl.tensor,
    unit: tl.constexpr,
    rows: tl.constexpr,
    depth: tl.constexpr,
    groups: tl.constexpr,
    width: tl.constexpr,
    long: tl.constexpr,
) -> None:
    """Triton program that keeps the chosen entries of rows of ``v``, and sets the others to zero; NaN where ``y`` is NaN."""
    _row, inside, d, at = rows_of(n, units, unit, rows)
    out += at
    v += at
    y += at
    chosen += at
    for start in range(0, d, depth * groups):
        point = load(y, start, d, inside, 0.0, depth, groups, width)
        value = load(v, start, d, inside, 0.0, depth, groups, width)
        kept = load(chosen, start, d, inside, 0, depth, groups, width) != 0
        store(out, tl.where(kept, tl.where(point == point, value, float("nan")), 0.0), start, d, inside)


@compiled
def keep(
    y: tl.tensor,
    chosen: tl.tensor,
    tile: tl.tensor,
    least: tl.tensor,
    left: tl.tensor,
    invalid: tl.tensor,
    start: tl.tensor,
    d: tl.tensor,
    inside: tl.tensor,
    kind: tl.constexpr,
) -> tl.tensor:
    """Store a tile with only its chosen entries, and which these are; return how many ties are left."""
    key = order_of(tile, kind)
    kept = chosen_of(key, least, left) & (key >= 0)
    kept = (kept & ~over(invalid)) | (over(invalid) & (tile != -HUGE))
    store(y, marked(tile, tl.where(kept, tile, 0.0), invalid), start, d, inside)
    store(chosen, kept.to(tl.int32), start, d, inside)
    return left - total((key == over(least)).to(tl.int32))
