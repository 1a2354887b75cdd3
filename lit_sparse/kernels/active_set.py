"""SparseMAP of a row by the active-set method: the support grows by one structure at a time and stays affinely independent.

With the structures of the support as rows of A, the scores t, and ``e`` what other potentials add to each structure,
the method minimizes ``1/2 ||A^T xi - t||^2 - <e, xi>`` over the simplex. On a support it solves one linear system with
``M = A A^T + 1 1^T``, positive definite exactly when the structures are affinely independent, whose Cholesky factor R
(``R^T R = M``) is kept as structures come and go. Whoever enters is what the structure's own maximization (its MAP) finds for
the residual.

Source: Niculae, Martins, Blondel & Cardie (2018), SparseMAP; Correia, Niculae, Aziz & Martins (2020), appendix B, where
A A^T itself is factored, which is singular when the zero structure is in the support.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lit_sparse.kernels.compilation import REDUCTION_FLAGS, compile_rows
from lit_sparse.kernels.threads import over_rows

__all__ = ["BITS", "DEPENDENT", "ONE", "ROUNDING", "SEQUENCE", "TIE", "Array", "Start", "solve_batch", "solve_with_oracle"]

Array: TypeAlias = np.ndarray[Any, Any]


class Start(NamedTuple):
    """Where to start.

    Attributes:
        structures: float64 (B, n, d); n may be 0.
        probs: float64 (B, n), their probabilities; those of 0 are left out.
        extra: float64 (B, n), what other potentials add to them.
    """

    structures: Array
    probs: Array
    extra: Array


#: Kinds of structures that have a compiled oracle.
BITS, SEQUENCE = 0, 1
#: Residuals of this size are zero but for rounding: the oracle takes 0.
TIE = 1e-9
#: An entering structure whose squared distance from the affine hull of the support is below this lies in it.
DEPENDENT = 1e-9
#: Marginals this near to one are one but for rounding.
ONE = 1e-14
#: Relative rounding of a duality gap.
ROUNDING = 1e-13
SECONDS = 5e-9  # of one thread for one element of (rows, d, d), about
WORK_BYTES = 1 << 30  # workspace of a batch whose oracle is not compiled; longer ones are solved in parts


@compile_rows(REDUCTION_FLAGS)
def dot(a: Any, i: Any, b: Any, j: Any, first: Any, stop: Any) -> Any:
    """Return the inner product of entries ``first .. stop - 1`` of two rows of matrices."""
    total = 0.0
    for k in range(first, stop):
        total += a[i, k] * b[j, k]
    return total


@compile_rows(REDUCTION_FLAGS)
def add_multiple(y: Any, i: Any, factor: Any, x: Any, j: Any, first: Any, stop: Any) -> None:
    """Add a multiple of entries ``first .. stop - 1`` of a row of x to those of a row of y."""
    for k in range(first, stop):
        y[i, k] += factor * x[j, k]


@compile_rows(REDUCTION_FLAGS)
def common(a: Any, i: Any, j: Any) -> Any:
    """Return how many ones two rows of a matrix of zeros and ones have in common."""
    total = np.int32(0)
    for k in range(a.shape[1]):
        total += np.int32(a[i, k] & a[j, k])
    return total


@compile_rows(REDUCTION_FLAGS)
def gain_of(rows: Any, z: Any) -> Any:
    """Return by how much the scores of structure z exceed those of the reference."""
    total = 0.0
    for k in range(rows.shape[1]):
        total += (rows[z, k] - rows[REFERENCE, k]) * rows[SCORES, k]
    return total


@compile_rows(REDUCTION_FLAGS)
def gap_of(rows: Any, lists: Any, n: Any, extra: Any) -> Any:
    """Return by how much the structure in ``rows[FOUND]`` exceeds the support's mean total, and the size of its terms."""
    gap, size = 0.0, 0.0
    for i in range(rows.shape[1]):
        if rows[MARGINALS, i] != -np.inf:
            term = (rows[FOUND, i] - rows[MARGINALS, i]) * rows[RESIDUAL, i]
            gap += term
            size += abs(term)
    for s in range(n):
        term = lists[PROBS, s] * (extra - lists[EXTRA, s])
        gap += term
        size += abs(term)
    return gap, size


