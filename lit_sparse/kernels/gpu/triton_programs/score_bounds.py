"""Lower bounds of the scores that can have weights; see :mod:`lit_sparse.kernels.gpu.triton_programs.lists`."""

from __future__ import annotations

import triton.language as tl

from lit_sparse.kernels.gpu.triton_programs.lists import INVALID, begin, score_tile
from lit_sparse.kernels.gpu.triton_programs.tiles import HUGE, compiled, program

__all__ = ["bound_scores"]

# Newton steps of a bound: fewer give a lower bound, and more candidates.
PASSES = tl.constexpr(6)
# Exponents 1 / eps above: all scores in reach of the largest are candidates.
STEEP = tl.constexpr(40.0)
# Margin for rounding, as a fraction of the distance within which a score may have weight, and of the largest score.
MARGIN = tl.constexpr(1e-5)
RELATIVE = tl.constexpr(2e-6)


@compiled
def norm_of(q: tl.tensor, row: tl.tensor, length: tl.tensor, entries: tl.constexpr, width: tl.constexpr) -> tl.tensor:
    """Return the Euclidean norms (rows,) of queries, as :func:`begin` returns them."""
    if width < entries:
        square = tl.zeros([q.shape[0]], tl.float32)
        entry = tl.arange(0, width)
        for part in range(0, entries, width):
            some = (row < length)[:, None] & (part + entry < entries)[None, :]
            values = tl.load(q[:, None] + part + entry[None, :], mask=some, other=0).to(tl.float32)
            square += tl.sum(values * values, 1)
    else:
        square = tl.sum(q.to(tl.float32) * q.to(tl.float32), 1)
    return tl.sqrt(square)


@compiled
def bound_of(
    peaks: tl.tensor, eps: tl.tensor, unit: tl.tensor, scale: tl.tensor, margin: tl.tensor, power: tl.constexpr
) -> tl.tensor:
    """Return lower bounds (rows,) on the scores with weight, from group maxima ``peaks`` (rows, columns) of each query.

    With the weights ``u^p``, p = 1 / eps and ``u = 1 - s + eps (z - top) / gamma``, Newton's method on the p-norm of u,
    which is convex in s, stays below the root. ``unit`` is ``scale / gamma``.
    """
    top = tl.max(peaks, 1)
    searching = (top > -HUGE) & (top < HUGE)
    origin = tl.where(searching, top, 0.0)
    rest = 1.0 + (peaks - origin[:, None]) * (eps * unit)
    s = tl.zeros_like(top)
    p = tl.maximum(1.0, 1.0 / eps)
    for _ in range(PASSES):
        u = rest - s[:, None]
        above = u > 0
        if power == "one":
            total = tl.sum(tl.where(above, u, 0.0), 1)
            slope = tl.sum(tl.where(above, 1.0, 0.0), 1)
            root = 1.0
        elif power == "two":
            u = tl.where(above, u, 0.0)
            total = tl.sum(u * u, 1)
            slope = tl.sum(u, 1)
            root = tl.sqrt(total)
        else:
            u = tl.where(above, u, 1.0)
            part = tl.where(above, tl.exp((p - 1.0) * tl.log(u)), 0.0)
            total = tl.sum(part * u, 1)
            slope = tl.sum(part, 1)
            root = tl.exp((1.0 - 1.0 / p) * tl.log(tl.where(total > 0, total, 1.0)))
        step = (total - root) / tl.where(slope > 0, slope, 1.0)
        s = tl.where((step > 0) & (s + step < 1.0), s + step, s)
    s = tl.where(p <= STEEP, s, 0.0)
    bound = origin - (1.0 - s + MARGIN) / (eps * unit) - RELATIVE * tl.abs(origin) - margin
    bound = tl.where(bound == bound, bound, -HUGE)  # NaN would mark keys that are not allowed, or do not exist
    return tl.where(searching, bound, tl.where(top == -HUGE, HUGE, INVALID))


@program
def bound_scores(
    bounds: tl.tensor,
    query: tl.tensor,
    key: tl.tensor,
    norms: tl.tensor,
    mask: tl.tensor,
    mask_places: tl.tensor,
    mask_row: tl.tensor,
    mask_column: tl.tensor,
    bias: tl.tensor,
    bias_places: tl.tensor,
    bias_row: tl.tensor,
    bias_column: tl.tensor,
    ranges: tl.tensor,
    range_places: tl.tensor,
    range_row: tl.tensor,
    range_column: tl.tensor,
    eps: tl.tensor,
    length: tl.tensor,
    size: tl.tensor,
    share: tl.tensor,
    scale: tl.tensor,
    inverse_gamma: tl.tensor,
    softcap: tl.tensor,
    rounding: tl.tensor,
    power: tl.constexpr,
    masked: tl.constexpr,
    biased: tl.constexpr,
    ranged: tl.constexpr,
    capped: tl.constexpr,
    causal: tl.constexpr,
    entries: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    width: tl.constexpr,
    operand: tl.constexpr,
    precision: tl.constexpr,
) -> None:
    """Triton program that computes lower bounds on the scores with weight, for a block of queries.

    ``norms`` (B,) are upper bounds of the keys' norms. ``rounding``, times these and the norm of a query, bounds the
    difference between two ways to compute a product, which can affect both the largest product and the one compared with
    the bound.
    """
    head, row, q, key, mask, bias, low, high, tiles, last, whole_first, whole_last = begin(
        tl.program_id(0), query, key, mask, mask_places, bias, bias_places, ranges, range_places,
        range_row, range_column, length, size, share, masked, biased, ranged, causal, entries, rows, columns, width, operand,
    )  # fmt: skip
    peaks = tl.full([rows, columns], -HUGE, tl.float32)
    for part in tl.static_range(2):
        for step in range(tiles if part else whole_first, last - whole_last + whole_first if part else whole_last, columns):
            start = step + tl.where(step >= whole_first, whole_last - whole_first, 0) if part else step
            x = score_tile(
                q, key, start, row, length, size, mask, mask_row, mask_column, bias, bias_row, bias_column, low, high,
                scale, softcap, part == 0, masked, biased, ranged, capped, causal, entries, columns, width, operand, precision,
            )  # fmt: skip
            peaks = tl.maximum(peaks, x, propagate_nan=tl.PropagateNan.ALL)
    peaks = tl.where(peaks == peaks, peaks, HUGE)
    margin = 2 * rounding * norm_of(q, row, length, entries, width) * tl.load(norms + head // share)
    if capped or biased:
        bound = bound_of(peaks, tl.load(eps + head), inverse_gamma, scale, margin * scale + RELATIVE * softcap, power)
    else:
        bound = bound_of(peaks, tl.load(eps + head), inverse_gamma * scale, scale, margin, power)
    tl.store(bounds + head * length + row, bound, mask=row < length)
