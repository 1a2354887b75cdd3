"""Lists of candidates on a GPU: in Triton's interpreter anywhere, and compiled on a GPU where there is one.

Each check takes the device of the tensors. On the CPU it runs in a process of its own, which is this file, with smaller blocks,
so that few keys make many of them.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lit_sparse.kernels.gpu import triton_attention, triton_lists, triton_rows
from lit_sparse.kernels.gpu.triton_attention import BlockShape
from lit_sparse.kernels.gpu.triton_lists import Scores, bound_scores, list_marked, ranges_of
from lit_sparse.mappings import Entmax, LearnableEntmax, Sparsemax, TopKSparsemax
from lit_sparse.nn import LinearFenchelYoungLoss, attention
from lit_sparse.nn.attend import candidates
from lit_sparse.nn.lists import Lists, listed_products, listed_sums, sums_to_listed
from lit_sparse.nn.output_layer import losses as linear_losses
from lit_sparse.nn.output_layer import support as linear_support
from tests.support.processes import run_python
from tests.support.watched_memory import watched_memory

MODULE = "tests.kernels.gpu.test_triton_lists"
SMALL = BlockShape(32, 32, 4)


def exact_scores(scores: Scores) -> Tensor:
    """Return the scores (N, L, S) in float64, -inf where a pair is not allowed."""
    query, key, mask, bias, softcap, scale, is_causal, _ = scores
    x = query.double() @ key.double().repeat_interleave(len(query) // len(key), 0).mT * scale
    x = torch.tanh(x / softcap) * softcap if softcap else x
    x = x if bias is None else x + bias.double()
    if is_causal:
        x = x.masked_fill(~torch.ones_like(x[0], dtype=torch.bool).tril(), -torch.inf)
    return x if mask is None else x.masked_fill(~mask, -torch.inf)


def check_lists(device: str) -> None:
    """A list holds the whole support in increasing order, few keys more, and none that is not allowed."""

    def check(shape: tuple[int, int, int, int, int], alpha: float | list[float], gamma: float = 1.0, **options: Any) -> None:
        heads, shared, length, size, width = shape
        dtype = options.pop("dtype", torch.float32)
        spread = options.pop("spread", 1.0)
        query = (torch.randn(heads, length, width) * spread).to(device, dtype)
        key = torch.randn(shared, size, width).to(device, dtype)
        rest = {"mask": None, "bias": None, "softcap": 0.0, "scale": width**-0.5, "is_causal": False} | options
        scores = Scores(query, key, **rest)  # type: ignore[arg-type]
        alphas = torch.tensor(alpha, device=device) if isinstance(alpha, list) else alpha
        places, counts = list_marked(scores, bound_scores(scores, alphas, gamma), size)
        exact = exact_scores(scores)
        each = alpha if isinstance(alpha, list) else [alpha] * heads
        weights = torch.stack(
            [Entmax(a, gamma=gamma)(x.nan_to_num(), x > -torch.inf) for a, x in zip(each, exact, strict=True)]
        )
        marked = torch.zeros(heads * length, size + 1, dtype=torch.bool, device=device)
        listed = marked.scatter_(1, torch.where(places < 0, size, places).long(), True)[:, :size].view(weights.shape)
        assert bool((listed | (weights == 0)).all())
        assert not bool((listed & (exact == -torch.inf)).any())
        assert torch.equal(counts, listed.sum(-1).flatten().int())
        assert bool((torch.where(places < 0, size, places).diff(dim=1) >= 0).all())
        if max(each) <= 2:
            margin = (
                2 * triton_lists.ROUNDING[dtype] * rest["scale"] * float(query.norm(dim=-1).amax() * key.norm(dim=-1).amax())
            )
            assert float(counts.sum()) <= (1.1 + 2 * margin) * float((weights > 0).sum()) + 5
        short, same = list_marked(scores, bound_scores(scores, alphas, gamma), min(size, 2))
        assert torch.equal(same, counts)
        assert torch.equal(short, places[:, :2])
        if rest["mask"] is not None:
            ranges, whole = ranges_of(rest["mask"], length, rest["is_causal"])
            ranged = scores._replace(mask=None if whole else rest["mask"], is_causal=False, ranges=ranges)
            same, counted = list_marked(ranged, bound_scores(ranged, alphas, gamma), size)
            assert torch.equal(same, places)
            assert torch.equal(counted, counts)

    check((2, 1, 40, 70, 8), 2.0)
    check((2, 2, 40, 170, 8), 1.5, is_causal=True)
    check((4, 2, 33, 100, 20), 1.25, is_causal=True, gamma=0.5)
    check((2, 2, 70, 40, 20), 3.0)
    mask = (torch.rand(2, 33, 100) < 0.2).to(device)
    check((2, 2, 33, 100, 20), [1.3, 2.0], mask=mask)
    check((2, 2, 33, 100, 20), [0.6, 2.5], mask=mask.transpose(1, 2).contiguous().transpose(1, 2), is_causal=True)
    bias = torch.randn(1, 33, 100).to(device).expand(2, 33, 100)
    check((2, 2, 33, 100, 20), 1.5, mask=mask[:, :1].expand(2, 33, 100), bias=bias, softcap=2.0, is_causal=True)
    check((2, 2, 33, 100, 20), 2.0, bias=bias.to(torch.bfloat16), softcap=1.0, scale=3.0)
    for dtype in (torch.float16, torch.bfloat16):
        check((2, 2, 33, 200, 40), 1.5, dtype=dtype, gamma=0.5)
    check((1, 1, 5, 5, 3), 1.5, is_causal=True, spread=100.0)
    check((1, 1, 5, 200, 3), 1.5, spread=0.0)
    check((1, 1, 1, 1, 1), 2.0)


def sequences_of(*lengths: int) -> Tensor:
    """Return the mask (T, T) of packed sequences, which see themselves alone."""
    return torch.block_diag(*[torch.ones(length, length) for length in lengths]).bool()


def check_ranges(device: str) -> None:
    """Tiles outside packed sequences, padding or windows are not computed, and the lists are the same."""
    here, window = torch.arange(70, device=device), torch.ones(70, 70, dtype=torch.bool, device=device).tril()
    packed, padded = sequences_of(30, 3, 37).to(device), (here < 40)[None]
    for mask, is_causal, plain in (
        (packed, True, True),
        (packed, False, True),
        (padded.flip(-1), True, True),
        (window & ~window.tril(-20), False, True),
        (packed & (here % 7 > 0) & (here[:, None] % 5 > 0), True, False),
        (padded & ~padded, False, True),
    ):
        ranges, whole = ranges_of(mask, 70, is_causal)
        assert whole == plain
        mask = mask.expand(70, 70)
        allowed = mask.tril() if is_causal else mask
        key = torch.randn(1, 70, 8).to(device)
        scores = Scores(key, key, allowed[None], None, 0.0, 0.3, False)
        expected = list_marked(scores, bound_scores(scores, 1.5, 1.0), 40)
        scores = scores._replace(mask=None if whole else mask[None], ranges=ranges[None])
        tiles: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            if device == "cpu":
                for name in ("lists", "score_bounds"):
                    programs = importlib.import_module(f"lit_sparse.kernels.gpu.triton_programs.{name}")
                    tile = programs.score_tile
                    patch.setattr(programs, "score_tile", lambda *args, t=tile, c=tiles: c.append(1) or t(*args))
            found = list_marked(scores, bound_scores(scores, 1.5, 1.0), 40)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
        if device == "cpu":  # two passes over the blocks of 32 x 32 that are not empty
            blocks = F.pad(allowed, (0, 26, 0, 26)).view(3, 32, 3, 32).any(3).any(1)
            assert len(tiles) == 2 * int(blocks.sum())


def check_rounding(device: str) -> None:
    """Sums in another order, and factors cut to 10 bits, change products by less than the margin of the bounds."""
    query, key = torch.randn(1, 64, 64).to(device), torch.randn(1, 1024, 64).to(device)
    for dtype, rounding in triton_lists.ROUNDING.items():
        one, two = query.to(dtype), key.to(dtype)
        exact = one.double() @ two.double().mT
        norms = one.double().norm(dim=-1).unsqueeze(-1) * two.double().norm(dim=-1)
        if dtype == torch.float32:
            one, two = ((x.view(torch.int32) >> 13 << 13).view(torch.float32) for x in (one, two))
        products = one.float().unsqueeze(2) * two.float().unsqueeze(1)
        error = (products.flip(-1).cumsum(-1)[..., -1] - exact).abs()
        assert bool((error <= rounding * norms).all())


def check_margin(device: str) -> None:
    """A key with weight is listed if the errors of its product and of the largest one are as far apart as they can be."""
    for softcap, scale in ((0.0, 1.0), (1000.0, 2.0)):
        top, error = 8.0, 0.999 * 8.0 * triton_lists.ROUNDING[torch.float32]
        keys = torch.tensor([[0.0, 0.0], [top, top - 1 / scale + 1e-3]], device=device).unsqueeze(-1)
        above, below = (keys + torch.tensor([[0.0], [1.0]], device=device).unsqueeze(-1) * x for x in (error, -error))
        above[1, 1], below[1, 0] = keys[1, 1], keys[1, 0]
        scores = Scores(torch.ones(4, 1, 1, device=device), above, None, None, softcap, scale, False)
        _, counts = list_marked(scores._replace(key=below), bound_scores(scores, 2.0, 1.0), 2)
        assert counts.tolist() == [2] * 4


def check_invalid(device: str) -> None:
    for broken in (torch.nan, torch.inf):
        query, key = torch.randn(2, 40, 8).to(device), torch.randn(2, 70, 8).to(device)
        whole = Scores(query, key, None, None, 0.0, 0.3, False)
        expected, _ = list_marked(whole, bound_scores(whole, 1.5, 1.0), 8)
        query[1, 3, 2] = broken
        query[0, 5] = 0.0
        expected[5] = torch.arange(8)  # all keys are candidates
        places, counts = list_marked(whole, bound_scores(whole, 1.5, 1.0), 8)
        row = 40 + 3
        assert int(counts[row]) == 1
        assert int((places[row] >= 0).sum()) == 1
        places[row] = expected[row]
        assert torch.equal(places, expected)
        mask = torch.ones(2, 40, 70, dtype=torch.bool, device=device)
        mask[1, 3] = mask[:, :, 7] = False
        key[0, 7, 1] = broken  # masked for all
        hidden = whole._replace(mask=mask)
        places, counts = list_marked(hidden, bound_scores(hidden, 1.5, 1.0), 8)
        assert int(counts[row]) == 0
        assert bool((counts[torch.arange(80, device=device) != row] > 0).all())
        assert not bool((places == 7).any())


def check_operations(device: str) -> None:
    """Products, sums and scattered sums equal the operations on a CPU."""
    for count, capacity, blocks, size, width in ((37, 6, 2, 20, 19), (70, 2, 1, 3, 130), (64, 40, 4, 50, 16), (3, 0, 1, 4, 2)):
        places = torch.full((count, capacity), -1, dtype=torch.int32)
        for row in places:
            number = int(torch.randint(0, capacity + 1, ()))
            row[:number] = torch.randperm(size)[:number].sort().values.int()
        of_rows = torch.arange(count) * blocks // count
        weights = torch.randn(count, capacity, dtype=torch.float64) * (torch.rand(count, capacity) < 0.7)
        rows, matrix = torch.randn(count, width, dtype=torch.float64), torch.randn(blocks, size, width, dtype=torch.float64)
        matrix[0, 0] = torch.nan
        rows[-1] = torch.nan
        weights[places == 0] = weights[-1] = 0.0  # a weight of zero hides them
        for operation, first, second in (
            (listed_products, rows, matrix),
            (listed_sums, weights, matrix),
            (sums_to_listed, weights, rows),
        ):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(triton_rows, "DEVICES", [])
                expected = operation(first, second, Lists(places, of_rows, (blocks, size)))
            given = (first.to(device), second.to(device), Lists(places.to(device), of_rows.to(device), (blocks, size)))
            found = operation(*given).cpu()
            torch.testing.assert_close(found, expected, equal_nan=True)
            torch.testing.assert_close(
                operation(given[0].float(), given[1].float(), given[2]).cpu().double(),
                expected,
                rtol=1e-5,
                atol=1e-5,
                equal_nan=True,
            )


def check_attention(device: str) -> None:
    """Attention by lists equals dense attention, with all derivatives."""
    mask = (torch.rand(2, 33, 60) < 0.6).to(device)
    settings: list[tuple[Any, dict[str, Any]]] = [
        (Sparsemax(), {"is_causal": True}),
        (Entmax(1.5), {"mask": F.pad(sequences_of(20, 13), (0, 27)).to(device), "is_causal": True}),
        (TopKSparsemax(3), {"bias": torch.randn(33, 60).to(device).requires_grad_(), "softcap": 3.0}),
        (LearnableEntmax((4, 1, 1)).to(device), {"mask": mask.repeat_interleave(2, 0), "scale": -0.7}),
        (Sparsemax(), {"scale": 0.0}),
    ]
    for number, (mapping, options) in enumerate(settings):
        heads = 2 if number == 1 else 4
        given = [torch.randn(*shape).to(device).requires_grad_() for shape in ((heads, 33, 8), (2, 60, 8), (2, 60, 5))]
        leaves = [*given, *mapping.parameters(), *([options["bias"]] if "bias" in options else [])]
        results = []
        for method in ("sparse", "dense"):
            with pytest.MonkeyPatch.context() as patch:
                if method == "dense":
                    patch.setattr(triton_rows, "DEVICES", [])
                called: list[int] = []
                search = candidates.list_marked
                patch.setattr(candidates, "list_marked", lambda *args, s=search, c=called: c.append(1) or s(*args))
                output, weights = attention(*given, mapping, method=method, **options)
                assert bool(called) == (method == "sparse")
                assert weights is not None
                first = torch.autograd.grad(
                    output.square().sum(), leaves, create_graph=True, allow_unused=True, materialize_grads=True
                )
                second = torch.autograd.grad(
                    sum(x.square().sum() for x in first), leaves, allow_unused=True, materialize_grads=True
                )
                results.append((output, weights.to_dense(), *first, *second))
        torch.testing.assert_close(results[0], results[1], rtol=2e-4, atol=2e-4)


def check_output_layer(device: str) -> None:
    """The support of linear scores, with losses and gradients, equals the search by ranges of classes."""
    half = torch.bfloat16
    for features, number, classes, bias, mapping, dtype in (
        (300, 40, 70, True, Entmax(1.5, gamma=0.3), torch.float32),
        (20, 33, 40, False, Sparsemax(), torch.float32),
        (300, 33, 40, True, Sparsemax(), half),
    ):
        torch.manual_seed(features)
        layer = LinearFenchelYoungLoss(mapping, features, classes, bias).to(device, dtype)
        hidden, labels = torch.randn(number, features).to(device, dtype), torch.randint(classes, (number,)).to(device)
        hidden[3, 1] = torch.nan
        results = []
        for devices in (triton_rows.DEVICES, []):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(triton_rows, "DEVICES", devices)
                patch.setattr(linear_losses, "FEW", 0)
                patch.setattr(linear_support, "LEAST", classes)
                found: list[int] = []
                search = linear_support.list_marked
                patch.setattr(linear_support, "list_marked", lambda *args, s=search, f=found: f.append(1) or s(*args))
                leaf = hidden.clone().requires_grad_()
                loss = layer(leaf, labels)
                parts = layer.probabilities(hidden)
                keep = torch.arange(number, device=device) != 3
                slopes = torch.autograd.grad(layer(leaf[keep], labels[keep]), [leaf, *layer.parameters()])
                assert bool(found) == bool(devices)
                results.append((loss, *parts, *slopes))
        close = 2e-2 if dtype == half else 1e-4
        torch.testing.assert_close(results[0], results[1], rtol=close, atol=close / 10, equal_nan=True)


CHECKS: dict[str, Callable[[str], None]] = {
    "lists": check_lists,
    "ranges": check_ranges,
    "rounding": check_rounding,
    "margin": check_margin,
    "invalid": check_invalid,
    "operations": check_operations,
    "attention": check_attention,
    "output layer": check_output_layer,
}


LONG = ["lists", "output layer"]


@pytest.mark.gate
@pytest.mark.parametrize("names", [[name for name in CHECKS if name not in LONG], LONG], ids="; ".join)
def test_in_the_interpreter(names: list[str]) -> None:
    pytest.importorskip("triton")
    assert run_python("-m", MODULE, *names, TRITON_INTERPRET="1").split("\n")[:-1] == [f"{name}: holds" for name in names]


def products_of_variables(code: str) -> list[str]:
    """Return the lines of code of a front end that multiply, in 32 bits, what is not known when it is compiled."""
    known: set[str] = set()
    found = []
    for line in code.split("\n"):
        parts = re.match(r"\s*(%\w+) = ([\w.]+)(.*)", line)
        if parts is None:
            known = set() if "tt.func" in line else known
            continue
        name, operation, rest = parts.groups()
        operands = re.findall(r"%\w+", rest)
        if operation in ("arith.constant", "tt.make_range") or (operands and all(operand in known for operand in operands)):
            known.add(name)
        elif operation == "arith.muli" and re.search(r"[ x]i32\b", rest) and known.isdisjoint(operands):
            found.append(line)
    return found


@pytest.mark.gate
def test_offsets_have_64_bits() -> None:
    """Only a product with a number that is compiled in may have 32."""
    pytest.importorskip("triton", minversion="3.3")
    inspect = importlib.import_module("scripts.inspect_kernels")
    half = torch.bfloat16
    launches = [*inspect.attention_launches(half, 64, True, 90), *inspect.output_launches(half, 1024, 90)]
    for options in ({"biased": True}, {"packed": True}):
        launches += list(inspect.attention_launches(half, 64, False, 90, **options))[:3]
    launches += [launch for d in (1008, 40_000) for _, launch in inspect.row_launches(torch.float32, d, 90)]
    for launch in launches:
        code = inspect.code_of(getattr(inspect.triton_programs, launch.name), launch, 90)
        assert "arith.muli" in code
        assert products_of_variables(code) == [], launch.name


@pytest.mark.gate
def test_sizes_of_one_compile() -> None:
    """They are compiled in, which the interpreter does not do."""
    pytest.importorskip("triton", minversion="3.3")
    inspect = importlib.import_module("scripts.inspect_kernels")
    launches = [launch for d in (1, 16) for _, launch in inspect.row_launches(torch.float32, d, 90)]
    for heads, length, size in ((1, 1, 1), (1, 1, 300), (4, 300, 1)):
        query, key = (torch.empty(heads, n, 8, dtype=torch.half, device="meta") for n in (length, size))
        ranges = torch.empty(heads, length, 2, dtype=torch.int32, device="meta")
        for is_causal in (False, True):
            scores = Scores(query, key, None, None, 0.0, 0.3, is_causal, None if is_causal else ranges)
            options = triton_attention.BlockOptions(1.5, 1.0, 0.3, is_causal)
            attended = (query, query.new_empty(heads, 4, length), query.new_empty(heads, 5, 5, dtype=torch.int8))
            for call in (
                lambda s=scores: list_marked(s, bound_scores(s, 1.5, 1.0), 1),
                lambda q=query, k=key, o=options: triton_attention.attend(q, k, k, None, o),
                lambda q=query, k=key, o=options, a=attended: triton_attention.differentiate(q, a, q, k, k, None, o),
            ):
                launches += inspect.recorded(call, 90)
    for launch in launches:
        inspect.code_of(getattr(inspect.triton_programs, launch.name), launch, 90)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [64, 128, 256])
def test_passes_over_scores_compile_without_spills(width: int, dtype: torch.dtype, capability: int) -> None:
    """At the shapes of the package; both together take no more instructions a score than softmax attention."""
    pytest.importorskip("triton", minversion="3.3")  # whose compiler can be called like this
    inspect = importlib.import_module("scripts.inspect_kernels")
    for is_causal, biased, packed in ((False, False, False), (True, False, False), (True, True, False), (False, False, True)):
        passes = list(inspect.attention_launches(dtype, width, is_causal, capability, biased, packed))[:2]
        assert [launch.name for launch in passes] == ["bound_scores", "mark_scores"]
        counts = [inspect.compiled(getattr(inspect.triton_programs, one.name), one, capability) for one in passes]
        assert max(count.spills for count in counts) == 0, (is_causal, biased, packed)
        assert max(count.shared for count in counts) <= 99 << 10
        if dtype == torch.bfloat16 and width <= 128 and not biased:
            each = sum(map(inspect.score_loop, passes, counts))
            assert each <= inspect.best_flash(dtype, width, is_causal, capability)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_other_programs_compile(capability: int) -> None:
    """Rows and output layers without spills; attention in blocks, which has some in float32, at all."""
    pytest.importorskip("triton", minversion="3.3")
    inspect = importlib.import_module("scripts.inspect_kernels")
    blocks = list(inspect.attention_launches(torch.bfloat16, 64, False, capability))[6:]
    assert [launch.name for launch in blocks] == ["attend_blocks", "differentiate_queries", "differentiate_keys"]
    for launch in blocks:
        inspect.compiled(getattr(inspect.triton_programs, launch.name), launch, capability)
    for dtype in (torch.bfloat16, torch.float32):
        rows = [launch for _, launch in inspect.row_launches(dtype, 1024, capability)]
        assert len(rows) >= 15
        for launch in (*rows, *inspect.output_launches(dtype, 1024, capability)):
            assert inspect.compiled(getattr(inspect.triton_programs, launch.name), launch, capability).spills == 0, launch


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("name", CHECKS)
def test_on_each_gpu(name: str) -> None:
    pytest.importorskip("triton")
    for i in range(torch.cuda.device_count()):
        torch.manual_seed(0)
        CHECKS[name](f"cuda:{i}")


if __name__ == "__main__":
    triton_rows.DEVICES.append("cpu")
    triton_lists.MARKS, triton_lists.STEP = 1600, 2
    for kind in triton_lists.SHAPES:
        small = SMALL if kind == torch.float32 else SMALL._replace(columns=128)  # words of a tile are not in order
        triton_lists.SHAPES[kind] = triton_lists.MASKED[kind] = {256: small}
        triton_lists.WIDE[kind] = (small, 128)
    for choice in sys.argv[1:]:
        torch.manual_seed(0)
        with watched_memory():
            CHECKS[choice]("cpu")
        print(f"{choice}: holds")
