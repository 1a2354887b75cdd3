"""SparseMAP of a row by the active-set method: the support grows by one structure at a time and stays affinely independent.

The rows of A are the structures of the support, t are the scores, and ``e`` holds the other potentials of each structure. The
method minimizes ``1/2 ||A^T xi - t||^2 - <e, xi>`` over the simplex. On a support it solves one linear system with the matrix
``M = A A^T + 1 1^T``, which is positive definite exactly when the structures are affinely independent. Its Cholesky factor R
(``R^T R = M``) is updated when structures enter or leave. The entering structure is the MAP structure of the residual.

Nothing here allocates or calls an oracle: :mod:`lit_sparse.mappings.sparsemap.active_set.batch` drives it on the CPU,
:mod:`lit_sparse.mappings.sparsemap.active_set.cuda` on GPUs.

Source: Niculae, Martins, Blondel & Cardie (2018), SparseMAP; Correia, Niculae, Aziz & Martins (2020), appendix B, where
A A^T itself is factored, which is singular when the zero structure is in the support.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lit_sparse.kernels.cpu.compile import REDUCTION_FLAGS, compile_rows

__all__ = [
    "FOUND",
    "MARGINALS",
    "PROBS",
    "RESIDUAL",
    "Workspace",
    "admit",
    "advance",
    "begin",
    "capacity_of",
    "compare",
    "has_room",
    "workspace_shapes",
]

#: An entering structure whose squared distance from the affine hull of the support is below this lies in it.
DEPENDENT = 1e-9
#: Largest distance from 1 of a marginal that is 1 up to rounding.
ONE = 1e-14
#: Relative rounding of a duality gap.
ROUNDING = 1e-13

# Rows of ``vectors`` and of ``lists`` in a workspace.
SCORES, RESIDUAL, MARGINALS, FOUND, REFERENCE, VECTORS = 0, 1, 2, 3, 4, 5
GAIN, EXTRA, ONES, SOLVED, PROBS, AIM, COLUMN, BASE, LISTS = 0, 1, 2, 3, 4, 5, 6, 7, 8
# Totals are taken relative to the total of the first structure, REFERENCE, whose extra is lists[BASE, 0]: only differences
# matter, and a score as large as 1e30 that all structures share must not swallow the others.


class Workspace(NamedTuple):
    """State of the active-set method for a row, or for many rows with a leading dimension.

    Attributes:
        vectors: float64 (VECTORS, d), vectors over the entries: the scores, the residual, the marginals, the structure
            found last, and the reference structure.
        matrix: uint8 (capacity, d), structures, including the support.
        factor: float64 (capacity, capacity), the triangular factor R, ``R^T R = M``, of the support.
        lists: float64 (LISTS, capacity), numbers of each structure of the support, such as its probability.
        slots: int32 (capacity,), the row of ``matrix`` that holds each structure of the support.
        scratch: float64 (d,), workspace of a compiled oracle.
        back: int32 (d,), integer workspace of a compiled oracle.
    """

    vectors: Any
    matrix: Any
    factor: Any
    lists: Any
    slots: Any
    scratch: Any
    back: Any


def capacity_of(d: int, max_iter: int, first: int) -> int:
    """Return the capacity of a workspace: at most d + 1 structures, plus one candidate that is not yet in the support."""
    return min(d, max_iter + first) + 3


def workspace_shapes(d: int, capacity: int) -> Workspace:
    """Return the shape and dtype of each part of a row's :class:`Workspace`."""
    return Workspace(
        vectors=((VECTORS, d), "float64"),
        matrix=((capacity, d), "uint8"),
        factor=((capacity, capacity), "float64"),
        lists=((LISTS, capacity), "float64"),
        slots=((capacity,), "int32"),
        scratch=((d,), "float64"),
        back=((d,), "int32"),
    )


@compile_rows(REDUCTION_FLAGS)
def dot(a: Any, i: Any, b: Any, j: Any, first: Any, stop: Any) -> Any:
    """Return the inner product of row i of a and row j of b, over the entries ``first .. stop - 1``."""
    total = 0.0
    for k in range(first, stop):
        total += a[i, k] * b[j, k]
    return total


@compile_rows(REDUCTION_FLAGS)
def add_multiple(y: Any, i: Any, factor: Any, x: Any, j: Any, first: Any, stop: Any) -> None:
    """Add ``factor`` times row j of x to row i of y, in the entries ``first .. stop - 1``."""
    for k in range(first, stop):
        y[i, k] += factor * x[j, k]


@compile_rows(REDUCTION_FLAGS)
def common(a: Any, i: Any, j: Any) -> Any:
    """Return the number of ones that rows i and j of a binary matrix have in common."""
    total = np.int32(0)
    for k in range(a.shape[1]):
        total += np.int32(a[i, k] & a[j, k])
    return total


