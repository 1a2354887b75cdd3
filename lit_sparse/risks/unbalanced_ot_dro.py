"""Robustness against examples that are moved, and against outliers, by unbalanced optimal transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lit_sparse.checks import check_count, check_number, check_positive
from lit_sparse.distributed import reduce
from lit_sparse.errors import ConfigurationError
from lit_sparse.risks.base import Risk
from lit_sparse.risks.logsumexp import check_rho, may_look
from lit_sparse.risks.mean import mean_of
from lit_sparse.risks.safe_kl_dro import DualRisk, link_value, mean_threshold

__all__ = ["ExponentialOTDRO", "UnbalancedOTDRO"]


class MovingRisk(Risk):
    """Base of risks whose adversary moves inputs: ``max_u loss(u) - lam |u - x|^2``, by a few steps of Nesterov's method.

    Args:
        lam: what a unit of squared distance costs, in units of the loss, > 0. There is a best input only where the loss curves
            by less than 2 lam; with less the adversary runs away.
        beta: what a unit of reweighting costs, > 0; exponentials are those of ``loss / (lam beta)``.
        inner_steps: steps of the adversary; 0 moves nothing.
        inner_lr: their size; None for ``0.1 / lam``.
        inner_momentum: their momentum, in [0, 1).
    """

    perturbs: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True
    lam: float

    def _take(self, lam: float, beta: float, inner_steps: int, inner_lr: float | None, inner_momentum: float) -> None:
        self.lam = check_positive("lam", lam)
        self.beta = check_positive("beta", beta)
        self.inner_steps = check_count("inner_steps", inner_steps, 0)
        self.inner_lr = None if inner_lr is None else check_positive("inner_lr", inner_lr)
        self.inner_momentum = check_number("inner_momentum", inner_momentum, 0.0, 1.0, open_high=True)

    @property
    def temperature(self) -> float:
        """What losses are divided by: lam beta."""
        return self.lam * self.beta

    def _hint(self) -> str:
        return " Or the adversary runs away: raise lam, or lower inner_lr."

    def perturb(self, loss_fn: Callable[[Tensor], Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the adversary's inputs, without a gradient, and their squared distances (B,) from those given.

        Args:
            loss_fn: from inputs (B, ...) to losses (B,), of which each depends on its own input alone: no batch normalization,
                whose statistics would also count each step.
            inputs: (B, ...) floating.

        Raises:
            ConfigurationError: if the inputs are not floating, or the losses not (B,).
        """
        if not inputs.is_floating_point() or inputs.dim() < 1:
            raise ConfigurationError(
                f"Expected floating inputs (B, ...) to move but got {tuple(inputs.shape)} of {inputs.dtype}."
            )
        start = inputs.detach()
        moved, velocity = start, torch.zeros_like(start)
        size = 0.1 / self.lam if self.inner_lr is None else self.inner_lr
        for _ in range(self.inner_steps):
            with torch.enable_grad():
                ahead = (moved + self.inner_momentum * velocity).requires_grad_()
                losses = loss_fn(ahead)
                if losses.shape != inputs.shape[:1]:
                    raise ConfigurationError(
                        f"Expected loss_fn to return one loss an input, {tuple(inputs.shape[:1])}, but got"
                        f" {tuple(losses.shape)}."
                    )
                (slope,) = torch.autograd.grad((losses - self.lam * squared_distance(ahead, start)).sum(), ahead)
            velocity = self.inner_momentum * velocity + size * slope
            moved = moved + velocity
        return moved.detach(), squared_distance(moved, start).detach()


