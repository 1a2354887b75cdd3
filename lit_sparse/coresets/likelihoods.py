"""Likelihoods of regression models with a linear predictor ``eta = x^T theta``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from typing_extensions import override

from lit_sparse.checks import POSITIVE, check_tensor, ranges
from lit_sparse.errors import DataError
from lit_sparse.ground.arguments import shown_arguments

__all__ = ["Likelihood", "LogisticLikelihood", "NormalLikelihood", "PoissonLikelihood"]


class Likelihood(nn.Module, ABC):
    """Base class of likelihoods of a target given the linear predictor eta; the log-likelihood is concave in eta."""

    @abstractmethod
    def log_prob(self, eta: Tensor, target: Tensor) -> Tensor:
        """Return the log-likelihood in nats of each target given its linear predictor, for tensors of broadcastable shapes."""

    @abstractmethod
    def derivatives(self, eta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and second derivatives of each log-likelihood in the linear predictor, of the broadcast shape."""

    @abstractmethod
    def mean(self, eta: Tensor) -> Tensor:
        """Return the mean of the target given each linear predictor, a tensor like ``eta``."""

    def check(self, target: Tensor) -> Tensor:
        """Return targets (N,) in the form that the other methods expect, after a check of their values.

        Raises:
            DataError: if they are no real numbers in a dense tensor, or the distribution does not allow them.
        """
        return check_tensor(target, "targets (N,), real numbers in a dense tensor,", error=DataError)

    @override
    def extra_repr(self) -> str:
        return shown_arguments(self)


@ranges(variance=POSITIVE)
class NormalLikelihood(Likelihood):
    """Likelihood of normally distributed targets whose mean is the linear predictor.

    Args:
        variance: variance of the noise.

    Example:
        >>> one = torch.tensor(1.0)
        >>> NormalLikelihood(4.0).log_prob(one, one)  # -log(2 sqrt(2 pi))
        tensor(-1.6121)
    """

    def __init__(self, variance: float = 1.0) -> None:
        super().__init__()
        self.variance = variance

    @override
    def log_prob(self, eta: Tensor, target: Tensor) -> Tensor:
        return -0.5 * ((target - eta).square() / self.variance + math.log(2 * math.pi * self.variance))

    @override
    def derivatives(self, eta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return (target - eta) / self.variance, torch.full_like(eta, -1 / self.variance)

    @override
    def mean(self, eta: Tensor) -> Tensor:
        return eta


class LogisticLikelihood(Likelihood):
    """Likelihood of two classes, 0 and 1 or -1 and 1, whose log-odds are the linear predictor.

    Example:
        >>> float(
        ...     LogisticLikelihood().log_prob(torch.tensor(0.0), torch.tensor(1.0)).exp()
        ... )
        0.5
    """

    @override
    def log_prob(self, eta: Tensor, target: Tensor) -> Tensor:
        return nnf.logsigmoid(torch.where(target > 0, eta, -eta))

    @override
    def derivatives(self, eta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        probability = eta.sigmoid()
        first = torch.where(target > 0, (-eta).sigmoid(), -probability)
        return first, -probability * (-eta).sigmoid()

    @override
    def mean(self, eta: Tensor) -> Tensor:
        return eta.sigmoid()

    @override
    def check(self, target: Tensor) -> Tensor:
        target = super().check(target)
        for lower in (0, -1):
            if bool(((target == lower) | (target == 1)).all()):
                return (target > 0).to(target.dtype)
        wrong = target[(target != 0) & (target != 1) & (target != -1)]
        found = f"{float(wrong[0]):g}" if len(wrong) else "0 and -1"
        raise DataError(f"Expected targets of two classes, 0 and 1 or -1 and 1, but got {found}.")


class PoissonLikelihood(Likelihood):
    """Likelihood of Poisson-distributed counts whose rate is ``ln(1 + e^eta)``, eta the linear predictor.

    Example:
        >>> float(PoissonLikelihood().mean(torch.tensor(0.0)).exp())
        2.0
    """

    @override
    def log_prob(self, eta: Tensor, target: Tensor) -> Tensor:
        rate, low = _rate(eta), _lowest(eta)
        # Clamped because the derivative of what `where` does not take must be finite.
        log_rate = torch.where(eta > low, rate.clamp_min(math.exp(low)).log(), eta)
        return target * log_rate - rate - torch.lgamma(target + 1)

    @override
    def derivatives(self, eta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        slope = eta.sigmoid()
        high = eta > _lowest(eta)
        relative = torch.where(high, slope / torch.where(high, _rate(eta), 1.0), 1.0)  # ratio of the slope to the rate
        bend = (-eta).sigmoid()
        # The difference is negative up to rounding, which large counts would amplify.
        return target * relative - slope, target * relative * (bend - relative).clamp_max(0) - slope * bend

    @override
    def mean(self, eta: Tensor) -> Tensor:
        return _rate(eta)

    @override
    def check(self, target: Tensor) -> Tensor:
        counts = super().check(target).double()
        wrong = counts[(counts < 0) | (counts % 1 != 0)]
        if len(wrong):
            raise DataError(f"Expected targets to be counts >= 0 but got {float(wrong[0]):g}.")
        return target


def _rate(eta: Tensor) -> Tensor:
    return torch.logaddexp(eta, torch.zeros_like(eta))  # torch's softplus is inexact beyond 20


def _lowest(eta: Tensor) -> float:
    """Return the predictor below which ln(1 + e^eta) equals e^eta up to rounding."""
    return -36.0 if eta.dtype == torch.float64 else -16.0
