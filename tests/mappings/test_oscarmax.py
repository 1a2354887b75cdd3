"""Properties of oscarmax: exact groups at any positions, and the published composition."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression
from torch.func import jacfwd, jacrev, jvp

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import FenchelYoungLoss, Oscarmax
from lit_sparse.mappings import functional as F
from tests.mappings.second_opinions import (
    central_difference,
    dense_jacobian,
    grouped_jacobian,
    maximized,
    projected_by_sorting,
    random_rows,
)


def solved(x: np.ndarray, lam: float, gamma: float) -> np.ndarray:
    """The same by a generic solver, one variable above each pair."""
    pairs = list(itertools.combinations(range(len(x)), 2))
    pieces = np.zeros((len(pairs), 2, len(x)))
    for k, (i, j) in enumerate(pairs):
        pieces[k, 0, i] = pieces[k, 1, j] = 1
    return maximized(x, gamma, lam, pieces)


def pooled(values: np.ndarray, lam: float) -> np.ndarray:
    """Fit decreasing values to ``values - lam (d - rank)``, in the order of the values, by scikit-learn."""
    d = len(values)
    order = np.argsort(-values, kind="stable")
    ramp = values[order] - lam * (d - 1 - np.arange(d))
    fitted = np.empty(d)
    fitted[order] = IsotonicRegression(increasing=False).fit_transform(np.arange(d), ramp)
    return fitted


def composed(x: np.ndarray, lam: float, gamma: float) -> np.ndarray:
    """The published composition, step by step."""
    z = x / gamma
    magnitudes = np.maximum(pooled(np.abs(z), lam), 0)
    return projected_by_sorting(np.where(z < 0, -magnitudes, magnitudes))


@pytest.mark.parametrize("lam", [0.0, 0.001, 0.02, 0.2, 3.0])
@pytest.mark.parametrize("gamma", [0.3, 1.0, 5.0])
def test_equals_a_generic_solver(lam: float, gamma: float) -> None:
    rng = np.random.default_rng(0)
    for trial in range(6):
        d = int(rng.integers(1, 31))
        x = rng.standard_normal(d) * rng.choice([0.1, 1.0, 3.0])
        if trial % 3 == 0:
            x = x.round(1)
        y = F.oscarmax(torch.from_numpy(x), lam, gamma=gamma).numpy()
        np.testing.assert_allclose(y, solved(x, lam, gamma), atol=1e-5)


def test_a_mask_takes_pairs_out() -> None:
    rng = np.random.default_rng(1)
    for lam in (0.01, 0.1, 0.5):
        for _ in range(5):
            x, allowed = rng.standard_normal(15), rng.random(15) < 0.6
            y = F.oscarmax(torch.from_numpy(x), lam, gamma=0.5, mask=torch.from_numpy(allowed)).numpy()
            np.testing.assert_allclose(y[allowed], solved(x[allowed], lam, 0.5), atol=1e-5)
            assert (y[~allowed] == 0).all()
            value = Oscarmax(lam, gamma=0.5).value(torch.from_numpy(x), torch.from_numpy(allowed))
            kept = y[allowed]
            pairs = sum(max(a, b) for a, b in itertools.combinations(kept, 2))
            assert float(value) == pytest.approx((kept * x[allowed]).sum() - 0.5 * (0.5 * (kept**2).sum() + lam * pairs))


def test_the_penalty_is_the_largest_over_all_orders() -> None:
    """The sum of pairwise maxima is the largest ``sum_i (d - i) y_(i)`` over permutations: linear in the order of y."""
    mapping = Oscarmax(0.3)
    for y in torch.softmax(random_rows(10, 5, seed=0), -1):
        weights = np.arange(4, -1, -1)
        best = max((weights * y.numpy()[list(order)]).sum() for order in itertools.permutations(range(5)))
        pairs = sum(float(torch.maximum(y[i], y[j])) for i, j in itertools.combinations(range(5), 2))
        assert best == pytest.approx(pairs)
        assert float(mapping.regularizer(y)) == pytest.approx(0.5 * float(y.square().sum()) + 0.3 * pairs)


@pytest.mark.parametrize("lam", [1e-6, 1e-4, 1e-3, 0.05, 2.0, 1e4])
@pytest.mark.parametrize("kind", ["noise", "narrow", "ties", "plateau", "heavy"])
def test_long_rows_equal_sorting_pooling_and_projecting(lam: float, kind: str) -> None:
    """Most of a long row is not sorted; the result must be the same, for every lam."""
    rng = np.random.default_rng(0)
    d = 3000
    x = {
        "noise": rng.standard_normal(d),
        "narrow": 1e-3 * rng.standard_normal(d),
        "ties": rng.standard_normal(d).round(1),
        "plateau": np.where(np.arange(d) < 20, 1.0, 0.0) + 1e-4 * rng.standard_normal(d),
        "heavy": rng.standard_cauchy(d),
    }[kind]
    y = F.oscarmax(torch.from_numpy(x), lam)
    expected = projected_by_sorting(pooled(x - x.max(), lam))
    np.testing.assert_allclose(y.numpy(), expected, atol=1e-9 * max(1.0, lam))
    assert float(y.sum()) == pytest.approx(1.0, abs=1e-12)
    single = F.oscarmax(torch.from_numpy(x).float(), lam)
    rounded = F.oscarmax(torch.from_numpy(x).float().double(), lam)
    torch.testing.assert_close(single.double(), rounded, atol=1e-6, rtol=0)


def test_entries_just_below_those_that_count_are_not_forgotten() -> None:
    """One largest score, and many below the threshold of any prefix that together lift themselves above it, or nearly do."""
    for d in (3, 10, 60, 400):
        for lam in (0.01, 0.1, 1.0):
            for gap in np.array([0.5, 0.9, 0.99, 1.0, 1.01, 1.1, 2.0])[:, None] * np.array([1.0, lam * d, 0.5 * lam * d]):
                for count in {1, d // 2, d - 1}:
                    x = np.full(d, -1e3)
                    x[0], x[1 : 1 + count] = 0.0, -gap[0] - 1e-3 * np.arange(count)
                    y = F.oscarmax(torch.from_numpy(x), lam).numpy()
                    np.testing.assert_allclose(y, projected_by_sorting(pooled(x, lam)), atol=1e-10)
                    x[1 : 1 + count] = -gap[1]
                    y = F.oscarmax(torch.from_numpy(x), lam).numpy()
                    np.testing.assert_allclose(y, projected_by_sorting(pooled(x, lam)), atol=1e-10)


def test_the_published_composition_can_be_far_from_exact() -> None:
    x = torch.tensor([3.21, -0.39, -1.8, -0.93, -0.37, -0.38], dtype=torch.float64)
    exact, published = F.oscarmax(x, 0.77), F.oscarmax(x, 0.77, exact=False)
    torch.testing.assert_close(exact, torch.tensor([1.0, 0, 0, 0, 0, 0], dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(published, torch.full((6,), 1 / 6, dtype=torch.float64), atol=1e-12, rtol=0)
    np.testing.assert_allclose(exact.numpy(), solved(x.numpy(), 0.77, 1.0), atol=1e-6)

    def attained(y: torch.Tensor) -> float:
        return float((y * x).sum() - Oscarmax(0.77).regularizer(y))

    assert attained(exact) == pytest.approx(float(Oscarmax(0.77).value(x)))
    assert attained(exact) > attained(published) + 0.5


@pytest.mark.parametrize("lam", [0.0, 0.003, 0.05, 0.5, 3.0])
def test_the_published_composition_step_by_step(lam: float) -> None:
    rng = np.random.default_rng(0)
    for d in (1, 2, 3, 8, 40, 500):
        for trial in range(10):
            x = rng.standard_normal(d) * rng.choice([0.1, 1.0, 4.0])
            if trial % 3 == 0:
                x = x.round(1)
            if trial % 4 == 0:
                x = np.abs(x)
            y = F.oscarmax(torch.from_numpy(x), lam, exact=False, gamma=0.7).numpy()
            np.testing.assert_allclose(y, composed(x, lam, 0.7), atol=1e-12)


def test_the_published_composition_sees_shifts_and_signs() -> None:
    x = random_rows(20, 6, seed=0)
    assert float((F.oscarmax(x + 5, 0.1, exact=False) - F.oscarmax(x, 0.1, exact=False)).abs().max()) > 0.1
    torch.testing.assert_close(F.oscarmax(x + 5, 0.1), F.oscarmax(x, 0.1))
    positive = x - x.amin(-1, keepdim=True) + 50.0  # nothing is clipped, no sign is lost
    torch.testing.assert_close(F.oscarmax(positive, 0.1, exact=False), F.oscarmax(x, 0.1), atol=1e-12, rtol=0)


def published_jacobian(x: np.ndarray, lam: float, gamma: float) -> np.ndarray:
    """``J_P J_OSC / gamma``, the groups of equal non-zero magnitudes read off the prox."""
    z = x / gamma
    magnitudes = np.maximum(pooled(np.abs(z), lam), 0)
    w = np.where(z < 0, -magnitudes, magnitudes)
    support = (projected_by_sorting(w) > 0).astype(float)
    projection = np.diag(support) - np.outer(support, support) / support.sum()
    prox = np.zeros((len(x), len(x)))
    for value in np.unique(magnitudes[magnitudes > 0]):
        group = np.abs(magnitudes - value) < 1e-12
        sign = np.where(z < 0, -1.0, 1.0) * group
        prox = np.where(np.outer(group, group), np.outer(sign, sign) / group.sum(), prox)
    return projection @ prox / gamma


@pytest.mark.parametrize("lam", [0.02, 0.05, 0.2])
def test_jacobian_of_the_published_composition(lam: float) -> None:
    """It is not symmetric, and groups hold entries of either sign."""
    skew, mixed = 0.0, 0
    for x in random_rows(40, 7, seed=3):
        expected = published_jacobian(x.numpy(), lam, 0.8)

        def function(row: torch.Tensor) -> torch.Tensor:
            return F.oscarmax(row, lam, exact=False, gamma=0.8)

        np.testing.assert_allclose(dense_jacobian(function, x), expected, atol=1e-12)
        np.testing.assert_allclose(jacfwd(function)(x).numpy(), expected, atol=1e-12)
        np.testing.assert_allclose(jacrev(function)(x).numpy(), expected, atol=1e-12)
        skew = max(skew, float(np.abs(expected - expected.T).max()))
        mixed += bool((expected[F.oscarmax(x, lam, exact=False, gamma=0.8).numpy() > 0] < -1e-9).any())
    assert skew > 0.1
    assert mixed > 3


def test_derivatives_of_the_published_composition_with_mixed_signs() -> None:
    x = torch.tensor(
        [
            [1.0, -1.02, 0.3, -0.5, 1.01],  # the largest magnitudes tie across signs
            [0.2, -0.21, 0.19, 0.22, -3.0],
            [2.0, 1.9, -1.95, 1.85, 0.0],
            [-1.0, -1.1, -1.2, -1.05, -0.9],
        ],
        dtype=torch.float64,
        requires_grad=True,
    )
    for lam in (0.03, 0.15):

        def function(x: torch.Tensor, lam: float = lam) -> torch.Tensor:
            return F.oscarmax(x[:, :4], lam, exact=False, gamma=0.6)

        torch.autograd.gradcheck(function, x, check_forward_ad=True, check_batched_grad=True)
        torch.autograd.gradgradcheck(function, x)


@pytest.mark.parametrize("lam", [0.005, 0.05, 0.2])
def test_jacobian_averages_the_groups_that_are_seen(lam: float) -> None:
    """Rebuilt from equal entries of the result alone, wherever they stand."""
    tied = 0
    for x in random_rows(25, 12, seed=1, scale=0.15):
        y = F.oscarmax(x, lam, gamma=0.7).numpy()
        got = dense_jacobian(lambda row: F.oscarmax(row, lam, gamma=0.7), x)
        np.testing.assert_allclose(got, grouped_jacobian(y, 0.7, adjacent=False), atol=1e-12)
        tied += len(y[y > 0]) - len(np.unique(y[y > 0]))
    assert tied > 3


def test_jacobian_equals_differences() -> None:
    x, direction = random_rows(200, 12, seed=5), random_rows(200, 12, seed=6)
    for mapping in (Oscarmax(0.05), Oscarmax(0.05, exact=False)):
        along = jvp(mapping, (x,), (direction,))[1]
        change = central_difference(mapping, x, direction, 1e-7)
        torch.testing.assert_close(along, change, atol=1e-7, rtol=0)


def test_tied_scores_are_one_group() -> None:
    x = random_rows(100, 12, seed=0).round(decimals=1)
    shuffled = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    for lam in (1e-9, 0.01, 0.1, 1.0):
        y = F.oscarmax(x, lam)
        for i, j in itertools.combinations(range(12), 2):
            tied = x[:, i] == x[:, j]
            assert bool((y[tied, i] == y[tied, j]).all())
        torch.testing.assert_close(F.oscarmax(x[:, shuffled], lam), y[:, shuffled], atol=1e-14, rtol=0)
    leaf = torch.tensor([0.5, 0.2, 0.5], dtype=torch.float64, requires_grad=True)
    (got,) = torch.autograd.grad(F.oscarmax(leaf, 1e-3)[0], leaf)
    torch.testing.assert_close(got, torch.tensor([1 / 6, -1 / 3, 1 / 6], dtype=torch.float64))


def test_without_a_penalty_it_is_sparsemax() -> None:
    direction = random_rows(30, 12, seed=1)
    for x in (random_rows(30, 12, seed=0), random_rows(30, 12, seed=0).round(decimals=1)):
        gradients = []
        for mapping in (lambda x: F.oscarmax(x, 0.0, gamma=0.7123), lambda x: F.sparsemax(x, gamma=0.7123)):
            torch.testing.assert_close(mapping(x), F.sparsemax(x, gamma=0.7123), atol=1e-15, rtol=0)
            leaf = x.clone().requires_grad_()
            gradients.append(torch.autograd.grad(mapping(leaf), leaf, direction)[0])
        torch.testing.assert_close(gradients[0], gradients[1], atol=1e-14, rtol=0)
        torch.testing.assert_close(F.oscarmax(x, 0.0, exact=False), F.sparsemax(x), atol=1e-15, rtol=0)


def test_value_against_the_formula() -> None:
    for x in random_rows(10, 8, seed=0):
        y = solved(x.numpy(), 0.07, 0.6)
        pairs = sum(max(a, b) for a, b in itertools.combinations(y, 2))
        expected = (x.numpy() * y).sum() - 0.6 * (0.5 * (y**2).sum() + 0.07 * pairs)
        assert float(Oscarmax(0.07, gamma=0.6).value(x)) == pytest.approx(expected, abs=1e-8)


def test_the_published_composition_has_neither_value_nor_loss() -> None:
    mapping = Oscarmax(0.1, exact=False)
    for call in (
        lambda: mapping.value(torch.zeros(2, 3)),
        lambda: FenchelYoungLoss(mapping),
        lambda: mapping.regularizer(torch.ones(3) / 3),
    ):
        with pytest.raises(ConfigurationError, match="maximizes"):
            call()


@pytest.mark.parametrize("lam", [-0.1, math.nan, math.inf, 1e13, "1", None, True])
def test_lam_out_of_range(lam: object) -> None:
    for call in (Oscarmax, lambda lam: F.oscarmax(torch.zeros(3), lam)):
        with pytest.raises(ConfigurationError, match="`lam` to be a number"):
            call(lam)  # type: ignore[operator]
