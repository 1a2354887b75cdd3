"""The best structure for given scores (its MAP, maximum a posteriori), for the structures that have a compiled search.

A row of scores and the structure found for it are rows of one matrix, so that nothing is allocated: the same source serves
the CPU and, translated by numba-cuda, NVIDIA GPUs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lit_sparse.kernels.cpu.compile import compile_rows

__all__ = [
    "BITS",
    "FINE",
    "SEQUENCE",
    "STEP",
    "TIE",
    "CompiledOracle",
    "coarse",
    "find_best",
    "is_broken",
    "links_of",
]

#: Kinds of structures that have a compiled oracle.
BITS, SEQUENCE = 0, 1
#: Residuals up to this size are zero up to rounding; the oracle replaces them by 0.
TIE = 1e-9
#: Scores are compared in steps of this size up to that magnitude, so that rounding does not choose among equal ones.
STEP, FINE = 2.0**-29, 2.0**23


class CompiledOracle(NamedTuple):
    """A compiled search for the best structure: the kind of structure and its parameters.

    Attributes:
        kind: ``BITS`` or ``SEQUENCE``.
        budget: maximum number of ones of a bit vector.
        tags: number of tags of a sequence.
        links: float64 (B or 1, positions - 1 or 1, tags, tags) transition scores [from, to]; an array or a
            tensor, or None for zeros where a solver has not filled them in yet.
    """

    kind: int
    budget: int = 0
    tags: int = 1
    links: Any = None


@compile_rows()
def coarse(score: Any) -> Any:
    """Return a score rounded to a multiple of a tiny step, or zero if it is zero up to rounding."""
    if abs(score) <= TIE:
        return 0.0
    return math.floor(score / STEP + 0.5) * STEP if abs(score) < FINE else score


@compile_rows(inline="source")
def select(values: Any, n: Any, k: Any) -> Any:
    """Return the k-th largest of the first n values, 1 <= k <= n; the values are reordered.

    Args:
        values: (>= n,) numbers.
        n: number of values.
        k: rank, 1 for the largest.
    """
    low, high = 0, n - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            return values[k - 1]
    return values[k - 1]


@compile_rows(inline="source")
def best_bits(rows: Any, r: Any, z: Any, scratch: Any, budget: Any) -> None:
    """Write the best bit vector with at most ``budget`` ones, for the scores in row r, to row z.

    Ones are at the largest positive scores; ties go to the lowest index.

    Args:
        rows: matrix that holds both rows.
        r: index of the row of scores.
        z: index of the row that receives zeros and ones.
        scratch: workspace of the length of a row.
        budget: maximum number of ones.
    """
    d = rows.shape[1]
    count = 0
    for i in range(d):
        on = rows[r, i] > TIE
        scratch[count] = coarse(rows[r, i])
        count += on
        rows[z, i] = on
    if count > budget:
        least = select(scratch, count, budget) if budget > 0 else np.inf
        left = budget
        for i in range(d):
            above = coarse(rows[r, i]) > least
            rows[z, i] = above
            left -= above
        for i in range(d):
            if left > 0 and coarse(rows[r, i]) == least:
                rows[z, i] = 1.0
                left -= 1


@compile_rows(inline="source")
def best_tags(oracle: Any, link: Any, rows: Any, r: Any, z: Any, scratch: Any, back: Any) -> None:
    """Write the best tag of each position, by Viterbi's algorithm, for the scores in row r, to row z.

    Positions whose tags are all forbidden (-inf) are left out, and their neighbours become adjacent.

    Args:
        oracle: a :class:`CompiledOracle`.
        link: index of the transition scores to read.
        rows: matrix that holds the rows; d is the number of positions times the number of tags.
        r: index of the row of scores, position-major.
        z: index of the row that receives zeros and ones.
        scratch: vector of length d: the best total that ends in each tag.
        back: integers (d,): the previous tag.
    """
    d, tags, links = rows.shape[1], oracle.tags, oracle.links
    before = -1
    for first in range(0, d, tags):
        present = False
        for tag in range(tags):
            rows[z, first + tag] = 0.0
            present = present or rows[r, first + tag] != -np.inf
        if not present:
            continue
        step = min(first // tags - 1, links.shape[1] - 1)
        for tag in range(tags):
            place = first + tag
            if before < 0:
                scratch[place], back[place] = rows[r, place], -1
                continue
            most, which = -np.inf, 0
            for origin in range(tags):
                value = scratch[before + origin] + links[link, step, origin, tag]
                if value > most + TIE:
                    most, which = value, origin
            scratch[place], back[place] = most + rows[r, place], before + which
        before = first
    if before < 0:
        return
    place = before
    for tag in range(1, tags):
        if scratch[before + tag] > scratch[place] + TIE:
            place = before + tag
    while place >= 0:
        rows[z, place] = 1.0
        place = back[place]


@compile_rows(inline="source")
def find_best(oracle: Any, link: Any, rows: Any, r: Any, z: Any, scratch: Any, back: Any) -> None:
    """Write the best structure for the scores in row r to row z; for the arguments, see :func:`best_tags`."""
    if oracle.kind == SEQUENCE:
        best_tags(oracle, link, rows, r, z, scratch, back)
    else:
        best_bits(rows, r, z, scratch, oracle.budget)


@compile_rows(inline="source")
def links_of(oracle: Any, link: Any, rows: Any, z: Any) -> Any:
    """Return the sum of the transition scores of the tags in row z; for the arguments, see :func:`best_tags`.

    It is 0 for structures without transitions.
    """
    tags, links = oracle.tags, oracle.links
    before, extra = -1, 0.0
    if oracle.kind != SEQUENCE:
        return extra
    for place in range(rows.shape[1]):
        if rows[z, place] != 0.0:
            if before >= 0:
                extra += links[link, min(place // tags - 1, links.shape[1] - 1), before % tags, place % tags]
            before = place
    return extra


@compile_rows(inline="source")
def is_broken(oracle: Any, link: Any) -> Any:
    """Return whether the transition scores contain NaN or an infinity."""
    links, broken = oracle.links, False
    for i in range(links.shape[1]):
        for j in range(links.shape[2]):
            for k in range(links.shape[3]):
                broken = broken or not abs(links[link, i, j, k]) < np.inf
    return broken