@compile_rows(REDUCTION_FLAGS)
def gain_of(vectors: Any) -> Any:
    """Return by how much the score ``<t, a>`` of the structure in ``vectors[FOUND]`` exceeds the reference structure's."""
    total = 0.0
    for k in range(vectors.shape[1]):
        total += (vectors[FOUND, k] - vectors[REFERENCE, k]) * vectors[SCORES, k]
    return total


@compile_rows(REDUCTION_FLAGS)
def gap_of(vectors: Any, lists: Any, n: Any, extra: Any) -> Any:
    """Return by how much the total score of the structure in ``vectors[FOUND]`` exceeds the support's mean, and rounding."""
    gap, size = 0.0, 0.0
    for i in range(vectors.shape[1]):
        if vectors[MARGINALS, i] != -np.inf:
            term = (vectors[FOUND, i] - vectors[MARGINALS, i]) * vectors[RESIDUAL, i]
            gap += term
            size += abs(term)
    for s in range(n):
        term = lists[PROBS, s] * (extra - lists[EXTRA, s])
        gap += term
        size += abs(term)
    return gap, size


@compile_rows(inline="source")
def compare(work: Any, n: Any, extra: Any, tol: Any) -> Any:
    """Return the duality gap given by the structure in ``vectors[FOUND]``, and whether it meets the tolerance.

    The support of the workspace has size n, and ``extra`` is the score that potentials add to the structure. The gap meets
    the tolerance if it guarantees marginals within ``tol``, or is a rounding error.
    """
    gap, size = gap_of(work.vectors, work.lists, n, extra)
    return max(gap, 0.0), gap <= max(0.5 * tol * tol, ROUNDING * (1.0 + size))


@compile_rows(inline="source")
def has_room(n: Any, capacity: Any) -> Any:
    """Return whether a workspace of a given capacity has room for one more structure than n; n may be an array."""
    return n + 1 < capacity


@compile_rows(inline="source")
def insert(work: Any, n: Any, squared: Any) -> None:
    """Append a structure to the triangular factor R of a support of size n.

    ``work.lists[COLUMN]`` holds the new column of R above its diagonal, and ``squared`` is the squared distance of the
    structure from the support's affine hull, the square of the new diagonal entry.
    """
    factor, lists = work.factor, work.lists
    pivot = math.sqrt(squared)  # numba-cuda has no numpy.sqrt
    for i in range(n):
        factor[i, n] = lists[COLUMN, i]
    factor[n, n] = pivot
    lists[ONES, n] = (1.0 - dot(lists, COLUMN, lists, ONES, 0, n)) / pivot
    lists[SOLVED, n] = (lists[GAIN, n] - dot(lists, COLUMN, lists, SOLVED, 0, n)) / pivot


@compile_rows()
def remove(work: Any, n: Any, k: Any) -> None:
    """Remove structure k of n from the support, by rotations of its triangular factor and of the vectors solved with it."""
    factor, lists, slots = work.factor, work.lists, work.slots
    for i in range(k):
        for j in range(k, n - 1):
            factor[i, j] = factor[i, j + 1]
    for j in range(k + 1, n):
        lists[COLUMN, j] = factor[k, j]
    one, solved = lists[ONES, k], lists[SOLVED, k]
    for i in range(k + 1, n):
        length = math.hypot(factor[i, i], lists[COLUMN, i])
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
    """Replace ``lists[which]`` by the solution y of ``R y = lists[which]``, R the support's triangular factor (n, n)."""
    for i in range(n - 1, -1, -1):
        lists[which, i] = (lists[which, i] - dot(factor, i, lists, which, i + 1, n)) / factor[i, i]


