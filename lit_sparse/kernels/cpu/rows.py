"""Functions that the row kernels share: classification of rows, results of invalid rows, selection of large entries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import REDUCTION_FLAGS, bits_of, compile_rows, empty, layout_of

__all__ = [
    "SIMD_BLOCK",
    "choose_largest",
    "ends_of",
    "gather_above",
    "gather_allowed",
    "highest_like",
    "is_broken",
    "key_range",
    "next_in_bracket",
    "normalized",
    "pad",
    "plain_top",
    "row_views",
    "scaled_scores",
    "spread_allowed",
    "top_of",
    "unit_of",
    "write_invalid",
    "write_keys",
    "write_zeros",
]
SIMD_BLOCK = 32


@compile_rows(REDUCTION_FLAGS)
def key_range(bits: Any, row: Any, low: Any, shift: Any) -> Any:
    """Return the smallest and the largest order key of a row.

    An order key is an integer that orders as its float does: the bits as they are, or, below zero, all but the sign
    flipped. Integers compare without the exceptions of NaN, so this pass is vectorized and finds them too.

    Args:
        bits: (rows, d) the bits of the entries, as integers.
        row: which row.
        low: integer of all bits but the sign; see :func:`~lit_sparse.kernels.cpu.compile.layout_of`.
        shift: number of those bits.
    """
    least, most = low, ~low
    for i in range(bits.shape[1]):
        key = bits[row, i] ^ ((bits[row, i] >> shift) & low)
        least = min(least, key)
        most = max(most, key)
    return least, most


@compile_rows()
def write_keys(bits: Any, row: Any, low: Any, shift: Any, keys: Any) -> Any:
    """Write the order keys of a row, -0.0 as 0.0, to ``keys[0]``; return the smallest and the largest.

    Args:
        bits: (rows, d) the bits of the entries, as integers.
        row: which row.
        low: integer of all bits but the sign; see :func:`~lit_sparse.kernels.cpu.compile.layout_of`.
        shift: number of those bits.
        keys: (1, d) integers, receives the keys.
    """
    least, most = low, ~low
    for i in range(bits.shape[1]):
        key = bits[row, i] ^ ((bits[row, i] >> shift) & low)
        if key == -1:
            key = bits.dtype.type(0)
        keys[0, i] = key
        least, most = min(least, key), max(most, key)
    return least, most


@compile_rows()
def count_from(keys: Any, key: Any) -> Any:
    """Return how many of the keys in ``keys[0]`` are >= ``key``.

    Args:
        keys: (1, d) integers.
        key: bound.
    """
    count = np.int32(0)
    for i in range(keys.shape[1]):
        count += np.int32(keys[0, i] >= key)
    return count


@compile_rows()
def choose_largest(keys: Any, n: Any, k: Any, least: Any, most: Any, chosen: Any) -> None:
    """Mark the k largest of n > k integer keys by 1 and the others by 0; ties go to the first.

    The bound that k keys reach is found by regula falsi on the number of keys that reach a bound, with a bisection in every
    third pass; most rows need a few passes.

    Args:
        keys: (1, d) integers; keys beyond the n are below ``least``.
        n: number of keys to choose from.
        k: number of keys to choose.
        least: smallest of the n keys.
        most: largest key.
        chosen: (d,) receives the marks.
    """
    one = keys.dtype.type(1)
    bound, many, few = least, n, 0  # `many` keys reach the bound, `few` reach `below`
    below = most + one
    passes = 0
    while many != k and below != bound + one:
        middle = (bound & below) + ((bound ^ below) >> one)  # this average cannot overflow
        passes += 1
        if passes % 3:
            share = (many - k) / (many - few)
            middle = keys.dtype.type(bound + share * (np.float64(below) - np.float64(bound)))
            middle = min(max(middle, bound + one), below - one)
        count = count_from(keys, middle)
        if count >= k:
            bound, many = middle, count
        else:
            below, few = middle, count
    for i in range(keys.shape[1]):
        chosen[i] = keys[0, i] >= bound
    surplus = many - k
    i = keys.shape[1]
    while surplus > 0:
        i -= 1
        if keys[0, i] == bound:
            chosen[i] = 0
            surplus -= 1


@compile_rows()
def write_invalid(x: Any, row: Any, y: Any) -> None:
    """Write the result of a row that holds NaN or +inf: NaN at its allowed entries, 0 where a score is -inf.

    Args:
        x: (rows, d) scores.
        row: which row.
        y: (rows, d) receives the result.
    """
    for i in range(x.shape[1]):
        y[row, i] = x.dtype.type(0) if x[row, i] == -np.inf else x.dtype.type(np.nan)


@compile_rows()
def write_zeros(row: Any, y: Any) -> None:
    """Write zeros to a row of y."""
    for i in range(y.shape[1]):
        y[row, i] = 0


@compile_rows()
def row_views(x: Any) -> Any:
    """Return an array's bits as integers, and a scratch array (2,) with its bits: arguments of :func:`ends_of`."""
    cell = empty(2, x.dtype)
    return bits_of(x), cell, bits_of(cell)


