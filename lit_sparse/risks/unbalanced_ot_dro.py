"""Robustness against perturbed inputs and against outliers, by unbalanced optimal transport."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self, override

from lit_sparse.checks import POSITIVE, ranges
from lit_sparse.ground.distributed import reduce
from lit_sparse.ground.torch_internals import can_read_values
from lit_sparse.risks.base import Risk, mean_of
from lit_sparse.risks.input_adversary import INNER, InputAdversary
from lit_sparse.risks.logsumexp import RHO
from lit_sparse.risks.safe_kl_dro import SafeDualRisk

__all__ = ["ExponentialOTDRO", "UnbalancedOTDRO"]


@ranges(transport_cost=POSITIVE, beta=POSITIVE, rho=RHO, **INNER)
class UnbalancedOTDRO(SafeDualRisk):
    r"""Risk that is robust against perturbed inputs and outliers, by unbalanced optimal transport.

    .. math:: a + \frac{\kappa\,\beta}{\rho} \mathrm{mean} \ln(1 + \rho e^{(l - a) / (\kappa\,\beta)})

    where l are the losses at perturbed inputs minus the transport costs, kappa is the ``transport_cost``, and a is a
    learned dual variable. An adversary perturbs inputs where that raises the loss by more than kappa times the squared
    distance. It also reweights examples; its gain from a few outliers is bounded. A model calls :meth:`perturb` for the
    inputs first.

    Args:
        transport_cost: kappa, the cost of a unit of squared distance, in units of the loss, > 0.
        beta: cost of a unit of reweighting, in units of kappa, > 0.
        rho: inverse of the largest weight of an example, in (0, 1).
        inner_steps: steps of :class:`InputAdversary`; 0 leaves the inputs unchanged.
        inner_lr: step size; None for ``0.1 / transport_cost``.
        inner_momentum: momentum, in [0, 1).
        options: options of :class:`DualRisk`, ``dual_lr`` and ``initial_dual``.

    Raises:
        ConfigurationError: for an argument outside its range.

    Source: Gladin, Kroshnin, Zhu & Dvurechensky (2025), Improved Stochastic Optimization of LogSumExp, arXiv:2509.24894,
    equations 20 and 22. Wang et al. (2024), Outlier-Robust Distributionally Robust Optimization via Unbalanced Optimal
    Transport.

    Example:
        >>> import torch
        >>> risk = UnbalancedOTDRO(1.0, 1.0, 0.1)
        >>> inputs, cost = risk.perturb(lambda x: x.sum(1), torch.zeros(2, 3))
        >>> bool((inputs > 0).all() and (cost > 0).all())
        True
    """

    def __init__(
        self,
        transport_cost: float,
        beta: float,
        rho: float,
        *,
        inner_steps: int = 5,
        inner_lr: float | None = None,
        inner_momentum: float = 0.4,
        **options: Any,
    ) -> None:
        super().__init__(rho, **options)
        self.transport_cost, self.beta = transport_cost, beta
        self.inner_steps, self.inner_lr, self.inner_momentum = inner_steps, inner_lr, inner_momentum
        self.adversary = InputAdversary(transport_cost, inner_steps, inner_lr, inner_momentum)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: the paper's settings, and one without adversarial steps."""
        return [cls(1.0, 1.0, 0.1), cls(0.5, 2.0, 0.01, inner_steps=0, initial_dual=0.0)]

    @property
    @override
    def temperature(self) -> float:
        """Number by which losses are divided in the exponent, kappa beta."""
        return self.transport_cost * self.beta


@ranges(transport_cost=POSITIVE, beta=POSITIVE, **INNER)
class ExponentialOTDRO(Risk):
    r"""Exponential objective of unbalanced optimal transport DRO, as originally published, which can overflow.

    .. math:: \mathrm{mean} \exp(l / (\kappa\,\beta))

    where l are the losses at perturbed inputs minus the transport costs, and kappa is the ``transport_cost``. The weights
    of examples are unbounded; a loss of 89 kappa beta is too large for float32. Overflows are counted as
    ``train/overflows``; after an overflow the model's weights are lost. :class:`UnbalancedOTDRO` does not overflow.

    Args:
        transport_cost: kappa, the cost of a unit of squared distance, in units of the loss, > 0.
        beta: cost of a unit of reweighting, in units of kappa, > 0.
        inner_steps: steps of :class:`InputAdversary`; 0 leaves the inputs unchanged.
        inner_lr: step size; None for ``0.1 / transport_cost``.
        inner_momentum: momentum, in [0, 1).

    Raises:
        ConfigurationError: for an argument outside its range.

    Source: Wang et al. (2024), Outlier-Robust Distributionally Robust Optimization via Unbalanced Optimal Transport.
    Gladin, Kroshnin, Zhu & Dvurechensky (2025), Improved Stochastic Optimization of LogSumExp, arXiv:2509.24894, equation
    21.

    Example:
        >>> import torch
        >>> float(ExponentialOTDRO(1.0, 1.0)(torch.zeros(3)))
        1.0
    """

    unbiased: ClassVar[bool] = True

    def __init__(
        self,
        transport_cost: float,
        beta: float,
        *,
        inner_steps: int = 5,
        inner_lr: float | None = None,
        inner_momentum: float = 0.4,
    ) -> None:
        super().__init__()
        self.transport_cost, self.beta = transport_cost, beta
        self.inner_steps, self.inner_lr, self.inner_momentum = inner_steps, inner_lr, inner_momentum
        self.adversary = InputAdversary(transport_cost, inner_steps, inner_lr, inner_momentum)
        #: Number of training batches whose exponentials had no finite mean; a parameter, because buffers are broadcast.
        self.overflows = nn.Parameter(torch.zeros((), dtype=torch.float64), requires_grad=False)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return an instance for the shared tests, with the paper's settings."""
        return [cls(1.0, 1.0)]

    @override
    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        found = mean_of((losses / (self.transport_cost * self.beta)).exp(), weights)
        if self.training and can_read_values():
            with torch.no_grad():
                self.overflows.add_(reduce(found.isinf().double()))
        return found

    def measurements(self) -> dict[str, float]:
        """Return the number of batches so far whose objective overflowed, as ``overflows``."""
        return {"overflows": float(self.overflows)}

    def _hint(self) -> str:
        count = int(self.overflows.detach())
        return super()._hint() + (f" The exponentials overflowed {count} times before." if count else "")
