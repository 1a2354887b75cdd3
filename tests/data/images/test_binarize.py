"""Binarization in one compiled pass draws what the plain operations draw."""

from __future__ import annotations

import pytest
import torch

from lit_sparse.data.images.binarize import binarize
from lit_sparse.random import seeded_uniform


@pytest.mark.parametrize(("seed", "stream"), [(0, 0), (7919 * 3 + 5, 2), (-3, 1), (2**63 + 1, 3)])
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (33, 784)])
def test_draws_are_those_of_plain_operations(seed: int, stream: int, shape: tuple[int, int]) -> None:
    pixels, index = torch.rand(shape), torch.randint(2**40, shape[:1])
    pixels[:, ::3] = (pixels[:, ::3] * 2**24).round() * 2.0**-24  # values that a draw can equal
    expected = (seeded_uniform(seed, index, shape[1:], stream=stream) < pixels).float()
    assert torch.equal(binarize(pixels, seed, index, stream=stream), expected)
    assert torch.equal(binarize(pixels.double(), seed, index, stream=stream), expected.double())
    assert torch.equal(binarize(pixels.t().contiguous().t(), seed, index, stream=stream), expected)


def test_the_ends_of_the_range() -> None:
    pixels = torch.tensor([[0.0, 1.0, -1.0, 2.0, torch.nan]]).repeat(500, 1)
    drawn = binarize(pixels, 0, torch.arange(500))
    assert torch.equal(drawn, torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0]).expand(500, -1))
