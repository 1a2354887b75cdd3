"""Properties of sq-pnorm-max: a scalar root instead of an iteration, and the Jacobian of Proposition 1."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import SqPNormMax
from lit_sparse.mappings import functional as F
from tests.mappings.second_opinions import bisected, central_difference, dense_jacobian, random_rows

POWERS = [1.01, 1.05, 1.2, 1.5, 1.8, 1.99, 2.0]


def by_bisection(x: np.ndarray, p: float, gamma: float) -> np.ndarray:
    """``gamma ||y||_p^(2 - p) y_i^(p - 1) = x_i - tau`` on the support, with the tau at which y sums to one.

    With m = (x - tau)_+ and ``u = (m / max m)^(1 / (p - 1))``, y = u / sum u, this is one equation in tau, read at the maximum.
    """

    def point(depth: float) -> np.ndarray:
        u = np.maximum(1 + (x - x.max()) / depth, 0) ** (1 / (p - 1))
        return u / u.sum()

    def excess(depth: float) -> float:
        y = point(depth)
        return gamma * (y**p).sum() ** ((2 - p) / p) * y.max() ** (p - 1) - depth

    return point(bisected(excess, gamma * 1e-12, 2 * gamma))


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("gamma", [0.2, 1.0, 7.0])
def test_equals_bisection(p: float, gamma: float) -> None:
    for d in (1, 2, 5, 40):
        for x in random_rows(12, d, seed=d):
            got = F.sq_pnorm_max(x, p, gamma=gamma).numpy()
            np.testing.assert_allclose(got, by_bisection(x.numpy(), p, gamma), atol=1e-10)


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("scale", [1e-4, 0.01, 1.0])
def test_equals_bisection_on_long_rows(p: float, scale: float) -> None:
    for x in random_rows(2, 3001, seed=0, scale=scale):
        expected = by_bisection(x.numpy(), p, 1.0)
        np.testing.assert_allclose(F.sq_pnorm_max(x, p).numpy(), expected, atol=1e-10)
        rounded = by_bisection(x.float().double().numpy(), p, 1.0)
        np.testing.assert_allclose(F.sq_pnorm_max(x.float(), p).numpy(), rounded, atol=1e-5)


@pytest.mark.parametrize("p", POWERS[:-1])
def test_stationary_on_the_support_and_beaten_nowhere(p: float) -> None:
    """``gamma dOmega/dy_i + tau = x_i`` where y > 0, and no score outside is above tau: the optimality conditions."""
    gamma = 0.7
    for x in random_rows(40, 12, seed=3):
        y = F.sq_pnorm_max(x, p, gamma=gamma)
        slope = gamma * y.pow(p).sum() ** ((2 - p) / p) * y.pow(p - 1)
        taus = (x - slope)[y > 1e-200]
        torch.testing.assert_close(taus, taus[:1].expand_as(taus), atol=1e-10, rtol=0)
        underflow = gamma * 5e-324 ** (p - 1)  # the slope where y is the smallest float
        assert bool((x[y == 0] <= taus[0] + underflow + 1e-10).all())


def test_continuous_towards_sparsemax() -> None:
    x = random_rows(30, 9, seed=0)
    y = F.sparsemax(x, gamma=0.5)
    assert torch.equal(F.sq_pnorm_max(x, 2.0, gamma=0.5), y)
    for eps in (1e-2, 1e-4, 1e-6, 1e-9, 1e-12):
        assert float((F.sq_pnorm_max(x, 2 - eps, gamma=0.5) - y).abs().max()) <= 2 * eps + 1e-14


def test_p_close_to_one_goes_to_the_largest_score() -> None:
    """For p = 1 Omega is constant on the simplex, so that the maximum is the plain argmax."""
    x = random_rows(30, 9, seed=0)
    gap = x.topk(2, dim=-1).values
    far = gap[:, 0] - gap[:, 1] > 0.1
    assert int(far.sum()) > 10
    y = F.sq_pnorm_max(x, 1.01, gamma=0.5)
    assert bool((y[far].amax(-1) > 0.999).all())
    torch.testing.assert_close(y.sum(-1), torch.ones(30, dtype=torch.float64))


@pytest.mark.parametrize("p", [1.05, 1.2, 1.5, 1.8, 1.99])
@pytest.mark.parametrize("gamma", [0.5, 1.0, 3.0])
def test_jacobian_is_that_of_proposition_1(p: float, gamma: float) -> None:
    """``(I + A (B - I)) J = A`` on the support, A the Jacobian of the projection, B gamma times the Hessian of Omega."""
    seen = set()
    for x in random_rows(20, 8, seed=1) * torch.linspace(0.2, 3.0, 20).unsqueeze(-1):
        y = F.sq_pnorm_max(x, p, gamma=gamma).numpy()
        support = np.flatnonzero(y > 1e-30)
        part, n = y[support], len(support)
        norm = (part**p).sum() ** (1 / p)
        v = math.sqrt(2 - p) * norm ** (1 - p) * part ** (p - 1)
        hessian = gamma * (np.diag((p - 1) * norm ** (2 - p) * part ** (p - 2)) + np.outer(v, v))
        center = np.eye(n) - 1 / n
        expected = np.zeros((8, 8))
        expected[np.ix_(support, support)] = np.linalg.solve(np.eye(n) + center @ (hessian - np.eye(n)), center)
        got = dense_jacobian(lambda row: F.sq_pnorm_max(row, p, gamma=gamma), x)
        np.testing.assert_allclose(got, expected, atol=1e-8)
        seen.add(n)
    assert len(seen) >= 3


@pytest.mark.parametrize("p", [1.2, 1.5, 1.9])
def test_jacobian_equals_differences(p: float) -> None:
    x, direction = random_rows(40, 10, seed=5), random_rows(40, 10, seed=6)
    leaf = x.clone().requires_grad_()
    y = F.sq_pnorm_max(leaf, p, gamma=0.8)
    (got,) = torch.autograd.grad(y, leaf, direction)
    change = central_difference(lambda x: F.sq_pnorm_max(x, p, gamma=0.8), x, direction)
    torch.testing.assert_close(got, change, atol=1e-6, rtol=0)


def test_value_against_the_formula() -> None:
    x = random_rows(20, 6, seed=0)
    for p in POWERS:
        y = torch.from_numpy(np.stack([by_bisection(row.numpy(), p, 0.7) for row in x]))
        expected = (x * y).sum(-1) - 0.7 / 2 * y.pow(p).sum(-1).pow(2 / p)
        torch.testing.assert_close(SqPNormMax(p, gamma=0.7).value(x), expected)


def test_scaling_scores_and_strength_together_changes_nothing() -> None:
    x = random_rows(20, 6, seed=0)
    for p in (1.01, 1.3, 1.7):
        torch.testing.assert_close(F.sq_pnorm_max(1e5 * x, p, gamma=1e5), F.sq_pnorm_max(x, p), atol=1e-11, rtol=0)


@pytest.mark.parametrize("p", [1.0, 0.5, 2.001, math.inf, math.nan, "2", None, True])
def test_p_out_of_range(p: object) -> None:
    for call in (SqPNormMax, lambda p: F.sq_pnorm_max(torch.zeros(3), p)):
        with pytest.raises(ConfigurationError, match="`p` to be a number"):
            call(p)  # type: ignore[operator]
