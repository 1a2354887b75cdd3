"""Measures to draw points from: their base, and mixtures of normal distributions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import FLOATS, INTEGERS, check_tensor
from lit_sparse.errors import ConfigurationError
from lit_sparse.random import seeded_normal, seeded_uniform

__all__ = ["GaussianMixture", "Measure", "draw_rows", "normalized_weights"]

#: Streams of random numbers: the choice of a component or row, and the noise of a point.
WHICH, NOISE = 1, 2


class Measure(ABC):
    """Base class of probability measures on d-dimensional points; subclasses implement the sampling."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Dimension d of the points."""

    @abstractmethod
    def sample(self, seed: int, index: Tensor) -> Tensor:
        """Return points (B, d) float32, each of which is a function of the seed and its index alone.

        Args:
            seed: any integer.
            index: (B,) integers.
        """

    def log_prob(self, x: Tensor) -> Tensor | None:
        """Return the log density (B,) at points (B, d), or None if the density is unknown."""
        return None


class GaussianMixture(Measure):
    r"""Mixture of normal distributions with diagonal covariances; with one component, a normal distribution.

    .. math:: p(x) = \sum_k w_k \, \mathcal{N}(x;\, m_k, \operatorname{diag}(s_k))

    where w are the normalized weights, m the means and s the variances of the components.

    Args:
        means: mean of each component: a list of d numbers, or a number for d = 1.
        variances: variance of each component: a number for all directions, or a list of d numbers.
        weights: weight of each component, with any positive sum; None for equal weights.

    Raises:
        ConfigurationError: for arguments of lengths that do not match, or a variance that is not positive.

    Example:
        >>> mixture = GaussianMixture([-1.0, 1.5], [0.25, 0.16])
        >>> points = mixture.sample(0, torch.arange(10_000))
        >>> points.shape, abs(float(points.mean()) - 0.25) < 0.05
        (torch.Size([10000, 1]), True)
    """

    def __init__(self, means: list[Any], variances: list[Any], weights: list[float] | None = None) -> None:
        self.means, self.variances, self.weights = means, variances, weights
        centres, spreads = _rows("means", means), _rows("variances", variances)
        components, dim = len(centres), len(centres[0])
        if any(len(one) != dim for one in centres):
            raise ConfigurationError(f"Expected argument `means` to have components of equal length but got {means!r}.")
        if len(spreads) != components or any(len(one) not in (1, dim) for one in spreads):
            raise ConfigurationError(
                f"Expected argument `variances` to be, for each of the {components} components, a number or a list of {dim}"
                f" but got {variances!r}."
            )
        self._means = torch.tensor(centres, dtype=torch.float64)
        self._variances = torch.tensor([one * (dim // len(one)) for one in spreads], dtype=torch.float64)
        if not bool((self._variances > 0).all()) or not bool(self._variances.isfinite().all()):
            raise ConfigurationError(f"Expected argument `variances` to be positive and finite but got {variances!r}.")
        self._log_shares = normalized_weights(weights, components, "component").log()

    @property
    def dim(self) -> int:
        """Dimension d of the points."""
        return self._means.shape[1]

    @override
    def sample(self, seed: int, index: Tensor) -> Tensor:
        check_tensor(index, "indices (B,) that are integers", shape=(None,), dtypes=INTEGERS)
        which = draw_rows(self._log_shares.exp().to(index.device), seed, index)
        noise = seeded_normal(seed, index, (self.dim,), stream=NOISE)
        means, deviations = (part.to(noise)[which] for part in (self._means, self._variances.sqrt()))
        return means + deviations * noise

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log density (B,) at points (B, d).

        Raises:
            ConfigurationError: for points of another dimension.
        """
        check_tensor(x, f"floating points (B, {self.dim})", shape=(None, self.dim), dtypes=FLOATS)
        means, variances, log_shares = (part.to(x) for part in (self._means, self._variances, self._log_shares))
        away = (x.unsqueeze(1) - means).square() / variances
        each = -0.5 * (away + variances.log() + math.log(2.0 * math.pi)).sum(-1)
        return (log_shares + each).logsumexp(1)

    def __repr__(self) -> str:
        return f"GaussianMixture({self.means!r}, {self.variances!r}, {self.weights!r})"


def draw_rows(shares: Tensor, seed: int, index: Tensor) -> Tensor:
    """Return the row (B,) int64 that each index samples, with probabilities ``shares``."""
    fine = seeded_uniform(seed, index, (2,), stream=WHICH).double()  # 24 bits alone could never reach some of many rows
    where = torch.searchsorted(shares.cumsum(0), fine[:, 0] + fine[:, 1] * 2.0**-24, right=True)
    return where.clamp_max(int(shares.nonzero()[-1]))  # rounding


def normalized_weights(weights: Sequence[float] | None, count: int, what: str) -> Tensor:
    """Return weights (count,) float64 divided by their sum, equal ones for None.

    Raises:
        ConfigurationError: if there are not ``count`` weights, a weight is negative, or all are zero.
    """
    if weights is None:
        return torch.full((count,), 1.0 / count, dtype=torch.float64)
    found = torch.tensor(weights, dtype=torch.float64)
    good = found.shape == (count,) and bool(found.isfinite().all()) and bool((found >= 0).all()) and bool((found > 0).any())
    if not good:
        shown = f"{len(found)} numbers" if found.ndim == 1 and len(found) > 10 else repr(weights)
        raise ConfigurationError(
            f"Expected `weights` to be a number per {what}, {count} of them, none negative and not all zero, but got {shown}."
        )
    return found / found.sum()


def _rows(name: str, values: Any) -> list[list[float]]:
    """Return a list of numbers, or of lists of them, as lists of numbers."""
    if not isinstance(values, list | tuple) or not values:
        raise ConfigurationError(f"Expected argument `{name}` to be a list with one entry per component but got {values!r}.")
    rows = [[*one] if isinstance(one, list | tuple) else [one] for one in values]
    wrong = [one for row in rows for one in row if isinstance(one, bool) or not isinstance(one, int | float)]
    if wrong or not all(row and all(map(math.isfinite, row)) for row in rows):
        raise ConfigurationError(f"Expected argument `{name}` to hold finite numbers, or lists of them, but got {values!r}.")
    return rows
