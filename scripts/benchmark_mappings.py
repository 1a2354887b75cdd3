"""Time each mapping, forward and backward, as a ratio to ``torch.softmax`` and to the ``entmax`` package.

Usage:
    python scripts/benchmark_mappings.py [--rounds 9] [--threads N] [--only sparsemax]

Every figure is a median over calls in one process; in each of several rounds the contestants take turns, so that a machine that
slows down slows all of them. Prints one markdown table.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import platform
import random
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from lit_sparse.mappings import functional as F

SHAPES = [(64, 50), (1024, 50), (4096, 256), (512, 1024), (256, 50000)]
Function = Callable[[Tensor], Tensor]


def contestants() -> dict[str, Function]:
    """Name every mapping and, where it is installed, its peer in the entmax package."""
    functions: dict[str, Function] = {
        "torch.softmax": lambda x: torch.softmax(x, -1),
        "softmax": F.softmax,
        "sparsemax": F.sparsemax,
        "topk_sparsemax(k=8)": lambda x: F.topk_sparsemax(x, 8),
    }
    try:
        import entmax
    except ImportError:
        print("The peer is missing; for its column: pip install 'lit-sparse[bench]'")
    else:
        functions["entmax: sparsemax"] = lambda x: entmax.sparsemax(x, dim=-1)
    return functions


def keep_memory() -> None:
    """Ask the C library to keep freed memory: whom it makes fetch pages anew otherwise is a matter of luck."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD


def calls_of(function: Function, x: Tensor, weights: Tensor, count: int) -> list[float]:
    """Return the seconds of each of ``count`` forward and backward passes."""
    seconds = []
    for _ in range(count):
        x.grad = None
        start = time.perf_counter()
        function(x).backward(weights)
        seconds.append(time.perf_counter() - start)
    return seconds


def measure(functions: dict[str, Function], shape: tuple[int, int], rounds: int) -> dict[str, float]:
    """Return the median seconds of a call of each contestant at one shape."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).requires_grad_()
    weights = torch.randn(shape, generator=generator)
    counts, seconds = {}, {}
    for name, function in functions.items():
        calls_of(function, x, weights, 2)  # warm up: compile, allocate
        counts[name] = max(3, int(0.05 / min(calls_of(function, x, weights, 3))))
        seconds[name] = []
    names, order = list(functions), random.Random(0)
    for _ in range(rounds):
        order.shuffle(names)  # nobody always follows the same neighbour, whose memory and waiting threads it inherits
        for name in names:
            seconds[name] += calls_of(functions[name], x, weights, counts[name])[1:]
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="rounds over all contestants")
    parser.add_argument("--threads", type=int, default=None, help="threads for torch and the kernels")
    parser.add_argument("--only", default="", help="measure only names that contain this, beside torch.softmax and peers")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    keep_memory()
    functions = {
        name: function
        for name, function in contestants().items()
        if options.only in name or name == "torch.softmax" or name.startswith("entmax")
    }
    print(
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, float32"
    )
    print("Forward + backward, median; `x softmax`: ratio to torch.softmax; `entmax x`: how much faster than entmax.\n")
    print("| shape | mapping | ms | x softmax | entmax x |")
    print("| --- | --- | ---: | ---: | ---: |")
    for shape in SHAPES:
        times = measure(functions, shape, options.rounds)
        for name, seconds in times.items():
            ratio = seconds / times["torch.softmax"]
            peer = times.get(f"entmax: {name}")
            faster = f"{peer / seconds:.1f}" if peer else ""
            print(f"| {shape} | {name} | {1e3 * seconds:.3f} | {ratio:.2f} | {faster} |", flush=True)


if __name__ == "__main__":
    main()
