"""The safe LogSumExp: exact by a second way, bounded as derived, differentiable in all ways, and never infinite."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import functional as F
from lit_sparse.risks import safe_logsumexp
from lit_sparse.risks.logsumexp_kernel import _reference, _weighted_reference, safe_threshold, weighted_safe_threshold

RHOS = st.floats(-4, 0).map(lambda power: float(10.0**power)) | st.just(1.0)


def by_root_finder(x: list[float], rho: float, weights: list[float]) -> float:
    """Return the same in double precision, by Brent's method on the scalar equation of the threshold."""
    values, w = np.array(x), np.array(weights)
    mass = w.sum()
    if mass <= rho * (1 + 1e-13):
        return float(w @ values / rho + math.log(rho) - 1)

    def excess(a: float) -> float:
        s = values - a + math.log(rho)
        return float(w @ np.where(s > 0, 1 / (1 + np.exp(-np.abs(s))), np.exp(-np.abs(s)) / (1 + np.exp(-np.abs(s))))) - rho

    low, high = values.min() + math.log(mass - rho) - 1, values.max() + math.log(mass) + 1
    a = brentq(excess, low, high, xtol=1e-12, rtol=1e-15, maxiter=500)
    s = values - a + math.log(rho)
    return float(a + w @ (np.maximum(s, 0) + np.log1p(np.exp(-np.abs(s)))) / rho - 1)


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=12), RHOS, st.sampled_from(["ones", "shares", "any"]), st.data())
@settings(max_examples=300)
def test_equals_a_root_finder(x: list[float], rho: float, kind: str, data: st.DataObject) -> None:
    weights = [1.0] * len(x)
    if kind == "shares":
        weights = [1 / len(x)] * len(x)
    elif kind == "any":
        weights = data.draw(st.lists(st.floats(0.01, 3), min_size=len(x), max_size=len(x)))
        weights = [w * max(1.0, 1.001 * rho / sum(weights)) for w in weights]
    given_weights = None if kind == "ones" else torch.tensor(weights, dtype=torch.float64)
    found = float(safe_logsumexp(torch.tensor(x, dtype=torch.float64), rho, weights=given_weights))
    scale = max(1.0, *(abs(value) for value in x))
    expected = by_root_finder(x, rho, weights)
    assert abs(found - expected) <= 1e-10 * max(abs(expected), 1e-3 * scale)


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=30), RHOS)
@settings(max_examples=200)
def test_bounds(x: list[float], rho: float) -> None:
    """The published ones: of LogSumExp from below, and of CVaR from both sides."""
    values, n = torch.tensor(x, dtype=torch.float64), len(x)
    slack = 1e-9 * max(1.0, float(values.abs().max()))
    gap = float(torch.logsumexp(values, 0) - safe_logsumexp(values, rho))
    room = (1 - rho) / rho * math.log1p(-rho) if rho < 1 else 0.0
    assert -slack <= gap <= min(1 + room, rho) + slack
    whole = float(safe_logsumexp(values, rho, weights=torch.full((n,), 1 / n, dtype=torch.float64)))
    ranked = values.sort(descending=True).values
    taken = (rho * n - torch.arange(n, dtype=torch.float64)).clamp(0, 1)
    cvar = float((taken * ranked).sum() / (rho * n))
    assert cvar + math.log(rho) - 1 - slack <= whole <= cvar - 1 - room + slack
    assert float(values.mean()) - 1 - slack <= whole  # which is its value for rho = 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("rho", [1e-4, 0.01, 0.5, 1.0])
