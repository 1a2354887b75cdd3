"""ChiSquareDRO against its convex program and against sparsemax."""

from __future__ import annotations

import math

import clarabel
import numpy as np
import pytest
import torch
from scipy import sparse

from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.mappings import functional as F
from lit_sparse.risks import ChiSquareDRO, Mean, Risk
from tests.support.convex import solved


def divergence(q: np.ndarray, p: np.ndarray) -> float:
    return float(0.5 * ((q - p) ** 2 / p).sum())


def reweighted(losses: np.ndarray, p: np.ndarray, radius: float | None, lam: float | None) -> np.ndarray:
    """Return the maximizing q over the simplex."""
    d = len(losses)
    rows, bounds = [np.ones((1, d)), -np.eye(d)], [np.ones(1), np.zeros(d)]
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(d)]
    quadratic, linear = sparse.csc_array((d, d)), -losses
    if radius is not None:
        rows += [np.zeros((1, d)), -np.diag(p**-0.5)]
        bounds += [np.array([math.sqrt(2 * radius)]), -(p**0.5)]
        cones += [clarabel.SecondOrderConeT(d + 1)]
    else:
        quadratic = sparse.diags(lam / p).tocsc()
    return solved(quadratic, linear, sparse.csc_array(np.vstack(rows)), np.concatenate(bounds), cones, tol=1e-12)


STRENGTHS = [(0.02, None), (0.5, None), (2.0, None), (40.0, None), (None, 0.05), (None, 1.0), (None, 20.0)]


@pytest.mark.parametrize(("radius", "lam"), STRENGTHS)
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_a_convex_program(radius: float | None, lam: float | None, weighted: bool) -> None:
    """Its value to 1e-6, and q, which is the gradient."""
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        n = 1 + seed
        losses = torch.randn(n, generator=generator, dtype=torch.float64) * 3 ** (seed % 3)
        if seed % 4 == 3:
            losses = losses.round()  # ties
        weights = torch.rand(n, generator=generator, dtype=torch.float64) + 0.05 if weighted else torch.ones(n).double()
        p = (weights / weights.sum()).numpy()
        leaf = losses.clone().requires_grad_()
        found = ChiSquareDRO(radius, lam=lam)(leaf, weights if weighted else None)
        found.backward()
        q, mean = reweighted(losses.numpy(), p, radius, lam), float(weights.mean())
        best = float(q @ losses.numpy()) - (0.0 if lam is None else lam * divergence(q, p))
        assert float(found.detach()) == pytest.approx(best * mean, abs=1e-6, rel=0)
        assert leaf.grad is not None
        own = leaf.grad.numpy() / mean
        assert own.min() >= 0 and own.sum() == pytest.approx(1, abs=1e-12)
        np.testing.assert_allclose(own, q, atol=1e-6, rtol=0)
        if radius is not None:
            assert divergence(own, p) <= radius * (1 + 1e-9)


def test_the_penalty_is_sparsemax() -> None:
    losses = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    for lam in (0.01, 0.3, 5.0):
        (slope,) = torch.autograd.grad(ChiSquareDRO(lam=lam)(losses), losses)
        torch.testing.assert_close(slope, F.sparsemax(losses.detach(), gamma=lam * 50), atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("risk", [ChiSquareDRO(0.3), ChiSquareDRO(lam=0.3)], ids=repr)
def test_second_derivatives(risk: Risk) -> None:
    losses = torch.randn(9, generator=torch.Generator().manual_seed(3), dtype=torch.float64, requires_grad=True)
    weights = torch.linspace(0.5, 2, 9, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(lambda values: risk(values, weights), losses)


@pytest.mark.parametrize("risk", ChiSquareDRO.examples(), ids=repr)
def test_equal_losses_large_ones_and_outliers(risk: Risk) -> None:
    equal = torch.full((6,), 0.1, requires_grad=True)
    (slope,) = torch.autograd.grad(risk(equal), equal)
    torch.testing.assert_close(slope, torch.full((6,), 1 / 6))
    torch.testing.assert_close(risk(equal).detach(), torch.tensor(0.1))
    one = torch.tensor([7.0], requires_grad=True)
    torch.testing.assert_close(torch.autograd.grad(risk(one), one)[0], torch.ones(1))
    losses = torch.randn(2000, generator=torch.Generator().manual_seed(1))
    for far in (losses * 1e6, losses + 1e5, torch.cat([losses, torch.tensor([1e8])])):
        leaf = far.requires_grad_()
        (slope,) = torch.autograd.grad(risk(leaf), leaf)
        assert bool((slope >= 0).all()) and float(slope.sum()) == pytest.approx(1, abs=1e-4)
    with pytest.raises(DataError, match="example 1 of the batch is inf"):
        risk(torch.tensor([1.0, math.inf]))


def test_it_lies_between_the_mean_and_the_largest_loss() -> None:
    losses = torch.rand(40, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(ChiSquareDRO(1e-12)(losses), Mean()(losses), atol=1e-5, rtol=0)
    torch.testing.assert_close(ChiSquareDRO(lam=1e9)(losses), Mean()(losses))
    torch.testing.assert_close(ChiSquareDRO(20.0)(losses), losses.max())  # (B - 1) / 2 or more
    values = [float(ChiSquareDRO(radius)(losses)) for radius in (0.01, 0.1, 1.0, 10.0)]
    assert values == sorted(values)


def test_batches_are_biased_downwards() -> None:
    losses = torch.randn(256, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    risk = ChiSquareDRO(1.0)
    batches = [float(torch.stack([risk(part) for part in losses.split(size)]).mean()) for size in (4, 16, 64)]
    assert [*batches, float(risk(losses))] == sorted([*batches, float(risk(losses))])


@pytest.mark.parametrize("options", [{}, {"radius": 1.0, "lam": 1.0}, {"radius": 0.0}, {"lam": -1.0}], ids=str)
def test_arguments_are_checked(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=r"`(radius|lam)`"):
        ChiSquareDRO(**options)
