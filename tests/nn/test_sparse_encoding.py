"""A layer with sparse gradients computes what the dense layer does."""

from __future__ import annotations

import pytest
import torch

from lit_sparse.nn.sparse_encoding import sparse_decode, sparse_encode


@pytest.mark.parametrize("active", [0, 1, 5])
def test_values_and_gradients_equal_the_dense_ones(active: int) -> None:
    generator = torch.Generator().manual_seed(active)
    x, weight = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((4, 6), (9, 6)))
    mask = torch.zeros(9, dtype=torch.float64)
    mask[torch.randperm(9, generator=generator)[:active]] = 1.0
    found = []
    for encode, decode in ((sparse_encode, sparse_decode), (lambda x, w: x @ w.T, lambda h, w: h @ w)):
        leaf, rows = x.clone().requires_grad_(), weight.clone().requires_grad_()
        decoded = decode(encode(leaf, rows) * mask, rows)
        decoded.square().sum().backward()
        assert leaf.grad is not None
        assert rows.grad is not None
        found.append((decoded.detach(), leaf.grad, rows.grad))
    (ours, theirs) = found
    assert ours[2].layout == torch.sparse_coo
    assert ours[2].coalesce().indices().shape[1] == active, "rows of the active units alone"
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one.to_dense(), other, rtol=1e-12, atol=1e-12)


def test_autocast_keeps_the_type_of_the_weights() -> None:
    x, weight = torch.randn(3, 4), torch.randn(5, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sparse_decode(sparse_encode(x, weight).relu(), weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    assert bool(weight.grad.to_dense().isfinite().all())
