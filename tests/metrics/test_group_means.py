"""Means by group, in batches and over processes."""

from __future__ import annotations

import pytest
import torch

from lit_sparse.errors import ConfigurationError
from lit_sparse.metrics import GroupMeans


def test_means_of_each_group_and_the_worst() -> None:
    generator = torch.Generator().manual_seed(0)
    values, groups = torch.rand(100, generator=generator), torch.randint(-2, 5, (100,), generator=generator)
    groups[groups == 3] = 9
    least, largest = GroupMeans("accuracy", "min"), GroupMeans("loss", "max")
    for part in torch.arange(100).split(7):
        least.update(values[part], groups[part])
        largest.update(values[part].half(), groups[part].int())
    means = {group: float(values[groups == group].double().mean()) for group in (0, 1, 2, 4, 9)}
    expected = {f"accuracy_group_{group}": mean for group, mean in means.items()} | {
        "worst_group_accuracy": min(means.values())
    }
    assert {name: float(value) for name, value in least.compute().items()} == pytest.approx(expected)
    assert float(largest.compute()["worst_group_loss"]) == pytest.approx(max(means.values()), abs=1e-3)


def test_nothing_without_groups_and_states_that_are_added_over_processes() -> None:
    metric = GroupMeans("loss", "max", max_groups=3)
    assert metric.compute() == {}
    metric.update(torch.ones(2), torch.tensor([-1, -100]))
    metric.update(torch.ones(0), torch.zeros(0, dtype=torch.int64))
    assert metric.compute() == {}
    assert {reduction.__name__ for reduction in metric._reductions.values()} == {"dim_zero_sum"}  # type: ignore[union-attr]
    with pytest.raises(ConfigurationError, match="at most 3 groups, numbered from 0, but got 3"):
        metric.update(torch.ones(1), torch.tensor([3]))
    with pytest.raises(ConfigurationError, match="worst"):
        GroupMeans("loss", "least")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="max_groups"):
        GroupMeans("loss", "max", 0)
