"""The choice between dense and sparse attention, what it refuses, and the weights it returns."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import (
    Entmax,
    Fusedmax,
    HardThreshold,
    HoyerProjection,
    LearnableEntmax,
    Softmax,
    SparseMAP,
    SparseMapping,
    Sparsemax,
    TopKSparsemax,
)
from lit_sparse.nn import EntailmentNetwork, MultiheadAttention, RecurrentBody, attention
from lit_sparse.nn.attend import function
from lit_sparse.structures import Assignment

CALLS: list[str] = []


@pytest.fixture(autouse=True)
def record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record which method computes, and whether the sparse one gives up."""
    CALLS.clear()
    sparse, dense = function.attend_to_listed, function.attend_to_all

    def recorded_sparse(*args: Any, **options: Any) -> Any:
        attended = sparse(*args, **options)
        CALLS.append("sparse" if attended is not None else "gives up")
        return attended

    def recorded_dense(*args: Any, **options: Any) -> Any:
        CALLS.append("dense")
        return dense(*args, **options)

    monkeypatch.setattr(function, "attend_to_listed", recorded_sparse)
    monkeypatch.setattr(function, "attend_to_all", recorded_dense)


def inputs(length: int = 300, size: int = 600, heads: int = 2, **options: Any) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, heads, n, 16, **options) for n in (length, size, size)]


