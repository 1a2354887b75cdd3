"""Random factor graphs, and their marginals by a generic solver of quadratic programs over all elements of each factor."""

from __future__ import annotations

import random

import clarabel
import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from lit_sparse.structures import (
    Assignment,
    BitVector,
    Budget,
    Factor,
    FactorGraph,
    Or,
    OrOut,
    Pair,
    Sequence,
    Structure,
    Tree,
    Xor,
)

__all__ = ["OneOfEachHalf", "elements", "random_graph", "solved_generically"]


class OneOfEachHalf(Structure):
    """A structure of a user: one entry of the first half, and one of the second half."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return 1

    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        halves = scores.unflatten(-1, (2, -1))
        return torch.nn.functional.one_hot(halves.argmax(-1), halves.shape[-1]).flatten(-2).to(scores.dtype)

    def validate(self, structures: Tensor) -> Tensor:
        return (structures.unflatten(-1, (2, -1)).sum(-1) == 1).all(-1)


def random_graph(seed: int) -> FactorGraph:
    """Draw a graph of 4 to 7 variables and 2 to 5 factors, which may contradict one another."""
    draw = random.Random(seed)
    d = draw.randint(4, 7)
    factors = []
    for _ in range(draw.randint(2, 5)):
        size = draw.randint(2, 4)
        simple: list[Structure] = [Xor(), Or(), OrOut(), Budget(None, 1), Budget(None, 2), BitVector(), Pair(), Pair(), Pair()]
        large: list[Structure] = [Sequence(tags=2), Sequence(2, tags=2), Tree(2), Assignment(2, 2), OneOfEachHalf()]
        structure = draw.choice(simple + large)
        size = 4 if structure in large else 2 if isinstance(structure, Pair) else size
        groups = [draw.sample(range(d), size) for _ in range(draw.randint(1, 2))]
        negated = draw.sample(range(size), draw.randint(0, size)) if structure in simple and draw.random() < 0.5 else []
        factors.append(Factor(structure, groups, negated))
    return FactorGraph(d, factors)


def elements(factor: Factor, size: int) -> tuple[Tensor, Tensor]:
    """Return all elements (S, k) of a factor, of variables, and the same of literals."""
    literals = factor.structure.enumerate(size)
    bits = literals.clone()
    bits[:, list(factor.negated)] = 1 - bits[:, list(factor.negated)]
    return bits, literals


def solved_generically(graph: FactorGraph, x: Tensor, potentials: Tensor, gamma: float = 1.0) -> np.ndarray | None:
    """Return the marginals (d,) for scores x and one potential for each group of variables, or None if there are none."""
    d = len(x)
    rewards, rows, used = [np.zeros(0)], [], 0
    taken, limits = d, []
    for factor in graph.factors:
        for group in factor.groups(d):
            if isinstance(factor.structure, Budget) and len(group) > 20:  # too many elements: their hull is known
                limits.append((group, factor.structure.budget))
                continue
            bits, literals = elements(factor, len(group))
            score = torch.zeros(len(bits), dtype=torch.float64)
            if factor.structure.has_potentials:
                shape = factor.structure.initial_potentials().shape
                links = potentials[used : used + shape.numel()].reshape(shape)
                score = factor.structure.potential_scores(
                    literals.unsqueeze(0), factor.structure.batch_potentials(links, len(group))
                )[0]
                used += shape.numel()
            rewards.append(score.numpy())
            rows += [(variable, taken, bits[:, place].numpy()) for place, variable in enumerate(group)]
            rows.append((None, taken, np.ones(len(bits))))
            taken += len(bits)
    equal, right = sparse.lil_matrix((len(rows), taken)), np.zeros(len(rows))
    for number, (variable, first, values) in enumerate(rows):
        equal[number, first : first + len(values)] = values
        if variable is None:
            right[number] = 1
        else:
            equal[number, variable] = -1
    upper = sparse.hstack([sparse.eye(d), sparse.csc_matrix((d, taken - d))])
    sums = sparse.lil_matrix((len(limits), taken))
    for number, (group, _) in enumerate(limits):
        sums[number, list(group)] = 1
    constraints = sparse.vstack([equal, -sparse.eye(taken), upper, sums]).tocsc()
    bounds = np.concatenate([right, np.zeros(taken), np.ones(d), [most for _, most in limits]])
    cones = [clarabel.ZeroConeT(len(rows)), clarabel.NonnegativeConeT(taken + d + len(limits))]
    quadratic = sparse.diags(np.concatenate([np.full(d, gamma), np.zeros(taken - d)])).tocsc()
    linear = -np.concatenate([x.numpy(), *rewards])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    solution = clarabel.DefaultSolver(quadratic, linear, constraints, bounds, cones, settings).solve()
    if solution.status in (clarabel.SolverStatus.PrimalInfeasible, clarabel.SolverStatus.AlmostPrimalInfeasible):
        return None
    return np.array(solution.x)[:d]
