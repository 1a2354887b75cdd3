"""The risks against formulas written another way, and how single examples make an estimate of all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize_scalar
from torch import Tensor

from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.risks import (
    KLDRO,
    ChiSquareDRO,
    CVaR,
    ExponentialOTDRO,
    Mean,
    Risk,
    SafeKLDRO,
    UnbalancedOTDRO,
    safe_logsumexp,
)

LOSSES = st.lists(st.floats(-20, 20), min_size=1, max_size=9)


def tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(LOSSES, st.floats(0.01, 1.0))
@settings(max_examples=100)
def test_cvar_is_a_linear_program(losses: list[float], level: float) -> None:
    """The largest mean under weights of at most 1 / (level n), and its gradient such weights."""
    n = len(losses)
    best = linprog([-loss for loss in losses], A_eq=[[1.0] * n], b_eq=[1.0], bounds=[(0, 1 / (level * n))] * n)
    leaf = tensor(losses).requires_grad_()
    value = CVaR(level)(leaf)
    assert float(value.detach()) == pytest.approx(-best.fun, abs=1e-7)
    (q,) = torch.autograd.grad(value, leaf)
    assert float(q.sum()) == pytest.approx(1, abs=1e-12)
    assert float(q.min()) >= 0 and float(q.max()) <= 1 / (level * n) + 1e-12
    assert float(q @ leaf.detach()) == pytest.approx(-best.fun, abs=1e-7)


@given(LOSSES, st.floats(0.01, 100), st.data())
@settings(max_examples=100)
def test_kl_dro_is_log_mean_exp(losses: list[float], lam: float, data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.floats(0.1, 3), min_size=len(losses), max_size=len(losses)))
    scores = np.array(losses) / lam
    expected = lam * (scores.max() + math.log(np.mean(weights * np.exp(scores - scores.max()))))
    assert float(KLDRO(lam)(tensor(losses), tensor(weights))) == pytest.approx(expected, abs=1e-9, rel=1e-9)
    leaf = tensor(losses).requires_grad_()
    KLDRO(lam)(leaf).backward()
    torch.testing.assert_close(leaf.grad, (leaf.detach() / lam).softmax(0), atol=1e-12, rtol=1e-8)


def test_kl_dro_keeps_its_digits_for_a_large_lam() -> None:
    losses = torch.rand(1000)
    assert float(KLDRO(1e6)(losses)) == pytest.approx(float(losses.mean()), rel=1e-5)


def value_at(link: str, s: float, rho: float) -> float:
    if link == "softplus":
        return math.log1p(rho * math.exp(s)) / rho if s < 300 else (s + math.log(rho)) / rho
    return math.exp(s) if s <= -math.log(rho) else (1 + s + math.log(rho)) / rho


@given(LOSSES, st.floats(0.2, 5), st.floats(-3, -0.05), st.sampled_from(["softplus", "capped_exp"]))
@settings(max_examples=150)
def test_the_dual_variable_is_solved_exactly(losses: list[float], lam: float, power: float, link: str) -> None:
    """Against a scalar minimizer of the formula, and against the safe LogSumExp under the mean."""
    rho = 10.0**power

    def formula(a: float) -> float:
        return a + lam * float(np.mean([value_at(link, (loss - a) / lam, rho) for loss in losses])) - lam

    risk = SafeKLDRO(lam, rho, link).double()  # type: ignore[arg-type]
    found = float(risk(tensor(losses)).detach())
    assert found == pytest.approx(formula(float(risk.dual.detach())), abs=1e-6 * (1 + lam))
    best = minimize_scalar(formula, bounds=(min(losses) - 20 * lam / (1 - rho), max(losses) + lam), method="bounded")
    assert found <= best.fun + 1e-6 * (1 + lam + abs(found))
    if link == "softplus":
        shares = torch.full((len(losses),), 1 / len(losses), dtype=torch.float64)
        expected = lam * safe_logsumexp(tensor(losses) / lam, rho, weights=shares)
        assert found == pytest.approx(float(expected), abs=1e-6 * (1 + lam))


@given(
    seed=st.integers(0, 10**6),
    size=st.integers(2, 40),
    whole=st.booleans(),
    ties=st.booleans(),
    scale=st.integers(-60, 60),
    ratio=st.integers(-20, 20),
    mean=st.sampled_from([None, 0.3, 0.8, 1.0, 3.0, 0.01]),
    link=st.sampled_from(["softplus", "capped_exp"]),
)
@settings(max_examples=300)
def test_the_dual_variable_is_a_minimizer_at_every_scale(
    seed: int, size: int, whole: bool, ties: bool, scale: int, ratio: int, mean: float | None, link: str
) -> None:
    generator = torch.Generator().manual_seed(seed)
    losses = 3 * torch.randn(size, generator=generator, dtype=torch.float64)
    losses = (losses.round() if ties else losses) * 2.0**scale
    rho = int(torch.randint(1, size, (), generator=generator)) / size if whole else 0.05
    weights = None if mean is None else torch.rand(size, generator=generator, dtype=torch.float64)
    if weights is not None and mean is not None:
        weights = weights / weights.mean() * mean
    risk = SafeKLDRO(2.0 ** (scale + ratio), rho, link).double()  # type: ignore[arg-type]
    found = risk.solve(losses, weights)
    if mean is not None and mean <= rho:
        assert weights is not None
        weights = weights / weights.mean()
    value = risk.objective(losses, found, weights)
    spread = float(losses.max() - losses.min()) + risk.lam
    steps = spread * torch.tensor([10.0**-power for power in range(10)], dtype=torch.float64)
    for moved in (*(found + steps), *(found - steps)):
        assert value <= risk.objective(losses, moved, weights) + 1e-12 * (spread + float(losses.abs().max())) / rho


@pytest.mark.parametrize("link", ["softplus", "capped_exp"])
def test_weights_whose_mean_is_rho_up_to_rounding_are_scaled(link: Literal["softplus", "capped_exp"]) -> None:
    risk = SafeKLDRO(1.0, 0.8, link).double()
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        losses, weights = torch.rand(2, 7, generator=generator, dtype=torch.float64)
        at_rho, at_one = weights / weights.mean() * 0.8, weights / weights.mean()
        torch.testing.assert_close(risk.solve(losses, at_rho), risk.solve(losses, at_one))


@given(
    seed=st.integers(0, 10**6),
    size=st.integers(2, 40),
    ties=st.booleans(),
    scale=st.integers(-60, 60),
    mean=st.sampled_from([None, 0.01, 0.8, 1.0, 3.0]),
)
@settings(max_examples=100)
def test_powers_of_two_scale_every_risk_exactly(seed: int, size: int, ties: bool, scale: int, mean: float | None) -> None:
    """Losses, and parameters in their unit, times a power of two: the value is multiplied, the gradient is the same."""
    generator, unit = torch.Generator().manual_seed(seed), 2.0**scale
    losses = 3 * torch.randn(size, generator=generator, dtype=torch.float64)
    losses = losses.round() if ties else losses
    weights = None if mean is None else torch.rand(size, generator=generator, dtype=torch.float64) + 0.01
    if weights is not None and mean is not None:
        weights = weights / weights.mean() * mean
    for name, make in IN_UNITS.items():
        found = []
        for factor in (1.0, unit):
            leaf = (factor * losses).requires_grad_()
            value = make(factor).double()(leaf, weights)
            (slope,) = torch.autograd.grad(value, leaf)
            found.append((value.detach() / factor, slope))
        (value, slope), (scaled, other) = found
        assert float(value) == float(scaled), name
        assert torch.equal(slope, other), name


#: Risks as functions of the unit of the losses.
IN_UNITS: dict[str, Callable[[float], Risk]] = {
    "mean": lambda unit: Mean(),
    "CVaR": lambda unit: CVaR(0.3),
    "KL": lambda unit: KLDRO(0.7 * unit),
    "ball": lambda unit: ChiSquareDRO(0.4),
    "penalty": lambda unit: ChiSquareDRO(lam=0.7 * unit),
    "softplus": lambda unit: SafeKLDRO(0.7 * unit, 0.05),
    "capped": lambda unit: SafeKLDRO(0.7 * unit, 0.05, "capped_exp"),
    "transport": lambda unit: UnbalancedOTDRO(0.7 * unit, 2.0, 0.1),
}


def test_links_are_ordered() -> None:
    """The capped exponential is nearer to KL-DRO, and both are below."""
    losses = 3 * torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kl = float(KLDRO(1.0)(losses))
    for rho in (1e-3, 0.01, 0.1):
        soft, capped = (float(SafeKLDRO(1.0, rho, link).double()(losses).detach()) for link in ("softplus", "capped_exp"))
        assert soft < capped <= kl + 1e-9


def test_weights_never_exceed_their_bound() -> None:
    losses = (1e4 * torch.randn(100, generator=torch.Generator().manual_seed(1))).requires_grad_()
    for link in ("softplus", "capped_exp"):
        risk = SafeKLDRO(1.0, 0.05, link, initial_dual=0.0)
        (slope,) = torch.autograd.grad(risk(losses), losses)
        assert float(slope.max()) * len(losses) <= 1 / 0.05 + 1e-4
        assert bool(slope.isfinite().all())


def test_single_examples_are_unbiased_and_batch_log_mean_exp_is_not() -> None:
    """Over many draws, within four standard errors of the full gradient; the baseline far outside."""
    generator = torch.Generator().manual_seed(5)
    x, theta = torch.randn(400, 3, generator=generator, dtype=torch.float64), tensor([0.5, -1.0, 2.0]).requires_grad_()
    y = x @ tensor([1.0, 0.0, 1.0]) + 2 * torch.randn(400, generator=generator, dtype=torch.float64) ** 2

    def losses() -> Tensor:
        return 0.05 * (y - x @ theta) ** 2

    safe = SafeKLDRO(1.0, 0.01).double()
    safe(losses())  # finds a
    kl = KLDRO(1.0)
    draws = torch.randint(400, (20_000,), generator=generator)
    each = losses()
    jacobian = torch.stack([torch.autograd.grad(each[i], theta, retain_graph=True)[0] for i in range(400)])

    def estimates(risk: torch.nn.Module) -> tuple[Tensor, Tensor]:
        leaf = losses().detach().requires_grad_()
        slopes = torch.cat([torch.autograd.grad(risk(leaf[i : i + 1]), leaf)[0][i : i + 1] for i in range(400)])
        found = (slopes.unsqueeze(1) * jacobian)[draws]
        return found.mean(0), found.std(0) / math.sqrt(len(draws))

    for risk, unbiased in ((safe, True), (kl, False)):
        mean, error = estimates(risk)
        (whole,) = torch.autograd.grad(risk(losses()), theta)
        far = float(((mean - whole) / error).abs().max())
        assert far < 4 if unbiased else far > 20, f"{risk} is {far} standard errors away"


def test_unbalanced_transport_is_its_formula() -> None:
    losses = torch.randn(50, dtype=torch.float64)
    kappa, beta, rho, a = 0.5, 3.0, 0.2, 0.7
    risk = UnbalancedOTDRO(kappa, beta, rho, initial_dual=a).double()
    t = kappa * beta
    expected = a + t / rho * torch.log1p(rho * ((losses - a) / t).exp()).mean()
    torch.testing.assert_close(risk(losses).detach(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ExponentialOTDRO(kappa, beta)(losses), (losses / t).exp().mean())


def test_the_adversary_finds_the_best_input() -> None:
    """For the linear loss g x minus kappa |u - x|^2 it is x + g / (2 kappa)."""
    x, g = torch.randn(4, 3, dtype=torch.float64), tensor([1.0, -2.0, 0.5])
    risk = UnbalancedOTDRO(2.0, 1.0, 0.1, inner_steps=200)
    moved, cost = risk.perturb(lambda u: u @ g, x)
    torch.testing.assert_close(moved, (x + g / 4).expand(4, 3))
    torch.testing.assert_close(cost, 2 * (g / 4).square().sum().expand(4))
    with torch.no_grad():  # where gradients are off, too
        again, _ = risk.perturb(lambda u: u @ g, x)
    torch.testing.assert_close(again, moved)
    image = torch.rand(2, 1, 4, 4)
    moved, cost = risk.perturb(lambda u: u.flatten(1).sum(1), image)
    assert moved.shape == image.shape and cost.shape == (2,)
    with pytest.raises(ConfigurationError, match="one loss per input"):
        risk.perturb(lambda u: u.sum(), x)
    with pytest.raises(ConfigurationError, match="floating"):
        risk.perturb(lambda u: u.sum(1), torch.zeros(2, 3, dtype=torch.int64))


def test_overflows_are_counted_and_told() -> None:
    risk = ExponentialOTDRO(1.0, 1.0)
    assert math.isinf(float(risk(torch.tensor([100.0, 1.0]))))
    risk(torch.tensor([1.0]))
    assert risk.measurements() == {"overflows": 1.0}
    with pytest.raises(DataError, match="overflowed 1 times"):
        risk(torch.tensor([math.nan]))
    restored = ExponentialOTDRO(1.0, 1.0)
    restored.load_state_dict(risk.state_dict())
    assert restored.measurements() == {"overflows": 1.0}
    assert float(UnbalancedOTDRO(1.0, 1.0, 0.1)(torch.tensor([100.0, 1.0])).detach()) < 110


def test_a_dual_variable_that_is_not_known_stays_so_in_evaluation() -> None:
    risk = SafeKLDRO(1.0, 0.1).eval()
    first = float(risk(torch.tensor([1.0, 2.0])).detach())
    assert bool(risk.dual.isnan()) and math.isfinite(first)
    risk.train()(torch.tensor([1.0, 2.0]))
    known = float(risk.dual.detach())
    risk(torch.tensor([50.0, 2.0]))
    assert float(risk.dual.detach()) == known
    other = SafeKLDRO(1.0, 0.1)
    with torch.no_grad():
        other.dual.fill_(3.0)  # by hand
    other(torch.tensor([1.0, 2.0]))
    assert float(other.dual.detach()) == 3.0
    assert risk.half().dual.dtype == torch.float32  # its digits are kept
    assert risk.measurements() == {"dual": pytest.approx(known)}


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: SafeKLDRO(1.0, 0.0), "rho"),
        (lambda: SafeKLDRO(1.0, 1.0), "rho < 1"),
        (lambda: SafeKLDRO(0.0, 0.5), "lam"),
        (lambda: SafeKLDRO(-1.0, 0.5), "lam"),
        (lambda: SafeKLDRO(1.0, 0.5, "exp"), "softplus"),  # type: ignore[arg-type]
        (lambda: SafeKLDRO(1.0, 0.5, dual_lr=-1.0), "dual_lr"),
        (lambda: SafeKLDRO(1.0, 0.5, initial_dual=math.nan), "initial_dual"),
        (lambda: KLDRO(0.0), "lam"),
        (lambda: CVaR(0.0), "level"),
        (lambda: CVaR(1.1), "level"),
        (lambda: UnbalancedOTDRO(1.0, 0.0, 0.1), "beta"),
        (lambda: UnbalancedOTDRO(1.0, 1.0, 0.1, inner_steps=-1), "inner_steps"),
        (lambda: UnbalancedOTDRO(1.0, 1.0, 0.1, inner_momentum=1.0), "inner_momentum"),
    ],
    ids=range(13),
)
def test_arguments_are_checked(build: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        build()  # type: ignore[operator]


@pytest.mark.parametrize("link", ["softplus", "capped_exp"])
@pytest.mark.parametrize(
    ("losses", "weights", "words"),
    [
        (torch.zeros(2, 3), None, "one floating loss per example"),
        (torch.arange(3), None, "one floating loss per example"),
        (torch.empty(0), None, "at least one example"),
        (torch.tensor([1.0, math.nan]), None, "example 1 of the batch is nan"),
        (torch.ones(3), torch.ones(2), "one weight per"),
        (torch.ones(3), -torch.ones(3), "nonnegative weights"),
        (torch.ones(3), torch.zeros(3), "at least one weight above 0"),
    ],
)
def test_a_dual_variable_is_solved_for_from_losses_alone(
    losses: Tensor, weights: Tensor | None, words: str, link: Literal["softplus", "capped_exp"]
) -> None:
    risk = SafeKLDRO(1.0, 0.1, link)
    with pytest.raises((ConfigurationError, DataError), match=words):
        risk.solve(losses, weights)
    if weights is None and not losses.isnan().any():
        with pytest.raises(ConfigurationError, match=words):
            risk.objective(losses, torch.tensor(0.0))


def test_an_infinite_loss() -> None:
    losses = torch.tensor([1.0, math.inf, 2.0])
    for risk in (CVaR(0.5), KLDRO(1.0), SafeKLDRO(1.0, 0.1)):
        with pytest.raises(DataError, match="example 1 of the batch is inf"):
            risk(losses)
    assert math.isinf(float(Mean()(losses)))