def squared_distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the squared Euclidean distance (B,) of each of a (B, ...) from its b."""
    squares = (a - b).square()
    return squares.flatten(1).sum(1) if squares.dim() > 1 else squares


class UnbalancedOTDRO(MovingRisk, DualRisk):
    """``a + (lam beta / rho) mean ln(1 + rho e^((l - a) / (lam beta)))``, l being the loss of a moved input less its cost.

    An adversary moves inputs where that raises the loss by more than lam times the squared distance, and weighs examples
    anew; what it gains from a few outliers is bounded. A model asks :meth:`perturb` for the inputs first.

    Args:
        lam: what a unit of squared distance costs, in units of the loss, > 0.
        beta: what a unit of reweighting costs, in units of lam, > 0.
        rho: 0 < rho < 1; no example counts more than 1 / rho times.
        inner_steps: steps of the adversary; 0 moves nothing.
        inner_lr: their size; None for ``0.1 / lam``.
        inner_momentum: their momentum, in [0, 1).
        dual_lr: learning rate of a; None for the model's.
        initial_dual: where a begins; None for the minimizer over the first batch of training.

    Raises:
        ConfigurationError: for an argument outside its range.

    Source: Improved Stochastic Optimization of LogSumExp, equations 20 and 22; Wang et al. (2024), Outlier-Robust
    Distributionally Robust Optimization via Unbalanced Optimal Transport.

    Example:
        >>> import torch
        >>> risk = UnbalancedOTDRO(1.0, 1.0, 0.1)
        >>> moved, cost = risk.perturb(lambda x: x.sum(1), torch.zeros(2, 3))
        >>> bool((moved > 0).all() and (cost > 0).all())
        True
    """

    def __init__(
        self,
        lam: float,
        beta: float,
        rho: float,
        *,
        inner_steps: int = 5,
        inner_lr: float | None = None,
        inner_momentum: float = 0.4,
        dual_lr: float | None = None,
        initial_dual: float | None = None,
    ) -> None:
        super().__init__(dual_lr=dual_lr, initial_dual=initial_dual)
        self._take(lam, beta, inner_steps, inner_lr, inner_momentum)
        self.rho = check_rho(rho, open_high=True)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return the published one, and one whose adversary does nothing."""
        return [cls(1.0, 1.0, 0.1), cls(0.5, 2.0, 0.01, inner_steps=0, initial_dual=0.0)]

    def solve(self, losses: Tensor, weights: Tensor | None = None) -> Tensor:
        """See :class:`DualRisk`."""
        return self.temperature * mean_threshold(losses.detach() / self.temperature, self.rho, weights)

    def objective(self, losses: Tensor, dual: Tensor, weights: Tensor | None = None) -> Tensor:
        """See :class:`DualRisk`."""
        links = link_value((losses - dual) / self.temperature, self.rho, "softplus")
        return dual + self.temperature * mean_of(links, weights)


class ExponentialOTDRO(MovingRisk):
    """``mean exp(l / (lam beta))``: the published way to the same aim, which overflows now and then.

    The weights of examples have no bound; a loss of 89 lam beta is too large for float32. Overflows are counted, as
    ``train/overflows``; after one the weights of the model are lost. :class:`UnbalancedOTDRO` has none.

    Args:
        lam: what a unit of squared distance costs, in units of the loss, > 0.
        beta: what a unit of reweighting costs, in units of lam, > 0.
        inner_steps: steps of the adversary; 0 moves nothing.
        inner_lr: their size; None for ``0.1 / lam``.
        inner_momentum: their momentum, in [0, 1).

    Raises:
        ConfigurationError: for an argument outside its range.

    Source: Wang et al. (2024), Outlier-Robust Distributionally Robust Optimization via Unbalanced Optimal Transport; equation
    21 of Improved Stochastic Optimization of LogSumExp.

    Example:
        >>> import torch
        >>> float(ExponentialOTDRO(1.0, 1.0)(torch.zeros(3)))
        1.0
    """

    def __init__(
        self,
        lam: float,
        beta: float,
        *,
        inner_steps: int = 5,
        inner_lr: float | None = None,
        inner_momentum: float = 0.4,
    ) -> None:
        super().__init__()
        self._take(lam, beta, inner_steps, inner_lr, inner_momentum)
        #: How often the exponentials of a training batch had no finite mean; a parameter, for buffers are broadcast.
        self.overflows = nn.Parameter(torch.zeros((), dtype=torch.float64), requires_grad=False)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return the published one."""
        return [cls(1.0, 1.0)]

    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        """See :class:`lit_sparse.risks.Risk`."""
        found = mean_of((losses / self.temperature).exp(), weights)
        if self.training and may_look():
            with torch.no_grad():
                self.overflows.add_(reduce(found.isinf().double()))
        return found

    def measurements(self) -> dict[str, float]:
        """Return the number of ``overflows`` so far."""
        return {"overflows": float(self.overflows)}

    def _hint(self) -> str:
        count = int(self.overflows.detach())
        return super()._hint() + (f" The exponentials overflowed {count} times before." if count else "")
