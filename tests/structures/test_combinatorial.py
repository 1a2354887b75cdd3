"""Top-k, knapsacks, paths, spanning trees and assignments against enumeration, and what they refuse."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import functional as F
from lit_sparse.structures import Assignment, Knapsack, ShortestPath, SpanningTree, Structure, TopK


def some_edges(draw: random.Random, nodes: int, most: int) -> list[tuple[int, int]]:
    """A chain through all nodes, which every structure needs, and other edges at random."""
    chain = [(node, node + 1) for node in range(nodes - 1)]
    more = [tuple(draw.sample(range(nodes), 2)) for _ in range(draw.randint(0, most - len(chain)))]
    return draw.sample(edges := [*chain, *more], len(edges))  # type: ignore[list-item]


def top_k(draw: random.Random) -> Structure:
    d = draw.randint(1, 9)
    return TopK(draw.choice([d, None]) if d > 8 else d, draw.randint(1, d))


def knapsack(draw: random.Random) -> Structure:
    unit, d = draw.choice([1, 3, 1000]), draw.randint(1, 9)
    return Knapsack([unit * draw.randint(0, 9) for _ in range(d)], draw.randint(0, 30 * unit))  # type: ignore[arg-type]


def shortest_path(draw: random.Random) -> Structure:
    nodes = draw.randint(2, 6)
    return ShortestPath(some_edges(draw, nodes, 10), 0, nodes - 1)  # type: ignore[arg-type]


def spanning_tree(draw: random.Random) -> Structure:
    return SpanningTree(some_edges(draw, draw.randint(2, 6), 10))  # type: ignore[arg-type]


def assignment(draw: random.Random) -> Structure:
    rows = draw.randint(1, 3)
    return Assignment(rows, draw.randint(rows, 9 // rows))


def is_in(structure: Structure, chosen: list[int]) -> bool:
    """Whether places of ones are a structure, by its definition."""
    if isinstance(structure, TopK):
        return len(chosen) == structure.k
    if isinstance(structure, Knapsack):
        return sum(structure.weights[item] for item in chosen) <= structure.capacity
    if isinstance(structure, ShortestPath):
        left, node, visited = [structure.edges[edge] for edge in chosen], structure.source, {structure.source}
        while node != structure.target:
            onward = [edge for edge in left if edge[0] == node]
            if len(onward) != 1 or onward[0][1] in visited:
                return False
            left.remove(onward[0])
            node = onward[0][1]
            visited.add(node)
        return not left
    if isinstance(structure, Assignment):
        rows, columns = structure.shape(structure.size or 0)
        places = [divmod(entry, columns) for entry in chosen]
        return [row for row, _ in places] == list(range(rows)) and len({column for _, column in places}) == rows
    assert isinstance(structure, SpanningTree)
    parts = {node: {node} for node in range(structure.nodes)}
    for edge in chosen:
        one, other = (parts[node] for node in structure.edges[edge])
        if one is other:
            return False
        one |= other
        parts.update(dict.fromkeys(other, one))
    return len(chosen) == structure.nodes - 1


@pytest.mark.parametrize("make", [top_k, knapsack, shortest_path, spanning_tree, assignment], ids=lambda make: make.__name__)
def test_the_best_of_all(make: Callable[[random.Random], Structure]) -> None:
    draw = random.Random(0)
    for case in range(500):
        structure = make(draw)
        d = structure.size or 9
        every = ((torch.arange(2**d)[:, None] >> torch.arange(d)) & 1).double()
        inside = torch.tensor([is_in(structure, row.nonzero().squeeze(-1).tolist()) for row in every])
        assert torch.equal(structure.fits(every, torch.tensor(True)), inside), structure
        scores = 2 * torch.randn(3, d, generator=torch.Generator().manual_seed(case), dtype=torch.float64)
        scores = torch.cat([scores, scores.round()])
        if isinstance(structure, ShortestPath):  # there may be cycles
            scores = -scores.abs()
        found = structure.maximize(scores)
        assert bool((found.unsqueeze(1) == every[inside]).all(-1).any(-1).all()), structure
        torch.testing.assert_close((found * scores).sum(-1), (scores @ every[inside].T).amax(-1))


def test_a_path_through_a_graph_with_cycles_by_sparsemap() -> None:
    """The marginals are optimal among all paths of a 3 x 3 grid with edges in both directions."""
    grid = ShortestPath.grid(3, 3)
    structure = ShortestPath((*grid.edges[:8], *(edge[::-1] for edge in grid.edges)), 0, 5)
    every = structure.enumerate()
    scores = -torch.rand(20, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    out = F.sparsemap(scores, structure, gamma=0.3)
    residual = scores - 0.3 * out.marginals
    assert float(((residual @ every.T).amax(-1) - (residual * out.marginals).sum(-1)).max()) < 1e-8
    assert int((out.probs > 0).sum(-1).max()) > 1


def test_the_edges_of_a_grid() -> None:
    structure = ShortestPath.grid(2, 3)
    assert structure.edges == ((0, 1), (1, 2), (0, 3), (1, 4), (2, 5), (3, 4), (4, 5))
    assert len(structure.enumerate()) == 3
    assert len(SpanningTree.complete(5).enumerate()) == 5**3  # Cayley's formula


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TopK(3, 4), "`k`"),
        (lambda: TopK(3, 0), "`k`"),
        (lambda: TopK(None, 3).maximize(torch.zeros(1, 2)), "at least 3 scores"),
        (lambda: TopK(None, 2).maximize(torch.tensor([[0.0, -torch.inf]])), "leave 2 entries but row 0"),
        (lambda: TopK(None, 2).maximize(torch.full((1, 3), torch.nan)), "NaN"),
        (lambda: Knapsack((), 3), "`weights`"),
        (lambda: Knapsack((1, -1), 3), "`weights`"),
        (lambda: Knapsack((0.5,), 3), "`weights`"),  # type: ignore[arg-type]
        (lambda: Knapsack("12", 3), "`weights`"),  # type: ignore[arg-type]
        (lambda: Knapsack((1, 2), 1.5), "`capacity`"),  # type: ignore[arg-type]
        (lambda: Knapsack((10**9, 10**9 + 1), 10**10), "coarser unit"),
        (lambda: Knapsack((10**30,), 3), "`weights`"),
        (lambda: Knapsack((1, 2), 3).maximize(torch.zeros(1, 3)), "length 2"),
        (lambda: ShortestPath((), 0, 1), "`edges`"),
        (lambda: ShortestPath(((0, 1, 2),), 0, 1), "`edges`"),  # type: ignore[arg-type]
        (lambda: ShortestPath(((0, -1),), 0, 1), "`edges`"),
        (lambda: ShortestPath(((0, 10**12),), 0, 1), "`edges`"),
        (lambda: ShortestPath(((0, 1), (1, 1)), 0, 1), "edge 1"),
        (lambda: ShortestPath(((1, 0),), 0, 1), "but there is none from"),
        (lambda: ShortestPath(((0, 1),), 0, 0), "but there is none from"),
        (lambda: ShortestPath(((0, 1),), 0, 2), "`target`"),
        (lambda: ShortestPath.grid(10**9, 10**9), "`rows`"),
        (lambda: ShortestPath.grid(1000, 1000), "`columns`"),
        (lambda: ShortestPath.grid(1, 1), "`edges`"),
        (lambda: ShortestPath(((0, 1), (1, 2), (2, 1), (2, 3)), 0, 3).maximize(torch.ones(1, 4)), "cycle of positive total"),
        (lambda: ShortestPath(((0, 1),), 0, 1).maximize(torch.full((1, 1), -torch.inf)), "row 0 of the batch"),
        (lambda: SpanningTree(((0, 1), (2, 3))), "connect all nodes"),
        (lambda: SpanningTree(((0, 2),)), "connect all nodes"),
        (lambda: SpanningTree.complete(1), "`nodes`"),
        (lambda: SpanningTree(((0, 1),)).maximize(torch.full((1, 1), -torch.inf)), "row 0 of the batch"),
    ],
)
def test_bad_arguments_are_explained(make: Callable[[], Tensor], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()
