"""Structures: sets of bit vectors whose best element for given scores can be found, for SparseMAP.

Example:
    >>> import torch
    >>> from lit_sparse.structures import Budget
    >>> Budget(3, budget=1).maximize(torch.tensor([[0.5, 2.0, -1.0]])).tolist()
    [[0.0, 1.0, 0.0]]
"""

from lit_sparse.ground.arguments import check_types
from lit_sparse.structures.assignment import Assignment
from lit_sparse.structures.base import Structure
from lit_sparse.structures.bit_vector import BitVector, Budget, TopK
from lit_sparse.structures.factor_graph import Factor, FactorGraph
from lit_sparse.structures.from_solver import FromSolver
from lit_sparse.structures.graph import ShortestPath, SpanningTree
from lit_sparse.structures.knapsack import Knapsack
from lit_sparse.structures.logic import Or, OrOut, Pair, Xor
from lit_sparse.structures.sequence import Sequence
from lit_sparse.structures.tree import Tree

__all__ = [
    "Assignment",
    "BitVector",
    "Budget",
    "Factor",
    "FactorGraph",
    "FromSolver",
    "Knapsack",
    "Or",
    "OrOut",
    "Pair",
    "Sequence",
    "ShortestPath",
    "SpanningTree",
    "Structure",
    "TopK",
    "Tree",
    "Xor",
]

check_types(globals())