@compile_rows()
def enter(work: Any, n: Any, extra: Any) -> Any:
    """Add the structure in ``vectors[FOUND]`` to a support of size n, with probability zero; return the new size.

    If it is an affine combination ``sum c_i a_i`` of the support, as much probability as possible moves to it along c.
    Structures whose probability becomes zero leave. ``extra`` is the score that potentials add to the structure.
    """
    vectors, matrix, factor, lists, slots = work.vectors, work.matrix, work.factor, work.lists, work.slots
    d = vectors.shape[1]
    if n == 0:
        lists[BASE, 0] = extra
        for i in range(d):
            vectors[REFERENCE, i] = vectors[FOUND, i]
    while True:
        slot = slots[n]
        ones = 0.0
        for i in range(d):
            matrix[slot, i] = vectors[FOUND, i] != 0.0
            ones += vectors[FOUND, i]
        for i in range(n):
            lists[COLUMN, i] = 1.0 + common(matrix, slots[i], slot)
        for i in range(n):  # R^T y = column
            value = lists[COLUMN, i] / factor[i, i]
            lists[COLUMN, i] = value
            add_multiple(lists, COLUMN, -value, factor, i, i + 1, n)
        squared = 1.0 + ones - dot(lists, COLUMN, lists, COLUMN, 0, n)
        if squared > DEPENDENT * (1.0 + ones):
            lists[GAIN, n] = gain_of(vectors) + (extra - lists[BASE, 0])
            lists[EXTRA, n] = extra
            insert(work, n, squared)
            return n + 1
        back_solve(factor, lists, COLUMN, n)
        step, leaver = np.inf, -1
        for i in range(n):
            if lists[COLUMN, i] > 1e-12 and lists[PROBS, i] < step * lists[COLUMN, i]:
                step, leaver = lists[PROBS, i] / lists[COLUMN, i], i
        for i in range(n):
            lists[PROBS, i] -= step * lists[COLUMN, i]
        lists[PROBS, n] = step
        remove(work, n, leaver)
        lists[PROBS, n - 1] = step
        n -= 1


@compile_rows(inline="source")
def admit(work: Any, n: Any, extra: Any) -> Any:
    """Add the structure in ``vectors[FOUND]`` to a support of size n, with probability one if it is the first.

    Returns:
        The new size, and the structure's place if it is new there with probability zero, or -1.
    """
    before = n
    n = enter(work, n, extra)
    newest = -1
    if n > before:
        work.lists[PROBS, before] = 1.0 if before == 0 else 0.0
        newest = before if before > 0 else -1
    return n, newest


@compile_rows(inline="source")
def settle(work: Any, n: Any, newest: Any) -> Any:
    """Move to the optimal probabilities on the support, removing structures whose probability becomes zero.

    Structures leave one at a time. ``work`` is a :class:`Workspace` whose support has size n, and ``newest`` the position of
    the structure that entered last, or -1.

    Returns:
        The new size, and whether the method is stuck: the ``newest`` structure, of probability zero, would leave at
        once, so that only a rounding error could be gained.
    """
    factor, lists = work.factor, work.lists
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
            return n, False
        for i in range(n):
            lists[PROBS, i] += step * (lists[AIM, i] - lists[PROBS, i])
        remove(work, n, leaver)
        n -= 1
        if leaver == newest and step == 0.0:
            return n, True
        newest = -1


@compile_rows(inline="source")
def begin(work: Any, scores: Any, first: Any, first_probs: Any, first_extra: Any) -> Any:
    """Initialize a workspace for a row of scores; return the size of the initial support.

    Args:
        work: a :class:`Workspace`.
        scores: (d,), finite or -inf.
        first: (n, d) structures to start from.
        first_probs: (n,) their probabilities; structures of probability 0 are left out.
        first_extra: (n,) scores that potentials add to them.
    """
    vectors, lists = work.vectors, work.lists
    d = vectors.shape[1]
    for i in range(len(work.slots)):
        work.slots[i] = i
    for i in range(d):
        forbidden = scores[i] == -np.inf
        vectors[RESIDUAL, i] = scores[i]
        vectors[SCORES, i] = 0.0 if forbidden else scores[i]
        vectors[MARGINALS, i] = -np.inf if forbidden else 0.0
    n, total = 0, 0.0
    for s in range(len(first_probs)):
        if first_probs[s] > 0.0 and has_room(n, len(work.slots)):
            for i in range(d):
                vectors[FOUND, i] = first[s, i]
            size = n
            n = enter(work, n, first_extra[s])
            if n > size:
                lists[PROBS, n - 1] = first_probs[s]
    for i in range(n):
        total += lists[PROBS, i]
    for i in range(n):
        lists[PROBS, i] /= total
    return n


@compile_rows(inline="source")
def advance(work: Any, n: Any, newest: Any) -> Any:
    """Move to the optimal probabilities on the support and compute marginals and residual; see :func:`settle`."""
    vectors = work.vectors
    d = vectors.shape[1]
    n, stuck = settle(work, n, newest)
    for i in range(d):
        if vectors[MARGINALS, i] != -np.inf:
            vectors[MARGINALS, i] = 0.0
    for i in range(n):
        add_multiple(vectors, MARGINALS, work.lists[PROBS, i], work.matrix, work.slots[i], 0, d)
    for i in range(d):
        if vectors[MARGINALS, i] > 1.0 - ONE:
            vectors[MARGINALS, i] = 1.0
        allowed = vectors[MARGINALS, i] != -np.inf
        vectors[RESIDUAL, i] = vectors[SCORES, i] - vectors[MARGINALS, i] if allowed else -np.inf
    return n, stuck
