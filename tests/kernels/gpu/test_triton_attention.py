"""Attention in blocks equals dense attention: in Triton's interpreter anywhere, and compiled on a GPU where there is one.

Each check takes the device of the tensors. On the CPU it runs in a process of its own, which is this file, with smaller blocks,
so that few keys make many of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_sparse.kernels.gpu import triton_attention, triton_lists, triton_rows
from lit_sparse.mappings import Entmax, LearnableEntmax, Softmax, SparseMapping, Sparsemax, TopKSparsemax
from lit_sparse.nn import attention
from lit_sparse.nn.attend import blocks, function
from lit_sparse.nn.attend.operands import Operands
from tests.support.processes import run_python
from tests.support.watched_memory import watched_memory

#: With powers of 2 as gamma, scores that are exactly at a threshold are so in each arithmetic.
MAPPINGS = (Sparsemax(), Entmax(1.5), Entmax(1.25, gamma=0.5), Entmax(1.7), Sparsemax(gamma=4.0))
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def normal(*shape: int, device: str) -> Tensor:
    """Draw on the CPU, so that all devices have the same numbers."""
    return torch.randn(shape).to(device)


def inputs(device: str, length: int, size: int, heads: int = 2, shared: int = 2, width: int = 8) -> list[Tensor]:
    shapes = (heads, length, width), (shared, size, width), (shared, size, 5)
    return [normal(*shape, device=device) for shape in shapes]


def in_blocks(*given: Tensor, mapping: SparseMapping, **options: Any) -> Tensor:
    """Attend by the sparse method without lists, and assert that it was the programs that computed."""
    calls: list[str] = []
    attend = triton_attention.attend
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_lists, "SHAPES", {})
        patch.setattr(triton_attention, "attend", lambda *args: calls.append("blocks") or attend(*args))  # type: ignore[func-returns-value]
        output, weights = attention(*given, mapping, method="sparse", need_weights=False, **options)
    assert weights is None
    assert calls == ["blocks"]
    return output


def check(mapping: SparseMapping, given: list[Tensor], **options: Any) -> None:
    """Compare output and gradients with dense attention in float64."""
    tolerance = TOLERANCE[given[0].dtype]
    leaves = [x.detach().clone().requires_grad_() for x in given]
    exact = [x.detach().double().requires_grad_() for x in given]
    output = in_blocks(*leaves, mapping=mapping, **options)
    expected, _ = attention(*exact, mapping, method="dense", **options)
    assert output.dtype == given[0].dtype
    near: dict[str, Any] = {"rtol": tolerance, "atol": tolerance, "equal_nan": True, "check_dtype": False}
    torch.testing.assert_close(output, expected, **near)
    slope = normal(*output.shape, device=str(output.device)).to(output.dtype)
    ours = torch.autograd.grad(output, leaves, slope)
    theirs = torch.autograd.grad(expected, exact, slope.double())
    for one, other in zip(ours, theirs, strict=True):
        largest = max(1.0, float(other.nan_to_num(0.0).abs().amax()))
        torch.testing.assert_close(one.double() / largest, other / largest, **near)


def check_masks(device: str) -> None:
    distance = (torch.arange(37).unsqueeze(-1) - torch.arange(50)).to(device)
    masks = {
        "none": None,
        "triangle": distance >= 0,
        "padding": (torch.arange(50) < torch.tensor([[20], [50]]))[:, None, None].to(device),
        "window": distance.abs() < 5,
        "pairs": (torch.rand(2, 1, 37, 50) < 0.5).to(device),
        "heads": (torch.rand(2, 2, 37, 50) < 0.05).to(device),  # some queries without keys
        "keys": (torch.rand(50) < 0.5).to(device),
        "nothing": torch.zeros(1, 1, dtype=torch.bool, device=device),
        "columns first": (torch.rand(2, 50, 37) < 0.5).to(device).mT,
    }
    for number, mask in enumerate(masks.values()):
        given = [torch.stack([x, -x]) for x in inputs(device, 37, 50, heads=2, shared=1 + number % 2)]
        check(MAPPINGS[number % 4], given, mask=mask, is_causal=number % 3 == 2)


def check_shapes(device: str) -> None:
    for number, (length, size) in enumerate([(1, 1), (1, 40), (40, 1), (16, 32), (17, 33), (33, 17), (5, 70)]):
        for is_causal in (False, True):
            check(MAPPINGS[number % 5], inputs(device, length, size, width=(8, 1, 20)[number % 3]), is_causal=is_causal)
    query, key, value = inputs(device, 20, 30, heads=4, shared=2)
    for shared in ((key, value), (key[:1], value[:1]), (key[0], value[0])):
        check(Entmax(1.5), [query, *shared], is_causal=True)
    check(Sparsemax(), [query[0], key[0], value[0]], mask=(torch.rand(20, 30) < 0.5).to(device))
    check(Sparsemax(), [query[0], key, value], scale=0.7)  # one query sequence, two of keys
    check(Sparsemax(), [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (query, key, value)])


def check_scores(device: str) -> None:
    """Ties, equal and tiny scores, scores as large as one likes, and rows that take many Newton steps."""
    for number, mapping in enumerate(MAPPINGS):
        query, key, value = (x.round() for x in inputs(device, 20, 40))
        for factor in (2.0**-30, 0.25, 2.0**12)[number % 2 :]:  # products without rounding
            check(mapping, [query * factor, key, value], scale=0.5)
        check(mapping, [query * 0, key, value])
    # The largest four are in one column of all blocks, so that the peaks say little of the threshold.
    block = triton_attention.block_of(torch.float32, 1, 1).columns
    slow = torch.zeros(6 * block, dtype=torch.float64)
    for i in range(4, len(slow)):
        slow[i] = (slow[:i].sum() - 1) / i - 1e-4
    slow[torch.tensor([0, block, 2 * block, 3 * block])], slow[:4] = slow[:4].clone(), slow[[0, block, 2 * block, 3 * block]]
    _, _, value = inputs(device, 1, len(slow), shared=1)
    query, key = torch.ones(1, 3, 1, device=device), slow.float().view(1, -1, 1).to(device)
    check(Sparsemax(), [query, key, value], scale=1.0)


def check_invalid(device: str) -> None:
    for number, broken in enumerate((torch.nan, torch.inf)):
        mapping = MAPPINGS[number]
        query, key, value = inputs(device, 20, 40)
        whole = in_blocks(query, key, value, mapping=mapping)
        query[1, 3, 2] = broken
        leaves = [x.requires_grad_() for x in (query, key, value)]
        output = in_blocks(*leaves, mapping=mapping)
        rest = torch.ones(2, 20, dtype=torch.bool, device=device)
        rest[1, 3] = False
        assert bool(output[1, 3].isnan().all())
        assert torch.equal(output[rest], whole[rest])
        slopes = torch.autograd.grad(output.sum(), leaves)
        assert bool(slopes[0][rest].isfinite().all())
        assert bool(slopes[0][1, 3].isnan().all())
        assert all(bool(slope[0].isfinite().all()) and bool(slope[1].isnan().all()) for slope in slopes[1:])
        masked = in_blocks(*leaves, mapping=mapping, mask=rest.unsqueeze(-1))  # a query without keys
        assert bool((masked[1, 3] == 0).all())
        slopes = torch.autograd.grad(masked.sum(), leaves)
        assert all(bool(slope.isfinite().all()) for slope in slopes)
        assert bool((slopes[0][1, 3] == 0).all())

        query, key, value = inputs(device, 20, 40)
        mask = torch.ones(20, 40, dtype=torch.bool, device=device)
        mask[:, 7] = False
        expected = in_blocks(query, key, value, mapping=mapping, mask=mask)
        with torch.no_grad():
            key[:, 7] = value[:, 7] = broken  # masked for all
        leaves = [x.requires_grad_() for x in (query, key, value)]
        output = in_blocks(*leaves, mapping=mapping, mask=mask)
        assert torch.equal(output, expected)
        assert all(bool(slope.isfinite().all()) for slope in torch.autograd.grad(output.sum(), leaves))

        query, key, value = inputs(device, 20, 40)
        weights = attention(query, key, value, mapping, method="dense")[1]
        value[0, 9] = broken
        touched = in_blocks(query, key, value, mapping=mapping).isfinite().logical_not().all(-1)
        assert torch.equal(touched[0], weights[0, :, 9] > 0)
        assert not bool(touched[1].any())


def check_types(device: str) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        for mapping in MAPPINGS[:3]:
            check(mapping, [x.to(dtype) for x in inputs(device, 20, 40)], is_causal=True)
    leaves = [x.requires_grad_() for x in inputs(device, 20, 40)]
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        output = in_blocks(*leaves, mapping=Entmax(1.5))
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), attention(*leaves, Entmax(1.5))[0], atol=3e-2, rtol=3e-2)
    assert all(x.dtype == torch.float32 for x in torch.autograd.grad(output.float().sum(), leaves))


def check_marks(device: str) -> None:
    """Blocks without weights are skipped, and no others; the gradients need the same blocks."""
    block = triton_attention.block_of(torch.float32, 8, 5)
    query = torch.eye(8).repeat_interleave(block.rows + 4, 0)[None].to(device) * 8.0
    size = 8 * (block.columns + 9)
    key = torch.eye(8).repeat_interleave(size // 8, 0)[None].to(device) + 0.1 * normal(1, size, 8, device=device)
    value = normal(1, size, 5, device=device)
    for alpha in (2.0, 1.5, 1.25):
        options = triton_attention.BlockOptions(alpha, 1.0, 1.0, False)
        live = triton_attention.attend(query, key, value, None, options)[2]
        weights = attention(query.double(), key.double(), value.double(), Entmax(alpha), scale=1.0)[1]
        padded = torch.nn.functional.pad(weights, (0, -size % block.columns, 0, -query.shape[1] % block.rows))
        expected = padded.unflatten(2, (-1, block.columns)).unflatten(1, (-1, block.rows)).amax((2, 4)) > 0
        assert torch.equal(live > 0, expected)
        assert 0.1 < float(expected.double().mean()) < 0.5
        check(Entmax(alpha), [query, key, value], scale=1.0)
        check(Entmax(alpha), [query, key, value], scale=1.0, is_causal=True)


def check_second_derivatives(device: str) -> None:
    """They equal dense attention's."""
    mask = (torch.rand(2, 9, 12) < 0.8).to(device)
    given = [x.requires_grad_() for x in inputs(device, 9, 12, heads=4)]
    mask = mask.repeat_interleave(2, 0)
    for mapping in MAPPINGS[:3]:
        results = []
        for method in ("sparse", "dense"):
            output = attention(*given, mapping, mask, method=method, need_weights=False, is_causal=True)[0]
            first = torch.autograd.grad(output.square().sum(), given, create_graph=True)
            second = torch.autograd.grad(sum(x.square().sum() for x in first), given)
            results.append((*first, *second))
        torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)
    query, key, value = given
    output = in_blocks(query.detach(), key, value.detach(), mapping=Sparsemax())
    (first,) = torch.autograd.grad(output.square().sum(), key, create_graph=True)
    assert torch.autograd.grad(first.sum(), key)[0].shape == key.shape


