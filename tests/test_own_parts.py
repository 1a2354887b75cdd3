"""Wrong results of a user's own parts are refused by the name of the part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_sparse.coresets import CoresetSelector, Selection
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import Marginalize
from lit_sparse.mappings import Sparsemax
from lit_sparse.models import LitSparseModule
from lit_sparse.nn import attention
from lit_sparse.risks import Risk
from lit_sparse.testing import check_risk


class Given(CoresetSelector):
    """Return what the test gives."""

    def __init__(self, found: Any) -> None:
        super().__init__()
        self.found = found

    def select(self, vectors: Any, k: int, generator: torch.Generator) -> Any:
        return self.found


def selection(indices: list[int], weights: list[float]) -> Selection:
    return Selection(torch.tensor(indices), torch.tensor(weights))


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ((torch.tensor([0]), torch.tensor([1.0])), "return a Selection but got a tuple"),
        (selection([0, 1, 2], [1.0, 1.0, 1.0]), "at most 2 indices but got 3"),
        (selection([1, 4], [1.0, 1.0]), "indices in 0 .. 3 but got 4"),
    ],
)
def test_a_selector(found: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"`select` of .*Given.*{text}"):
        Given(found)(torch.eye(4), 2)
    assert Given(selection([2, 0], [1.0, 2.0]))(torch.eye(4), 2).indices.tolist() == [0, 2]


class OwnEstimator(Marginalize):
    result: Any = None

    def expect(self, scores: Tensor, loss_fn: Any, context: Tensor | None) -> Any:
        found = super().expect(scores, loss_fn, context)
        if self.result == "tensor":
            return found.loss
        return replace(found, loss=found.loss.sum()) if self.result == "scalar" else found


def test_an_estimator() -> None:
    estimator = OwnEstimator(mapping=Sparsemax())
    loss, scores = lambda latent: latent.values[:, 0], torch.zeros(5, 3)
    assert estimator(scores, loss).loss.shape == (5,)
    for result, text in (("tensor", "but got 'Tensor'"), ("scalar", r"but got a loss \(\)")):
        estimator.result = result
        with pytest.raises(ConfigurationError, match=rf"OwnEstimator.*loss of shape \(5,\).*{text}"):
            estimator(scores, loss)


class TrimmedMean(Risk):
    """The mean of all losses but the largest quarter."""

    convex = False
    unbiased = False

    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        weights = torch.ones_like(losses) if weights is None else weights
        order = losses.argsort()
        before = weights[order].cumsum(0) - weights[order]
        kept = torch.minimum(weights[order], (0.75 * weights.sum() - before).clamp_min(0))
        return (kept * losses[order]).sum() / kept.sum() * weights.mean()


class Nothing(Risk):
    def measure(self, losses: Tensor, weights: Tensor | None) -> Any:
        return None


def test_a_risk() -> None:
    check_risk(TrimmedMean())
    with pytest.raises(ConfigurationError, match=r"`measure` of .*Nothing.* to return a scalar tensor but got None"):
        Nothing()(torch.ones(3))


def test_a_model() -> None:
    class OwnModel(LitSparseModule):
        def step(self, batch: Any, batch_idx: int, stage: Any) -> Any:
            return torch.ones(())

    with pytest.raises(ConfigurationError, match=r"`step` of .*OwnModel.* to return a StepOutput but got a Tensor"):
        OwnModel().run_step({}, 0, "train")


class OfAnotherShape(Sparsemax):
    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        return super().map(scores, mask, dim).sum(dim, keepdim=True)


def test_a_mapping() -> None:
    x = torch.randn(2, 3, 4)
    for call in (
        lambda: OfAnotherShape()(x),
        lambda: OfAnotherShape().value(x),
        lambda: Marginalize(mapping=OfAnotherShape())(x[0], lambda latent: latent.values[:, 0]),
        lambda: attention(x, x, x, mapping=OfAnotherShape()),
    ):
        with pytest.raises(ConfigurationError, match=r"`map` of .*OfAnotherShape to return a tensor of the scores' shape"):
            call()
