"""Posteriors against closed forms, other optimizers and repeated rows; divergences against their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from lit_sparse.coresets import (
    DenseVectors,
    GaussianPosterior,
    Likelihood,
    LogisticLikelihood,
    NonnegativeOMP,
    NormalLikelihood,
    PoissonLikelihood,
    posteriors,
)
from lit_sparse.coresets.posteriors import (
    forward_kl,
    gaussian_mean_posterior,
    laplace_posterior,
    linear_posterior,
    map_distance,
    reverse_kl,
    symmetrized_kl,
)
from lit_sparse.errors import ConfigurationError, DataError
from tests.coresets import problems

LIKELIHOODS: dict[str, Likelihood] = {"logistic": LogisticLikelihood(), "poisson": PoissonLikelihood()}


def drawn(kind: str, seed: int, size: int = 80, dim: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Return features with an intercept, targets and weights, some of them zero."""
    rng = np.random.default_rng(seed)
    X = np.hstack([rng.standard_normal((size, dim - 1)), np.ones((size, 1))])
    eta = X @ rng.standard_normal(dim)
    y = np.where(rng.random(size) < 1 / (1 + np.exp(-eta)), 1.0, -1.0)
    if kind != "logistic":
        y = rng.poisson(np.logaddexp(0, eta)).astype(float)
    w = rng.exponential(2.0, size) * (rng.random(size) < 0.7)
    return torch.from_numpy(X), torch.from_numpy(y), torch.from_numpy(w)


def spd(dim: int, seed: int, least: float = 0.3) -> Tensor:
    root = torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.T / dim + least * torch.eye(dim, dtype=torch.float64)


