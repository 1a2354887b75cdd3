"""Posteriors of weighted data, exact or by Laplace's approximation, and distances between them.

Weights (N,), for example of a coreset, multiply the log-likelihoods of the examples.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from lit_sparse.checks import FLOATS, check_count, check_positive, check_result, check_tensor
from lit_sparse.coresets.likelihoods import Likelihood, NormalLikelihood
from lit_sparse.errors import ConfigurationError, DataError, full_name
from lit_sparse.ground.arguments import checked

__all__ = [
    "GaussianPosterior",
    "forward_kl",
    "gaussian_mean_posterior",
    "laplace_posterior",
    "linear_posterior",
    "map_distance",
    "reverse_kl",
    "symmetrized_kl",
]

#: Rows per block in the computation of predictors.
BLOCK = 65536


@dataclass(frozen=True)
class GaussianPosterior:
    """Normal distribution of parameters, such as a prior or posterior.

    Its tensors must not be changed, because quantities computed from them are cached.

    Attributes:
        mean: (D,), also the most probable parameters (MAP).
        covariance: (D, D), positive definite.

    Raises:
        DataError: if the shapes or dtypes do not fit, or the covariance is not finite and symmetric.
    """

    mean: Tensor
    covariance: Tensor

    def __post_init__(self) -> None:
        check_tensor(self.mean, "a floating mean (D,)", shape=(None,), dtypes=FLOATS, error=DataError)
        square = (len(self.mean), len(self.mean))
        what = f"a covariance {square} of {self.mean.dtype}, as the mean is,"
        check_tensor(self.covariance, what, shape=square, dtypes=(self.mean.dtype,), error=DataError)
        if not bool(self.mean.isfinite().all()):
            raise DataError("Expected a finite mean but got NaN or infinity. Check the data or the prior.")
        if not _is_symmetric(self.covariance):
            raise DataError("Expected a finite, symmetric covariance but got one that is not. Check its factors.")

    @classmethod
    def isotropic(cls, features: int, variance: float = 1.0, mean: float = 0.0) -> Self:
        """Return a normal distribution of independent parameters with equal mean and variance, such as a prior, in float64."""
        features, variance = check_count("features", features), check_positive("variance", variance)
        covariance = variance * torch.eye(features, dtype=torch.float64)
        return cls(torch.full((features,), mean, dtype=torch.float64), covariance)

    @classmethod
    def from_precision(cls, precision: Tensor, shift: Tensor) -> Self:
        """Return the normal distribution given by its precision matrix (D, D), and the product (D,) of precision and mean.

        Raises:
            DataError: if the shapes or dtypes do not fit, or the precision is not positive definite.
        """
        check_tensor(shift, "a floating `shift` (D,)", shape=(None,), dtypes=FLOATS, error=DataError)
        what = f"a precision {(len(shift),) * 2} of {shift.dtype}, as its product with the mean is,"
        factor = _cholesky(check_tensor(precision, what, shape=(len(shift),) * 2, dtypes=(shift.dtype,), error=DataError))
        covariance = torch.cholesky_inverse(factor)
        return cls(torch.cholesky_solve(shift.unsqueeze(-1), factor).squeeze(-1), 0.5 * (covariance + covariance.mT))

    @cached_property
    def factor(self) -> Tensor:
        """The lower Cholesky factor (D, D) of the covariance."""
        return _cholesky(self.covariance)

    @cached_property
    def precision(self) -> Tensor:
        """The inverse (D, D) of the covariance."""
        return torch.cholesky_inverse(self.factor)

    @checked
    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Return samples (num_samples, D), drawn on the CPU so that they are the same on every device."""
        noise = torch.randn(
            check_count("num_samples", num_samples), len(self.mean), generator=generator, dtype=torch.float64
        ).to(self.mean)
        return self.mean + noise @ self.factor.mT

    def to(self, other: torch.device | torch.dtype | Tensor) -> GaussianPosterior:
        """Return the distribution on another device or in another dtype, or itself if neither differs."""
        mean, covariance = self.mean.to(other), self.covariance.to(other)
        same = mean is self.mean and covariance is self.covariance and not (mean.requires_grad or covariance.requires_grad)
        return self if same else GaussianPosterior(mean, covariance)