def check_choice(device: str) -> None:
    """Lists serve where the candidates are few; otherwise the programs serve what they can, and dense attention the rest."""
    calls: list[str] = []
    functions = [
        (function, "attend_in_blocks"),
        (function, "attend_to_listed"),
        (function, "attend_to_all"),
    ]

    def recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **options: calls.append(name) or function(*args, **options)  # type: ignore[func-returns-value]

    def called(mapping: SparseMapping, *given: Tensor, **options: Any) -> list[str]:
        calls.clear()
        with pytest.MonkeyPatch.context() as patch:
            for module, name in functions:
                patch.setattr(module, name, recorded(name, getattr(module, name)))
            attention(*given, mapping, **({"need_weights": False} | options))
        return list(calls)

    long, short = inputs(device, 70, 512), inputs(device, 3, 4)
    programs, lists, dense = (name for _, name in functions)
    assert called(Sparsemax(), *(x.half() for x in long)) == [lists]
    assert called(Sparsemax(), *(x.half() * 0.01 for x in long)) == [lists, programs]
    assert called(Sparsemax(), *short) == [dense]
    if device != "cpu":
        assert called(Sparsemax(), *long) == [dense]  # in float32
    for mapping in (Sparsemax(), Entmax(1.5), Entmax(1.05), Entmax(2.0)):
        assert called(mapping, *short, method="sparse") == [lists, programs]
    for mapping in (TopKSparsemax(2), LearnableEntmax((2, 1, 1)).to(device), Entmax(1.04), Entmax(2.5)):
        assert called(mapping, *short, method="sparse") == [lists]
    others: list[dict[str, Any]] = [{"dropout": 0.5}, {"softcap": 2.0}, {"bias": torch.zeros(3, 4, device=device)}]
    for options in [*others, {"need_weights": True}]:
        assert called(Sparsemax(), *short, **options, method="sparse") == [lists]
    assert called(Sparsemax(), *(x.double() for x in short), method="sparse") == [lists]
    assert called(Sparsemax(), *inputs(device, 3, 4, width=129), method="sparse") == [lists]
    assert called(Sparsemax(), *inputs(device, 0, 4), method="sparse") == [lists]
    assert called(Softmax(), *long) == [dense]
    if device != "cpu":
        assert called(Sparsemax(), *long, dropout=0.5) == [dense]


