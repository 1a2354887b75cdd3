"""Problems on which coresets are compared: data, vectors, and the posterior of any weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lit_sparse.coresets import (
    GIGA,
    IHT,
    AcceleratedIHT,
    Coreset,
    CoresetSelector,
    ExactGaussianVectors,
    Examples,
    FrankWolfe,
    GaussianPosterior,
    Likelihood,
    LogisticLikelihood,
    LogLikelihoodVectors,
    NonnegativeOMP,
    PoissonLikelihood,
    SparseVI,
    Uniform,
    posteriors,
)
from lit_sparse.coresets.projections import approximate_linear_vectors, linear_covariance, vectors_of_covariance
from lit_sparse.coresets.selector import Selection
from lit_sparse.coresets.vectors import as_vectors
from lit_sparse.data import RadialBases, RegressionDataModule, SyntheticRegressionDataModule, TableDataModule

__all__ = ["PROBLEMS", "SELECTORS", "Problem", "compare", "make"]

Resample = Callable[[Tensor, Tensor, torch.Generator], Tensor]
ALL = slice(None)


class Problem(ABC):
    """Base class of problems on which coresets are compared: data and vectors for a seed, and the posterior of any weights."""

    #: Number of examples.
    size: int

    @cached_property
    @abstractmethod
    def vectors(self) -> Tensor:
        """Vectors (N, S) float64 of the examples."""

    @abstractmethod
    def posterior(self, weights: Tensor, rows: Any = ALL) -> GaussianPosterior:
        """The posterior distribution given weights of some of the examples, by default (N,) of all."""

    @cached_property
    def full(self) -> GaussianPosterior:
        """The posterior distribution given all examples."""
        return self.posterior(torch.ones(self.size, dtype=torch.float64))

    def vectors_at(self, posterior: GaussianPosterior) -> Tensor:
        """Return vectors (N, S) of the examples at the posterior distribution of a coreset."""
        raise NotImplementedError

    def resample(self) -> Resample:
        """Return a function that computes vectors at a coreset's posterior, for SparseVI."""
        return lambda rows, weights, generator: self.vectors_at(self.posterior(weights, rows))


class GaussianMean(Problem):
    """Problem of a normal mean in 200 dimensions, with 600 samples x ~ N(theta, I), prior N(0, I), and exact vectors."""

    def __init__(self, seed: int, features: int = 200, size: int = 600) -> None:
        generator, self.size = torch.Generator().manual_seed(seed), size
        theta = torch.randn(features, generator=generator, dtype=torch.float64)
        self.x = theta + torch.randn(size, features, generator=generator, dtype=torch.float64)

    @cached_property
    def vectors(self) -> Tensor:
        return ExactGaussianVectors()(Examples.of(features=self.x))

    def posterior(self, weights: Tensor, rows: Any = ALL) -> GaussianPosterior:
        return posteriors.gaussian_mean_posterior(self.x[rows], weights)

    def vectors_at(self, posterior: GaussianPosterior) -> Tensor:
        """Return exact vectors, because nothing is sampled."""
        values, turns = torch.linalg.eigh(posterior.covariance)
        moved = (self.x - posterior.mean) @ (turns * values.clamp_min(0).sqrt())
        return torch.cat([moved, torch.full((len(moved), 1), float((0.5 * values.square().sum()).sqrt())).to(moved)], 1)


