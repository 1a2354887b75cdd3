"""The k best bit vectors against all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.kernels import kbest
from lit_sparse.kernels.kbest import best_bits
from tests.kernels.rows import fixed_settings

Search = Callable[[Tensor, int], tuple[Tensor, Tensor]]


def by_reference(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The same by the torch operations of other devices."""
    size = min(k, 2 ** scores.shape[1])
    bits, counts = torch.full((len(scores), size, scores.shape[1]), 7.0, dtype=scores.dtype), torch.zeros(len(scores)).long()
    kbest._best_reference(bits, counts, scores)
    return bits, counts


def brute_force(row: Tensor, k: int) -> Tensor:
    """Rank all vectors by score, and equal ones by the order that the docstring of ``best_bits`` gives."""
    allowed = [i for i, score in enumerate(row.tolist()) if score != -torch.inf]
    ranked = sorted(allowed, key=lambda i: (abs(row[i].item()), i))

    def order(bits: tuple[int, ...]) -> tuple[float, int]:
        changes = {i for i, bit in zip(allowed, bits, strict=True) if bit != (row[i].item() > 0)}
        cost = 0.0
        for i in ranked:  # in the order in which the sums are documented to be added
            cost += abs(row[i].item()) if i in changes else 0.0
        return cost, sum(2**rank for rank, i in enumerate(ranked) if i in changes)

    vectors = torch.zeros(min(k, 2 ** len(allowed)), len(row), dtype=row.dtype)
    for n, bits in enumerate(sorted(itertools.product((0, 1), repeat=len(allowed)), key=order)[: len(vectors)]):
        vectors[n, allowed] = torch.tensor(bits, dtype=row.dtype)
    return vectors


@st.composite
def bit_scores(draw: st.DrawFn) -> Tensor:
    """Draw (3, D) scores, D up to 10: noise, or small whole numbers with ties and zeros; some bits forbidden."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    d = draw(st.integers(1, 10))
    x = rng.standard_normal((3, d)) if draw(st.booleans()) else rng.integers(-3, 4, (3, d)) * rng.choice([-1.0, 1.0], (3, d))
    x[rng.random((3, d)) < draw(st.sampled_from([0.0, 0.2, 1.0]))] = -np.inf
    return torch.from_numpy(x)


@pytest.mark.parametrize("search", [best_bits, by_reference])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@fixed_settings(40)
@given(scores=bit_scores(), k=st.sampled_from([1, 2, 3, 10, 70, 600, 2000]))
def test_equals_brute_force(search: Search, dtype: torch.dtype, scores: Tensor, k: int) -> None:
    scores = scores.to(dtype)
    bits, counts = search(scores, k)
    assert bits.dtype == dtype
    assert bits.shape == (3, min(k, 2 ** scores.shape[1]), scores.shape[1])
    for row, found, count in zip(scores, bits, counts.tolist(), strict=True):
        expected = brute_force(row, k)
        assert count == len(expected)
        assert torch.equal(found[:count], expected)
        assert not found[count:].any()


@pytest.mark.parametrize("k", [1, 10, 65, 66, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_its_reference_where_vectors_are_many(dtype: torch.dtype, k: int) -> None:
    scores = torch.randn(9, 300, generator=torch.Generator().manual_seed(k), dtype=torch.float64).to(dtype)
    scores[1] = scores[1].round()
    scores[2, 5:] = -torch.inf
    scores[3] *= 1e300 if dtype is torch.float64 else 1e38
    (bits, counts), (expected, others) = best_bits(scores, k), by_reference(scores, k)
    assert torch.equal(bits, expected)
    assert torch.equal(counts, others)
    values = torch.einsum("bkd,bd->bk", bits.double(), scores.double().clamp_min(torch.finfo(torch.float64).min))
    ordinary = [0, 1, 4, 5, 6, 7, 8]
    assert bool((values[ordinary].diff() <= 1e-9).all())
    assert all(len(found.unique(dim=0)) == k for found in bits[ordinary])


@pytest.mark.parametrize("search", [best_bits, by_reference])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_broken_row_harms_no_other(search: Search, bad: float) -> None:
    scores = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    whole, _ = search(scores, 5)
    scores[1, 2], scores[1, 4] = bad, -torch.inf
    scores[3] = bad
    bits, counts = search(scores, 5)
    assert counts.tolist() == [5, 1, 5, 1]
    assert torch.equal(bits[[0, 2]], whole[[0, 2]])
    assert bits[1, 0].isnan().tolist() == [True] * 4 + [False, True]
    assert bool(bits[3, 0].isnan().all())
    assert not bits[[1, 3], 1:].any()


def test_other_types_strides_and_sizes() -> None:
    scores = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    bits, _ = best_bits(scores.t(), 4)
    assert torch.equal(bits, best_bits(scores.t().contiguous(), 4)[0])
    assert best_bits(scores.bfloat16(), 4)[0].dtype == torch.bfloat16
    assert torch.equal(best_bits(scores.half(), 4)[0].float(), best_bits(scores.half().float(), 4)[0])
    assert best_bits(scores[:0], 4)[0].shape == (0, 4, 8)
    assert [tuple(t.shape) for t in best_bits(torch.zeros(3, 0), 4)] == [(3, 1, 0), (3,)]
    assert not best_bits(scores.clone().requires_grad_(), 4)[0].requires_grad


def test_the_number_of_threads_changes_nothing() -> None:
    scores = torch.randn(3000, 64, generator=torch.Generator().manual_seed(0))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(best_bits(scores, 10)[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    ("scores", "k", "words"),
    [
        (torch.zeros(3), 2, "shape"),
        (torch.zeros(3, 2, dtype=torch.int64), 2, "floating"),
        (torch.zeros(3, 2), 0, "`k`"),
        (torch.zeros(3, 2), True, "`k`"),
        (torch.zeros(3, 2), 2.0, "`k`"),
    ],
)
def test_bad_arguments(scores: Tensor, k: int, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        best_bits(scores, k)
