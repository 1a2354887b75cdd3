"""The best rooted tree of a directed graph, by the algorithm of Chu, Liu and Edmonds on a dense matrix.

Each node takes its best head. If that closes a cycle, the cycle is contracted to one node, whose head is the one that breaks
the cycle at the smallest loss. This repeats until there is no cycle. Then the cycles are expanded in reverse order. A
contraction takes time proportional to the number of nodes times the length of the cycle, O(n^2) in total.

Source: Chu & Liu (1965), On the Shortest Arborescence of a Directed Graph. Edmonds (1967), Optimum Branchings.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lit_sparse.kernels.cpu.compile import compile_rows, empty, zeros
from lit_sparse.kernels.cpu.threads import over_rows

__all__ = ["best_trees"]

SECONDS = 1e-8  # of one thread for one score, about
NONE = -1


@compile_rows()
def beats(level: Any, score: Any, other_level: Any, other_score: Any) -> Any:
    """Return whether a (level, score) pair is better than another.

    It is if it is allowed and has a lower level, or the same level and a larger score.
    """
    if score == -np.inf or other_score == -np.inf:
        return score != -np.inf
    return level < other_level or (level == other_level and score > other_score)


@compile_rows()
def choose_head(levels: Any, scores: Any, active: Any, node: Any, last: Any) -> Any:
    """Return the best head of a node among the active nodes below ``last``; ties go to the lowest, and the root is 0."""
    head = 0
    for other in range(1, last):
        if not active[other] or other == node:
            continue
        if beats(levels[other, node], scores[other, node], levels[head, node], scores[head, node]):
            head = other
    return head


@compile_rows()
def find_cycle(heads: Any, active: Any, seen: Any, last: Any) -> Any:
    """Return a node on a cycle of active nodes below ``last``, or 0 if there is none."""
    for node in range(last):
        seen[node] = NONE
    for start in range(1, last):
        node = start
        while active[node] and node != 0 and seen[node] == NONE:
            seen[node] = start
            node = heads[node]
        if active[node] and node != 0 and seen[node] == start:
            return node
    return 0


@compile_rows()
def contract(
    levels: Any, scores: Any, heads: Any, active: Any, inside: Any, leaves: Any, enters: Any, first: Any, new: Any
) -> None:
    """Replace the cycle through ``first`` by the new node ``new``, as Edmonds' algorithm does.

    ``enters[h, new]`` is the node of the cycle whose head becomes h, ``leaves[new, v]`` the node of the cycle that is the
    head of v, and ``inside[v]`` the contracted node that contains v.
    """
    for other in range(new):
        if not active[other]:
            continue
        scores[other, new], scores[new, other] = -np.inf, -np.inf
        enters[other, new], leaves[new, other] = first, first
    node = first
    while inside[node] != new:
        inside[node], active[node] = new, False
        node = heads[node]
    scores[new, new] = -np.inf
    while True:
        kept = heads[node]
        for other in range(new):
            if not active[other]:
                continue
            level, score = levels[other, node] - levels[kept, node], scores[other, node] - scores[kept, node]
            if beats(level, score, levels[other, new], scores[other, new]):
                scores[other, new], levels[other, new], enters[other, new] = score, level, node
            if other != 0 and beats(levels[node, other], scores[node, other], levels[new, other], scores[new, other]):
                scores[new, other], levels[new, other], leaves[new, other] = scores[node, other], levels[node, other], node
        node = kept
        if node == first:
            break
    active[new] = True
    for other in range(1, new):
        if active[other] and inside[heads[other]] == new:
            heads[other] = new


@compile_rows()
def best_tree(levels: Any, scores: Any, heads: Any, active: Any, inside: Any, seen: Any, leaves: Any, enters: Any) -> Any:
    """Write the head of each node in the best rooted tree of a graph; return whether there is a tree.

    Args:
        levels: integers (2n + 1, 2n + 1), [head, node], by which pairs are compared first; lower is better.
        scores: float64 of the same shape, -inf where a pair is forbidden. Entries 0 .. n are the root, 0, and the nodes;
            the rest is workspace.
        heads: integers (2n + 1,); the heads of the nodes are the result.
        active: booleans (2n + 1,), True for the nodes and the root.
        inside: integers (2n + 1,), workspace.
        seen: integers (2n + 1,), workspace.
        leaves: integers like ``levels``, workspace.
        enters: integers like ``levels``, workspace.
    """
    size = len(heads)
    last = size // 2 + 1
    for node in range(size):
        inside[node] = NONE
    for node in range(1, last):
        if active[node]:
            heads[node] = choose_head(levels, scores, active, node, last)
            if scores[heads[node], node] == -np.inf:
                return False
    while True:
        first = find_cycle(heads, active, seen, last)
        if first == 0:
            break
        contract(levels, scores, heads, active, inside, leaves, enters, first, last)
        heads[last] = choose_head(levels, scores, active, last, last)
        if scores[heads[last], last] == -np.inf:
            return False
        last += 1
    while last > size // 2 + 1:
        last -= 1
        head = heads[last]
        heads[enters[head, last]] = head
        for node in range(1, last):
            if heads[node] == last and inside[node] != last:
                heads[node] = leaves[last, node]
    return True


@compile_rows()
def tree_block(first: Any, stop: Any, scores: Any, single_root: Any, chosen: Any, found: Any) -> None:
    """Write the best trees of rows ``first .. stop - 1``, and whether there are any; see :func:`best_trees`.

    ``chosen`` (B, n, n) and ``found`` (B,) receive its results.
    """
    n = scores.shape[1]
    size = 2 * n + 1
    levels, padded = zeros((size, size), np.int32), empty((size, size), np.float64)
    leaves, enters = zeros((size, size), np.int32), zeros((size, size), np.int32)
    heads, inside, seen = zeros(size, np.int32), zeros(size, np.int32), zeros(size, np.int32)
    active = zeros(size, np.bool_)
    for row in range(first, stop):
        for node in range(size):
            active[node] = node == 0
        for node in range(n):
            present = False
            for head in range(n):
                present = present or scores[row, node, head] != -np.inf
                chosen[row, node, head] = 0
            active[node + 1] = present
        roots = 0
        for node in range(n):
            padded[node + 1, node + 1] = -np.inf
            levels[0, node + 1] = single_root
            for head in range(n):
                place = 0 if head == node else head + 1
                padded[place, node + 1] = scores[row, node, head] if active[place] else -np.inf
        found[row] = best_tree(levels, padded, heads, active, inside, seen, leaves, enters)
        if not found[row]:
            continue
        for node in range(n):
            if inside[node + 1] != NONE or active[node + 1]:
                head = node if heads[node + 1] == 0 else heads[node + 1] - 1
                chosen[row, node, head] = 1
                roots += head == node
        found[row] = roots <= 1 or not single_root


def best_trees(scores: Any, single_root: bool) -> tuple[Any, Any]:
    """Return the heads of the best rooted tree for each row of scores, and whether there is one.

    Args:
        scores: float64 array (B, n, n), [node, head], finite, or -inf for forbidden pairs. The diagonal holds the scores of
            being a root. Nodes without an allowed pair are left out, and are not a head of others.
        single_root: only one node may be a root.

    Returns:
        Arrays of bytes (B, n, n), one-hot heads, and (B,), whether there is a tree; without one, the heads are arbitrary.
    """
    chosen, found = empty(scores.shape, np.uint8), empty(len(scores), np.uint8)
    nodes = max(scores.shape[-1], 1)
    over_rows(tree_block, (len(scores), nodes * nodes), SECONDS, scores, single_root, chosen, found)
    return chosen, found
