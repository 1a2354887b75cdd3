"""The dynamic program of fusedmax against following mergers one by one, and what its labels say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lit_sparse.kernels.groups import average_groups, code_of, group_product
from lit_sparse.mappings.fusedmax.kernel import map_fused, total_variation_prox
from tests.kernels.rows import assert_same_groups, by_reference, fixed_settings, rows, smooth_rows

LAMS = st.sampled_from([0.0, 1e-6, 0.0031, 0.047, 0.29, 1.7, 40.3, 1e5])
GAMMAS = st.sampled_from([0.37, 1.0, 4.1])


@fixed_settings(250)
@given(smooth_rows(), LAMS, GAMMAS)
def test_values_and_labels_equal_those_of_the_reference(x: Tensor, lam: float, gamma: float) -> None:
    y, labels = map_fused(x, lam, gamma)
    expected, others = by_reference(map_fused, x, lam, gamma)
    slack = 1e-12 * (1 + lam)
    torch.testing.assert_close(y, expected, atol=max(slack, 1e-9), rtol=0)
    clear = (y - expected).abs().amax(-1) == 0
    clear |= torch.where(y > 0, y, 1.0).amin(-1) > 1e-6  # no entry is at the threshold up to rounding
    clear &= torch.where(expected > 0, expected, 1.0).amin(-1) > 1e-6
    assert_same_groups(labels[clear], others[clear])


@fixed_settings(120)
@given(rows(), LAMS, GAMMAS)
def test_values_equal_the_reference_with_ties_and_invalid_rows(x: Tensor, lam: float, gamma: float) -> None:
    y, labels = map_fused(x, lam, gamma)
    expected = map_fused(x.double(), lam, gamma)[0]
    torch.testing.assert_close(y, expected.to(x.dtype), atol=1e-6, rtol=0, equal_nan=True)
    reference = by_reference(map_fused, x.double(), lam, gamma)[0]
    torch.testing.assert_close(expected, reference, atol=max(1e-9, 1e-12 * lam), rtol=0, equal_nan=True)
    assert torch.equal(labels >= 0, y != 0)


@fixed_settings(40)
@given(smooth_rows(), GAMMAS)
def test_a_lam_for_each_row(x: Tensor, gamma: float) -> None:
    lam = torch.linspace(-0.1, 1.3, len(x), dtype=torch.float64).unsqueeze(-1)
    y, labels = map_fused(x, lam, gamma)
    for row, one, got, groups in zip(x, lam, y, labels, strict=True):
        alone, names = map_fused(row, float(one), gamma)
        torch.testing.assert_close(got, alone, atol=0, rtol=0, equal_nan=True)
        assert torch.equal(groups, names)


@fixed_settings(40)
@given(rows(longest=300), LAMS, GAMMAS)
def test_rows_side_by_side_equal_each_alone(x: Tensor, lam: float, gamma: float) -> None:
    """Candidates that a SIMD lane finds give the same bits as all entries near the maximum, which a single row considers."""
    together = map_fused(x, lam, gamma)
    alone = [map_fused(row, lam, gamma) for row in x]
    for result, single in zip(together, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(result, torch.stack(single), atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lam", [0.0, 0.02, 0.5, 30.0])
def test_candidates_hold_the_support_at_any_scale(dtype: torch.dtype, lam: float) -> None:
    """The last tile of rows is not full, and candidates lie in several words of bits."""
    for scale in (1e-3, 1.0, 30.0):
        x = (scale * torch.randn(70, 500, generator=torch.Generator().manual_seed(0))).to(dtype)
        y, labels = map_fused(x, lam, 1.0)
        alone = [map_fused(row, lam, 1.0) for row in x]
        assert torch.equal(y, torch.stack([values for values, _ in alone]))
        assert torch.equal(labels, torch.stack([names for _, names in alone]))


@fixed_settings(150)
@given(smooth_rows(), LAMS, GAMMAS)
def test_labels_say_what_the_result_is_made_of(x: Tensor, lam: float, gamma: float) -> None:
    """Each run is contiguous and equal, and has the value ``mean(z) + lam code / n - tau``, with one tau for the row."""
    y, labels = map_fused(x, lam, gamma)
    for row, result, names in zip(x, y, labels, strict=True):
        if not bool((names >= 0).any()):
            assert bool((result == 0).all())
            continue
        z = (row - row.max()) / gamma
        taus = []
        for name in names[names >= 0].unique():
            run = (names == name).nonzero().flatten()
            assert int(run[-1] - run[0]) == len(run) - 1
            assert bool((result[run] == result[run[0]]).all())
            code = int(code_of(name))
            taus.append(float(z[run].mean() + lam * code / len(run) - result[run[0]]))
            before = result[run[0] - 1] if run[0] > 0 and row[run[0] - 1] > -torch.inf else result[run[0]]
            after = result[run[-1] + 1] if run[-1] + 1 < len(row) and row[run[-1] + 1] > -torch.inf else result[run[0]]
            here = result[run[0]]
            assert code == int(torch.sign(before - here)) + int(torch.sign(after - here))
        assert max(taus) - min(taus) <= 1e-11 * (1 + lam)


def test_prox_against_its_optimality_conditions() -> None:
    """Sums of ``z - w`` from the left stay within lam, and are plus or minus lam where w steps down or up."""
    x = torch.randn(60, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for lam in (0.01, 0.3, 2.0, 50.0):
        strength = torch.full((60, 1), lam, dtype=torch.float64)
        w, _ = total_variation_prox(x, strength, torch.ones_like(x, dtype=torch.bool))
        drawn = (x - w).cumsum(-1)[:, :-1]
        step = w.diff()
        assert bool((drawn.abs() <= lam + 1e-10).all())
        torch.testing.assert_close(drawn[step < -1e-9], torch.full_like(drawn[step < -1e-9], lam), atol=1e-9, rtol=0)
        torch.testing.assert_close(drawn[step > 1e-9], torch.full_like(drawn[step > 1e-9], -lam), atol=1e-9, rtol=0)
        torch.testing.assert_close(w.sum(-1), x.sum(-1))


@fixed_settings(60)
@given(smooth_rows(), LAMS, GAMMAS)
def test_the_product_is_centering_then_averaging(x: Tensor, lam: float, gamma: float) -> None:
    y, labels = map_fused(x, lam, gamma)
    v = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    support = y != 0
    mean = torch.where(support, v, 0.0).sum(-1, keepdim=True) / support.sum(-1, keepdim=True).clamp_min(1)
    expected = average_groups(torch.where(support, (v - mean) / gamma, 0.0), labels, False)
    torch.testing.assert_close(group_product(v, y, labels, gamma, False), expected, atol=1e-12, rtol=0)
