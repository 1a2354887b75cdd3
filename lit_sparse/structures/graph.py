"""Paths and spanning trees of a graph, as sets of its edges.

A path is found by the algorithm of Bellman and Ford: sweeps over the edges until no node gets a better path. If the edges come
in the order of their tails along the paths, as in a graph without cycles, the first sweep finds it and the second confirms it.
A tree is found by the algorithm of Kruskal: the best edges first, without those that close a cycle.

Source: Bellman (1958), On a Routing Problem. Kruskal (1956), On the Shortest Spanning Subtree of a Graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import MOST_FEATURES, check_count
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.torch_internals import on_values
from lit_sparse.kernels.cpu.compile import compile_rows, empty, zeros
from lit_sparse.kernels.cpu.threads import over_rows
from lit_sparse.structures.base import Structure, best_by_search, less_the_largest

__all__ = ["ShortestPath", "SpanningTree"]

SECONDS = 2e-9  # of one thread for an edge, about
NONE = -1
#: In place of whether a row has a path: a cycle with a positive total makes walks of any length better.
CYCLE = 2


@compile_rows()
def paths_block(
    first: Any, stop: Any, scores: Any, ends: Any, order: Any, nodes: Any, source: Any, target: Any, chosen: Any, found: Any
) -> None:
    """Write the best paths of rows ``first .. stop - 1``, and whether there are any.

    Args:
        first: first row.
        stop: the row after the last.
        scores: float64 (B, d) of the edges, finite, or -inf for forbidden ones.
        ends: int64 (d, 2), the nodes that each edge comes from and leads to.
        order: int64, the edges that may be on a path, none of which leads to the source or comes from the target.
        nodes: number of nodes.
        source: first node.
        target: last node, another one.
        chosen: bytes (B, d), zero, receive the edges of the path.
        found: bytes (B,), zero, receive 1 for a path, ``CYCLE`` for a positive cycle.
    """
    total, last = empty(nodes, np.float64), empty(nodes, np.int64)
    for row in range(first, stop):
        for node in range(nodes):
            total[node], last[node] = -np.inf, NONE
        total[source] = 0.0
        sweeps, changed = 0, True
        while changed and sweeps <= nodes:
            sweeps, changed = sweeps + 1, False
            for edge in order:
                there = total[ends[edge, 0]] + scores[row, edge]
                if there > total[ends[edge, 1]]:
                    total[ends[edge, 1]], last[ends[edge, 1]], changed = there, edge, True
        if changed:
            found[row] = CYCLE
        elif total[target] != -np.inf:
            found[row] = 1
            node = target
            while node != source:
                chosen[row, last[node]] = 1
                node = ends[last[node], 0]


@compile_rows()
def root_of(parent: Any, node: Any) -> Any:
    """Return the root of a node in a union-find forest given by each node's parent, with path compression."""
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@compile_rows()
def trees_block(first: Any, stop: Any, scores: Any, order: Any, ends: Any, nodes: Any, chosen: Any, found: Any) -> None:
    """Write the best spanning trees of rows ``first .. stop - 1``, and whether there are any.

    ``order`` (B, d) lists the edges of each row, the best first; ``ends`` (d, 2) are the nodes that each connects. ``chosen``
    (B, d), which is zero, and ``found`` (B,) receive the results.
    """
    parent = empty(nodes, np.int64)
    for row in range(first, stop):
        for node in range(nodes):
            parent[node] = node
        left = nodes - 1
        for edge in order[row]:
            if left == 0 or scores[row, edge] == -np.inf:
                break
            one, other = root_of(parent, ends[edge, 0]), root_of(parent, ends[edge, 1])
            if one != other:
                parent[one] = other
                chosen[row, edge] = 1
                left -= 1
        found[row] = left == 0


