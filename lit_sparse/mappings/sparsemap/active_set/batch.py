"""SparseMAP of a batch on the CPU: row by row with a compiled oracle, all rows together with one in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lit_sparse.kernels.cpu.compile import compile_rows, empty, zeros
from lit_sparse.kernels.cpu.threads import Array, over_rows
from lit_sparse.kernels.oracles import CompiledOracle, find_best, is_broken, links_of
from lit_sparse.mappings.sparsemap.active_set.row import (
    FOUND,
    MARGINALS,
    PROBS,
    RESIDUAL,
    Workspace,
    admit,
    advance,
    begin,
    capacity_of,
    compare,
    has_room,
    workspace_shapes,
)

__all__ = ["Solution", "Start", "solution_shapes", "solve_batch", "solve_block", "solve_with_oracle"]

SECONDS, STEP_SECONDS = 5e-9, 3e-10  # of one thread for one element of (rows, d, d), about: for all steps, and for one
WORK_BYTES = 1 << 30  # workspace of a batch whose oracle is not compiled; longer ones are solved in parts

#: Takes residuals (b, d) and the numbers (b,) of their rows; returns structures (b, d) and what potentials add to each (b,).
Oracle: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]
#: Takes residuals (b, d); returns structures as an oracle does, or None.
Guess: TypeAlias = Callable[[Array], tuple[Array, Array] | None]


class Start(NamedTuple):
    """Initial structures and probabilities of the active-set method; without any, the best structure for the scores.

    Attributes:
        structures: float64 (B, n, d); n may be 0.
        probs: float64 (B, n), their probabilities; structures of probability 0 are left out.
        extra: float64 (B, n), scores that potentials add to them.
    """

    structures: Any
    probs: Any
    extra: Any


class Solution(NamedTuple):
    """Sparse distributions over structures, one per row, as arrays or tensors.

    Attributes:
        marginals: float64 (B, d).
        structures: uint8 (B, S, d), of which only the first ``sizes`` of a row are written.
        probs: float64 (B, S), probabilities of these structures.
        sizes: int64 (B,), sizes of the supports.
        gaps: float64 (B,), duality gaps.
        done: uint8 (B,), whether the gap meets the tolerance.
    """

    marginals: Any
    structures: Any
    probs: Any
    sizes: Any
    gaps: Any
    done: Any


def solution_shapes(d: int, capacity: int) -> Solution:
    """Return the shape and dtype of each part of a row's :class:`Solution`."""
    return Solution(
        marginals=((d,), "float64"),
        structures=((capacity, d), "uint8"),
        probs=((capacity,), "float64"),
        sizes=((), "int64"),
        gaps=((), "float64"),
        done=((), "uint8"),
    )


def _arrays(shapes: tuple[Any, ...], *rows: int) -> list[Array]:
    return [zeros((*rows, *shape), dtype) for shape, dtype in shapes]


@compile_rows(inline="source")
def copy_out(row: Any, solution: Any, work: Any, n: Any) -> None:
    """Copy the result in a workspace, whose support has size n, to one row of a :class:`Solution`."""
    d = work.vectors.shape[1]
    solution.sizes[row] = n
    for i in range(d):
        solution.marginals[row, i] = max(work.vectors[MARGINALS, i], 0.0)
    for s in range(n):
        solution.probs[row, s] = work.lists[PROBS, s]
        for i in range(d):
            solution.structures[row, s, i] = work.matrix[work.slots[s], i]


@compile_rows()
def solve_block(
    first: Any, stop: Any, solution: Any, scores: Any, oracle: Any, start: Any, max_iter: Any, tol: Any, work: Any
) -> None:
    """Solve SparseMAP for rows ``first .. stop - 1`` in one workspace; see :func:`solve_batch`."""
    d, vectors = scores.shape[1], work.vectors
    for row in range(first, stop):
        link = row if len(oracle.links) > 1 else 0
        invalid = is_broken(oracle, link)
        for i in range(d):
            invalid = invalid or not scores[row, i] < np.inf
        if invalid:
            solution.sizes[row], solution.gaps[row], solution.done[row], solution.probs[row, 0] = 1, np.nan, 1, np.nan
            for i in range(d):
                solution.marginals[row, i] = 0.0 if scores[row, i] == -np.inf else np.nan
                solution.structures[row, 0, i] = 0
            continue
        n = begin(work, scores[row], start.structures[row], start.probs[row], start.extra[row])
        newest, left, gap, done = -1, max_iter, np.inf, False
        while True:  # one call of each function, because each call is a copy to compile
            started, stuck = n > 0, False
            if started:
                n, stuck = advance(work, n, newest)
            find_best(oracle, link, vectors, RESIDUAL, FOUND, work.scratch, work.back)
            extra = links_of(oracle, link, vectors, FOUND)
            if started:
                left -= 1
                gap, small = compare(work, n, extra, tol)
                done = stuck or small
                if done or left == 0 or not has_room(n, len(work.slots)):
                    break
            n, newest = admit(work, n, extra)
        solution.gaps[row], solution.done[row] = gap, done
        copy_out(row, solution, work, n)


