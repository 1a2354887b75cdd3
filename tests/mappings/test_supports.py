"""Supports are exact: what is at the threshold is zero, on ties, duplicates and scores made to be there, in both types."""

from __future__ import annotations

import copy
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from lit_sparse.ground.arguments import constructor_parameters
from lit_sparse.kernels import RowKernel, project_simplex
from lit_sparse.mappings import BatchTopK, HardThreshold, HoyerProjection, SoftRank, SparseMapping
from lit_sparse.mappings import functional as F
from lit_sparse.mappings.entmax.kernel import map_entmax_root
from lit_sparse.mappings.fusedmax.kernel import map_fused
from lit_sparse.mappings.hoyer.kernel import project_hoyer
from lit_sparse.mappings.oscarmax.kernel import map_oscar
from lit_sparse.testing import concrete_subclasses
from tests.mappings.exact_supports import (
    boundary_rows,
    entmax_root_support,
    fused,
    hoyer_support,
    oscar,
    pnorm_support,
    simplex_support,
    simplex_threshold,
    tied_rows,
    top_support,
)

Row = list[Fraction]
DTYPES = [torch.float32, torch.float64]
GAMMAS = [0.3, 1.0, 2.0]


def exact(number: float) -> Fraction:
    """The decimal number that a parameter stands for."""
    return Fraction(str(number))


def rational(gamma: float, lam: float) -> list[tuple[str, Callable[[Tensor], Tensor], Callable[[Row], list[bool]]]]:
    """Mappings whose supports are a matter of rational arithmetic."""
    g, strength = exact(gamma), exact(lam)

    def penalized(prox: Callable[[Row, Fraction], Row]) -> Callable[[Row], list[bool]]:
        return lambda row: simplex_support(prox([a / g for a in row], strength), Fraction(1))

    return [
        ("sparsemax", lambda x: F.sparsemax(x, gamma=gamma), lambda row: simplex_support(row, g)),
        ("entmax 2", lambda x: F.entmax(x, 2.0, gamma=gamma), lambda row: simplex_support(row, g)),
        ("entmax 1.5", lambda x: F.entmax(x, 1.5, gamma=gamma), lambda row: entmax_root_support(row, g)),
        ("top 3", lambda x: F.topk_sparsemax(x, 3, gamma=gamma), lambda row: top_support(row, g, 3)),
        ("pnorm 1.5", lambda x: F.sq_pnorm_max(x, 1.5, gamma=gamma), lambda row: pnorm_support(row, g)),
        ("capped", lambda x: F.capped_softmax(x, 0.2, gamma=gamma), lambda row: [True] * len(row)),
        ("fused", lambda x: F.fusedmax(x, lam, gamma=gamma), penalized(fused)),
        ("oscar", lambda x: F.oscarmax(x, lam, gamma=gamma), penalized(oscar)),
    ]


@pytest.mark.cases(quick=2, gate=4)
@pytest.mark.parametrize("lam", [0.1, 0.25, 0.05, 0.7])
@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_supports_equal_rational_arithmetic(dtype: torch.dtype, gamma: float, lam: float) -> None:
    near = boundary_rows(40, 9, dtype, 2, lambda row: simplex_threshold(row, exact(gamma)) if gamma != 0.3 else row[0] - 1)
    for x in (tied_rows(60, 9, dtype, 0), tied_rows(60, 9, dtype, 1, 8.0), near):
        rows = [[Fraction(a) for a in row] for row in x.tolist()]
        for name, mapping, support in rational(gamma, lam):
            for row, y in zip(rows, mapping(x), strict=True):
                assert (y > 0).tolist() == support(row), (name, [float(a) for a in row], y.tolist())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sparseness", [0.5, 0.6, 0.8])
