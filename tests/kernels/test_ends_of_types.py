"""Rows whose entries nearly tie, or stand at the ends of their type, through kernels and references."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lit_sparse.kernels import RowKernel
from lit_sparse.mappings import functional as F
from lit_sparse.mappings.fusedmax.kernel import map_fused
from lit_sparse.mappings.hoyer.backward import hoyer_product
from lit_sparse.mappings.hoyer.kernel import project_hoyer
from lit_sparse.mappings.oscarmax.kernel import map_oscar
from lit_sparse.metrics import group_counts

DTYPES = [torch.float32, torch.float64]


def both(kernel: RowKernel, *args: object) -> tuple[Tensor, Tensor]:
    """The results of a kernel and of its reference."""
    found = [function(*args) for function in (kernel, kernel.reference)]
    return tuple(part if isinstance(part, Tensor) else part[0] for part in found)  # type: ignore[return-value]


def sparseness_of(y: Tensor) -> Tensor:
    root = y.shape[-1] ** 0.5
    return (root - y.double().abs().sum(-1) / y.double().norm(dim=-1)) / (root - 1)


@pytest.mark.parametrize("target", [0.8, 0.95, 0.99])
def test_hoyer_of_nearly_equal_largest_entries(target: float) -> None:
    generator = torch.Generator().manual_seed(1)
    top = 100 * torch.rand(40_000, 1, generator=generator)
    x = top * torch.rand(40_000, 3, generator=generator)
    x[:, :2] = top * (1 + 6e-8 * torch.randint(-40, 41, (40_000, 2), generator=generator))
    x[0] = torch.tensor([75.79952239990234, 75.79953002929688, 0.8182728290557861])
    for y in both(project_hoyer, x, target, 1.0, False):
        torch.testing.assert_close(y.norm(dim=-1), torch.ones(len(x)), rtol=0, atol=1e-4)
        assert float((sparseness_of(y) - target).abs().max()) < 1e-4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nonneg", [False, True])
def test_hoyer_at_the_ends_of_a_type(dtype: torch.dtype, nonneg: bool) -> None:
    """The projection does not depend on the scale, and its derivative is inversely proportional to it."""
    x = torch.tensor([[1.0, 3.0, 2.0], [0.5, -1.0, 0.75], [4.0, -0.5, 3.0]], dtype=dtype)
    v = torch.tensor([[1.0, -2.0, 0.5]] * 3, dtype=dtype)
    expected = project_hoyer(x, 0.5, 1.0, nonneg)
    step = hoyer_product(v, expected, x, nonneg)
    limits = torch.finfo(dtype)
    for scale in (limits.max / 4, limits.smallest_normal * limits.eps * 2**12):
        for y in both(project_hoyer, x * scale, 0.5, 1.0, nonneg):
            torch.testing.assert_close(y, expected, rtol=0, atol=1e-5)
        if scale > 1:  # near zero the derivative is larger than its type holds
            for product in both(hoyer_product, v, expected, x * scale, nonneg):
                torch.testing.assert_close(product * (limits.max / 4), step, rtol=1e-4, atol=1e-4)


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_published_oscarmax_at_the_ends_of_a_type(dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max
    x = torch.tensor([[1, 1, 1], [1, -1, 0.3], [-1, -1, -1], [-1, -0.0, -0.0]], dtype=dtype) * most
    third = [1 / 3] * 3
    expected = torch.tensor([third, [1, 0, 0], third, [0, 0.5, 0.5]], dtype=dtype)
    for y in both(map_oscar, x, 0.1, 1.0, False):
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fusedmax_writes_a_group_with_one_value(dtype: torch.dtype) -> None:
    """At a kink two runs meet: their weights are equal, or differ by more than rounding."""
    assert int(group_counts(F.fusedmax(torch.tensor([0.3, 0.0, 0.3], dtype=dtype), 0.1))) == 1
    tenths = torch.randint(0, 12, (1000, 9), generator=torch.Generator().manual_seed(0))
    for lam in (0.1, 0.2, 0.5):
        for y in both(map_fused, tenths.to(dtype) / 10, lam, 1.0):
            step = y.double().diff(dim=-1).abs()
            inner = (y[:, 1:] != 0) & (y[:, :-1] != 0)
            assert not bool(((step > 0) & (step < 3e-7) & inner).any())
