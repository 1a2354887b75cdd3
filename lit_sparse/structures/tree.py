"""Rooted trees over nodes, for example words and their heads: arborescences, not necessarily projective."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import check_count, check_flag
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.torch_internals import on_values
from lit_sparse.structures.arborescence import best_trees
from lit_sparse.structures.one_per_row import OnePerRow

__all__ = ["Tree"]


@dataclass(frozen=True)
class Tree(OnePerRow):
    """Structure of rooted trees: every node is attached to another node, its head, or is a root.

    Scores are row-major, (..., nodes * nodes), [node, head].

    The diagonal holds the scores of being a root. In attention, queries are nodes, keys their heads, and the weights of a
    query sum to one. A node whose scores are all forbidden (-inf, or masked) is left out, and is not the head of any node.

    Args:
        nodes: number of nodes; None to read it from the scores.
        single_root: whether exactly one node is a root; else at least one, and the structures are forests.

    Raises:
        ConfigurationError: if ``nodes`` is not an integer >= 1, or ``single_root`` not a boolean.

    Source: Chu & Liu (1965); Edmonds (1967), Optimum branchings, doi:10.6028/jres.071B.032. For parsing: McDonald, Pereira,
    Ribarov & Hajic (2005), Non-projective Dependency Parsing using Spanning Tree Algorithms.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[0.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 1.0, 0.0]])  # 0 and 1 would be each other's head
        >>> Tree(3).maximize(scores.reshape(1, -1)).reshape(3, 3).argmax(-1).tolist()  # 0 and 2 hang on 1, the root
        [1, 1, 1]
    """

    couples_queries: ClassVar[bool] = True

    nodes: int | None = None
    single_root: bool = True

    def __post_init__(self) -> None:
        if self.nodes is not None:
            check_count("nodes", self.nodes)
        check_flag("single_root", self.single_root)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: trees and forests."""
        return [cls(), cls(single_root=False)]

    @property
    def size(self) -> int | None:
        """Number of entries, the number of nodes squared; None if it is read from the scores."""
        return None if self.nodes is None else self.nodes**2

    @override
    def check(self, d: int) -> None:
        nodes = math.isqrt(d)
        if nodes * nodes != d or self.nodes not in (None, nodes):
            expected = "a square number" if self.nodes is None else f"{self.nodes} * {self.nodes}"
            raise ConfigurationError(f"Expected scores of length nodes * nodes, {expected}, for {self!r} but got {d}.")

    def grid(self, entries: Tensor) -> Tensor:
        """View entries (..., nodes * nodes) as a grid (..., nodes, nodes)."""
        nodes = math.isqrt(entries.shape[-1])
        self.check(entries.shape[-1])
        return entries.reshape(*entries.shape[:-1], nodes, nodes)

    def joint_over_queries(self, rows: int, columns: int) -> Tree | None:
        """Return the tree over all queries and keys; None if this tree is over the keys of a single query.

        Raises:
            ConfigurationError: if the numbers of queries and keys fit neither.
        """
        if rows == columns and self.nodes in (None, rows):
            return Tree(rows, self.single_root)
        if math.isqrt(columns) ** 2 == columns and self.nodes in (None, math.isqrt(columns)):
            return None
        expected = "" if self.nodes is None else f", {self.nodes},"
        raise ConfigurationError(
            f"Expected as many queries as keys{expected} for {self!r} in attention, because both are its nodes, but got {rows}"
            f" queries and {columns} keys."
        )

    @on_values
    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        """Return the best tree for each row of scores (B, nodes * nodes), on the CPU, by Edmonds' algorithm.

        See :mod:`lit_sparse.structures.arborescence`.

        Raises:
            ConfigurationError: if the forbidden entries leave no tree.
        """
        advice = "To leave out a node, forbid all its scores (in attention, the scores of padded queries)."
        search = partial(best_trees, single_root=self.single_root)
        return self.searched(scores, potentials, search, "a tree over all nodes", advice)

    @override
    def validate(self, structures: Tensor) -> Tensor:
        grid = self.grid(structures)
        eye = torch.eye(grid.shape[-1], device=grid.device, dtype=grid.dtype)
        roots = (grid * eye).sum(-1)
        rooted = roots.unsqueeze(-1)  # nodes whose chain of heads has reached a root
        for _ in range(grid.shape[-1] - 1):
            rooted = ((grid @ rooted + rooted) > 0).to(grid.dtype)
        fits = super().validate(structures) & (grid.sum(-1) == rooted.squeeze(-1)).all(-1)
        return fits & (roots.sum(-1) <= 1) if self.single_root else fits

    def enumerate(self, d: int | None = None) -> Tensor:
        """Return all trees over d entries, (S, d) float64, none with nodes left out."""
        nodes = math.isqrt(self.known_size(d))
        every = self.marked(itertools.product(range(nodes), repeat=nodes), nodes**nodes, nodes)
        return every[self.validate(every)]
