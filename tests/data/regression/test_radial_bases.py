"""Radial basis functions, one number at a time."""

from __future__ import annotations

import math

import pytest
import torch

from lit_sparse.data import RadialBases
from lit_sparse.errors import ConfigurationError


def test_each_value_is_its_formula() -> None:
    bases = RadialBases((0.5, 2.0), per_scale=3, constant_scale=50.0)
    x = torch.randn(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    centres = bases.centres(x, torch.Generator().manual_seed(1))
    values = bases(x, centres)
    assert (len(bases), centres.shape, values.shape, values.dtype) == (7, (7, 2), (7, 7), torch.float64)
    scales = [0.5] * 3 + [2.0] * 3 + [50.0]
    for n in range(7):
        for m, scale in enumerate(scales):
            distance = sum((float(x[n, d]) - float(centres[m, d])) ** 2 for d in range(2))
            assert float(values[n, m]) == pytest.approx(math.exp(-distance / (2 * scale**2)), rel=1e-12)


def test_centres_are_distinct_rows_and_the_mean() -> None:
    bases = RadialBases(per_scale=10)
    x = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
    centres = bases.centres(x, torch.Generator().manual_seed(1))
    torch.testing.assert_close(centres[-1], x.mean(0))
    for drawn in centres[:-1].split(10):
        places = (drawn.unsqueeze(1) == x).all(2).nonzero()[:, 1]
        assert sorted(places.tolist()) == list(range(10)), "all rows, each once"
    assert torch.equal(centres, bases.centres(x, torch.Generator().manual_seed(1)))
    assert not torch.equal(centres, bases.centres(x, torch.Generator().manual_seed(2)))
    assert not torch.equal(centres[:10], centres[10:20]), "each scale has its own"


def test_the_published_ones_are_the_default() -> None:
    """50 of each of six scales, and one that is nearly constant at the mean of standardized data."""
    bases = RadialBases()
    x = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))
    values = bases(x, bases.centres(x))
    assert values.shape == (1000, 301)
    assert bases.scales == (0.2, 0.4, 0.8, 1.2, 1.6, 2.0)
    assert float(values[:, -1].min()) > 0.99
    assert float(values.min()) >= 0
    assert float(values.max()) <= 1
    assert bool((values == 1).any(0)[:-1].all()), "each stands on a row"


def test_other_rows_and_none() -> None:
    bases = RadialBases((1.0,), per_scale=2)
    centres = bases.centres(torch.tensor([[0.0], [4.0]]), torch.Generator().manual_seed(0))
    assert bases(torch.zeros(0, 1), centres).shape == (0, 3)
    assert bool((bases(torch.tensor([[1e6]]), centres) == 0).all())


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"scales": (1.0, 0.0)}, "scales"),
        ({"scales": (-1.0,)}, "scales"),
        ({"per_scale": 0}, "per_scale"),
        ({"per_scale": 2.5}, "per_scale"),
        ({"constant_scale": math.inf}, "constant_scale"),
    ],
)
def test_arguments_are_checked(options: dict[str, object], name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"`{name}`"):
        RadialBases(**options)  # type: ignore[arg-type]


def test_too_few_rows() -> None:
    with pytest.raises(ConfigurationError, match="`per_scale` to be at most 4, the number of rows, but got 5"):
        RadialBases(per_scale=5).centres(torch.randn(4, 2))
