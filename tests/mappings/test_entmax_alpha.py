"""Invalid, mixed and learnt values of alpha, and agreement with the published package."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import jvp

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import Entmax, LearnableEntmax
from lit_sparse.mappings import functional as F
from lit_sparse.mappings.entmax.layer import _second_remainder
from tests.mappings.second_opinions import dense_jacobian, random_rows


def test_rows_without_a_valid_alpha_are_nan_and_alone() -> None:
    x = random_rows(6, 4, seed=0)
    x[:, 3] = -torch.inf
    alpha = torch.tensor([1.5, 0.0, torch.nan, -torch.inf, torch.inf, 1.0], dtype=torch.float64).unsqueeze(-1)
    y, pull = torch.func.vjp(F.entmax, x, alpha)  # nothing can be read here, so that nothing is refused
    broken = torch.tensor([False, True, True, True, True, False])
    assert bool(y[broken, :3].isnan().all())
    assert bool((y[:, 3] == 0).all())
    torch.testing.assert_close(y[0], F.entmax(x[0], 1.5))
    torch.testing.assert_close(y[5], F.softmax(x[5]))
    in_x, in_alpha = pull(x.clamp_min(-9))
    assert bool(in_x[~broken].isfinite().all())
    assert bool(in_alpha[~broken].isfinite().all())
    alone = x[:1].clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(F.entmax(alone, 1.5), alone, x[:1].clamp_min(-9))[0], in_x[:1])


def test_the_series_near_zero_has_all_digits() -> None:
    u = torch.linspace(-0.2999, 0.2999, 101, dtype=torch.float64, requires_grad=True)
    powers = [[Fraction(-point) ** k for k in range(24)] for point in u.tolist()]
    value = [float(sum(power[k] / math.factorial(k + 2) for k in range(24))) for power in powers]
    slope = [float(-sum(k * power[k - 1] / math.factorial(k + 2) for k in range(1, 24))) for power in powers]
    result = _second_remainder(u)
    torch.testing.assert_close(result, torch.tensor(value, dtype=torch.float64), rtol=1e-15, atol=0.0)
    (gradient,) = torch.autograd.grad(result.sum(), u)
    torch.testing.assert_close(gradient, torch.tensor(slope, dtype=torch.float64), rtol=4e-15, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.2, 1.5, 1.7, 2.0, 3.0])
def test_a_broken_row_has_a_broken_derivative_in_every_mode(alpha: float, dtype: torch.dtype) -> None:
    x = torch.tensor([[1.0, math.nan, 0.5], [1.0, 0.0, 0.5]], dtype=dtype, requires_grad=True)
    weights = torch.tensor([[1.0, 2.0, 3.0]] * 2, dtype=dtype)
    for strength in (alpha, torch.tensor(alpha, dtype=dtype)):
        y = F.entmax(x, strength)
        derivatives = [torch.autograd.grad(y, x, weights, create_graph=graph, retain_graph=True)[0] for graph in (False, True)]
        derivatives.append(jvp(lambda x, a=strength: F.entmax(x, a), (x.detach(),), (weights,))[1])
        for derivative in derivatives:
            assert bool(derivative[0].isnan().all())
            assert bool(derivative[1].isfinite().all())


def test_scores_and_alpha_of_different_types() -> None:
    x = random_rows(4, 6, seed=0)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        for other in (torch.float64, torch.float32, torch.bfloat16):
            leaf = x.to(dtype).requires_grad_()
            alpha = torch.tensor([[1.25], [1.5], [2.0], [2.5]], dtype=other, requires_grad=True)
            y = F.entmax(leaf, alpha)
            assert y.dtype == dtype
            weights = x.flip(0).to(dtype)
            in_x, in_alpha = torch.autograd.grad(y, (leaf, alpha), weights)
            assert (in_x.dtype, in_alpha.dtype) == (dtype, other)
            exact = leaf.detach().double().requires_grad_(), alpha.detach().double().requires_grad_()
            expected = torch.autograd.grad(F.entmax(*exact), exact, weights.double())
            tolerance = 3e-2 if {dtype, other} & {torch.bfloat16, torch.float16} else 1e-5
            torch.testing.assert_close(in_x.double(), expected[0], atol=tolerance, rtol=tolerance)
            torch.testing.assert_close(in_alpha.double(), expected[1], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("alpha", [0.0, -1.0, 1e-20, 100.1, math.inf, math.nan, "1.5", None, True])
def test_alpha_out_of_range(alpha: object) -> None:
    for call in (Entmax, lambda a: F.entmax(torch.zeros(3), a)):
        with pytest.raises(ConfigurationError, match="`alpha` to be a number"):
            call(alpha)  # type: ignore[operator]


@pytest.mark.parametrize("alpha", [[1.5, 0.0], [1e-20], [math.nan], [101.0]])
def test_a_tensor_alpha_out_of_range(alpha: list[float]) -> None:
    with pytest.raises(ConfigurationError, match=r"Expected every `alpha` (to be at least|in) 1e-06"):
        Entmax(torch.tensor(alpha))


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 1), (1, 1, 1), (4, 3, 1)])
def test_an_alpha_that_does_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match="with size 1 along dimension -1"):
        F.entmax(torch.zeros(3, 5), torch.full(shape, 1.5))


def test_an_alpha_on_another_device() -> None:
    with pytest.raises(ConfigurationError, match="parameters on the device cpu"):
        Entmax(torch.full((1,), 1.5, device="meta"))(torch.zeros(3))


def test_an_alpha_of_integers() -> None:
    with pytest.raises(ConfigurationError, match="floating tensor"):
        Entmax(torch.tensor([2]))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"low": 0.0}, "low"),
        ({"low": 1e-20}, "low"),
        ({"shape": 4}, "shape"),
        ({"low": 2.0}, "low"),
        ({"high": 101.0}, "high"),
        ({"high": 0.0}, "high"),
        ({"start": 1.0}, "start"),
        ({"start": 2.0}, "start"),
        ({"start": math.nan}, "start"),
    ],
)
def test_a_learnt_range_that_is_none(options: dict[str, float], name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"`{name}`"):
        LearnableEntmax(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("low", "high"), [(1.0, 2.0), (1.1, 1.7), (1.5, 4.0), (0.2, 1.4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_learnt_alpha_stays_in_its_range(low: float, high: float, dtype: torch.dtype) -> None:
    mapping = LearnableEntmax((5, 1), start=0.5 * (low + high), low=low, high=high).to(dtype)
    torch.testing.assert_close(mapping.alpha.detach(), torch.full((5, 1), 0.5 * (low + high), dtype=dtype))
    with torch.no_grad():
        mapping.weight.copy_(torch.tensor([[-1e4], [-20.0], [0.3], [20.0], [1e4]]))
    slack = 4 * torch.finfo(dtype).eps
    assert bool((mapping.alpha >= low).all())
    assert bool((mapping.alpha <= high * (1 + slack)).all())
    x = random_rows(5, 6, seed=0).to(dtype)
    y = mapping(x)
    y.square().sum().backward()
    assert mapping.weight.grad is not None
    assert bool(mapping.weight.grad.isfinite().all())
    torch.testing.assert_close(y[0].detach(), F.entmax(x[0], low), atol=1e-6, rtol=0)
    torch.testing.assert_close(y[4].detach(), F.entmax(x[4], high), atol=1e-6, rtol=0)


def test_a_learnt_alpha_finds_the_one_that_made_the_data() -> None:
    x = random_rows(40, 10, seed=0).view(2, 20, 10)
    truth = torch.tensor([1.25, 1.8], dtype=torch.float64).view(2, 1, 1)
    target = F.entmax(x, truth)
    mapping = LearnableEntmax((2, 1, 1)).double()
    optimizer = torch.optim.Adam(mapping.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        (mapping(x) - target).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(mapping.alpha.detach(), truth, atol=1e-3, rtol=0)


def test_an_alpha_that_is_a_parameter_is_learnt_and_saved() -> None:
    mapping = Entmax(nn.Parameter(torch.tensor([[1.2], [1.7]])))
    assert list(mapping.state_dict()) == ["alpha"]
    mapping(torch.tensor([[1.0, 0.5], [1.0, 0.5]]))[:, 0].sum().backward()
    assert mapping.alpha.grad is not None  # type: ignore[union-attr]
    assert bool((mapping.alpha.grad > 0).all())  # type: ignore[union-attr]
    assert not list(Entmax(torch.tensor([1.2])).parameters())


def test_agrees_with_the_published_package() -> None:
    package = pytest.importorskip("entmax")
    x = random_rows(30, 20, seed=0, scale=2.0)
    torch.testing.assert_close(F.entmax(x), package.entmax15(x, dim=-1), atol=1e-10, rtol=0)
    torch.testing.assert_close(F.entmax(x, dim=0), package.entmax15(x, dim=0), atol=1e-10, rtol=0)
    torch.testing.assert_close(F.entmax(x, 2.0), package.sparsemax(x, dim=-1), atol=1e-10, rtol=0)
    alpha = torch.linspace(1.05, 2.5, 30, dtype=torch.float64).unsqueeze(-1)
    results = []
    for function in (F.entmax, lambda x, a: package.entmax_bisect(x, a, dim=-1, n_iter=100)):
        leaf, strength = x.clone().requires_grad_(), alpha.clone().requires_grad_()
        y = function(leaf, strength)
        results.append([y, *torch.autograd.grad(y, (leaf, strength), x.flip(0))])
    torch.testing.assert_close(results[0], results[1], atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("alpha", [0.1, 0.6, 1.0, 1.01, 1.5, 1.7, 2.0, 3.0])
def test_jacobian_is_the_published_formula(alpha: float) -> None:
    """``diag(s) - s s^T / sum s`` with ``s = y^(2 - alpha)`` on the support."""
    for x in random_rows(8, 7, seed=2):
        y = F.entmax(x, alpha, gamma=0.5).numpy()
        s = np.where(y > 0, np.where(y > 0, y, 1.0) ** (2 - alpha), 0)
        expected = (np.diag(s) - np.outer(s, s) / s.sum()) / 0.5
        got = dense_jacobian(lambda row: F.entmax(row, alpha, gamma=0.5), x)
        np.testing.assert_allclose(got, expected, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("alpha", [3.0, 15.0, 60.0, 99.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_stay_finite_where_a_power_of_a_small_weight_does_not(alpha: float, dtype: torch.dtype) -> None:
    """In the kernel, in differentiable operations, in alpha, and twice."""
    exact = torch.tensor([0.0, -0.01, -0.02, -0.0099], dtype=torch.float64)

    def slope(x: torch.Tensor, step: torch.Tensor, change: float) -> torch.Tensor:
        return (F.entmax(x + step, alpha + change) - F.entmax(x - step, alpha - change)) / 2e-7

    columns = torch.stack([slope(exact, 1e-7 * unit, 0.0) for unit in torch.eye(4, dtype=torch.float64)], -1)
    x = exact.to(dtype).requires_grad_()
    at = torch.tensor([alpha], dtype=dtype, requires_grad=True)
    for graph in (False, True):
        rows = [torch.autograd.grad(F.entmax(x, at)[i], (x, at), create_graph=graph) for i in range(4)]
        torch.testing.assert_close(torch.stack([row[0] for row in rows]).double(), columns, rtol=1e-4, atol=1e-5)
        by_alpha = torch.cat([row[1] for row in rows]).double()
        torch.testing.assert_close(by_alpha, slope(exact, torch.zeros(4), 1e-7), rtol=1e-4, atol=1e-6)
    again = torch.autograd.grad(rows[0][0].square().sum(), (x, at))
    assert all(bool(part.isfinite().all()) for part in again)
    if dtype == torch.float64 and alpha < 99.0:
        assert torch.autograd.gradgradcheck(lambda t: F.entmax(t, alpha), exact.clone().requires_grad_(), eps=1e-8, atol=1e-3)
