"""Sparse gradients of the supervised online auto-encoder."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import HardThreshold, HoyerProjection
from lit_sparse.models import SupervisedOnlineAutoencoder

from .test_soae import at_epoch, batch_of, digits, started, trainer


@pytest.mark.parametrize("batch_size", [1, 6])
@pytest.mark.parametrize("mapping", [HoyerProjection(0.8), HardThreshold(3), HoyerProjection(0.6, nonneg=True)], ids=repr)
def test_a_sparse_gradient_is_the_gradient(mapping: nn.Module, batch_size: int) -> None:
    dense = at_epoch(started(mapping).double(), 3)
    sparse = at_epoch(started(mapping, sparse_gradient=True).double(), 3)
    sparse.load_state_dict(dense.state_dict())
    batch = batch_of(dense, batch_size)
    for model in (dense, sparse):
        model.run_step(batch, 0, "train")["loss"].backward()
    assert sparse.bases.grad is not None
    assert sparse.bases.grad.is_sparse
    torch.testing.assert_close(sparse.bases.grad.to_dense(), dense.bases.grad)
    torch.testing.assert_close(sparse.output.weight.grad, dense.output.weight.grad)
    if batch_size == 1:
        rows = sparse.bases.grad.coalesce().indices().unique().numel()
        assert rows == int(sparse.encode(batch["pixels"]).ne(0).sum()), "only active units are updated"


@pytest.mark.gate
def test_sparse_updates_train_to_the_same_weights() -> None:
    found = []
    for sparse_gradient in (False, True):
        torch.manual_seed(0)
        sgd = functools.partial(torch.optim.SGD, lr=0.05)
        model = SupervisedOnlineAutoencoder(
            HoyerProjection(0.8), in_features=64, width=40, optimizer=sgd, sparse_gradient=sparse_gradient
        )
        trainer(max_epochs=2, limit_train_batches=300).fit(model, digits(batch_size=1))
        found.append(model.bases.detach().clone())
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("options", "settings", "message"),
    [
        ({"optimizer": torch.optim.Adam}, {}, "an optimizer other than torch.optim.SGD"),
        ({"optimizer": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)}, {}, "momentum or weight decay"),
        ({}, {"gradient_clip_val": 1.0}, "trainer.gradient_clip_val"),
    ],
)
def test_what_a_sparse_gradient_cannot_do(options: dict[str, Any], settings: dict[str, Any], message: str) -> None:
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    model = SupervisedOnlineAutoencoder(
        HoyerProjection(0.8), in_features=64, width=40, sparse_gradient=True, **{"optimizer": sgd, **options}
    )
    with pytest.raises(ConfigurationError, match=f"`sparse_gradient` alone but got {message}"):
        trainer(max_epochs=1, **settings).fit(model, digits())
    with pytest.raises(ConfigurationError, match="a sparse mapping with"):
        SupervisedOnlineAutoencoder(nn.Tanh(), sparse_gradient=True)
