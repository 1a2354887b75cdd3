"""The compiled kernels against their references: other algorithms, by sorting and bisection, for the same rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lit_sparse.kernels import center_on_support
from lit_sparse.kernels.budget_sparsemax import budget_product, map_budget
from lit_sparse.kernels.groups import group_product, label_of
from lit_sparse.mappings.capped_softmax.kernel import capped_product, map_capped
from lit_sparse.mappings.entmax.kernel import entmax_product, map_entmax, map_entmax_root
from lit_sparse.mappings.hard_threshold.kernel import chosen_product, threshold_hard
from lit_sparse.mappings.hoyer.backward import hoyer_product
from lit_sparse.mappings.hoyer.kernel import project_hoyer
from lit_sparse.mappings.norm_max.kernel import map_norm, norm_product
from lit_sparse.mappings.soft_sort.kernel import rank_product, rank_softly, sort_product, sort_softly
from lit_sparse.mappings.sq_pnorm_max.kernel import map_pnorm, pnorm_product
from tests.kernels.rows import by_reference, fixed_settings, rows

GAMMAS = st.sampled_from([0.3, 1.0, 5.0])
TOLERANCES = {torch.float64: 1e-8, torch.float32: 3e-5, torch.bfloat16: 1e-2}


def same(got: Tensor, expected: Tensor, scale: float = 1.0) -> None:
    tolerance = TOLERANCES[got.dtype]
    torch.testing.assert_close(got, expected, atol=tolerance * scale, rtol=tolerance, equal_nan=True)


def directions(y: Tensor) -> Tensor:
    return torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(y.dtype)


@fixed_settings(80)
@given(rows(), GAMMAS, st.sampled_from([0.05, 0.5, 0.95, 1.0, 1.0001, 1.2, 1.25, 1.5, 1.7, 2.0, 2.5, 4.0]))
def test_entmax(x: Tensor, gamma: float, alpha: float) -> None:
    y = map_entmax(x, alpha, gamma)
    expected = map_entmax(x.double(), alpha, gamma)
    same(y, expected.to(x.dtype))
    same(expected, by_reference(map_entmax, x.double(), alpha, gamma), scale=100.0)
    whole = expected[~expected.isnan().any(-1)]
    v = directions(whole)
    same(entmax_product(v, whole, alpha, gamma), by_reference(entmax_product, v, whole, alpha, gamma), scale=1 / gamma)


@fixed_settings(80)
@given(rows(), GAMMAS)
def test_entmax_in_closed_form(x: Tensor, gamma: float) -> None:
    expected = map_entmax(x.double(), 1.5, gamma)
    same(map_entmax_root(x, gamma), map_entmax(x, 1.5, gamma))
    same(by_reference(map_entmax_root, x.double(), gamma), expected, scale=100.0)
    if x.dtype == torch.float32:
        same(by_reference(map_entmax_root, x, gamma), expected.to(x.dtype))


@fixed_settings(40)
@given(rows(), GAMMAS)
def test_entmax_with_an_alpha_for_each_row(x: Tensor, gamma: float) -> None:
    x = x.double()
    alpha = torch.linspace(-0.2, 3.0, len(x), dtype=torch.float64).unsqueeze(-1)
    y = map_entmax(x, alpha, gamma)
    same(y, by_reference(map_entmax, x, alpha, gamma), scale=10.0)
    v = directions(y)
    same(entmax_product(v, y, alpha, gamma), by_reference(entmax_product, v, y, alpha, gamma), scale=1 / gamma)


@fixed_settings(80)
@given(rows(), GAMMAS, st.sampled_from([1.05, 1.2, 1.5, 1.8, 2.0]))
def test_pnorm(x: Tensor, gamma: float, p: float) -> None:
    y = map_pnorm(x, p, gamma)
    expected = map_pnorm(x.double(), p, gamma)
    same(y, expected.to(x.dtype))
    same(expected, by_reference(map_pnorm, x.double(), p, gamma))
    v = directions(expected)
    same(pnorm_product(v, expected, p, gamma), by_reference(pnorm_product, v, expected, p, gamma), scale=1 / (gamma * (p - 1)))


@fixed_settings(80)
@given(rows(), GAMMAS, st.sampled_from([1.05, 1.5, 2.0, 3.0]))
def test_norm(x: Tensor, gamma: float, alpha: float) -> None:
    y = map_norm(x, alpha, gamma)
    expected = map_norm(x.double(), alpha, gamma)
    same(y, expected.to(x.dtype))
    same(expected, by_reference(map_norm, x.double(), alpha, gamma), scale=10.0)
    v = directions(expected)
    same(norm_product(v, expected, alpha, gamma), by_reference(norm_product, v, expected, alpha, gamma), scale=100 / gamma)


@fixed_settings(80)
@given(rows(), GAMMAS, st.sampled_from([0.0, 0.3, 1.0, 2.5, 60.0]))
def test_budget(x: Tensor, gamma: float, k: float) -> None:
    y, _ = map_budget(x, k, gamma)
    expected, others = map_budget(x.double(), k, gamma)
    same(y, expected.to(x.dtype))
    same(expected, by_reference(map_budget, x.double(), k, gamma)[0])
    v = directions(expected)
    same(budget_product(v, expected, others, gamma), by_reference(budget_product, v, expected, others, gamma), scale=1 / gamma)


@fixed_settings(80)
@given(rows(), st.sampled_from([0.1, 1.0, 20.0]), st.booleans())
def test_soft_order(x: Tensor, strength: float, entropic: bool) -> None:
    same(rank_softly(x, strength, entropic)[0], rank_softly(x.double(), strength, entropic)[0].to(x.dtype))
    expected, others = by_reference(rank_softly, x.double(), strength, entropic)
    y, labels = rank_softly(x.double(), strength, entropic)
    same(y, expected)
    v = directions(y)
    same(rank_product(v, y, labels, 1.0, entropic), by_reference(rank_product, v, y, labels, 1.0, entropic), scale=10.0)
    y, order, blocks = sort_softly(x.double(), strength, entropic)
    expected, others, _ = by_reference(sort_softly, x.double(), strength, entropic)
    same(y, expected, scale=100.0)
    assert torch.equal(order, others)
    arguments = v, x.double(), order, blocks, entropic
    same(sort_product(*arguments), by_reference(sort_product, *arguments), scale=10.0)


@fixed_settings(80)
@given(rows(), GAMMAS, st.sampled_from([1e-4, 0.1, 0.5, 0.95]))
def test_capped(x: Tensor, gamma: float, rho: float) -> None:
    y = map_capped(x, rho, gamma)
    expected = map_capped(x.double(), rho, gamma)
    same(y, expected.to(x.dtype))
    same(expected, by_reference(map_capped, x.double(), rho, gamma))
    v = directions(expected)
    same(
        capped_product(v, expected, x.double(), rho, gamma),
        by_reference(capped_product, v, expected, x.double(), rho, gamma),
        scale=1 / gamma,
    )


@fixed_settings(100)
@given(rows(), st.sampled_from([0.0, 0.05, 0.3, 0.7, 0.95, 1.0]), st.booleans())
def test_hoyer(x: Tensor, sparseness: float, nonneg: bool) -> None:
    x = x.double()
    y = project_hoyer(x, sparseness, 1.5, nonneg)
    same(y, by_reference(project_hoyer, x, sparseness, 1.5, nonneg), scale=100.0)
    support = torch.where(y != 0, x.abs(), torch.nan)
    size = torch.where(y != 0, x.abs(), 0.0).amax(-1, keepdim=True)
    spread = size - torch.where(support.isnan(), torch.inf, support).amin(-1, keepdim=True)
    clear = ((spread > 1e-3 * size) & (size < torch.inf)).squeeze(-1)  # else all entries are equal up to rounding
    v = directions(y) * torch.where(clear.unsqueeze(-1), spread, 1.0)
    got, expected = hoyer_product(v, y, x, nonneg), by_reference(hoyer_product, v, y, x, nonneg)
    same(got[clear], expected[clear], scale=1e3)
    broken = y.isnan().any(-1)
    assert bool(got[broken].isnan().any(-1).all())
    assert bool(expected[broken].isnan().any(-1).all())


@fixed_settings(100)
@given(rows(), st.sampled_from([1, 2, 5, 60]), st.booleans())
def test_hard_threshold(x: Tensor, k: int, nonneg: bool) -> None:
    y, chosen = threshold_hard(x, k, nonneg)
    expected, others = by_reference(threshold_hard, x, k, nonneg)
    torch.testing.assert_close(y, expected, atol=0, rtol=0, equal_nan=True)
    assert torch.equal(chosen, others)
    v = directions(y)
    same(chosen_product(v, y, chosen), by_reference(chosen_product, v, y, chosen))


@fixed_settings(100)
@given(st.integers(1, 60), st.integers(0, 10**6), GAMMAS, st.booleans())
def test_group_product(d: int, seed: int, gamma: float, signed: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    groups = torch.randint(d, (8, d), generator=generator)
    codes = torch.randint(-2, 3, (8, d), generator=generator)
    labels = torch.stack(
        [
            torch.tensor([label_of.py_func(int(g), int(c)) for g, c in zip(*r, strict=True)])
            for r in zip(groups, codes, strict=True)
        ]
    )
    labels = labels.masked_fill(torch.rand(8, d, generator=generator) < 0.3, -1).to(torch.int32)
    y = torch.rand(8, d, generator=generator, dtype=torch.float64) * (torch.rand(8, d, generator=generator) < 0.7)
    y[0], y[1] = 0.0, torch.nan
    v = directions(y)
    same(group_product(v, y, labels, gamma, signed), by_reference(group_product, v, y, labels, gamma, signed), scale=1 / gamma)


@pytest.mark.parametrize(
    ("kernel", "numbers"),
    [
        (map_entmax, (1.5, 1.0)),
        (map_pnorm, (1.5, 1.0)),
        (map_norm, (3.0, 1.0)),
        (map_capped, (0.3, 1.0)),
        (project_hoyer, (0.6, 1.0, False)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_row_does_not_depend_on_its_neighbours(kernel: object, numbers: tuple[float, ...]) -> None:
    x = torch.randn(40, 77, generator=torch.Generator().manual_seed(0))
    together = kernel(x, *numbers)  # type: ignore[operator]
    assert torch.equal(together, torch.stack([kernel(row, *numbers) for row in x]))  # type: ignore[operator]


def blocks_of(y: Tensor) -> Tensor:
    """One block, of what is not zero; none where a row is broken."""
    return torch.where(y.isnan(), -2, torch.where(y == 0, -1, 0)).to(torch.int32)


PRODUCTS = {
    "simplex": (center_on_support, lambda v, y: (v, y, 1.0)),
    **{f"entmax {a}": (entmax_product, lambda v, y, a=a: (v, y, a, 1.0)) for a in (1.0, 1.2, 1.5, 1.7, 2.0, 3.0)},
    **{f"pnorm {p}": (pnorm_product, lambda v, y, p=p: (v, y, p, 1.0)) for p in (1.2, 1.5, 1.9)},
    **{f"norm {a}": (norm_product, lambda v, y, a=a: (v, y, a, 1.0)) for a in (1.2, 2.0, 3.0)},
    "capped": (capped_product, lambda v, y: (v, y, torch.where(y == 0, -torch.inf, y), 0.4, 1.0)),
    "hoyer": (hoyer_product, lambda v, y: (v, y, torch.where(y == 0, -torch.inf, y), True)),
    "budget": (budget_product, lambda v, y: (v, y, torch.where(y == 0, -1, 1).to(torch.int32), 1.0)),
    "rank": (rank_product, lambda v, y: (v, y, blocks_of(y), 1.0, False)),
    "sort": (sort_product, lambda v, y: (v, y, torch.arange(3).int().expand(2, 3), blocks_of(y), False)),
    "groups": (group_product, lambda v, y: (v, y, torch.where(y == 0, -1, 2).to(torch.int32), 1.0, False)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_broken_row_has_a_broken_derivative(name: str, dtype: torch.dtype) -> None:
    """In the kernel as in its reference; other rows have theirs."""
    product, arguments = PRODUCTS[name]
    y = torch.tensor([[torch.nan, torch.nan, 0.0], [0.25, 0.75, 0.0]], dtype=dtype)
    v = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, torch.nan]], dtype=dtype)
    for function in (product, product.reference):
        got = function(*arguments(v, y))
        assert bool(got[0, :2].isnan().all())
        assert bool(got[1].isfinite().all())
        assert bool((got[:, 2] == 0).all())


def test_parameters_of_hoyer_may_be_tensors() -> None:
    x = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    sparseness, norm = torch.tensor([[0.6]], dtype=torch.float64), torch.tensor([[2.0]], dtype=torch.float64)
    same(by_reference(project_hoyer, x, sparseness, norm, True), project_hoyer(x, 0.6, 2.0, True))
