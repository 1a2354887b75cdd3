"""Properties of capped softmax: a bound on every probability, between softmax and uniform."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import expit
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import CappedSoftmax, FenchelYoungLoss, Softmax
from lit_sparse.mappings import functional as F
from tests.mappings.second_opinions import central_difference, dense_jacobian, maximized_entropy, random_rows

RHOS = [1e-6, 0.01, 0.1, 0.5, 0.9, 0.999]


def by_root_finding(x: np.ndarray, rho: float, gamma: float) -> np.ndarray:
    """``y = sigma(z - tau) / (rho d)``, where sigma(z - tau) sums to rho d."""
    z = (x - x.max()) / gamma
    logit = math.log(rho) - math.log1p(-rho)
    tau = brentq(lambda tau: expit(z - tau).sum() - rho * len(z), z.min() - logit - 1, -logit + 1, xtol=1e-300, rtol=1e-15)
    return expit(z - tau) / (rho * len(z))


def divergence(y: np.ndarray, rho: float) -> float:
    """``(1 / d) sum f_rho(d y)`` with the generator of the safe Kullback-Leibler divergence."""
    t = len(y) * y
    room = np.maximum(1 - rho * t, 0)
    log = np.log(np.where(room > 0, room, 1.0))
    return float(np.mean(t * np.log(np.where(t > 0, t, 1.0)) + room / rho * log + 1))


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("gamma", [0.2, 1.0, 6.0])
def test_equals_root_finding(rho: float, gamma: float) -> None:
    for d in (1, 2, 5, 40, 2000):
        for x in random_rows(5, d, seed=d, scale=2.0):
            expected = by_root_finding(x.numpy(), rho, gamma)
            np.testing.assert_allclose(F.capped_softmax(x, rho, gamma=gamma).numpy(), expected, atol=1e-12, rtol=1e-8)
            rounded = by_root_finding(x.float().double().numpy(), rho, gamma)
            np.testing.assert_allclose(F.capped_softmax(x.float(), rho, gamma=gamma).numpy(), rounded, atol=2e-6)


@pytest.mark.parametrize("rho", [0.02, 0.2, 0.6, 0.95])
@pytest.mark.parametrize("gamma", [0.3, 1.0, 4.0])
def test_equals_a_generic_solver(rho: float, gamma: float) -> None:
    for d in (2, 5, 12, 25):
        for x in random_rows(2, d, seed=d):
            y = F.capped_softmax(x, rho, gamma=gamma).numpy()
            np.testing.assert_allclose(y, maximized_entropy(x.numpy(), gamma, rho), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e3, 1e6])
def test_the_cap_is_kept(scale: float, dtype: torch.dtype) -> None:
    for d in (2, 9, 300):
        x = random_rows(50, d, seed=0, scale=scale).to(dtype)
        for rho in RHOS:
            y = F.capped_softmax(x, rho)
            slack = 8 * torch.finfo(dtype).eps + 1e-16 * scale  # tau, as large as the scores, is rounded
            assert float(y.max()) <= 1 / (rho * d) * (1 + slack)
            assert float((y.double().sum(-1) - 1).abs().max()) <= 8 * torch.finfo(dtype).eps


def test_huge_scores_fill_the_largest_up_to_the_cap() -> None:
    """Far apart, the largest rho d entries have the cap, the next what is left: for rho d = 2.5, say, 0.4, 0.4 and 0.2."""
    for scale in (1e3, 1e6):
        x = scale * torch.arange(10.0, dtype=torch.float64)
        y = F.capped_softmax(x, 0.25)
        torch.testing.assert_close(y[7:], torch.tensor([0.2, 0.4, 0.4], dtype=torch.float64), atol=1e-9, rtol=0)
        assert float(y[:7].max()) <= 1e-12
        y = F.capped_softmax(x.float(), 0.25)
        torch.testing.assert_close(y[7:], torch.tensor([0.2, 0.4, 0.4]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e7, 1e30])
def test_a_whole_number_of_capped_entries(scale: float, dtype: torch.dtype) -> None:
    """Nothing is left for the others, and tau lies anywhere in the gap above them."""
    x = torch.full((30,), -scale, dtype=dtype)
    x[[4, 7, 20]] = 100 * scale
    y = F.capped_softmax(x, 0.1)
    expected = torch.zeros(30, dtype=dtype)
    expected[[4, 7, 20]] = 1 / 3
    torch.testing.assert_close(y, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("gamma", [0.1, 1.0])
@pytest.mark.parametrize("outlier", [1e4, 1e6, 1e30])
def test_an_outlier_takes_no_digits_from_the_others(outlier: float, gamma: float) -> None:
    """How far it is above its cap does not matter."""
    x = random_rows(40, 20, seed=0).float()
    x[:, 3] = outlier
    mapping = CappedSoftmax(0.3, gamma=gamma)
    single, double = x.clone().requires_grad_(), x.double().requires_grad_()
    y, expected = mapping(single), mapping(double)
    torch.testing.assert_close(y.double(), expected, atol=1e-6, rtol=0)
    weights = random_rows(40, 20, seed=1)
    (got,) = torch.autograd.grad(y, single, weights.float())
    (exact,) = torch.autograd.grad(expected, double, weights)
    torch.testing.assert_close(got.double(), exact, atol=1e-5 / gamma, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e9, 1e17, 1e30])
def test_the_cap_is_kept_even_where_scores_swallow_ones(scale: float, dtype: torch.dtype) -> None:
    x = scale * torch.arange(10, dtype=dtype)
    y = F.capped_softmax(x, 0.25)
    torch.testing.assert_close(y[7:], torch.tensor([0.2, 0.4, 0.4], dtype=dtype), atol=1e-6, rtol=0)
    assert bool(CappedSoftmax(0.25).value(x).isfinite())


def test_extreme_scales_equal_root_finding() -> None:
    for scale in (1e-6, 1e3, 1e6):
        for x in random_rows(20, 9, seed=0, scale=scale):
            for rho in (0.05, 0.3, 0.8):
                expected = by_root_finding(x.numpy(), rho, 1.0)
                np.testing.assert_allclose(F.capped_softmax(x, rho).numpy(), expected, atol=1e-9)


def test_tends_to_softmax() -> None:
    x = random_rows(30, 7, seed=0, scale=2.0)
    y = torch.softmax(x / 0.5, -1)
    for rho in (1e-2, 1e-4, 1e-6, 1e-9, 1e-15, 1e-100):
        assert float((F.capped_softmax(x, rho, gamma=0.5) - y).abs().max()) <= 7 * rho + 1e-14


def test_tends_to_uniform() -> None:
    x = random_rows(30, 7, seed=0, scale=2.0)
    for room in (1e-2, 1e-4, 1e-8, 1e-12):
        distance = (F.capped_softmax(x, 1 - room) - 1 / 7).abs().max()
        assert float(distance) <= 20 * room
        assert float(distance) >= 0.01 * room


def test_the_value_tends_to_that_of_softmax() -> None:
    """Less gamma times the logarithm of d: Omega is the divergence from uniform."""
    x = random_rows(20, 7, seed=0)
    expected = Softmax(gamma=0.6).value(x) - 0.6 * math.log(7)
    for rho in (1e-1, 1e-3, 1e-5, 1e-8):
        below = expected - CappedSoftmax(rho, gamma=0.6).value(x)
        assert bool((below >= -1e-12).all())
        assert bool((below <= 0.6 * 7 * rho + 1e-12).all())


@pytest.mark.parametrize("rho", [0.001, 0.1, 0.5, 0.9])
def test_value_is_the_safe_log_sum_exp(rho: float) -> None:
    """``min_a a + mean log(1 + rho e^(z - a)) / rho - 1``, and ``<y, x> - gamma D(y)`` with the divergence written out."""
    gamma = 0.7
    for x in random_rows(10, 6, seed=0, scale=2.0):
        z = x.numpy() / gamma
        y = by_root_finding(x.numpy(), rho, gamma)
        tau = z[0] - math.log(6 * y[0] / (1 - rho * 6 * y[0]))  # y = (1 / d) e^s / (1 + rho e^s), s = z - tau
        attained = tau + np.mean(np.log1p(rho * np.exp(z - tau))) / rho - 1
        value = float(CappedSoftmax(rho, gamma=gamma).value(x))
        assert value == pytest.approx(gamma * attained, abs=1e-8)
        assert value == pytest.approx((x.numpy() * y).sum() - gamma * divergence(y, rho), abs=1e-8)
        for step in (-0.1, 0.1):
            assert attained <= tau + step + np.mean(np.log1p(rho * np.exp(z - tau - step))) / rho - 1


def test_value_of_constant_scores() -> None:
    for rho in (0.01, 0.3, 0.9):
        x = torch.full((5,), 2.0, dtype=torch.float64)
        expected = 2 + math.log(1 - rho) - math.log(1 - rho) / rho - 1
        assert float(CappedSoftmax(rho).value(x)) == pytest.approx(expected)


def test_n_counts_the_allowed_entries() -> None:
    x, mask = random_rows(60, 9, seed=0, scale=50.0), random_rows(60, 9, seed=1) > 0
    mask[0] = False
    y = F.capped_softmax(x, 0.3, mask=mask)
    for row, keep, got in zip(x, mask, y, strict=True):
        n = int(keep.sum())
        assert bool((got[~keep] == 0).all())
        if n:
            assert float(got.max()) <= 1 / (0.3 * n) + 1e-12
            np.testing.assert_allclose(got[keep].numpy(), by_root_finding(row[keep].numpy(), 0.3, 1.0), atol=1e-10)
    capped = 0.3 * mask.sum(-1) > 1
    assert int((y[capped].amax(-1) * 0.3 * mask[capped].sum(-1) > 0.999).sum()) > 10  # the bound is met


@pytest.mark.parametrize("rho", [0.01, 0.3, 0.8])
def test_jacobian_is_the_formula(rho: float) -> None:
    """``diag(c) - c c^T / sum c`` over gamma with ``c = y (1 - rho d y)``."""
    for x in random_rows(10, 7, seed=2, scale=2.0):
        y = by_root_finding(x.numpy(), rho, 0.6)
        c = y * (1 - rho * 7 * y)
        expected = (np.diag(c) - np.outer(c, c) / c.sum()) / 0.6
        got = dense_jacobian(lambda row: F.capped_softmax(row, rho, gamma=0.6), x)
        np.testing.assert_allclose(got, expected, atol=1e-9)


def test_jacobian_equals_differences_under_a_mask() -> None:
    x, direction = random_rows(40, 9, seed=3), random_rows(40, 9, seed=4)
    mask = random_rows(40, 9, seed=5) > -0.7
    leaf = x.clone().requires_grad_()
    (got,) = torch.autograd.grad(F.capped_softmax(leaf, 0.4, gamma=0.5, mask=mask), leaf, direction)
    change = central_difference(lambda x: F.capped_softmax(x, 0.4, gamma=0.5, mask=mask), x, direction)
    torch.testing.assert_close(got, change, atol=1e-8, rtol=0)


def test_loss_of_targets_below_the_cap_is_a_divergence() -> None:
    """Zero at the result alone, and never negative."""
    x, mapping = random_rows(30, 5, seed=0), CappedSoftmax(0.4, gamma=0.7)
    loss = FenchelYoungLoss(mapping, reduction="none")
    for q in (0.3 * torch.eye(5, dtype=torch.float64)[torch.arange(30) % 5] + 0.14, torch.full_like(x, 0.2)):
        got = loss(x, q)
        assert bool((got > 0).all())
        expected = [
            float(mapping.value(row)) + 0.7 * divergence(p.numpy(), 0.4) - float(row @ p) for row, p in zip(x, q, strict=True)
        ]
        torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), atol=1e-10, rtol=0)
    y = mapping(x)
    torch.testing.assert_close(loss(x, y), torch.zeros(30, dtype=torch.float64), atol=1e-12, rtol=0)
    edge = torch.tensor([[0.5, 0.5, 0.0, 0.0, 0.0]], dtype=torch.float64)  # exactly at the cap of 1 / (0.4 * 5)
    assert float(loss(x[:1], edge)) == pytest.approx(
        float(mapping.value(x[0])) + 0.7 * divergence(edge[0].numpy(), 0.4) - float(x[0] @ edge[0])
    )


def test_loss_of_one_hot_targets_above_the_cap_smooths_them_as_far_as_the_cap() -> None:
    x, labels = random_rows(10, 5, seed=0), torch.arange(10) % 5
    x[3, 0] = -torch.inf  # a class that is forbidden gets nothing
    mapping = CappedSoftmax(0.4, gamma=0.7)
    one_hot = torch.eye(5, dtype=torch.float64)[labels]
    smooth = 0.125 + 0.375 * one_hot  # 1 / (rho d) = 1 / 2
    smooth[3] = torch.tensor([0.0, 0.125, 0.125, 0.625, 0.125])  # 1 / (0.4 * 4), d counting what is allowed
    loss = FenchelYoungLoss(mapping, reduction="none")
    leaf = x.clone().requires_grad_()
    got = loss(leaf, labels)
    torch.testing.assert_close(got, loss(x, smooth))
    (gradient,) = torch.autograd.grad(got.sum(), leaf)
    torch.testing.assert_close(gradient, mapping(x) - smooth)
    assert bool((got > 0).all())
    far = 100 * one_hot
    torch.testing.assert_close(mapping(far)[0], smooth[0])
    torch.testing.assert_close(loss(far, labels)[0], torch.tensor(0.0, dtype=torch.float64), atol=1e-12, rtol=0)
    inside = torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.1]], dtype=torch.float64)
    torch.testing.assert_close(mapping.admissible(inside, -1, inside > 0), inside, atol=0, rtol=0)

    x = random_rows(10, 5, seed=1)
    wide = CappedSoftmax(0.15, gamma=0.7)  # rho d < 1: one-hot targets are inside, and Omega counts
    got = FenchelYoungLoss(wide, reduction="none")(x, labels)
    omega = divergence(np.eye(5)[0], 0.15)
    torch.testing.assert_close(got, wide.value(x) + 0.7 * omega - x.gather(-1, labels.unsqueeze(-1)).squeeze(-1))
    assert bool((got > 0).all())


def test_smoothed_labels_bring_the_minimum_back() -> None:
    loss = FenchelYoungLoss(CappedSoftmax(0.4), label_smoothing=0.7)  # max q = 0.3 + 0.14 < 1 / (0.4 * 5)
    x, labels = torch.zeros(4, 5, dtype=torch.float64, requires_grad=True), torch.arange(4)
    optimizer = torch.optim.SGD([x], lr=20.0)
    for _ in range(200):
        optimizer.zero_grad()
        value = loss(x, labels)
        value.backward()
        optimizer.step()
    q = 0.3 * torch.eye(5, dtype=torch.float64)[labels] + 0.14
    torch.testing.assert_close(F.capped_softmax(x.detach(), 0.4), q, atol=1e-6, rtol=0)
    assert float(value.detach()) == pytest.approx(0.0, abs=1e-10)


def test_forbidden_classes_do_not_count_in_the_loss() -> None:
    x = torch.tensor([[0.4, 1.2, -torch.inf, 0.1]], dtype=torch.float64)
    q = torch.tensor([[0.3, 0.4, 0.0, 0.3]], dtype=torch.float64)
    loss = FenchelYoungLoss(CappedSoftmax(0.5, gamma=0.8))
    kept = torch.tensor([True, True, False, True])
    torch.testing.assert_close(loss(x, q), loss(x[:, kept], q[:, kept]))


def test_second_derivatives_equal_differences() -> None:
    x, direction = random_rows(5, 6, seed=3), random_rows(5, 6, seed=4)

    def gradient(x: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.clone().requires_grad_()
            return torch.autograd.grad(F.capped_softmax(leaf, 0.3).square().sum(), leaf)[0]

    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(F.capped_softmax(leaf, 0.3).square().sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first, leaf, direction)
    torch.testing.assert_close(second, central_difference(gradient, x, direction), atol=1e-8, rtol=0)


@pytest.mark.parametrize("rho", [0.0, 1.0, -0.1, 1.5, math.nan, math.inf, "0.5", None, True])
def test_rho_out_of_range(rho: object) -> None:
    for call in (CappedSoftmax, lambda rho: F.capped_softmax(torch.zeros(3), rho)):
        with pytest.raises(ConfigurationError, match="`rho` to be a number"):
            call(rho)  # type: ignore[operator]
