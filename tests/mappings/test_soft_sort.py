"""Soft sorting and ranking against the quadratic and entropic programs that define them, solved by trying every face."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import rankdata
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import SoftRank, SoftSort
from lit_sparse.mappings import functional as F
from tests.mappings.second_opinions import random_rows

FORMS = ["quadratic", "entropic"]
Function = Callable[..., Tensor]


def faces(n: int) -> list[list[np.ndarray]]:
    """Return the ordered partitions of 0 .. n - 1, which are the faces of a permutahedron."""
    found = []
    for blocks in itertools.product(range(n), repeat=n):
        if set(blocks) == set(range(max(blocks) + 1)):
            found.append([np.flatnonzero(np.equal(blocks, b)) for b in range(max(blocks) + 1)])
    return found


def project(s: np.ndarray, w: np.ndarray, entropic: bool) -> np.ndarray:
    """Project rows of s onto the permutahedra of w, or the exponentials of w by their entropy, of which this is the logarithm.

    The solution on the affine hull of each face is known. The best of those that are in the polytope is the projection.
    """
    w = -np.sort(-w, -1)
    best, found = np.full(len(s), -np.inf), np.zeros_like(s)
    levels = np.exp(w) if entropic else w
    for face in faces(s.shape[1]):
        y, start = np.empty_like(s), 0
        for block in face:
            own, given = s[:, block], w[:, start : start + len(block)]
            if entropic:
                shift = logsumexp(given, -1, keepdims=True) - logsumexp(own, -1, keepdims=True)
            else:
                shift = given.mean(-1, keepdims=True) - own.mean(-1, keepdims=True)
            y[:, block] = own + shift
            start += len(block)
        point = np.exp(y) if entropic else y
        most = np.cumsum(levels, -1)
        inside = (np.cumsum(-np.sort(-point, -1), -1) <= most + 1e-12 * (1 + abs(most))).all(-1)
        value = (point * s).sum(-1) - (point * (y - 1) if entropic else 0.5 * y**2).sum(-1)
        better = inside & (value > best)
        best, found[better] = np.where(better, value, best), y[better]
    return found


def by_definition(function: Function, x: np.ndarray, strength: float, entropic: bool) -> np.ndarray:
    ranks = np.broadcast_to(np.arange(x.shape[1], 0, -1.0), x.shape)
    if function is F.soft_sort:
        return -project(ranks / strength, -x, entropic)
    y = project(x / strength, np.log(ranks) if entropic else ranks, entropic)
    return np.exp(y) if entropic else y


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("function", [F.soft_sort, F.soft_rank])
def test_equals_the_program_on_2000_problems_with_ties(function: Function, form: str) -> None:
    """700 each of 3 to 5 entries, two of which are equal or more, with strengths for small blocks and for large."""
    for n in range(3, 6):
        x = random_rows(700, n, seed=n)
        x[::2] = (2 * x[::2]).round() / 2
        x[:, 0] = x[:, -1]
        for part, strength in zip(x.chunk(4), (0.1, 0.5, 1.0, 4.0), strict=True):
            expected = by_definition(function, part.numpy(), strength, form == "entropic")
            np.testing.assert_allclose(function(part, strength, form).numpy(), expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("strength", [1e-3, 0.05, 1.0, 100.0])
@pytest.mark.parametrize("form", FORMS)
def test_long_rows_have_a_certificate(form: str, strength: float) -> None:
    """A point y of the permutahedron is the projection of s if no other has a larger product with the gradient there.

    Of all points, the permutation of w in the order of the gradient has the largest.
    """
    n, entropic = 400, form == "entropic"
    ranks = torch.arange(n, 0, -1.0, dtype=torch.float64).expand(8, n)
    x = random_rows(8, n, seed=0)
    x[::2] = (8 * x[::2]).round() / 8
    for s, y, w in (
        (x / strength, F.soft_rank(x, strength, form), ranks),
        (ranks / strength, -F.soft_sort(x, strength, form), (-x).exp() if entropic else -x),
    ):
        point = y if w is ranks or not entropic else y.exp()
        gradient = s - (point.log() if entropic else point)
        ordered = w.sort(-1, descending=True).values
        excess = point.sort(-1, descending=True).values.cumsum(-1) - ordered.cumsum(-1)
        assert float((excess / ordered.abs().cumsum(-1)).max()) <= 1e-12
        torch.testing.assert_close(point.sum(-1), w.sum(-1))
        gap = (gradient.sort(-1, descending=True).values * ordered - gradient * point).sum(-1)
        scale = (gradient.abs() * point.abs()).sum(-1)
        assert float((gap / scale).max()) <= 1e-11


def test_a_small_strength_is_sorting_and_ranking() -> None:
    x = random_rows(20, 30, seed=0)
    x[::2] = x[::2].round()
    for form in FORMS:
        torch.testing.assert_close(F.soft_sort(x, 1e-6, form), x.sort(-1).values, atol=0, rtol=0)
        ranks = torch.from_numpy(rankdata(x.numpy(), axis=-1))
        torch.testing.assert_close(F.soft_rank(x, 1e-6, form), ranks, atol=1e-9, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", FORMS)
def test_ties_and_order_at_any_scale(form: str, dtype: torch.dtype) -> None:
    for scale in (1e-20, 1.0, 1e15, 1e25):
        x = scale * torch.tensor([3.0, -2.0, 3.0, -2.0, 3.0, -7.0], dtype=dtype)
        ranks = torch.tensor([5.0, 2.5, 5.0, 2.5, 5.0, 1.0], dtype=dtype)
        torch.testing.assert_close(F.soft_rank(x, 1e-2 * scale, form), ranks)
        torch.testing.assert_close(F.soft_sort(x, 1e-2 / scale, form), x.sort().values)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("function", [F.soft_sort, F.soft_rank])
def test_derivatives_at_ties(function: Function, form: str) -> None:
    """Equal values share a block, within which the function is smooth."""
    x = torch.tensor([[1.0, 1.0, 0.9, 1.1, 5.0, 5.0], [2.0, 2.0, 2.0, 2.0, 2.0, 3.0]], dtype=torch.float64)
    x, strength = x.requires_grad_(), 0.3 if function is F.soft_rank else 50.0
    torch.autograd.gradcheck(lambda x: function(x, strength, form), x, check_forward_ad=True)
    torch.autograd.gradgradcheck(lambda x: function(x, strength, form), x, atol=1e-7)


@pytest.mark.parametrize("form", FORMS)
def test_masked_values_keep_their_places_and_others_are_sorted_among_theirs(form: str) -> None:
    x, mask = random_rows(30, 7, seed=0), random_rows(30, 7, seed=1) > 0
    for function in (F.soft_sort, F.soft_rank):
        y = function(x, 0.5, form, mask=mask)
        assert bool((y[~mask] == 0).all())
        for row, keep, got in zip(x, mask, y, strict=True):
            torch.testing.assert_close(got[keep], function(row[keep], 0.5, form))


def test_sums_are_kept() -> None:
    x = random_rows(9, 12, seed=0)
    torch.testing.assert_close(F.soft_sort(x, 2.0).sum(-1), x.sum(-1))
    for form in FORMS:
        torch.testing.assert_close(F.soft_rank(x, 2.0, form).sum(-1), torch.full((9,), 78.0, dtype=torch.float64))


@pytest.mark.parametrize(
    "part", [SoftSort, SoftRank, lambda *a: F.soft_sort(torch.zeros(3), *a), lambda *a: F.soft_rank(torch.zeros(3), *a)]
)
def test_bad_arguments(part: Callable[..., object]) -> None:
    for strength in (0.0, -1.0, float("nan"), float("inf"), "1", None, True):
        with pytest.raises(ConfigurationError, match="`strength` to be a positive"):
            part(strength)
    for form in ("l2", None, 3):
        with pytest.raises(ConfigurationError, match=r"`regularization` to be one of \('quadratic', 'entropic'\)"):
            part(1.0, form)