@checked
def gaussian_mean_posterior(
    x: Tensor, weights: Tensor | None = None, *, prior: GaussianPosterior | None = None, covariance: Tensor | None = None
) -> GaussianPosterior:
    """Return the posterior of the mean of a normal distribution with known covariance, from weighted data.

    Args:
        x: (N, D) samples of the distribution.
        weights: (N,); ones by default.
        prior: prior distribution of the mean; standard normal by default.
        covariance: (D, D) covariance of the distribution; the identity by default.

    Raises:
        DataError: if samples or weights have other shapes or are not finite, or a weight is negative.
    """
    x = check_tensor(x, "x (N, D)", shape=(None, None), error=DataError).double()
    if weights is not None:
        check_tensor(weights, f"weights ({len(x)},), one for each row of x,", shape=x.shape[:1], error=DataError)
    if not bool(x.isfinite().all()) or (weights is not None and not bool((weights >= 0).all())):
        raise DataError("Expected x to be finite and weights to be nonnegative.")
    prior = (GaussianPosterior.isotropic(x.shape[1]) if prior is None else prior).to(x)
    weights = x.new_ones(len(x)) if weights is None else weights.to(x)
    if covariance is not None:
        check_tensor(covariance, f"a covariance {(x.shape[1],) * 2}", shape=(x.shape[1],) * 2, error=DataError)
    noise = torch.eye(x.shape[1]).to(x) if covariance is None else torch.cholesky_inverse(_cholesky(covariance.to(x)))
    return GaussianPosterior.from_precision(
        prior.precision + weights.sum() * noise, prior.precision @ prior.mean + noise @ (weights @ x)
    )


@checked
def linear_posterior(
    features: Tensor,
    target: Tensor,
    weights: Tensor | None = None,
    *,
    prior: GaussianPosterior | None = None,
    variance: float = 1.0,
) -> GaussianPosterior:
    """Return the exact posterior of the coefficients of linear regression, from weighted data.

    Args:
        features: (N, D).
        target: (N,).
        weights: (N,); ones by default.
        prior: prior distribution of the coefficients; standard normal by default.
        variance: variance of the noise.
    """
    # The log posterior is quadratic, so a single Newton step is exact.
    return laplace_posterior(NormalLikelihood(variance), features, target, weights, prior=prior)


@checked
def laplace_posterior(
    likelihood: Likelihood,
    features: Tensor,
    target: Tensor,
    weights: Tensor | None = None,
    *,
    prior: GaussianPosterior | None = None,
    start: Tensor | None = None,
    max_iter: int = 100,
) -> GaussianPosterior:
    """Return Laplace's approximation of a posterior: a normal with its mode and the inverse negative Hessian there.

    The mode is computed in float64 by Newton's method with step halving.

    Args:
        likelihood: likelihood of a target, given the product of features and coefficients.
        features: (N, D).
        target: (N,).
        weights: (N,), not negative; ones by default.
        prior: prior distribution of the coefficients; standard normal by default.
        start: (D,) initial value; by default, and if no step from it improves, the prior's mean.
        max_iter: maximum number of steps.

    Raises:
        DataError: if features, targets or weights differ in length or are not finite, or a weight is negative.
    """
    if features.ndim != 2 or target.ndim != 1:
        raise DataError(f"Expected features (N, D) and targets (N,) but got {tuple(features.shape)} and {tuple(target.shape)}.")
    features, target = features.double(), likelihood.check(target.double())
    prior = (GaussianPosterior.isotropic(features.shape[1]) if prior is None else prior).to(features)
    weights = features.new_ones(len(features)) if weights is None else weights.to(features)
    if not len(features) == len(target) == len(weights) or len(prior.mean) != features.shape[1]:
        raise DataError(
            f"Expected features (N, D), a prior of D coefficients, and N targets and weights but got {tuple(features.shape)},"
            f" {len(prior.mean)}, {len(target)} and {len(weights)}."
        )
    for name, values in (("features", features), ("target", target), ("weights", weights)):
        if not bool(values.isfinite().all()):
            raise DataError(f"Expected {name} to be finite but got NaN or infinite values.")
    if bool((weights < 0).any()):
        raise DataError(f"Expected weights to be nonnegative but got {float(weights.min()):g}.")
    counts = weights != 0
    data = (features, target, weights) if bool(counts.all()) else (features[counts], target[counts], weights[counts])
    theta = prior.mean.clone() if start is None else start.to(features)
    here, gradient, precision = _log_posterior(likelihood, prior, theta, *data)
    for _ in range(max_iter):
        direction = torch.cholesky_solve(gradient.unsqueeze(-1), _cholesky(precision)).squeeze(-1)
        gain = float(gradient @ direction)
        size = 1.0
        while size > 1e-8:
            found = _log_posterior(likelihood, prior, theta + size * direction, *data)
            if found[0] >= here + 1e-4 * size * gain - 1e-12 * abs(here):
                theta, (here, gradient, precision) = theta + size * direction, found
                break
            size /= 2
        stuck = size <= 1e-8
        if gain <= (1e-12 if stuck else 1e-22) * max(1.0, abs(here)):
            break
        if stuck:  # no step leads on, as where predictors are so large that the likelihood is flat
            if start is not None:
                return laplace_posterior(likelihood, features, target, weights, prior=prior, max_iter=max_iter)
            warnings.warn("The mode of the posterior was not found: no Newton step increases the density.", stacklevel=2)
            break
    else:
        warnings.warn(f"The mode of the posterior did not converge in max_iter={max_iter} steps.", stacklevel=2)
    covariance = torch.cholesky_inverse(_cholesky(precision))
    return GaussianPosterior(theta, 0.5 * (covariance + covariance.mT))


