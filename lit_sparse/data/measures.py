"""Measures to draw points from: mixtures of normal distributions, and the rows of a data set."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.data.readers.arrays import check_real, read_npy
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.nn import seeded_normal, seeded_uniform

__all__ = ["GaussianMixture", "Measure", "Points"]

#: Tell apart what is drawn for a point: which component or row it comes from, and its noise.
WHICH, NOISE = 1, 2


class Measure(ABC):
    """Base of probability measures on points of d numbers; a subclass draws from it."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """The numbers d of a point."""

    @abstractmethod
    def sample(self, seed: int, index: Tensor) -> Tensor:
        """Return points (B, d) float32, each a function of (seed, its index) alone.

        Args:
            seed: any integer.
            index: (B,) integers.
        """

    def log_prob(self, x: Tensor) -> Tensor | None:
        """Return the logarithm (B,) of the density at points (B, d), or None where the measure has none that is known."""
        return None


class GaussianMixture(Measure):
    """Mixture of normal distributions whose numbers are independent; with one component, a normal distribution.

    Args:
        means: of each component: a list of d numbers, or a number for d = 1.
        variances: of each component: a number for all directions, or a list of d numbers.
        weights: of each component, of any positive sum; None for equal ones.

    Raises:
        ConfigurationError: for arguments that do not fit together, or a variance that is not positive.

    Example:
        >>> mixture = GaussianMixture([-1.0, 1.5], [0.25, 0.16])
        >>> points = mixture.sample(0, torch.arange(10_000))
        >>> points.shape, abs(float(points.mean()) - 0.25) < 0.05
        (torch.Size([10000, 1]), True)
    """

    def __init__(self, means: list[Any], variances: list[Any], weights: list[float] | None = None) -> None:
        self.means, self.variances, self.weights = means, variances, weights
        self._means = torch.tensor([_numbers("means", mean) for mean in _rows("means", means)], dtype=torch.float64)
        spreads = [_numbers("variances", variance) for variance in _rows("variances", variances)]
        components, dim = self._means.shape
        if len(spreads) != components or any(len(one) not in (1, dim) for one in spreads):
            raise ConfigurationError(
                f"Expected argument `variances` to be, for each of the {components} components, a number or a list of {dim}"
                f" but got {variances!r}."
            )
        self._variances = torch.tensor([one * (dim // len(one)) for one in spreads], dtype=torch.float64)
        if not bool((self._variances > 0).all()) or not bool(self._variances.isfinite().all()):
            raise ConfigurationError(f"Expected argument `variances` to be positive and finite but got {variances!r}.")
        self._log_shares = _shares(weights, components, "component").log()

    @property
    def dim(self) -> int:
        """The numbers d of a point."""
        return self._means.shape[1]

    @override
    def sample(self, seed: int, index: Tensor) -> Tensor:
        which = _drawn(self._log_shares.exp().to(index.device), seed, index)
        noise = seeded_normal(seed, index, (self.dim,), stream=NOISE)
        means, deviations = (part.to(noise)[which] for part in (self._means, self._variances.sqrt()))
        return means + deviations * noise

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the logarithm (B,) of the density at points (B, d)."""
        means, variances, log_shares = (part.to(x) for part in (self._means, self._variances, self._log_shares))
        away = (x.unsqueeze(1) - means).square() / variances
        each = -0.5 * (away + variances.log() + math.log(2.0 * math.pi)).sum(-1)
        return (log_shares + each).logsumexp(1)

    def __repr__(self) -> str:
        return f"GaussianMixture({self.means!r}, {self.variances!r}, {self.weights!r})"