def vector(dim: int, seed: int) -> Tensor:
    return torch.randn(dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normal(dim: int, seed: int) -> GaussianPosterior:
    return GaussianPosterior(vector(dim, seed), spd(dim, seed + 1))


def close(found: GaussianPosterior, mean: Tensor, covariance: Tensor, tol: float = 1e-9) -> None:
    torch.testing.assert_close(found.mean, mean, rtol=tol, atol=tol)
    torch.testing.assert_close(found.covariance, covariance, rtol=tol, atol=tol)
    assert torch.equal(found.covariance, found.covariance.T)


def test_the_parts_of_a_normal_distribution() -> None:
    posterior = normal(5, 0)
    torch.testing.assert_close(posterior.factor @ posterior.factor.T, posterior.covariance)
    assert torch.equal(posterior.factor, posterior.factor.tril())
    torch.testing.assert_close(posterior.precision, torch.linalg.inv(posterior.covariance))
    again = GaussianPosterior.from_precision(posterior.precision, posterior.precision @ posterior.mean)
    close(again, posterior.mean, posterior.covariance)
    prior = GaussianPosterior.isotropic(3, 4.0, -1.5)
    close(prior, torch.full((3,), -1.5, dtype=torch.float64), 4 * torch.eye(3, dtype=torch.float64))
    assert posterior.to(posterior.mean) is posterior
    learnt = GaussianPosterior(posterior.mean.clone().requires_grad_(), posterior.covariance)
    assert learnt.to(posterior.mean) is not learnt, "it would keep the graph of what it has computed"
    single = posterior.to(torch.float32)
    assert (single.mean.dtype, single.covariance.dtype, single.sample(3).dtype) == (torch.float32,) * 3


def test_draws_have_its_moments_and_their_seed() -> None:
    posterior = normal(4, 3)
    draws = posterior.sample(400_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws.mean(0), posterior.mean, atol=0.01, rtol=0)
    torch.testing.assert_close(torch.cov(draws.T), posterior.covariance, atol=0.01, rtol=0)
    one, two, three = (posterior.sample(5, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, three)
    single = posterior.to(torch.float32).sample(5, torch.Generator().manual_seed(1))
    torch.testing.assert_close(single.double(), one, atol=1e-5, rtol=0)


@given(seed=st.integers(0, 10**6), dim=st.integers(1, 6), size=st.integers(1, 20))
@settings(max_examples=25)
def test_the_posterior_of_a_normal_mean(seed: int, dim: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    X, w = rng.standard_normal((size, dim)), rng.exponential(1.0, size) * (rng.random(size) < 0.5)
    x, weights = torch.from_numpy(X), torch.from_numpy(w)
    mean, covariance = problems.gaussian_posterior(X, w)
    close(gaussian_mean_posterior(x, weights), torch.from_numpy(mean), torch.from_numpy(covariance))
    prior, noise = normal(dim, seed), spd(dim, seed + 9)
    inverse = torch.linalg.inv
    expected = inverse(inverse(prior.covariance) + weights.sum() * inverse(noise))
    shift = inverse(prior.covariance) @ prior.mean + inverse(noise) @ (weights @ x)
    close(gaussian_mean_posterior(x, weights, prior=prior, covariance=noise), expected @ shift, expected)
    all_ones = gaussian_mean_posterior(x, torch.ones(size), prior=prior, covariance=noise)
    close(gaussian_mean_posterior(x, prior=prior, covariance=noise), all_ones.mean, all_ones.covariance)


@given(seed=st.integers(0, 10**6), dim=st.integers(1, 6), size=st.integers(1, 30), variance=st.floats(0.05, 20))
@settings(max_examples=25)
def test_linear_regression_in_closed_form(seed: int, dim: int, size: int, variance: float) -> None:
    features, target, weights = drawn("normal", seed, size, dim)
    prior = normal(dim, seed)
    precision = torch.linalg.inv(prior.covariance) + features.T @ (weights[:, None] * features) / variance
    shift = torch.linalg.inv(prior.covariance) @ prior.mean + features.T @ (weights * target) / variance
    found = linear_posterior(features, target, weights, prior=prior, variance=variance)
    close(found, torch.linalg.solve(precision, shift), torch.linalg.inv(precision), 1e-8)
    plain = linear_posterior(features, target)
    covariance = torch.linalg.inv(torch.eye(dim, dtype=torch.float64) + features.T @ features)
    close(plain, covariance @ (features.T @ target), covariance, 1e-8)


@pytest.mark.parametrize("kind", ["logistic", "poisson"])
@given(seed=st.integers(0, 10**6), size=st.integers(1, 60), dim=st.integers(1, 5))
@settings(max_examples=20)
def test_laplace_is_that_of_the_second_opinion(kind: problems.Kind, seed: int, size: int, dim: int) -> None:
    features, target, weights = drawn(kind, seed, size, dim)
    expected = problems.laplace(kind, features.numpy(), target.numpy(), weights.numpy())
    found = laplace_posterior(LIKELIHOODS[kind], features, target, weights)
    close(found, *(torch.from_numpy(part) for part in expected), tol=1e-8)


@pytest.mark.parametrize("kind", ["logistic", "poisson"])
def test_laplace_by_another_optimizer_and_automatic_derivatives(kind: str) -> None:
    features, target, weights = drawn(kind, 5)
    prior = normal(4, 6)
    likelihood = LIKELIHOODS[kind]

    def negative(theta: Tensor) -> Tensor:
        away = theta - prior.mean
        return 0.5 * away @ torch.linalg.inv(prior.covariance) @ away - weights @ likelihood.log_prob(features @ theta, target)

    def value_and_slope(theta: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(theta).requires_grad_()
        value = negative(point)
        return float(value.detach()), torch.autograd.grad(value, point)[0].numpy()

    best = minimize(value_and_slope, np.zeros(4), jac=True, method="BFGS", options={"gtol": 1e-9})
    found = laplace_posterior(likelihood, features, target, weights, prior=prior)
    torch.testing.assert_close(found.mean, torch.from_numpy(best.x), rtol=0, atol=1e-6)
    hessian = torch.autograd.functional.hessian(negative, found.mean)
    close(found, found.mean, torch.linalg.inv(hessian), 1e-9)
    far = laplace_posterior(likelihood, features, target, weights, prior=prior, start=torch.full((4,), -25.0))
    close(far, found.mean, found.covariance, 1e-8)


@pytest.mark.parametrize("kind", ["logistic", "poisson", "normal"])
def test_weights_are_repeated_rows_and_zeros_are_rows_left_out(kind: str) -> None:
    features, target, _ = drawn(kind, 7)
    likelihood = {**LIKELIHOODS, "normal": NormalLikelihood(0.5)}[kind]
    times = torch.randint(4, (80,), generator=torch.Generator().manual_seed(0))
    weighted = laplace_posterior(likelihood, features, target, times)
    repeated = laplace_posterior(likelihood, features.repeat_interleave(times, 0), target.repeat_interleave(times))
    close(weighted, repeated.mean, repeated.covariance, 1e-10)
    there = times > 0
    fewer = laplace_posterior(likelihood, features[there], target[there], times[there])
    close(weighted, fewer.mean, fewer.covariance, 1e-12)
    nothing = laplace_posterior(likelihood, features, target, torch.zeros(80))
    close(nothing, torch.zeros(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64))
    empty = laplace_posterior(likelihood, features[:0], target[:0])
    close(empty, nothing.mean, nothing.covariance)


def gradient(likelihood: Likelihood, posterior: GaussianPosterior, prior: GaussianPosterior, *data: Tensor) -> Tensor:
    features, target, weights = data
    first = likelihood.derivatives(features @ posterior.mean, target)[0]
    return features.T @ (weights * first) - torch.linalg.inv(prior.covariance) @ (posterior.mean - prior.mean)


@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("variance", [1.0, 1e8])
def test_separable_classes(scale: float, variance: float) -> None:
    features = scale * drawn("logistic", 11, 200, 3)[0]
    target = (features[:, 0] > 0).double()
    prior = GaussianPosterior.isotropic(3, variance)
    found = laplace_posterior(LogisticLikelihood(), features, target, prior=prior)
    steep = gradient(LogisticLikelihood(), found, prior, features, target, torch.ones(200).double())
    step = found.covariance @ steep
    assert float(step.norm()) < 1e-6 * (1 + float(found.mean.norm()))
    if variance > 1:  # nothing but the prior keeps the coefficients from growing
        assert bool((((features @ found.mean) > 0) == (target > 0)).all())


@pytest.mark.parametrize("counts", [1e6, 1e9])
@pytest.mark.parametrize("start", [None, -30.0, 30.0])
def test_huge_counts(counts: float, start: float | None) -> None:
    features = drawn("poisson", 12, 60, 3)[0]
    target = (counts * (features[:, 0] > 0)).double() + 3
    first = None if start is None else torch.full((3,), start)
    found = laplace_posterior(PoissonLikelihood(), features, target, start=first)
    prior = GaussianPosterior.isotropic(3)
    steep = gradient(PoissonLikelihood(), found, prior, features, target, torch.ones(60).double())
    assert float((found.covariance @ steep).norm()) < 1e-7 * (1 + float(found.mean.norm()))


@pytest.mark.parametrize("weight", [1e-12, 1e12])
def test_tiny_and_huge_weights(weight: float) -> None:
    features, target, _ = drawn("logistic", 13)
    weights = torch.full((80,), weight, dtype=torch.float64)
    found = laplace_posterior(LogisticLikelihood(), features, target, weights)
    prior = GaussianPosterior.isotropic(4)
    steep = gradient(LogisticLikelihood(), found, prior, features, target, weights)
    assert float((found.covariance @ steep).norm()) < 1e-9
    if weight < 1:
        close(found, torch.zeros(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64), 1e-9)


def test_blocks_of_rows_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    features, target, weights = drawn("poisson", 14)
    whole = laplace_posterior(PoissonLikelihood(), features, target, weights)
    monkeypatch.setattr(posteriors, "BLOCK", 7)
    parts = laplace_posterior(PoissonLikelihood(), features, target, weights)
    close(parts, whole.mean, whole.covariance, 1e-11)


def test_what_does_not_fit_together() -> None:
    features, target, weights = drawn("logistic", 15)
    likelihood = LogisticLikelihood()
    for given_target, given_weights in ((target[1:], weights), (target, weights[1:])):
        with pytest.raises(DataError, match=r"features \(N, D\), a prior of D coefficients, and N targets and weights"):
            laplace_posterior(likelihood, features, given_target, given_weights)
    with pytest.raises(DataError, match=r"got \(80, 4\), 3, 80 and 80"):
        laplace_posterior(likelihood, features, target, prior=GaussianPosterior.isotropic(3))
    for value in (math.nan, math.inf):
        broken = features.clone()
        broken[3, 1] = value
        with pytest.raises(DataError, match="features to be finite"):
            laplace_posterior(likelihood, broken, target)
        with pytest.raises(DataError, match="weights to be finite"):
            laplace_posterior(likelihood, features, target, torch.full((80,), value))
        with pytest.raises(DataError, match="target"):
            linear_posterior(features, torch.full((80,), value))
    with pytest.raises(DataError, match="two classes"):
        laplace_posterior(likelihood, features, torch.full((80,), 3.0))
    with pytest.raises(DataError, match=r"positive definite matrix but the one of shape \(4, 4\)"):
        laplace_posterior(likelihood, features, target, prior=GaussianPosterior(vector(4, 0), -spd(4, 0)))
    for covariance in (torch.zeros(4, 4), torch.linalg.cholesky(spd(4, 0))):
        with pytest.raises(DataError, match="symmetric, positive definite"):
            gaussian_mean_posterior(features, covariance=covariance)


def test_negative_weights_are_refused() -> None:
    features, target, weights = drawn("logistic", 16)
    weights[2] = -1.0
    with pytest.raises(DataError, match="weights"):
        laplace_posterior(LogisticLikelihood(), features, target, weights)


def direct_kl(p: GaussianPosterior, q: GaussianPosterior) -> float:
    inverse, away = torch.linalg.inv(q.covariance), q.mean - p.mean
    ratio = torch.linalg.slogdet(q.covariance)[1] - torch.linalg.slogdet(p.covariance)[1]
    return 0.5 * float((inverse @ p.covariance).trace() + away @ inverse @ away - len(away) + ratio)


@given(seed=st.integers(0, 10**6), dim=st.integers(1, 8))
@settings(max_examples=30)
def test_divergences_are_their_formulas(seed: int, dim: int) -> None:
    full, coreset = normal(dim, seed), normal(dim, seed + 2)
    assert forward_kl(full, coreset) == pytest.approx(direct_kl(full, coreset), rel=1e-9, abs=1e-12)
    assert reverse_kl(full, coreset) == pytest.approx(direct_kl(coreset, full), rel=1e-9, abs=1e-12)
    both = direct_kl(full, coreset) + direct_kl(coreset, full)
    assert symmetrized_kl(full, coreset) == pytest.approx(both, rel=1e-9)
    assert map_distance(full, coreset) == pytest.approx(float(torch.dist(full.mean, coreset.mean)))
    moments = [part.numpy() for part in (full.mean, full.covariance, coreset.mean, coreset.covariance)]
    assert forward_kl(full, coreset) == pytest.approx(problems.gaussian_kl(*moments), rel=1e-10)
    assert forward_kl(full, full) == 0.0 == map_distance(full, full)


def test_torch_has_the_same_divergence() -> None:
    full, coreset = normal(6, 0), normal(6, 5)
    p, q = (torch.distributions.MultivariateNormal(one.mean, one.covariance) for one in (full, coreset))
    assert forward_kl(full, coreset) == pytest.approx(float(torch.distributions.kl_divergence(p, q)), rel=1e-10)
    assert reverse_kl(full, coreset) == pytest.approx(float(torch.distributions.kl_divergence(q, p)), rel=1e-10)


@pytest.mark.parametrize("size", [1e-4, 1e-7, 1e-10, 1e-13])
@pytest.mark.parametrize("divergence", [forward_kl, reverse_kl])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_tiny_divergences_are_those_of_the_second_order(divergence: object, size: float, shift: float) -> None:
    """KL of moments moved by d and E is d' S^-1 d / 2 + tr((S^-1 E)^2) / 4 in the limit."""
    full = normal(5, 21)
    moved = GaussianPosterior(full.mean + shift * size * vector(5, 1), full.covariance + size * (spd(5, 2) - spd(5, 3)))
    d, e = moved.mean - full.mean, torch.linalg.solve(full.covariance, moved.covariance - full.covariance)
    expected = 0.5 * float(d @ torch.linalg.solve(full.covariance, d)) + 0.25 * float((e @ e).trace())
    assert divergence(full, moved) == pytest.approx(expected, rel=max(1e-8, 200 * size), abs=0)  # type: ignore[operator]


@pytest.mark.parametrize(("dim", "size"), [(3, 30), (20, 80), (200, 600)])
def test_as_many_points_as_the_vectors_rank_are_exact(dim: int, size: int) -> None:
    """A coreset of dim + 1 points that pursuit finds has the posterior of all data."""
    X, vectors = problems.gaussian(dim, dim, size)
    coreset = NonnegativeOMP()(DenseVectors(torch.from_numpy(vectors)), dim + 1)
    x = torch.from_numpy(X)
    full, found = gaussian_mean_posterior(x), gaussian_mean_posterior(x, coreset.dense())
    assert len(coreset) <= dim + 1
    assert 0 <= reverse_kl(full, found) < 1e-10
    assert reverse_kl(full, found) == pytest.approx(problems.gaussian_reverse_kl(X, coreset.dense().numpy()), abs=1e-12)
    few = gaussian_mean_posterior(x[coreset.indices], coreset.weights)
    close(few, found.mean, found.covariance, 1e-12)


@pytest.mark.parametrize(("name", "kind"), [("synth_lr", "logistic"), ("phishing", "logistic"), ("airportdelays", "poisson")])
def test_real_data(shared: Path, name: str, kind: problems.Kind) -> None:
    paths = sorted((shared / "data" / "coreset_regression").rglob(f"{name}*.npz"))
    if not paths:
        pytest.skip(f"no {name} in the shared folder")
    X, y = problems.read(paths[0].stem, paths[0].parent)
    X, y = X[:500], y[:500]
    found = laplace_posterior(LIKELIHOODS[kind], torch.from_numpy(X), torch.from_numpy(y))
    mean, covariance = problems.laplace(kind, X, y, np.ones(len(X)))
    close(found, torch.from_numpy(mean), torch.from_numpy(covariance), 1e-7)


def test_a_start_from_which_no_step_leads_on() -> None:
    """There the rates are zero up to rounding, so that a Newton step is as long as the prior allows."""
    features = torch.tensor([[8.3, -29.9, -18.3], [-16.2, 62.5, -12.5], [0.2, 17.0, -45.5], [4.7, 18.4, -23.0]])
    target, weights = torch.tensor([310.0, 307.0, 290.0, 288.0]), torch.tensor([55.0, 55.0, 2.0, 56.0])
    start, prior = torch.tensor([0.0, 0.0, 20.0], dtype=torch.float64), GaussianPosterior.isotropic(3, 1e4)
    expected = laplace_posterior(PoissonLikelihood(), features, target, weights, prior=prior)
    found = laplace_posterior(PoissonLikelihood(), features, target, weights, prior=prior, start=start)
    torch.testing.assert_close(found.mean, expected.mean)
    with pytest.warns(UserWarning, match="no Newton step increases"):
        laplace_posterior(PoissonLikelihood(), features, target, weights, prior=GaussianPosterior(start, prior.covariance))


@pytest.mark.parametrize("compare", [forward_kl, reverse_kl, map_distance])
def test_posteriors_of_different_dimensions_are_not_compared(compare: Callable[..., float]) -> None:
    one, two = GaussianPosterior.isotropic(1), GaussianPosterior.isotropic(2)
    for pair in ((one, two), (two, one)):
        with pytest.raises(ConfigurationError, match="equal dimension"):
            compare(*pair)
