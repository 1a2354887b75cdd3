"""The compiled kernels against their references in plain torch operations and against sorting in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lit_sparse.kernels import center_on_support, project_simplex


def by_sorting(x: np.ndarray, gamma: float) -> np.ndarray:
    """The textbook algorithm on one row, in float64."""
    z = np.sort(x)[::-1] - x.max()
    k = np.arange(1, len(x) + 1)
    size = k[gamma + k * z > np.cumsum(z)].max()
    tau = (z[:size].sum() - gamma) / size
    return np.maximum(x - x.max() - tau, 0) / gamma


@settings(max_examples=200)
@given(st.integers(1, 200), st.integers(0, 10**6), st.sampled_from([1e-3, 0.1, 1.0, 30.0]), st.booleans())
def test_projection_equals_sorting(d: int, seed: int, gamma: float, tied: bool) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((3, d)) * 10.0 ** rng.integers(-3, 3)
    if tied:
        x = x.round(1)
    y = project_simplex(torch.from_numpy(x), gamma, 0).numpy()
    for row, got in zip(x, y, strict=True):
        np.testing.assert_allclose(got, by_sorting(row, gamma), atol=1e-9)


@settings(max_examples=200)
@given(
    st.integers(1, 80),
    st.integers(0, 10**6),
    st.sampled_from([0.1, 1.0, 5.0]),
    st.sampled_from([0, 1, 2, 7]),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_kernels_equal_their_references(d: int, seed: int, gamma: float, k: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = (2 * torch.randn(12, d, generator=generator)).to(dtype)
    x[0], x[1, 0], x[2, -1], x[3] = -torch.inf, torch.nan, torch.inf, x[3].round()
    x[4, : d // 2] = -torch.inf
    y = project_simplex(x, gamma, k)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 2e-6
    torch.testing.assert_close(
        y, project_simplex._on_tensors(project_simplex.reference, (x, gamma, k)), atol=tolerance, rtol=0, equal_nan=True
    )
    v = torch.randn(12, d, generator=generator).to(dtype)
    expected = center_on_support._on_tensors(center_on_support.reference, (v, y, gamma))
    torch.testing.assert_close(center_on_support(v, y, gamma), expected, atol=tolerance / gamma, rtol=0, equal_nan=True)


def slow_rows(d: int) -> Tensor:
    """Rows on which Newton's method gives up one entry a pass: each entry lies just below the threshold of those above."""
    z = torch.zeros(d, dtype=torch.float64)
    for i in range(1, d):
        z[i] = (z[:i].sum() - 1) / i - 1e-9
    return z.flip(0)


def test_rows_made_to_be_slow_are_exact() -> None:
    for row in (slow_rows(300), -torch.logspace(-12, 0, 300, dtype=torch.float64), slow_rows(50)):
        for dtype in (torch.float64, torch.float32):
            x = row.to(dtype)
            expected = by_sorting(x.double().numpy(), 1.0)
            np.testing.assert_allclose(project_simplex(x, 1.0, 0).numpy(), expected, atol=1e-7)


def test_long_float32_rows_sum_to_one() -> None:
    x = -torch.rand(4, 200_000, generator=torch.Generator().manual_seed(0)) * 1e-3
    x[:, 0] = 0.5
    y = project_simplex(x, 100.0, 0)
    assert int((y > 0).sum()) > 700_000
    torch.testing.assert_close(y.double().sum(-1), torch.ones(4, dtype=torch.float64), atol=1e-6, rtol=0)


def test_result_does_not_depend_on_threads_or_neighbours() -> None:
    x = torch.randn(3000, 130, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(project_simplex(x, 1.0, 0))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert torch.equal(torch.stack([project_simplex(row, 1.0, 0) for row in x[:50]]), results[0][:50])


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0,), (2, 0, 3)])
def test_empty(shape: tuple[int, ...]) -> None:
    x = torch.empty(shape)
    assert project_simplex(x, 1.0, 0).shape == shape
    assert center_on_support(x, x, 1.0).shape == shape


class _Subclass(torch.Tensor):
    """A tensor subclass of another package."""


def test_tensor_subclasses() -> None:
    x = torch.randn(3, 4)
    assert torch.equal(project_simplex(x.as_subclass(_Subclass), 1.0, 0).as_subclass(torch.Tensor), project_simplex(x, 1.0, 0))