def test_supports_of_hoyer_projections(dtype: torch.dtype, sparseness: float) -> None:
    """Of 9 and 16 entries, so that the ratio of the norms is rational."""
    for d in (9, 16):
        x = tied_rows(80, d, dtype, 3).abs()
        for row, y in zip(x.tolist(), F.hoyer_projection(x, sparseness, nonneg=True), strict=True):
            expected = hoyer_support([Fraction(a) for a in row], exact(sparseness))
            assert expected is None or (y > 0).tolist() == expected, (row, y.tolist())


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_step_of_the_type_beside_the_threshold(dtype: torch.dtype) -> None:
    """An entry at the threshold is out, and one as near above it as the type allows is in."""
    infinity = torch.tensor(torch.inf, dtype=dtype)
    low = torch.tensor(-0.25, dtype=dtype)
    for mapping, top in ((F.sparsemax, 0.75), (lambda x: F.entmax(x, 1.5), 1.75), (lambda x: F.fusedmax(x, 0.25), 1.0)):
        for entry, support in ((low, False), (torch.nextafter(low, infinity), True), (torch.nextafter(low, -infinity), False)):
            y = mapping(torch.stack([torch.tensor(top, dtype=dtype), entry, entry - 9]))
            assert bool(y[1] > 0) == support, (mapping, entry)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("kernel", "arguments"),
    [
        (project_simplex, (1.0, 0)),
        (project_simplex, (2.0, 3)),
        (map_entmax_root, (1.0,)),
        (map_entmax_root, (2.0,)),
        (map_fused, (0.1, 1.0)),
        (map_fused, (0.7, 2.0)),
        (map_oscar, (0.1, 1.0, True)),
        (map_oscar, (0.25, 1.0, True)),
        (map_oscar, (0.1, 1.0, False)),
        (project_hoyer, (0.6, 1.0, True)),
        (project_hoyer, (0.5, 1.0, False)),
    ],
)
def test_the_operations_that_are_exported_have_the_same_support(
    kernel: RowKernel, arguments: tuple[float, ...], dtype: torch.dtype
) -> None:
    near = boundary_rows(60, 9, dtype, 4, lambda row: simplex_threshold(row, Fraction(1)))
    for x in (tied_rows(800, 9, dtype, 5), tied_rows(800, 17, dtype, 6, 8.0), near):
        found, exported = kernel(x, *arguments), kernel.decomposed(x, *arguments)
        y, other = (part if isinstance(part, Tensor) else part[0] for part in (found, exported))
        wrong = ((y != 0) != (other != 0)).any(-1)
        assert not bool(wrong.any()), (x[wrong][0].tolist(), y[wrong][0].tolist(), other[wrong][0].tolist())


#: Mappings without gamma that scale along with their scores, or not at all. Others have a threshold of their own.
WITHOUT_GAMMA = (BatchTopK, HardThreshold, HoyerProjection, SoftRank)
CLASSES = [
    cls
    for cls in concrete_subclasses(SparseMapping)
    if not cls.iterative and (cls in WITHOUT_GAMMA or "gamma" in constructor_parameters(cls))
]
EXAMPLES = [example for cls in CLASSES for example in cls.examples()]


@pytest.mark.cases(quick=8, gate=16)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mapping", EXAMPLES, ids=repr)
def test_powers_of_two_change_no_digit(mapping: SparseMapping, dtype: torch.dtype) -> None:
    """Scores and gamma times a power of two give the same weights, bit for bit; thresholded scores scale along."""
    generator = torch.Generator().manual_seed(7)
    mapping = copy.deepcopy(mapping).to(dtype)
    for d in (1, 5, 33, 64):
        noise = 2 * torch.randn(30, d, generator=generator)
        for x in (noise.to(dtype), (2 * noise).round().to(dtype) / 2):
            expected = mapping(x)
            for power in (-60, -31, -7, 1, 20, 60):
                scaled = copy.deepcopy(mapping)
                scaled.gamma = mapping.gamma * 2.0**power
                y = scaled(x * 2.0**power)
                assert torch.equal(y / 2.0**power if mapping.keeps_scores else y, expected), power
