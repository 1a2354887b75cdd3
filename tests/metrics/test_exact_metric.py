"""Metrics keep their precision when the model that holds them is cast."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from lit_sparse.metrics.means import MeanOverExamples


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