class Radial(Problem):
    """Problem of radial basis regression of log prices at 1,000 places of a map.

    Vectors have the exact covariances of the log-likelihoods as inner products, or are made as in the paper's code.
    """

    def __init__(self, seed: int, path: Path, *, exact: bool = True) -> None:
        self.exact = exact
        options: dict[str, Any] = {"features": "longitude,latitude", "target": "medianHouseValue", "intercept": False}
        options |= {"train_size": 1000, "seed": seed}
        self.features, self.target = rows_of(TableDataModule(str(path), log_target=True, bases=RadialBases(), **options))
        self.places = rows_of(TableDataModule(str(path), **options))[0]
        self.centres = RadialBases().centres(self.places, torch.Generator().manual_seed(seed))
        self.prior = GaussianPosterior.isotropic(
            self.features.shape[1], float(self.target.square().mean()), float(self.target.mean())
        )
        self.variance, self.size = float(self.target.var()), len(self.target)

    @cached_property
    def vectors(self) -> Tensor:
        return self.vectors_at(self.full)

    def posterior(self, weights: Tensor, rows: Any = ALL) -> GaussianPosterior:
        given = self.features[rows], self.target[rows], weights
        return posteriors.linear_posterior(*given, prior=self.prior, variance=self.variance)

    def vectors_at(self, posterior: GaussianPosterior) -> Tensor:
        if not self.exact:
            return approximate_linear_vectors(self.features, self.target, posterior, self.variance)
        return vectors_of_covariance(linear_covariance(self.features, self.target, posterior, self.variance))


class Regression(Problem):
    """Problem of logistic or Poisson regression with a standard normal prior.

    Vectors are log-likelihoods at 500 samples of the Laplace posterior.
    """

    def __init__(self, seed: int, likelihood: Likelihood, data: RegressionDataModule, draws: int = 500) -> None:
        self.likelihood = likelihood
        self.features, target = rows_of(data)
        self.target, self.size = likelihood.check(target), len(target)
        self.projection = LogLikelihoodVectors(likelihood, draws, seed=seed)

    @property
    def examples(self) -> Examples:
        return Examples.of(features=self.features, target=self.target)

    @cached_property
    def vectors(self) -> Tensor:
        return self.projection(self.examples)

    def posterior(self, weights: Tensor, rows: Any = ALL) -> GaussianPosterior:
        return posteriors.laplace_posterior(self.likelihood, self.features[rows], self.target[rows], weights)

    def resample(self) -> Resample:
        return self.projection.weighted(self.examples)


class Rows(TableDataModule):
    """Data module that trains on all rows of a file, in the order of the file."""

    def setup(self, stage: str | None = None) -> None:
        tables = self.load()
        inputs = tables["train"].features.double()
        mean, deviation = inputs.mean(0), torch.cov(inputs.mT).reshape(inputs.shape[1], inputs.shape[1])
        values, turns = torch.linalg.eigh(deviation)
        kept = values > 1e-9 * values[-1]
        inputs = (inputs - mean) @ (turns[:, kept] * values[kept].rsqrt())
        self.rows = torch.cat([inputs, torch.ones(len(inputs), 1).double()], 1), tables["train"].target.double()


def rows_of(data: RegressionDataModule) -> tuple[Tensor, Tensor]:
    """Return the features (N, D) and targets (N,) of a data module's training rows, float64, after setting it up."""
    data.setup()
    if isinstance(data, Rows):
        return data.rows
    batch = data.fetch("train", 0, torch.arange(data.size("train")))
    return batch["features"].double(), batch["target"].double()


def _file(likelihood: Likelihood, name: str) -> Callable[[int, Path], Problem]:
    return lambda seed, folder: Regression(seed, likelihood, Rows(str(folder / name), drop_last="libsvm" not in name))


def _synthetic(seed: int, folder: Path) -> Problem:
    data = SyntheticRegressionDataModule("logistic", size=9002, val_size=1, test_size=1, seed=seed)
    return Regression(seed, LogisticLikelihood(), data)


