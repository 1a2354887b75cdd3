"""Selectors against plain implementations of the same formulas, brute force, and what is known of their results."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lit_sparse.coresets import GIGA, IHT, AcceleratedIHT, CoresetSelector, FrankWolfe, NonnegativeOMP, SparseVI, Uniform
from lit_sparse.coresets import iht as thresholding
from lit_sparse.coresets.posteriors import reverse_kl
from lit_sparse.coresets.vectors import DenseVectors
from lit_sparse.studies.problems.coresets import GaussianMean
from tests.coresets import plain, problems

#: Selectors and the plain way to the same weights.
PAIRS: dict[str, tuple[CoresetSelector, Callable[[np.ndarray, int], np.ndarray]]] = {
    "A-IHT": (AcceleratedIHT(), plain.a_iht),
    "A-IHT II": (AcceleratedIHT(debias=True), lambda vectors, k: plain.a_iht(vectors, k, debias=True)),
    "IHT": (IHT(), plain.iht),
    "GIGA": (GIGA(), plain.giga),
    "FrankWolfe": (FrankWolfe(), plain.frank_wolfe),
    "NonnegativeOMP": (NonnegativeOMP(), plain.nn_omp),
}
#: The iterations alone, where a test asks for the same weights.
UNPOLISHED = {
    "A-IHT": AcceleratedIHT(polish=False),
    "A-IHT II": AcceleratedIHT(debias=True, polish=False),
    "IHT": IHT(polish=False),
}
FILES = [
    ("synth_lr", "logistic", 20),
    ("phishing_pca_500", "logistic", 100),
    ("ds1_pca_500", "logistic", 100),
    ("airportdelays", "poisson", 100),
]
#: Columns of the reference table that are of the order of the objective: what NonnegativeOMP's median should be.
OMP_MEDIANS = {"synth_lr": 2.1e-6, "phishing_pca_500": 3.3e-3, "ds1_pca_500": 4.2e-3, "airportdelays": 5.9e-3}
SEEDS = pytest.mark.parametrize("seeds", [range(2), pytest.param(range(5), marks=pytest.mark.slow)], ids=str)


def tiny(seed: int, size: int, draws: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(size, draws)) + 0.3


@pytest.mark.cases(quick=4)
@SEEDS
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("k", [100, 200])
def test_objectives_of_a_normal_mean_are_those_of_a_plain_implementation(name: str, k: int, seeds: range) -> None:
    selector, slow = PAIRS[name]
    for seed in seeds:
        _, vectors = problems.gaussian(seed)
        objective = selector(torch.from_numpy(vectors), k).objective
        assert objective <= max(1.3 * plain.objective(vectors, slow(vectors, k)), 1e-9), seed


@pytest.mark.cases(quick=8)
@SEEDS
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize(("file", "kind", "k"), FILES)
def test_objectives_on_real_data_are_those_of_a_plain_implementation(
    name: str, file: str, kind: problems.Kind, k: int, seeds: range, shared: Path
) -> None:
    selector, slow = PAIRS[name]
    x, y = problems.read(file, shared / "data" / "coreset_regression")
    divergences = []
    for seed in seeds:
        vectors = problems.vectors(kind, x, y, seed)
        coreset = selector(torch.from_numpy(vectors), k)
        assert coreset.objective <= max(1.3 * plain.objective(vectors, slow(vectors, k)), 1e-9), seed
        if name == "NonnegativeOMP":
            divergences.append(problems.reverse_kl(kind, x, y, coreset.dense().numpy()))
    if divergences:
        assert 0.3 <= np.median(divergences) / OMP_MEDIANS[file] <= 3


@pytest.mark.parametrize("name", PAIRS)
def test_tiny_problems(name: str) -> None:
    """Feasible, no better than the best subset, and what a plain implementation gets, but where that hangs on rounding."""
    selector, slow = UNPOLISHED.get(name, PAIRS[name][0]), PAIRS[name][1]
    for seed, (size, draws), k in itertools.product(range(12), ((8, 6), (10, 30), (12, 10)), (1, 2, 3)):
        vectors = tiny(seed, size, draws)
        coreset = selector(torch.from_numpy(vectors), k)
        assert len(coreset) <= k
        assert (coreset.weights > 0).all()
        best = plain.objective(vectors, plain.best_subset(vectors, k))
        whole = float((vectors.sum(0) ** 2).sum())
        assert coreset.objective >= best - 1e-9 * whole
        expected = plain.objective(vectors, slow(vectors, k))
        if len(coreset.trace) < 300:
            assert coreset.objective == pytest.approx(expected, rel=1e-5, abs=1e-9 * whole)
        else:  # thresholding that did not come to an end: rounding has grown
            assert coreset.objective <= 1.01 * expected + 1e-9 * whole


@pytest.mark.parametrize("debias", [False, True])
@pytest.mark.parametrize("step_scale", [1.0, 0.5])
def test_the_best_iterate_is_returned(debias: bool, step_scale: float) -> None:
    for seed in range(8):
        vectors = torch.from_numpy(tiny(seed, 40, 15))
        coreset = AcceleratedIHT(debias=debias, step_scale=step_scale)(vectors, 5)
        assert coreset.objective == pytest.approx(float(coreset.trace.min()), rel=1e-9)
        assert coreset.objective < float(vectors.sum(0).square().sum())


def test_a_scaled_step_is_that_of_a_plain_implementation() -> None:
    vectors = tiny(0, 40, 60)
    expected = plain.objective(vectors, plain.a_iht(vectors, 5, step_scale=0.5))
    found = AcceleratedIHT(step_scale=0.5, polish=False)(torch.from_numpy(vectors), 5)
    assert found.objective == pytest.approx(expected, rel=1e-6)


def _numerically(residual: Tensor, direction: Tensor) -> float:
    """Return the best step by three values of the objective alone, for it is a parabola."""
    if not direction.any():
        return 0.0
    far = float(residual.norm() / direction.norm())
    left, here, right = (float((residual - t * direction).square().sum()) for t in (-far, 0.0, far))
    return 0.5 * far * (left - right) / (left - 2 * here + right)


def test_every_line_search_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of the gradient step, the debiasing step and the momentum, in each iteration of a run."""
    vectors = torch.from_numpy(tiny(3, 60, 40))
    dense, seen = DenseVectors(vectors), {"steps": 0, "momenta": 0}
    best_step, line_search = thresholding.best_step, thresholding.line_search
    residuals: list[Tensor] = []

    def watched_gradient(self: IHT, given: object, target: Tensor, point: object, generator: object) -> Tensor:
        residuals.append(target - point.made)  # type: ignore[attr-defined]
        return gradient(self, given, target, point, generator)  # type: ignore[arg-type]

    def watched_improved(self: AcceleratedIHT, given: object, target: Tensor, point: object) -> object:
        residuals.append(target - point.made)  # type: ignore[attr-defined]
        return improved(self, given, target, point)  # type: ignore[arg-type]

    def watched_step(given: object, subspace: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
        step, change = best_step(given, subspace, along)  # type: ignore[arg-type]
        residual, direction = residuals[-1], along @ given.rows(subspace)  # type: ignore[attr-defined]
        assert float(step) == pytest.approx(_numerically(residual, direction), rel=1e-8)
        seen["steps"] += 1
        return step, change

    def watched_momentum(residual: Tensor, change: Tensor) -> Tensor:
        found = line_search(residual, change)
        assert float(found) == pytest.approx(_numerically(residual, change), rel=1e-8, abs=1e-9)
        seen["momenta"] += 1
        return found

    gradient, improved = IHT._gradient, AcceleratedIHT._improved
    monkeypatch.setattr(IHT, "_gradient", watched_gradient)
    monkeypatch.setattr(AcceleratedIHT, "_improved", watched_improved)
    monkeypatch.setattr(thresholding, "best_step", watched_step)
    monkeypatch.setattr(thresholding, "line_search", watched_momentum)
    AcceleratedIHT(debias=True, max_iter=30)(dense, 10)
    assert seen["steps"] > 20
    assert seen["momenta"] > 10


def well_conditioned(seed: int, size: int = 200, draws: int = 400, k: int = 5) -> Tensor:
    """Vectors near to orthogonal whose sum is a weighted sum of the first k of them."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(size, draws)) / np.sqrt(draws)
    wanted = rng.uniform(1, 2, k) @ vectors[:k]
    vectors[k:] -= (vectors.sum(0) - wanted) / (size - k)
    return torch.from_numpy(vectors)


@pytest.mark.parametrize("debias", [False, True])
def test_the_error_falls_linearly_where_an_exact_coreset_exists(debias: bool) -> None:
    for seed in range(3):
        coreset = AcceleratedIHT(debias=debias)(well_conditioned(seed), 5)
        assert coreset.indices.tolist() == [0, 1, 2, 3, 4]
        errors = coreset.trace.sqrt()
        falling = errors[errors > 1e-12 * errors[0]]
        assert float(falling[-1]) < 1e-4 * float(falling[0])
        ratios = falling[2:] / falling[:-2]  # two iterations: momentum swings
        assert float(ratios.max()) < 0.9, ratios


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"debias": True}, {"batch": 0.5}], ids=str)
def test_polishing_is_done_always_or_never(options: dict[str, float]) -> None:
    """Polished weights are at least as near as the best ones for the support that the iterations ended with."""
    gains = []
    for seed, (size, draws), k in itertools.product(range(6), ((40, 15), (60, 200)), (2, 10, 30)):
        vectors = torch.from_numpy(tiny(seed, size, draws))
        never, fitted, always = (
            AcceleratedIHT(**chosen, **options)(vectors, k, torch.Generator().manual_seed(seed))  # type: ignore[arg-type]
            for chosen in ({"polish": False}, {"polish": False, "refit": True}, {})
        )
        whole = float(vectors.sum(0).square().sum())
        assert len(always) <= k
        assert always.objective <= fitted.objective + 1e-12 * whole <= never.objective + 2e-12 * whole, (seed, size, k)
        assert len(always.trace) == len(never.trace) + 1
        gains.append(always.objective < 0.999 * never.objective)
    assert any(gains)


@pytest.mark.gate
@pytest.mark.parametrize("debias", [False, True])
def test_more_points_keep_what_polishing_gains(debias: bool, shared: Path) -> None:
    """Unpolished weights end at 1e-3; with polishing, every size from 60 on ends near zero."""
    x, y = problems.read("synth_lr", shared / "data" / "coreset_regression")
    vectors = torch.from_numpy(problems.vectors("logistic", x, y, 1))
    objectives = {k: AcceleratedIHT(debias=debias)(vectors, k).objective for k in (60, 98, 100, 102, 300)}
    assert max(objectives.values()) < 1e-13, objectives


def test_polished_weights_come_as_near_as_those_of_a_pursuit() -> None:
    for seed, k in itertools.product(range(2), (20, 100)):
        vectors = torch.from_numpy(problems.gaussian(seed)[1])
        polished, unpolished = (AcceleratedIHT(debias=True, polish=chosen)(vectors, k).objective for chosen in (True, False))
        assert polished <= 3 * NonnegativeOMP()(vectors, k).objective
        assert polished < (0.4 if k > 20 else 1) * unpolished


def test_pursuit_falls_in_every_iteration_and_ends_at_nothing() -> None:
    vectors = torch.from_numpy(tiny(0, 100, 30))
    coreset = NonnegativeOMP()(vectors, 60)
    assert bool((coreset.trace.diff() < 0).all())
    assert len(coreset) <= 30
    assert coreset.objective < 1e-20 * float(vectors.sum(0).square().sum())


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 12), st.integers(1, 30))
def test_weights_after_a_refit_are_the_best_nonnegative_ones(seed: int, size: int, draws: int, k: int) -> None:
    vectors = tiny(seed, size, draws)
    k = min(k, size)
    for selector in (Uniform(), GIGA(), FrankWolfe()):
        plainly = selector(torch.from_numpy(vectors), k, torch.Generator().manual_seed(seed))
        fitted = type(selector)(refit=True)(torch.from_numpy(vectors), k, torch.Generator().manual_seed(seed))
        expected = plain.objective(vectors, plain.refit(vectors, plainly.dense().numpy()))
        whole = float((vectors.sum(0) ** 2).sum())
        if expected == pytest.approx(whole, rel=1e-9):  # nothing is better than zero weights: they stay as they are
            assert torch.equal(fitted.indices, plainly.indices)
            continue
        assert fitted.objective == pytest.approx(expected, rel=1e-6, abs=1e-10 * whole)
        assert set(fitted.indices.tolist()) <= set(plainly.indices.tolist())


def test_a_refit_leaves_an_example() -> None:
    """Also where the drawn one points away from the sum, so that no weight is better than any."""
    vectors = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-0.5, 0.0]], dtype=torch.float64)
    for seed in range(12):
        coreset = Uniform(refit=True)(vectors, 1, torch.Generator().manual_seed(seed))
        assert len(coreset) == 1
        assert float(coreset.weights) > 0


@pytest.mark.gate
def test_uniform_draws_each_subset_alike() -> None:
    counts = torch.zeros(6)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3000):
        coreset = Uniform()(torch.randn(6, 3, generator=generator), 2, generator)
        assert coreset.weights.tolist() == [3.0, 3.0]
        counts[coreset.indices] += 1
    assert bool(((counts / 1000 - 1).abs() < 0.1).all())


@pytest.mark.parametrize("kind", [IHT, AcceleratedIHT])
def test_a_batch_of_the_gradient(kind: type[IHT]) -> None:
    """Iterations with a fifth of the examples come about as close as iterations with all."""
    _, vectors = problems.gaussian(0, dim=50, size=200)
    given = torch.from_numpy(vectors)
    whole = float(given.sum(0).square().sum())
    one, two = (kind(batch=0.2)(given, 60, torch.Generator().manual_seed(seed)) for seed in (0, 0))
    other = kind(batch=0.2)(given, 60, torch.Generator().manual_seed(1))
    assert torch.equal(one.indices, two.indices)
    assert not torch.equal(one.indices, other.indices)
    assert one.objective < 0.01 * whole


def test_duplicates_share_what_one_would_get() -> None:
    """The lowest index of equal vectors enters a pursuit; the objective is the same without duplicates."""
    vectors = torch.from_numpy(tiny(0, 20, 8))
    twice = vectors.repeat(2, 1)
    for selector in (NonnegativeOMP(), GIGA(), FrankWolfe()):
        once, doubled = selector(vectors, 6), selector(twice, 6)
        assert doubled.indices.tolist() == once.indices.tolist()
        torch.testing.assert_close(doubled.weights, 2 * once.weights)
        assert doubled.objective == pytest.approx(4 * once.objective, rel=1e-6)
    thresholded = AcceleratedIHT()(twice, 6)
    assert len(thresholded) <= 6
    assert thresholded.objective < float(twice.sum(0).square().sum())
    for seed, k, debias in itertools.product(range(4), (3, 6), (False, True)):
        often = torch.from_numpy(tiny(seed, 20, 8)).repeat(5, 1)  # one weight of equal vectors leaves room for others
        polished, unpolished = (AcceleratedIHT(debias=debias, polish=chosen)(often, k).objective for chosen in (True, False))
        assert polished < 0.5 * unpolished


def test_sparse_vi_draws_anew_in_every_step() -> None:
    given = torch.from_numpy(tiny(0, 30, 10))
    asked: list[int] = []

    def resample(indices: Tensor, weights: Tensor, generator: torch.Generator) -> Tensor:
        assert indices.shape == weights.shape
        asked.append(len(indices))
        return given + 0.01 * torch.randn(given.shape, generator=generator, dtype=given.dtype)

    coreset = SparseVI(resample, updates=7)(given, 4, torch.Generator().manual_seed(0))
    assert len(asked) == 4 * (1 + 7)
    assert asked[0] == 0
    assert len(coreset) <= 4
    assert coreset.objective < float(given.sum(0).square().sum())


def test_rounds_of_sparse_vi_are_the_coresets_of_smaller_sizes() -> None:
    problem = GaussianMean(0, features=5, size=40)
    selector = SparseVI(problem.resample(), updates=10)
    selector(problem.vectors, 6, torch.Generator().manual_seed(0))
    rounds = selector.rounds
    assert len(rounds) == 6
    for k, (indices, weights) in enumerate(rounds, 1):
        coreset = selector(problem.vectors, k, torch.Generator().manual_seed(0))
        kept = weights > 0
        torch.testing.assert_close(coreset.dense()[indices[kept]], weights[kept], rtol=0, atol=0)
        assert len(coreset) == int(kept.sum())


def test_a_constant_step_is_that_of_a_plain_loop() -> None:
    """For vectors of any scale, in the units of 1 over the squared largest singular value."""
    for scale in (1.0, 1e-3, 1e150):
        vectors = scale * tiny(0, 40, 15)
        found = IHT(step="constant", step_scale=1.5, max_iter=30, tol=0.0, polish=False)(torch.from_numpy(vectors), 5)
        units = vectors / scale
        total, weights, best = units.sum(0), np.zeros(40), np.inf
        for _ in range(30):
            weights = weights + 1.5 / np.linalg.norm(units, 2) ** 2 * units @ (total - weights @ units)
            weights[np.argsort(weights)[:-5]] = 0.0
            weights = np.maximum(weights, 0.0)
            best = min(best, float(np.square(total - weights @ units).sum()))
        assert found.objective / scale**2 == pytest.approx(best, rel=1e-6)


def test_a_constant_step_comes_to_an_end() -> None:
    """The objective of a full support falls to zero for every stable step."""
    vectors = torch.from_numpy(tiny(3, 12, 15))
    for step_scale in (0.5, 1.0, 1.9):
        coreset = IHT(step="constant", step_scale=step_scale, max_iter=20_000, polish=False)(vectors, 12)
        assert coreset.objective < 1e-3 * float(vectors.sum(0).square().sum())


def test_sparse_vi_comes_nearer_with_every_example() -> None:
    """On a normal mean, whose vectors are exact at the posterior of any coreset."""
    problem = GaussianMean(0, features=5, size=40)
    found = [SparseVI(problem.resample())(problem.vectors, k, torch.Generator().manual_seed(0)) for k in (1, 3, 8)]
    divergences = [reverse_kl(problem.full, problem.posterior(coreset.dense())) for coreset in found]
    assert divergences == sorted(divergences, reverse=True)
    assert divergences[-1] < 0.1 * divergences[0]


def test_k_of_all_examples_gets_the_sum_exactly() -> None:
    """Unit weights are a solution: no selector that refits may be far from it."""
    vectors = torch.from_numpy(tiny(2, 15, 40))
    for selector in (NonnegativeOMP(), AcceleratedIHT(debias=True, refit=True), Uniform(refit=True)):
        coreset = selector(vectors, 15)
        assert coreset.objective < 1e-20 * float(vectors.sum(0).square().sum()), selector
        torch.testing.assert_close(coreset.dense(), torch.ones(15, dtype=torch.float64), atol=1e-8, rtol=0)


def test_progress_is_shown_where_it_is_wanted(capfd: pytest.CaptureFixture[str]) -> None:
    GIGA()(torch.randn(30, 5), 4)
    assert capfd.readouterr().out == ""
    GIGA(progress=True)(torch.randn(30, 5), 4)
    assert "GIGA" in capfd.readouterr().out


def test_vectors_of_any_length_are_told_apart() -> None:
    """Also where float32, in which a pursuit looks first, has no such numbers."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(600, 50, generator=generator, dtype=torch.float64) + 0.1
    for selector in (NonnegativeOMP(), AcceleratedIHT(debias=True), FrankWolfe()):
        expected = selector(vectors, 20)
        for scale in (2.0**127, 2.0**400, 2.0**-149, 2.0**-400):
            assert torch.equal(selector(vectors * scale, 20).indices, expected.indices), scale


def test_a_vector_whose_best_weight_is_zero_leaves() -> None:
    from lit_sparse.coresets.pursuit import NonnegativeFit

    fit = NonnegativeFit(torch.tensor([1.0, 0.0, 0.0]), 3)
    assert fit.add(0, torch.tensor([1.0, 0.0, 0.0]))
    fit.add(1, torch.tensor([0.0, 1.0, 0.0]))
    assert fit.members == [0]
    assert fit.weights.tolist() == [1.0]


def test_the_bar_of_a_selection_that_ends_early_is_full(capfd: pytest.CaptureFixture[str]) -> None:
    for step in (selector := GIGA(progress=True)).steps(120):
        if step == 75:
            break
    assert selector.progress
    shown = capfd.readouterr().out
    assert "75/75" in shown
    assert "75/120" not in shown.splitlines()[-1]