class _Graph(Structure):
    """Sets of edges of a graph, whose entries are the edges in their order; the field ``edges`` holds pairs of nodes."""

    edges: tuple[tuple[int, int], ...]

    def _keep_edges(self) -> None:
        """Check the edges and keep them as tuples.

        Raises:
            ConfigurationError: if they are not pairs of different nodes, numbers from 0 on.
        """
        given: Any = self.edges
        given = given.tolist() if isinstance(given, np.ndarray | Tensor) else given
        pairs = isinstance(given, list | tuple) and all(isinstance(edge, list | tuple) and len(edge) == 2 for edge in given)
        if not pairs or not given:
            raise ConfigurationError(
                f"Expected argument `edges` to be a list of pairs of nodes, such as [(0, 1), (1, 2)], but got {given!r}."
            )
        edges = tuple((check_count("edges", a, 0, MOST_FEATURES), check_count("edges", b, 0, MOST_FEATURES)) for a, b in given)
        for edge, (tail, head) in enumerate(edges):
            if tail == head:
                raise ConfigurationError(f"Expected edges between different nodes but edge {edge} is {(tail, head)}.")
        object.__setattr__(self, "edges", edges)

    def __repr__(self) -> str:
        """Show the number of edges, of which there may be many."""
        return f"{type(self).__name__}({len(self.edges)} edges)"

    @property
    @override
    def size(self) -> int:
        return len(self.edges)

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.array(self.edges, np.int64)

    @property
    def nodes(self) -> int:
        """Number of nodes: the largest one in the edges, plus one."""
        return int(self._ends.max()) + 1

    def _search(self, rows: np.ndarray) -> tuple[Any, Any]:
        """Return the best sets of edges, bytes (B, d), and whether there is one, for scores (B, d)."""
        raise NotImplementedError

    @override
    def validate(self, structures: Tensor) -> Tensor:
        """Return whether all edges of a set are in the best one that has no others."""
        self.check(structures.shape[-1])
        given: np.ndarray = structures.detach().reshape(-1, len(self.edges)).cpu().numpy() > 0
        chosen, found = self._search(np.where(given, 1.0, -np.inf))
        fits = torch.from_numpy((found == 1) & (chosen == given).all(-1))
        return fits.reshape(structures.shape[:-1]).to(structures.device)