@pytest.mark.parametrize(
    "mapping", [Sparsemax(), TopKSparsemax(4), Entmax(1.25, gamma=0.5), Entmax(1.5), LearnableEntmax(shape=(2, 1, 1))], ids=repr
)
def test_auto_is_sparse_where_it_is_faster(mapping: SparseMapping) -> None:
    given = inputs()
    output, weights = attention(*given, mapping, need_weights=False)
    assert CALLS == ["sparse"]
    assert weights is None
    torch.testing.assert_close(output, attention(*given, mapping, method="dense")[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("mapping", "options"),
    [
        (Sparsemax(), {"need_weights": True}),
        (Sparsemax(), {"size": 511}),
        (Sparsemax(), {"length": 1}),
        (Sparsemax(), {"device": "meta"}),
        (Softmax(), {}),
        (Entmax(1.0), {}),
        (Fusedmax(), {}),
        (Entmax(torch.full((300, 1), 1.5)), {}),
    ],
    ids=repr,
)
def test_auto_is_dense_otherwise(mapping: SparseMapping, options: dict[str, Any]) -> None:
    options = {"need_weights": False} | options
    need_weights = options.pop("need_weights")
    attention(*inputs(**options), mapping, need_weights=need_weights)
    assert CALLS == ["dense"]


def test_auto_gives_up_where_candidates_are_many() -> None:
    query, key, value = inputs(size=2000)
    output, _ = attention(query * 1e-3, key, value, Sparsemax(), need_weights=False)
    assert CALLS == ["gives up", "dense"]
    assert torch.equal(output, attention(query * 1e-3, key, value, Sparsemax(), method="dense")[0])


def test_auto_is_dense_under_transforms_exports_and_forward_mode() -> None:
    given = inputs()

    def output(*given: Tensor) -> Tensor:
        return attention(*given, Sparsemax(), need_weights=False)[0]

    expected = attention(*given, Sparsemax(), method="dense")[0]
    CALLS.clear()
    torch.testing.assert_close(torch.func.vmap(output)(*given), expected)
    torch.func.grad(lambda query: output(query, *given[1:]).sum())(given[0])
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(given[0], torch.ones_like(given[0]))
        assert forward_ad.unpack_dual(output(dual, *given[1:])).tangent is not None
    mapped = torch.compile(torch.func.vmap(output), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(mapped(*given), expected)
    exported = torch.export.export(Attend(), tuple(given))
    torch.testing.assert_close(exported.module()(*given), expected)
    assert not [node for node in exported.graph.nodes if "new_empty" in str(node.target)]
    assert set(CALLS) == {"dense"}


class Attend(nn.Module):
    """Attention without weights."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(query, key, value, Sparsemax(), need_weights=False)[0]


@pytest.mark.parametrize(
    ("mapping", "reason"),
    [
        (Softmax(), r"Softmax\(.*\) is not sparsemax, top-k sparsemax, or entmax"),
        (Entmax(1.0), "with alpha above 1"),
        (Entmax(torch.full((300, 1), 1.5)), r"each head needs one alpha .* \(..., heads, 1, 1\)"),
    ],
    ids=repr,
)
def test_sparse_names_the_reason_of_a_refusal(mapping: SparseMapping, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"Expected method='sparse' to be possible but .*{reason}.*Use method='auto'"):
        attention(*inputs(), mapping, method="sparse")


def test_sparse_refuses_transforms_and_forward_mode() -> None:
    given = inputs(3, 4)
    with pytest.raises(ConfigurationError, match=r"a transform of torch\.func"):
        torch.func.vmap(lambda *given: attention(*given, Sparsemax(), method="sparse")[0])(*given)
    with forward_ad.dual_level(), pytest.raises(ConfigurationError, match="forward mode"):
        attention(*given, Sparsemax(), method="sparse")
    with pytest.raises(ConfigurationError, match="values of dense tensors"):
        attention(*inputs(3, 4, device="meta"), Sparsemax(), method="sparse")
    rows = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(4, 8)], layout=torch.jagged)
    with pytest.raises(ConfigurationError, match="a sparse or nested tensor"):
        attention(rows, rows, rows, Sparsemax(), method="sparse", need_weights=False)
    with pytest.raises(ConfigurationError, match=r"`method` to be one of \('auto', 'sparse', 'dense'\) but got 'fast'"):
        attention(*given, Sparsemax(), method="fast")
    with pytest.raises(ConfigurationError, match="`method`"):
        MultiheadAttention(8, 2, method="fast")  # type: ignore[arg-type]


def test_sparse_weights() -> None:
    query, key, value = (x.requires_grad_() for x in inputs(5, 9))
    output, weights = attention(query, key, value, Sparsemax(), method="sparse")
    assert weights.layout == torch.sparse_coo
    assert weights.is_coalesced()
    assert bool((weights.values() != 0).all())
    torch.testing.assert_close(weights.to_dense() @ value, output)
    assert attention(query, key, value, Sparsemax(), method="sparse", need_weights=False)[1] is None
    assert attention(query, key, value, Sparsemax(), need_weights=False)[1] is None


def test_dropout_of_sparse_attention() -> None:
    query, key, value = inputs(400, 300)
    mapping = Entmax(1.5, gamma=2.0)
    whole = attention(query, key, value, mapping)[1]
    output, weights = attention(query, key, value, mapping, dropout=0.25, method="sparse")
    kept = weights.to_dense()[whole > 0] > 0
    assert abs(float(kept.double().mean()) - 0.75) < 0.02
    torch.testing.assert_close(weights.to_dense()[whole > 0][kept], whole[whole > 0][kept] / 0.75)
    torch.testing.assert_close(output, weights.to_dense() @ value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("length, size", [(0, 3), (3, 0)])
def test_empty_sequences(length: int, size: int, biased: bool) -> None:
    bias = torch.ones(size) if biased else None
    output, weights = attention(*inputs(length, size), Sparsemax(), bias=bias, method="sparse")
    assert output.shape == (1, 2, length, 16)
    assert weights.shape == (1, 2, length, size)
    assert bool((output == 0).all())


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast(low: torch.dtype) -> None:
    given = inputs()
    expected = attention(*given, Sparsemax(), method="dense")[0]
    halves = [x.to(low).requires_grad_() for x in given]
    output, weights = attention(*halves, Sparsemax(), method="sparse")
    assert (output.dtype, weights.dtype) == (low, low)
    torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.05)
    assert all(x.dtype == low for x in torch.autograd.grad(output.sum(), halves))
    singles = [x.requires_grad_() for x in given]
    with torch.autocast("cpu", low):
        output, _ = attention(*singles, Sparsemax(), need_weights=False)
        assert output.dtype == attention(*singles, Sparsemax(), method="dense")[0].dtype == low
    assert CALLS.count("sparse") == 2
    torch.testing.assert_close(output.float(), expected, rtol=0.01, atol=0.01)
    assert all(x.dtype == torch.float32 for x in torch.autograd.grad(output.sum(), singles))


def test_tensors_of_different_dtypes_are_refused() -> None:
    query, key, value = inputs()
    with pytest.raises(ConfigurationError, match="the same dtype but got"):
        attention(query.double(), key, value, Sparsemax(), need_weights=False)


# The layer


def layers(**options: Any) -> tuple[MultiheadAttention, MultiheadAttention]:
    torch.manual_seed(0)
    sparse, dense = (MultiheadAttention(16, 2, mapping=Sparsemax(), method=method, **options) for method in ("sparse", "dense"))
    dense.load_state_dict(sparse.state_dict())
    return sparse, dense


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"add_bias_kv": True, "add_zero_attn": True}], ids=repr)
def test_the_layer(average: bool, options: dict[str, Any]) -> None:
    sparse, dense = layers(**options)
    x, memory = torch.randn(4, 3, 16), torch.randn(6, 3, 16)
    if options.get("batch_first"):
        x, memory = x.transpose(0, 1), memory.transpose(0, 1)
    padding = torch.arange(6) >= torch.tensor([[6], [3], [1]])
    bias = torch.randn(4, 6).masked_fill(torch.rand(4, 6) < 0.2, -torch.inf)
    given = {"key_padding_mask": padding, "attn_mask": bias, "average_attn_weights": average}
    output, weights = sparse(x, memory, memory, **given)
    expected, all_weights = dense(x, memory, memory, **given)
    torch.testing.assert_close(output, expected)
    assert weights.layout == torch.sparse_coo
    torch.testing.assert_close(weights.to_dense(), all_weights)
    ours, theirs = (
        torch.autograd.grad(output.square().sum(), layer.parameters())
        for layer, output in ((sparse, output), (dense, expected))
    )
    torch.testing.assert_close(ours, theirs)
    alone, weights = sparse(x[:, 0], memory[:, 0], memory[:, 0]) if not options.get("batch_first") else sparse(x[0], x[0], x[0])
    expected, all_weights = (
        dense(x[:, 0], memory[:, 0], memory[:, 0]) if not options.get("batch_first") else dense(x[0], x[0], x[0])
    )
    torch.testing.assert_close((alone, weights.to_dense()), (expected, all_weights))


def test_the_layer_without_weights_chooses_by_itself() -> None:
    torch.manual_seed(0)
    layer = MultiheadAttention(16, 2, batch_first=True, mapping=Sparsemax(), dropout=0.5)
    x = torch.randn(2, 600, 16)
    causal = nn.Transformer.generate_square_subsequent_mask(600)
    for training in (True, False):
        layer.train(training)(x, x, x, attn_mask=causal, is_causal=True, need_weights=False)
    assert CALLS == ["sparse", "sparse"]
    output, _ = layer(x, x, x, attn_mask=causal, need_weights=False)
    expected, weights = layer(x, x, x, attn_mask=causal)
    assert CALLS[2:] == ["sparse", "dense"] and weights.layout == torch.strided
    torch.testing.assert_close(output, expected)
    trained = [layer.train()(x, x, x, attn_mask=causal, need_weights=False)[0] for _ in range(2)]
    assert not torch.equal(*trained)


def test_torchs_encoder_layer_asks_for_no_weights() -> None:
    encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder.self_attn = MultiheadAttention(16, 2, batch_first=True, mapping=Sparsemax())
    encoder(torch.randn(1, 600, 16)).sum().backward()
    assert CALLS == ["sparse"]


class TestTheEdges:
    """Operands that fit give weights of one shape by each method; others get a clear error before anything is computed."""

    @pytest.mark.parametrize("method", ["dense", "sparse"])
    @pytest.mark.parametrize(
        "shapes",
        [((1, 5, 8), (1, 7, 8), (4, 7, 3)), ((4, 5, 8), (2, 7, 8), (3, 2, 7, 3)), ((5, 8), (7, 8), (2, 7, 3))],
        ids=["heads", "groups", "none"],
    )
    def test_weights_have_the_leading_dimensions_of_the_output(self, shapes: Any, method: Any) -> None:
        query, key, value = (torch.randn(*shape) for shape in shapes)
        output, weights = attention(query, key, value, Sparsemax(), torch.rand(5, 7) > 0.3, method=method)
        weights = weights.to_dense()
        assert weights.shape[:-1] == output.shape[:-1]
        heads = value.repeat_interleave(weights.shape[-3] // value.shape[-3], -3)
        torch.testing.assert_close(weights @ heads, output)

    @pytest.mark.parametrize("method", ["auto", "dense", "sparse"])
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"value": torch.randn(3, 7, 3)}, "leading dimensions that can be broadcast together"),
            ({"query": torch.randn(3, 4, 5, 8), "key": torch.randn(2, 4, 7, 8)}, "can be broadcast together"),
            ({"query": torch.randn(4, 5, 0), "key": torch.randn(4, 7, 0)}, "at least one entry each"),
            ({"key": torch.randn(4, 7, 8).double()}, "the same dtype but got torch.float32, torch.float64"),
            ({"value": torch.ones(4, 7, 3).double()}, "the same dtype but got"),
            ({"value": torch.ones(4, 7, 3).long()}, "`value` to be a floating tensor but got torch.int64"),
            ({"query": [1.0]}, "`query` to be a floating tensor but got list"),
            ({"scale": "2"}, "`scale` to be a number"),
            ({"scale": math.nan}, "`scale` to be a number"),
            ({"mapping": Entmax(torch.full((3, 1, 1), 1.5))}, r"broadcast to the scores' shape \(4, 5, 7\)"),
        ],
        ids=lambda part: "" if isinstance(part, dict) else part[:20],
    )
    def test_what_does_not_fit(self, change: dict[str, Any], words: str, method: Any) -> None:
        fitting = {"query": torch.randn(4, 5, 8), "key": torch.randn(4, 7, 8), "value": torch.randn(4, 7, 3)}
        given: dict[str, Any] = {**fitting, "mapping": Sparsemax(), "method": method, **change}
        with pytest.raises(ConfigurationError, match=words):
            attention(**given)

    def test_autocast_makes_one_dtype(self) -> None:
        query, key, value = torch.randn(4, 5, 8), torch.randn(4, 7, 8).bfloat16(), torch.randn(4, 7, 3)
        with torch.autocast("cpu", torch.bfloat16):
            assert attention(query, key, value, Sparsemax())[0].dtype == torch.bfloat16

    @pytest.mark.parametrize(
        "use",
        [
            lambda mapping: attention(torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 3), mapping),
            lambda mapping: MultiheadAttention(8, 2, mapping=mapping),
            lambda mapping: EntailmentNetwork(mapping, 5, width=4),
            lambda mapping: RecurrentBody(8).bind(mapping),
        ],
        ids=["function", "layer", "entailment", "decoder"],
    )
    @pytest.mark.parametrize("mapping", [HardThreshold(2), HoyerProjection(0.5)], ids=repr)
    def test_weights_off_the_simplex_are_announced_once(self, mapping: SparseMapping, use: Any) -> None:
        mapping = copy.deepcopy(mapping)
        with pytest.warns(UserWarning, match=r"does not map onto the simplex: its attention weights"):
            use(mapping)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            attention(torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 3), mapping)
            attention(torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 3), SparseMAP(Assignment()))