def test_never_infinite(dtype: torch.dtype, rho: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for scale in (1e-3, 1.0, 30.0, 3e3):
        x = (scale * torch.randn(64, 40, generator=generator)).clamp(-1e4, 1e4).to(dtype)
        x[0], x[1], x[2, 0], x[3, 1:] = 1e4, -1e4, 1e4, -1e4
        x.requires_grad_()
        found = safe_logsumexp(x, rho)
        assert found.dtype == dtype
        found.float().sum().backward()
        assert bool(found.isfinite().all()) and bool(x.grad.isfinite().all())
        exact = safe_logsumexp(x.detach().double(), rho)
        torch.testing.assert_close(found.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=4e-6)
        torch.testing.assert_close(x.grad.double().sum(1), torch.ones(64, dtype=torch.float64), rtol=0.02, atol=0)
        assert float(x.grad.max()) <= 1 / rho


@pytest.mark.parametrize("rho", [1e-3, 0.3, 1.0])
def test_derivatives(rho: float) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(3, 5, generator=generator, dtype=torch.float64).mul(2).requires_grad_()
    w = torch.rand(3, 5, generator=generator, dtype=torch.float64).add(0.3).requires_grad_()

    def weighted(values: Tensor, weights: Tensor) -> Tensor:
        return safe_logsumexp(values, rho, weights=weights)

    def plain(values: Tensor) -> Tensor:
        return safe_logsumexp(values, rho, 0)

    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(weighted, (x, w))
        assert check(plain, (x,))
    assert torch.autograd.gradcheck(plain, (x,), check_forward_ad=True, check_batched_grad=True)


def test_transforms() -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(4, 6, generator=generator, dtype=torch.float64)

    def one(values: Tensor) -> Tensor:
        return safe_logsumexp(values, 0.2)

    torch.testing.assert_close(torch.func.vmap(one)(x), one(x))
    leaf = x.clone().requires_grad_()
    one(leaf).sum().backward()
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(one))(x), leaf.grad)
    torch.testing.assert_close(torch.func.vmap(one, in_dims=1)(x), safe_logsumexp(x, 0.2, dim=0))
    curvature = torch.func.hessian(one)(x[0])
    by_grad = torch.autograd.functional.hessian(one, x[0])
    torch.testing.assert_close(curvature, by_grad)
    direction = torch.randn(6, generator=generator, dtype=torch.float64)
    value, tangent = torch.func.jvp(one, (x[0],), (direction,))
    torch.testing.assert_close(tangent, leaf.grad[0] @ direction)
    torch.testing.assert_close(value, one(x[0]))
    step = 1e-4  # third derivatives, by differences of second ones
    up, down = (torch.func.hessian(one)(x[0] + sign * step * direction) for sign in (1, -1))
    third = torch.func.jacrev(torch.func.hessian(one))(x[0]) @ direction
    torch.testing.assert_close(third, (up - down) / (2 * step), atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_compiled_and_exported() -> None:
    def function(values: Tensor, weights: Tensor) -> Tensor:
        return safe_logsumexp(values, 0.3) + safe_logsumexp(values, 0.1, weights=weights)

    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    for rows in (3, 5):
        x, w = torch.randn(rows, 7, requires_grad=True), torch.rand(rows, 7) + 0.1
        leaf = x.detach().clone().requires_grad_()
        found, expected = compiled(x, w), function(leaf, w)
        found.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(x.grad, leaf.grad)

    class Layer(torch.nn.Module):
        def forward(self, values: Tensor, weights: Tensor) -> Tensor:
            return function(values, weights)

    x, w = torch.randn(4, 7), torch.rand(4, 7) + 0.1
    torch.testing.assert_close(torch.export.export(Layer(), (x, w)).module()(x, w), function(x, w))


@pytest.mark.parametrize("rho", [0.02, 0.3, 0.9])
def test_its_gradient_is_capped_softmax(rho: float) -> None:
    x = torch.randn(20, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64).mul(3).requires_grad_()
    safe_logsumexp(x, rho, weights=torch.full((9,), 1 / 9, dtype=torch.float64)).sum().backward()
    torch.testing.assert_close(x.grad, F.capped_softmax(x.detach(), rho), rtol=1e-9, atol=1e-12)


def test_limits() -> None:
    x = torch.tensor([[1.0, -2.0, 3.0], [1e4, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(safe_logsumexp(x, 1e-12), torch.logsumexp(x, 1), rtol=1e-9, atol=1e-9)
    shares = torch.full((3,), 1 / 3, dtype=torch.float64)
    torch.testing.assert_close(safe_logsumexp(x, 1.0, weights=shares), x.mean(1) - 1)
    for rho in (0.01, 0.5, 0.99):  # a constant
        found = safe_logsumexp(torch.full((4,), 7.0, dtype=torch.float64), rho, weights=torch.full((4,), 0.25).double())
        expected = 7 + math.log1p(-rho) - math.log1p(-rho) / rho - 1
        assert float(found) == pytest.approx(expected, rel=1e-12)


def test_invalid_rows_stay_alone() -> None:
    inf, nan = math.inf, math.nan
    x = torch.tensor(
        [[1.0, 2.0, 3.0], [nan, 0.0, 1.0], [inf, 0.0, 1.0], [-inf, 2.0, 3.0], [-inf, -inf, -inf]], requires_grad=True
    )
    found = safe_logsumexp(x, 0.5)
    found[[0, 3]].sum().backward()
    assert bool(x.grad[[0, 3]].isfinite().all()) and not bool(x.grad[[1, 2, 4]].any())
    assert found.isnan().tolist() == [False, True, False, False, False]
    for function in (safe_logsumexp, torch.func.vmap(safe_logsumexp, in_dims=(0, None))):  # explicit, and by operations
        (gradient,) = torch.autograd.grad(function(x, 0.5)[[0, 1, 3]].sum(), x)
        assert gradient[[0, 3]].isfinite().all() and gradient[1].isnan().all()
    assert found.detach()[2:].tolist()[0] == inf and float(found[4].detach()) == -inf
    torch.testing.assert_close(found[3], safe_logsumexp(x[0, 1:], 0.5) + 0.0)
    w = torch.tensor([1.0, 0.0, 1.0])
    there = torch.tensor([[2.0, nan, 1.0], [2.0, inf, 1.0]], requires_grad=True)
    value = safe_logsumexp(there, 0.5, weights=w)
    torch.testing.assert_close(value, safe_logsumexp(torch.tensor([2.0, 1.0]), 0.5).expand(2))
    value.sum().backward()
    assert bool(there.grad.isfinite().all()) and not bool(there.grad[:, 1].any())


@pytest.mark.parametrize("weighted", [False, True])
def test_shapes(weighted: bool) -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    for dim in (0, 1, 2, -1, -3):
        w = torch.rand(3, 4, dtype=torch.float64) + 0.5 if weighted else None
        found = safe_logsumexp(x.mT.contiguous().mT, 0.2, dim, w)
        full = torch.ones_like(x) if w is None else w.expand_as(x)
        rows, mass = x.movedim(dim, -1).reshape(-1, x.shape[dim]), full.movedim(dim, -1).reshape(-1, x.shape[dim])
        expected = [by_root_finder(row.tolist(), 0.2, m.tolist()) for row, m in zip(rows, mass, strict=True)]
        torch.testing.assert_close(found.flatten(), torch.tensor(expected, dtype=torch.float64))
    assert safe_logsumexp(torch.zeros(0, 3), 0.2).shape == (0,)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: safe_logsumexp(torch.zeros(3), 0.0), "rho"),
        (lambda: safe_logsumexp(torch.zeros(3), 1.5), "rho"),
        (lambda: safe_logsumexp(torch.zeros(3), math.nan), "rho"),
        (lambda: safe_logsumexp([1.0], 0.5), "torch tensor"),  # type: ignore[arg-type]
        (lambda: safe_logsumexp(torch.zeros(3, dtype=torch.int64), 0.5), "floating"),
        (lambda: safe_logsumexp(torch.tensor(1.0), 0.5), "one dimension"),
        (lambda: safe_logsumexp(torch.zeros(3), 0.5, 1), "dim"),
        (lambda: safe_logsumexp(torch.zeros(3, 0), 0.5), "at least one value"),
        (lambda: safe_logsumexp(torch.zeros(3), 0.5, weights=torch.ones(4)), "broadcast"),
        (lambda: safe_logsumexp(torch.zeros(3), 0.5, weights=torch.tensor([1.0, -1.0, 1.0])), "nonnegative"),
        (lambda: safe_logsumexp(torch.zeros(3), 0.5, weights=torch.tensor([1.0, math.nan, 1.0])), "nonnegative"),
        (lambda: safe_logsumexp(torch.zeros(3), 0.5, weights=torch.full((3,), 0.1)), "mass is at least"),
    ],
    ids=["zero", "above one", "nan", "list", "integers", "scalar", "dim", "empty", "shape", "negative", "nan weight", "mass"],
)
def test_refuses(call: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        call()  # type: ignore[operator]


def test_shares_in_float32_have_mass_one() -> None:
    """Rounding of 1 / d must not make the mass too small for rho = 1."""
    for d in range(1, 60):
        found = safe_logsumexp(torch.arange(float(d)), 1.0, weights=torch.full((d,), 1 / d))
        assert float(found) == pytest.approx((d - 1) / 2 - 1, abs=1e-4)


def test_kernel_equals_its_reference() -> None:
    generator = torch.Generator().manual_seed(9)
    for dtype in (torch.float32, torch.float64):
        for d in (1, 2, 7, 64):
            for rho in (1e-5, 0.1, 0.9):  # at 1 a point alone may have all the mass, and any low threshold serves
                scale = 10 ** torch.empty(40, 1).uniform_(-6, 8, generator=generator)
                x = (torch.randn(40, d, generator=generator) * scale).to(dtype)
                x[0, 0], x[1, -1], x[2, 0], x[3] = math.nan, math.inf, -math.inf, -math.inf
                x[4] = 3.0
                w = torch.rand(40, d, generator=generator).to(dtype) * (torch.rand(40, d, generator=generator) > 0.3)
                w[5, 0], w[6, 0], w[7] = -1.0, math.nan, 0.0
                tolerance = {"rtol": 8 * torch.finfo(dtype).eps, "atol": 2e-6, "equal_nan": True}
                torch.testing.assert_close(safe_threshold(x, rho), _reference(x, rho).to(dtype), **tolerance)
                found = weighted_safe_threshold(x, w, rho)
                torch.testing.assert_close(found, _weighted_reference(x, w, rho).to(dtype), **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e15, 1e30])
def test_gradients_have_mass_one_at_any_scale(scale: float, dtype: torch.dtype) -> None:
    """The threshold lies next to one score and far from the others; in the kernel, in operations and in the reference."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 20, generator=generator, dtype=torch.float64) * scale
    x[10:20] = torch.where(torch.rand(10, 20, generator=generator) < 0.5, x[10:20], x[10:20] / scale)
    x[20:, 1:] /= scale
    x = x.to(dtype).requires_grad_()
    for w in (torch.full((20,), 0.05, dtype=dtype), torch.rand(30, 20, generator=generator).to(dtype) + 0.1):
        for rho in (0.01, 0.3, 0.9):
            total = safe_logsumexp(x, rho, weights=w).sum()
            (first,) = torch.autograd.grad(total, x, retain_graph=True)
            (graph,) = torch.autograd.grad(total, x, create_graph=True)
            by_transform = torch.func.grad(lambda t, w=w, rho=rho: safe_logsumexp(t, rho, weights=w).sum())(x.detach())
            for gradient in (first, graph.detach(), by_transform):
                mass = gradient.double().sum(-1)
                torch.testing.assert_close(mass, torch.ones_like(mass), rtol=0, atol=1e-5)
            center = safe_threshold(x.detach(), 0.9)
            left = x.detach() - center
            shares = torch.sigmoid(left - _reference(left, 0.9).to(dtype) + math.log(0.9)).double().sum(-1) / 0.9
            torch.testing.assert_close(shares, torch.ones_like(shares), rtol=0, atol=1e-5)