#: Name -> what makes a draw of it, from a seed and the folder of the data.
PROBLEMS: dict[str, Callable[[int, Path], Problem]] = {
    "gaussian": lambda seed, folder: GaussianMean(seed),
    "rbf": lambda seed, folder: Radial(seed, folder),  # the path of the file
    "rbf_released": lambda seed, folder: Radial(seed, folder, exact=False),
    "synth_lr": _file(LogisticLikelihood(), "synth_lr.npz"),
    "phishing": _file(LogisticLikelihood(), "phishing_pca_500.npz"),
    "ds1": _file(LogisticLikelihood(), "ds1_pca_500.npz"),
    "synth_poiss": _file(PoissonLikelihood(), "synth_poiss.npz"),
    "biketrips": _file(PoissonLikelihood(), "biketrips.npz"),
    "airportdelays": _file(PoissonLikelihood(), "airportdelays.npz"),
    "large_synthetic": _synthetic,
    "large_phishing": _file(LogisticLikelihood(), "phishing.libsvm.gz"),
}


#: Name -> what builds it, given how many iterations the thresholding ones may take.
SELECTORS: dict[str, Callable[[int], CoresetSelector]] = {
    "A-IHT": lambda most: AcceleratedIHT(max_iter=most, polish=False),
    "IHT, constant step": lambda most: IHT(step="constant", max_iter=most, polish=False),
    "A-IHT, 20 % batches": lambda most: AcceleratedIHT(batch=0.2, max_iter=most, polish=False),
    "A-IHT II": lambda most: AcceleratedIHT(debias=True, max_iter=most, polish=False),
    "A-IHT II polished": lambda most: AcceleratedIHT(debias=True, max_iter=most),
    "A-IHT, half step": lambda most: AcceleratedIHT(step_scale=0.5, max_iter=most, polish=False),  # as the released code
    "A-IHT II, half step": lambda most: AcceleratedIHT(step_scale=0.5, debias=True, max_iter=most, polish=False),
    "NN-OMP": lambda most: NonnegativeOMP(),
    "GIGA": lambda most: GIGA(),
    "Frank-Wolfe": lambda most: FrankWolfe(),
    "uniform": lambda most: Uniform(),
}


@lru_cache(maxsize=1)
def make(problem: str, seed: int, folder: str) -> Problem:
    """Return the problem of a given name, a key of ``PROBLEMS``, with data and vectors for a seed."""
    return PROBLEMS[problem](seed, Path(folder))


@lru_cache(maxsize=1)
def _sparse_vi(problem: str, seed: int, folder: str, largest: int) -> list[Coreset]:
    """Return the coresets of all sizes up to the largest."""
    made = make(problem, seed, folder)
    selector, vectors = SparseVI(made.resample()), as_vectors(made.vectors)
    selector(vectors, largest, torch.Generator().manual_seed(1000 * seed))
    return [selector._finished(vectors, Selection(*found)) for found in selector.rounds]


def compare(
    seed: int, *, folder: str, problem: str, selector: str, k: int, max_iter: int = 300, largest: int = 30
) -> dict[str, float]:
    """Select a coreset of a problem, and return how far its posterior is from the posterior of all examples.

    Args:
        seed: seed of the data, if they are random, and of the vectors.
        folder: folder of the data.
        problem: name of the problem, a key of ``PROBLEMS``.
        selector: name of the selector, a key of ``SELECTORS``.
        k: maximum size of the coreset.
        max_iter: maximum number of iterations of the thresholding selectors.
        largest: size up to which SparseVI runs; its coresets of all sizes are from one run.

    Returns:
        ``size``, ``objective``, ``forward_kl``, ``reverse_kl``, ``symmetrized_kl`` and ``map_distance``.
    """
    made = make(problem, seed, folder)
    if selector == "SparseVI":
        coreset = _sparse_vi(problem, seed, folder, largest)[k - 1]
    else:
        coreset = SELECTORS[selector](max_iter)(made.vectors, k, torch.Generator().manual_seed(1000 * seed + k))
    posterior = made.posterior(coreset.dense())
    forward, reverse = posteriors.forward_kl(made.full, posterior), posteriors.reverse_kl(made.full, posterior)
    return {
        "size": len(coreset),
        "objective": coreset.objective,
        "forward_kl": forward,
        "reverse_kl": reverse,
        "symmetrized_kl": forward + reverse,
        "map_distance": posteriors.map_distance(made.full, posterior),
    }
