"""Metrics keep their precision when their model is cast, and their sums when a batch is refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.metrics import Bleu, MeanOverExamples


def test_a_cast_module_still_sums_in_full_precision() -> None:
    module = nn.Module()
    module.mean = MeanOverExamples()
    module.weight = nn.Parameter(torch.ones(1))
    module.to(torch.bfloat16)
    assert module.weight.dtype == torch.bfloat16
    assert module.mean.total.dtype == torch.float64
    for _ in range(1000):
        module.mean.update(torch.tensor([1.001]))
    assert abs(float(module.mean.compute()) - 1.001) < 1e-6


def test_a_process_without_a_batch_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bool(MeanOverExamples().compute().isnan())


def test_a_refused_batch_leaves_a_metric_as_it_was() -> None:
    metric = Bleu()
    metric.update(["a b c d e"], [["a b c d e"]])
    with pytest.raises(DataError):
        metric(["a"], [[3]])
    assert float(metric.compute()["bleu"]) == pytest.approx(100.0)
    metric.update([""], [["f g"]])
    assert 0 < float(metric.compute()["bleu"]) < 100


@pytest.mark.parametrize(
    "values", [torch.ones(2, dtype=torch.complex64), torch.ones(2, device="meta"), torch.ones(2).to_sparse(), [1.0], None, "ab"]
)
def test_metrics_sum_real_numbers_in_tensors(values: Any) -> None:
    metric = MeanOverExamples()
    with pytest.raises(ConfigurationError):
        metric.update(values)
    assert int(metric.count) == 0
