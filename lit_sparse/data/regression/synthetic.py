"""Synthetic data for regression."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch

from lit_sparse.checks import MOST_EXAMPLES, Count, Number, check_number, ranges
from lit_sparse.data.regression.base import RegressionDataModule, Table
from lit_sparse.data.splits import Split
from lit_sparse.errors import ConfigurationError

__all__ = ["SyntheticRegressionDataModule"]


@ranges(size=Count(3, MOST_EXAMPLES), noise=Number(0.0, 1e12))
class SyntheticRegressionDataModule(RegressionDataModule):
    """Data module of a generalized linear model: standard normal features x, and targets with predictor ``eta = x beta``.

    Args:
        family: distribution of the targets: ``"normal"`` of variance ``noise``, ``"logistic"`` with classes 0 and 1, or
            ``"poisson"`` of rate ``ln(1 + e^eta)``.
        size: number of rows for training, validation and test together.
        coefficients: beta, one entry per feature, and one for the intercept if it is added.
        noise: variance of normal targets.
        options: options of :class:`~lit_sparse.data.RegressionDataModule`.

    Raises:
        ConfigurationError: for an argument outside its range.

    The logistic data of Zhang et al. (2021), Bayesian Coresets, arXiv:2007.00715, have the coefficients 3, 3 and 0.
    """

    def __init__(
        self,
        family: Literal["normal", "logistic", "poisson"] = "logistic",
        *,
        size: int = 9000,
        coefficients: tuple[float, ...] = (3.0, 3.0, 0.0),
        noise: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.family, self.rows, self.noise = family, size, noise
        self.coefficients = tuple(
            check_number("coefficients", value, -math.inf, math.inf, open_low=True, open_high=True) for value in coefficients
        )
        if len(self.coefficients) <= int(self.intercept):
            raise ConfigurationError("Expected `coefficients` with an entry per feature but got none. Add at least one.")

    def load(self) -> dict[Split, Table]:
        """Return randomly generated rows."""
        generator = torch.Generator().manual_seed(self.seed)
        theta = torch.tensor(self.coefficients)
        features = torch.randn(self.rows, len(theta) - int(self.intercept), generator=generator)
        eta = features @ theta[: features.shape[1]] + (theta[-1] if self.intercept else 0.0)
        if self.family == "normal":
            target = eta + self.noise**0.5 * torch.randn(self.rows, generator=generator)
        elif self.family == "logistic":
            target = torch.bernoulli(eta.sigmoid(), generator=generator)
        else:
            target = torch.poisson(torch.nn.functional.softplus(eta), generator=generator)
        return {"train": Table(features, target)}