def _solve_part(first: int, stop: int, solution: Solution, scores: Array, *problem: Any) -> None:
    d, capacity = scores.shape[1], solution.probs.shape[1]
    solve_block(first, stop, solution, scores, *problem, Workspace(*_arrays(workspace_shapes(d, capacity))))


def solve_batch(scores: Array, oracle: CompiledOracle, start: Start, max_iter: int, tol: float) -> Solution:
    """Solve SparseMAP for a batch with a compiled oracle, on as many threads as torch uses.

    Args:
        scores: float64 (B, d), -inf where an entry is forbidden; a row with NaN or +inf comes back as NaN.
        oracle: the compiled oracle of a structure, with its potentials as an array.
        start: structures to start from.
        max_iter: maximum number of calls of the oracle for a row.
        tol: error of the marginals to reach, in Euclidean distance.
    """
    size, d = scores.shape
    capacity = capacity_of(d, max_iter, start.structures.shape[1])
    solution = Solution(*_arrays(solution_shapes(d, capacity), size))
    over_rows(_solve_part, (size, d), SECONDS * d, solution, scores, oracle, start, max_iter, tol)
    return solution


@compile_rows(inline="source")
def of_row(work: Any, row: Any) -> Any:
    """Return the part of a batched workspace that belongs to one row."""
    vectors, matrix, factor = work.vectors[row], work.matrix[row], work.factor[row]
    return Workspace(vectors, matrix, factor, work.lists[row], work.slots[row], work.scratch[row], work.back[row])


@compile_rows()
def begin_block(first: Any, stop: Any, work: Any, sizes: Any, scores: Any, start: Any) -> None:
    """Initialize the workspaces of rows ``first .. stop - 1``, and write the sizes of their supports to ``sizes`` (B,)."""
    for row in range(first, stop):
        sizes[row] = begin(of_row(work, row), scores[row], start.structures[row], start.probs[row], start.extra[row])


@compile_rows()
def advance_block(first: Any, stop: Any, work: Any, sizes: Any, newest: Any, alive: Any, residual: Any, stuck: Any) -> None:
    """Advance the rows ``alive[first] .. alive[stop - 1]`` to the optimal probabilities on their supports.

    ``sizes`` and ``newest`` (B,) belong to all rows, ``residual`` (len(alive), d) and ``stuck`` (len(alive),) to those in
    ``alive``; for their meaning, see :func:`lit_sparse.mappings.sparsemap.active_set.row.advance`.
    """
    for k in range(first, stop):
        mine = of_row(work, alive[k])
        sizes[alive[k]], stuck[k] = advance(mine, sizes[alive[k]], newest[alive[k]])
        for i in range(residual.shape[1]):
            residual[k, i] = mine.vectors[RESIDUAL, i]


@compile_rows()
def compare_block(
    first: Any, stop: Any, work: Any, sizes: Any, alive: Any, found: Any, extra: Any, gaps: Any, small: Any, tol: Any
) -> None:
    """Compute the duality gap that ``found[k]`` gives for row ``alive[k]``, for k in ``first .. stop - 1``.

    ``found`` (len(alive), d) holds structures, and ``extra`` the scores that potentials add to them. The gaps and whether
    they meet the tolerance are written to ``gaps`` and ``small``, both (len(alive),).
    """
    for k in range(first, stop):
        mine = of_row(work, alive[k])
        for i in range(found.shape[1]):
            mine.vectors[FOUND, i] = found[k, i]
        gaps[k], small[k] = compare(mine, sizes[alive[k]], extra[k], tol)


@compile_rows()
def admit_block(first: Any, stop: Any, work: Any, sizes: Any, newest: Any, alive: Any, found: Any, extra: Any) -> None:
    """Add the structure ``found[k]`` to the support of row ``alive[k]``, for k in ``first .. stop - 1``.

    ``extra`` holds the scores that potentials add to the structures. ``sizes`` and ``newest`` (B,) are updated; see
    :func:`lit_sparse.mappings.sparsemap.active_set.row.admit`.
    """
    for k in range(first, stop):
        mine = of_row(work, alive[k])
        for i in range(found.shape[1]):
            mine.vectors[FOUND, i] = found[k, i]
        sizes[alive[k]], newest[alive[k]] = admit(mine, sizes[alive[k]], extra[k])


