"""Loading, storing and reducing tiles in Triton programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

compiled: Callable[[Callable[..., Any]], Any] = triton.jit
program: Callable[[Callable[..., Any]], Any] = triton.jit(do_not_specialize=["n", "k"])

COARSE_PASSES = tl.constexpr(16)
# Newton steps before bisection joins, for adversarial rows on which Newton's method removes one entry per step.
NEWTON_PASSES = tl.constexpr(24)
PASSES = tl.constexpr(152)
HUGE = tl.constexpr(float("inf"))


@compiled
def over(value: tl.tensor) -> tl.tensor:
    """Return values (rows,) as (rows, 1, 1), to broadcast them over tiles."""
    return value[:, None, None]


@compiled
def rows_of(n: tl.tensor, units: tl.tensor, unit: tl.constexpr, rows: tl.constexpr) -> tl.tensor:
    """Return the row indices (rows,) of this program, which of them exist, the row length, and each row's memory offset."""
    d = units * unit
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)  # wide enough for any offset
    return row, row < n, d, over(row) * d


@compiled
def total(tile: tl.tensor) -> tl.tensor:
    """Return the sums (rows,) of a tile."""
    return tl.sum(tl.sum(tile, 1), 1)


@compiled
def maxima(tile: tl.tensor) -> tl.tensor:
    """Return the maxima (rows,) of a tile."""
    return tl.max(tl.max(tile, 1), 1)


@compiled
def minima(tile: tl.tensor) -> tl.tensor:
    """Return the minima (rows,) of a tile."""
    return tl.min(tl.min(tile, 1), 1)


@compiled
def place_in(flag: tl.tensor) -> tl.tensor:
    """Return the cumulative sum along the columns of a tile of zeros and ones."""
    before = tl.sum(flag, 2)
    before = tl.cumsum(before, 1) - before
    return tl.cumsum(flag, 2) + before[:, :, None]


@compiled
def any_of(flag: tl.tensor) -> tl.tensor:
    """Return whether a flag (rows,) is set for any row."""
    return tl.max(flag.to(tl.int32), 0) > 0


@compiled
def columns(start: tl.tensor, depth: tl.constexpr, groups: tl.constexpr) -> tl.tensor:
    """Return the column indices (1, depth, groups) of the tile that begins at column ``start``."""
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
    """Load the tile that begins at column ``start``, with ``nothing`` where no entry exists."""
    column = columns(start, depth, groups)
    return tl.load(x + column, mask=over(inside) & (column < d), other=nothing).to(width)


@compiled
def load_scores(x: tl.tensor, start: tl.tensor, d: tl.tensor, inside: tl.tensor, like: tl.tensor) -> tl.tensor:
    """Load a tile of scores with the shape and dtype of another tile."""
    return load(x, start, d, inside, -HUGE, like.shape[1], like.shape[2], like.dtype)


@compiled
def store(y: tl.tensor, tile: tl.tensor, start: tl.tensor, d: tl.tensor, inside: tl.tensor) -> None:
    """Store the tile that begins at column ``start``."""
    column = columns(start, tile.shape[1], tile.shape[2])
    if y.dtype.element_ty == tl.bfloat16:  # there is no other way to it from float64 in the interpreter
        tile = tile.to(tl.float32)
    tl.store(y + column, tile.to(y.dtype.element_ty), mask=over(inside) & (column < d))


@compiled
def parameter_of(
    values: tl.tensor, row: tl.tensor, inside: tl.tensor, single: tl.constexpr, other: tl.constexpr, width: tl.constexpr
) -> tl.tensor:
    """Return a parameter (rows,), of each row or a ``single`` one for all; ``other`` for rows that do not exist."""
    if single:
        row = row * 0
    return tl.load(values + row, mask=inside, other=other).to(width)


@compiled
def nan_to_inf(tile: tl.tensor) -> tl.tensor:
    """Return a tile with NaN replaced by +inf, so that one comparison finds both."""
    return tl.where(tile == tile, tile, HUGE)


@compiled
def peaks_of(z: tl.tensor, x: tl.tensor, d: tl.tensor, inside: tl.tensor, long: tl.constexpr) -> tl.tensor:
    """Return a tile with the maxima of groups of a row's entries; a NaN counts as +inf."""
    peaks = nan_to_inf(z)
    if long:
        size: tl.constexpr = z.shape[1] * z.shape[2]
        for start in range(size, d, size):
            peaks = tl.maximum(peaks, nan_to_inf(load_scores(x, start, d, inside, z)))
    else:
        peaks = tl.max(peaks, 1)[:, None, :]
    return peaks


@compiled
def top_of(z: tl.tensor, x: tl.tensor, d: tl.tensor, inside: tl.tensor, long: tl.constexpr) -> tl.tensor:
    """Return the largest entries (rows,), +inf for a row with a NaN."""
    return maxima(peaks_of(z, x, d, inside, long))


@compiled
def marked(z: tl.tensor, y: tl.tensor, invalid: tl.tensor) -> tl.tensor:
    """Return the results ``y`` of scores ``z``, with NaN at the allowed entries of rows that are ``invalid`` (rows,)."""
    return tl.where(over(invalid), tl.where(z == -HUGE, 0.0, float("nan")), y)
