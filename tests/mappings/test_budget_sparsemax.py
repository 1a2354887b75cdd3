"""Budget sparsemax against its definition: the sum is piecewise linear in the threshold, with pieces between known points."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import BudgetSparsemax
from lit_sparse.mappings import functional as F
from tests.mappings.second_opinions import dense_jacobian, random_rows

BUDGETS = [0.0, 1e-7, 0.3, 1.0, 2.5, 7.0, 1000.0, math.inf]


def by_pieces(z: np.ndarray, k: float) -> np.ndarray:
    """Interpolate between the two of the points z and z - 1 around the threshold."""
    if np.clip(z, 0, 1).sum() <= k:
        return np.clip(z, 0, 1)
    points = np.sort(np.r_[z, z - 1, 0.0])
    sums = np.clip(z - points[:, None], 0, 1).sum(1)  # falling
    last = np.flatnonzero(sums > k)[-1]
    share = (sums[last] - k) / (sums[last] - sums[last + 1])
    return np.clip(z - (points[last] + share * (points[last + 1] - points[last])), 0, 1)


@pytest.mark.parametrize("k", BUDGETS)
@pytest.mark.parametrize("gamma", [0.2, 1.0, 7.0])
def test_equals_the_definition(k: float, gamma: float) -> None:
    for d in (1, 2, 5, 40, 300):
        for x in (random_rows(10, d, seed=d, scale=2.0), random_rows(10, d, seed=d, scale=4.0).round() / 4):
            expected = np.stack([by_pieces(row, k) for row in (x / gamma).numpy()])
            np.testing.assert_allclose(F.budget_sparsemax(x, k, gamma=gamma).numpy(), expected, atol=1e-12)


def test_a_budget_of_one_is_sparsemax_where_it_binds() -> None:
    x = random_rows(50, 9, seed=0) + 2
    torch.testing.assert_close(F.budget_sparsemax(x, 1), F.sparsemax(x), atol=1e-14, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ties_of_huge_scores_share_the_budget(dtype: torch.dtype) -> None:
    x = torch.tensor([3e38, 1e38, 3e38, 3e38, -3e38], dtype=dtype)
    torch.testing.assert_close(F.budget_sparsemax(x, 2), torch.tensor([2.0, 0.0, 2.0, 2.0, 0.0], dtype=dtype) / 3)
    assert F.budget_sparsemax(x, 3.5)[1] == 0.5


def test_jacobian_is_the_formula() -> None:
    """``I - 1 1^T / n`` over gamma among the weights between 0 and 1 where the budget binds, ``I`` where it does not."""
    binding = set()
    for x in random_rows(40, 6, seed=1):
        y = F.budget_sparsemax(x, 1.5, gamma=0.6)
        inside = ((y > 0) & (y < 1)).double()
        binds = bool((x / 0.6).clamp(0, 1).sum() > 1.5)
        expected = (torch.diag(inside) - binds * torch.outer(inside, inside) / inside.sum().clamp_min(1)) / 0.6
        got = dense_jacobian(lambda row: F.budget_sparsemax(row, 1.5, gamma=0.6), x)
        np.testing.assert_allclose(got, expected.numpy(), atol=1e-12)
        binding.add(binds)
    assert binding == {True, False}


def test_a_whole_budget_with_a_gap_below_is_a_constant_choice() -> None:
    x = torch.tensor([9.0, 7.0, 2.0, -1.0], requires_grad=True)
    y = F.budget_sparsemax(x, 2)
    assert y.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert torch.autograd.grad(y, x, torch.arange(4.0))[0].tolist() == [0.0] * 4


def test_agrees_with_the_published_package() -> None:
    package = pytest.importorskip("entmax")
    x = random_rows(30, 20, seed=0) + 1  # its budget is an equation
    torch.testing.assert_close(F.budget_sparsemax(x, 3), package.budget_bisect(x, 3, dim=-1, n_iter=100), atol=1e-10, rtol=0)


@pytest.mark.parametrize("k", [-0.1, math.nan, -math.inf, "2", None, True])
def test_k_out_of_range(k: object) -> None:
    for call in (BudgetSparsemax, lambda k: F.budget_sparsemax(torch.zeros(3), k)):
        with pytest.raises(ConfigurationError, match="`k` to be a number"):
            call(k)  # type: ignore[operator]
