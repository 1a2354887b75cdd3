"""BatchTopK in training, and JumpReLU's thresholds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import BatchTopK, JumpReLU
from lit_sparse.mappings import functional as F


def scores(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_largest_scores_of_a_batch_are_kept() -> None:
    """Any dimension and batch shape, masked and broken rows, ties, and gradients of those that are kept."""
    x = scores(3, 4, 5)
    x[0, 0] += 3
    expected = torch.where(x >= x.flatten().topk(12 * 2).values[-1], x, 0.0)
    torch.testing.assert_close(F.batch_topk(x, 2), expected)
    torch.testing.assert_close(F.batch_topk(x.mT, 2, dim=-2), expected.mT)
    assert F.batch_topk(x.half(), 2).dtype == torch.float16
    mask = scores(3, 4, 5, seed=1) > 0
    mask[2, 1:] = False
    expected = torch.where(x * mask >= (x * mask).flatten().topk(int(mask.any(-1).sum())).values[-1], x * mask, 0.0)
    torch.testing.assert_close(F.batch_topk(x.masked_fill(~mask, torch.nan), 1, mask=mask), expected)
    broken = x.clone()
    broken[1, 1, 2], broken[2, 2, 0] = torch.nan, torch.inf
    y = F.batch_topk(broken, 2)
    assert y[1, 1].isnan().all() and y[2, 2].isnan().all() and int(y.isnan().sum()) == 10
    assert int((y.nan_to_num() != 0).sum()) == 24
    assert F.batch_topk(torch.ones(2, 3), 1).tolist() == [[1, 1, 0], [0, 0, 0]]
    assert F.batch_topk(-torch.ones(2, 3), 1).count_nonzero() == 0
    assert F.batch_topk(torch.ones(0, 3), 1).shape == (0, 3)
    assert torch.autograd.gradcheck(lambda x: F.batch_topk(x, 1), x.clone().requires_grad_())
    with pytest.raises(ConfigurationError, match="`k` to be an integer"):
        BatchTopK(0)


def test_the_cutoff_of_evaluation_keeps_k_on_average() -> None:
    """It is learnt in training alone, is a part of the state, and does not depend on the batch."""
    mapping = BatchTopK(3)
    for seed in range(100):
        mapping(scores(500, 40, seed=seed))
    x, cutoff = scores(20_000, 40, seed=999), float(mapping.cutoff)
    mapping.eval()
    y = mapping(x)
    assert float((y != 0).sum(1).double().mean()) == pytest.approx(3, rel=0.02)
    torch.testing.assert_close(mapping(x[:1]), y[:1])
    assert float(mapping.cutoff) == cutoff
    other = BatchTopK(3).eval()
    other.load_state_dict(mapping.state_dict())
    torch.testing.assert_close(other(x), y)


def test_slopes_of_thresholds() -> None:
    """In training they are averages over the band, by hand; the derivative in scores is exact; evaluation has none."""
    mapping = JumpReLU(2, shape=(5,), start=0.5, bandwidth=0.3).double()
    x, weights = scores(400, 5).requires_grad_(), scores(400, 5, seed=1)
    y = mapping(x)
    slope_x, slope_t = torch.autograd.grad((y * weights).sum(), [x, mapping.weight], retain_graph=True)
    torch.testing.assert_close(slope_x, weights * (x > 0.5))
    near = (x.detach() - 0.5).abs() < 0.15
    torch.testing.assert_close(slope_t, 10 * 0.5 * (-0.5 / 0.3 * near * weights).sum(0), rtol=1e-6, atol=1e-6)
    moved = mapping.map(x.mT, None, 0)
    torch.testing.assert_close(moved, y.mT)
    torch.testing.assert_close(torch.autograd.grad((moved * weights.mT).sum(), mapping.weight)[0], slope_t)
    mean = float((x > 0.5).double().sum(1).mean())
    penalty = mapping.penalty(x)
    assert float(penalty.detach()) == pytest.approx((mean / 2 - 1) ** 2)
    (slope,) = torch.autograd.grad(penalty, mapping.weight)
    torch.testing.assert_close(slope, 10 * 0.5 * (mean / 2 - 1) * (-near.double() / 0.3).mean(0), rtol=1e-6, atol=1e-6)
    mapping.eval()
    assert torch.equal(mapping(x), y)
    value = mapping.value(x)
    torch.testing.assert_close(value, 0.5 * torch.where(x > 0.5, x.square() - 0.25, 0.0).sum(1), rtol=1e-6, atol=1e-6)
    (slope,) = torch.autograd.grad(value.sum(), mapping.weight)
    torch.testing.assert_close(slope, -10 * 0.25 * (x > 0.5).double().sum(0), rtol=1e-6, atol=1e-6)
