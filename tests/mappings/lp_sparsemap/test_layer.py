"""LP-SparseMAP against a generic solver, its derivatives against differences, and what it refuses."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import LPSparseMAP, SparseMAP, Sparsemax
from lit_sparse.mappings import functional as F
from lit_sparse.runs.builder import build
from lit_sparse.runs.descriptions import describe
from lit_sparse.structures import Assignment, Budget, Factor, FactorGraph, Or, Pair, Sequence, Tree, Xor
from tests.mappings.lp_sparsemap.graphs import OneOfEachHalf, random_graph, solved_generically

CHAIN = FactorGraph(None, [Factor(Pair(), "neighbours"), Factor(Budget(None, 3))])


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def compare(seeds: range) -> tuple[int, int]:
    """Compare random graphs with the generic solver; return how many were solved, and how many contradict themselves."""
    solved = contradicting = 0
    for seed in seeds:
        graph = random_graph(seed)
        assert graph.variables is not None
        x, gamma = 1.5 * draw(graph.variables, seed=seed), (0.3, 1.0, 2.0)[seed % 3]
        potentials = draw(graph.potential_counts(graph.variables)[0], seed=seed + 10**6)
        expected = solved_generically(graph, x, potentials, gamma)
        if expected is None:
            contradicting += 1
            with pytest.raises(ConfigurationError, match=r"contradict one another|leave none for factor"):
                F.lp_sparsemap(x, graph, potentials=potentials, gamma=gamma)
            continue
        solved += 1
        out = F.lp_sparsemap(x, graph, potentials=potentials, gamma=gamma)
        assert float((out.marginals - torch.from_numpy(expected)).abs().max()) <= 1e-5, (seed, graph)
        assert float(out.residual) <= 1e-6, (seed, graph)
        assert float(out.gap) <= 1e-4, (seed, graph)
    return solved, contradicting


@pytest.mark.gate
def test_random_graphs_equal_a_quadratic_program() -> None:
    assert compare(range(50)) == (45, 5)


@pytest.mark.slow
def test_a_chain_of_fifty_with_a_budget_takes_less_than_five_milliseconds() -> None:
    """One problem of a batch of 64, on one thread."""
    graph = FactorGraph(None, [Factor(Pair(), "neighbours"), Factor(Budget(None, 10))])
    x, potentials = draw(64, 50), draw(64, 49, seed=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = []
        for _ in range(4):  # the first compiles
            begin = time.process_time()
            F.lp_sparsemap(x, graph, potentials=potentials)
            times.append(time.process_time() - begin)
    finally:
        torch.set_num_threads(threads)
    assert min(times) / 64 < 5e-3


@pytest.mark.slow
def test_a_thousand_random_graphs_equal_a_quadratic_program() -> None:
    assert compare(range(1155)) == (1000, 155)


@pytest.mark.gate
def test_a_chain_of_fifty_equals_a_quadratic_program() -> None:
    """In a batch, with one potential for each pair and row."""
    x, potentials = draw(4, 50), draw(4, 49, seed=1)
    out = F.lp_sparsemap(x, CHAIN, potentials=potentials)
    for row, links, got in zip(x, potentials, out.marginals, strict=True):
        expected = torch.from_numpy(solved_generically(CHAIN, row, links)).clamp(0, 1)
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)
    assert float(out.gap.max()) <= 1e-9


def test_one_factor_is_sparsemap() -> None:
    x, links = draw(3, 12), draw(3, 3, seed=1)
    for structure in (Budget(12, 4), Tree(3), Sequence(tags=3), OneOfEachHalf(), Assignment(3, 4)):
        d = 9 if isinstance(structure, Tree) else 12
        mine = links if isinstance(structure, Sequence) else None
        expected = F.sparsemap(x[:, :d], structure, potentials=mine).marginals
        graph = FactorGraph(d, [Factor(structure)])
        got = F.lp_sparsemap(x[:, :d], graph, potentials=None if mine is None else mine.flatten()).marginals
        torch.testing.assert_close(got, expected, atol=1e-7, rtol=0)


def test_a_tree_of_pairs_is_a_sequence() -> None:
    """Without cycles the relaxation is exact: a chain of pairs has the marginals of a sequence of two tags."""
    x, link = draw(5, 8), 0.9
    layer = SparseMAP(Sequence(tags=2, select=1), potentials=[[0.0, 0.0], [0.0, 2 * link]], tol=1e-9)
    chain = FactorGraph(None, [Factor(Pair(), "neighbours")])
    # A sequence's norm counts the hidden tag too: ||mu||^2 + ||1 - mu||^2.
    torch.testing.assert_close(LPSparseMAP(chain, potentials=[link])(x), layer(2 * x - 1), atol=1e-7, rtol=0)


def test_a_variable_without_factors_is_clipped() -> None:
    graph = FactorGraph(4, [Factor(Xor(), [0, 2])])
    got = LPSparseMAP(graph)(torch.tensor([0.3, 1.7, 0.1, -0.2]))
    torch.testing.assert_close(got, torch.tensor([0.6, 1.0, 0.4, 0.0]))


def graph_of_structures() -> FactorGraph:
    return FactorGraph(
        9,
        [Factor(Tree(3)), Factor(Sequence(tags=2), [2, 5, 8, 1]), Factor(Pair(), [[0, 4], [4, 8]], [1]), Factor(Or(), [3, 6])],
    )


def test_derivatives_equal_differences() -> None:
    """Derivatives of marginals and counts, in scores and potentials, also in forward mode, and twice."""
    point = (draw(2, 6, seed=3).requires_grad_(), draw(2, 5, seed=4).requires_grad_())

    def call(x: Tensor, potentials: Tensor) -> tuple[Tensor, ...]:
        out = F.lp_sparsemap(x, CHAIN, potentials=potentials, gamma=0.7)
        return out.marginals, out.counts

    torch.autograd.gradcheck(call, point, check_forward_ad=True, atol=1e-5)
    torch.autograd.gradgradcheck(lambda x, p: call(x, p)[0], point, atol=1e-5)


def test_derivatives_through_structures_equal_differences() -> None:
    """Along random directions, forward and backward."""
    graph = graph_of_structures()
    point, directions = (draw(2, 9, seed=3), draw(2, 6, seed=4)), (draw(2, 9, seed=5), draw(2, 6, seed=6))

    def call(x: Tensor, potentials: Tensor) -> Tensor:
        return torch.cat(list(F.lp_sparsemap(x, graph, potentials=potentials, gamma=0.7, tol=1e-7)), -1)

    h = 1e-4
    ends = [call(*[p + sign * h * v for p, v in zip(point, directions, strict=True)]) for sign in (1, -1)]
    expected = (ends[0] - ends[1]) / (2 * h)
    forward = torch.func.jvp(call, point, directions)[1]
    torch.testing.assert_close(forward, expected, atol=1e-4, rtol=0)
    weights = draw(2, 15, seed=7)
    leaves = [p.clone().requires_grad_() for p in point]
    gradients = torch.autograd.grad((call(*leaves) * weights).sum(), leaves)
    backward = sum((g * v).sum() for g, v in zip(gradients, directions, strict=True))
    torch.testing.assert_close(backward, (forward * weights).sum(), atol=1e-9, rtol=0)


def test_the_derivatives_of_value_and_loss() -> None:
    """The value's gradient is marginals and counts, the loss' that less the target's."""
    layer = LPSparseMAP(CHAIN, potentials=[0.4], learn_potentials=True, gamma=0.7).double()
    x = draw(3, 6).requires_grad_()
    out = layer.solve(x)
    gradients = torch.autograd.grad(layer.value(x).sum(), (x, layer.potentials))
    torch.testing.assert_close(gradients[0], out.marginals)
    torch.testing.assert_close(gradients[1], out.counts.sum().reshape(1))
    target = torch.tensor([1.0, 1, 0, 0, 0, 1]).double().expand(3, 6)
    loss = layer.loss(x, target)
    gradients = torch.autograd.grad(loss.sum(), (x, layer.potentials))
    torch.testing.assert_close(gradients[0], out.marginals - target)
    torch.testing.assert_close(gradients[1], (out.counts.sum() - 3).reshape(1))
    assert bool((loss > 0).all())
    torch.testing.assert_close(layer.loss(1e3 * (target - 0.5), target), torch.zeros(3).double())
    with pytest.raises(ConfigurationError, match="fit all factors and the mask but the target of row 1"):
        layer.loss(x, target.clone().index_fill_(0, torch.tensor([1]), 1.0))
    with pytest.raises(ConfigurationError, match="scores' shape"):
        layer.loss(x, target[0])


