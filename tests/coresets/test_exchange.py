"""Exchanges on the support of a nonnegative fit against least squares that are solved anew for every support."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from torch import Tensor

from lit_sparse.coresets import pursuit
from lit_sparse.coresets.pursuit import NonnegativeFit, nonnegative_least_squares
from lit_sparse.coresets.vectors import DenseVectors


def problem(seed: int, size: int, draws: int, k: int, decay: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return unit vectors (size, draws), the best nonnegative weights of the first k, and the residual.

    The numbers of a vector shrink from the first to the last one by 10 to the power of ``decay``.
    """
    rng = np.random.default_rng(seed)
    units = (rng.normal(size=(size, draws)) + 0.1) * np.logspace(0, -decay, draws)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    target = units.sum(0) + rng.normal(size=draws) * np.logspace(0, -decay, draws)
    weights = np.zeros(size)
    weights[:k] = nnls(units[:k].T, target)[0]
    return torch.from_numpy(units), torch.from_numpy(weights), torch.from_numpy(target - weights @ units)


def best_weights(units: Tensor, target: Tensor, support: list[int]) -> Tensor:
    return torch.from_numpy(np.linalg.lstsq(units[support].numpy().T, target.numpy(), rcond=None)[0])


def distance(units: Tensor, target: Tensor, support: list[int]) -> float:
    return float((target - best_weights(units, target, support) @ units[support]).square().sum())


def test_a_table_after_sweeps_is_the_table_of_the_new_support() -> None:
    units, weights, residual = problem(0, 12, 9, 5)
    target = residual + weights @ units
    inside = weights > 0
    table = pursuit._table(units, inside, weights, residual)
    for which in (8, 1, 10, 8, 3, 11):
        pursuit._sweep(table, inside, which)
        support = inside.nonzero().squeeze(-1).tolist()
        there = best_weights(units, target, support)
        again = torch.zeros_like(weights).index_put((inside,), there)
        expected = pursuit._table(units, inside, again, target - there @ units[support])
        torch.testing.assert_close(table, expected, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("k", [4, 6])
def test_the_exchange_is_the_best_of_all(k: int) -> None:
    """By least squares for every pair; where the support has fewer than k members, for every vector that may enter."""
    for seed in range(10):
        units, weights, residual = problem(seed, 11, 15, 4)
        target = residual + weights @ units
        inside = weights > 0
        support = inside.nonzero().squeeze(-1).tolist()
        found = pursuit._best(pursuit._table(units, inside, weights, residual), inside, torch.zeros_like(inside), k)
        leaving = support if len(support) == k else [None]
        least, best = float(residual.square().sum()), []
        for out, into in itertools.product(leaving, set(range(11)) - set(support)):
            chosen = [one for one in support if one != out] + [into]
            if float(best_weights(units, target, chosen)[-1]) > 0 and distance(units, target, chosen) < 0.999 * least:
                least, best = distance(units, target, chosen), [one for one in (out, into) if one is not None]
        assert found == best, seed


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(1, 12), st.integers(1, 8), st.booleans())
def test_exchanges_bring_the_sum_nearer(seed: int, size: int, draws: int, k: int, doubled: bool) -> None:
    """Also where vectors are equal, or more than they have numbers."""
    units, weights, residual = problem(seed, size, draws, min(k, size, draws))
    target = residual + weights @ units
    if doubled:
        units, weights = units.repeat(2, 1), torch.cat([weights, 0 * weights])
    before = float(residual.square().sum())
    found = pursuit.exchanged(units, weights, residual, k)
    assert bool((found >= 0).all())
    assert int((found > 0).sum()) <= k
    assert float((target - found @ units).square().sum()) <= before + 1e-9 * float(target.square().sum())


def test_vectors_of_negative_weight_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some exchanges alone would leave negative weights; the weights are always the best of their support."""
    left: list[int] = []
    settled = pursuit._settled
    monkeypatch.setattr(pursuit, "_settled", lambda *given: left.extend(gone := settled(*given)) or gone)
    for seed in range(20):
        units, weights, residual = problem(seed, 40, 30, 12)
        target = residual + weights @ units
        found = pursuit.exchanged(units, weights, residual, 12)
        support = found.nonzero().squeeze(-1).tolist()
        torch.testing.assert_close(found[support], best_weights(units, target, support), atol=1e-8, rtol=1e-6)
        assert bool((found[support] > 0).all())
        assert float((target - found @ units).square().sum()) < float(residual.square().sum())
    assert left


def test_a_step_that_does_not_help_is_undone_and_not_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[float, list[int]]] = []
    best = pursuit._best

    def watched(table: Tensor, *given: object) -> list[int]:
        steps.append((float(table[-1, -1]), list(swept := best(table, *given))))  # type: ignore[arg-type]
        return swept

    monkeypatch.setattr(pursuit, "_best", watched)
    undone = 0
    for seed in range(20):
        steps.clear()
        units, weights, residual = problem(seed, 60, 20, 18, decay=3.0)
        pursuit.exchanged(units, weights, residual, 18)
        for (before, first), (after, second) in itertools.pairwise(steps):
            assert after <= before * (1 + 1e-9)
            if after > before * (1 - pursuit.SIGNIFICANT):
                assert first[-1:] != second[-1:]
                undone += 1
    assert undone


def test_a_fit_that_begins_with_many_vectors_is_that_of_one_after_the_other() -> None:
    for seed, equal in itertools.product(range(10), (False, True)):
        rng = np.random.default_rng(seed)
        vectors = torch.from_numpy(rng.normal(size=(20, 12)) + 0.2)
        if equal:
            vectors[7:10] = vectors[2]
        start = torch.from_numpy(rng.uniform(0, 2, 20)) * (torch.arange(20) % 4 > 0)
        some = torch.arange(15)
        dense = DenseVectors(vectors)
        expected, found = nonnegative_least_squares(dense, some), nonnegative_least_squares(dense, some, start[some])
        torch.testing.assert_close(found @ vectors[some], expected @ vectors[some])
        again = nonnegative_least_squares(dense, some, found)
        torch.testing.assert_close(again, found)


def test_dependent_vectors_do_not_enter_at_once() -> None:
    vectors = torch.eye(4, dtype=torch.float64)[[0, 1, 1, 2]]
    fit = NonnegativeFit(torch.ones(4), 4)
    fit.begin([5, 6, 7, 8], vectors, torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64))
    assert fit.members == [5, 6]
    assert fit.objective == pytest.approx(2.0)
    assert fit.add(8, vectors[3])
    assert fit.objective == pytest.approx(1.0)