def check_graphs(device: str) -> None:
    """Graphs of ``torch.compile`` hold the programs in the operator of sparse attention."""
    names: list[str] = []

    def record(graph: torch.fx.GraphModule, given: Any) -> Any:
        names.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return torch._dynamo.lookup_backend("aot_eager")(graph, given)

    def output(*given: Tensor) -> Tensor:
        return attention(*given, Entmax(1.5), method="sparse", is_causal=True, need_weights=False)[0]

    given = [x.requires_grad_() for x in inputs(device, 20, 40)]
    expected, traced = output(*given), torch.compile(output, fullgraph=True, backend=record)(*given)
    assert "lit_sparse.attention" in names
    torch.testing.assert_close(traced, expected)
    slopes = [torch.autograd.grad(y.square().sum(), given) for y in (expected, traced)]
    torch.testing.assert_close(slopes[1], slopes[0])


#: Dtype, entries of a key, alpha, and whether there is a mask and it is causal.
COMPILED = {
    "compiles": [(torch.float32, 64, 1.5, False, True), (torch.bfloat16, 64, 2.0, True, False)],
    "compiles wide": [(torch.float32, 128, 2.0, True, False), (torch.float16, 128, 1.3, False, True)],
}


def check_compiles(name: str) -> None:
    """Compile for a GPU that need not be there, with shared memory that all GPUs of compute capability 8 have."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from lit_sparse.kernels.gpu import triton_programs

    elements = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    sizes = dict.fromkeys(("length", "size", "entries", "value_entries", "share", "row_step", "column_step"), "i32")
    others = {"statistics": "*fp32", "live": "*i8", "mask": "*u8", "places": "*i64"}
    others |= sizes | dict.fromkeys(("scale", "inverse_gamma", "eps"), "fp32")
    for dtype, width, alpha, masked, causal in COMPILED[name]:
        for program_name in ("attend_blocks", "differentiate_queries", "differentiate_keys"):
            program = getattr(triton_programs, program_name)
            fixed = triton_attention.shape_of(dtype, width, width, alpha - 1, torch.device("cuda"))
            options = {option: fixed.pop(option) for option in ("num_warps", "num_stages")}
            fixed |= {"masked": masked, "causal": causal}
            names = program.arg_names
            types = {arg: "constexpr" if arg in fixed else others.get(arg, f"*{elements[dtype]}") for arg in names}
            aligned = {(i,): [["tt.divisibility", 16]] for i, arg in enumerate(names) if types[arg].startswith("*")}
            source = ASTSource(program, types, {(names.index(arg),): value for arg, value in fixed.items()}, aligned)
            built = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options)
            assert built.metadata.shared <= 99 << 10, (program_name, dtype, width)


CHECKS: dict[str, Callable[[str], None]] = {
    "masks": check_masks,
    "shapes": check_shapes,
    "scores": check_scores,
    "invalid": check_invalid,
    "types": check_types,
    "marks": check_marks,
    "second_derivatives": check_second_derivatives,
    "choice": check_choice,
    "graphs": check_graphs,
}
MODULE = "tests.kernels.gpu.test_triton_attention"


#: Half a minute to a minute each.
LONG = ["masks", "scores", "marks", "choice"]


def test_float32_blocks_are_for_many_scores() -> None:
    few, many = (torch.empty(heads, 1 << 12, 1, device="meta") for heads in (8, 9))
    assert not blocks.saves(Operands(few, few, few))
    assert blocks.saves(Operands(few.half(), few.half(), few.half()))
    assert blocks.saves(Operands(many, few, few))
    assert blocks.saves(Operands(few[0], many, many))


@pytest.mark.slow
@pytest.mark.parametrize("names", [[name for name in CHECKS if name not in LONG], LONG], ids="; ".join)
def test_in_the_interpreter(names: list[str]) -> None:
    pytest.importorskip("triton")
    assert run_python("-m", MODULE, *names, TRITON_INTERPRET="1").split("\n")[:-1] == [f"{name}: holds" for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_the_programs_compile(name: str, tmp_path: Path) -> None:
    pytest.importorskip("triton", minversion="3.3")  # whose compiler can be called like this
    assert run_python("-m", MODULE, name, TRITON_CACHE_DIR=str(tmp_path)) == f"{name}: holds\n"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("name", CHECKS)
def test_on_each_gpu(name: str) -> None:
    pytest.importorskip("triton")
    for i in range(torch.cuda.device_count()):
        torch.manual_seed(0)
        CHECKS[name](f"cuda:{i}")


if __name__ == "__main__":
    triton_rows.DEVICES.append("cpu")
    real = dict(triton_attention.BLOCKS)
    for kind in real:
        triton_attention.BLOCKS[kind] = (triton_attention.BlockShape(32, 16, 4),) * 2
    for choice in sys.argv[1:]:
        torch.manual_seed(0)
        if choice in COMPILED:
            triton_attention.BLOCKS.update(real)
            check_compiles(choice)
        else:
            with watched_memory():
                CHECKS[choice]("cpu")
        print(f"{choice}: holds")
