"""Check and time attention on an NVIDIA GPU, within ten minutes.

    python scripts/benchmark_gpu.py [--tests 240] [--seconds 300] [--lengths 1024 4096 16384 65536]

First all tests that need a GPU run, for at most ``--tests`` seconds. Then the forward pass and a training step of attention
with 16 heads of 64 entries in bfloat16 are timed by events of CUDA, medians of eight calls: softmax by each back end of torch's
``scaled_dot_product_attention``, entmax with alpha 1.5 by lists, in blocks, and by the package ``adasplash`` where it is
installed. Each line has milliseconds and the peak of memory in MiB. Rows come in the order of their size, until ``--seconds``
are over. The last table has other block shapes for the lists.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from lit_sparse.kernels.gpu import triton_lists
from lit_sparse.kernels.gpu.triton_attention import BlockShape
from lit_sparse.mappings import Entmax
from lit_sparse.nn import attention

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


def timed(attend: Attend, given: list[Tensor], is_causal: bool) -> tuple[float, float, float]:
    """Return the milliseconds of the forward pass and of a training step, and MiB of memory of the step."""

    def forward() -> Tensor:
        with torch.no_grad():
            return attend(*given, is_causal)  # type: ignore[call-arg, arg-type]

    def step() -> None:
        torch.autograd.grad(attend(*given, is_causal).sum(), given)  # type: ignore[call-arg, arg-type]

    forward(), step()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    times = [(milliseconds(forward), milliseconds(step)) for _ in range(REPEATS)]
    return statistics.median(a for a, _ in times), statistics.median(b for _, b in times), peak


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


def main() -> None:
    """Run the tests and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tests", type=int, default=240, help="seconds for the tests, 0 to leave them out")
    parser.add_argument("--seconds", type=int, default=300, help="seconds for the tables")
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
                            forward, step, peak = timed(attend, given, is_causal)
                            print(f"{forward:.3f} | {step:.3f} | {peak:.0f} |", flush=True)
    print("\n| block | warps | stages | forward by lists with 4,096 keys, ms |\n| --- | ---: | ---: | ---: |")
    for rows, columns, warps, stages in SHAPES:
        shape = {torch.bfloat16: {WIDTH: BlockShape(rows, columns, warps, stages)}}
        with mock.patch.object(triton_lists, "SHAPES", shape), told():
            print(f"| {rows} x {columns} | {warps} | {stages} |", end=" ")
            print(f"{timed(by_lists, operands(4096, 1.0), False)[0]:.3f} |", flush=True)


if __name__ == "__main__":
    main()