def test_rows_do_not_touch_one_another() -> None:
    x = draw(4, 9)
    graph = graph_of_structures()
    clean = LPSparseMAP(graph)(x)
    x[1, 3], x[2] = torch.nan, -torch.inf
    leaf = x.clone().requires_grad_()
    got = LPSparseMAP(graph)(leaf)
    assert bool(got[1].isnan().all()) and bool((got[2] == 0).all())
    torch.testing.assert_close(got[[0, 3]], clean[[0, 3]], atol=1e-7, rtol=0)
    (gradient,) = torch.autograd.grad(got.sum(), leaf)
    assert bool(gradient[[0, 2, 3]].isfinite().all())
    broken = draw(4, graph.potential_counts(9)[0])
    broken[0, 1] = torch.inf
    assert LPSparseMAP(graph, potentials=broken)(draw(4, 9)).isnan().any(-1).tolist() == [True, False, False, False]


def test_masked_variables_are_zero() -> None:
    """A factor without its masked variables remains, and one that has none left is left out."""
    graph = FactorGraph(6, [Factor(Xor(), [[0, 1, 2], [3, 4, 5]]), Factor(Or(), [[0, 1]], [0]), Factor(Pair(), [[1, 2]])])
    mask = torch.tensor([True, True, False, False, False, False])
    x = draw(3, 6)
    got = LPSparseMAP(graph, potentials=[3.0])(x, mask)
    assert bool((got[:, 2:] == 0).all())
    expected = LPSparseMAP(FactorGraph(2, [Factor(Xor()), Factor(Or(), [0, 1], [0])]))(x[:, :2])
    torch.testing.assert_close(got[:, :2], expected)


