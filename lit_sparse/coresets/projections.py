"""Vectors whose inner products measure the similarity of two examples' log-likelihoods.

For draws theta_1 ... theta_S from an approximate posterior, example i has the vector of its log-likelihoods
``S^{-1/2} (L_i(theta_j) - mean_j L_i)_j``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import FLOATS, MOST_FEATURES, POSITIVE, SEED, Count, Number, check_tensor, ranges
from lit_sparse.coresets.examples import Examples
from lit_sparse.coresets.likelihoods import Likelihood
from lit_sparse.coresets.posteriors import GaussianPosterior, gaussian_mean_posterior, laplace_posterior
from lit_sparse.coresets.vectors import BlockVectors, VectorSource
from lit_sparse.errors import ConfigurationError, DataError

__all__ = [
    "ExactGaussianVectors",
    "FunctionVectors",
    "LogLikelihoodVectors",
    "Projection",
    "approximate_linear_vectors",
    "centred",
    "entry",
    "fitted",
    "linear_covariance",
    "vectors_of_covariance",
]

T = TypeVar("T")
#: Default number of examples per batch.
BATCH = 4096

#: Log-likelihoods that are computed at a time, so that they stay in a core's cache.
CACHED = 2**17


class Projection(VectorSource, ABC):
    """Base class of projections, which map each example to a vector that represents its log-likelihood.

    Inner products of the vectors measure the similarity of two examples. A subclass implements :meth:`project`, and
    :meth:`fit` if it needs all data. Calling it with examples returns their vectors (N, S).
    """

    #: Number of examples per batch.
    batch_size = BATCH

    def fit(self, examples: Examples) -> None:
        """Compute quantities that depend on all examples, such as an approximate posterior; by default nothing."""

    @abstractmethod
    def project(self, batch: Any) -> Tensor:
        """Return the vectors (B, S) of a batch of examples, after ``fit``."""

    def __call__(self, examples: Examples) -> Tensor:
        """Return the vectors (N, S) of the examples, after fitting the projection to them."""
        if not isinstance(examples, Examples):
            raise ConfigurationError(
                f"Expected Examples, such as Examples.of(features=x, target=y), but got a {type(examples).__name__}."
            )
        self.fit(examples)
        return self.of_part(examples)

    @torch.no_grad()
    def of_part(self, examples: Examples) -> Tensor:
        """Return the vectors (n, S) of a part of the examples, or of other examples, after ``fit``."""
        whole: Tensor | None = None
        place = 0
        for batch in examples.batches(self.batch_size):
            made = self._vectors(batch, min(self.batch_size, len(examples) - place))
            whole = made.new_empty(len(examples), made.shape[1]) if whole is None else whole
            if made.shape[1] != whole.shape[1]:
                raise DataError(
                    f"Expected {type(self).__name__} to return vectors of equal length but got {whole.shape[1]} and"
                    f" {made.shape[1]} entries. Correct it."
                )
            whole[place : place + len(made)] = made
            place += len(made)
        return self.project(examples[torch.zeros(0, dtype=torch.int64)]) if whole is None else whole

    def streamed(self, examples: Examples, device: torch.device | str = "cpu") -> BlockVectors:
        """Return the examples' vectors as an object that recomputes them at each access, after ``fit``.

        Args:
            examples: examples of the vectors; fetched on the CPU.
            device: device of the vectors.
        """

        @torch.no_grad()
        def rows(indices: Tensor) -> Tensor:
            made = [self._vectors(examples[some], len(some)).to(device) for some in torch.split(indices.cpu(), self.batch_size)]
            return torch.cat(made) if len(made) > 1 else made[0]

        return BlockVectors(rows, len(examples), block_size=self.batch_size)

    def _vectors(self, batch: Any, count: int) -> Tensor:
        """Return the vectors (count, S) of a batch."""
        what = f"{type(self).__name__} to return a floating vector for each of {count} examples"
        return check_tensor(self.project(batch), what, shape=(count, None), dtypes=FLOATS, error=DataError)

    def weighted(self, examples: Examples) -> Callable[[Tensor, Tensor, torch.Generator], Tensor]:
        """Return a function that computes vectors at samples from the posterior of a coreset, for :class:`SparseVI`.

        Its arguments are the coreset's indices (n,), weights (n,) and a generator.

        Raises:
            ConfigurationError: if the projection has no such posterior.
        """
        raise ConfigurationError(
            f"{type(self).__name__} cannot draw from the posterior of a coreset, as SparseVI needs. Use LogLikelihoodVectors,"
            " or another selector."
        )


@ranges(num_samples=Count(2, MOST_FEATURES), prior_mean=Number(-1e30, 1e30), prior_variance=POSITIVE, seed=SEED)
class LogLikelihoodVectors(Projection):
    r"""Projection to centred log-likelihoods of a regression at samples from the Laplace posterior of all examples.

    .. math:: g_n = \frac{1}{\sqrt S} \Bigl(\ell_n(\theta_s)
        - \frac{1}{S} \sum_{r=1}^{S} \ell_n(\theta_r)\Bigr)_{s = 1 \ldots S}

    where l_n is the log-likelihood of example n and theta_1 ... theta_S are the samples.

    Args:
        likelihood: likelihood of a target, given the product of features and coefficients.
        num_samples: number of samples S from the posterior.
        prior_mean: mean of each coefficient's normal prior.
        prior_variance: variance of each coefficient's normal prior.
        features: key of the features (B, D) in a batch.
        target: key of the targets (B,).
        seed: seed of the samples.

    Raises:
        ConfigurationError: for an argument outside its range.

    Example:
        >>> from lit_sparse.coresets import LogisticLikelihood
        >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
        >>> examples = Examples.of(features=x, target=(x[:, 0] > 0).float())
        >>> vectors = LogLikelihoodVectors(LogisticLikelihood(), num_samples=20)(examples)
        >>> vectors.shape, bool((vectors.sum(1).abs() < 1e-12).all())
        (torch.Size([50, 20]), True)
    """

    def __init__(
        self,
        likelihood: Likelihood,
        num_samples: int = 500,
        *,
        prior_mean: float = 0.0,
        prior_variance: float = 1.0,
        features: str = "features",
        target: str = "target",
        seed: int = 0,
    ) -> None:
        self.likelihood, self.num_samples, self.prior_mean = likelihood, num_samples, prior_mean
        self.prior_variance, self.features, self.target, self.seed = prior_variance, features, target, seed
        self.posterior: GaussianPosterior | None = None
        self._thetas: Tensor | None = None

    def fit(self, examples: Examples) -> None:
        """Compute the Laplace posterior of all examples, and sample from it."""
        features, target, prior = self._all(examples)
        self.posterior = laplace_posterior(self.likelihood, features, target, prior=prior)
        self._thetas = self.posterior.sample(self.num_samples, torch.Generator().manual_seed(self.seed))

    @override
    def project(self, batch: Any) -> Tensor:
        return self._at(fitted(self._thetas), *self._of(batch))

    @override
    def weighted(self, examples: Examples) -> Callable[[Tensor, Tensor, torch.Generator], Tensor]:
        features, target, prior = self._all(examples)
        last: tuple[list[int], Tensor] = [], prior.mean  # the last coreset and its mode, which other weights move little

        def vectors(indices: Tensor, weights: Tensor, generator: torch.Generator) -> Tensor:
            nonlocal last
            some, chosen = indices.to(features.device), indices.tolist()
            known, mode = last
            posterior = laplace_posterior(
                self.likelihood, features[some], target[some], weights, prior=prior, start=mode if known == chosen else None
            )
            last = chosen, posterior.mean
            return self._at(posterior.sample(self.num_samples, generator), features, target)

        return vectors

    def _at(self, thetas: Tensor, features: Tensor, target: Tensor) -> Tensor:
        thetas = thetas.to(features).mT
        size = max(1, CACHED // thetas.shape[1])
        blocks = zip(torch.split(features, size), torch.split(target, size), strict=True)
        return torch.cat([centred(self.likelihood.log_prob(x @ thetas, y.unsqueeze(-1))) for x, y in blocks])

    def _of(self, batch: Any) -> tuple[Tensor, Tensor]:
        return self._checked(entry(batch, self.features).double(), entry(batch, self.target).double())

    def _checked(self, features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        check_tensor(features, f"{self.features!r} (B, D)", shape=(None, None), error=DataError)
        check_tensor(target, f"{self.target!r} ({len(features)},)", shape=features.shape[:1], error=DataError)
        return features, self.likelihood.check(target)

    def _all(self, examples: Examples) -> tuple[Tensor, Tensor, GaussianPosterior]:
        """Return features and targets of all examples, and the prior."""
        features, target = self._checked(*_all(examples, self.batch_size, self.features, self.target))
        return features, target, GaussianPosterior.isotropic(features.shape[1], self.prior_variance, self.prior_mean)


class FunctionVectors(Projection):
    """Projection to centred log-likelihoods that a given function computes.

    Args:
        log_likelihood: function from a batch to the log-likelihoods (B, S) of its examples at S parameters.
    """

    def __init__(self, log_likelihood: Callable[[Any], Tensor]) -> None:
        self.log_likelihood = log_likelihood

    @override
    def project(self, batch: Any) -> Tensor:
        what = "`log_likelihood` to return a floating tensor (B, S)"
        return centred(check_tensor(self.log_likelihood(batch), what, shape=(None, None), dtypes=FLOATS, error=DataError))


class ExactGaussianVectors(Projection):
    r"""Projection whose inner products are the exact covariances of log-likelihoods under the posterior of a normal mean.

    Let ``L L^T`` be the covariance of the data, and mu and Sig the posterior's mean and covariance. The vector of an
    example x has dimension D + 1:

    .. math:: (\Psi^{1/2} \nu, \sqrt{\mathrm{tr}(\Psi^2) / 2}), \quad
        \nu = L^{-1} (x - \mu), \quad \Psi = L^{-1} \mathrm{Sig}\, L^{-T}

    Args:
        prior: distribution of the mean; standard normal by default.
        covariance: (D, D) covariance of the data; the identity by default.
        x: key of the data (B, D) in a batch.

    Source: Campbell & Beronov (2019), Sparse Variational Inference, section 4.1, arXiv:1906.03329.
    """

    def __init__(
        self, *, prior: GaussianPosterior | None = None, covariance: Tensor | None = None, x: str = "features"
    ) -> None:
        self.prior = prior
        self.covariance = covariance
        self.x = x
        self._known: tuple[Tensor, Tensor, float] | None = None

    def fit(self, examples: Examples) -> None:
        """Compute the posterior of the mean given all examples.

        Raises:
            ConfigurationError: if ``covariance`` or ``prior`` has another dimension than the data.
        """
        (x,) = _all(examples, self.batch_size, self.x)
        size = x.shape[-1]
        if self.covariance is not None and self.covariance.shape != (size, size):
            raise ConfigurationError(f"Expected a `covariance` {(size, size)} but got {tuple(self.covariance.shape)}.")
        if self.prior is not None and len(self.prior.mean) != size:
            raise ConfigurationError(f"Expected a `prior` of dimension {size} but got {len(self.prior.mean)}.")
        posterior = gaussian_mean_posterior(x, prior=self.prior, covariance=self.covariance)
        noise = torch.eye(x.shape[1]).to(x) if self.covariance is None else self.covariance.to(x)
        factor = torch.linalg.cholesky(noise)
        psi = _whitened(factor, _whitened(factor, posterior.covariance).mT)
        values, turns = torch.linalg.eigh(0.5 * (psi + psi.mT))
        values = values.clamp_min(0)
        root = (turns * values.sqrt()) @ turns.mT
        self._known = posterior.mean, _whitened(factor, root, left=False), math.sqrt(0.5 * float(values.square().sum()))

    @override
    def project(self, batch: Any) -> Tensor:
        mean, root, last = fitted(self._known)
        moved = (entry(batch, self.x).double() - mean) @ root
        return torch.cat([moved, moved.new_full((len(moved), 1), last)], dim=1)


def centred(log_likelihoods: Tensor) -> Tensor:
    """Return the vectors (N, S) of log-likelihoods (N, S): minus their mean over the samples, divided by the root of S."""
    return (log_likelihoods - log_likelihoods.mean(1, keepdim=True)) / math.sqrt(log_likelihoods.shape[1])


def linear_covariance(features: Tensor, target: Tensor, posterior: GaussianPosterior, variance: float) -> Tensor:
    r"""Return the exact covariances (N, N) of the log-likelihoods of linear regression under a normal posterior.

    .. math:: \bigl(e_n e_m s_{nm} + \tfrac12 s_{nm}^2\bigr) / \mathrm{variance}^2, \qquad e_n = y_n - b_n^\top \mu, \quad
        s_{nm} = b_n^\top \Sigma\, b_m

    where b_n are the features, y_n the targets, and mu and Sigma the posterior's mean and covariance.

    Args:
        features: b (N, D).
        target: y (N,).
        posterior: distribution of the coefficients.
        variance: variance of the noise.
    """
    features, target = features.double(), target.double()
    posterior = posterior.to(features)
    spread = features @ posterior.covariance @ features.mT
    errors = target - features @ posterior.mean
    return (torch.outer(errors, errors) * spread + 0.5 * spread.square()) / variance**2


def approximate_linear_vectors(
    features: Tensor, target: Tensor, posterior: GaussianPosterior, variance: float, directions: int = 20
) -> Tensor:
    """Return vectors (N, D + directions^2) whose inner products approximate the covariances of :func:`linear_covariance`.

    With the whitened features ``p_n = L^T b_n``, ``L L^T = Sigma``, a vector holds ``e_n p_n`` and ``q_n q_n^T / sqrt(2)``,
    divided by the variance. Here ``q_n`` are the coordinates of ``p_n`` along the principal directions of all ``p_n``. With
    all D directions, the inner products are exact.

    Args:
        features: b (N, D).
        target: y (N,).
        posterior: distribution of the coefficients.
        variance: variance of the noise.
        directions: number of principal directions.

    Raises:
        DataError: if the posterior's covariance is not positive definite.
    """
    features, target = features.double(), target.double()
    posterior = posterior.to(features)
    whitened = features @ posterior.factor
    errors = target - features @ posterior.mean
    strongest = torch.linalg.eigh(whitened.mT @ whitened).eigenvectors[:, -directions:]
    near = whitened @ strongest
    pairs = (near.unsqueeze(-1) * near.unsqueeze(-2)).flatten(1) * 0.5**0.5
    return torch.cat([errors.unsqueeze(-1) * whitened, pairs], 1) / variance


def vectors_of_covariance(covariance: Tensor) -> Tensor:
    """Return vectors (N, S) whose inner products are given covariances (N, N) of rank S.

    Raises:
        DataError: if the matrix has a negative eigenvalue.
    """
    values, turns = torch.linalg.eigh(0.5 * (covariance + covariance.mT))
    largest = values[-1].clamp_min(0)
    if float(values[0]) < -1e-8 * float(largest):
        raise DataError(f"Expected covariances without a negative eigenvalue but got {float(values[0]):.3g}.")
    kept = values > len(values) * torch.finfo(values.dtype).eps * largest
    found: Tensor = turns[:, kept] * values[kept].sqrt()
    return found


def fitted(value: T | None) -> T:
    """Return a quantity that :meth:`Projection.fit` computed, after checking that it was called.

    Raises:
        ConfigurationError: if it was not called.
    """
    if value is None:
        raise ConfigurationError("Expected `fit` to be called with the examples before `project`.")
    return value


def entry(batch: Any, key: str) -> Tensor:
    """Return an entry of a batch, after checking that it exists.

    Raises:
        ConfigurationError: if the batch is not a dict with this entry.
    """
    if not isinstance(batch, dict) or key not in batch:
        there = f"the entries {', '.join(batch)}" if isinstance(batch, dict) else f"a {type(batch).__name__}"
        raise ConfigurationError(f"Expected batches with the entry {key!r} but got {there}.")
    value: Tensor = batch[key]
    return value


def _all(examples: Examples, batch_size: int, *keys: str) -> list[Tensor]:
    """Return the entries (N, ...) of all examples, float64."""
    parts = [[entry(batch, key).double() for key in keys] for batch in examples.batches(batch_size)]
    if not parts:
        raise DataError("Expected at least one example for the posterior but got none.")
    return [torch.cat(values) for values in zip(*parts, strict=True)]


def _whitened(factor: Tensor, matrix: Tensor, *, left: bool = True) -> Tensor:
    """Return ``L^{-1} matrix``, or ``L^{-T} matrix``: rows times the latter are whitened rows times the matrix."""
    solved: Tensor = torch.linalg.solve_triangular(factor if left else factor.mT, matrix, upper=not left)
    return solved
