"""Counts and running averages keep their dtype, and go where the model goes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from lit_sparse.estimators.sampling import RunningMean
from lit_sparse.mappings import BatchTopK


@pytest.mark.parametrize("make", [RunningMean, lambda: BatchTopK(2)], ids=["RunningMean", "BatchTopK"])
def test_a_state_keeps_its_dtype_also_by_way_of_the_meta_device(make: Callable[[], nn.Module]) -> None:
    module = make()
    for parameter in module.parameters():
        parameter.fill_(0.1)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    half = nn.Sequential(module, nn.Linear(2, 2)).bfloat16()
    assert next(half[1].parameters()).dtype == torch.bfloat16
    for name, value in module.state_dict().items():
        assert value.dtype == before[name].dtype and torch.equal(value, before[name])
    module.to("meta").to_empty(device="cpu").load_state_dict(before)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
