"""Properties of norm-max: a scalar root, supports and small weights to all digits, and derivatives in scores and alpha."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import NormMax
from lit_sparse.mappings import functional as F
from tests.mappings.second_opinions import bisected, random_rows

ALPHAS = [1.05, 1.2, 1.5, 2.0, 3.0, 10.0, 100.0]


def by_bisection(x: np.ndarray, alpha: float, gamma: float) -> np.ndarray:
    """``gamma (y_i / ||y||)^(alpha - 1) = x_i - tau`` on the support, with the tau at which y / ||y|| has norm one."""
    z = x / gamma

    def excess(tau: float) -> float:
        return (np.maximum(z - tau, 0) ** (alpha / (alpha - 1))).sum() - 1

    y = np.maximum(z - bisected(excess, z.max() - 1, z.max()), 0) ** (1 / (alpha - 1))
    return y / y.sum()


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("gamma", [0.2, 1.0, 7.0])
def test_equals_bisection(alpha: float, gamma: float) -> None:
    for d in (1, 2, 5, 40, 700):
        for x in random_rows(6, d, seed=d):
            expected = by_bisection(x.numpy(), alpha, gamma)
            np.testing.assert_allclose(F.norm_max(x, alpha, gamma=gamma).numpy(), expected, atol=1e-10)
            rounded = by_bisection(x.float().double().numpy(), alpha, gamma)
            np.testing.assert_allclose(F.norm_max(x.float(), alpha, gamma=gamma).numpy(), rounded, atol=1e-7)


@pytest.mark.parametrize("alpha", [2.0, 3.0, 10.0, 1000.0])
def test_a_score_at_the_threshold_has_no_weight(alpha: float) -> None:
    """The largest score alone has norm one where the next is gamma below it; one rounding closer, a weight is to be seen."""
    x = torch.tensor([1.0, 0.0, 0.0, -3.0], dtype=torch.float64)
    assert F.norm_max(x, alpha).tolist() == [1.0, 0.0, 0.0, 0.0]
    near = torch.tensor([1.0, 1e-12, -3.0], dtype=torch.float64)
    m = bisected(lambda m: 1 - (m ** (alpha / (alpha - 1)) + (m + 1 - 1e-12) ** (alpha / (alpha - 1))), 0.0, 1.0)
    weights = np.array([m + 1 - 1e-12, m]) ** (1 / (alpha - 1))
    np.testing.assert_allclose(F.norm_max(near, alpha)[:2].numpy(), weights / weights.sum(), rtol=1e-3)


def test_alpha_towards_infinity_is_uniform_on_a_support() -> None:
    y = F.norm_max(torch.tensor([1.0, 0.75, 0.5, 0.25, 0.0]), 1000.0)
    torch.testing.assert_close(y, torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0]) / 3, atol=1e-3, rtol=0)


@pytest.mark.parametrize("alpha", ALPHAS[1:-1])
def test_derivatives_in_scores_and_alpha(alpha: float) -> None:
    """First and second, mixed ones included, of the mapping and of its value; an alpha for each row."""
    x = random_rows(3, 5, seed=0).requires_grad_()
    strength = torch.full((3, 1), alpha, dtype=torch.float64, requires_grad=True)

    def value(x: Tensor, alpha: Tensor) -> Tensor:
        return NormMax(alpha, gamma=0.7).value(x)

    for function in (F.norm_max, value):
        torch.autograd.gradcheck(function, (x, strength), check_forward_ad=True)
        torch.autograd.gradgradcheck(function, (x, strength), atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_stay_finite_where_a_power_of_a_small_weight_does_not(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -1 + 1e-6, -0.5, -1.0], dtype=dtype, requires_grad=True)
    for alpha in (20.0, 90.0):
        y = F.norm_max(x, torch.tensor([alpha], dtype=dtype))
        for graph in (True, False):
            (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=graph, retain_graph=True)
            assert bool(grad.isfinite().all())


def test_rows_without_a_valid_alpha_are_nan_and_alone() -> None:
    x = random_rows(5, 4, seed=0)
    alpha = torch.tensor([1.5, 1.0, torch.nan, torch.inf, 3.0], dtype=torch.float64).unsqueeze(-1)
    y, pull = torch.func.vjp(F.norm_max, x, alpha)  # nothing can be read here, so that nothing is refused
    assert y.isnan().any(-1).tolist() == [False, True, True, True, False]
    torch.testing.assert_close(y[4], F.norm_max(x[4], 3.0))
    assert bool(pull(x)[0][[0, 4]].isfinite().all())


def test_agrees_with_the_published_package() -> None:
    package = pytest.importorskip("entmax")
    x = random_rows(30, 20, seed=0)
    for alpha in ALPHAS:
        results = []
        for function in (F.norm_max, lambda x, a: package.normmax_bisect(x, a, dim=-1, n_iter=100)):
            leaf = x.clone().requires_grad_()
            y = function(leaf, alpha)
            results.append((y, *torch.autograd.grad(y, leaf, x.flip(0))))
        torch.testing.assert_close(results[0], results[1], atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("alpha", [1.0, 0.5, 1000.1, math.inf, math.nan, "2", None, True])
def test_alpha_out_of_range(alpha: object) -> None:
    for call in (NormMax, lambda a: F.norm_max(torch.zeros(3), a)):
        with pytest.raises(ConfigurationError, match="`alpha` to be a number"):
            call(alpha)  # type: ignore[operator]


@pytest.mark.parametrize("alpha", [[1.5, 1.0], [math.nan], [1001.0]])
def test_a_tensor_alpha_out_of_range(alpha: list[float]) -> None:
    with pytest.raises(ConfigurationError, match=r"Expected every `alpha` (to be above 1|in 1 \.\. 1000)"):
        NormMax(torch.tensor(alpha))
