"""Vectors of examples against sampled covariances, formulas and each other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lit_sparse.coresets import (
    BlockVectors,
    ExactGaussianVectors,
    Examples,
    FunctionVectors,
    GaussianPosterior,
    Likelihood,
    LogisticLikelihood,
    LogLikelihoodVectors,
    NonnegativeOMP,
    NormalLikelihood,
    PoissonLikelihood,
    Projection,
    SparseVI,
)
from lit_sparse.coresets.posteriors import gaussian_mean_posterior, laplace_posterior, linear_posterior
from lit_sparse.coresets.projections import approximate_linear_vectors, centred, linear_covariance, vectors_of_covariance
from lit_sparse.errors import ConfigurationError, DataError
from tests.coresets import problems

LIKELIHOODS: dict[str, Likelihood] = {
    "normal": NormalLikelihood(0.7),
    "logistic": LogisticLikelihood(),
    "poisson": PoissonLikelihood(),
}


def drawn(kind: str, size: int = 50, dim: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    X = np.hstack([rng.standard_normal((size, dim - 1)), np.ones((size, 1))])
    y = {"logistic": np.where(rng.random(size) < 0.4, -1.0, 1.0), "poisson": rng.poisson(2.0, size).astype(float)}
    return torch.from_numpy(X), torch.from_numpy(y.get(kind, rng.standard_normal(size)))


def examples(kind: str, **options: int) -> Examples:
    features, target = drawn(kind, **options)
    return Examples.of(features=features, target=target)


def spd(dim: int, seed: int) -> Tensor:
    root = torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.T / dim + 0.3 * torch.eye(dim, dtype=torch.float64)


def near_covariance(gram: Tensor, log_likelihoods: Tensor) -> None:
    """Check that inner products are covariances (N, N) of sampled values (S, N), to 1 % of the standard deviations."""
    sampled = torch.cov(log_likelihoods.T)
    scale = sampled.diagonal().sqrt()
    assert float(((gram - sampled) / torch.outer(scale, scale)).abs().max()) < 0.01


@pytest.mark.parametrize("general", [False, True])
def test_exact_vectors_of_a_normal_mean_reproduce_sampled_covariances(general: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    x = 2 * torch.randn(6, 3, generator=generator, dtype=torch.float64) + 1
    prior = GaussianPosterior(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), 3 * spd(3, 2)) if general else None
    noise = spd(3, 3) if general else None
    vectors = ExactGaussianVectors(prior=prior, covariance=noise)(Examples.of(features=x))
    assert (vectors.shape, vectors.dtype) == ((6, 4), torch.float64)
    posterior = gaussian_mean_posterior(x, prior=prior, covariance=noise)
    thetas = posterior.sample(800_000, generator)
    inverse = torch.linalg.inv(torch.eye(3, dtype=torch.float64) if noise is None else noise)
    values = torch.stack([-0.5 * (((row - thetas) @ inverse) * (row - thetas)).sum(1) for row in x], 1)
    near_covariance(vectors @ vectors.T, values)


def test_exact_vectors_are_those_of_the_second_opinion() -> None:
    X, expected = problems.gaussian(0, 5, 40)
    found = ExactGaussianVectors(x="rows")(Examples.of(rows=torch.from_numpy(X)))
    np.testing.assert_allclose((found @ found.T).numpy(), expected @ expected.T, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_exact_vectors_do_not_depend_on_the_units_of_the_data() -> None:
    """A change of coordinates of data, prior and covariance changes log-likelihoods only by a constant."""
    x, turn = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), spd(3, 5) + 1
    prior, noise = GaussianPosterior(torch.ones(3, dtype=torch.float64), spd(3, 1)), spd(3, 2)
    moved = GaussianPosterior(turn @ prior.mean, turn @ prior.covariance @ turn.T)
    one = ExactGaussianVectors(prior=prior, covariance=noise)(Examples.of(features=x))
    other = ExactGaussianVectors(prior=moved, covariance=turn @ noise @ turn.T)(Examples.of(features=x @ turn.T))
    torch.testing.assert_close(one @ one.T, other @ other.T)


@pytest.mark.parametrize("variance", [1.0, 0.3])
def test_covariances_of_linear_regression_are_the_sampled_ones(variance: float) -> None:
    features, target = drawn("normal", 7, 4)
    prior = GaussianPosterior(torch.ones(4, dtype=torch.float64), 2 * spd(4, 6))
    posterior = linear_posterior(features[:3], target[:3], prior=prior, variance=variance)
    covariance = linear_covariance(features, target, posterior, variance)
    thetas = posterior.sample(800_000, torch.Generator().manual_seed(0))
    values = NormalLikelihood(variance).log_prob(thetas @ features.T, target)
    near_covariance(covariance, values)
    vectors = vectors_of_covariance(covariance)
    torch.testing.assert_close(vectors @ vectors.T, covariance, rtol=1e-9, atol=1e-12)
    single = linear_covariance(features.float(), target.float(), posterior, variance)
    assert single.dtype == torch.float64


def test_approximate_vectors_of_linear_regression_are_exact_with_all_directions() -> None:
    features, target = drawn("normal", 30, 4)
    features[:, 0] *= 10
    posterior = linear_posterior(features[:3], target[:3], prior=GaussianPosterior.isotropic(4), variance=0.7)
    covariance = linear_covariance(features, target, posterior, 0.7)
    exact = approximate_linear_vectors(features, target, posterior, 0.7, directions=4)
    torch.testing.assert_close(exact @ exact.T, covariance, rtol=1e-9, atol=1e-12)
    errors = []
    for directions in (1, 2, 3):
        vectors = approximate_linear_vectors(features, target, posterior, 0.7, directions)
        assert vectors.shape == (30, 4 + directions**2)
        errors.append(float((vectors @ vectors.T - covariance).norm() / covariance.norm()))
    assert errors == sorted(errors, reverse=True)
    assert 0 < errors[0] < 0.5


def test_vectors_of_a_covariance_have_its_rank() -> None:
    root = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = vectors_of_covariance(root @ root.T)
    assert found.shape == (9, 4)
    torch.testing.assert_close(found @ found.T, root @ root.T)
    assert vectors_of_covariance(torch.zeros(3, 3, dtype=torch.float64)).shape == (3, 0)
    with pytest.raises(DataError, match=r"without a negative eigenvalue but got -0\.5"):
        vectors_of_covariance(torch.diag(torch.tensor([1.0, -0.5], dtype=torch.float64)))


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_vectors_are_centred_log_likelihoods_at_draws_from_the_laplace_posterior(kind: str) -> None:
    data = examples(kind)
    features, target = drawn(kind)
    projection = LogLikelihoodVectors(LIKELIHOODS[kind], 40, prior_variance=3.0, seed=5)
    vectors = projection(data)
    posterior = laplace_posterior(LIKELIHOODS[kind], features, target, prior=GaussianPosterior.isotropic(3, 3.0))
    thetas = posterior.sample(40, torch.Generator().manual_seed(5))
    expected = torch.zeros(50, 40, dtype=torch.float64)
    for n in range(50):
        for j in range(40):
            expected[n, j] = LIKELIHOODS[kind].log_prob(features[n] @ thetas[j], target[n])
    expected = (expected - expected.mean(1, keepdim=True)) / math.sqrt(40)
    torch.testing.assert_close(vectors, expected)
    assert float(vectors.sum(1).abs().max()) < 1e-12 * float(vectors.abs().max()) * 40
    assert projection.posterior is not None
    torch.testing.assert_close(projection.posterior.covariance, posterior.covariance)


@pytest.mark.parametrize("kind", ["logistic", "poisson"])
def test_many_draws_have_the_inner_products_of_the_second_opinion(kind: problems.Kind) -> None:
    features, target = drawn(kind, 20)
    mine = LogLikelihoodVectors(LIKELIHOODS[kind], 40_000)(examples(kind, size=20))
    other = torch.from_numpy(problems.vectors(kind, features.numpy(), target.numpy(), 0, 40_000))
    gram, expected = mine @ mine.T, other @ other.T
    scale = expected.diagonal().sqrt()
    assert float(((gram - expected) / torch.outer(scale, scale)).abs().max()) < 0.06


def test_sampled_vectors_of_linear_regression_tend_to_the_exact_ones() -> None:
    features, target = drawn("normal", 8)
    vectors = LogLikelihoodVectors(NormalLikelihood(0.7), 400_000)(examples("normal", size=8))
    posterior = linear_posterior(features, target, variance=0.7)
    covariance = linear_covariance(features, target, posterior, 0.7)
    scale = covariance.diagonal().sqrt()
    assert float(((vectors @ vectors.T - covariance) / torch.outer(scale, scale)).abs().max()) < 0.01


def test_seeds() -> None:
    data = examples("logistic")
    first, again, other = (LogLikelihoodVectors(LogisticLikelihood(), 10, seed=seed)(data) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    torch.manual_seed(99)
    assert torch.equal(LogLikelihoodVectors(LogisticLikelihood(), 10, seed=3)(data), first), "torch's own seed is not used"


@pytest.mark.parametrize(
    "projection",
    [
        LogLikelihoodVectors(LogisticLikelihood(), 12),
        ExactGaussianVectors(),
        FunctionVectors(lambda batch: (batch["features"] @ torch.arange(15.0).view(3, 5).double()).sin()),
    ],
    ids=lambda projection: type(projection).__name__,
)
def test_streamed_vectors_are_the_vectors(projection: Projection) -> None:
    data = examples("logistic")
    projection.batch_size = 7
    vectors = projection(data)
    streamed = projection.streamed(data)
    assert isinstance(streamed, BlockVectors)
    assert streamed.shape == tuple(vectors.shape)
    torch.testing.assert_close(streamed.rows(torch.arange(50)), vectors, rtol=1e-12, atol=1e-14)
    some = torch.tensor([49, 3, 3, 20])
    torch.testing.assert_close(streamed.rows(some), vectors[some], rtol=1e-12, atol=1e-14)
    direction = torch.linspace(-1, 1, vectors.shape[1], dtype=torch.float64)
    torch.testing.assert_close(streamed.correlate(direction), vectors @ direction)
    torch.testing.assert_close(streamed.total, vectors.sum(0))
    assert streamed.rows(torch.zeros(0, dtype=torch.int64)).shape == (0, vectors.shape[1])
    torch.testing.assert_close(projection.of_part(data.part(10, 30)), vectors[10:30], rtol=1e-12, atol=1e-14)
    assert projection.of_part(data.part(10, 10)).shape == (0, vectors.shape[1])
    assert not vectors.requires_grad
    whole = type(projection).batch_size
    projection.batch_size = whole
    torch.testing.assert_close(projection(data), vectors, rtol=1e-9, atol=1e-12)
    one, other = NonnegativeOMP()(vectors, 4), NonnegativeOMP()(streamed, 4)
    assert torch.equal(one.indices, other.indices)


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_weighted_draws_come_from_the_posterior_of_the_coreset(kind: str) -> None:
    features, target = drawn(kind)
    likelihood = LIKELIHOODS[kind]
    draw = LogLikelihoodVectors(likelihood, 30, prior_variance=2.0).weighted(examples(kind))
    for indices, weights in (([4, 9, 30], [10.0, 0.0, 25.0]), ([], [])):
        some, w = torch.tensor(indices, dtype=torch.int64), torch.tensor(weights, dtype=torch.float32)
        found = draw(some, w, torch.Generator().manual_seed(8))
        prior = GaussianPosterior.isotropic(3, 2.0)
        posterior = laplace_posterior(likelihood, features[some], target[some], w, prior=prior)
        thetas = posterior.sample(30, torch.Generator().manual_seed(8))
        torch.testing.assert_close(found, centred(likelihood.log_prob(features @ thetas.T, target[:, None])))
    assert torch.equal(found, draw(some, w, torch.Generator().manual_seed(8)))
    assert not torch.equal(found, draw(some, w, torch.Generator().manual_seed(9)))
    selector = SparseVI(updates=3)
    projection = LogLikelihoodVectors(likelihood, 30)
    vectors = projection(examples(kind))
    selector = selector.prepared(projection, examples(kind))
    assert 1 <= len(selector(vectors, 3, torch.Generator().manual_seed(0))) <= 3


def test_the_mode_is_sought_from_that_of_the_same_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    starts, modes = [], []

    def noted(*args: Any, start: Tensor | None, **options: Any) -> GaussianPosterior:
        starts.append(start)
        modes.append(laplace_posterior(*args, start=start, **options))
        return modes[-1]

    monkeypatch.setattr("lit_sparse.coresets.projections.laplace_posterior", noted)
    features, target = drawn("poisson")
    draw = LogLikelihoodVectors(PoissonLikelihood(), 30).weighted(examples("poisson"))
    for indices, weights in (([4, 9], [10.0, 0.0]), ([4, 9], [0.0, 60.0]), ([4, 8], [0.0, 3.0]), ([4, 8, 9], [1.0, 0.0, 2.0])):
        some, w = torch.tensor(indices), torch.tensor(weights)
        draw(some, w, torch.Generator().manual_seed(8))
        expected = laplace_posterior(PoissonLikelihood(), features[some], target[some], w)
        torch.testing.assert_close(modes[-1].mean, expected.mean)
        torch.testing.assert_close(modes[-1].covariance, expected.covariance)
    assert [start is None for start in starts] == [True, False, True, True]
    assert torch.equal(starts[1], modes[0].mean)


def test_projections_that_know_no_posterior_of_a_coreset() -> None:
    for projection in (ExactGaussianVectors(), FunctionVectors(lambda batch: batch["features"])):
        with pytest.raises(ConfigurationError, match=f"{type(projection).__name__} cannot draw .* Use LogLikelihoodVectors"):
            projection.weighted(examples("normal"))
        with pytest.raises(ConfigurationError, match="cannot draw"):
            SparseVI().prepared(projection, examples("normal"))


def test_functions_of_ones_own() -> None:
    """The log-likelihood that a function gives is centred for each example."""
    values = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    data = Examples.of(values=values)
    found = FunctionVectors(lambda batch: batch["values"].clone().requires_grad_())(data)
    torch.testing.assert_close(found, (values - values.mean(1, keepdim=True)) / math.sqrt(6))
    torch.testing.assert_close(FunctionVectors(lambda batch: batch["values"] + 7)(data), found, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("projection", [LogLikelihoodVectors(LogisticLikelihood(), 5), ExactGaussianVectors(x="features")])
def test_entries_that_are_missing(projection: Projection) -> None:
    batch: Any
    for batch, there in (({"pixels": torch.zeros(2, 3), "label": 1}, "pixels, label"), ((torch.zeros(2),), "a tuple")):
        with pytest.raises(ConfigurationError, match=rf"entry 'features' but got .*{there}"):
            projection(Examples(lambda indices, batch=batch: batch, 2))
    if isinstance(projection, LogLikelihoodVectors):
        with pytest.raises(ConfigurationError, match="entry 'target' but got the entries features"):
            projection(Examples.of(features=torch.zeros(2, 3)))


def test_names_of_entries() -> None:
    features, target = drawn("logistic")
    projection = LogLikelihoodVectors(LogisticLikelihood(), 5, features="x", target="y")
    expected = LogLikelihoodVectors(LogisticLikelihood(), 5)(examples("logistic"))
    assert torch.equal(projection(Examples.of(x=features, y=target.long())), expected)


@pytest.mark.parametrize("projection", [LogLikelihoodVectors(LogisticLikelihood(), 5), ExactGaussianVectors()])
def test_no_examples_and_no_fit(projection: Projection) -> None:
    fresh = type(projection)(LogisticLikelihood()) if isinstance(projection, LogLikelihoodVectors) else ExactGaussianVectors()
    with pytest.raises(ConfigurationError, match="`fit` to be called"):
        fresh.of_part(examples("logistic"))
    with pytest.raises(DataError, match="at least one example for the posterior"):
        projection(examples("logistic").part(0, 0))


def test_classes_are_one_form_over_all_batches() -> None:
    """Labels 0 and -1 together are refused at any position."""
    features, _ = drawn("logistic", 20)
    target = torch.tensor([0.0, 1.0] * 5 + [-1.0, 1.0] * 5)
    projection = LogLikelihoodVectors(LogisticLikelihood(), 5)
    projection.batch_size = 10
    with pytest.raises(DataError, match="0 and -1"):
        projection(Examples.of(features=features, target=target))


@pytest.mark.parametrize(
    ("options", "name"),
    [({"num_samples": 1}, "num_samples"), ({"num_samples": 2.5}, "num_samples"), ({"prior_variance": 0.0}, "prior_variance")],
)
def test_arguments_are_checked(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"`{name}`"):
        LogLikelihoodVectors(LogisticLikelihood(), **options)


def test_examples_come_in_order_and_in_part() -> None:
    data = Examples.of(features=torch.arange(20.0).view(10, 2), target=torch.arange(10))
    assert len(data) == 10
    assert [batch["target"].tolist() for batch in data.batches(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    part = data.part(3, 8).part(1, 3)
    assert [batch["target"].tolist() for batch in part.batches(4)] == [[4, 5]]
    assert data[torch.tensor([7, 0, 7])]["features"].tolist() == [[14, 15], [0, 1], [14, 15]]
    assert list(data.part(5, 5).batches(4)) == []
    with pytest.raises(DataError, match=r"all of the same length, but got \{'a': 2, 'b': 3\}"):
        Examples.of(a=torch.zeros(2), b=torch.zeros(3))
    with pytest.raises(ConfigurationError, match="`size`"):
        Examples(lambda indices: indices, -1)


def test_vectors_have_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block and several give equal vectors."""
    x, y = torch.randn(20, 3, dtype=torch.float64), torch.arange(20.0, dtype=torch.float64) % 5
    projection = LogLikelihoodVectors(PoissonLikelihood(), num_samples=20)
    vectors = projection(Examples.of(features=x, target=y))
    features = x.clone().requires_grad_()
    slopes = []
    for size in (1 << 20, 100):
        monkeypatch.setattr("lit_sparse.coresets.projections.CACHED", size)
        made = projection.project({"features": features, "target": y})
        torch.testing.assert_close(made.detach(), vectors)
        slopes += torch.autograd.grad(made.square().sum(), features)
    assert float(slopes[0].norm()) > 0
    torch.testing.assert_close(slopes[1], slopes[0])