@dataclass(frozen=True, repr=False)
class ShortestPath(_Graph):
    """Structure of the paths from one node of a directed graph to another that visit no node twice, as sets of edges.

    There is one score for each edge, (..., edges), in the order of ``edges``. With the **negative** costs as scores, the
    best path is the shortest.

    In a graph without cycles, scores may have any sign. Otherwise no cycle between source and target may have a positive
    total, which holds if all costs are >= 0, and then also within SparseMAP, whose residuals are at most the scores.

    Args:
        edges: pairs (from, to) of nodes, which are numbered from 0 on.
        source: first node of a path.
        target: last node of a path.

    Raises:
        ConfigurationError: if edges are not pairs of different nodes, or no path leads from the source to the target.

    Example:
        >>> import torch
        >>> costs = torch.tensor([[1.0, 3.0, 1.0]])
        >>> ShortestPath([(0, 1), (0, 2), (1, 2)], source=0, target=2).maximize(
        ...     -costs
        ... ).tolist()
        [[1.0, 0.0, 1.0]]
    """

    edges: tuple[tuple[int, int], ...]
    source: int
    target: int

    def __post_init__(self) -> None:
        self._keep_edges()
        for name in ("source", "target"):
            check_count(name, getattr(self, name), 0, self.nodes - 1)
        if not len(self._order):
            raise ConfigurationError(
                f"Expected a path between two different nodes but there is none from {self.source} to {self.target}. Change the"
                " nodes, or add edges."
            )

    @classmethod
    def grid(cls, rows: int, columns: int) -> Self:
        """Return the structure of the paths through a grid from its first corner to the last, by steps to the right and down.

        Nodes are numbered row by row. For each row of the grid come its edges to the right, then those down.

        Raises:
            ConfigurationError: if ``rows`` or ``columns`` is not an integer >= 1, or both are 1, or beyond a million edges.
        """
        most = MOST_FEATURES // 2
        check_count("columns", columns, most=most // check_count("rows", rows, most=most))
        edges = []
        for first in range(0, rows * columns, columns):
            edges += [(node, node + 1) for node in range(first, first + columns - 1)]
            if first < (rows - 1) * columns:
                edges += [(node, node + columns) for node in range(first, first + columns)]
        return cls(tuple(edges), 0, rows * columns - 1)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: a grid, and a graph with parallel edges, a dead end and a way back."""
        return [cls.grid(2, 3), cls(((1, 2), (0, 1), (0, 1), (0, 2), (1, 3), (2, 0)), 0, 2)]

    def __repr__(self) -> str:
        """Show the number of edges, and the ends of the paths."""
        return f"ShortestPath({len(self.edges)} edges, source={self.source}, target={self.target})"

    @cached_property
    def _order(self) -> np.ndarray:
        """Edges that may be on a path, each after those that may come before it unless there are cycles."""
        ahead: list[list[int]] = [[] for _ in range(self.nodes)]
        behind: list[list[int]] = [[] for _ in range(self.nodes)]
        for edge, (tail, head) in enumerate(self.edges):
            if head != self.source and tail != self.target:
                ahead[tail].append(edge)
                behind[head].append(edge)
        before = set(self._reached(self.target, behind, 0))
        after = [edge for node in self._reached(self.source, ahead, 1) for edge in ahead[node]]
        return np.array([edge for edge in after if self.edges[edge][1] in before], np.int64)

    def _reached(self, start: int, edges: list[list[int]], end: int) -> list[int]:
        """Return the nodes that edges lead to from a node, by their given end; each before those after it, but for cycles."""
        found, path, finished = {start}, [(start, iter(edges[start]))], []
        while path:
            node, rest = path[-1]
            new = next((self.edges[edge][end] for edge in rest if self.edges[edge][end] not in found), None)
            if new is None:
                finished.append(node)
                path.pop()
            else:
                found.add(new)
                path.append((new, iter(edges[new])))
        return finished[::-1]

    @on_values
    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        """Return the best path for each row of scores (B, edges), on the CPU.

        Raises:
            ConfigurationError: if the forbidden edges leave no path, or a cycle has a positive total.
        """
        what = f"a path from node {self.source} to node {self.target}"
        return best_by_search(self, scores, potentials, self._without_cycles, what, "Forbid fewer edges.")

    def _without_cycles(self, rows: np.ndarray) -> tuple[Any, Any]:
        chosen, found = self._search(rows)
        if (found == CYCLE).any():
            raise ConfigurationError(
                f"Expected scores without a cycle of positive total but row {int((found == CYCLE).argmax())} of the batch has"
                " one, and going round it is always better. Give the negated costs, which must not be negative in a graph"
                " with cycles."
            )
        return chosen, found

    @override
    def _search(self, rows: np.ndarray) -> tuple[Any, Any]:
        chosen, found = zeros(rows.shape, np.uint8), zeros(len(rows), np.uint8)
        edges, graph = (len(rows), max(4 * len(self._order), 1)), (self._ends, self._order, self.nodes)
        over_rows(paths_block, edges, SECONDS, rows, *graph, self.source, self.target, chosen, found)
        return chosen, found


@dataclass(frozen=True, repr=False)
class SpanningTree(_Graph):
    """Structure of the spanning trees of an undirected graph: sets of edges that connect all nodes and have no cycle.

    There is one score for each edge, (..., edges), in the order of ``edges``. For rooted, directed trees see
    :class:`~lit_sparse.structures.Tree`.

    Args:
        edges: pairs of nodes, which are numbered from 0 on without gaps.

    Raises:
        ConfigurationError: if edges are not pairs of different nodes, or do not connect all nodes.

    Example:
        >>> import torch
        >>> SpanningTree([(0, 1), (0, 2), (1, 2)]).maximize(
        ...     torch.tensor([[1.0, 3.0, -1.0]])
        ... ).tolist()
        [[1.0, 1.0, 0.0]]
    """

    edges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        self._keep_edges()
        if not self._search(np.zeros((1, len(self.edges))))[1].all():
            raise ConfigurationError(f"Expected edges that connect all nodes, 0 .. {self.nodes - 1}, but they do not.")

    @classmethod
    def complete(cls, nodes: int) -> Self:
        """Return the structure of the spanning trees of a complete graph, with edges (0, 1), (0, 2), ..., (1, 2), ...

        Raises:
            ConfigurationError: if ``nodes`` is not an integer in 2 .. 1000.
        """
        check_count("nodes", nodes, 2, 1000)
        return cls(tuple((i, j) for i in range(nodes) for j in range(i + 1, nodes)))

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: a complete graph, and one with parallel edges and a bridge."""
        return [cls.complete(4), cls(((0, 1), (1, 0), (1, 2), (2, 0), (3, 2)))]

    @override
    def centered(self, scores: Tensor) -> Tensor:
        return less_the_largest(scores)

    @on_values
    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        """Return the best spanning tree for each row of scores (B, edges), on the CPU; ties go to the first edges.

        Raises:
            ConfigurationError: if the forbidden edges leave no spanning tree.
        """
        return best_by_search(self, scores, potentials, self._search, "a tree over all nodes", "Forbid fewer edges.")

    @override
    def _search(self, rows: np.ndarray) -> tuple[Any, Any]:
        chosen, found = zeros(rows.shape, np.uint8), zeros(len(rows), np.uint8)
        order = np.argsort(-rows, axis=-1, kind="stable")
        over_rows(trees_block, (len(rows), 4 * len(self.edges)), SECONDS, rows, order, self._ends, self.nodes, chosen, found)
        return chosen, found
