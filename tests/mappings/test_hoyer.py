"""Properties of the Hoyer projection: the nearest point of a sparseness, also if there are several."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import FenchelYoungLoss, HoyerProjection
from lit_sparse.mappings import functional as F
from tests.mappings.second_opinions import central_difference, random_rows

TARGETS = [0.05, 0.2, 0.5, 0.75, 0.95]


def ratio_of(s: float, n: int) -> float:
    """The l1 norm over the l2 norm at sparseness s."""
    return math.sqrt(n) - s * (math.sqrt(n) - 1)


def sparseness_of(y: np.ndarray) -> float:
    n = len(y)
    return (math.sqrt(n) - np.abs(y).sum() / np.sqrt((y**2).sum())) / (math.sqrt(n) - 1)


def assert_feasible(y: np.ndarray, s: float, norm: float = 1.0) -> None:
    assert np.sqrt((y**2).sum()) == pytest.approx(norm, rel=1e-9)
    assert sparseness_of(y) == pytest.approx(s, abs=1e-7)


def by_brute_force(x: np.ndarray, s: float, norm: float = 1.0) -> np.ndarray:
    """The nearest point without negative entries, over every support that can hold it."""
    n = len(x)
    total = norm * ratio_of(s, n)
    best, answer = math.inf, np.full(n, math.nan)
    for size in range(1, n + 1):
        rest = norm**2 - total**2 / size  # what is left for the distances from the mean
        if rest < -1e-12:
            continue
        for support in itertools.combinations(range(n), size):
            part = x[list(support)]
            centered = part - part.mean()
            spread = math.sqrt((centered**2).sum())
            if spread == 0 and rest > 1e-12:
                continue  # any direction will do: the cases of ties have tests of their own
            p = np.zeros(n)
            p[list(support)] = total / size + (centered * math.sqrt(max(rest, 0)) / spread if spread else 0)
            distance = ((p - x) ** 2).sum()
            if (p >= -1e-12).all() and distance < best:
                best, answer = distance, p
    return answer


def by_alternating_projections(x: np.ndarray, s: float, norm: float = 1.0) -> np.ndarray:
    """Thom & Palm (2013), algorithm 1: hyperplane and sphere, then simplex, face by face."""
    n = len(x)
    total = norm * ratio_of(s, n)

    def onto_circle(p: np.ndarray, face: np.ndarray) -> np.ndarray:
        """Points of the face's hyperplane with that l2 norm."""
        size = face.sum()
        center = np.where(face, total / size, 0.0)
        away = np.where(face, p - p[face].mean(), 0.0)
        return center + math.sqrt(max(norm**2 - total**2 / size, 0.0)) * away / np.sqrt((away**2).sum())

    def onto_simplex(p: np.ndarray, face: np.ndarray) -> np.ndarray:
        ranked = np.sort(p[face])[::-1]
        k = np.arange(1, len(ranked) + 1)
        taus = (np.cumsum(ranked) - total) / k
        return np.where(face, np.maximum(p - taus[(ranked > taus).nonzero()[0].max()], 0), 0.0)

    face = np.full(n, True)
    p = onto_circle(x, face)
    while (p < 0).any():
        p = onto_simplex(p, face)
        face = p > 0
        p = onto_circle(p, face)
    return p


@pytest.mark.parametrize("nonneg", [False, True])
@pytest.mark.parametrize("norm", [0.3, 1.0, 25.0])
@pytest.mark.parametrize("s", TARGETS)
def test_has_the_sparseness_and_the_norm(s: float, norm: float, nonneg: bool) -> None:
    for d in (2, 3, 10, 100, 5000):
        for scale in (1e-8, 1e-3, 1.0, 1e6):
            for x in random_rows(3, d, seed=d, scale=scale):
                y = F.hoyer_projection(x, s, norm=norm, nonneg=nonneg).numpy()
                assert_feasible(y, s, norm)
                assert (y >= 0).all() if nonneg else (y * x.numpy() >= 0).all()
                single = F.hoyer_projection(x.float(), s, norm=norm, nonneg=nonneg).double().numpy()
                assert np.sqrt((single**2).sum()) == pytest.approx(norm, rel=1e-5)
                assert sparseness_of(single) == pytest.approx(s, abs=2e-5)