@compile_rows()
def ends_of(x: Any, bits: Any, row: Any, y: Any, cell: Any, cell_bits: Any) -> Any:
    """Write the maximum and minimum of a valid row to ``cell``; write the result of any other row to ``y``.

    Args:
        x: (rows, d); ``bits`` are the same as integers.
        bits: the bits of x.
        row: which row.
        y: (rows, d); receives zeros for a row without allowed entries, and NaN at the allowed entries of a row that holds
            NaN or +inf. It is not written for a valid row.
        cell: (2,) of the type of x; ``cell_bits`` are the same as integers.
        cell_bits: the bits of cell.

    Returns:
        Whether the row is valid: without NaN and +inf, and with an entry above -inf.
    """
    low, shift, lowest, highest = layout_of(x)
    least, most = key_range(bits, row, low, shift)
    if most >= highest or least < lowest:
        write_invalid(x, row, y)
        return False
    if most == lowest:
        write_zeros(row, y)
        return False
    cell_bits[0] = most ^ ((most >> shift) & low)
    cell_bits[1] = least ^ ((least >> shift) & low)
    return True


@compile_rows()
def top_of(x: Any, bits: Any, row: Any, y: Any, cell: Any, cell_bits: Any) -> Any:
    """Write the maximum of a valid row to ``cell`` and zeros to ``y``; handle other rows as :func:`ends_of` does."""
    ordinary = ends_of(x, bits, row, y, cell, cell_bits)
    if ordinary:
        write_zeros(row, y)
    return ordinary


@compile_rows(inline="source")
def gather_above(x: Any, row: Any, top: Any, scale: Any, limit: Any, values: Any, places: Any) -> Any:
    """Collect the scaled scores ``(x - top) * scale`` above ``limit`` and their places; return how many there are.

    Args:
        x: (rows, d) scores, -inf where an entry is not allowed.
        row: which row.
        top: maximum of the row.
        scale: factor of the differences.
        limit: bound of the scaled scores.
        values: (> d,) receives the scaled scores; they are computed in its type.
        places: (>= d,) receives their places in the row.
    """
    factor, bound = values.dtype.type(scale), values.dtype.type(limit)
    n = 0
    for i in range(x.shape[1]):  # without a branch: what is dropped is overwritten by the next
        value = values.dtype.type(x[row, i] - top) * factor
        values[n] = value
        places[n] = i
        n += value > bound
    return n


@compile_rows()
def gather_allowed(x: Any, row: Any, least: Any, values: Any, places: Any) -> Any:
    """Collect the allowed entries of a valid row, and their places unless all entries are allowed.

    Args:
        x: (rows, d).
        row: which row.
        least: its smallest entry.
        values: (d,) receives the entries.
        places: (d,) receives their places.

    Returns:
        Their number, and the smallest of them.
    """
    if least > -np.inf:
        for i in range(x.shape[1]):
            values[i] = x[row, i]
        return x.shape[1], least
    n, least = 0, x.dtype.type(np.inf)
    for i in range(x.shape[1]):
        values[n] = x[row, i]
        places[n] = i
        n += x[row, i] != -np.inf
        least = min(least, x[row, i]) if x[row, i] != -np.inf else least
    return n, least