@compile_rows()
def is_small(gap: Any, size: Any, tol: Any) -> Any:
    """Tell whether a gap leaves marginals within ``tol``, or is rounding."""
    return gap <= max(0.5 * tol * tol, ROUNDING * (1.0 + size))


@compile_rows()
def select(values: Any, n: Any, k: Any) -> Any:
    """Return the k-th largest of the first n values, which it reorders; 1 <= k <= n."""
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


@compile_rows()
def best_bits(rows: Any, r: Any, z: Any, scratch: Any, budget: Any) -> None:
    """Write to row z the at most ``budget`` bits with the largest positive entries of row r.

    Args:
        rows: matrix that holds all of these rows.
        r: number of the row of scores.
        z: number of the row that receives zeros and ones.
        scratch: vector of the same length.
        budget: most ones.
    """
    d = rows.shape[1]
    count = 0
    for i in range(d):
        on = rows[r, i] > TIE
        scratch[count] = rows[r, i]
        count += on
        rows[z, i] = on
    if count > budget:
        least = select(scratch, count, budget) if budget > 0 else np.inf
        left = budget
        for i in range(d):
            above = rows[r, i] > least
            rows[z, i] = above
            left -= above
        for i in range(d):
            if left > 0 and rows[r, i] == least:
                rows[z, i] = 1.0
                left -= 1