@checked
def forward_kl(full: GaussianPosterior, approximate: GaussianPosterior) -> float:
    """Return the Kullback-Leibler divergence ``KL(full || approximate)`` of two normal distributions, in nats.

    Tiny values have full relative precision.
    """
    mine, other = _comparable(full, approximate)
    across = torch.linalg.solve_triangular(other.factor, mine.covariance - other.covariance, upper=False)
    excess = torch.linalg.solve_triangular(other.factor, across.mT, upper=False)  # L^-1 (S - S') L^-T
    values = torch.linalg.eigvalsh(0.5 * (excess + excess.mT)).clamp_min(-1.0)
    moved = torch.linalg.solve_triangular(other.factor, (mine.mean - other.mean).unsqueeze(-1), upper=False)
    return 0.5 * float(_less_log1p(values).sum() + moved.square().sum())


@checked
def reverse_kl(full: GaussianPosterior, approximate: GaussianPosterior) -> float:
    """Return the Kullback-Leibler divergence ``KL(approximate || full)`` of two normal distributions, in nats."""
    return forward_kl(approximate, full)


@checked
def symmetrized_kl(full: GaussianPosterior, approximate: GaussianPosterior) -> float:
    """Return the sum of the forward and the reverse Kullback-Leibler divergence of two normal distributions, in nats."""
    return forward_kl(full, approximate) + reverse_kl(full, approximate)


@checked
def map_distance(full: GaussianPosterior, approximate: GaussianPosterior) -> float:
    """Return the Euclidean distance between the most probable parameters of two normal distributions."""
    mine, other = _comparable(full, approximate)
    return float((mine.mean - other.mean).norm())


def _comparable(full: GaussianPosterior, approximate: GaussianPosterior) -> tuple[GaussianPosterior, GaussianPosterior]:
    """Return two posteriors of one dimension, in the dtype and on the device of the first.

    Raises:
        ConfigurationError: for different dimensions.
    """
    if full.mean.shape != approximate.mean.shape:
        sizes = f"{len(full.mean)} and {len(approximate.mean)}"
        raise ConfigurationError(f"Expected posteriors of equal dimension but got {sizes}.")
    return full, approximate.to(full.mean)


def _less_log1p(values: Tensor) -> Tensor:
    """Return ``x - log(1 + x)``, by its series where the difference would lose digits."""
    series = values.square() * (1 / 2 - values * (1 / 3 - values * (1 / 4 - values * (1 / 5 - values * (1 / 6 - values / 7)))))
    return torch.where(values.abs() < 1e-3, series, values - values.log1p())


def _is_symmetric(matrix: Tensor) -> bool:
    """Return whether a matrix is finite and symmetric up to rounding; a Cholesky factor in its place is not."""
    return bool((matrix - matrix.mT).abs().sum() <= 1e-4 * matrix.abs().sum())


def _cholesky(matrix: Tensor) -> Tensor:
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if int(failed) or not _is_symmetric(matrix):
        shape = tuple(matrix.shape)
        raise DataError(f"Expected a finite, symmetric, positive definite matrix but the one of shape {shape} is not.")
    return factor


def _log_posterior(
    likelihood: Likelihood, prior: GaussianPosterior, theta: Tensor, features: Tensor, target: Tensor, weights: Tensor
) -> tuple[float, Tensor, Tensor]:
    """Return the log density of the posterior, up to a constant, its gradient (D,), and its negative Hessian (D, D)."""
    away = theta - prior.mean
    gradient, precision = -prior.precision @ away, prior.precision.clone()
    value = 0.5 * float(away @ gradient)
    for x, y, w in _blocks(features, target, weights):
        eta = x @ theta
        value += float(w @ check_result(likelihood, "log_prob", likelihood.log_prob(eta, y), eta.shape))
        found: Any = likelihood.derivatives(eta, y)
        if not isinstance(found, tuple) or len(found) != 2:
            raise ConfigurationError(f"Expected `derivatives` of {full_name(likelihood)} to return two tensors.")
        first, second = (check_result(likelihood, "derivatives", part, eta.shape) for part in found)
        gradient += x.mT @ (w * first)
        precision -= x.mT @ ((w * second).unsqueeze(-1) * x)
    return value, gradient, 0.5 * (precision + precision.mT)


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Iterate over blocks of rows of tensors (N, ...)."""
    return zip(*(torch.split(values, BLOCK) for values in tensors), strict=True)
