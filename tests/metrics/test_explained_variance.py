"""Explained variance against its definition, around any mean and in any batches."""

from __future__ import annotations

import pytest
import torch

from lit_sparse.metrics import ExplainedVariance


@pytest.mark.parametrize("offset", [0.0, 1e8])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_it_is_the_definition_around_any_mean(offset: float, size: int) -> None:
    vectors = torch.randn(100, 3, dtype=torch.float64) + offset
    made = vectors + 0.1 * torch.randn(100, 3, dtype=torch.float64)
    variation = (vectors - vectors.mean(0)).square().sum()
    expected = float(1 - (vectors - made).square().sum() / variation)
    metric, other = ExplainedVariance(3), ExplainedVariance(3)
    for number, parts in enumerate(zip(vectors.split(size), made.split(size), strict=True)):
        (metric if number % 2 else other)(*parts)
    metric.update(vectors[:0], made[:0])
    metric.merge_state(other)
    assert float(metric.compute()) == pytest.approx(expected, abs=1e-6)


def test_vectors_that_do_not_vary_have_none() -> None:
    metric = ExplainedVariance(2)
    assert metric.compute().isnan()
    for _ in range(3):
        metric(torch.full((7, 2), 0.1), torch.zeros(7, 2))
    assert metric.compute().isnan()
