"""Properties of hard thresholding: the k best entries, including ties and zeros."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import FenchelYoungLoss, HardThreshold
from lit_sparse.mappings import functional as F
from tests.mappings.second_opinions import dense_jacobian, random_rows


def by_brute_force(x: np.ndarray, k: int, nonneg: bool) -> np.ndarray:
    """The nearest point with at most k entries, over every choice of them; of equally near ones the first."""
    best, answer = np.inf, x
    size = min(k, len(x))
    for chosen in itertools.combinations(range(len(x)), size):
        y = np.zeros_like(x)
        y[list(chosen)] = np.maximum(x[list(chosen)], 0) if nonneg else x[list(chosen)]
        distance = ((y - x) ** 2).sum()
        if distance < best - 1e-12:
            best, answer = distance, y
    return answer


@pytest.mark.parametrize("nonneg", [False, True])
@pytest.mark.parametrize("k", [1, 2, 4, 8, 20])
def test_equals_brute_force(k: int, nonneg: bool) -> None:
    for dtype in (torch.float64, torch.float32):
        for x in random_rows(40, 8, seed=k).to(dtype):
            expected = by_brute_force(x.numpy(), k, nonneg)
            assert F.hard_threshold(x, k, nonneg=nonneg).numpy().tolist() == expected.tolist()


@pytest.mark.parametrize("nonneg", [False, True])
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_ties_go_to_the_lowest_index(k: int, nonneg: bool) -> None:
    for x in random_rows(60, 7, seed=k).round():
        expected = by_brute_force(x.numpy(), k, nonneg)
        got = F.hard_threshold(x, k, nonneg=nonneg)
        np.testing.assert_array_equal(got.numpy(), expected)
    x = torch.tensor([0.5, -2.0, 2.0, 2.0, -2.0])
    assert F.hard_threshold(x, 2).tolist() == [0.0, -2.0, 2.0, 0.0, 0.0]
    assert F.hard_threshold(x, 1, nonneg=True).tolist() == [0.0, 0.0, 2.0, 0.0, 0.0]
    assert F.hard_threshold(torch.ones(300), 130).nonzero().flatten().tolist() == list(range(130))


def test_long_rows_equal_a_stable_sort() -> None:
    for x in (random_rows(3, 4001, seed=0), random_rows(3, 4001, seed=0).round(decimals=1)):
        for k in (1, 17, 2000, 4000):
            for nonneg in (False, True):
                size = x.clamp_min(0) if nonneg else x.abs()
                order = np.argsort(-size.numpy(), axis=-1, kind="stable")[:, :k]
                expected = np.zeros(x.shape)
                np.put_along_axis(expected, order, np.take_along_axis(x.numpy(), order, -1), -1)
                expected = np.maximum(expected, 0) if nonneg else expected
                np.testing.assert_array_equal(F.hard_threshold(x, k, nonneg=nonneg).numpy(), expected)


def test_zeros_stay_zeros_and_their_derivative_is_that_of_what_was_chosen() -> None:
    x = torch.tensor([[0.0, 0.0, 0.0], [0.0, 3.0, 0.0], [-0.0, -1.0, 0.0]], requires_grad=True)
    y = F.hard_threshold(x, 2)
    assert y.tolist() == x.tolist()
    (got,) = torch.autograd.grad(y.sum(), x)
    assert got.tolist() == [[1, 1, 0], [1, 1, 0], [1, 1, 0]]
    y = F.hard_threshold(x, 2, nonneg=True)
    assert y.tolist() == [[0, 0, 0], [0, 3, 0], [0, 0, 0]]
    (got,) = torch.autograd.grad(y.sum(), x)
    assert got.tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_more_than_there_are_keeps_all() -> None:
    x = random_rows(20, 5, seed=0)
    assert torch.equal(F.hard_threshold(x, 5), x)
    assert torch.equal(F.hard_threshold(x, 10**9), x)
    assert torch.equal(F.hard_threshold(x, 6, nonneg=True), x.clamp_min(0))
    mask = random_rows(20, 5, seed=1) > 0
    assert torch.equal(F.hard_threshold(x, 5, mask=mask), x * mask)


def test_only_allowed_entries_are_counted() -> None:
    x = torch.tensor([9.0, -1.0, 8.0, 2.0, -3.0])
    mask = torch.tensor([False, True, False, True, True])
    assert F.hard_threshold(x, 2, mask=mask).tolist() == [0, 0, 0, 2, -3]
    assert F.hard_threshold(x, 2, mask=mask, nonneg=True).tolist() == [0, 0, 0, 2, 0]
    assert F.hard_threshold(-x.abs(), 3, mask=mask, nonneg=True).tolist() == [0, 0, 0, 0, 0]


def test_magnitudes_of_every_size_are_told_apart() -> None:
    x = torch.tensor([1e-45, -2e-45, 1e-38, -3e38, 1.0, -1.0000001, 0.0])
    for k in range(1, 8):
        chosen = x.abs().argsort(descending=True, stable=True)[:k]
        expected = torch.zeros(7).scatter(0, chosen, x[chosen])
        assert torch.equal(F.hard_threshold(x, k), expected)


@pytest.mark.parametrize("nonneg", [False, True])
def test_jacobian_is_the_choice(nonneg: bool) -> None:
    for x in random_rows(10, 6, seed=0):
        y = F.hard_threshold(x, 3, nonneg=nonneg)
        got = dense_jacobian(lambda row: F.hard_threshold(row, 3, nonneg=nonneg), x)
        np.testing.assert_array_equal(got, np.diag((y != 0).double().numpy()))


@pytest.mark.parametrize("nonneg", [False, True])
def test_value_is_half_the_sum_of_the_largest_squares(nonneg: bool) -> None:
    for k in (1, 3, 20):
        for x in random_rows(20, 7, seed=k):
            size = np.sort(np.maximum(x.numpy(), 0) if nonneg else np.abs(x.numpy()))[::-1]
            expected = 0.5 * (size[:k] ** 2).sum()
            assert float(HardThreshold(k, nonneg=nonneg).value(x)) == pytest.approx(expected)
            y = by_brute_force(x.numpy(), k, nonneg)
            assert (x.numpy() * y).sum() - 0.5 * (y**2).sum() == pytest.approx(expected)
    leaf = random_rows(5, 7, seed=0).requires_grad_()
    (got,) = torch.autograd.grad(HardThreshold(2, nonneg=nonneg).value(leaf).sum(), leaf)
    torch.testing.assert_close(got, F.hard_threshold(leaf.detach(), 2, nonneg=nonneg))


def test_points_outside_are_infinitely_bad() -> None:
    wide, negative = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, -2.0, 0.0])
    assert float(HardThreshold(2).regularizer(wide)) == float("inf")
    assert float(HardThreshold(2).regularizer(negative)) == 2.5
    assert float(HardThreshold(2, nonneg=True).regularizer(negative)) == float("inf")


@pytest.mark.parametrize("k", [0, -1, 1.5, "2", True, None])
def test_bad_k(k: object) -> None:
    for call in (HardThreshold, lambda k: F.hard_threshold(torch.zeros(3), k)):
        with pytest.raises(ConfigurationError, match="`k` to be an integer of at least 1"):
            call(k)  # type: ignore[operator]


def test_no_loss_without_probabilities() -> None:
    with pytest.raises(ConfigurationError, match="onto the simplex"):
        FenchelYoungLoss(HardThreshold(2))
