"""Every estimator keeps every promise; new estimators are found by walking the subclasses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lit_sparse.estimators import Estimator, Expectation, LatentBatch, Marginalize, TopKMarginalize
from lit_sparse.estimators.base import LossFunction
from lit_sparse.testing import ESTIMATOR_CHECKS, check_estimator, concrete_subclasses

EXAMPLES = [example for cls in concrete_subclasses(Estimator) for example in cls.examples()]


@pytest.mark.parametrize("estimator", EXAMPLES, ids=lambda estimator: type(estimator).__name__)
@pytest.mark.parametrize("check", ESTIMATOR_CHECKS)
def test_promise(check: str, estimator: Estimator) -> None:
    ESTIMATOR_CHECKS[check](estimator)


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


class _DecodesTwice(TopKMarginalize):
    """Each vector is listed twice, with half of its probability."""

    def over_support(self, probs: Tensor, values: Tensor, loss_fn: LossFunction) -> Expectation:
        return super().over_support(probs.repeat(1, 2) / 2, values.repeat(1, 2, 1), loss_fn)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (_DecodesEverything(), "cost"),
        (_ForgetsProbabilities(), "value_and_gradient"),
        (_ForgetsScores(3), "value_and_gradient"),
        (_IgnoresNaN(3), "odd_scores"),
        (_DecodesTwice(3), "cost"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_tester_finds_what_is_broken(broken: Estimator, check: str) -> None:
    with pytest.raises(AssertionError):
        ESTIMATOR_CHECKS[check](broken)


def test_check_estimator_names_the_promise() -> None:
    with pytest.raises(AssertionError, match="breaks its promise 'interface'"):
        check_estimator(_DecodesEverything())
