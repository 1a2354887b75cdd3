"""The backward pass of attention in blocks; see :mod:`lit_sparse.kernels.gpu.triton_programs.attention`."""

from __future__ import annotations

import triton.language as tl

from lit_sparse.kernels.gpu.triton_programs.attention import finite, load_block, score_block, store_block, weigh
from lit_sparse.kernels.gpu.triton_programs.tiles import (
    HUGE,
    compiled,
    program,
)

__all__ = ["differentiate_keys", "differentiate_queries"]


@compiled
def derivatives(
    x: tl.tensor,
    top: tl.tensor,
    threshold: tl.tensor,
    inverse: tl.tensor,
    inverse_gamma: tl.tensor,
    eps: tl.tensor,
    power: tl.constexpr,
) -> tl.tensor:
    """Return tiles of the attention weights and of their derivatives, NaN at the allowed pairs of invalid queries."""
    weight, decline = weigh((x - top[:, None]) * inverse_gamma, threshold, eps, power)
    broken = (threshold != threshold)[:, None] & (x != -HUGE)
    weight = tl.where(broken, float("nan"), weight * inverse[:, None])
    return weight, tl.where(broken, float("nan"), decline)


@program
def differentiate_queries(
    gradient: tl.tensor,
    statistics: tl.tensor,
    live: tl.tensor,
    output: tl.tensor,
    slope: tl.tensor,
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
    """Triton program that computes the gradient of a block of queries, and the mean slope of each query.

    With the derivatives s of the weights and their slopes d, the gradient in the scores is ``s (d - mean) / gamma`` with
    the mean ``sum s d / sum s``. Both sums are computed in one pass, with d relative to its mean under the weights, which
    is close to this mean.
    """
    row_blocks = tl.cdiv(length, rows)
    column_blocks = tl.cdiv(size, columns)
    block = tl.program_id(0) % row_blocks
    head = (tl.program_id(0) // row_blocks).to(tl.int64)
    first = block * rows
    row = first + tl.arange(0, rows)
    inside = row < length
    query += head * length * entries
    key += head // share * size * entries
    value += head // share * size * value_entries
    live += (head * row_blocks + block) * column_blocks
    if masked:
        mask += tl.load(places + head)
    statistics += head * 4 * length + row
    top = tl.load(statistics, mask=inside, other=0.0)
    threshold = tl.load(statistics + length, mask=inside, other=0.0)
    inverse = tl.load(statistics + 2 * length, mask=inside, other=0.0)
    q = finite(load_block(query, first, length, entries, rows, width))
    d = load_block(slope + head * length * value_entries, first, length, value_entries, rows, depth)
    out = load_block(output + head * length * value_entries, first, length, value_entries, rows, depth)
    origin = tl.sum(finite(d).to(tl.float32) * finite(out).to(tl.float32), 1)
    high = tl.minimum(size, first + rows) if causal else size

    weighted = tl.zeros([rows, width], tl.float32)
    plain = tl.zeros([rows, width], tl.float32)
    moment = tl.zeros([rows], tl.float32)
    mass = tl.zeros([rows], tl.float32)
    for start in range(0, high, columns):
        if tl.load(live + start // columns) != 0:
            k = finite(load_block(key, start, size, entries, columns, width))
            x = score_block(
                q, k, row, start, mask, row_step, column_step, length, size, scale, masked, causal, operand, precision
            )
            _weight, decline = derivatives(x, top, threshold, inverse, inverse_gamma, eps, power)
            v = load_block(value, start, size, value_entries, columns, depth)
            change = tl.dot(d.to(operand), tl.trans(v.to(operand)), input_precision=precision) - origin[:, None]
            change = tl.where(decline != 0, decline * change, 0.0)
            moment += tl.sum(change, 1)
            mass += tl.sum(decline, 1)
            weighted += tl.dot(change.to(operand), k.to(operand), input_precision=precision)
            plain += tl.dot(decline.to(operand), k.to(operand), input_precision=precision)
    rest = moment / tl.where(mass == 0, 1.0, mass)
    result = (weighted - rest[:, None] * plain) * (scale * inverse_gamma)
    store_block(gradient + head * length * entries, result, first, length, entries)
    tl.store(statistics + 3 * length, origin + rest, mask=inside)


@program
def differentiate_keys(
    key_gradient: tl.tensor,
    value_gradient: tl.tensor,
    statistics: tl.tensor,
    live: tl.tensor,
    slope: tl.tensor,
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
    """Triton program that computes the gradients of a block of keys and values, over all query heads that share them."""
    row_blocks = tl.cdiv(length, rows)
    column_blocks = tl.cdiv(size, columns)
    block = tl.program_id(0) % column_blocks
    group = (tl.program_id(0) // column_blocks).to(tl.int64)
    start = block * columns
    k = finite(load_block(key + group * size * entries, start, size, entries, columns, width))
    v = load_block(value + group * size * value_entries, start, size, value_entries, columns, depth)
    low = start // rows * rows if causal else 0

    result = tl.zeros([columns, width], tl.float32)
    value_result = tl.zeros([columns, depth], tl.float32)
    for member in range(0, share):
        head = group * share + member
        marks = live + head * row_blocks * column_blocks + block
        allowed = mask
        if masked:
            allowed = mask + tl.load(places + head)
        for first in range(low, length, rows):
            if tl.load(marks + tl.full([], first // rows, tl.int64) * column_blocks) != 0:
                row = first + tl.arange(0, rows)
                inside = row < length
                numbers = statistics + head * 4 * length + row
                top = tl.load(numbers, mask=inside, other=0.0)
                threshold = tl.load(numbers + length, mask=inside, other=0.0)
                inverse = tl.load(numbers + 2 * length, mask=inside, other=0.0)
                mean = tl.load(numbers + 3 * length, mask=inside, other=0.0)
                q = finite(load_block(query + head * length * entries, first, length, entries, rows, width))
                d = load_block(slope + head * length * value_entries, first, length, value_entries, rows, depth)
                x = score_block(
                    q, k, row, start, allowed, row_step, column_step, length, size, scale, masked, causal, operand, precision
                )
                weight, decline = derivatives(x, top, threshold, inverse, inverse_gamma, eps, power)
                value_result += tl.dot(tl.trans(weight.to(operand)), d.to(operand), input_precision=precision)
                change = tl.dot(d.to(operand), tl.trans(v.to(operand)), input_precision=precision) - mean[:, None]
                change = tl.where(decline != 0, decline * change, 0.0)
                result += tl.dot(tl.trans(change.to(operand)), q.to(operand), input_precision=precision)
    store_block(key_gradient + group * size * entries, result * (scale * inverse_gamma), start, size, entries)
    store_block(value_gradient + group * size * value_entries, value_result, start, size, value_entries)
