"""Check and time attention, mappings of rows and output layers on an NVIDIA GPU, within ten minutes.

    python scripts/benchmark_gpu.py [--tests 240] [--seconds 280] [--lengths 1024 4096 16384 65536]

First all tests that need a GPU run, for at most ``--tests`` seconds. Mappings of 4,096 rows of 1,024 scores follow, beside
softmax by torch and the package ``entmax`` where it is installed, then losses of 50,000 classes in bfloat16 beside ``linear``
and ``cross_entropy``. Then the forward pass and a training step of attention with 16 heads of 64 entries in bfloat16 are
timed by events of CUDA, medians of eight calls: softmax by each back end of torch's ``scaled_dot_product_attention``, entmax
with alpha 1.5 by lists, in blocks, and by the package ``adasplash`` where it is installed. Each line has milliseconds and the
peak of memory in MiB. Rows come in the order of their size, until ``--seconds`` are over. The last table has other block
shapes for the lists, for at most 30 seconds more.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention

from lit_sparse.kernels.gpu import triton_lists
from lit_sparse.kernels.gpu.triton_attention import BlockShape
from lit_sparse.mappings import (
    BudgetSparsemax,
    CappedSoftmax,
    Entmax,
    Fusedmax,
    HardThreshold,
    HoyerProjection,
    Oscarmax,
    SparseMAP,
    SparseMapping,
    Sparsemax,
    TopKSparsemax,
)
from lit_sparse.nn import LinearFenchelYoungLoss, attention
from lit_sparse.structures import BitVector, Budget

HEADS, WIDTH, REPEATS = 16, 64, 8
TESTS = ("kernels/gpu", "nn/attend", "nn/test_output_layer.py", "coresets/test_vectors.py")
BACK_ENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
#: Rows, columns, warps and stages of blocks.
SHAPES = ((128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3), (64, 128, 4, 3))

Attend = Callable[[Tensor, Tensor, Tensor, bool], Tensor]


def by_lists(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> Tensor:
    """Attend by lists; many candidates go to the blocks, as always."""
    return attention(query, key, value, Entmax(1.5), is_causal=is_causal, need_weights=False, method="sparse")[0]


def in_blocks(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> Tensor:
    """Attend in blocks."""
    with mock.patch.object(triton_lists, "SHAPES", {}):
        return by_lists(query, key, value, is_causal)


def methods() -> dict[str, Attend]:
    """Return what is timed, by name."""

    def softmax(back_end: SDPBackend) -> Attend:
        def attend(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> Tensor:
            with sdpa_kernel(back_end):
                return scaled_dot_product_attention(query, key, value, is_causal=is_causal)

        return attend

    found: dict[str, Attend] = {f"softmax, {name}": softmax(kind) for name, kind in BACK_ENDS.items()}
    found |= {"entmax by lists": by_lists, "entmax in blocks": in_blocks}
    try:
        from adasplash import adasplash
    except ImportError:
        print("adasplash is not installed.")
    else:
        found["entmax, adasplash"] = lambda query, key, value, is_causal: adasplash(
            query, key, value, alpha=1.5, is_causal=is_causal
        )
    return found


def milliseconds(call: Callable[[], Any]) -> float:
    """Return the time of a call on the GPU alone."""
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    call()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last)


def timed(call: Callable[[], Tensor], leaves: list[Tensor]) -> tuple[float, float, float]:
    """Return the milliseconds of the forward pass and of a training step, and MiB of memory of the step."""

    def forward() -> Tensor:
        with torch.no_grad():
            return call()

    def step() -> None:
        output = call()
        torch.autograd.grad(output, leaves, torch.ones_like(output))

    forward(), step()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    times = [(milliseconds(forward), milliseconds(step)) for _ in range(REPEATS)]
    return statistics.median(a for a, _ in times), statistics.median(b for _, b in times), peak


def of_rows(dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], Tensor], list[Tensor]]]:
    """Yield mappings of 4,096 rows of 1,024 scores: their names, calls and leaves."""
    x = torch.randn(4096, 1024, device="cuda").to(dtype).requires_grad_()
    yield "softmax, torch", lambda: x.softmax(-1), [x]
    mappings: list[SparseMapping] = [
        Sparsemax(), TopKSparsemax(8), Entmax(1.5), Entmax(1.7), CappedSoftmax(0.01), HoyerProjection(0.75), HardThreshold(128),
        BudgetSparsemax(8.0), SparseMAP(BitVector()), SparseMAP(Budget(1024, 8)), Fusedmax(0.1), Fusedmax(0.5), Oscarmax(0.01),
    ]  # fmt: skip
    for mapping in mappings:
        yield repr(mapping), lambda mapping=mapping: mapping(x), [x]  # type: ignore[misc]
    try:
        import entmax
    except ImportError:
        print("The package entmax is not installed.")
        return
    for name in ("sparsemax", "entmax15", "entmax_bisect"):
        yield f"{name}, package entmax", lambda name=name: getattr(entmax, name)(x, dim=-1), [x]  # type: ignore[misc]


def of_output_layers() -> Iterator[tuple[str, Callable[[], Tensor], list[Tensor]]]:
    """Yield losses of 4,096 vectors of 1,024 features and 50,000 classes, whose labels have high scores, as after training."""
    features, classes = 1024, 50_000
    labels = torch.randint(classes, (4096,), device="cuda")
    layer = LinearFenchelYoungLoss(Sparsemax(), features, classes).to("cuda", torch.bfloat16)
    with torch.no_grad():
        hidden = 10 * layer.weight[labels] / layer.weight.norm(dim=1).square().mean() + torch.randn(
            4096, features, device="cuda"
        )
    hidden = hidden.to(torch.bfloat16).requires_grad_()
    leaves = [hidden, *layer.parameters()]
    yield "linear + cross_entropy", lambda: cross_entropy(linear(hidden, layer.weight, layer.bias), labels), leaves
    for mapping in (Sparsemax(), Entmax(1.5)):
        other = LinearFenchelYoungLoss(mapping, features, classes).to("cuda", torch.bfloat16)
        other.load_state_dict(layer.state_dict())
        yield repr(mapping), lambda other=other: other(hidden, labels), [hidden, *other.parameters()]  # type: ignore[misc]


@contextmanager
def told() -> Iterator[None]:
    """Print an error of one method and go on."""
    try:
        yield
    except Exception as error:  # whatever another package raises
        print(f"{type(error).__name__}: {str(error).splitlines()[0]} |")


def operands(length: int, deviation: float) -> list[Tensor]:
    """Return queries, keys and values whose scores have a standard deviation."""
    shape = (1, HEADS, length, WIDTH)
    query, key, value = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    return [(query * deviation).requires_grad_(), key.requires_grad_(), value.requires_grad_()]


def print_calls(title: str, calls: Iterable[tuple[str, Callable[[], Tensor], list[Tensor]]], end: float) -> None:
    """Print a table of calls, until a time."""
    print(f"| {title} | forward, ms | training, ms | memory, MiB |\n| --- | ---: | ---: | ---: |")
    for name, call, leaves in calls:
        if time.monotonic() < end:
            print(f"| {name} |", end=" ")
            with told():
                forward, step, peak = timed(call, leaves)
                print(f"{forward:.3f} | {step:.3f} | {peak:.0f} |", flush=True)
    print()


def main() -> None:
    """Run the tests and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tests", type=int, default=240, help="seconds for the tests, 0 to leave them out")
    parser.add_argument("--seconds", type=int, default=280, help="seconds for the tables")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384, 65536])
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    if options.tests:
        tests = [str(Path(__file__).parents[1] / "tests" / name) for name in TESTS]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-k",
            "(gpu or cuda or device) and not interpreter",
            "-m",
            "not slow",
            *tests,
        ]
        try:
            subprocess.run(command, timeout=options.tests, check=False)
        except subprocess.TimeoutExpired:
            print(f"The tests took more than {options.tests} seconds.")
    end = time.monotonic() + options.seconds
    for dtype in (torch.float32, torch.bfloat16):
        print_calls(f"4,096 x 1,024, {str(dtype)[6:]}", of_rows(dtype), end)
    print_calls("50,000 classes", of_output_layers(), end)
    names = methods()
    print("| keys | causal | deviation | method | forward, ms | training, ms | memory, MiB |")
    print("| ---: | --- | ---: | --- | ---: | ---: | ---: |")
    for length in options.lengths:
        for deviation in (1.0, 0.3, 3.0):
            for is_causal in (False, True):
                given = operands(length, deviation)
                for name, attend in names.items():
                    if time.monotonic() < end:
                        print(f"| {length} | {is_causal} | {deviation} | {name} |", end=" ")
                        with told():
                            forward, step, peak = timed(partial(attend, *given, is_causal), given)
                            print(f"{forward:.3f} | {step:.3f} | {peak:.0f} |", flush=True)
    print("\n| block | warps | stages | forward by lists with 4,096 keys, ms |\n| --- | ---: | ---: | ---: |")
    end = max(end, time.monotonic()) + 30
    for rows, columns, warps, stages in SHAPES:
        if time.monotonic() > end:
            break
        shape = {torch.bfloat16: {WIDTH: BlockShape(rows, columns, warps, stages)}}
        with mock.patch.object(triton_lists, "SHAPES", shape), told():
            print(f"| {rows} x {columns} | {warps} | {stages} |", end=" ")
            given = operands(4096, 1.0)
            print(f"{timed(partial(by_lists, *given, False), given)[0]:.3f} |", flush=True)


if __name__ == "__main__":
    main()
