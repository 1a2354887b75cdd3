"""Likelihoods against arithmetic of 60 digits, automatic derivatives, and targets that they have no density for."""

from __future__ import annotations

import math

import mpmath  # comes with torch
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lit_sparse.coresets import Likelihood, LogisticLikelihood, NormalLikelihood, PoissonLikelihood
from lit_sparse.errors import ConfigurationError, DataError
from tests.coresets import problems

LIKELIHOODS = [NormalLikelihood(), NormalLikelihood(0.04), LogisticLikelihood(), PoissonLikelihood()]
TARGETS: dict[type, list[float]] = {
    NormalLikelihood: [-3.5, 0.0, 700.0],
    LogisticLikelihood: [0.0, 1.0],
    PoissonLikelihood: [0.0, 1.0, 7.0, 1e6],
}
ETAS = [
    -800.0,
    -745.0,
    -100.0,
    -40.0,
    -36.1,
    -35.9,
    -34.0,
    -20.0,
    -16.1,
    -15.9,
    -9.0,
    -1.0,
    0.0,
    0.3,
    2.0,
    19.9,
    20.1,
    88.0,
    800.0,
]


def exact(likelihood: Likelihood, eta: mpmath.mpf, target: float) -> mpmath.mpf:
    y = mpmath.mpf(target)
    if isinstance(likelihood, NormalLikelihood):
        v = mpmath.mpf(likelihood.variance)
        return -((y - eta) ** 2) / (2 * v) - mpmath.log(2 * mpmath.pi * v) / 2
    rate = mpmath.log1p(mpmath.exp(eta))
    if isinstance(likelihood, LogisticLikelihood):
        return eta - rate if target > 0 else -rate
    return y * mpmath.log(rate) - rate - mpmath.loggamma(y + 1)