@pytest.mark.parametrize("s", TARGETS)
def test_equals_brute_force_over_supports(s: float) -> None:
    for d in (2, 3, 5, 8, 10):
        for x in random_rows(4, d, seed=d):
            expected = by_brute_force(x.numpy(), s, norm=1.5)
            np.testing.assert_allclose(F.hoyer_projection(x, s, nonneg=True, norm=1.5).numpy(), expected, atol=1e-10)
            expected = np.sign(x.numpy()) * by_brute_force(np.abs(x.numpy()), s)
            np.testing.assert_allclose(F.hoyer_projection(x, s).numpy(), expected, atol=1e-10)


def test_no_signs_are_nearer_than_those_of_the_input() -> None:
    for x in random_rows(5, 4, seed=0).numpy():
        candidates = []
        for signs in itertools.product([-1.0, 1.0], repeat=4):
            candidates.append(np.array(signs) * by_brute_force(np.array(signs) * x, 0.5))
        nearest = min(candidates, key=lambda p: ((p - x) ** 2).sum())
        np.testing.assert_allclose(F.hoyer_projection(torch.from_numpy(x), 0.5).numpy(), nearest, atol=1e-10)


@pytest.mark.parametrize("s", TARGETS)
@pytest.mark.parametrize("d", [2, 3, 10, 100, 2000])
def test_equals_alternating_projections(d: int, s: float) -> None:
    for x in random_rows(5, d, seed=d + 1):
        expected = by_alternating_projections(x.numpy(), s, norm=2.0)
        np.testing.assert_allclose(F.hoyer_projection(x, s, nonneg=True, norm=2.0).numpy(), expected, atol=1e-8)


def test_the_threshold_form() -> None:
    """``norm (x - tau)_+ / ||(x - tau)_+||``: on the support an affine image of x with positive slope."""
    for x in random_rows(20, 30, seed=0):
        for s in TARGETS:
            y = F.hoyer_projection(x, s, nonneg=True).numpy()
            inside = y > 0
            slope, intercept = np.polyfit(x.numpy()[inside], y[inside], 1)
            np.testing.assert_allclose(y[inside], slope * x.numpy()[inside] + intercept, atol=1e-9)
            assert slope > 0
            assert (x.numpy()[~inside] <= -intercept / slope + 1e-9).all()


