"""Counts of supports and groups against loops over rows."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lit_sparse.mappings import functional as F
from lit_sparse.metrics import group_counts, support_sizes, tied_groups

#: Possible entries of a row, many of them equal.
VALUES = [0.0, 0.0, 0.25, 0.25, 0.1, -0.0, math.nan, math.inf, -math.inf]


@st.composite
def rows(draw: st.DrawFn) -> tuple[Tensor, Tensor | None]:
    number, length = draw(st.integers(0, 3)), draw(st.integers(0, 7))
    values = st.lists(st.sampled_from(VALUES), min_size=length, max_size=length)
    weights = torch.tensor([draw(values) for _ in range(number)], dtype=draw(st.sampled_from([torch.float32, torch.float64])))
    weights = weights.reshape(number, length)
    if draw(st.booleans()):
        return weights, None
    return weights, torch.tensor(draw(st.lists(st.booleans(), min_size=length, max_size=length)), dtype=torch.bool)


def kept(row: Tensor, allowed: Tensor | None) -> list[float]:
    """The row with zeros for what does not count."""
    counts = [True] * len(row) if allowed is None else allowed.tolist()
    return [value if math.isfinite(value) and ok else 0.0 for value, ok in zip(row.tolist(), counts, strict=True)]


@given(rows())
def test_counts_equal_loops(drawn: tuple[Tensor, Tensor | None]) -> None:
    weights, allowed = drawn
    clean = [kept(row, allowed) for row in weights]
    assert support_sizes(weights, allowed).tolist() == [sum(value != 0 for value in row) for row in clean]
    assert group_counts(weights, allowed).tolist() == [sum(value != 0 for value, _ in itertools.groupby(row)) for row in clean]
    assert tied_groups(weights, allowed).tolist() == [len(set(row) - {0.0}) for row in clean]
    for count in (support_sizes, group_counts, tied_groups):
        assert count(weights, allowed).dtype == torch.int64
        assert count(weights, allowed).shape == weights.shape[:-1]


def test_a_masked_position_separates_a_group() -> None:
    weights = torch.full((2, 5), 0.2)
    assert group_counts(weights).tolist() == [1, 1]
    allowed = torch.tensor([[True, True, False, True, True], [True] * 5])
    assert group_counts(weights, allowed).tolist() == [2, 1]
    assert support_sizes(weights, allowed).tolist() == [4, 5]
    assert tied_groups(weights, allowed).tolist() == [1, 1]


@pytest.mark.parametrize("count", [support_sizes, group_counts, tied_groups])
def test_any_leading_shape_and_half_precision(count: object) -> None:
    assert callable(count)
    weights = torch.rand(2, 3, 4, 5).round(decimals=1).requires_grad_()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert count(weights.to(dtype)).shape == (2, 3, 4)
    assert torch.equal(count(weights)[1, 2], torch.stack([count(row) for row in weights[1, 2]]))
    assert int(count(torch.tensor([0.5, 0.25, 0.25]))) in (2, 3)  # a row alone
    assert count(torch.zeros(4, 0)).tolist() == [0] * 4


def test_of_what_the_mappings_make() -> None:
    scores = torch.randn(50, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    softmax, sparsemax = F.softmax(scores), F.sparsemax(scores)
    assert support_sizes(softmax).tolist() == group_counts(softmax).tolist() == tied_groups(softmax).tolist() == [12] * 50
    assert torch.equal(group_counts(sparsemax), support_sizes(sparsemax))
    assert bool((support_sizes(sparsemax) < 12).all())
    fused, tied = F.fusedmax(scores, lam=0.5), F.oscarmax(scores, lam=0.1)
    assert bool((group_counts(fused) <= support_sizes(fused)).all())
    assert bool((group_counts(fused) < support_sizes(fused)).any())
    assert bool((tied_groups(tied) < support_sizes(tied)).any())
    nothing = F.sparsemax(torch.full((1, 4), -math.inf))
    bad = F.sparsemax(torch.tensor([[1.0, math.nan]]))
    for count in (support_sizes, group_counts, tied_groups):
        assert count(nothing).tolist() == count(bad).tolist() == [0]