class Points(Measure):
    """Empirical measure of the rows of a data set: a draw is one of them.

    Args:
        path: of the points: a ``.npy`` file of (N, d) or (N,) numbers, or a ``.csv`` file of N lines of d numbers, of which the
            first may be a line of names.
        weights: path of such a file of (N,) numbers, of any positive sum; None for equal ones.

    The files are read when they are first needed; :meth:`of` takes arrays instead.

    Raises:
        DataError: if a file cannot be read, or does not hold such numbers.

    Example:
        >>> corners = Points.of([[0.0, 0.0], [1.0, 1.0]], weights=[3.0, 1.0])
        >>> corners.dim, abs(float(corners.sample(0, torch.arange(4000)).mean()) - 0.25) < 0.05
        (2, True)
    """

    def __init__(self, path: str, *, weights: str | None = None) -> None:
        self.path, self.weights = path, weights
        self._read: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, points: Any, weights: Sequence[float] | Tensor | None = None) -> Self:
        """Return the measure of points (N, d) or (N,) that are there already, with weights (N,)."""
        made = cls("(an array)")
        made._keep(np.asarray(points), None if weights is None else np.asarray(weights))
        return made

    @property
    def dim(self) -> int:
        """The numbers d of a point."""
        return self._tables()[0].shape[1]

    @override
    def sample(self, seed: int, index: Tensor) -> Tensor:
        points, shares = (part.to(index.device) for part in self._tables())
        return points[_drawn(shares, seed, index)]

    def __len__(self) -> int:
        return len(self._tables()[0])

    def _tables(self) -> tuple[Tensor, Tensor]:
        """Return the points (N, d) float32 and their shares (N,) float64."""
        if self._read is None:
            self._keep(_from_file(self.path), None if self.weights is None else _from_file(self.weights))
        assert self._read is not None
        return self._read

    def _keep(self, points: np.ndarray, weights: np.ndarray | None) -> None:
        check_real(points, repr(self.path))
        try:
            x = torch.from_numpy(np.array(points, dtype=np.float32))
            w = None if weights is None else torch.from_numpy(np.array(weights, dtype=np.float64)).flatten()
        except (TypeError, ValueError) as error:
            raise DataError(f"Expected numbers in {self.path!r} but they cannot be read as such: {error}") from error
        x = x.unsqueeze(1) if x.ndim == 1 else x
        if x.ndim != 2 or 0 in x.shape:
            raise DataError(f"Expected points (N, d) in {self.path!r} but got an array {tuple(x.shape)}.")
        broken = (~x.isfinite()).any(1).nonzero().flatten().tolist()
        if broken:
            raise DataError(f"Row {broken[0]} of {self.path!r} is missing or infinite in part ({len(broken)} rows are).")
        try:
            self._read = x, _shares(None if w is None else w.tolist(), len(x), "point")
        except ConfigurationError as error:
            raise DataError(str(error)) from error


def _drawn(shares: Tensor, seed: int, index: Tensor) -> Tensor:
    """Return which of some (B,) int64 each index draws, of probabilities ``shares``."""
    fine = seeded_uniform(seed, index, (2,), stream=WHICH).double()  # 24 bits alone would leave out some of many rows
    where = torch.searchsorted(shares.cumsum(0), fine[:, 0] + fine[:, 1] * 2.0**-24, right=True)
    return where.clamp_max(int(shares.nonzero()[-1]))  # rounding


def _shares(weights: Sequence[float] | None, count: int, what: str) -> Tensor:
    """Return weights (count,) float64 divided by their sum."""
    if weights is None:
        return torch.full((count,), 1.0 / count, dtype=torch.float64)
    found = torch.tensor(weights, dtype=torch.float64)
    good = found.shape == (count,) and bool(found.isfinite().all()) and bool((found >= 0).all()) and bool((found > 0).any())
    if not good:
        shown = f"{len(found)} numbers" if found.ndim == 1 and len(found) > 10 else repr(weights)
        raise ConfigurationError(
            f"Expected `weights` to be a number for each {what}, {count} of them, none negative and not all zero, but got"
            f" {shown}."
        )
    return found / found.sum()


def _rows(name: str, values: Any) -> list[Any]:
    if not isinstance(values, list | tuple) or not values:
        raise ConfigurationError(f"Expected argument `{name}` to be a list, an entry for each component, but got {values!r}.")
    lengths = {len(one) if isinstance(one, list | tuple) else 1 for one in values}
    if name == "means" and len(lengths) > 1:
        raise ConfigurationError(f"Expected argument `means` to be of as many numbers for each component but got {values!r}.")
    return list(values)


def _numbers(name: str, value: Any) -> list[float]:
    """Return a number, or a list of some, as a list."""
    found = list(value) if isinstance(value, list | tuple) else [value]
    if not found or any(isinstance(one, bool) or not isinstance(one, int | float) or not math.isfinite(one) for one in found):
        raise ConfigurationError(f"Expected argument `{name}` to hold finite numbers, or lists of them, but got {value!r}.")
    return [float(one) for one in found]


def _from_file(name: str) -> np.ndarray:
    path = Path(name).expanduser()
    if not path.is_file():
        raise DataError(f"The file {str(path)!r} does not exist.")
    if path.suffix not in (".npy", ".csv"):
        raise DataError(f"Expected points in a .npy or .csv file but got {str(path)!r}.")
    try:
        if path.suffix == ".npy":
            return read_npy(path)
        with path.open(encoding="utf-8") as file:
            lines = [line for line in file if line.strip()]
        return np.loadtxt(lines[int(bool(lines) and not _is_numbers(lines[0])) :], delimiter=",", ndmin=2)
    except DataError:
        raise
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{str(path)!r} cannot be read as {path.suffix} data: {error}") from error


def _is_numbers(line: str) -> bool:
    try:
        [float(cell) for cell in line.split(",")]
    except ValueError:
        return False
    return True