@compile_rows()
def copy_block(first: Any, stop: Any, work: Any, sizes: Any, solution: Any) -> None:
    """Copy the results of rows ``first .. stop - 1``, with supports of ``sizes`` (B,), from the workspaces to a solution."""
    for row in range(first, stop):
        copy_out(row, solution, of_row(work, row), sizes[row])


def solve_with_oracle(
    scores: Array, oracle: Oracle, guess: Guess, start: Start, usable: Array, max_iter: int, tol: float
) -> Solution:
    """Solve SparseMAP for a batch with an oracle in Python: all rows advance together and drop out when they are finished.

    Args:
        scores: float64 (B, d), in rows to solve finite, or -inf where an entry is forbidden.
        oracle: called with residuals (b, d) and the rows they belong to (b,), returns the best structures for them,
            float64 (b, d), and the score that potentials add to each (b,).
        guess: a cheaper function like the oracle, whose structures need not be the best ones, or None. It is called
            first, and the oracle only for rows where the guess does not improve, so that the gaps are always the
            oracle's.
        start: structures to start from.
        usable: booleans (B,), the rows to solve; the solution of the others is zero.
        max_iter: maximum number of calls of the oracle for a row.
        tol: error of the marginals to reach, in Euclidean distance.
    """
    size, d = scores.shape
    capacity = capacity_of(d, max_iter, start.structures.shape[1])
    solution = Solution(*_arrays(solution_shapes(d, capacity), size))
    step = max(1, WORK_BYTES // (capacity * (d + 8 * capacity)))
    rows = np.flatnonzero(usable)
    for low in range(0, len(rows), step):
        part = rows[low : low + step]

        def of_part(residual: Array, alive: Array, part: Array = part) -> tuple[Array, Array]:
            return oracle(residual, part[alive])

        mine = Solution(*[array[part] for array in solution])
        first = Start(*[array[part] for array in start])
        _solve_together(scores[part], of_part, guess, first, max_iter, tol, mine)
        for all_rows, some in zip(solution, mine, strict=True):
            all_rows[part] = some
    return solution


def _solve_together(
    scores: Array,
    oracle: Oracle,
    guess: Guess,
    start: Start,
    max_iter: int,
    tol: float,
    solution: Solution,
) -> None:
    """Write the solution of a part of a batch; see :func:`solve_with_oracle`."""
    (count, d), capacity = scores.shape, solution.probs.shape[1]
    work = Workspace(*_arrays(workspace_shapes(d, capacity), count))
    sizes, newest = empty(count, np.int64), np.full(count, -1)

    def over(block: Callable[..., None], rows: int, *args: Any) -> None:
        over_rows(block, (rows, d), STEP_SECONDS * d, work, sizes, *args)

    over(begin_block, count, scores, start)
    alive = np.flatnonzero(sizes == 0)
    if len(alive):
        over(admit_block, len(alive), newest, alive, *(guess(scores[alive]) or oracle(scores[alive], alive)))
    alive, from_oracle = np.arange(count), np.ones(count, np.bool_)
    for left in range(max_iter - 1, -1, -1):
        rows = len(alive)
        residual, gaps = empty((rows, d), np.float64), empty(rows, np.float64)
        stuck, small = empty(rows, np.bool_), empty(rows, np.bool_)
        over(advance_block, rows, newest, alive, residual, stuck)
        guessed = guess(residual)
        found, extra = guessed or oracle(residual, alive)
        over(compare_block, rows, alive, found, extra, gaps, small, tol)
        ends = stuck & from_oracle[alive]  # after a guess the oracle may still gain more than rounding
        from_oracle[alive] = guessed is None
        if guessed is not None:
            asked = np.flatnonzero(stuck | small | ~has_room(sizes[alive], capacity) | (left == 0))
            found[asked], extra[asked] = oracle(residual[asked], alive[asked])
            from_oracle[alive[asked]] = True
            over(compare_block, rows, alive, found, extra, gaps, small, tol)
        finished = ends | small
        solution.done[alive], solution.gaps[alive] = finished, gaps
        stays = ~finished & has_room(sizes[alive], capacity)
        if left == 0 or not stays.any():
            break
        alive = alive[stays]
        over(admit_block, len(alive), newest, alive, found[stays], extra[stays])
    over(copy_block, count, solution)
