"""Assignments of rows to columns: matchings of a bipartite graph, by the Hungarian method with shortest augmenting paths.

Rows join one after another. A new row takes the column at the end of the shortest path of reduced costs that alternates between
free and assigned pairs, and every row on that path moves to its next column. The potentials u of the rows and v of the columns
keep all reduced costs, cost - u - v, nonnegative, so each path is found by Dijkstra's algorithm: O(n^3) for an n x n grid.

Source: Crouse (2016), On implementing 2D rectangular assignment algorithms, doi:10.1109/TAES.2016.140952.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import Count, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.torch_internals import on_values
from lit_sparse.kernels.cpu.compile import compile_rows, empty, zeros
from lit_sparse.kernels.cpu.threads import over_rows
from lit_sparse.structures.base import CountConstraint
from lit_sparse.structures.one_per_row import OnePerRow

__all__ = ["Assignment", "best_assignments"]

SECONDS = 1e-8  # of one thread for one score, about
NONE = -1


@compile_rows(inline="source")
def assign_row(new: Any, costs: Any, u: Any, v: Any, length: Any, path: Any, row_of: Any, column_of: Any, rest: Any) -> Any:
    """Assign the row ``new`` a column by a shortest augmenting path, given assigned rows before it; False if it has none.

    Args:
        new: index of the row.
        costs: float64 (rows, columns), inf where a pair is forbidden.
        u: float64 (rows,), dual potentials.
        v: float64 (columns,), dual potentials.
        length: float64 (columns,), workspace: lengths of the shortest paths to the columns.
        path: integers (columns,), workspace: the row before a column on its path.
        row_of: integers (columns,), the assigned rows, or -1.
        column_of: integers (rows,), the assigned columns, or -1.
        rest: integers (columns,), workspace: the columns to which no path is final.
    """
    columns = costs.shape[1]
    left = columns
    for place in range(columns):
        rest[place] = columns - 1 - place  # with equal costs each row takes its own column
        length[place] = np.inf
    row, reached, sink = new, 0.0, NONE
    while sink == NONE:
        best, lowest = NONE, np.inf
        for place in range(left):
            column = rest[place]
            there = reached + costs[row, column] - u[row] - v[column]
            if there < length[column]:
                length[column], path[column] = there, row
            if length[column] < lowest or (length[column] == lowest and row_of[column] == NONE):
                best, lowest = place, length[column]
        if lowest == np.inf:
            return False
        reached, column = lowest, rest[best]
        left -= 1
        rest[best], rest[left] = rest[left], column
        if row_of[column] == NONE:
            sink = column
        else:
            row = row_of[column]
    u[new] += reached
    for place in range(left, columns):  # the columns whose paths are final
        column = rest[place]
        if row_of[column] != NONE:
            u[row_of[column]] += reached - length[column]
        v[column] -= reached - length[column]
    column = sink
    while True:
        row = path[column]
        row_of[column] = row
        column, column_of[row] = column_of[row], column
        if row == new:
            return True


@compile_rows()
def assignment_block(first: Any, stop: Any, scores: Any, chosen: Any, found: Any) -> None:
    """Write the best assignments of grids ``first .. stop - 1``, and whether there are any; see :func:`best_assignments`.

    ``chosen`` (B, rows, columns) and ``found`` (B,), which are zero, receive its results.
    """
    rows, columns = scores.shape[1], scores.shape[2]
    costs = empty((rows, columns), np.float64)
    u, v, length = empty(rows, np.float64), empty(columns, np.float64), empty(columns, np.float64)
    path, row_of, column_of = empty(columns, np.int64), empty(columns, np.int64), empty(rows, np.int64)
    rest, open_rows, open_columns = empty(columns, np.int64), empty(rows, np.int64), empty(columns, np.int64)
    for grid in range(first, stop):
        height = width = 0
        for column in range(columns):
            row = 0
            while row < rows and scores[grid, row, column] == -np.inf:
                row += 1
            if row < rows:
                open_columns[width] = column
                v[width], row_of[width] = 0.0, NONE
                width += 1
        for row in range(rows):
            present = False
            for place in range(width):
                costs[height, place] = -scores[grid, row, open_columns[place]]
                present = present or costs[height, place] != np.inf
            if present:
                open_rows[height] = row
                u[height], column_of[height] = 0.0, NONE
                height += 1
        for new in range(height):
            if not assign_row(new, costs[:height, :width], u, v, length, path, row_of, column_of, rest):
                break
        else:
            found[grid] = 1
            for place in range(height):
                chosen[grid, open_rows[place], open_columns[column_of[place]]] = 1


def best_assignments(scores: Any) -> tuple[Any, Any]:
    """Return the best assignment of rows to columns for each grid of scores, and whether there is one.

    Args:
        scores: float64 array (B, rows, columns), finite, or -inf for forbidden pairs. Rows and columns without an allowed
            pair are left out.

    Returns:
        Arrays of bytes (B, rows, columns), one-hot columns of the rows, and (B,), whether there is an assignment; without
        one, the columns are arbitrary.
    """
    chosen, found = zeros(scores.shape, np.uint8), zeros(len(scores), np.uint8)
    rows, columns = scores.shape[1:]
    over_rows(assignment_block, (len(scores), max(rows * rows * columns, 1)), SECONDS, scores, chosen, found)
    return chosen, found


@ranges(rows=Count(), columns=Count())
@dataclass(frozen=True)
class Assignment(OnePerRow):
    """Assignments of every row of a grid to one column, no column twice, with rows <= columns.

    Scores are row-major, (..., rows * columns).

    With as many columns as rows these are the permutation matrices, and SparseMAP over them gives sparse doubly stochastic
    matrices, points of the Birkhoff polytope.

    Rows and columns whose entries are all forbidden (-inf, or masked) are left out, so padding needs no special case.

    Args:
        rows: number of rows; None to read it from the scores.
        columns: number of columns; None to read it from the scores. If both are None, the grid of scores is square.

    Raises:
        ConfigurationError: if they are not integers >= 1, or there are more rows than columns.

    Example:
        >>> import torch
        >>> Assignment(2, 3).maximize(
        ...     torch.tensor([[3.0, 2.0, 0.0, 3.0, 1.0, 0.0]])
        ... ).reshape(2, 3).tolist()
        [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """

    couples_queries: ClassVar[bool] = True

    rows: int | None = None
    columns: int | None = None

    def __post_init__(self) -> None:
        if self.rows is not None and self.columns is not None and self.rows > self.columns:
            raise ConfigurationError(
                f"Expected at least as many columns as rows, because each row needs its own column, but got {self!r}."
                " Transpose the scores."
            )

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: for any size, a single row, squares, and pairs of rows."""
        return [cls(rows=1), cls(), cls(rows=2)]

    @property
    def size(self) -> int | None:
        """Number of entries, rows times columns; None if it is read from the scores."""
        return None if self.rows is None or self.columns is None else self.rows * self.columns

    @override
    def shape(self, d: int) -> tuple[int, int]:
        if self.rows is not None:
            rows, columns = self.rows, d // self.rows if self.columns is None else self.columns
        elif self.columns is not None:
            rows, columns = d // self.columns, self.columns
        else:
            rows = columns = math.isqrt(d)
        if rows * columns != d or (rows > columns and d):
            raise ConfigurationError(
                f"Expected scores of length rows * columns, rows <= columns, for {self!r} but got {d}."
                " Give rows and columns if the grid of scores is not square."
            )
        return rows, columns

    def joint_over_queries(self, rows: int, columns: int) -> Assignment | None:
        """Return the assignment of all queries to keys; None if this assignment is over the keys of a single query."""
        if self.rows in (None, rows) and self.columns in (None, columns):
            return Assignment(rows, columns)
        return None

    @override
    def count_constraints(self, d: int) -> list[CountConstraint]:
        rows, columns = self.shape(d)
        one = [CountConstraint(tuple(range(i * columns, (i + 1) * columns)), least=1, most=1) for i in range(rows)]
        return one + [CountConstraint(tuple(range(j, d, columns)), most=1) for j in range(columns)]

    @on_values
    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        """Return the best assignment for each row of scores (B, rows * columns), on the CPU, by the Hungarian method.

        Raises:
            ConfigurationError: if the forbidden entries leave no assignment.
        """
        advice = "Forbid whole rows too (in attention, the queries of padding), or add columns."
        return self.searched(scores, potentials, best_assignments, "an assignment of every row", advice)

    @override
    def validate(self, structures: Tensor) -> Tensor:
        return super().validate(structures) & (self.grid(structures).sum(-2) <= 1).all(-1)

    def enumerate(self, d: int | None = None) -> Tensor:
        """Return all assignments over d entries, (S, d) float64, none with rows left out."""
        rows, columns = self.shape(self.known_size(d))
        return self.marked(itertools.permutations(range(columns), rows), math.perm(columns, rows), columns)
