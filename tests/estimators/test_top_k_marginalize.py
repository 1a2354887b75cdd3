"""Top-k sparsemax over bit vectors against sparsemax over all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import Estimator, LatentBatch, ScoreFunction, SumAndSample, TopKMarginalize
from lit_sparse.mappings import functional as F


def all_bits(d: int) -> Tensor:
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=d)), dtype=torch.float64)


def loss_fn(latent: LatentBatch) -> Tensor:
    """A loss that tells all vectors apart."""
    weights = torch.arange(1.0, latent.values.shape[1] + 1, dtype=latent.values.dtype)
    return (latent.values @ weights).sin() + latent.values.sum(-1).square()


@pytest.mark.parametrize("k", [1, 2, 5, 10, 200])
@pytest.mark.parametrize("d", [1, 3, 7])
def test_equals_top_k_sparsemax_of_all_vectors(d: int, k: int) -> None:
    scores = torch.randn(20, d, generator=torch.Generator().manual_seed(d), dtype=torch.float64) * 0.3
    ours, theirs = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    out = TopKMarginalize(k)(ours, loss_fn)
    probs = F.topk_sparsemax(theirs @ all_bits(d).t(), k)
    expected = probs @ loss_fn(LatentBatch(all_bits(d), torch.arange(2**d)))
    torch.testing.assert_close(out.loss, expected)
    assert torch.equal(out.decoder_calls, (probs > 0).sum(-1))
    weights = torch.linspace(-1, 1, 20, dtype=torch.float64)
    (got,) = torch.autograd.grad(out.loss @ weights, ours)
    (wanted,) = torch.autograd.grad(expected @ weights, theirs)
    torch.testing.assert_close(got, wanted)


def test_second_derivatives() -> None:
    scores = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.3
    factor = torch.ones(1, dtype=torch.float64, requires_grad=True)

    def expected_loss(scores: Tensor, factor: Tensor) -> Tensor:
        return TopKMarginalize(6)(scores, lambda latent: loss_fn(latent) * factor.square()).loss

    assert torch.autograd.gradgradcheck(expected_loss, (scores.requires_grad_(), factor))


def test_large_scores_keep_small_differences() -> None:
    scores = torch.full((1, 100), 1e5)
    scores[0, :2] = torch.tensor([0.25, -0.125])
    out = TopKMarginalize(4)(scores, loss_fn)
    expected = F.sparsemax(torch.tensor([0.0, -0.125, -0.25, -0.375]))
    torch.testing.assert_close(out.probs, expected[expected > 0])


def test_with_all_bits_forbidden_the_zero_vector_is_left() -> None:
    scores = torch.full((2, 3), -torch.inf)
    scores[1] = torch.tensor([-torch.inf, 0.0, -torch.inf])
    seen: list[LatentBatch] = []

    def keep(latent: LatentBatch) -> Tensor:
        seen.append(latent)
        return latent.values.sum(-1)

    out = TopKMarginalize(5)(scores.requires_grad_(), keep)
    assert seen[0].values.tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert out.probs.tolist() == [1.0, 0.5, 0.5]
    out.loss.sum().backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [[0, 0, 0], [0, 0.5, 0]]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_broken_row_shows_in_its_loss_alone(bad: float) -> None:
    scores = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    expected = TopKMarginalize(4)(scores, loss_fn).loss
    scores[1, 3] = bad
    loss = TopKMarginalize(4)(scores, loss_fn).loss
    assert loss.isnan().tolist() == [False, True, False]
    assert torch.equal(loss[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_bad_k(k: int) -> None:
    with pytest.raises(ConfigurationError, match="`k` to be an integer of at least 1"):
        TopKMarginalize(k)


@pytest.mark.gate
@pytest.mark.parametrize("estimator", [TopKMarginalize(3), SumAndSample(2, "bits"), ScoreFunction(latent="bits")], ids=repr)
@pytest.mark.parametrize("context", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_compiled_estimators_over_bits(estimator: Estimator, context: Callable[[], Any]) -> None:
    """Lightning validates, tests and predicts in inference mode."""
    weight, scores = torch.randn(8), torch.randn(5, 8)

    def step(scores: Tensor) -> Tensor:
        return estimator.eval()(scores, lambda latent: (latent.values @ weight).square()).loss

    torch._dynamo.reset()
    with context():
        torch.manual_seed(1)
        expected = step(scores)
        torch.manual_seed(1)
        torch.testing.assert_close(torch.compile(step, backend="eager")(scores), expected)
