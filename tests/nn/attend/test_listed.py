"""Attention by lists of candidates equals attention by all pairs, with its derivatives."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_sparse.mappings import Entmax, LearnableEntmax, Softmax, SparseMapping, Sparsemax, TopKSparsemax
from lit_sparse.mappings.base import Threshold
from lit_sparse.mappings.functional import entmax
from lit_sparse.nn import attention
from lit_sparse.nn.attend import candidates
from lit_sparse.nn.attend.candidates import list_candidates, seem_many
from lit_sparse.nn.attend.candidates_kernel import list_candidates_of
from lit_sparse.nn.attend.listed import Listed, attend_to_listed
from lit_sparse.nn.attend.operands import Operands, Pairs
from lit_sparse.nn.lists import Lists, listed_products, listed_sums, sums_to_listed

MAPPINGS = [
    Sparsemax(),
    Sparsemax(gamma=0.3),
    TopKSparsemax(3),
    Entmax(1.5),
    Entmax(1.25, gamma=0.5),
    Entmax(3.0),
    LearnableEntmax(shape=(4, 1, 1)).double(),
]


def listed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: SparseMapping,
    pairs: Pairs | None = None,
    scale: float | None = None,
    only_few: bool = False,
) -> Listed | None:
    threshold = mapping.threshold()
    assert threshold is not None
    return attend_to_listed(Operands(query, key, value, pairs or Pairs(), scale), mapping, threshold, only_few=only_few)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a block hold a few queries."""
    monkeypatch.setattr(candidates, "BLOCK", 1 << 11)
    monkeypatch.setattr(candidates, "ROWS", 16)


