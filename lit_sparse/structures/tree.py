"""Rooted trees over nodes, for example words and their heads, by the algorithm of Chu, Liu and Edmonds on a dense matrix.

Each node takes its best head. If that closes a cycle, the cycle is contracted to one node, whose head is the one that breaks
the cycle at the smallest loss. This repeats until there is no cycle. Then the cycles are expanded in reverse order. A
contraction takes time proportional to the number of nodes times the length of the cycle, O(n^2) in total.

Source: Chu & Liu (1965), On the Shortest Arborescence of a Directed Graph. Edmonds (1967), Optimum Branchings.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import FLAG, Count, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.torch_internals import on_values
from lit_sparse.kernels.cpu.compile import compile_rows, empty, zeros
from lit_sparse.kernels.cpu.threads import over_rows
from lit_sparse.structures.one_per_row import OnePerRow

__all__ = ["Tree", "best_trees"]

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

    ``chosen`` (B, n, n), which is zero, and ``found`` (B,) receive its results.
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
    chosen, found = zeros(scores.shape, np.uint8), empty(len(scores), np.uint8)
    nodes = max(scores.shape[-1], 1)
    over_rows(tree_block, (len(scores), nodes * nodes), SECONDS, scores, single_root, chosen, found)
    return chosen, found


@ranges(nodes=Count(), single_root=FLAG)
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
        >>> # The best heads of 0 and 1 would be each other.
        >>> rows = [[0.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
        >>> tree = Tree(3).maximize(torch.tensor(rows).reshape(1, -1))
        >>> tree.reshape(3, 3).argmax(-1).tolist()  # 1 is the root
        [1, 1, 1]
    """

    couples_queries: ClassVar[bool] = True

    nodes: int | None = None
    single_root: bool = True

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: trees and forests."""
        return [cls(), cls(single_root=False)]

    @property
    def size(self) -> int | None:
        """Number of entries, the number of nodes squared; None if it is read from the scores."""
        return None if self.nodes is None else self.nodes**2

    @override
    def shape(self, d: int) -> tuple[int, int]:
        nodes = math.isqrt(d)
        if nodes * nodes != d or self.nodes not in (None, nodes):
            expected = "a square number" if self.nodes is None else f"{self.nodes} * {self.nodes}"
            raise ConfigurationError(f"Expected scores of length nodes * nodes, {expected}, for {self!r} but got {d}.")
        return nodes, nodes

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
