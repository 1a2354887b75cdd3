"""Kernel SGD against a loop over its formulas, in any dimension, from any iteration on, and past overflows."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import bits_of
from lit_sparse.transport import kernel_sgd
from lit_sparse.transport.kernel_sgd import BLOCK, gaussian_sum, run_kernel_sgd

OPTIONS: dict[str, Any] = {"width": 0.8, "step_size": 0.4, "eps": 0.3, "rho": 0.2}


def bumps(point: np.ndarray, centres: np.ndarray, width: float) -> np.ndarray:
    return np.exp(-((centres - point) ** 2).sum(1) / (2 * width**2))


def reference(
    x: np.ndarray, y: np.ndarray, *, width: float, step_size: float, eps: float, rho: float, objective: str
) -> tuple[np.ndarray, np.ndarray, int]:
    """The iterations as they are written in the publications; returns sums, coefficients, and how many are not finite."""
    sums, b = np.zeros(len(x)), np.zeros(len(x))
    with np.errstate(all="ignore"):
        for i in range(len(x)):
            sums[i] = b[:i] @ bumps(x[i], x[:i], width) + b[:i] @ bumps(y[i], y[:i], width)
            s = sums[i] - ((x[i] - y[i]) ** 2).sum()
            t = 1 / (1 + np.exp(-(s / eps + math.log(rho)))) / rho if objective == "safe" else np.exp(s / eps)
            b[i] = step_size / math.sqrt(i + 1) * (1 - t)
    return sums, b, int((~np.isfinite(b)).sum())


def pairs(n: int, d: int, seed: int = 0, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(scale * rng.normal(size=(n, d))), torch.from_numpy(scale * rng.normal(size=(n, d)) + 0.5)


def ran(x: Tensor, y: Tensor, cuts: tuple[int, ...] = (), **options: Any) -> tuple[np.ndarray, np.ndarray, int]:
    """Run all iterations, in as many calls as there are cuts and one."""
    b, sums, broken = torch.zeros(len(x), dtype=torch.float64), [], 0
    for first, last in zip((0, *cuts), (*cuts, len(x)), strict=True):
        some, more = run_kernel_sgd(x, y, b, first, last, **options)
        sums.append(some)
        broken += more
    return torch.cat(sums).numpy(), b.numpy(), broken


@pytest.mark.parametrize("objective", ["safe", "dual"])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (7, 1), (300, 1), (BLOCK + 3, 2), (60, 5), (2 * BLOCK + 1, 1)])
def test_iterations_are_those_of_the_publications(n: int, d: int, objective: str) -> None:
    x, y = pairs(n, d)
    options = {**OPTIONS, "step_size": 0.4 if objective == "safe" else 0.05, "objective": objective}
    sums, b, broken = reference(x.numpy(), y.numpy(), **options)
    found = ran(x, y, **options)
    np.testing.assert_allclose(found[1], b, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found[0], sums, rtol=1e-9, atol=1e-12)
    assert found[2] == broken == 0
    assert float(np.abs(b).max()) > 0.005, "it is stepped"


@pytest.mark.parametrize("objective", ["safe", "dual"])
@pytest.mark.parametrize("cuts", [(1,), (511, 512, 513), (0, 40, 40, 300)])
def test_going_on_is_not_stopping(cuts: tuple[int, ...], objective: str) -> None:
    x, y = pairs(700, 2)
    options = {**OPTIONS, "step_size": 0.05, "objective": objective}
    for once, apart in zip(ran(x, y, **options)[:2], ran(x, y, cuts, **options)[:2], strict=True):
        assert np.array_equal(once, apart), "to the last bit"


def test_nothing_but_its_own_coefficients_is_written() -> None:
    x, y = pairs(30, 1)
    b = torch.arange(30.0, dtype=torch.float64)
    run_kernel_sgd(x, y, b, 10, 20, objective="safe", **OPTIONS)
    assert torch.equal(b[:10], torch.arange(10.0).double())
    assert torch.equal(b[20:], torch.arange(20.0, 30.0).double())
    assert not bool((b[10:20] == torch.arange(10.0, 20.0)).any())
    x[20:] = torch.nan  # not read, either
    other = torch.arange(30.0, dtype=torch.float64)
    run_kernel_sgd(x, y, other, 10, 20, objective="safe", **OPTIONS)
    assert torch.equal(other, b)


def test_overflows_happen_and_are_counted() -> None:
    """As IEEE arithmetic has it: inf, and NaN after it; the safe form takes the same points without any."""
    x, y = torch.zeros(12, 1, dtype=torch.float64), torch.zeros(12, 1, dtype=torch.float64)
    y[0] = 3.0  # everything to gain at first: b_1 = C
    x[6:], y[6:] = 100.0, 100.0  # far from what is infinite: inf times zero
    options = {**OPTIONS, "step_size": 300.0, "objective": "dual"}
    sums, b, broken = reference(x.numpy(), y.numpy(), **options)
    found = ran(x, y, **options)
    assert found[2] == broken == 7
    assert found[1][1] == b[1] == -math.inf
    np.testing.assert_array_equal(found[1], b)
    np.testing.assert_array_equal(found[0], sums)
    safe = ran(x, y, **{**options, "objective": "safe"})
    assert safe[2] == 0
    assert float(np.abs(safe[1]).max()) <= 300.0 / OPTIONS["rho"]


@pytest.mark.parametrize("place", ["sources", "targets"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_points_that_are_not_numbers_are_counted(place: str, value: float) -> None:
    x, y = pairs(9, 2)
    (x if place == "sources" else y)[4, 1] = value
    options = {**OPTIONS, "objective": "safe"}
    if math.isnan(value):
        assert ran(x, y, **options)[2] == 5, "it, and all that follow"
        return
    _, b, broken = reference(x.numpy(), y.numpy(), **options)
    found = ran(x, y, **options)
    assert found[2] == broken
    np.testing.assert_allclose(found[1][:4], b[:4], rtol=1e-9)


def test_exponentials_have_all_their_digits() -> None:
    x = -np.concatenate([[0.0, 1e-300, 5e-324], np.logspace(-12, math.log10(700.0), 300), np.linspace(0, 708, 500)])
    work = np.zeros((3, len(x)))
    work[0] = x
    kernel_sgd._exponentials(work, bits_of(work), len(x))
    np.testing.assert_allclose(work[0], np.exp(x), rtol=3e-16)
    far = np.full((3, 3), -1e9)
    far[0, 1:] = -math.inf, math.nan
    kernel_sgd._exponentials(far, bits_of(far), 3)
    assert far[0, :2].tolist() == [0.0, 0.0]
    assert math.isnan(far[0, 2])


@pytest.mark.parametrize(("n", "d", "points"), [(0, 1, 3), (1, 3, 1), (BLOCK, 1, 40), (2000, 2, 300)])
def test_sums_of_bumps(n: int, d: int, points: int) -> None:
    centres, at = pairs(n, d)[0], pairs(points, d, seed=1)[0]
    b = torch.from_numpy(np.random.default_rng(2).normal(size=n))
    expected = [float(b.numpy() @ bumps(point, centres.numpy(), 0.6)) for point in at.numpy()]
    np.testing.assert_allclose(gaussian_sum(at, centres, b, 0.6).numpy(), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(gaussian_sum(at.float(), centres, b, 0.6).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_sums_do_not_depend_on_threads() -> None:
    centres, at = pairs(3000, 2)[0], pairs(400, 2, seed=1)[0]
    b, before = torch.randn(3000, dtype=torch.float64), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(gaussian_sum(at, centres, b, 0.6))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_arrays_of_other_shapes_are_refused() -> None:
    x, y = pairs(5, 2)
    b = torch.zeros(5, dtype=torch.float64)
    for bad in ((x, y[:4], b, 0, 4), (x, y, b[:3], 0, 3), (x, y, b, 2, 6), (x, y, b, -1, 3), (x, y, b, 3, 2)):
        with pytest.raises(ValueError, match="Expected points"):
            run_kernel_sgd(*bad, objective="safe", **OPTIONS)
    for coefficients in (b.float(), torch.zeros(10, dtype=torch.float64)[::2]):
        with pytest.raises(ValueError, match="contiguous float64 coefficients"):
            run_kernel_sgd(x, y, coefficients, 0, 3, objective="safe", **OPTIONS)
    with pytest.raises(ValueError, match="Expected points"):
        gaussian_sum(x[:, :1], y, b, 1.0)
    with pytest.raises(ValueError, match="Expected points"):
        gaussian_sum(x, y, b[:2], 1.0)


def test_ten_thousand_iterations_take_seconds() -> None:
    x, y = pairs(10_000, 1)
    ran(x[:2], y[:2], objective="safe", **OPTIONS)  # compiles
    began = time.perf_counter()
    ran(x, y, objective="safe", **OPTIONS)
    assert time.perf_counter() - began < 5


def hostile(seed: int) -> None:
    """Points of any size and number, with ties, infinities and NaN, in calls of any length."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.choice([1, 2, 5, 63, 64, BLOCK - 1, BLOCK, BLOCK + 1])), int(rng.choice([1, 2, 3, 17]))
    x, y = (rng.normal(size=(n, d)) * 10.0 ** rng.integers(-5, 6) for _ in range(2))
    if seed % 3 == 0:
        x, y = x.round(), y.round()
    clean = seed % 2 == 0
    if not clean:
        x.flat[rng.integers(x.size)] = rng.choice([np.nan, np.inf, -np.inf, 1e300, 5e-324])
    options = {"width": 10.0 ** rng.integers(-3, 3), "step_size": 10.0 ** rng.integers(-3, 4)}
    options |= {"eps": 10.0 ** rng.integers(-2, 2), "rho": float(rng.choice([1e-6, 0.1, 1.0]))}
    for objective in ("safe", "dual"):
        cuts = tuple(sorted(int(cut) for cut in rng.integers(0, n + 1, int(rng.integers(0, 4)))))
        sums, b, broken = ran(torch.from_numpy(x), torch.from_numpy(y), cuts, objective=objective, **options)
        assert broken == int((~np.isfinite(b)).sum())
        assert len(sums) == n
        if clean and objective == "safe":
            assert broken == 0
            assert (np.abs(b) <= options["step_size"] / options["rho"]).all()
        values = gaussian_sum(torch.from_numpy(y), torch.from_numpy(x), torch.from_numpy(b), options["width"])
        assert len(values) == n


@pytest.mark.parametrize("seed", range(12))
def test_hostile_points(seed: int) -> None:
    hostile(seed)