def test_the_batched_solver_equals_the_compiled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves other devices."""
    from lit_sparse.mappings.lp_sparsemap import local

    graph = FactorGraph(7, [Factor(Pair(), "neighbours", [0]), Factor(Budget(None, 3)), Factor(Or(), [[0, 1], [2, 6]], [1])])
    x, potentials = 2 * draw(6, 7), draw(6, 6, seed=1)
    x[1, 2], x[2, 3:5] = torch.nan, -torch.inf
    compiled = F.lp_sparsemap(x, graph, potentials=potentials)
    monkeypatch.setattr(local.local_of(graph, 7, x.device), "packed", None)
    batched = F.lp_sparsemap(x, graph, potentials=potentials)
    torch.testing.assert_close(batched.marginals, compiled.marginals, equal_nan=True)
    torch.testing.assert_close(batched.counts, compiled.counts, equal_nan=True, atol=1e-9, rtol=0)


def test_zeros_and_ones_are_exact_where_limits_just_meet() -> None:
    """Rows and columns with one of each, whose diagonals agree: equal scores put many variables on the border of a face."""
    cells = torch.arange(36).reshape(6, 6)
    pairs = torch.stack([cells[:-1, :-1].flatten(), cells[1:, 1:].flatten()], 1).tolist()
    graph = FactorGraph(36, [Factor(Xor(), cells.tolist()), Factor(Budget(None, 1), cells.T.tolist()), Factor(Pair(), pairs)])
    x = draw(200, 36).mul(2).round().div(2)
    marginals = LPSparseMAP(graph, potentials=[0.5])(x)
    assert float((marginals == 0).double().mean()) > 0.4
    assert not bool(((marginals > 0) & (marginals < 1e-7)).any())
    assert not bool(((marginals < 1) & (marginals > 1 - 1e-7)).any())


@pytest.mark.parametrize("scale", [1e-6, 1e3, 1e6])
def test_scores_of_any_size(scale: float) -> None:
    out = F.lp_sparsemap(scale * draw(5, 9), CHAIN, potentials=[0.5 * scale])
    assert float(out.residual.max()) <= 1e-6
    assert float(out.marginals.sum(-1).max()) <= 3 + 9 * 1e-6  # each of 9 variables may differ from the budget's copy


def test_a_warning_tells_of_too_few_steps() -> None:
    layer = LPSparseMAP(CHAIN, potentials=[2.0], max_iter=2)
    with pytest.warns(RuntimeWarning, match="max_iter=2 evaluations in 3 of 3 rows"):
        layer(draw(3, 9))
    layer(draw(3, 9))  # once a layer


def test_descriptions_and_copies() -> None:
    layer = LPSparseMAP(graph_of_structures(), potentials=[0.1] * 6, gamma=0.5)
    again = build("here", describe(layer), LPSparseMAP)
    assert repr(again) == repr(layer)
    x = draw(2, 9)
    for other in (again, copy.deepcopy(layer)):
        torch.testing.assert_close(other(x), layer(x), atol=1e-6, rtol=0)


def test_a_potential_of_nan_makes_its_row_nan_with_the_gradients() -> None:
    graph = FactorGraph(3, [Factor(Pair(), "neighbours")])
    x, potentials = (torch.zeros(2, d, dtype=torch.float64) for d in (3, 2))
    potentials[0, 1] = torch.nan
    leaves = x.requires_grad_(), potentials.requires_grad_()
    found = LPSparseMAP(graph, potentials=potentials)(x)
    gradients = torch.autograd.grad(found.sum(), leaves)
    for tensor in (found, *gradients):
        assert tensor[0].isnan().all() and tensor[1].isfinite().all()


def test_learnt_potentials() -> None:
    assert LPSparseMAP(CHAIN, learn_potentials=True).potentials.shape == (1,)
    assert LPSparseMAP(graph_of_structures(), learn_potentials=True).potentials.shape == (6,)
    layer = LPSparseMAP(CHAIN, learn_potentials=True)
    layer(draw(2, 8)).square().sum().backward()
    assert float(layer.potentials.grad.abs()) > 0


def test_compiled_models_call_it() -> None:
    """It breaks the graph, as SparseMAP does."""
    layer = LPSparseMAP(CHAIN, potentials=[0.5])
    x = draw(2, 6)
    torch.testing.assert_close(torch.compile(lambda x: 2 * layer(x), backend="eager")(x), 2 * layer(x))


def test_a_simplex_is_sparsemax() -> None:
    x = draw(4, 7)
    torch.testing.assert_close(LPSparseMAP(FactorGraph(None, [Factor(Xor())]))(x), Sparsemax()(x))


def test_integers_of_numpy_are_variables() -> None:
    assert Factor(Or(), [*np.arange(2)], [np.int64(1)]) == Factor(Or(), [0, 1], [1])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Factor(Xor), r"Expected a structure.*Did you mean Xor\(...\)"),
        (lambda: Factor(Xor(), [0, 0]), "different whole numbers"),
        (lambda: Factor(Xor(), np.arange(2)), "different whole numbers"),
        (lambda: Factor(Xor(), [[0, 1], [2]]), "lists of equal length"),
        (lambda: Factor(Xor(), [-1, 0]), "variables, numbered from 0"),
        (lambda: Factor(Xor(), []), "variables, numbered from 0"),
        (lambda: Factor(Xor(), "all"), "whole numbers"),
        (lambda: Factor(Pair(), [0, 1, 2]), "length 2"),
        (lambda: Factor(Or(), [0, 1], [2]), r"places 0 \.\. 1 but got \[2\]"),
        (lambda: FactorGraph(3, [Factor(Xor(), [0, 3])]), r"Expected variables 0 \.\. 2.*but got \[3\]"),
        (lambda: FactorGraph(3, []), "list of at least one Factor"),
        (lambda: FactorGraph(3, [Xor()]), "list of at least one Factor"),
        (lambda: FactorGraph(0, [Factor(Xor())]), "variables"),
        (lambda: FactorGraph(4, [Factor(Sequence(tags=2), None, [0])]), "only bits, logic and pairs"),
        (lambda: FactorGraph(4, [Factor(Sequence(tags=2, select=1))]), "shows all its entries"),
        (lambda: FactorGraph(4, [Factor(Tree(3))]), "length"),
        (lambda: LPSparseMAP(Budget(3, 1)), r"Expected a graph, such as"),
        (lambda: SparseMAP(CHAIN), "Expected a structure"),
        (lambda: LPSparseMAP(FactorGraph(3, [Factor(Xor())]), learn_potentials=True), "factor with potentials to learn"),
        (lambda: LPSparseMAP(FactorGraph(3, [Factor(Xor())]))(torch.zeros(4)), "length 3"),
        (lambda: F.lp_sparsemap(torch.zeros(4), CHAIN, potentials=[1.0, 2.0]), r"\(3,\).*or \(1,\).*but got \(2,\)"),
        (lambda: F.lp_sparsemap(torch.zeros(2, 4), CHAIN, potentials=torch.zeros(3, 3)), "potentials for the rows"),
        (lambda: F.lp_sparsemap(torch.zeros(4), CHAIN, max_iter=0), "max_iter"),
        (lambda: F.lp_sparsemap(torch.zeros(4), CHAIN, tol=0.0), "tol"),
    ],
)
def test_refusals(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        call()


def test_contradictions_are_named() -> None:
    graph = FactorGraph(4, [Factor(Xor(), [[0, 1], [2, 3]]), Factor(Budget(None, 1))])
    with pytest.raises(ConfigurationError, match="row 0 contradict one another"):
        LPSparseMAP(graph)(draw(2, 4))
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    left = LPSparseMAP(graph)(draw(2, 4)[1:], mask[1:])  # the second Xor is left out
    torch.testing.assert_close(left.sum(), torch.ones_like(left.sum()))
    graph = FactorGraph(3, [Factor(Or(), [0, 1]), Factor(Budget(None, 0), [1, 2], [0, 1])])
    with pytest.raises(
        ConfigurationError, match=r"row 1 the allowed variables leave none for factor 1, Factor\(structure=Budget"
    ):
        LPSparseMAP(graph)(draw(2, 3), torch.tensor([[True] * 3, [True, False, False]]) | torch.tensor([0, 0, 1]).bool())
