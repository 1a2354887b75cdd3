"""Oscarmax, most of whose rows is never sorted, against pooling whole rows; and what its labels say."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from torch import Tensor

from lit_sparse.kernels.groups import average_groups, code_of, group_product
from lit_sparse.kernels.isotonic import isotonic_blocks
from lit_sparse.mappings.oscarmax.kernel import map_oscar
from tests.kernels.rows import assert_same_groups, by_reference, fixed_settings, rows, smooth_rows

LAMS = st.sampled_from([0.0, 1e-7, 1.3e-4, 0.0031, 0.017, 0.11, 0.47, 3.3, 1e4])
GAMMAS = st.sampled_from([0.37, 1.0, 4.1])


@fixed_settings(250)
@given(smooth_rows(120), LAMS, GAMMAS, st.booleans())
def test_values_and_labels_equal_those_of_the_reference(x: Tensor, lam: float, gamma: float, exact: bool) -> None:
    y, labels = map_oscar(x, lam, gamma, exact)
    expected, others = by_reference(map_oscar, x, lam, gamma, exact)
    torch.testing.assert_close(y, expected, atol=max(1e-9, 1e-12 * lam), rtol=0)
    clear = torch.where(y > 0, y, 1.0).amin(-1) > 1e-6  # no entry is at the threshold up to rounding
    clear &= torch.where(expected > 0, expected, 1.0).amin(-1) > 1e-6
    assert_same_groups(labels[clear], others[clear])


@fixed_settings(120)
@given(rows(), LAMS, GAMMAS, st.booleans())
def test_values_equal_the_reference_with_ties_and_invalid_rows(x: Tensor, lam: float, gamma: float, exact: bool) -> None:
    y, labels = map_oscar(x, lam, gamma, exact)
    expected = map_oscar(x.double(), lam, gamma, exact)[0]
    torch.testing.assert_close(y, expected.to(x.dtype), atol=1e-6, rtol=0, equal_nan=True)
    reference = by_reference(map_oscar, x.double(), lam, gamma, exact)[0]
    torch.testing.assert_close(expected, reference, atol=max(1e-9, 1e-11 * lam), rtol=0, equal_nan=True)
    if exact:
        assert torch.equal(labels >= 0, y != 0)


@fixed_settings(150)
@given(smooth_rows(400, count=3), st.floats(-8, 2), GAMMAS)
def test_what_is_left_unsorted_does_not_matter(x: Tensor, exponent: float, gamma: float) -> None:
    """Penalties of all strengths, against the whole row pooled by scikit-learn."""
    lam = 10.0**exponent
    y = map_oscar(x, lam, gamma, True)[0]
    for row, got in zip(x.numpy(), y.numpy(), strict=True):
        allowed = row > -np.inf
        n = int(allowed.sum())
        assert (got[~allowed] == 0).all()
        if n == 0:
            continue
        z = np.sort((row[allowed] - row.max()) / gamma)[::-1]
        w = IsotonicRegression(increasing=False).fit_transform(np.arange(n), z - lam * (n - 1 - np.arange(n)))
        sums = np.cumsum(w - w[0])
        size = max(k for k in range(1, n + 1) if 1 + k * (w[k - 1] - w[0]) > sums[k - 1])
        expected = np.maximum(w - w[0] - (sums[size - 1] - 1) / size, 0)
        np.testing.assert_allclose(np.sort(got[allowed])[::-1], expected, atol=1e-9 * max(1.0, lam))


@fixed_settings(120)
@given(smooth_rows(60), LAMS, GAMMAS)
def test_labels_say_what_the_result_is_made_of(x: Tensor, lam: float, gamma: float) -> None:
    """Each group is equal, and has the mean of ``z - lam (d - rank)`` over its ranks less one tau for the row."""
    y, labels = map_oscar(x, lam, gamma, True)
    for row, result, names in zip(x, y, labels, strict=True):
        n = int((row > -torch.inf).sum())
        if n == 0:
            continue
        z = (row - row.max()) / gamma
        rank = torch.empty_like(row).scatter(0, row.argsort(descending=True), torch.arange(1, len(row) + 1).double())
        taus = []
        for name in names[names >= 0].unique():
            group = names == name
            assert bool((result[group] == result[group][0]).all())
            assert int(code_of(name)) == 0
            taus.append(float((z[group] - lam * (n - rank[group])).mean() - result[group][0]))
        assert max(taus) - min(taus) <= 1e-11 * (1 + lam * n)


def test_isotonic_blocks_equal_scikit_learn() -> None:
    a = torch.randn(40, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fitted, ids = isotonic_blocks(a, torch.zeros(40, 29, dtype=torch.bool))
    for row, got, blocks in zip(a, fitted, ids, strict=True):
        expected = IsotonicRegression(increasing=False).fit_transform(np.arange(30), row.numpy())
        np.testing.assert_allclose(got.numpy(), expected, atol=1e-12)
        np.testing.assert_array_equal(np.diff(blocks.numpy()) > 0, np.diff(expected) < -1e-12)


@fixed_settings(60)
@given(smooth_rows(), LAMS, GAMMAS, st.booleans())
def test_the_product_is_centering_then_averaging(x: Tensor, lam: float, gamma: float, exact: bool) -> None:
    y, labels = map_oscar(x, lam, gamma, exact)
    v = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    support = y != 0
    mean = torch.where(support, v, 0.0).sum(-1, keepdim=True) / support.sum(-1, keepdim=True).clamp_min(1)
    expected = average_groups(torch.where(support, (v - mean) / gamma, 0.0), labels, not exact)
    torch.testing.assert_close(group_product(v, y, labels, gamma, not exact), expected, atol=1e-12, rtol=0)
