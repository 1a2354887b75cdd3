"""Bits per dimension, and the error of their mean."""

from __future__ import annotations

import math

import pytest
import torch

from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.metrics import BitsPerDim


def test_the_error_is_that_of_a_mean_of_independent_estimates() -> None:
    generator = torch.Generator().manual_seed(0)
    truth, errors = -2000 - 50 * torch.rand(30, generator=generator), 1 + torch.rand(30, generator=generator)
    means = []
    for _ in range(400):
        metric = BitsPerDim(784)
        for part in range(0, 30, 7):
            some = slice(part, part + 7)
            metric.update(truth[some] + errors[some] * torch.randn(truth[some].shape, generator=generator), errors[some])
        found = metric.compute()
        means.append(found["mean"])
    drawn = torch.stack(means)
    assert float(drawn.mean()) == pytest.approx(float(-truth.double().mean()) / 784 / math.log(2), abs=4e-4)
    assert float(drawn.std()) == pytest.approx(float(found["standard_error"]), rel=0.15)


def test_states_are_sums() -> None:
    """So that several processes add up to what one would have."""
    metric = BitsPerDim(3)
    assert {"total", "variance", "count"} <= set(metric._reductions)
    assert all(float(reduce(torch.tensor([1.0, 2.0]))) == 3 for reduce in metric._reductions.values())
    metric.update(torch.tensor([-3.0]))
    assert float(metric.compute()["standard_error"]) == 0
    assert metric.compute()["mean"].dtype == torch.float64


def test_before_any_example() -> None:
    metric = BitsPerDim(3)
    metric.update(torch.zeros(0))
    assert bool(metric.compute()["mean"].isnan())


@pytest.mark.parametrize("bad", [0, -1, 1.5, True])
def test_bad_dimensions(bad: int) -> None:
    with pytest.raises(ConfigurationError, match="`dimensions`"):
        BitsPerDim(bad)


def test_errors_of_other_examples() -> None:
    metric = BitsPerDim(3)
    with pytest.raises(DataError, match="a standard error per log likelihood"):
        metric.update(torch.zeros(3), torch.zeros(2))
    with pytest.raises(DataError, match="at least 0 but got -1"):
        metric.update(torch.zeros(3), -torch.ones(3))
    assert int(metric.count) == 0
