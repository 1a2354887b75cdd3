"""The best path between two nodes of a directed graph, and the best spanning tree of a graph without directions.

A path is found by the algorithm of Bellman and Ford: sweeps over the edges until no node gets a better path. If the edges come
in the order of their tails along the paths, as in a graph without cycles, the first sweep finds it and the second confirms it.
A tree is found by the algorithm of Kruskal: the best edges first, without those that close a cycle.

Source: Bellman (1958), On a Routing Problem. Kruskal (1956), On the Shortest Spanning Subtree of a Graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lit_sparse.kernels.cpu.compile import compile_rows, empty, zeros
from lit_sparse.kernels.cpu.threads import over_rows

__all__ = ["CYCLE", "best_paths", "best_spanning_trees"]

SECONDS = 2e-9  # of one thread for an edge, about
NONE = -1
#: In place of whether a row has a path: a cycle with a positive total makes walks of any length better.
CYCLE = 2


@compile_rows()
def paths_block(
    first: Any, stop: Any, scores: Any, ends: Any, order: Any, nodes: Any, source: Any, target: Any, chosen: Any, found: Any
) -> None:
    """Write the best paths of rows ``first .. stop - 1``, and whether there are any; see :func:`best_paths`.

    ``chosen`` (B, d) and ``found`` (B,) receive its results.
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


def best_paths(scores: Any, ends: Any, order: Any, nodes: int, source: int, target: int) -> tuple[Any, Any]:
    """Return the best path between two nodes for each row of edge scores, and whether there is one.

    Args:
        scores: float64 array (B, d), finite, or -inf for forbidden edges.
        ends: int64 array (d, 2), the nodes that each edge comes from and leads to.
        order: int64 array of the edges that may be on a path, none of which leads to the source or comes from the target.
        nodes: number of nodes.
        source: first node.
        target: last node, another one.

    Returns:
        Arrays of bytes (B, d), the edges of the path, and (B,): 1 for a path, 0 without one, ``CYCLE`` for a positive
        cycle.
    """
    chosen, found = zeros(scores.shape, np.uint8), zeros(len(scores), np.uint8)
    edges = (len(scores), max(4 * len(order), 1))
    over_rows(paths_block, edges, SECONDS, scores, ends, order, nodes, source, target, chosen, found)
    return chosen, found


@compile_rows()
def root_of(parent: Any, node: Any) -> Any:
    """Return the root of a node in a union-find forest given by each node's parent, with path compression."""
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@compile_rows()
def trees_block(first: Any, stop: Any, scores: Any, order: Any, ends: Any, nodes: Any, chosen: Any, found: Any) -> None:
    """Write the best spanning trees of rows ``first .. stop - 1``, and whether there are any; see :func:`best_spanning_trees`.

    ``order`` (B, d) lists the edges of each row, the best first; ``chosen`` (B, d) and ``found`` (B,) receive the results.
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


def best_spanning_trees(scores: Any, ends: Any, nodes: int) -> tuple[Any, Any]:
    """Return the best spanning tree for each row of edge scores, and whether there is one.

    Args:
        scores: float64 array (B, d), finite, or -inf for forbidden edges. Ties go to the first edges.
        ends: int64 array (d, 2), the nodes that each edge connects.
        nodes: number of nodes.

    Returns:
        Arrays of bytes (B, d), the edges of the tree, and (B,), whether there is one.
    """
    chosen, found = zeros(scores.shape, np.uint8), zeros(len(scores), np.uint8)
    order = np.argsort(-scores, axis=-1, kind="stable")
    over_rows(trees_block, (len(scores), 4 * len(ends)), SECONDS, scores, order, ends, nodes, chosen, found)
    return chosen, found
