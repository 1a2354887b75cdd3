"""Properties of top-k sparsemax and top-k entmax."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import TopKEntmax, TopKSparsemax
from lit_sparse.mappings import functional as F


def brute_force(x: Tensor, k: int, alpha: float) -> Tensor:
    """The best entmax over every subset of at most k entries."""
    best, answer = -float("inf"), torch.zeros_like(x)
    for subset in itertools.combinations(range(len(x)), min(k, len(x))):
        y = torch.zeros_like(x)
        y[list(subset)] = F.sparsemax(x[list(subset)]) if alpha == 2.0 else F.entmax(x[list(subset)], alpha)
        value = float(y @ x - TopKEntmax(k, alpha).regularizer(y))
        if value > best + 1e-12:
            best, answer = value, y
    return answer


@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_equals_brute_force_over_subsets(k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    for draw in range(60):
        x = 0.4 * torch.randn(7, generator=generator, dtype=torch.float64)
        torch.testing.assert_close(F.topk_sparsemax(x, k), brute_force(x, k, 2.0), atol=1e-12, rtol=0)
        torch.testing.assert_close(F.topk_entmax(x, k, 2.0), F.topk_sparsemax(x, k))
        if draw < 20:
            torch.testing.assert_close(F.topk_entmax(x, k), brute_force(x, k, 1.5))


def test_equals_sparsemax_where_its_support_is_small() -> None:
    x = torch.randn(200, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    full, cut = F.sparsemax(x), F.topk_sparsemax(x, 3)
    small = (full > 0).sum(-1) <= 3
    assert 0 < int(small.sum()) < 200
    torch.testing.assert_close(cut[small], full[small], atol=0, rtol=0)
    assert bool(((cut > 0).sum(-1) <= 3).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ties_go_to_the_lowest_index(dtype: torch.dtype) -> None:
    x = torch.tensor([0.1, 0.3, 0.3, 0.2, 0.3, -0.0, 0.0], dtype=dtype)
    assert F.topk_sparsemax(x, 2).nonzero().flatten().tolist() == [1, 2]
    for function in (F.topk_sparsemax, F.topk_entmax):
        assert function(torch.zeros(300, dtype=dtype), 130).nonzero().flatten().tolist() == list(range(130))


@pytest.mark.parametrize("k", [0, -1, 1.5, "2", True, None])
def test_bad_k(k: object) -> None:
    with pytest.raises(ConfigurationError, match="`k` to be an integer of at least 1"):
        TopKSparsemax(k)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="`k` to be an integer of at least 1"):
        F.topk_sparsemax(torch.zeros(3), k)  # type: ignore[arg-type]


def test_bad_alpha() -> None:
    with pytest.raises(ConfigurationError, match="`alpha`"):
        TopKEntmax(3, 1.0)


def test_zeros_of_either_sign_are_equal() -> None:
    """Ties go to the lowest index."""
    for row in ([-0.0, 0.0, 0.0], [0.0, -0.0, 0.0], [-1.0, -0.0, 0.0], [1.0, -0.0, 0.0]):
        x = torch.tensor(row)
        for k in (1, 2):
            torch.testing.assert_close(F.topk_sparsemax(x, k), F.topk_sparsemax(x + 0.0, k), atol=0, rtol=0)


@pytest.mark.parametrize("k", [2**62, 2**63 - 1])
def test_any_large_k_means_all_entries(k: int) -> None:
    scores = torch.tensor([[0.3, -1.0, 0.2]])
    assert torch.equal(TopKSparsemax(k)(scores), TopKSparsemax(3)(scores))


@pytest.mark.parametrize("k", [2**63, 2**70])
def test_a_k_beyond_64_bits_is_refused(k: int) -> None:
    for refused in (TopKSparsemax, lambda k: F.topk_sparsemax(torch.zeros(3), k)):
        with pytest.raises(ConfigurationError, match=f"`k` to be an integer of at most {2**63 - 1} but got {k}"):
            refused(k)