@compile_rows()
def links_of(rows: Any, z: Any, tags: Any, links: Any, link: Any) -> Any:
    """Return the links' share in the total of the tags in row z; arguments as for :func:`best_tags`."""
    before, extra = -1, 0.0
    for place in range(rows.shape[1]):
        if rows[z, place] != 0.0:
            if before >= 0:
                extra += links[link, min(place // tags - 1, links.shape[1] - 1), before % tags, place % tags]
            before = place
    return extra


@compile_rows()
def best_tags(rows: Any, r: Any, z: Any, scratch: Any, back: Any, tags: Any, links: Any, link: Any) -> None:
    """Write to row z the best tag of each position by the algorithm of Viterbi.

    Positions whose tags are all forbidden (-inf) are left out, their neighbours become adjacent.

    Args:
        rows: matrix that holds the rows; d is the number of positions times ``tags``.
        r: number of the row of scores, position-major.
        z: number of the row that receives zeros and ones.
        scratch: vector of length d: the best total that ends in each tag.
        back: integers (d,): the tag before.
        tags: number of tags.
        links: (rows or 1, positions - 1 or 1, tags, tags), scores of a tag after another, [from, to].
        link: which of the first dimension to read.
    """
    d = rows.shape[1]
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


@compile_rows()
def maximize(
    kind: Any, rows: Any, r: Any, z: Any, scratch: Any, back: Any, budget: Any, tags: Any, links: Any, link: Any
) -> Any:
    """Write the best structure for row r to row z; return what other potentials add to it."""
    if kind == SEQUENCE:
        best_tags(rows, r, z, scratch, back, tags, links, link)
        return links_of(rows, z, tags, links, link)
    best_bits(rows, r, z, scratch, budget)
    return 0.0


# Rows of the workspace ``rows`` (VECTORS, d), and of ``lists`` (LISTS, capacity).
SCORES, RESIDUAL, MARGINALS, FOUND, REFERENCE, VECTORS = 0, 1, 2, 3, 4, 5
GAIN, EXTRA, ONES, SOLVED, PROBS, AIM, COLUMN, BASE, LISTS = 0, 1, 2, 3, 4, 5, 6, 7, 8
# Totals are taken relative to that of the first structure, REFERENCE, whose extra is lists[BASE, 0]: only differences matter,
# and a score as large as 1e30 that all structures share must not swallow the others.


@compile_rows()
def insert(factor: Any, lists: Any, n: Any, squared: Any) -> None:
    """Append the structure whose forward-solved column is in ``lists[COLUMN]``, at that squared distance, to the factor."""
    pivot = np.sqrt(squared)
    for i in range(n):
        factor[i, n] = lists[COLUMN, i]
    factor[n, n] = pivot
    lists[ONES, n] = (1.0 - dot(lists, COLUMN, lists, ONES, 0, n)) / pivot
    lists[SOLVED, n] = (lists[GAIN, n] - dot(lists, COLUMN, lists, SOLVED, 0, n)) / pivot


@compile_rows()
def remove(factor: Any, lists: Any, slots: Any, n: Any, k: Any) -> None:
    """Take structure k of n out of the support by rotations of the factor and of what was solved with it."""
    for i in range(k):
        for j in range(k, n - 1):
            factor[i, j] = factor[i, j + 1]
    for j in range(k + 1, n):
        lists[COLUMN, j] = factor[k, j]
    one, solved = lists[ONES, k], lists[SOLVED, k]
    for i in range(k + 1, n):
        length = np.hypot(factor[i, i], lists[COLUMN, i])
        c, s = factor[i, i] / length, lists[COLUMN, i] / length
        for j in range(i, n):
            value, other = factor[i, j], lists[COLUMN, j]
            factor[i - 1, j - 1] = c * value + s * other
            lists[COLUMN, j] = c * other - s * value
        lists[ONES, i - 1], one = c * lists[ONES, i] + s * one, c * one - s * lists[ONES, i]
        lists[SOLVED, i - 1], solved = c * lists[SOLVED, i] + s * solved, c * solved - s * lists[SOLVED, i]
    slot = slots[k]
    for i in range(k, n - 1):
        slots[i] = slots[i + 1]
        lists[GAIN, i], lists[EXTRA, i], lists[PROBS, i] = lists[GAIN, i + 1], lists[EXTRA, i + 1], lists[PROBS, i + 1]
    slots[n - 1] = slot


@compile_rows()
def back_solve(factor: Any, lists: Any, which: Any, n: Any) -> None:
    """Solve ``R y = lists[which]`` in place."""
    for i in range(n - 1, -1, -1):
        lists[which, i] = (lists[which, i] - dot(factor, i, lists, which, i + 1, n)) / factor[i, i]


@compile_rows()
def enter(matrix: Any, factor: Any, lists: Any, slots: Any, rows: Any, n: Any, extra: Any) -> Any:
    """Let the structure in ``rows[FOUND]`` into the support with probability zero; return the new size.

    If it is an affine combination ``sum c_i a_i`` of the support, as much probability as possible moves to it along c, and
    whoever thereby falls to zero leaves.
    """
    d = rows.shape[1]
    if n == 0:
        lists[BASE, 0] = extra
        for i in range(d):
            rows[REFERENCE, i] = rows[FOUND, i]
    while True:
        slot = slots[n]
        ones = 0.0
        for i in range(d):
            matrix[slot, i] = rows[FOUND, i] != 0.0
            ones += rows[FOUND, i]
        for i in range(n):
            lists[COLUMN, i] = 1.0 + common(matrix, slots[i], slot)
        for i in range(n):  # R^T y = column
            value = lists[COLUMN, i] / factor[i, i]
            lists[COLUMN, i] = value
            add_multiple(lists, COLUMN, -value, factor, i, i + 1, n)
        squared = 1.0 + ones - dot(lists, COLUMN, lists, COLUMN, 0, n)
        if squared > DEPENDENT * (1.0 + ones):
            lists[GAIN, n] = gain_of(rows, FOUND) + (extra - lists[BASE, 0])
            lists[EXTRA, n] = extra
            insert(factor, lists, n, squared)
            return n + 1
        back_solve(factor, lists, COLUMN, n)
        step, leaver = np.inf, -1
        for i in range(n):
            if lists[COLUMN, i] > 1e-12 and lists[PROBS, i] < step * lists[COLUMN, i]:
                step, leaver = lists[PROBS, i] / lists[COLUMN, i], i
        for i in range(n):
            lists[PROBS, i] -= step * lists[COLUMN, i]
        lists[PROBS, n] = step
        remove(factor, lists, slots, n, leaver)
        lists[PROBS, n - 1] = step
        n -= 1


@compile_rows()
def settle(factor: Any, lists: Any, slots: Any, n: Any, newest: Any) -> Any:
    """Move the probabilities to the best ones on the support, whoever falls to zero leaving; return the new size.

    Returns 0 when nothing but rounding could be gained: the ``newest`` structure, of probability zero, would leave at once.
    """
    while True:
        ones = dot(lists, ONES, lists, ONES, 0, n)
        shift = (dot(lists, ONES, lists, SOLVED, 0, n) - 1.0) / ones
        for i in range(n):
            lists[AIM, i] = lists[SOLVED, i] - shift * lists[ONES, i]
        back_solve(factor, lists, AIM, n)
        step, leaver = 1.0, -1
        for i in range(n):
            aim, now = lists[AIM, i], lists[PROBS, i]
            if aim <= 0.0 and now <= step * (now - aim):
                step, leaver = (now / (now - aim) if now > aim else 0.0), i
        if leaver < 0:
            total = 0.0
            for i in range(n):
                total += lists[AIM, i]
            for i in range(n):
                lists[PROBS, i] = lists[AIM, i] / total
            return n
        for i in range(n):
            lists[PROBS, i] += step * (lists[AIM, i] - lists[PROBS, i])
        remove(factor, lists, slots, n, leaver)
        n -= 1
        if leaver == newest and step == 0.0:
            return -n
        newest = -1


@compile_rows()
def begin(first: Any, first_probs: Any, first_extra: Any, rows: Any, matrix: Any, factor: Any, lists: Any, slots: Any) -> Any:
    """Set up the workspace of a row whose scores are in ``rows[SCORES]``; return the size of the support to start from.

    Args:
        first: (n, d) structures to start from.
        first_probs: (n,) their probabilities; those of 0 are left out.
        first_extra: (n,) what other potentials add to them.
        rows: workspace (VECTORS, d).
        matrix: workspace (capacity, d) of bytes.
        factor: workspace (capacity, capacity).
        lists: workspace (LISTS, capacity).
        slots: workspace (capacity,) of integers: the row of ``matrix`` that holds each structure of the support.
    """
    d, capacity = rows.shape[1], len(slots)
    for i in range(capacity):
        slots[i] = i
    for i in range(d):
        rows[RESIDUAL, i] = rows[SCORES, i]
        rows[MARGINALS, i] = 0.0
        if rows[SCORES, i] == -np.inf:
            rows[SCORES, i], rows[MARGINALS, i] = 0.0, -np.inf
    n, total = 0, 0.0
    for s in range(len(first_probs)):
        if first_probs[s] > 0.0 and n + 1 < capacity:
            for i in range(d):
                rows[FOUND, i] = first[s, i]
            size = n
            n = enter(matrix, factor, lists, slots, rows, n, first_extra[s])
            if n > size:
                lists[PROBS, n - 1] = first_probs[s]
    for i in range(n):
        total += lists[PROBS, i]
    for i in range(n):
        lists[PROBS, i] /= total
    return n


@compile_rows()
def advance(n: Any, newest: Any, rows: Any, matrix: Any, factor: Any, lists: Any, slots: Any) -> Any:
    """Settle the probabilities and compute marginals and residual.

    Returns:
        Size of the support, and whether nothing but rounding could be gained.
    """
    d = rows.shape[1]
    n = settle(factor, lists, slots, n, newest)
    stuck = n < 0
    n = abs(n)
    for i in range(d):
        if rows[MARGINALS, i] != -np.inf:
            rows[MARGINALS, i] = 0.0
    for i in range(n):
        add_multiple(rows, MARGINALS, lists[PROBS, i], matrix, slots[i], 0, d)
    for i in range(d):
        if rows[MARGINALS, i] > 1.0 - ONE:
            rows[MARGINALS, i] = 1.0
        rows[RESIDUAL, i] = rows[SCORES, i] - rows[MARGINALS, i] if rows[MARGINALS, i] != -np.inf else -np.inf
    return n, stuck


@compile_rows()
def solve_row(
    kind: Any,
    budget: Any,
    tags: Any,
    links: Any,
    link: Any,
    n: Any,
    max_iter: Any,
    tol: Any,
    rows: Any,
    scratch: Any,
    matrix: Any,
    factor: Any,
    lists: Any,
    back: Any,
    slots: Any,
) -> Any:
    """Solve a row that :func:`begin` has set up, with a support of size n.

    The solution is left in ``rows[MARGINALS]``, ``matrix[slots[i]]`` and ``lists[PROBS, i]``.

    Returns:
        Size of the support, duality gap, and whether it is as small as asked for.
    """
    if n == 0:
        extra = maximize(kind, rows, RESIDUAL, FOUND, scratch, back, budget, tags, links, link)
        n = enter(matrix, factor, lists, slots, rows, n, extra)
        lists[PROBS, 0] = 1.0
    newest, gap, done = -1, np.inf, False
    for left in range(max_iter - 1, -1, -1):
        n, stuck = advance(n, newest, rows, matrix, factor, lists, slots)
        extra = maximize(kind, rows, RESIDUAL, FOUND, scratch, back, budget, tags, links, link)
        gap, size = gap_of(rows, lists, n, extra)
        done = stuck or is_small(gap, size, tol)
        if done or left == 0 or n + 1 >= len(slots):
            break
        before = n
        n = enter(matrix, factor, lists, slots, rows, n, extra)
        newest = -1
        if n > before:
            lists[PROBS, n - 1] = 0.0
            newest = n - 1
    return n, max(gap, 0.0), done


def capacity_of(d: int, max_iter: int, first: int = 0) -> int:
    """Return how many structures the workspace of a row must hold: the support never exceeds d + 1."""
    return min(d, max_iter + first) + 3


@compile_rows()
def is_odd(scores: Any, row: Any) -> Any:
    """Tell whether a row holds NaN or +inf."""
    odd = False
    for i in range(scores.shape[1]):
        odd = odd or not scores[row, i] < np.inf
    return odd


@compile_rows()
def is_broken_link(links: Any, link: Any) -> Any:
    """Tell whether links hold NaN or an infinity."""
    broken = False
    for i in range(links.shape[1]):
        for j in range(links.shape[2]):
            for k in range(links.shape[3]):
                broken = broken or not abs(links[link, i, j, k]) < np.inf
    return broken


@compile_rows()
def copy_out(row: Any, n: Any, marginals: Any, bits: Any, probs: Any, rows: Any, matrix: Any, lists: Any, slots: Any) -> None:
    """Write the solution that a workspace holds to one row of the results."""
    for i in range(rows.shape[1]):
        marginals[row, i] = max(rows[MARGINALS, i], 0.0)
    for s in range(n):
        probs[row, s] = lists[PROBS, s]
        for i in range(rows.shape[1]):
            bits[row, s, i] = matrix[slots[s], i]


@compile_rows()
def solve_one(
    row: Any,
    marginals: Any,
    bits: Any,
    probs: Any,
    sizes: Any,
    gaps: Any,
    done: Any,
    scores: Any,
    kind: Any,
    budget: Any,
    tags: Any,
    links: Any,
    first: Any,
    first_probs: Any,
    first_extra: Any,
    max_iter: Any,
    tol: Any,
    rows: Any,
    scratch: Any,
    matrix: Any,
    factor: Any,
    lists: Any,
    back: Any,
    slots: Any,
) -> None:
    """Solve one row in a workspace; arguments as for :func:`solve_batch`, results first."""
    d = scores.shape[1]
    link = row if len(links) > 1 else 0
    if is_odd(scores, row) or (kind == SEQUENCE and is_broken_link(links, link)):
        sizes[row], gaps[row], done[row], probs[row, 0] = 1, np.nan, 1, np.nan
        for i in range(d):
            marginals[row, i] = 0.0 if scores[row, i] == -np.inf else np.nan
            bits[row, 0, i] = 0
        return
    for i in range(d):
        rows[SCORES, i] = scores[row, i]
    n = begin(first[row], first_probs[row], first_extra[row], rows, matrix, factor, lists, slots)
    n, gaps[row], done[row] = solve_row(
        kind, budget, tags, links, link, n, max_iter, tol, rows, scratch, matrix, factor, lists, back, slots
    )
    sizes[row] = n
    copy_out(row, n, marginals, bits, probs, rows, matrix, lists, slots)


@compile_rows()
def solve_block(
    start: Any,
    stop: Any,
    marginals: Any,
    bits: Any,
    probs: Any,
    sizes: Any,
    gaps: Any,
    done: Any,
    scores: Any,
    kind: Any,
    budget: Any,
    tags: Any,
    links: Any,
    first: Any,
    first_probs: Any,
    first_extra: Any,
    max_iter: Any,
    tol: Any,
) -> None:
    """Solve rows ``start .. stop - 1``; arguments as for :func:`solve_batch`, results first."""
    d, capacity = scores.shape[1], probs.shape[1]
    rows, scratch, back = np.zeros((VECTORS, d)), np.empty(d), np.empty(d, np.int32)
    matrix, factor = np.empty((capacity, d), np.uint8), np.empty((capacity, capacity))
    lists, slots = np.empty((LISTS, capacity)), np.empty(capacity, np.int32)
    for row in range(start, stop):
        solve_one(
            row, marginals, bits, probs, sizes, gaps, done, scores, kind, budget, tags, links, first, first_probs, first_extra,
            max_iter, tol, rows, scratch, matrix, factor, lists, back, slots,
        )  # fmt: skip


def solve_batch(
    scores: Array,
    kind: int,
    budget: int,
    tags: int,
    links: Array,
    start: Start,
    max_iter: int,
    tol: float,
) -> tuple[Array, ...]:
    """Solve a batch with a compiled oracle on as many threads as torch uses.

    Args:
        scores: float64 (B, d), -inf where an entry is forbidden; a row with NaN or +inf comes back as NaN.
        kind: :data:`BITS` or :data:`SEQUENCE`.
        budget: most ones of a bit vector.
        tags: of a sequence; d is a multiple of it.
        links: float64 (B or 1, positions - 1 or 1, tags, tags).
        start: structures to start from; without any, the best one for the scores.
        max_iter: most structures that may be looked for.
        tol: error of the marginals to reach, in Euclidean distance.

    Returns:
        Marginals (B, d), structures uint8 (B, S, d) and their probabilities (B, S), of which only the first ``size`` of a row
        are written, sizes int64 (B,), duality gaps (B,), and uint8 (B,): whether the gap is as small as asked for.
    """
    size, d = scores.shape
    results = _results(size, d, capacity_of(d, max_iter, start.structures.shape[1]))
    problem = (kind, budget, tags, links, *start, max_iter, tol)
    over_rows(solve_block, (size, d), SECONDS * d, *results, scores, *problem)
    return results


def _results(size: int, d: int, capacity: int) -> tuple[Array, ...]:
    return (
        np.empty((size, d)),
        np.empty((size, capacity, d), np.uint8),
        np.empty((size, capacity)),
        np.empty(size, np.int64),
        np.empty(size),
        np.empty(size, np.uint8),
    )


@compile_rows()
def begin_block(
    start: Any,
    stop: Any,
    sizes: Any,
    scores: Any,
    first: Any,
    first_probs: Any,
    first_extra: Any,
    rows: Any,
    matrix: Any,
    factor: Any,
    lists: Any,
    slots: Any,
) -> None:
    """Set up the workspaces of rows ``start .. stop - 1``."""
    for row in range(start, stop):
        for i in range(scores.shape[1]):
            rows[row, SCORES, i] = scores[row, i]
        sizes[row] = begin(
            first[row], first_probs[row], first_extra[row], rows[row], matrix[row], factor[row], lists[row], slots[row]
        )


@compile_rows()
def advance_block(
    start: Any,
    stop: Any,
    alive: Any,
    sizes: Any,
    newest: Any,
    stuck: Any,
    residual: Any,
    rows: Any,
    matrix: Any,
    factor: Any,
    lists: Any,
    slots: Any,
) -> None:
    """Advance the rows ``alive[start] .. alive[stop - 1]``; results are aligned with ``alive``, sizes and newest with rows."""
    for k in range(start, stop):
        row = alive[k]
        sizes[row], stuck[k] = advance(sizes[row], newest[row], rows[row], matrix[row], factor[row], lists[row], slots[row])
        for i in range(residual.shape[1]):
            residual[k, i] = rows[row, RESIDUAL, i]


@compile_rows()
def compare_block(
    start: Any, stop: Any, alive: Any, found: Any, extra: Any, gaps: Any, done: Any, tol: Any, sizes: Any, rows: Any, lists: Any
) -> None:
    """Write the gap that ``found[k]`` shows in row ``alive[k]``, for k in ``start .. stop - 1``, and whether it is small."""
    for k in range(start, stop):
        row = alive[k]
        for i in range(found.shape[1]):
            rows[row, FOUND, i] = found[k, i]
        gaps[k], size = gap_of(rows[row], lists[row], sizes[row], extra[k])
        done[k] = is_small(gaps[k], size, tol)


@compile_rows()
def enter_block(
    start: Any,
    stop: Any,
    alive: Any,
    found: Any,
    extra: Any,
    sizes: Any,
    newest: Any,
    rows: Any,
    matrix: Any,
    factor: Any,
    lists: Any,
    slots: Any,
) -> None:
    """Let ``found[k]`` into the support of row ``alive[k]``, for k in ``start .. stop - 1``."""
    for k in range(start, stop):
        row = alive[k]
        for i in range(found.shape[1]):
            rows[row, FOUND, i] = found[k, i]
        before = sizes[row]
        sizes[row] = enter(matrix[row], factor[row], lists[row], slots[row], rows[row], before, extra[k])
        newest[row] = -1
        if sizes[row] > before:
            lists[row, PROBS, before] = 1.0 if before == 0 else 0.0
            newest[row] = before if before > 0 else -1


@compile_rows()
def copy_block(
    start: Any,
    stop: Any,
    marginals: Any,
    bits: Any,
    probs: Any,
    sizes: Any,
    rows: Any,
    matrix: Any,
    lists: Any,
    slots: Any,
) -> None:
    """Write the solutions of rows ``start .. stop - 1`` to the results."""
    for row in range(start, stop):
        copy_out(row, sizes[row], marginals, bits, probs, rows[row], matrix[row], lists[row], slots[row])


def solve_with_oracle(
    scores: Array,
    oracle: Callable[[Array, Array], tuple[Array, Array]],
    start: Start,
    max_iter: int,
    tol: float,
) -> tuple[Array, ...]:
    """Solve a batch with an oracle that is not compiled: all rows advance together, and leave when they are finished.

    Args:
        scores: float64 (B, d), finite, or -inf where an entry is forbidden.
        oracle: takes residuals (b, d) and to which rows they belong (b,), and returns the best structures for them, float64
            (b, d), and what other potentials add to each (b,).
        start: structures to start from, as for :func:`solve_batch`.
        max_iter: most structures that may be looked for.
        tol: error of the marginals to reach, in Euclidean distance.

    Returns:
        As :func:`solve_batch`.
    """
    size, d = scores.shape
    capacity = capacity_of(d, max_iter, start.structures.shape[1])
    results = _results(size, d, capacity)
    marginals, bits, probs, sizes, gaps, done = results
    step = max(1, WORK_BYTES // (capacity * (d + 8 * capacity)))
    for low in range(0, size, step):
        part = slice(low, min(low + step, size))
        count = part.stop - low
        work = (
            np.empty((count, VECTORS, d)),
            np.empty((count, capacity, d), np.uint8),
            np.empty((count, capacity, capacity)),
            np.empty((count, LISTS, capacity)),
            np.empty((count, capacity), np.int32),
        )
        mine, cost = sizes[part], SECONDS * d / 16
        over_rows(begin_block, (count, d), cost, mine, scores[part], *[array[part] for array in start], *work)
        newest = np.full(count, -1)
        alive = np.flatnonzero(mine == 0)
        if len(alive):
            found, extra = oracle(scores[part][alive], alive + low)
            over_rows(enter_block, (len(alive), d), cost, alive, found, extra, mine, newest, *work)
        alive = np.arange(count)
        for left in range(max_iter - 1, -1, -1):
            rows = len(alive)
            stuck, small, gap, residual = (
                np.empty(rows, np.bool_),
                np.empty(rows, np.bool_),
                np.empty(rows),
                np.empty((rows, d)),
            )
            over_rows(advance_block, (rows, d), cost, alive, mine, newest, stuck, residual, *work)
            found, extra = oracle(residual, alive + low)
            over_rows(compare_block, (rows, d), cost, alive, found, extra, gap, small, tol, mine, work[0], work[3])
            finished = stuck | small
            done[alive + low], gaps[alive + low] = finished, np.maximum(gap, 0.0)
            stays = ~finished & (mine[alive] + 1 < capacity)
            if left == 0 or not stays.any():
                break
            alive = alive[stays]
            over_rows(enter_block, (len(alive), d), cost, alive, found[stays], extra[stays], mine, newest, *work)
        rows_, matrix, _, lists, slots = work
        over_rows(copy_block, (count, d), cost, marginals[part], bits[part], probs[part], mine, rows_, matrix, lists, slots)
    return results