def inputs(length: int, size: int, heads: int = 4, groups: int = 1, scale: float = 1.0) -> list[Tensor]:
    shapes = ((2, heads, length, 8), (2, heads // groups, size, 8), (2, heads // groups, size, 5))
    query, key, value = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return [x.requires_grad_() for x in (query * scale, key, value)]


def check(mapping: SparseMapping, given: list[Tensor], **options: Any) -> None:
    output, weights = attention(*given, mapping, method="sparse", **options)
    expected, dense = attention(*given, mapping, method="dense", **options)
    torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(weights.to_dense(), dense, rtol=1e-10, atol=1e-10)
    slope, other = torch.randn_like(output), torch.randn_like(dense)
    bias = options.get("bias")
    wanted = [*given, *mapping.parameters(), *([bias] if bias is not None and bias.requires_grad else [])]
    ours = torch.autograd.grad((output * slope).sum() + (weights.to_dense() * other).sum(), wanted)
    theirs = torch.autograd.grad((expected * slope).sum() + (dense * other).sum(), wanted)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mapping", MAPPINGS, ids=repr)
@pytest.mark.parametrize(("length", "size"), [(1, 1), (5, 33), (40, 200), (70, 31), (9, 700), (3, 1300)])
def test_it_equals_attention_by_all_pairs(mapping: SparseMapping, length: int, size: int) -> None:
    torch.manual_seed(0)
    for scale in (0.01, 0.1, 1.0, 20.0):
        check(mapping, inputs(length, size, scale=scale), scale=0.5)


@pytest.mark.parametrize("last", [4, 0])
def test_heads_of_one_block_have_their_own_alpha(last: int) -> None:
    torch.manual_seed(0)
    mapping = LearnableEntmax(shape=(4, 1, 1)).double()
    with torch.no_grad():  # alphas from 1.99 to 1.02 and back
        mapping.weight.copy_(torch.linspace(last, 4 - last, 4)[:, None, None] * 2 - 4)
    check(mapping, inputs(10, 40, scale=0.3))


@pytest.mark.parametrize("mapping", MAPPINGS, ids=repr)
@pytest.mark.parametrize("kind", ["causal", "padding", "window", "pairs", "heads", "keys", "nothing"])
def test_masks(mapping: SparseMapping, kind: str) -> None:
    torch.manual_seed(0)
    distance = torch.arange(60).unsqueeze(-1) - torch.arange(70)
    masks = {
        "causal": distance >= 0,
        "padding": (torch.arange(70) < torch.tensor([[40], [70]]))[:, None, None],
        "window": distance.abs() < 5,
        "pairs": torch.rand(2, 1, 60, 70) < 0.3,
        "heads": torch.rand(2, 4, 60, 70) < 0.02,  # some queries without keys
        "keys": torch.rand(70) < 0.5,
        "nothing": torch.zeros(1, 1, dtype=torch.bool),
    }
    check(mapping, inputs(60, 70), mask=masks[kind])
    check(mapping, inputs(60, 70), mask=masks[kind], is_causal=True)


@pytest.mark.parametrize("mapping", [Sparsemax(), Entmax(1.5)], ids=repr)
@pytest.mark.parametrize("shape", [(20, 90), (1, 4, 20, 90), (2, 1, 1, 90), (4, 20, 1), (1, 1)])
def test_bias_and_grouped_queries(mapping: SparseMapping, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    bias = torch.randn(shape, dtype=torch.float64)
    bias[..., 0, 0] = -torch.inf
    check(mapping, inputs(20, 90, groups=2), mask=torch.rand(2, 1, 20, 90) < 0.7, bias=bias.requires_grad_(), softcap=0.8)
    check(mapping, inputs(20, 90, groups=4), softcap=2.0, scale=0.3)


def test_leading_dimensions_that_broadcast() -> None:
    query, key, value = (x.detach() for x in inputs(20, 90))
    many = (query, key[0], value[0]), (query, key[0, 0], value[0, 0]), (query[0], key, value), (query[0, 0], key, value)
    for given in (*many, (query[:, :1], key, value), (query, key[:, :1], value[:, :1]), (query[0], key[:, :2], value[:, :2])):
        check(Sparsemax(), [x.clone().requires_grad_() for x in given])
    check(Sparsemax(), [x[0, 0].clone().requires_grad_() for x in (query, key, value)], is_causal=True)


def test_long_rows_attend_to_all_keys() -> None:
    torch.manual_seed(0)
    given = [x.detach() for x in inputs(40, 600)]
    given[0][:, ::2, 3::9] *= 1e-3  # flat scores
    mask = torch.rand(2, 1, 40, 600) < 0.8
    mask[:, :, 3] = False
    places, long = list_candidates(given[0], given[1].flatten(0, 1), Threshold(2.0), Pairs(mask), False) or ()
    assert 0 < int(long.sum()) < 0.1 * len(long)
    assert bool((places[long] == -1).all())
    for options in ({"mask": mask}, {"is_causal": True, "bias": torch.randn(4, 40, 600, dtype=torch.float64)}):
        check(Sparsemax(), [x.clone().requires_grad_() for x in given], **options)
    grouped = [given[0], *(x[:, :2].clone() for x in given[1:])]
    check(Entmax(1.5), [x.requires_grad_() for x in grouped], mask=mask)


def test_lists_are_as_long_as_is_cheap() -> None:
    counts = torch.tensor([3, 0, 900, 2, 50] * 20, dtype=torch.int32)
    assert candidates.best_width(counts, most=100, size=1000) == 50
    assert candidates.best_width(counts, most=100, size=8) == 3
    assert candidates.best_width(torch.tensor([40] * 30 + [50]), most=100, size=8) == 50  # one long row costs copies of keys
    assert candidates.best_width(torch.tensor([0]), most=100, size=8) == 1


def test_lists_grow_when_a_block_needs_more() -> None:
    torch.manual_seed(0)
    given = [x.detach() for x in inputs(60, 600)]
    given[0][:, :, 20:] *= 0.25  # the first rows have few candidates
    places, long = list_candidates(given[0], given[1].flatten(0, 1), Threshold(1.5), Pairs(), False) or ()
    assert places.shape[1] > candidates.FEW
    lists = torch.empty(480, 600, dtype=torch.int32)
    scores = (given[0] @ given[1].mT).flatten(0, -2)
    counts = list_candidates_of(scores, 1.5, 1.0, lists)
    assert torch.equal((places >= 0).sum(1)[~long], counts[~long].long())
    assert 0 < int(long.sum()) < 48
    check(Entmax(1.5), [x.requires_grad_() for x in given])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("few", "one", "many"), [(2, 80, 110), (70, 120, 125)])
def test_a_longer_row_before_many_longer_ones(
    few: int, one: int, many: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lists of the first block are shorter than its longest row has candidates, and those lists that follow are longer."""
    monkeypatch.setattr(candidates, "ROWS", 64)
    monkeypatch.setattr(candidates, "BLOCK", 1 << 15)
    monkeypatch.setattr(candidates, "DENSE", 1.0)
    torch.manual_seed(0)
    bias = torch.full((512, 512), -50.0, dtype=torch.float64)
    for row in range(512):
        size = (one if row == 1 else few) if row < 64 else many
        bias[row, torch.randperm(512)[:size]] = 0.0
    query, key, value = (torch.randn(1, 512, n, dtype=torch.float64) for n in (4, 4, 8))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for options in ({"only_few": True}, {}):
            found = listed(0 * query, key, value, Sparsemax(), Pairs(bias=bias[None]), **options)
            assert found is not None
            expected, _ = attention(0 * query, key, value, Sparsemax(), bias=bias[None], method="dense")
            torch.testing.assert_close(found[0], expected, rtol=1e-10, atol=1e-10)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("flat", "many"), [(slice(0, 2), False), (slice(0, 40), True), (slice(950, 1000), True)])
def test_the_last_queries_and_then_all_decide_whether_candidates_are_many(threads: int, flat: slice, many: bool) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 1000, 8) for _ in range(3))
    query *= 3
    query[:, flat] *= 1e-4
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for _ in range(5):
            found = listed(query, key, value, Entmax(1.5), only_few=True)
            assert (found is None) == many
    finally:
        torch.set_num_threads(before)


def test_flat_scores_cost_a_few_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def noted(name: str) -> None:
        several = getattr(candidates, name)

        def listing(scores: Any, *args: Any, **options: Any) -> Any:
            sizes.append(len(scores))
            return several(scores, *args, **options)

        monkeypatch.setattr(candidates, name, listing)

    noted("list_candidates_of")
    noted("list_rows")
    query, key, value = (torch.randn(1, 1000, 8) for _ in range(3))
    assert listed(1e-4 * query, key, value, Entmax(1.5), only_few=True) is None
    assert sizes == [candidates.PROBE]


def _bias(length: int) -> Tensor:
    return torch.linspace(0, 1000, 1000).expand(1, length, 1000)


@pytest.mark.parametrize(
    ("length", "spread", "alpha", "pairs", "many"),
    [
        (1000, 1e-4, 1.5, Pairs(), True),
        (1000, 1e-4, 1.5, Pairs(mask=torch.arange(1000).lt(50).expand(1, 1, 1000)), False),
        (1000, 1e-4, 1.5, Pairs(mask=torch.arange(1000).lt(50).expand(2, 1000, 1000)), False),
        (1000, 1e-4, 1.5, Pairs(bias=_bias(1000)), False),
        (1000, 1e-4, 1.5, Pairs(bias=_bias(1)), False),
        (1000, 100.0, 1.5, Pairs(), False),
        (1000, 100.0, 1.5, Pairs(softcap=1e-3), True),
        (40, 1e-4, 1.5, Pairs(is_causal=True), False),
        (1000, 1e-4, 1.5, Pairs(is_causal=True), True),
        (1000, 0.12, 1.5, Pairs(), True),
        (1000, 0.12, 1.5, Pairs(is_causal=True), False),  # earlier queries have fewer candidates
        (1000, 0.12, 1.5, Pairs(torch.ones(1, 1000, 1000, dtype=torch.bool).tril()), False),
        (4000, 0.11, 1.5, Pairs(is_causal=True), True),  # they are few
        (1000, 3.0, torch.tensor([2.0, 1.001]).view(2, 1, 1), Pairs(), True),
        (1000, 3.0, torch.tensor([1.001, 2.0]).view(2, 1, 1), Pairs(), False),
        (20, 1e-4, 1.5, Pairs(), True),
    ],
)
def test_the_probe_sees_what_queries_see(length: int, spread: float, alpha: float | Tensor, pairs: Pairs, many: bool) -> None:
    torch.manual_seed(0)
    query, keys = spread * torch.randn(2, length, 8), torch.randn(2, 1000, 8)
    assert seem_many(Operands(query, keys, keys, pairs, 1.0), Threshold(alpha)) == many
    found = listed(query, keys, keys, Entmax(alpha), pairs, 1.0, only_few=True)
    assert (found is None) == (many or isinstance(alpha, Tensor))  # the queries of one head decide in the end


def test_the_probe_of_heads_that_share_keys() -> None:
    """Many candidates of the last keys alone, which the last queries see."""
    torch.manual_seed(0)
    key = 10 * torch.randn(2, 3, 600, 8)
    key[-1, -1] *= 1e-5
    for shape in ((2, 3, 40, 8), (2, 6, 40, 8), (40, 8)):
        assert seem_many(Operands(torch.randn(shape), key, key, Pairs()), Threshold(1.5))
        assert not seem_many(Operands(torch.randn(shape), key.flip(1), key.flip(1), Pairs()), Threshold(1.5))
    mask = torch.arange(600).lt(50).expand(1, 3, 1, 600)
    assert not seem_many(Operands(torch.randn(2, 3, 40, 8), key, key, Pairs(mask)), Threshold(1.5))
    bias = torch.zeros(3, 40, 1, dtype=torch.float64)
    assert seem_many(
        Operands(torch.randn(2, 3, 40, 8).bfloat16(), key.bfloat16(), key.bfloat16(), Pairs(bias=bias)), Threshold(1.5)
    )
    long = torch.randn(2, 3, 900, 8)
    assert seem_many(Operands(long, key, key, Pairs(is_causal=True)), Threshold(1.5))


@pytest.mark.parametrize("scale", [1e-4, 5.0])
def test_values_with_more_leading_dimensions(scale: float) -> None:
    torch.manual_seed(0)
    query, key, value, mask = (
        scale * torch.randn(130, 8),
        torch.randn(600, 8),
        torch.randn(3, 600, 4),
        torch.rand(130, 600) < 0.5,
    )
    expected, _ = attention(query, key, value, Entmax(1.5), mask, method="dense")
    for method in ("auto", "sparse"):
        output, _ = attention(query, key, value, Entmax(1.5), mask, need_weights=False, method=method)  # type: ignore[arg-type]
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "other"), [((1, 130, 8), (0, 600, 8)), ((130, 8), (0, 600, 8)), ((1, 4, 130, 8), (0, 2, 600, 8))]
)
def test_no_heads_of_keys(shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    key = torch.randn(other)
    expected, _ = attention(torch.randn(shape), key, key, Entmax(1.5), method="dense")
    output, _ = attention(torch.randn(shape), key, key, Entmax(1.5), need_weights=False)
    assert output.shape == expected.shape and output.numel() == 0


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("heads", "length"), [(1, 1), (1, 20), (3, 20), (8, 200), (2, 1000)])
def test_blocks_have_each_query_once(heads: int, length: int, is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "BLOCK", 1 << 17)  # several heads
    query, keys = torch.randn(heads, length, 4), torch.randn(heads, length, 4)
    search = candidates._Search(query, keys, Threshold(1.5), Pairs(is_causal=is_causal), False)
    seen = torch.zeros(heads, length)
    for head, end, first, last in search.blocks:
        seen[head:end, first:last] += 1
    assert bool((seen == 1).all())


@pytest.mark.parametrize("only_few", [False, True])
@pytest.mark.parametrize("flat", [slice(0, 2), slice(900, 1000), slice(0, 500), slice(0, 0)])
def test_the_order_of_blocks_changes_nothing(only_few: bool, flat: slice) -> None:
    torch.manual_seed(0)
    query, keys = 3 * torch.randn(1, 1000, 8), torch.randn(1, 1000, 8)
    query[:, flat] *= 1e-4
    results = []
    for step in (1, -1):
        search = candidates._Search(query, keys, Threshold(1.5), Pairs(), only_few)
        for number in range(len(search.blocks))[::step]:
            search.run(number)
        results.append(search.result())
    first, other = results
    assert (first is None) == (other is None) == (only_few and flat == slice(0, 500))
    if first is not None and other is not None:
        assert torch.equal(first[0], other[0])
        assert torch.equal(first[1], other[1])


@pytest.mark.parametrize("threads", [1, 2])
def test_modes_of_the_caller(threads: int) -> None:
    given = inputs(300, 400)
    expected = attention(*given, Sparsemax(), method="dense")[0]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with mode():
                copies = [x.detach().clone().requires_grad_(mode is torch.enable_grad) for x in given]
                found = attention(*copies, Sparsemax(), method="sparse", need_weights=False)[0]
            assert found.is_inference() == (mode is torch.inference_mode)
            assert found.requires_grad == (mode is torch.enable_grad)
            torch.testing.assert_close(found.detach(), expected.detach(), rtol=1e-10, atol=1e-10)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            list_candidates(given[0], given[1].flatten(0, 1)[..., :5], Threshold(2.0), Pairs(), False)
    finally:
        torch.set_num_threads(before)


def test_ties_and_equal_scores() -> None:
    given = [x.detach().round() for x in inputs(30, 100)]
    check(Sparsemax(), [x.clone().requires_grad_() for x in given], scale=0.5)
    check(TopKSparsemax(2), [x.clone().requires_grad_() for x in given], scale=0.5)
    zeros = [torch.zeros_like(given[0]), *given[1:]]
    check(Entmax(1.5), [x.clone().requires_grad_() for x in zeros])


@pytest.mark.parametrize("mapping", [Sparsemax(), Entmax(1.5)], ids=repr)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_an_invalid_query_stays_one_row(mapping: SparseMapping, broken: float) -> None:
    torch.manual_seed(0)
    query, key, value = (x.detach() for x in inputs(20, 50))
    whole, _ = attention(query, key, value, mapping, method="sparse")
    query[1, 2, 3] = broken
    query.requires_grad_()
    output, weights = attention(query, key, value, mapping, method="sparse")
    assert bool(output[1, 2, 3].isnan().all())
    assert bool(weights.to_dense()[1, 2, 3].isnan().any())
    rest = torch.ones(2, 4, 20, dtype=torch.bool)
    rest[1, 2, 3] = False
    torch.testing.assert_close(output[rest], whole[rest], rtol=1e-12, atol=1e-12)
    (slope,) = torch.autograd.grad(output.sum(), query)
    assert bool(slope[rest].isfinite().all())
    masked, _ = attention(query, key, value, mapping, rest.unsqueeze(-1), method="sparse")  # a query without keys
    assert bool((masked[1, 2, 3] == 0).all())


def test_keys_that_are_masked_may_be_anything() -> None:
    torch.manual_seed(0)
    query, key, value = inputs(20, 50)
    mask = torch.ones(1, 1, 20, 50, dtype=torch.bool)
    mask[..., 7] = False
    expected, _ = attention(query, key, value, Sparsemax(), mask)
    with torch.no_grad():
        key[:, :, 7] = value[:, :, 7] = torch.nan
    output, _ = attention(query, key, value, Sparsemax(), mask, method="sparse")
    torch.testing.assert_close(output, expected)
    assert all(bool(x.isfinite().all()) for x in torch.autograd.grad(output.sum(), (query, key, value)))


@pytest.mark.parametrize("mapping", [Entmax(1.5), LearnableEntmax(shape=(2, 1, 1)).double()], ids=repr)
def test_second_derivatives(mapping: SparseMapping) -> None:
    torch.manual_seed(0)
    given = [x[:1, :2].detach().contiguous().requires_grad_() for x in inputs(3, 6)]
    bias = torch.randn(2, 1, 6, dtype=torch.float64, requires_grad=True)

    def output(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, *parameters: Tensor) -> Tensor:
        return attention(query, key, value, mapping, bias=bias, softcap=3.0, is_causal=True, method="sparse")[0]

    assert torch.autograd.gradcheck(output, (*given, bias, *mapping.parameters()))
    assert torch.autograd.gradgradcheck(output, (*given, bias, *mapping.parameters()), atol=1e-10, rtol=1e-5, fast_mode=True)


def test_many_candidates_are_left_to_dense_attention() -> None:
    query, key, value = inputs(64, 1024, scale=1e-3)
    assert listed(query, key, value, Entmax(1.25), only_few=True) is None
    assert listed(query, key, value, Entmax(1.25)) is not None
    few = inputs(64, 1024)
    assert listed(*few, Entmax(1.25), Pairs(is_causal=True), only_few=True) is not None


@pytest.mark.parametrize("mapping", [Sparsemax(), Entmax(1.5), Entmax(1.3)], ids=repr)
def test_one_and_two_threads_agree(mapping: SparseMapping) -> None:
    torch.manual_seed(0)
    given = [x.detach().float() for x in inputs(300, 400)]
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(attention(*given, mapping, method="sparse", need_weights=False)[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_a_mapping_of_its_own_is_not_its_bases_entmax() -> None:
    class Doubled(Sparsemax):
        def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
            return super().map(2 * scores, mask, dim)

    assert Doubled().threshold() is None
    assert Softmax().threshold() is None
    assert Sparsemax(gamma=0.5).threshold() == Threshold(2.0, None, 0.5)
    assert TopKSparsemax(2).threshold() == Threshold(2.0, 2, 1.0)
    assert Entmax(1.3).threshold() == Threshold(1.3, None, 1.0)


class Elsewhere(Tensor):
    """A tensor that is not on the CPU, as far as the kernels see."""

    is_cpu = False


@pytest.mark.parametrize("alpha", [1.01, 1.25, 1.4, 1.5, 1.8, 2.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 31, 64, 700])
def test_candidates_hold_the_support_and_little_more(alpha: float, dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(0)
    scores = torch.randn(60, size, dtype=dtype) * torch.logspace(-2, 2, 60, dtype=dtype).unsqueeze(-1)
    scores[1] = 0.5
    scores[2] = -torch.inf
    scores[3, size // 2] = torch.nan
    scores[4, size // 3] = torch.inf
    scores[5:40] = scores[5:40].masked_fill(torch.rand(35, size) < 0.5, -torch.inf)
    lists = torch.empty(60, size, dtype=torch.int32)
    counts = list_candidates_of(scores, alpha, 0.7, lists)
    support = entmax(scores, alpha, gamma=0.7).nan_to_num() != 0
    for row in range(60):
        places = lists[row, : int(counts[row])].tolist()
        assert places == sorted(set(places))
        if row in (3, 4):
            assert places == [size // 2 if row == 3 else size // 3]
        else:
            assert set(support[row].nonzero().flatten().tolist()) <= set(places)
    if alpha in (1.25, 1.5, 2.0):  # the bound is looser where 1 / (alpha - 1) is not an integer
        assert float((counts[5:] <= 2 * support[5:].sum(-1) + 4).double().mean()) > 0.8
    assert bool((lists[torch.arange(size) >= counts.unsqueeze(-1)] == -1).all())
    again = torch.empty_like(lists)
    reference = list_candidates_of(scores.as_subclass(Elsewhere), alpha, 0.7, again).as_subclass(Tensor)
    assert bool(((reference - counts).abs() <= 1 + counts // 8).all())
    for row in (2, 3, 4):
        assert lists[row, : int(counts[row])].tolist() == again[row, : int(reference[row])].tolist()
    assert torch.equal(lists[counts == reference], again[counts == reference])
    turned = torch.empty_like(lists)
    assert torch.equal(list_candidates_of(scores.mT.contiguous().mT, alpha, 0.7, turned), counts)
    assert torch.equal(turned, lists)


@pytest.mark.parametrize(
    "pairs",
    [
        Pairs(),
        Pairs(is_causal=True),
        Pairs(mask=(torch.rand(3, 70, 200, generator=torch.Generator().manual_seed(1)) < 0.7) & (torch.arange(200) > 20)),
        Pairs(bias=torch.linspace(-1, 1, 200).expand(1, 1, 200), softcap=2.0),
    ],
    ids=["plain", "causal", "mask", "bias"],
)
@pytest.mark.parametrize("spread", [1.0, 0.5])
def test_lists_outside_the_cpu(pairs: Pairs, spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of tensors give the lists of blocks of arrays, short ones and such as become longer."""
    torch.manual_seed(0)
    query, keys = spread * torch.randn(3, 70, 8), torch.randn(3, 200, 8)
    monkeypatch.setattr(candidates, "FEW", 8)
    monkeypatch.setattr(candidates, "BLOCK", 5000)
    kernel = list_candidates_of
    monkeypatch.setattr(candidates, "list_candidates_of", lambda x, *rest, **more: kernel(x.as_subclass(Tensor), *rest, **more))
    expected = list_candidates(query, keys, Threshold(1.5), pairs, False)
    found = list_candidates(query.as_subclass(Elsewhere), keys.as_subclass(Elsewhere), Threshold(1.5), pairs, False)
    assert expected is not None and found is not None
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.as_subclass(Tensor), theirs)
    assert int((expected[0] >= 0).sum(-1).max()) > 8, "some lists are longer than the first ones"


@pytest.mark.parametrize("size", [20, 700, 1700])
@pytest.mark.parametrize("on", [lambda x: x, lambda x: x.as_subclass(Elsewhere)], ids=["kernel", "reference"])
def test_candidates_of_causal_rows(size: int, on: Any) -> None:
    torch.manual_seed(0)
    scores, rows = torch.randn(40, size), torch.arange(40)
    ahead = size // 2 - 20
    seen = torch.arange(size) <= (rows + ahead).unsqueeze(1)
    lists, again = torch.empty(2, 40, size, dtype=torch.int32)
    list_candidates_of(scores.masked_fill(~seen, -torch.inf), 1.5, 1.0, lists)
    scores[~seen] = torch.nan  # never read
    counts = list_candidates_of(on(scores), 1.5, 1.0, again, low=3, ahead=ahead)
    support = entmax(scores.masked_fill(~seen, -torch.inf), 1.5) > 0
    for row in range(40):
        places = again[row, : int(counts[row])].sub(3).tolist()
        assert places == sorted(set(places))
        assert set(support[row].nonzero().flatten().tolist()) <= set(places) <= set(range(row + ahead + 1))
    assert bool((counts <= 1.5 * (lists >= 0).sum(1) + 3).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_reference_of_the_kernels(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    matrix, rows = torch.randn(2, 9, 4, dtype=dtype), torch.randn(6, 4, dtype=dtype)
    places = torch.stack([torch.randperm(9)[:5] for _ in range(6)]).int()
    places[1, 3:] = places[4, 0:] = -1
    rows[4] = torch.nan  # lists nothing
    places[places == 0] = 8
    places[3, 0] = places[5, 1] = 3
    matrix[0, 0] = torch.nan  # is not listed
    lists = Lists(places, torch.tensor([0, 0, 0, 1, 1, 1]), (2, 9))
    weights = torch.randn(6, 5, dtype=dtype)
    matrix[1, 3] = torch.nan
    weights[:, 0] = 0.0
    weights[(places == 3) & (lists.blocks == 1).unsqueeze(1)] = 0.0
    rows[5], weights[5] = torch.nan, 0.0

    def all_three(on: Any) -> list[Tensor]:
        return [
            listed_products(on(rows), on(matrix), lists),
            listed_sums(on(weights), on(matrix), lists),
            sums_to_listed(on(weights), on(rows), lists),
        ]

    compiled = all_three(lambda x: x)
    reference = all_three(lambda x: x.as_subclass(Elsewhere))
    for ours, theirs in zip(compiled, reference, strict=True):
        torch.testing.assert_close(ours, theirs.as_subclass(Tensor), equal_nan=True)
    assert not bool(torch.stack([compiled[1].isnan().any(), compiled[2].isnan().any()]).any())


@pytest.mark.parametrize("mapping", [Sparsemax(), Entmax(1.3)])
def test_a_candidate_without_weight_does_not_matter(mapping: SparseMapping) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(20, 8), torch.randn(60, 8), torch.randn(60, 5)
    weights = attention(query, key, value, mapping, method="dense")[1]
    assert weights is not None
    for place in range(0, 60, 7):
        broken = value.clone()
        broken[place] = torch.nan
        output = attention(query, key, broken, mapping, method="sparse")[0]
        assert torch.equal(output.isnan().all(-1), weights[:, place] > 0)
        assert torch.equal(output.isnan().any(-1), weights[:, place] > 0)


@pytest.mark.parametrize("pairs", [Pairs(), Pairs(mask=torch.rand(1, 300, 300) < 0.5), Pairs(bias=torch.randn(1, 300, 300))])
def test_threads_share_memory_in_inference_mode(pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is not in inference mode takes over the memory of one that is."""
    monkeypatch.setattr(candidates, "BLOCK", 64)
    monkeypatch.setattr(candidates, "ROWS", 16)
    with torch.inference_mode():
        query, key = torch.randn(2, 1, 300, 8)
        search = candidates._Search(query, key, Threshold(2.0), pairs, False)
        search.run(0)
        thread = threading.Thread(target=search.run, args=(1,))
        thread.start()
        thread.join()
    assert search.done[1] is not None