@pytest.mark.parametrize("nonneg", [False, True])
def test_a_sparser_input_is_filled(nonneg: bool) -> None:
    """The threshold is below zero: what was zero is not."""
    x = torch.zeros(16, dtype=torch.float64)
    x[[2, 7]] = torch.tensor([3.0, 1.0], dtype=torch.float64)
    assert sparseness_of(x.numpy()) > 0.5
    y = F.hoyer_projection(x, 0.5, nonneg=nonneg)
    assert_feasible(y.numpy(), 0.5)
    assert bool((y > 0).all())
    np.testing.assert_allclose(y.numpy(), by_alternating_projections(x.numpy(), 0.5), atol=1e-10)
    x[3] = -0.0
    assert float(F.hoyer_projection(x, 0.5, nonneg=nonneg)[3]) > 0  # the sign of zero is plus, whichever zero
    x[3] = -1e-30
    filled = float(F.hoyer_projection(x, 0.5, nonneg=nonneg)[3])
    assert filled == pytest.approx(float(y[3]) if nonneg else -float(y[3]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("s", [0.0, 0.1, 0.4, 0.7, 0.9, 1.0])
def test_equal_entries_leave_a_choice(s: float, dtype: torch.dtype) -> None:
    """Any feasible point on them is as near: one is returned, the same every time, without NaN."""
    tolerance = 1e-9 if dtype == torch.float64 else 2e-3  # the sparseness, from float32 results
    for x in ([0.0] * 9, [2.0] * 9, [-2.0] * 9, [5.0] * 6 + [1.0] * 3, [1.0, 5.0, -5.0, 5.0, 0.5, 5.0, 5.0, -5.0, 5.0]):
        rows = torch.tensor([x, x], dtype=dtype)
        for nonneg in (False, True):
            leaf = rows.clone().requires_grad_()
            y = F.hoyer_projection(leaf, s, nonneg=nonneg)
            (gradient,) = torch.autograd.grad(y, leaf, torch.arange(18.0, dtype=dtype).view(2, 9))
            assert bool(gradient.isfinite().all())
            assert torch.equal(y[0], y[1])
            got = y[0].detach().double().numpy()
            assert np.sqrt((got**2).sum()) == pytest.approx(1.0, rel=1e-6)
            assert sparseness_of(got) == pytest.approx(s, abs=tolerance)
            z = np.array(x) if nonneg else np.abs(x)
            assert (got >= 0).all() if nonneg else (got * np.array(x) >= 0).all()
            moved = z + 1e-9 * np.arange(9, 0, -1)  # next to it there is no choice
            reference = by_alternating_projections(moved, s) if 0 < s < 1 else np.abs(got)
            assert ((np.abs(got) - z) ** 2).sum() == pytest.approx(((reference - z) ** 2).sum(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("entry", [0.0, 2.0, 0.1, -0.3, 9.2623e-3, 1e6 / 3])
def test_a_choice_between_equal_entries_has_a_gradient_of_zero(entry: float, dtype: torch.dtype) -> None:
    """In every mode of differentiation, though the mean of equal numbers is not quite one of them."""
    for n in (3, 7, 9, 13):
        for rest in ([], [0.5 * entry, 0.25 * entry]):
            x = torch.tensor([entry] * n + rest, dtype=dtype)
            weights = torch.arange(len(x), dtype=dtype)
            for s in (0.3, 0.7, 1.0) if rest else (0.0, 0.3, 0.7, 1.0):
                if rest and n < ratio_of(s, len(x)) ** 2:
                    continue  # no choice: the smaller ones take part
                leaf = x.clone().requires_grad_()
                for graph in (False, True):
                    y = F.hoyer_projection(leaf, s)
                    (got,) = torch.autograd.grad(y, leaf, weights, create_graph=graph)
                    assert float(got.detach().abs().max()) <= 1e-6
                tangent = torch.func.jvp(lambda x, s=s: F.hoyer_projection(x, s), (x,), (weights,))[1]
                assert float(tangent.abs().max()) <= 1e-6


@pytest.mark.parametrize("offset", [0.0, 1e2, 1e3, 1e4])
def test_float32_gradients_keep_their_digits_away_from_zero(offset: float) -> None:
    x, weights = random_rows(100, 50, seed=0).float() + offset, random_rows(100, 50, seed=1).float()
    for s in (0.6, 0.9):
        found = []
        for dtype in (torch.float32, torch.float64):
            leaf = x.to(dtype).requires_grad_()
            found.append(torch.autograd.grad(F.hoyer_projection(leaf, s, nonneg=True), leaf, weights.to(dtype))[0].double())
        size = found[1].abs().amax(-1, keepdim=True).clamp_min(1e-2)
        assert float(((found[0] - found[1]) / size).abs().max()) <= 1e-4


def test_a_support_of_two_cannot_move() -> None:
    """Both norms fix two entries."""
    rows = ([10000.2919921875, 10000.2890625, 10000.201171875], [0.4870e-6, 0.9839283e-6, 0.9961359e-6])
    for row, s in zip(rows, (0.9, 0.6), strict=True):
        x = torch.tensor(row, requires_grad=True)
        y = F.hoyer_projection(x, s, nonneg=True)
        assert int((y != 0).sum()) == 2
        (got,) = torch.autograd.grad(y, x, torch.tensor([1.0, -0.3, 0.7]))
        assert float(got.abs().max()) <= 1e-3 * float(1 / x.detach().diff().abs().max())


def test_a_constant_result_has_a_gradient_of_zero() -> None:
    x = random_rows(30, 9, seed=0).requires_grad_()
    for nonneg in (False, True):
        y = F.hoyer_projection(x, 0.0, nonneg=nonneg)
        (got,) = torch.autograd.grad(y, x, random_rows(30, 9, seed=1))
        assert float(got.abs().max()) <= 1e-6


@pytest.mark.parametrize("s", [1e-6, 0.1, 0.5, 0.9, 1 - 1e-6])
def test_almost_equal_entries_are_no_less_feasible(s: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        n = int(rng.integers(2, 40))
        x = rng.standard_normal(n) * 10.0 ** rng.integers(-6, 7)
        almost = rng.random(n) < rng.choice([0.7, 1.0])
        x[almost] = x[0] * (1 + 10.0 ** rng.integers(-16, -4) * rng.standard_normal(n)[almost])
        for nonneg in (False, True):
            assert_feasible(F.hoyer_projection(torch.from_numpy(x), s, nonneg=nonneg).numpy(), s)
            single = F.hoyer_projection(torch.from_numpy(x).float(), s, nonneg=nonneg).double().numpy()
            assert np.sqrt((single**2).sum()) == pytest.approx(1.0, abs=1e-4)
            assert sparseness_of(single) == pytest.approx(s, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("s", [1e-15, 1e-12, 1e-10, 1e-9, 1.5e-9, 1e-8, 1e-6])
def test_a_sparseness_of_almost_zero(s: float, dtype: torch.dtype) -> None:
    """A result that is constant up to rounding still has the norm."""
    rows = [random_rows(1, n, seed=n)[0].mul(10).round().div(10) for n in range(2, 120)]
    rows.append(torch.tensor([1.1, 1.8, -2.6, -0.1, 1.0]))
    for x in rows:
        for nonneg in (False, True):
            y = F.hoyer_projection(x.to(dtype), s, nonneg=nonneg)
            assert float(y.double().norm()) == pytest.approx(1.0, abs=1e-6)


def test_ties_above_and_below_the_critical_number() -> None:
    """k equal largest entries take all of the result as soon as k >= (l1 / l2)^2."""
    n = 12
    for s in (0.2, 0.5, 0.8):
        critical = ratio_of(s, n) ** 2
        for k in range(1, n + 1):
            x = torch.cat([torch.full((k,), 1.0), -0.1 * torch.arange(n - k)]).double()
            y = F.hoyer_projection(x, s, nonneg=True).numpy()
            assert_feasible(y, s)
            if k >= critical:
                assert (y[k:] == 0).all()
            else:
                assert (y[k:] > 0).any()
                assert np.ptp(y[:k]) < 1e-12
                np.testing.assert_allclose(y, by_alternating_projections(x.numpy(), s), atol=1e-9)


def test_tied_smaller_entries_stay_tied() -> None:
    x = torch.tensor([3.0, 1.0, 1.0, 1.0, 0.5, 0.5, -1.0, -1.0], dtype=torch.float64)
    for s in TARGETS:
        for nonneg in (False, True):
            y = F.hoyer_projection(x, s, nonneg=nonneg).abs() if not nonneg else F.hoyer_projection(x, s, nonneg=True)
            expected = by_alternating_projections(x.numpy() if nonneg else np.abs(x.numpy()), s)
            np.testing.assert_allclose(y.numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("nonneg", [False, True])
def test_sparseness_one_is_one_hot(nonneg: bool) -> None:
    x = random_rows(30, 8, seed=0)
    y = F.hoyer_projection(x, 1.0, nonneg=nonneg, norm=2.5)
    z = x if nonneg else x.abs()
    expected = 2.5 * torch.nn.functional.one_hot(z.argmax(-1), 8) * (1.0 if nonneg else x.sign())
    torch.testing.assert_close(y, expected.double(), atol=1e-7, rtol=0)


@pytest.mark.parametrize("nonneg", [False, True])
def test_sparseness_zero_is_constant(nonneg: bool) -> None:
    x = random_rows(30, 8, seed=0)
    y = F.hoyer_projection(x, 0.0, nonneg=nonneg, norm=2.5)
    expected = torch.full_like(x, 2.5 / math.sqrt(8))
    torch.testing.assert_close(y, expected if nonneg else x.sign() * expected, atol=1e-12, rtol=0)
    zeros = F.hoyer_projection(torch.tensor([0.0, -0.0, -1.0, 1.0]), 0.0)
    torch.testing.assert_close(zeros, torch.tensor([0.5, 0.5, -0.5, 0.5]))


def test_a_single_entry_is_plus_or_minus_the_norm() -> None:
    x = torch.tensor([[3.0], [-0.2], [0.0], [-0.0]], dtype=torch.float64)
    for s in (0.0, 0.5, 1.0):
        signed = F.hoyer_projection(x, s, norm=1.5)
        torch.testing.assert_close(signed, torch.tensor([[1.5], [-1.5], [1.5], [1.5]], dtype=torch.float64))
        torch.testing.assert_close(F.hoyer_projection(x, s, norm=1.5, nonneg=True), torch.full_like(x, 1.5))
    mask = torch.tensor([[False, True, False], [False, False, True]])
    y = F.hoyer_projection(torch.tensor([[9.0, -0.5, 9.0], [9.0, 9.0, 0.5]]), 0.7, mask=mask)
    torch.testing.assert_close(y, torch.tensor([[0.0, -1.0, 0.0], [0.0, 0.0, 1.0]]))


def test_n_counts_the_allowed_entries() -> None:
    x, mask = random_rows(40, 12, seed=0), random_rows(40, 12, seed=1) > 0
    mask[:, :2] = True
    for nonneg in (False, True):
        y = F.hoyer_projection(x, 0.6, mask=mask, nonneg=nonneg)
        for row, keep, got in zip(x, mask, y, strict=True):
            assert bool((got[~keep] == 0).all())
            assert_feasible(got[keep].numpy(), 0.6)
            torch.testing.assert_close(got[keep], F.hoyer_projection(row[keep], 0.6, nonneg=nonneg))


@pytest.mark.parametrize("nonneg", [False, True])
@pytest.mark.parametrize("s", TARGETS)
def test_derivative_equals_differences(s: float, nonneg: bool) -> None:
    x, direction = random_rows(60, 9, seed=2), random_rows(60, 9, seed=3)
    mask = random_rows(60, 9, seed=4) > -1
    mask[:, :3] = True

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.hoyer_projection(x, s, nonneg=nonneg, norm=1.7, mask=mask)

    change = central_difference(function, x, direction)
    # where an entry is about to enter, the two sides differ
    smooth = ((function(x + 1e-4 * direction) != 0) == (function(x - 1e-4 * direction) != 0)).all(-1)
    assert int(smooth.sum()) > 40
    along = torch.func.jvp(function, (x,), (direction,))[1]
    torch.testing.assert_close(along[smooth], change[smooth], atol=1e-7, rtol=1e-6)
    leaf, weights = x.clone().requires_grad_(), random_rows(60, 9, seed=5)
    (pulled,) = torch.autograd.grad(function(leaf), leaf, weights)
    torch.testing.assert_close((pulled * direction).sum(-1), (along * weights).sum(-1))


@pytest.mark.parametrize("s", [0.2, 0.6, 0.9])
def test_vector_jacobian_product_is_the_formula(s: float) -> None:
    """``kappa (g - mean g - v <v, g>)`` on the support, v the unit vector along x less its mean."""
    x, weights = random_rows(20, 11, seed=2), random_rows(20, 11, seed=3)
    leaf = x.clone().requires_grad_()
    y = F.hoyer_projection(leaf, s, norm=1.3)
    (got,) = torch.autograd.grad(y, leaf, weights)
    for row, result, g, pulled in zip(x.numpy(), y.detach().numpy(), weights.numpy(), got.numpy(), strict=True):
        inside, sign = result != 0, np.sign(row)
        a, g = np.abs(row)[inside], (sign * g)[inside]
        away = a - a.mean()
        total = 1.3 * ratio_of(s, 11)
        kappa = math.sqrt(1.3**2 - total**2 / inside.sum()) / np.sqrt((away**2).sum())
        v = away / np.sqrt((away**2).sum())
        expected = np.zeros(11)
        expected[inside] = sign[inside] * kappa * (g - g.mean() - v * (v @ g))
        np.testing.assert_allclose(pulled, expected, atol=1e-10)


def test_scale_and_norm() -> None:
    x = random_rows(20, 9, seed=0)
    y = F.hoyer_projection(x, 0.6)
    torch.testing.assert_close(F.hoyer_projection(1e-9 * x, 0.6), y, atol=1e-9, rtol=0)
    torch.testing.assert_close(F.hoyer_projection(1e9 * x, 0.6), y, atol=1e-9, rtol=0)
    torch.testing.assert_close(F.hoyer_projection(x, 0.6, norm=7.0), 7 * y)
    torch.testing.assert_close(F.hoyer_projection(-x, 0.6), -y)
    torch.testing.assert_close(F.hoyer_projection(x - 3, 0.6, nonneg=True), F.hoyer_projection(x, 0.6, nonneg=True))


def test_value_is_the_inner_product() -> None:
    x = random_rows(10, 9, seed=0)
    mapping = HoyerProjection(0.6, norm=2.0)
    y = mapping(x)
    torch.testing.assert_close(mapping.value(x), (x * y).sum(-1))
    for other in (y.flip(-1), y.roll(1, -1), -y):  # as sparse, of the same norm, and no better
        assert bool(((x * other).sum(-1) <= mapping.value(x) + 1e-12).all())


@pytest.mark.parametrize("s", [-0.01, 1.01, math.nan, math.inf, "0.5", None, True])
def test_sparseness_out_of_range(s: object) -> None:
    for call in (HoyerProjection, lambda s: F.hoyer_projection(torch.zeros(3), s)):
        with pytest.raises(ConfigurationError, match="`sparseness` to be a number"):
            call(s)  # type: ignore[operator]


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf, "1", None])
def test_norm_out_of_range(norm: object) -> None:
    with pytest.raises(ConfigurationError, match="`norm` to be a positive"):
        HoyerProjection(0.5, norm=norm)  # type: ignore[arg-type]


def test_no_loss_without_probabilities() -> None:
    with pytest.raises(ConfigurationError, match="onto the simplex"):
        FenchelYoungLoss(HoyerProjection(0.5))
