"""Logic factors against truth tables and against other factors that say the same, for random scores with ties."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import clarabel
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from torch import Tensor

from lit_sparse.mappings import functional as F
from lit_sparse.structures import BitVector, Budget, Factor, FactorGraph, Or, OrOut, Pair, Xor
from tests.support.convex import solved

#: Random numbers, and quarters, of which many are equal or at the borders of faces.
NUMBERS = st.one_of(st.floats(-2, 3), st.integers(-8, 12).map(lambda number: number / 4))
MANY = settings(max_examples=60)

#: Name -> factor over d variables, and which bits fit it.
LOGIC: dict[str, tuple[Callable[[int], Factor], Callable[[tuple[int, ...]], bool]]] = {
    "xor": (lambda d: Factor(Xor()), lambda u: sum(u) == 1),
    "or": (lambda d: Factor(Or()), lambda u: any(u)),
    "at most one": (lambda d: Factor(Budget(None, 1)), lambda u: sum(u) <= 1),
    "budget": (lambda d: Factor(Budget(None, 2)), lambda u: sum(u) <= 2),
    "or out": (lambda d: Factor(OrOut()), lambda u: any(u[:-1]) == u[-1]),
    "and out": (lambda d: Factor(OrOut(), negated=list(range(d))), lambda u: all(u[:-1]) == u[-1]),
    "xor out": (lambda d: Factor(Xor(), negated=[d - 1]), lambda u: sum(u[:-1]) == u[-1]),
    "imply": (lambda d: Factor(Or(), negated=list(range(d - 1))), lambda u: not all(u[:-1]) or u[-1] == 1),
    "nand": (lambda d: Factor(Or(), negated=list(range(d))), lambda u: not all(u)),
}


def scores(least: int = 2, most: int = 5) -> st.SearchStrategy[Tensor]:
    return st.lists(NUMBERS, min_size=least, max_size=most).map(lambda row: torch.tensor(row, dtype=torch.float64))


def marginals(x: Tensor, *factors: Factor, potentials: list[float] | None = None) -> Tensor:
    return F.lp_sparsemap(x, FactorGraph(len(x), list(factors)), potentials=potentials).marginals


def negated(factor: Factor, places: set[int], d: int) -> Factor:
    """Return a factor with other variables negated."""
    return Factor(factor.structure, list(range(d)), sorted(places ^ {*factor.negated}))


def nearest(table: np.ndarray, x: Tensor, rewards: np.ndarray | None = None) -> Tensor:
    """Return the mean of the distribution over rows of a table (S, d) that is nearest to x, by a quadratic program."""
    size = len(table)
    linear = -table @ x.numpy() - (0.0 if rewards is None else rewards)
    constraints = sparse.csc_array(np.vstack([np.ones((1, size)), -np.eye(size)]))
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(size)]
    p = solved(sparse.csc_array(table @ table.T), linear, constraints, np.r_[1.0, np.zeros(size)], cones, tol=1e-12)
    return torch.from_numpy(p @ table)


def same(got: Tensor, expected: Tensor, atol: float = 1e-6) -> None:
    torch.testing.assert_close(got, expected, atol=atol, rtol=0)


@pytest.mark.cases(quick=3)
@pytest.mark.parametrize("name", LOGIC)
@given(x=scores(), flips=st.sets(st.integers(0, 1)))
@MANY
def test_a_factor_is_its_truth_table(name: str, x: Tensor, flips: set[int]) -> None:
    """Also with some of its variables negated. The generic solver is exact to 1e-5 where a limit is just reached."""
    make, fits = LOGIC[name]
    d = len(x)
    bits = [bits for bits in itertools.product((0, 1), repeat=d) if fits(tuple(b ^ (i in flips) for i, b in enumerate(bits)))]
    same(marginals(x, negated(make(d), flips, d)), nearest(np.array(bits, dtype=float), x), atol=1e-5)


@given(x=scores(2, 2), link=NUMBERS, flips=st.sets(st.integers(0, 1)))
@MANY
def test_a_pair_is_a_program_over_four_states(x: Tensor, link: float, flips: set[int]) -> None:
    table = np.array(list(itertools.product((0.0, 1.0), repeat=2)))
    literals = np.abs(table - np.isin([0, 1], list(flips)))
    expected = nearest(table, x, link * literals.prod(1))
    same(marginals(x, Factor(Pair(), [0, 1], sorted(flips)), potentials=[link]), expected, atol=1e-5)


@given(x=scores(2, 5), links=st.lists(NUMBERS, min_size=4, max_size=4))
@MANY
def test_a_negated_pair_is_a_pair_with_other_scores(x: Tensor, links: list[float]) -> None:
    """``a (1 - b) = a - a b`` and ``(1 - a) (1 - b) = 1 - a - b + a b``, for all pairs of a chain with a budget."""
    d, potentials = len(x), torch.tensor(links[: len(x) - 1], dtype=torch.float64)
    pairs, budget = [[i, i + 1] for i in range(d - 1)], Factor(Budget(None, 2))
    one, both = x.clone(), x.clone()
    one[:-1] += potentials
    both[:-1] -= potentials
    both[1:] -= potentials
    plain = Factor(Pair(), pairs)
    for flips, moved, sign in (([1], one, -1), ([0, 1], both, 1)):
        expected = marginals(moved, plain, budget, potentials=(sign * potentials).tolist())
        same(marginals(x, Factor(Pair(), pairs, flips), budget, potentials=potentials.tolist()), expected)


@given(x=scores(2, 2))
@MANY
def test_limits_of_pairs_are_logic(x: Tensor) -> None:
    """No potential leaves both free, one far below zero excludes both, one far above on equal bits makes them equal."""
    same(marginals(x, Factor(Pair(), [0, 1]), potentials=[0.0]), x.clamp(0, 1))
    same(marginals(x, Factor(Pair(), [0, 1]), potentials=[-100.0]), marginals(x, Factor(Budget(None, 1))))
    equal = x.mean().clamp(0, 1).expand(2)
    same(marginals(x - 100, Factor(Pair(), [0, 1]), potentials=[200.0]), equal)
    same(marginals(x, Factor(Or(), [[0, 1], [1, 0]], [0])), equal)  # each implies the other
    same(marginals(x, Factor(Xor(), [0, 1], [0])), equal)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Tensor, list[Factor]]:
    """Scores of 4 to 6 variables, and some factors that all zeros or all ones may fit."""
    x = draw(scores(4, 6))
    factors = []
    for _ in range(draw(st.integers(1, 3))):
        group = draw(st.permutations(range(len(x))))[: draw(st.integers(2, 4))]
        make, _ = LOGIC[draw(st.sampled_from(["at most one", "budget", "or out", "and out", "imply", "nand"]))]
        factors.append(Factor(make(len(group)).structure, list(group), make(len(group)).negated))
    return x, factors


@given(given_graph=graphs())
@MANY
def test_de_morgan(given_graph: tuple[Tensor, list[Factor]]) -> None:
    """With all variables negated, ones and zeros change places: the marginals of x are 1 minus the marginals of 1 - x."""
    x, factors = given_graph
    others = [
        Factor(f.structure, f.variables, sorted({*range(len(f.variables))} ^ {*f.negated}))  # type: ignore[arg-type]
        for f in factors
    ]
    same(marginals(x, *others), 1 - marginals(1 - x, *factors))


@given(given_graph=graphs(), data=st.data())
@MANY
def test_redundant_factors_change_nothing(given_graph: tuple[Tensor, list[Factor]], data: st.DataObject) -> None:
    """A factor twice, any bits, a budget of all, what exactly one of some implies, and another order."""
    x, factors = given_graph
    d, expected = len(x), marginals(x, *factors)
    same(marginals(x, *factors, factors[0]), expected)
    same(marginals(x, *factors, Factor(BitVector()), Factor(Budget(None, d))), expected)
    same(marginals(x, *factors, Factor(Pair(), "neighbours"), potentials=[0.0]), expected)
    xor = Factor(Xor(), [0, 1, 2])
    alone = marginals(x, xor)
    same(marginals(x, xor, Factor(Or(), [0, 1, 2]), Factor(Budget(None, 1), [0, 1, 2]), Factor(Budget(None, 1), [0, 2])), alone)
    order = data.draw(st.permutations(range(d)))
    moved = [Factor(f.structure, [order.index(i) for i in f.variables], f.negated) for f in factors]  # type: ignore[arg-type,union-attr]
    same(marginals(x[list(order)], *moved), expected[list(order)])


@pytest.mark.parametrize("name", LOGIC)
def test_derivatives_of_logic_equal_differences(name: str) -> None:
    """With a factor of pairs, so that no factor stands alone."""
    factor = negated(LOGIC[name][0](4), {1}, 4)
    graph = FactorGraph(4, [factor, Factor(Pair(), "neighbours")])
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    links = torch.randn(3, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, p: F.lp_sparsemap(x, graph, potentials=p).marginals, (x, links), atol=1e-5)


def test_derivatives_of_matchings_equal_differences() -> None:
    """Each row and each column has exactly one: their sums are constant, and the factors are not independent."""
    cells = torch.arange(9).reshape(3, 3)
    graph = FactorGraph(9, [Factor(Xor(), cells.tolist()), Factor(Xor(), cells.T.tolist())])
    for seed in range(10):
        x = torch.randn(9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: F.lp_sparsemap(x, graph).marginals, x, atol=1e-5)