def grid(likelihood: Likelihood, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    targets = TARGETS[type(likelihood)]
    eta = torch.tensor(ETAS, dtype=dtype).repeat(len(targets))
    return eta, torch.tensor(targets, dtype=dtype).repeat_interleave(len(ETAS))


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
def test_values_and_derivatives_to_the_last_digits(likelihood: Likelihood) -> None:
    eta, target = grid(likelihood)
    found = (likelihood.log_prob(eta, target), *likelihood.derivatives(eta, target))
    with mpmath.workdps(60):
        for order, values in enumerate(found):
            for e, y, value in zip(eta.tolist(), target.tolist(), values.tolist(), strict=True):
                true = mpmath.diff(lambda t, y=y: exact(likelihood, t, y), mpmath.mpf(e), order)
                size = abs(true) if order == 0 else abs(true) + y * 1e-3  # terms of y and of 1 cancel in sums
                if isinstance(likelihood, PoissonLikelihood) and order == 0:
                    size = max(size, abs(mpmath.loggamma(mpmath.mpf(y) + 1)))
                assert abs(value - true) <= 1e-12 * size + 1e-300, (order, e, y, value, float(true))


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
@given(data=st.data())
@settings(max_examples=40)
def test_derivatives_are_those_of_the_log_likelihood(likelihood: Likelihood, data: st.DataObject) -> None:
    eta = torch.tensor(data.draw(st.lists(st.floats(-30, 30), min_size=1, max_size=8)), dtype=torch.float64, requires_grad=True)
    if isinstance(likelihood, NormalLikelihood):
        values = st.floats(-50, 50)
    else:
        values = st.integers(0, 1 if isinstance(likelihood, LogisticLikelihood) else 300).map(float)
    target = torch.tensor(data.draw(st.lists(values, min_size=len(eta), max_size=len(eta))), dtype=torch.float64)
    (first,) = torch.autograd.grad(likelihood.log_prob(eta, target).sum(), eta, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), eta)
    found = likelihood.derivatives(eta.detach(), target)
    torch.testing.assert_close(found[0], first.detach(), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(found[1], second, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
def test_extreme_predictors_are_finite_and_the_curve_is_concave(likelihood: Likelihood, dtype: torch.dtype) -> None:
    targets = TARGETS[type(likelihood)]
    eta = torch.linspace(-800, 800, 6401, dtype=dtype)
    for target in torch.tensor(targets, dtype=dtype):
        values = (likelihood.log_prob(eta, target), *likelihood.derivatives(eta, target.expand_as(eta)))
        for value in (*values, likelihood.mean(eta)):
            assert value.dtype == dtype
            assert value.shape == eta.shape
            assert bool(value.isfinite().all())
        assert bool((values[2] <= 0).all()), "rounding must not bend it upwards"
    asked = eta.clone().requires_grad_()
    likelihood.log_prob(asked, torch.tensor(targets[-1], dtype=dtype)).sum().backward()
    assert bool(asked.grad.isfinite().all())


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
def test_single_precision_is_double_precision_rounded(likelihood: Likelihood) -> None:
    eta, target = grid(likelihood)
    near = target.abs() < 1e3
    eta, target = eta[near], target[near]
    double = (likelihood.log_prob(eta, target), *likelihood.derivatives(eta, target), likelihood.mean(eta))
    single = (
        likelihood.log_prob(eta.float(), target.float()),
        *likelihood.derivatives(eta.float(), target.float()),
        likelihood.mean(eta.float()),
    )
    for one, other in zip(single, double, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=3e-6, atol=3e-6)


def test_distributions_of_torch_agree() -> None:
    eta = torch.linspace(-9, 9, 41, dtype=torch.float64).unsqueeze(1)
    target = torch.tensor([0.0, 1.0], dtype=torch.float64)
    expected = torch.distributions.Bernoulli(logits=eta).log_prob(target)
    torch.testing.assert_close(LogisticLikelihood().log_prob(eta, target), expected)
    signed = 2 * target - 1
    torch.testing.assert_close(LogisticLikelihood().log_prob(eta, signed), expected)
    of_signed, of_target = (LogisticLikelihood().derivatives(*torch.broadcast_tensors(eta, form)) for form in (signed, target))
    torch.testing.assert_close(of_signed, of_target)
    counts = torch.arange(12, dtype=torch.float64)
    rate = torch.nn.functional.softplus(eta, threshold=1e9)
    torch.testing.assert_close(PoissonLikelihood().log_prob(eta, counts), torch.distributions.Poisson(rate).log_prob(counts))
    normal = torch.distributions.Normal(eta, 3.0)
    torch.testing.assert_close(NormalLikelihood(9.0).log_prob(eta, counts), normal.log_prob(counts))


@pytest.mark.parametrize("kind", ["logistic", "poisson"])
def test_the_second_opinion_agrees(kind: problems.Kind) -> None:
    rng = np.random.default_rng(0)
    X, thetas = rng.standard_normal((30, 4)), 8 * rng.standard_normal((5, 4))
    y = np.where(rng.random(30) < 0.5, 1.0, -1.0) if kind == "logistic" else rng.poisson(3.0, 30).astype(float)
    likelihood = LogisticLikelihood() if kind == "logistic" else PoissonLikelihood()
    eta, target = torch.from_numpy(X @ thetas.T), torch.from_numpy(y)[:, None]
    found = likelihood.log_prob(eta, target) + (0 if kind == "logistic" else torch.lgamma(target + 1))
    np.testing.assert_allclose(found.numpy(), problems.log_likelihoods(kind, X, y, thetas), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
def test_probabilities_add_up_and_the_mean_is_their_mean(likelihood: Likelihood) -> None:
    for e in (-3.0, 0.0, 2.5):
        eta = torch.tensor(e, dtype=torch.float64)
        if isinstance(likelihood, NormalLikelihood):
            target = torch.linspace(e - 9, e + 9, 100001, dtype=torch.float64) * math.sqrt(likelihood.variance) + 0.0
            target = e + (target - target.mean())
            step = float(target[1] - target[0])
        else:
            target, step = torch.arange(2 if isinstance(likelihood, LogisticLikelihood) else 80, dtype=torch.float64), 1.0
        density = likelihood.log_prob(eta, target).exp() * step
        assert float(density.sum()) == pytest.approx(1.0, abs=1e-9)
        assert float((density * target).sum()) == pytest.approx(float(likelihood.mean(eta)), abs=1e-8)


@pytest.mark.parametrize(
    ("likelihood", "target", "words"),
    [
        (LogisticLikelihood(), [0.0, 1.0, 2.0], r"two classes, 0 and 1 or -1 and 1, but got 2\."),
        (LogisticLikelihood(), [0.5], r"got 0\.5"),
        (LogisticLikelihood(), [-1.0, 0.0, 1.0], "got 0 and -1"),
        (LogisticLikelihood(), [1.0, math.nan], "got nan"),
        (PoissonLikelihood(), [3.0, -1.0], r"counts >= 0 but got -1\."),
        (PoissonLikelihood(), [3.0, 1.5], r"got 1\.5"),
        (PoissonLikelihood(), [math.nan], "got nan"),
        (PoissonLikelihood(), [1.0, math.inf], "got inf"),
    ],
)
def test_targets_that_it_has_not(likelihood: Likelihood, target: list[float], words: str) -> None:
    with pytest.raises(DataError, match=words):
        likelihood.check(torch.tensor(target))


def test_targets_in_their_usual_forms() -> None:
    classes = LogisticLikelihood()
    for form in ([-1.0, 1.0, 1.0], [0.0, 1.0, 1.0]):
        assert classes.check(torch.tensor(form)).tolist() == [0.0, 1.0, 1.0]
    assert classes.check(torch.tensor([-1, 1])).tolist() == [0, 1]
    assert classes.check(torch.tensor([-1.0, -1.0])).tolist() == [0.0, 0.0], "one class alone"
    assert classes.check(torch.zeros(0)).shape == (0,)
    assert PoissonLikelihood().check(torch.tensor([0.0, 5.0, 1e9])).tolist() == [0.0, 5.0, 1e9]
    assert NormalLikelihood().check(torch.tensor([-2.5])).tolist() == [-2.5]


@pytest.mark.parametrize("variance", [0.0, -1.0, math.nan, math.inf, "1", True])
def test_variances_that_are_none(variance: float) -> None:
    with pytest.raises(ConfigurationError, match="`variance`"):
        NormalLikelihood(variance)
