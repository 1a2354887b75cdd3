"""Lists of the keys that may have weight.

Scores are computed twice, a block of queries and one of keys at a time. The first pass keeps the largest of the scores that are
so many columns apart. They are some of the scores, so their threshold bounds the query's from below. The second pass marks the
scores above the bound, one bit each, and the marks become lists. Everything after that, by the programs of
:mod:`lit_sparse.kernels.gpu.triton_programs.listed`, touches the listed keys alone.

Names that the programs share, in addition to the names in :mod:`lit_sparse.kernels.gpu.triton_programs.attention`:

- ``bounds`` (N, L) float32 are compared with scores, or, without a cap and a bias, with products. For a query without keys the
  bound is inf. For one with an invalid score it is ``INVALID``, which NaN and inf alone are not at most.
- ``marks`` (blocks of queries, rows, words) have a bit per key. Their first block has the number ``block``.
- ``bias`` points to numbers, with places and strides as the mask has. ``biased`` is 0 without them, 1 for one of each pair, and
  2 for one of each key.
- ``width`` entries are multiplied at a time if there are more of them: then ``q`` is where the rows of the queries begin.
- ``ranges`` points to the first key that a query may see and the one after the last, int32, with places and strides likewise;
  both are 0 for a query without keys. Tiles that no query of a block may see are left out. No mask is needed in those that all
  of them see, such as most tiles of packed sequences.
- ``places`` (N L, capacity) list keys in increasing order, then -1.
"""

from __future__ import annotations

import triton.language as tl

from lit_sparse.kernels.gpu.triton_programs.tiles import HUGE, any_of, compiled, program

__all__ = ["begin", "mark_scores", "score_tile", "write_lists"]

INVALID = tl.constexpr(3.4028234663852886e38)


