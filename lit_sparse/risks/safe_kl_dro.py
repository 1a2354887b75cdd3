"""Robust risks with a learned dual variable: the safe Kullback-Leibler divergence, and unbalanced optimal transport."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self, override

from lit_sparse.checks import POSITIVE, Number, check_tensor, ranges
from lit_sparse.ground.distributed import reduce
from lit_sparse.ground.torch_internals import can_read_values, outside_graphs
from lit_sparse.risks.base import Risk, check_losses, gathered_losses, mean_of
from lit_sparse.risks.input_adversary import INNER, InputAdversary
from lit_sparse.risks.logsumexp import RHO, mass_tolerance, safe_threshold_of, softplus

__all__ = ["DualRisk", "ExponentialOTDRO", "SafeDualRisk", "SafeKLDRO", "UnbalancedOTDRO", "link_value"]


def link_value(s: Tensor, rho: float, link: str) -> Tensor:
    """Return the function of a loss whose mean a safe robust risk contains, at losses s of any shape, shifted and scaled.

    Args:
        s: ``(loss - a) / temperature``, a being the dual variable.
        rho: inverse of the largest weight of an example, in [1e-30, 1).
        link: ``"softplus"`` for ``ln(1 + rho e^s) / rho``, or ``"capped_exp"`` for e^s, continued linearly for
            ``s > -ln rho``.
    """
    if link == "softplus":
        return softplus(s + math.log(rho)) / rho
    knee = -math.log(rho)
    low = s.clamp_max(knee)
    return low.exp() + (s - low) / rho


@ranges(dual_lr=Number(0.0, math.inf, open_high=True), initial_dual=Number(-math.inf, math.inf, open_low=True, open_high=True))
class DualRisk(Risk):
    """Base class of risks that also minimize over a dual variable a, a number near the larger losses.

    The estimate from a batch is a mean over its examples. It is unbiased for every batch size, because a is learned instead
    of solved for in each batch. The parameter ``dual`` is part of checkpoints and the same on all processes. An example
    counts at most 1 / rho times.

    Args:
        dual_lr: learning rate of a; None for the model's. Losses have their own unit, so a rate for weights seldom suits a.
            With SGD, a rate of ``temperature * rho`` moves a by less than the temperature per step.
        initial_dual: initial a; None for the minimizer over the first training batch. A value that is too high falls by at
            most ``dual_lr`` a per step, one that is too low rises up to 1 / rho times as fast: begin low. Weight averages
            that begin before the first batch (``AveragedModel``, Lightning's ``StochasticWeightAveraging``) need a number.
    """

    unbiased: ClassVar[bool] = True

    def __init__(self, *, dual_lr: float | None = None, initial_dual: float | None = None) -> None:
        super().__init__()
        self.dual_lr, self.initial_dual = dual_lr, initial_dual
        #: a; NaN until it is initialized.
        self.dual = nn.Parameter(torch.tensor(math.nan if initial_dual is None else float(initial_dual)))
        #: Whether a is initialized, cached so that later steps need no device synchronization.
        self._known = False
        self.register_load_state_dict_post_hook(_look_again)  # type: ignore[no-untyped-call]

    @property
    @abstractmethod
    def temperature(self) -> float:
        """Number by which losses are divided in the exponent."""

    @abstractmethod
    def solve(self, losses: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the dual variable a that minimizes the objective over losses (B,), a scalar without a gradient.

        Weights (B,) whose mean is at most rho are scaled to mean one, because the objective has no minimum with them.

        Raises:
            ConfigurationError: as in :meth:`forward`, or if all weights are 0.
            BrokenLossError: if a loss is NaN or infinite.
        """

    @abstractmethod
    def objective(self, losses: Tensor, dual: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the objective of losses (B,) at a given dual variable, a scalar."""

    @override
    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        if can_read_values() or (self.training and torch.compiler.is_compiling() and not self._known):
            dual = self._begun(losses, weights)
        elif self._known:
            dual = self.dual
        else:  # under a transform nothing can be stored
            dual = torch.where(self.dual.isnan(), self.solve(losses, weights).to(self.dual), self.dual)
        return self.objective(losses, dual.to(losses.dtype), weights)

    @outside_graphs
    def _begun(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        """Return a; solve for it if it is not initialized, and store it in training."""
        dual = self.dual
        if (self._known and not dual.is_cpu) or dual.is_meta or not bool(dual.detach().isnan()):
            self._known = True
            return dual
        if not self.training:
            return self.solve(losses, weights).to(dual)
        found = self.solve(*gathered_losses(losses, weights)).to(dual)
        with torch.no_grad():
            dual.copy_(found)
        self._known = True
        return dual

    def _checked(self, losses: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return losses (B,) without a gradient and weights (B,), from which a can be solved for, after a check."""
        check_losses(losses)
        losses, readable = losses.detach(), can_read_values() and not losses.is_meta
        if weights is not None:
            weights = self._weights(weights, losses, readable, needed=True)
            losses = torch.where(weights > 0, losses, 0.0)
        if readable:
            self._check_losses(losses)
        return losses, weights

    @property
    def _needs_weight(self) -> bool:
        return bool(self.dual.detach().isnan())

    def dual_parameters(self) -> list[nn.Parameter]:
        """Return the dual variable a, minimized together with the model's parameters."""
        return [self.dual]

    def measurements(self) -> dict[str, float]:
        """Return the dual variable a as ``dual``, to log after each training epoch."""
        return {"dual": float(self.dual.detach())}


class SafeDualRisk(DualRisk):
    """Base class of risks with a safe exponential, whose derivative is at most 1 / rho.

    Args:
        rho: inverse of the largest weight of an example, in [1e-30, 1).
        options: options of :class:`DualRisk`, ``dual_lr`` and ``initial_dual``.
    """

    link = "softplus"

    def __init__(self, rho: float, **options: Any) -> None:
        super().__init__(**options)
        self.rho = rho

    @override
    def solve(self, losses: Tensor, weights: Tensor | None = None) -> Tensor:
        losses, weights = self._checked(losses, weights)
        scores = losses / self.temperature
        if self.link == "capped_exp":
            return self.temperature * _capped_threshold(scores, self.rho, weights).to(losses.dtype)
        return self.temperature * safe_threshold_of(scores, self.rho, _measure(scores, self.rho, weights)).squeeze(-1)

    @override
    def objective(self, losses: Tensor, dual: Tensor, weights: Tensor | None = None) -> Tensor:
        check_losses(losses)
        if weights is not None:
            check_tensor(weights, f"one weight per loss, of shape {tuple(losses.shape)},", shape=losses.shape)
        links = link_value((losses - dual) / self.temperature, self.rho, self.link)
        return dual + self.temperature * mean_of(links, weights)


@ranges(lam=POSITIVE, rho=RHO)
class SafeKLDRO(SafeDualRisk):
    r"""Robust risk with the safe Kullback-Leibler divergence, a mean over examples at a learned dual variable.

    .. math:: a + \frac{\mathrm{lam}}{\rho} \mathrm{mean} \ln(1 + \rho e^{(\ell - a) / \mathrm{lam}}) - \mathrm{lam}

    where l are the losses of the batch and a is the dual variable. Minimized over a, it is ``lam F(loss / lam)`` with the
    safe LogSumExp F under the mean over examples, see :func:`safe_logsumexp`. It is close to :class:`KLDRO` of all examples
    for a small rho, and to :class:`CVaR` of level rho for a small lam. The weights of examples in its gradient,
    ``sigma((loss - a) / lam + ln rho) / rho``, are less than 1 / rho, and nothing overflows.

    Args:
        lam: cost per unit of divergence, > 0, in units of the loss. Large values give the mean, small ones the largest
            losses.
        rho: inverse of the largest weight of an example, in [1e-30, 1).
        link: ``"softplus"``, or ``"capped_exp"``: e^s in place of ``ln(1 + rho e^s) / rho``, linear for ``s > -ln rho``.
            The latter is closer to KLDRO at the same bound on weights, but has only one derivative.
        options: options of :class:`DualRisk`, ``dual_lr`` and ``initial_dual``.

    Raises:
        ConfigurationError: for an argument outside its range. With rho = 1 the optimal a would be -inf.

    Source: Gladin, Kroshnin, Zhu & Dvurechensky (2025), Improved Stochastic Optimization of LogSumExp, arXiv:2509.24894,
    equation 19. The capped exponential is from Levy et al. (2020), arXiv:2010.05893.

    Example:
        >>> import torch
        >>> risk = SafeKLDRO(1.0, 0.01)
        >>> losses = torch.tensor([0.0, 1.0, 5.0], requires_grad=True)
        >>> risk(losses).backward()
        >>> bool((losses.grad.sum() - 1).abs() < 1e-5)
        True
    """

    def __init__(self, lam: float, rho: float, link: Literal["softplus", "capped_exp"] = "softplus", **options: Any) -> None:
        super().__init__(rho, **options)
        self.lam, self.link = lam, link

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: one for each link, and one with an initial dual variable."""
        return [cls(1.0, 0.1), cls(0.5, 1e-3, "capped_exp"), cls(2.0, 0.5, initial_dual=-1.0, dual_lr=0.1)]

    @property
    def temperature(self) -> float:
        """Number by which losses are divided in the exponent, lam."""
        return self.lam

    @override
    def objective(self, losses: Tensor, dual: Tensor, weights: Tensor | None = None) -> Tensor:
        return super().objective(losses, dual, weights) - self.lam


def _measure(scores: Tensor, rho: float, weights: Tensor | None) -> Tensor:
    """Return the mass of each score; a total of at most rho up to rounding, without a minimizing a, is scaled to 1."""
    measure = (torch.ones_like(scores) if weights is None else weights.to(scores.dtype)) / scores.shape[0]
    mass = measure.sum()
    return torch.where(mass > rho * (1 + mass_tolerance(scores.dtype)), measure, measure / mass)


def _capped_threshold(scores: Tensor, rho: float, weights: Tensor | None) -> Tensor:
    """Return a with ``mean min(e^(score - a), 1 / rho) = 1``: the first j of the ranked scores are at the bound.

    At the a where score j reaches the bound, the mean is ``(before_j + sum_(i >= j) m_i e^(score_i - score_j)) / rho`` for
    masses m. It grows with j, and the first j where it is at least one is sought.
    """
    scores = scores.double()
    ranked, order = scores.sort(descending=True)
    measure = _measure(scores, rho, weights)[order]
    until = measure.cumsum(0)
    before = until - measure
    logs = torch.where(measure > 0, ranked + torch.where(measure > 0, measure, 1.0).log(), -torch.inf)
    rest = logs.flip(0).logcumsumexp(0).flip(0)  # of the scores from j on
    reached = torch.maximum(until, before + (rest - ranked).exp()) >= rho * (1 - 1e-12)
    j = reached.int().argmax()
    return rest[j] - (1 - before[j] / rho).log()


def _look_again(risk: DualRisk, keys: Any) -> None:
    """After loading a state, check again whether a is initialized."""
    risk._known = False


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
        rho: inverse of the largest weight of an example, in [1e-30, 1).
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

    @property
    def temperature(self) -> float:
        """Number by which losses are divided in the exponent, kappa beta."""
        return self.transport_cost * self.beta

    @classmethod
    def examples(cls) -> list[Self]:
        """Return an instance for the shared tests, with the paper's settings."""
        return [cls(1.0, 1.0)]

    @override
    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        found = mean_of((losses / self.temperature).exp(), weights)
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
