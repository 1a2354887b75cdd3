"""Every estimator passes every check; new estimators are found by walking the subclasses."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_sparse.estimators import (
    Estimator,
    Expectation,
    GumbelSoftmax,
    LatentBatch,
    LatentDistribution,
    LeaveOneOut,
    Marginalize,
    ScoreFunction,
    SumAndSample,
    TopKMarginalize,
    with_gradient_of,
)
from lit_sparse.estimators.base import LossFunction
from lit_sparse.mappings import Softmax
from lit_sparse.testing import ESTIMATOR_CHECKS, check_estimator, concrete_subclasses

EXAMPLES = [example for cls in concrete_subclasses(Estimator) for example in cls.examples()]


@pytest.mark.parametrize("estimator", EXAMPLES, ids=lambda estimator: type(estimator).__name__)
@pytest.mark.parametrize("check", ESTIMATOR_CHECKS)
def test_check(check: str, estimator: Estimator) -> None:
    ESTIMATOR_CHECKS[check](estimator)


#: A learnt baseline is no linear function of the losses.
LINEAR = [example for example in EXAMPLES if getattr(example, "baseline", None) != "learnt"]


@pytest.mark.parametrize("estimator", LINEAR, ids=lambda estimator: type(estimator).__name__)
def test_losses_times_a_power_of_two(estimator: Estimator) -> None:
    """The estimate is multiplied exactly, whatever is drawn."""
    scores = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    estimator = copy.deepcopy(estimator).double()
    if estimator.latent == "categorical":
        estimator.bind(Softmax())
    found = []
    for unit in (1.0, 2.0**-60, 2.0**60):
        torch.manual_seed(3)
        fresh = copy.deepcopy(estimator)
        loss = fresh(
            scores, lambda latent, unit=unit: unit * (latent.values * latent.values.new_tensor([3, 1, 2, 5, 4])).sum(-1)
        )
        found.append(loss.loss.detach() / unit)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


class _DecodesEverything(Estimator):
    """The dense loop: right, and ten times too expensive."""

    exact = True

    def expect(self, scores: Tensor, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        probs = self.probabilities(scores)
        b, k = scores.shape
        rows = torch.arange(b).repeat_interleave(k)
        losses = self.losses(loss_fn, LatentBatch(torch.eye(k, dtype=probs.dtype).repeat(b, 1), rows))
        size = (probs > 0).sum(-1)
        return Expectation(self.sum_by_example(probs.reshape(-1) * losses, rows, b), probs, rows, size, size)


class _ForgetsProbabilities(Marginalize):
    """No gradient reaches the scores."""

    def probabilities(self, scores: Tensor) -> Tensor:
        return super().probabilities(scores).detach() + 0 * scores


class _ForgetsScores(TopKMarginalize):
    """No gradient reaches the scores of the bits."""

    def expect(self, scores: Tensor, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        return super().expect(scores.detach() + 0 * scores.nan_to_num(), loss_fn, context)


class _IgnoresNaN(TopKMarginalize):
    """A broken row looks whole."""

    def expect(self, scores: Tensor, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        return super().expect(scores.nan_to_num(), loss_fn, context)


class _ListsCategories(Marginalize):
    """Lists one-hot values, as an estimator of bits lists its vectors."""

    def expect(self, scores: Tensor, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        values = torch.eye(scores.shape[1], dtype=scores.dtype).expand(len(scores), -1, -1)
        return self.over_support(self.probabilities(scores), values, loss_fn)


class _Squares(Marginalize):
    """Its distribution is another than its mapping's."""

    def expect(self, scores: Tensor, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        squares = self.probabilities(scores).square()
        return self.over_support(squares / squares.sum(-1, keepdim=True), None, loss_fn)


class _DecodesTwice(TopKMarginalize):
    """Each vector is listed twice, with half of its probability."""

    def over_support(self, probs: Tensor, values: Tensor, loss_fn: LossFunction) -> Expectation:
        return super().over_support(probs.repeat(1, 2) / 2, values.repeat(1, 2, 1), loss_fn)


class _KnowsItself(LeaveOneOut):
    """Each draw is among those that it is compared with."""

    def estimate(self, latent: LatentDistribution, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        decoded = self.decode(latent, latent.sample(self.k), loss_fn)
        seen = decoded.losses.detach()
        score = (seen - seen.mean(-1, keepdim=True)) * latent.log_prob(decoded.values)
        return self.expectation(latent, with_gradient_of(decoded.losses.mean(-1), score.mean(-1)), decoded)


class _Doubles(GumbelSoftmax):
    """Its loss is not the loss of a draw."""

    unbiased = True

    def estimate(self, latent: LatentDistribution, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        return super().estimate(latent, lambda batch: 2 * loss_fn(batch), context)


class _DrawsInEvaluation(ScoreFunction):
    def expect(self, scores: Tensor, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        return self.estimate(self.distribution(scores), loss_fn, context)


class _CountsForItself(ScoreFunction):
    """An estimator whose state lacks what it learns."""

    steps = 0

    def estimate(self, latent: LatentDistribution, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        self.steps += 1
        return super().estimate(latent, lambda batch: loss_fn(batch) + self.steps, context)


class _KeepsAList(_CountsForItself):
    """So is what it has in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = [0]

    def estimate(self, latent: LatentDistribution, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        self.seen.append(len(self.seen))
        return ScoreFunction.estimate(self, latent, lambda batch: loss_fn(batch) + len(self.seen), context)


class _KeepsABuffer(ScoreFunction):
    """A distributed model would broadcast it at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))


class _SpreadsNaN(SumAndSample):
    """A broken row reaches the others by their mean."""

    def estimate(self, latent: LatentDistribution, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        out = super().estimate(latent, loss_fn, context)
        return dataclasses.replace(out, loss=out.loss + 0 * out.loss.mean())


class _MissesEntropy(ScoreFunction):
    """Its entropy has no gradient."""

    def expectation(self, *arguments: Any, **options: Any) -> Expectation:
        out = super().expectation(*arguments, **options)
        return dataclasses.replace(out, analytic_entropy=out.entropy().detach())


class _MissesCalls(ScoreFunction):
    """The second draw is not counted."""

    def expectation(self, *arguments: Any, **options: Any) -> Expectation:
        out = super().expectation(*arguments, **options)
        return dataclasses.replace(out, decoder_calls=out.decoder_calls.clamp_max(1))


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (_KnowsItself(2), "unbiased"),
        (_KnowsItself(2, "bits"), "unbiased"),
        (_Doubles(), "unbiased"),
        (_DrawsInEvaluation(), "evaluation"),
        (_CountsForItself(), "state"),
        (_SpreadsNaN(1), "invalid_scores"),
        (_MissesEntropy(), "entropy"),
        (_MissesEntropy(latent="bits"), "entropy"),
        (_MissesCalls("self_critic"), "interface"),
        (_DecodesEverything(), "cost"),
        (_ForgetsProbabilities(), "value_and_gradient"),
        (_ForgetsScores(3), "value_and_gradient"),
        (_IgnoresNaN(3), "invalid_scores"),
        (_DecodesTwice(3), "cost"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_tester_finds_what_is_broken(broken: Estimator, check: str) -> None:
    with pytest.raises(AssertionError):
        ESTIMATOR_CHECKS[check](broken)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (_CountsForItself(), "steps changed outside of it: keep such things in a RunningMean"),
        (_KeepsAList(), "seen changed outside of it"),
        (_KeepsABuffer(), "no buffers such as steps"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_the_tester_says_what_state_is_lost(broken: Estimator, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        ESTIMATOR_CHECKS["state"](broken)


@pytest.mark.parametrize(
    ("broken", "check", "words"),
    [
        (_ListsCategories(), "interface", "call `over_support` without values"),
        (_Squares(), "value_and_gradient", "weighted by the probabilities of its mapping: "),
        (_Squares(), "entropy", "the entropy belongs to the probabilities of its mapping: "),
    ],
)
def test_the_tester_says_which_distribution_counts(broken: Estimator, check: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        ESTIMATOR_CHECKS[check](broken)


def test_an_estimator_that_draws_in_evaluation_as_asked_is_not_broken() -> None:
    check_estimator(ScoreFunction(evaluation="sample"))


def test_check_estimator_names_the_check() -> None:
    with pytest.raises(AssertionError, match="fails the check 'interface'"):
        check_estimator(_DecodesEverything())
