"""Each mapping's answer is judged by its own objective, at every scale of the scores and of the regularizer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lit_sparse.mappings import (
    BudgetSparsemax,
    CappedSoftmax,
    Entmax,
    Fusedmax,
    NormMax,
    Oscarmax,
    Softmax,
    SparseMAP,
    SparseMapping,
    Sparsemax,
    SqPNormMax,
    TopKSparsemax,
)
from lit_sparse.structures import BitVector, Budget

SIZE, ROWS = 6, 4
#: Mappings by their gamma. TopKSparsemax maximizes over a set that is not convex: it is compared with points of the set.
MAPPINGS: list[Callable[[float], SparseMapping]] = [
    lambda gamma: Sparsemax(gamma=gamma),
    lambda gamma: Softmax(gamma=gamma),
    lambda gamma: Entmax(1.5, gamma=gamma),
    lambda gamma: Entmax(1.2, gamma=gamma),
    lambda gamma: Entmax(3.0, gamma=gamma),
    lambda gamma: Entmax(0.4, gamma=gamma),
    lambda gamma: NormMax(2.0, gamma=gamma),
    lambda gamma: NormMax(4.0, gamma=gamma),
    lambda gamma: BudgetSparsemax(2.0, gamma=gamma),
    lambda gamma: TopKSparsemax(3, gamma=gamma),
    lambda gamma: Fusedmax(0.1, gamma=gamma),
    lambda gamma: Oscarmax(0.1, gamma=gamma),
    lambda gamma: SqPNormMax(1.5, gamma=gamma),
    lambda gamma: CappedSoftmax(0.5, gamma=gamma),
    lambda gamma: SparseMAP(BitVector(), gamma=gamma),
    lambda gamma: SparseMAP(Budget(SIZE, 2), gamma=gamma),
]


def scores(seed: int, dtype: torch.dtype) -> Tensor:
    """Rows of usual size, small, large and all zero; every second seed has ties."""
    x = torch.randn(ROWS, SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = (2 * x).round() / 2 if seed % 2 else x
    return (x * torch.tensor([[1.0], [1e-6], [1e3], [0.0]], dtype=torch.float64)).to(dtype)


def others(mapping: SparseMapping, seed: int) -> list[Tensor]:
    """Points (ROWS, SIZE) of the mapping's domain: its corners, its middle, and random ones."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(6, ROWS, SIZE, generator=generator, dtype=torch.float64)
    if not mapping.on_simplex:
        return [*(drawn / drawn.sum(-1, keepdim=True).clamp_min(2.0) * 2.0)]
    corners = torch.eye(SIZE, dtype=torch.float64).unsqueeze(1).expand(SIZE, ROWS, SIZE)
    return [*(drawn.log() * 3).softmax(-1), *corners, torch.full((ROWS, SIZE), 1 / SIZE, dtype=torch.float64)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("make", MAPPINGS, ids=lambda make: repr(make(1.0)))
def test_no_other_point_is_better(make: Callable[[float], SparseMapping], dtype: torch.dtype) -> None:
    rounding = torch.finfo(dtype).eps
    for seed, power in enumerate((-8, -3, 0, 1, 3, 8)):
        mapping, x = make(2.0**power), scores(seed, dtype)
        y = mapping(x)
        if isinstance(mapping, CappedSoftmax):
            y = y.clamp_max(1 / (mapping.rho * SIZE))
        loose = 1e-5 if mapping.iterative or isinstance(mapping, SparseMAP) else 300 * rounding
        room = loose * SIZE * (x.abs().amax(-1) + mapping.gamma)

        def objective(z: Tensor, mapping: SparseMapping = mapping, x: Tensor = x) -> Tensor:
            allowed = torch.ones_like(z, dtype=torch.bool)
            return (z * x).sum(-1) - mapping.gamma * mapping.regularizer(z.to(x.dtype), -1, allowed)

        best = objective(y)
        assert bool(best.isfinite().all())
        for other in others(mapping, seed):
            for share in (1.0,) if isinstance(mapping, TopKSparsemax) else (1.0, 0.1, 1e-2, 1e-3):
                found = objective((y + share * (other - y)).to(dtype))
                assert not bool((found > best + room).any())


@pytest.mark.parametrize("make", MAPPINGS, ids=lambda make: repr(make(1.0)))
def test_a_power_of_two_in_scores_and_gamma_changes_nothing(make: Callable[[float], SparseMapping]) -> None:
    for seed, power in enumerate((-60, -20, 7, 60)):
        x = scores(seed, torch.float64)
        expected, found = make(1.0)(x), make(2.0**power)(x * 2.0**power)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 if isinstance(make(1.0), SparseMAP) else 1e-13)