@compiled
def columns_of(columns: tl.constexpr) -> tl.tensor:
    """Return the columns (columns,) of a tile of scores in the order in which it holds them: 8 of each of two words in turn.

    Before Hopper, two warps that share rows hold groups of 8 columns in turn. In this order each of them holds whole words.
    """
    turns: tl.constexpr = min(columns // 32, 2)
    place = tl.arange(0, columns)
    word = place // (32 * turns) * turns + place // 8 % turns
    return word * 32 + place // (8 * turns) % 4 * 8 + place % 8


@compiled
def words_of(marked: tl.tensor, columns: tl.constexpr) -> tl.tensor:
    """Return words (rows, columns / 32), which have a bit for each marked column, of a tile (rows, columns) of marks."""
    rows: tl.constexpr = marked.shape[0]
    turns: tl.constexpr = min(columns // 32, 2)
    bit = tl.full([columns], 1, tl.int32) << (columns_of(columns) % 32)
    bits = tl.reshape(tl.where(marked, bit[None, :], 0), [rows, columns // (32 * turns), 4, turns, 8])
    return tl.sum(tl.reshape(tl.permute(bits, (0, 1, 3, 2, 4)), [rows, columns // 32, 32]), 2)


@compiled
def score_tile(
    q: tl.tensor,
    key: tl.tensor,
    start: tl.tensor,
    row: tl.tensor,
    length: tl.tensor,
    size: tl.tensor,
    mask: tl.tensor,
    mask_row: tl.tensor,
    mask_column: tl.tensor,
    bias: tl.tensor,
    bias_row: tl.tensor,
    bias_column: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    whole: tl.constexpr,
    masked: tl.constexpr,
    biased: tl.constexpr,
    ranged: tl.constexpr,
    capped: tl.constexpr,
    causal: tl.constexpr,
    entries: tl.constexpr,
    columns: tl.constexpr,
    width: tl.constexpr,
    operand: tl.constexpr,
    precision: tl.constexpr,
) -> tl.tensor:
    """Return a tile (rows, columns) of attention scores, or of query-key products, -inf where a pair is not allowed.

    ``whole`` tells that all columns exist and that causal masks and ranges allow them for every query.
    """
    column = columns_of(columns)
    entry = tl.arange(0, width)
    origin = tl.full([], start, tl.int64)
    tile = key + origin * entries + (column[None, :] * entries + entry[:, None])
    exists = (start + column < size)[None, :]
    if width < entries:
        x = tl.zeros([q.shape[0], columns], tl.float32)
        for part in range(0, entries, width):
            some = part + entry < entries
            k = tl.load(tile + part, mask=some[:, None] & exists, other=0)
            rows_of_q = tl.load(q[:, None] + part + entry[None, :], mask=(row < length)[:, None] & some[None, :], other=0)
            x = tl.dot(rows_of_q.to(operand), k.to(operand), x, input_precision=precision)
    else:
        if whole and width == entries:
            k = tl.load(tile)
        elif whole:
            k = tl.load(tile, mask=(entry < entries)[:, None], other=0)
        else:
            k = tl.load(tile, mask=(entry < entries)[:, None] & exists, other=0)
        x = tl.dot(q, k.to(operand), input_precision=precision)
    if capped or biased:
        x = x * scale
    if capped:
        near = tl.exp(-2.0 * tl.abs(x / softcap))
        x = tl.where(x < 0, -softcap, softcap) * (1.0 - near) / (1.0 + near)
    if biased == 2:
        added = bias + (origin + column).to(tl.int64) * bias_column
        x = x + tl.load(added, mask=start + column < size, other=0).to(tl.float32)[None, :]
    if masked or biased == 1 or not whole:
        allowed = (row < length)[:, None] & (start + column < size)[None, :]
        if causal:
            allowed = allowed & (start + column[None, :] <= row[:, None])
        if ranged and not whole:
            allowed = allowed & (start + column[None, :] >= low[:, None]) & (start + column[None, :] < high[:, None])
        place = origin + column
        if masked:
            seen = mask + row.to(tl.int64)[:, None] * mask_row + place[None, :] * mask_column
            allowed = allowed & (tl.load(seen, mask=allowed, other=0) != 0)
        if biased == 1:
            added = bias + row.to(tl.int64)[:, None] * bias_row + place[None, :] * bias_column
            x = x + tl.load(added, mask=allowed, other=0).to(tl.float32)
        x = tl.where(allowed, x, -HUGE)
    return x


@compiled
def begin(
    number: tl.tensor,
    query: tl.tensor,
    key: tl.tensor,
    mask: tl.tensor,
    mask_places: tl.tensor,
    bias: tl.tensor,
    bias_places: tl.tensor,
    ranges: tl.tensor,
    range_places: tl.tensor,
    range_row: tl.tensor,
    range_column: tl.tensor,
    length: tl.tensor,
    size: tl.tensor,
    share: tl.tensor,
    masked: tl.constexpr,
    biased: tl.constexpr,
    ranged: tl.constexpr,
    causal: tl.constexpr,
    entries: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    width: tl.constexpr,
    operand: tl.constexpr,
) -> tl.tensor:
    """Return what a program needs for a block of queries: its head, rows, queries, pointers, and ranges of columns.

    Queries outside are zero; pointers are to the head's keys, mask and bias. The four columns are the first and the last of
    the tiles that any query may see by its position, and of the tiles that all queries see.
    """
    blocks = tl.cdiv(length, rows)
    head = (number // blocks).to(tl.int64)
    first = number % blocks * rows
    row = first + tl.arange(0, rows)
    entry = tl.arange(0, width)
    if width < entries:
        q = query + (head * length + row.to(tl.int64)) * entries
    else:
        inside = (row < length)[:, None] & (entry < entries)[None, :]
        places = (head * length + row.to(tl.int64))[:, None] * entries + entry[None, :]
        q = tl.load(query + places, mask=inside, other=0).to(operand)
    key += head // share * size * entries
    if masked:
        mask += tl.load(mask_places + head)
    if biased:
        bias += tl.load(bias_places + head)
    whole_first = 0
    whole_last = (tl.minimum(size, first + 1) if causal else size) // columns * columns
    tiles = 0
    last = tl.minimum(size, first + rows) if causal else size
    low = row
    high = row
    if ranged:
        low, high = range_of(ranges + tl.load(range_places + head), row, length, range_row, range_column)
        tiles = tl.min(tl.where(high > low, low, size), 0) // columns * columns
        last = tl.max(high, 0)
        whole_first = tl.cdiv(tl.max(low, 0), columns) * columns
        whole_last = tl.maximum(whole_first, tl.min(tl.where(row < length, high, size), 0) // columns * columns)
    return head, row, q, key, mask, bias, low, high, tiles, last, whole_first, whole_last


@compiled
def range_of(ranges: tl.tensor, row: tl.tensor, length: tl.tensor, range_row: tl.tensor, range_column: tl.tensor) -> tl.tensor:
    """Return the first key that each query (rows,) may see, and one past the last; 0 for queries that do not exist."""
    place = ranges + row.to(tl.int64) * range_row
    low = tl.load(place, mask=row < length, other=0)
    return low, tl.load(place + range_column, mask=row < length, other=0)


@program
def mark_scores(
    marks: tl.tensor,
    bounds: tl.tensor,
    query: tl.tensor,
    key: tl.tensor,
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
    length: tl.tensor,
    size: tl.tensor,
    share: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    block: tl.tensor,
    words: tl.tensor,
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
    """Triton program that marks the scores of a block of queries that exceed their bounds."""
    head, row, q, key, mask, bias, low, high, tiles, last, whole_first, whole_last = begin(
        tl.program_id(0) + block, query, key, mask, mask_places, bias, bias_places, ranges, range_places,
        range_row, range_column, length, size, share, masked, biased, ranged, causal, entries, rows, columns, width, operand,
    )  # fmt: skip
    bound = tl.load(bounds + head * length + row, mask=row < length, other=HUGE)
    line = (tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)) * words
    marks += line[:, None] + tl.arange(0, columns // 32)[None, :]
    for part in tl.static_range(2):
        for step in range(tiles if part else whole_first, last - whole_last + whole_first if part else whole_last, columns):
            start = step + tl.where(step >= whole_first, whole_last - whole_first, 0) if part else step
            x = score_tile(
                q, key, start, row, length, size, mask, mask_row, mask_column, bias, bias_row, bias_column, low, high,
                scale, softcap, part == 0, masked, biased, ranged, capped, causal, entries, columns, width, operand, precision,
            )  # fmt: skip
            tl.store(marks + start // 32, words_of(~(x <= bound[:, None]), columns))


@compiled
def number_of_bits(word: tl.tensor) -> tl.tensor:
    """Return the number of set bits of each word."""
    word = word.to(tl.uint32, bitcast=True)
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    word = word + (word >> 8)
    return ((word + (word >> 16)) & 63).to(tl.int32)


@program
def write_lists(
    places: tl.tensor,
    counts: tl.tensor,
    marks: tl.tensor,
    bounds: tl.tensor,
    ranges: tl.tensor,
    range_places: tl.tensor,
    range_row: tl.tensor,
    range_column: tl.tensor,
    length: tl.tensor,
    size: tl.tensor,
    block: tl.tensor,
    words: tl.tensor,
    capacity: tl.tensor,
    ranged: tl.constexpr,
    causal: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    part: tl.constexpr,
    step: tl.constexpr,
) -> None:
    """Triton program that writes the lists of ``part`` queries from their marks, and the number of marked keys.

    An invalid query lists only its first marked key.
    """
    row_blocks = tl.cdiv(length, rows)
    local = tl.program_id(0) // (rows // part)
    line = tl.program_id(0) % (rows // part) * part + tl.arange(0, part)
    first = (local + block) % row_blocks * rows
    head = ((local + block) // row_blocks).to(tl.int64)
    inside = first + line < length
    row = head * length + first + line
    bound = tl.load(bounds + row, mask=inside, other=HUGE)
    most = tl.where(bound == INVALID, 1, capacity)
    marks += (local.to(tl.int64) * rows + line)[:, None] * words
    high = tl.minimum(size, first + rows) if causal else size
    unwritten = 0
    written = (high + columns - 1) // columns * columns // 32
    if ranged:
        lowest, highest = range_of(ranges + tl.load(range_places + head), first + line, length, range_row, range_column)
        unwritten = tl.min(tl.where(highest > lowest, lowest, size), 0) // 32
        written = (tl.max(highest, 0) + 31) // 32
    count = tl.zeros([part], tl.int32)
    for start in range(unwritten, written, step):
        place = start + tl.arange(0, step)
        word = tl.load(marks + place[None, :], mask=inside[:, None] & (place < written)[None, :], other=0)
        number = number_of_bits(word)
        slot = tl.cumsum(number, 1) - number + count[:, None]
        count += tl.sum(number, 1)
        while any_of(tl.max((word != 0).to(tl.int32), 1)):
            bit = (word & -word).to(tl.uint32, bitcast=True).to(tl.float32)
            index = (bit.to(tl.int32, bitcast=True) >> 23) - 127
            fits = (word != 0) & (slot < most[:, None])
            tl.store(places + row[:, None] * capacity + slot, place[None, :] * 32 + index, mask=fits)
            word = word & (word - 1)
            slot += 1
    tl.store(counts + row, tl.where(bound == INVALID, tl.minimum(count, 1), count), mask=inside)
