"""Sparse attention in compiled graphs is one operator, with the results and gradients of the eager one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lit_sparse.mappings import Entmax, LearnableEntmax, SparseMapping, Sparsemax, TopKSparsemax
from lit_sparse.nn import attention

MAPPINGS = [Sparsemax(gamma=0.5), TopKSparsemax(4), Entmax(1.3), LearnableEntmax(shape=(4, 1, 1))]


class Recorder:
    """A backend that records the operators of all graphs."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.names += [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)  # type: ignore[no-any-return]


def compare(mapping: SparseMapping, given: list[Tensor], *, within: float = 1e-6, **options: Any) -> list[str]:
    """Compare output and gradients of a compiled call with an eager one; return the operators of the graph."""

    def output(*given: Tensor) -> Tensor:
        return attention(*given, mapping, need_weights=False, **options)[0]

    torch.compiler.reset()
    recorder = Recorder()
    bias = options.get("bias")
    leaves = [*given, *mapping.parameters(), *([] if bias is None else [bias])]
    results = []
    for function in (output, torch.compile(output, fullgraph=True, backend=recorder)):
        torch.manual_seed(1)
        y = function(*given)
        results.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
    torch.testing.assert_close(results[1], results[0], rtol=within, atol=within)
    return recorder.names


def inputs(heads: int = 4, shared: int = 4, length: int = 300, size: int = 600, spread: float = 1.0) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(1, heads, length, 16), (1, shared, size, 16), (1, shared, size, 16)]
    given = [torch.randn(shape) for shape in shapes]
    given[0] *= spread
    return [x.requires_grad_() for x in given]


@pytest.mark.parametrize("mapping", MAPPINGS, ids=repr)
def test_results_and_gradients_are_those_of_eager_attention(mapping: SparseMapping) -> None:
    assert "lit_sparse.attention" in compare(mapping, inputs(length=600), is_causal=True)


def test_masks_biases_caps_and_shared_heads() -> None:
    given = inputs(shared=2)
    mask = torch.rand(1, 1, 300, 600) < 0.9
    mask[..., 7, :] = False
    bias = torch.randn(4, 1, 600, requires_grad=True)
    compare(Entmax(1.5), given, mask=mask, bias=bias, softcap=3.0, scale=0.4)


def test_many_candidates_are_dense_in_the_operator() -> None:
    assert "lit_sparse.attention" in compare(Entmax(1.2), inputs(spread=0.01))


def test_a_head_with_an_alpha_below_one_is_dense_in_the_operator() -> None:
    alphas = nn.Parameter(torch.tensor([1.5, 0.6]).view(2, 1, 1))
    assert "lit_sparse.attention" in compare(Entmax(alphas), inputs(2, 2, 150), within=1e-5)


@pytest.mark.gate
def test_an_alpha_for_each_query_stays_dense() -> None:
    """As it does outside of graphs."""
    assert "lit_sparse.attention" not in compare(LearnableEntmax(shape=(300, 1)), inputs(), within=1e-5)


def test_dimensions_are_broadcast() -> None:
    """Queries without a batch, and keys without heads."""
    query, key, value = (x.detach() for x in inputs())
    for given in ([query[0, 0], key[0, 0], value[0, 0]], [query, key[0, 0], value[0, 0]]):
        assert "lit_sparse.attention" in compare(Entmax(1.5), [x.clone().requires_grad_() for x in given])


def test_dropout_is_the_same_in_both_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient in a value is the sum of its weights after dropout."""
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    query, key, value = (x.detach() for x in inputs())
    value = torch.ones_like(value).requires_grad_()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def output(value: Tensor) -> Tensor:
        return attention(query, key, value, Sparsemax(), dropout=0.5, need_weights=False)[0]

    torch.default_generator.manual_seed(3)
    y = output(value)
    (grad,) = torch.autograd.grad(y.sum(), value)
    assert y.var() > 0.01, "some weights are dropped"
    torch.testing.assert_close(grad.sum(), y.sum())
    assert not any(seeds), "no generator of a GPU is seeded for good"


def test_autocast() -> None:
    given = inputs()

    def output(*given: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return attention(*given, Sparsemax(), need_weights=False)[0]

    torch.compiler.reset()
    expected, traced = output(*given), torch.compile(output, fullgraph=True, backend="aot_eager")(*given)
    assert traced.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(traced, expected)
    grads = [torch.autograd.grad(y.float().square().sum(), given) for y in (expected, traced)]
    torch.testing.assert_close(grads[1], grads[0], rtol=0.02, atol=0.02)


def test_the_method_sparse_compiles() -> None:
    given = inputs(size=40, length=30)
    compare(Sparsemax(), given, method="sparse")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return torch.relu(attention(x, x, x, Entmax(1.5), is_causal=True, need_weights=False)[0])


@pytest.mark.gate
@pytest.mark.parametrize("strict", [False, True])
def test_exports_hold_dense_attention(strict: bool) -> None:
    model, x = Block(), torch.randn(2, 600, 16)
    exported = torch.export.export(model, (x,), strict=strict)
    assert not [node for node in exported.graph.nodes if "lit_sparse.attention" in str(node.target)]
    torch.testing.assert_close(exported.module()(x), model(x))


@pytest.mark.slow
def test_a_model_is_compiled_to_machine_code() -> None:
    torch.manual_seed(0)
    model, x = Block(), torch.randn(2, 600, 16)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True)
    for length in (600, 700, 800):  # the last two with symbolic sizes
        x = torch.randn(2, length, 16)
        grads = [torch.autograd.grad(f(x).square().sum(), [*model.parameters()]) for f in (model, compiled)]
        torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4)
