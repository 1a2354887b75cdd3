"""Products with listed rows of a matrix, and sums of them.

``places`` (R, capacity) list rows of one of the blocks of a matrix (B, S, E) in increasing order, then -1; ``blocks`` (R,) say
of which.
"""

from __future__ import annotations

import triton.language as tl

from lit_sparse.kernels.gpu.triton_programs.tiles import any_of, program

__all__ = ["multiply_listed", "scatter_listed", "sum_listed"]


@program
def multiply_listed(
    out: tl.tensor,
    rows: tl.tensor,
    matrix: tl.tensor,
    places: tl.tensor,
    blocks: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    entries: tl.tensor,
    capacity: tl.tensor,
    block: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """Triton program that computes products of rows (R, E) with the matrix rows (B, S, E) they list; 0 past a list's end."""
    pair = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    place = tl.load(places + pair, mask=pair < n, other=-1)
    row = pair // capacity
    listed = tl.load(blocks + row, mask=pair < n, other=0) * size + place
    total = tl.zeros([block], rows.dtype.element_ty)
    for first in range(0, entries, width):
        entry = first + tl.arange(0, width)
        some = (place >= 0)[:, None] & (entry < entries)[None, :]
        left = tl.load(rows + row[:, None] * entries + entry[None, :], mask=some, other=0)
        right = tl.load(matrix + listed[:, None] * entries + entry[None, :], mask=some, other=0)
        total += tl.sum(left * right, 1)
    tl.store(out + pair, total, mask=pair < n)


@program
def sum_listed(
    out: tl.tensor,
    weights: tl.tensor,
    matrix: tl.tensor,
    places: tl.tensor,
    blocks: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    entries: tl.tensor,
    capacity: tl.tensor,
    block: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """Triton program that sums the matrix rows (B, S, E) listed by each row, times their nonzero weights (R, C)."""
    row = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    entry = tl.program_id(1) * width + tl.arange(0, width)
    origin = tl.load(blocks + row, mask=row < n, other=0) * size
    total = tl.zeros([block, width], weights.dtype.element_ty)
    more = row < n
    slot = 0
    while any_of(more) & (slot < capacity):
        place = tl.load(places + row * capacity + slot, mask=more, other=-1)
        more = place >= 0
        weight = tl.load(weights + row * capacity + slot, mask=more, other=0)
        some = (more & (weight != 0))[:, None] & (entry < entries)[None, :]
        value = tl.load(matrix + (origin + place)[:, None] * entries + entry[None, :], mask=some, other=0)
        total += weight[:, None] * value
        slot += 1
    inside = (row < n)[:, None] & (entry < entries)[None, :]
    tl.store(out + row[:, None] * entries + entry[None, :], total, mask=inside)


@program
def scatter_listed(
    out: tl.tensor,
    weights: tl.tensor,
    rows: tl.tensor,
    order: tl.tensor,
    starts: tl.tensor,
    entries: tl.tensor,
    capacity: tl.tensor,
    block: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """Triton program that sums, for each place of a matrix (B, S, E), the rows (R, E) that list it, times their weights.

    ``order`` holds the slots of all lists sorted by place, ``starts`` where each place begins.
    """
    entry = tl.program_id(1) * width + tl.arange(0, width)
    total = tl.zeros([width], weights.dtype.element_ty)
    last = tl.load(starts + tl.program_id(0) + 1)
    for first in range(tl.load(starts + tl.program_id(0)), last, block):
        place = first + tl.arange(0, block)
        slot = tl.load(order + place, mask=place < last, other=0)
        weight = tl.load(weights + slot, mask=place < last, other=0)
        some = (weight != 0)[:, None] & (entry < entries)[None, :]
        row = tl.load(rows + (slot // capacity)[:, None] * entries + entry[None, :], mask=some, other=0)
        total += tl.sum(weight[:, None] * row, 0)
    tl.store(out + tl.program_id(0).to(tl.int64) * entries + entry, total, mask=entry < entries)
