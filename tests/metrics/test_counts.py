"""Histograms against sorting."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_sparse.errors import ConfigurationError
from lit_sparse.metrics import DecoderCalls, MeanOverExamples, SupportSize


def nearest_rank(values: list[int], percent: int) -> int:
    return sorted(values)[max(math.ceil(percent * len(values) / 100), 1) - 1]


@given(st.lists(st.lists(st.integers(0, 40), max_size=30), min_size=1, max_size=6).filter(any))
def test_statistics_equal_sorting(batches: list[list[int]]) -> None:
    metric = SupportSize(max_count=40)
    for batch in batches:
        metric.update(torch.tensor(batch, dtype=torch.int64))
    values = [value for batch in batches for value in batch]
    got = {name: float(value) for name, value in metric.compute().items()}
    assert got["mean"] == pytest.approx(sum(values) / len(values))
    assert got["total"] == sum(values)
    for name, percent in (("p10", 10), ("median", 50), ("p90", 90)):
        assert got[name] == nearest_rank(values, percent)


def test_counts_beyond_the_last_bin_enter_mean_and_total() -> None:
    metric = DecoderCalls(max_count=4)
    metric.update(torch.tensor([1, 1000]))
    got = metric.compute()
    assert float(got["total"]) == 1001
    assert float(got["p90"]) == 4


def test_merging_processes_is_adding_states() -> None:
    parts = [torch.tensor([1, 2, 3]), torch.tensor([9]), torch.tensor([], dtype=torch.int64)]
    whole, merged = SupportSize(10), SupportSize(10)
    whole.update(torch.cat(parts))
    merged.update(torch.zeros(0, dtype=torch.int64))
    for part in parts:
        other = SupportSize(10)
        other.update(part)
        assert set(other._reductions.values()) == {torch.sum} or all(f is not None for f in other._reductions.values())
        merged.counts += other.counts
        merged.total += other.total
    assert {k: float(v) for k, v in whole.compute().items()} == {k: float(v) for k, v in merged.compute().items()}


def test_nothing_counted() -> None:
    metric = SupportSize()
    metric.update(torch.zeros(0, dtype=torch.int64))
    assert bool(metric.compute()["mean"].isnan())
    assert bool(metric.compute()["median"].isnan())


@pytest.mark.parametrize("bad", [0, -1, 1.5, True])
def test_bad_max_count(bad: object) -> None:
    with pytest.raises(ConfigurationError, match="`max_count` to be an integer of at least 1"):
        SupportSize(bad)  # type: ignore[arg-type]


def test_means_are_summed_in_float64() -> None:
    metric = MeanOverExamples()
    metric.update(torch.full((1000,), 0.1))
    metric.update(torch.tensor([1e9]))
    expected = (1000 * float(torch.tensor(0.1)) + 1e9) / 1001
    assert float(metric.compute()) == pytest.approx(expected, rel=1e-12)
