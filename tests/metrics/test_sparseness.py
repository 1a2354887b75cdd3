"""Hoyer sparseness against its definition."""

from __future__ import annotations

import math

import pytest
import torch

from lit_sparse.metrics import HoyerSparseness, hoyer_sparseness


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_it_is_the_definition_at_any_scale(scale: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(7, 12)
    for row, got in zip(x.double(), hoyer_sparseness(scale * x), strict=True):
        expected = (math.sqrt(12) - float(row.abs().sum() / row.square().sum().sqrt())) / (math.sqrt(12) - 1)
        assert float(got) == pytest.approx(expected, abs=1e-6)


def test_vectors_along_any_dimensions() -> None:
    x = torch.randn(3, 4, 5, 6)
    torch.testing.assert_close(hoyer_sparseness(x, 1), hoyer_sparseness(x.movedim(1, -1)))
    torch.testing.assert_close(hoyer_sparseness(x, (1, 2, 3)), hoyer_sparseness(x.flatten(1)))


def test_what_has_no_sparseness() -> None:
    assert hoyer_sparseness(torch.zeros(2, 4)).isnan().all()
    assert hoyer_sparseness(torch.ones(2, 1)).isnan().all()
    x = torch.tensor([[1.0, 0.0], [torch.nan, 1.0]])
    assert float(hoyer_sparseness(x)[0]) == pytest.approx(1.0)
    assert hoyer_sparseness(x)[1].isnan()


def test_the_metric_is_a_mean_over_vectors_that_are_not_zero() -> None:
    x = torch.randn(10, 8)
    x[3] = 0.0
    metric = HoyerSparseness()
    for part in x.split(3):
        metric.update(part)
    expected = hoyer_sparseness(x[[i for i in range(10) if i != 3]]).mean()
    assert float(metric.compute()) == pytest.approx(float(expected), abs=1e-6)
    along = HoyerSparseness(dim=0)
    along.update(x.T)
    assert float(along.compute()) == pytest.approx(float(expected), abs=1e-6)


def test_the_sum_keeps_its_digits_in_a_module_of_low_precision() -> None:
    vectors = torch.rand(5000, 9)
    metric = HoyerSparseness().to(torch.bfloat16)
    metric.update(vectors)
    torch.testing.assert_close(float(metric.compute()), float(hoyer_sparseness(vectors).mean()))
