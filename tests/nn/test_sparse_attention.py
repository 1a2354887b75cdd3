"""Attention by lists of candidates equals attention by all pairs, with its derivatives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lit_sparse.kernels.sparse_products import Lists, listed_products, listed_sums, sums_to_listed
from lit_sparse.mappings import Entmax, LearnableEntmax, Softmax, SparseMapping, Sparsemax, TopKSparsemax
from lit_sparse.nn import attention
from lit_sparse.nn import sparse_attention as module
from lit_sparse.nn.sparse_attention import sparse_attention

MAPPINGS = [
    Sparsemax(),
    Sparsemax(gamma=0.3),
    TopKSparsemax(3),
    Entmax(1.5),
    Entmax(1.25, gamma=0.5),
    LearnableEntmax(shape=(4, 1, 1)).double(),
]


@pytest.fixture(autouse=True)
def keep_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept lists of any length, and let a block hold a few queries."""
    monkeypatch.setattr(module, "DENSE", 1.0)
    monkeypatch.setattr(module, "BLOCK", 1 << 11)


def inputs(length: int, size: int, heads: int = 4, groups: int = 1, scale: float = 1.0) -> list[Tensor]:
    shapes = ((2, heads, length, 8), (2, heads // groups, size, 8), (2, heads // groups, size, 5))
    query, key, value = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return [x.requires_grad_() for x in (query * scale, key, value)]


def check(mapping: SparseMapping, given: list[Tensor], mask: Tensor | None = None, bias: Tensor | None = None) -> None:
    found = sparse_attention(given[0] * 0.5, given[1], given[2], mapping, mask, bias, 0.0)
    assert found is not None
    output, places, weights = found
    expected, dense = attention(*given, mapping, mask, scale=0.5, bias=bias)
    torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-10)
    whole = torch.zeros_like(dense).scatter_add(-1, places.clamp_min(0).long(), torch.where(places < 0, 0.0, weights))
    torch.testing.assert_close(whole, dense, rtol=1e-10, atol=1e-10)
    slope = torch.randn_like(output)
    wanted = [*given, *mapping.parameters()]
    ours, theirs = (torch.autograd.grad(o, wanted, slope) for o in (output, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mapping", MAPPINGS, ids=repr)
@pytest.mark.parametrize(("length", "size"), [(1, 1), (5, 33), (40, 200), (70, 31)])
def test_it_equals_attention_by_all_pairs(mapping: SparseMapping, length: int, size: int) -> None:
    torch.manual_seed(0)
    for scale in (0.1, 1.0, 20.0):
        check(mapping, inputs(length, size, scale=scale))


@pytest.mark.parametrize("mapping", MAPPINGS, ids=repr)
@pytest.mark.parametrize("kind", ["causal", "padding", "pairs", "heads"])
def test_masks(mapping: SparseMapping, kind: str) -> None:
    torch.manual_seed(0)
    masks = {
        "causal": torch.ones(60, 70, dtype=torch.bool).tril()[None, None],
        "padding": (torch.arange(70) < torch.tensor([[40], [70]]))[:, None, None],
        "pairs": torch.rand(2, 1, 60, 70) < 0.3,
        "heads": torch.rand(2, 4, 60, 70) < 0.02,  # some queries without keys
    }
    check(mapping, inputs(60, 70), masks[kind])


@pytest.mark.parametrize("mapping", [Sparsemax(), Entmax(1.5)], ids=repr)
def test_bias_and_grouped_queries(mapping: SparseMapping) -> None:
    torch.manual_seed(0)
    bias = torch.randn(1, 4, 20, 90, dtype=torch.float64, requires_grad=True)
    check(mapping, inputs(20, 90, groups=2), torch.rand(2, 1, 20, 90) < 0.7, bias)
    check(mapping, inputs(20, 90, groups=4))


def test_ties_and_equal_scores() -> None:
    given = [x.detach().round() for x in inputs(30, 100)]
    check(Sparsemax(), [x.requires_grad_() for x in given])
    zeros = [torch.zeros_like(given[0]), *given[1:]]
    check(Entmax(1.5), [x.clone().requires_grad_() for x in zeros])


def test_an_invalid_query_stays_one_row() -> None:
    torch.manual_seed(0)
    query, key, value = (x.detach() for x in inputs(20, 50))
    whole = sparse_attention(query, key, value, Sparsemax(), None, None, 0.0)
    for broken in (torch.nan, torch.inf):
        query[1, 2, 3] = broken
        found = sparse_attention(query, key, value, Sparsemax(), None, None, 0.0)
        assert found is not None
        assert whole is not None
        assert bool(found[0][1, 2, 3].isnan().all())
        rest = torch.ones(2, 4, 20, dtype=torch.bool)
        rest[1, 2, 3] = False
        torch.testing.assert_close(found[0][rest], whole[0][rest], rtol=0, atol=0)


def test_second_derivatives() -> None:
    torch.manual_seed(0)
    given = [x[:1, :2].detach().contiguous().requires_grad_() for x in inputs(3, 6)]

    def output(*given: Tensor) -> Tensor:
        found = sparse_attention(*given, Entmax(1.5), None, None, 0.0)
        assert found is not None
        return found[0]

    assert torch.autograd.gradcheck(output, given)
    assert torch.autograd.gradgradcheck(output, given)


def test_many_candidates_are_left_to_dense_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DENSE", 0.125)
    query, key, value = inputs(64, 512, scale=1e-3)
    assert sparse_attention(query, key, value, Entmax(1.25), None, None, 0.0) is None


def test_one_and_two_threads_agree() -> None:
    torch.manual_seed(0)
    given = [x.detach().float() for x in inputs(300, 400)]
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found = sparse_attention(*given, Sparsemax(), None, None, 0.0)
            assert found is not None
            results.append(found[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_a_mapping_of_its_own_is_not_its_bases_entmax() -> None:
    class Doubled(Sparsemax):
        def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
            return super().map(2 * scores, mask, dim)

    assert Doubled().entmax_alpha is None
    assert Softmax().entmax_alpha is None
    assert [mapping.entmax_alpha for mapping in (Sparsemax(), TopKSparsemax(2), Entmax(1.3))] == [2.0, 2.0, 1.3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_reference_of_the_kernels(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    matrix, rows = torch.randn(2, 9, 4, dtype=dtype), torch.randn(6, 4, dtype=dtype)
    places = torch.stack([torch.randperm(9)[:5] for _ in range(6)]).int()
    places[1, 3:] = places[4, 0:] = -1
    lists = Lists(places, torch.tensor([0, 0, 0, 1, 1, 1]), (2, 9))
    weights = torch.randn(6, 5, dtype=dtype)

    def all_three(on: Any) -> list[Tensor]:
        return [
            listed_products(on(rows), on(matrix), lists),
            listed_sums(on(weights), on(matrix), lists),
            sums_to_listed(on(weights), on(rows), lists),
        ]

    class Elsewhere(Tensor):
        """A tensor that is not on the CPU, as far as the kernels see."""

        is_cpu = False

    compiled = all_three(lambda x: x)
    reference = all_three(lambda x: x.as_subclass(Elsewhere))
    for ours, theirs in zip(compiled, reference, strict=True):
        torch.testing.assert_close(ours, theirs.as_subclass(Tensor))
