"""Assignments of rows to columns: matchings of a bipartite graph."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import check_count
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.torch_internals import on_values
from lit_sparse.structures.assignment_kernel import best_assignments
from lit_sparse.structures.count import CountConstraint
from lit_sparse.structures.one_per_row import OnePerRow

__all__ = ["Assignment"]


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
        >>> Assignment(2, 3).maximize(torch.tensor([[3.0, 2.0, 0.0, 3.0, 1.0, 0.0]])).reshape(2, 3).tolist()
        [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """

    couples_queries: ClassVar[bool] = True

    rows: int | None = None
    columns: int | None = None

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
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

    def shape(self, d: int) -> tuple[int, int]:
        """Return the numbers of rows and columns of a grid with d entries.

        Raises:
            ConfigurationError: if d entries do not form such a grid.
        """
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

    def grid(self, entries: Tensor) -> Tensor:
        """View entries (..., rows * columns) as (..., rows, columns)."""
        return entries.reshape(*entries.shape[:-1], *self.shape(entries.shape[-1]))

    @override
    def check(self, d: int) -> None:
        self.shape(d)

    @override
    def count_constraints(self, d: int) -> list[CountConstraint]:
        rows, columns = self.shape(d)
        one = [CountConstraint(tuple(range(i * columns, (i + 1) * columns)), least=1, most=1) for i in range(rows)]
        return one + [CountConstraint(tuple(range(j, d, columns)), most=1) for j in range(columns)]

    @on_values
    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        """Return the best assignment for each row of scores (B, rows * columns), on the CPU, by the Hungarian method.

        See :mod:`lit_sparse.structures.assignment_kernel`.

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