@compile_rows()
def spread_allowed(row: Any, n: Any, places: Any, y: Any) -> None:
    """Move the first n results of a row to their places, with zeros in between.

    Args:
        row: which row.
        n: number of results.
        places: (>= n,) their places, ascending; not read if n is d.
        y: (rows, d), changed in place.
    """
    if n == y.shape[1]:
        return
    for i in range(y.shape[1] - 1, -1, -1):
        inside = n > 0 and places[n - 1] == i
        n -= inside
        y[row, i] = y[row, n] if inside else y.dtype.type(0)


@compile_rows()
def next_in_bracket(t: Any, below: Any, lower: Any, upper: Any, ahead: Any, trusted: Any) -> Any:
    """Return a smaller bracket of a root after a step of Newton's method, and the next point.

    Args:
        t: the present point.
        below: whether the point is at or below the root.
        lower: lower end of the bracket.
        upper: upper end.
        ahead: the point to which the next Newton step leads.
        trusted: whether to use that point if it is inside the bracket; otherwise bisect.
    """
    if below:
        lower = t
    else:
        upper = t
    if not trusted or not lower <= ahead <= upper:
        ahead = 0.5 * (lower + upper)
    return lower, upper, ahead


@compile_rows()
def pad(z: Any, n: Any) -> Any:
    """Pad the first n entries of z with -inf to whole SIMD blocks; return the padded length."""
    padded = (n + SIMD_BLOCK - 1) // SIMD_BLOCK * SIMD_BLOCK
    for j in range(n, padded):
        z[j] = -np.inf
    return padded


@compile_rows()
def plain_top(x: Any, row: Any) -> Any:
    """Return whether a row is valid, as a code, and its maximum in float64, without reading bits.

    The code is 0 for a valid row, 1 for a row without allowed entries, 2 for a row with NaN or +inf.
    """
    top, invalid = -np.inf, False
    for i in range(x.shape[1]):
        value = np.float64(x[row, i])
        invalid = invalid or value != value or value == np.inf
        top = max(top, value)
    return (2 if invalid else (1 if top == -np.inf else 0)), top


@compile_rows()
def is_broken(y: Any, row: Any) -> Any:
    """Return whether a row of y contains NaN."""
    broken = False
    for i in range(y.shape[1]):
        broken = broken or y[row, i] != y[row, i]
    return broken


def scaled_scores(x: Tensor, gamma: float, broken: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores over gamma, less each row's largest, which entries are allowed, and which rows are invalid.

    Args:
        x: (..., d) scores.
        gamma: strength.
        broken: (..., 1) booleans, True where a row's parameter is out of range, so that the row is invalid, too.

    Returns:
        Tensors (..., d), zero in invalid rows and in those with nothing allowed, (..., d) and (..., 1).
    """
    allowed = x != -torch.inf
    invalid = ~(x < torch.inf).all(-1, keepdim=True) | broken
    z = (x - x.amax(-1, keepdim=True)) / gamma
    return torch.where(invalid | ~allowed.any(-1, keepdim=True), torch.zeros_like(x), z), allowed, invalid


def normalized(y: Tensor, allowed: Tensor, invalid: Tensor) -> Tensor:
    """Return weights (..., d) divided by their sum, with NaN at allowed entries of rows that are ``invalid`` (..., 1)."""
    y = y / torch.where(allowed.any(-1, keepdim=True), y.sum(-1, keepdim=True), 1.0)
    return torch.where(allowed & invalid, torch.full_like(y, torch.nan), y)


def highest_like(x: Tensor) -> Tensor:
    """Return a tensor of x's shape filled with nearly the largest number of its dtype.

    It is computed, because an exported program would round a constant to float32's range.
    """
    power: Tensor = torch.full_like(x, 2.0) ** math.floor(math.log2(torch.finfo(x.dtype).max) - 0.5)
    return 1.9990234375 * power


def unit_of(size: Tensor) -> Tensor:
    """Return powers of two (..., 1) to divide rows of magnitudes (..., d) by, so that squares do not overflow or vanish.

    It is 1 wherever that is possible.
    """
    exponent = round(math.log2(torch.finfo(size.dtype).max))
    largest = size.detach().amax(-1, keepdim=True)
    one, two = torch.ones_like(largest), torch.full_like(largest, 2.0)  # exports round constants to float32's smaller range
    step, bound = two ** (exponent * 3 // 4), two ** (exponent // 2)
    unit = torch.where(largest > bound, step, one)
    return torch.where((largest < 1 / bound) & (largest > 0), 1 / step, unit)
