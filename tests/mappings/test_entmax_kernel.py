"""Rows of alpha-entmax whose alphas need different compiled functions, in one call."""

from __future__ import annotations

import pytest
import torch

from lit_sparse.mappings.entmax.kernel import entmax_product, map_entmax

ALPHAS = (1.0, 1.25, 1.5, 2.0, 2.5, 40.0, torch.inf, torch.nan, 0.5)


@pytest.mark.parametrize("used", [ALPHAS, (1.5,), (1.2, 1.5), (1.2, 2.5), (1.5, 3.0), (3.0,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_row_has_the_bits_of_a_call_of_its_own(used: tuple[float, ...], dtype: torch.dtype) -> None:
    x = torch.randn(4 * len(used), 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    v = x.flip(0)
    alphas = torch.tensor(used, dtype=torch.float64).repeat(4).unsqueeze(-1)
    y = map_entmax(x, alphas, 0.7)
    product = entmax_product(v, y, alphas, 0.7)
    for i, alpha in enumerate(alphas.flatten().tolist()):
        row = slice(i, i + 1)
        torch.testing.assert_close(y[row], map_entmax(x[row], alpha, 0.7), atol=0, rtol=0, equal_nan=True)
        alone = entmax_product(v[row], y[row], alpha, 0.7)
        torch.testing.assert_close(product[row], alone, atol=0, rtol=0, equal_nan=True)
        assert y[row].isnan().all() == (not 0 < alpha < torch.inf)
