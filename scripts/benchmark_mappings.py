"""Time each mapping, forward and backward, as a ratio to ``torch.softmax`` and to the ``entmax`` package.

Usage:
    python scripts/benchmark_mappings.py [--rounds 9] [--threads N] [--only sparsemax] [--shapes 64x50 4096x256]
    python scripts/benchmark_mappings.py --device cuda --dtype bfloat16 --shapes 65536x1024
    python scripts/benchmark_mappings.py --scaling

Every figure is a median over calls in one process; in each of several rounds the methods take turns, so that a machine that
slows down slows all of them. Prints one markdown table; with ``--wide`` a shorter one, of the ratios alone. ``--scaling``
compares rows of 100 with rows of a million entries instead, a million entries in all, on one thread.
"""

from __future__ import annotations

from timing import medians  # isort: skip

import argparse
import contextlib
import ctypes
import platform
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from lit_sparse.errors import install_command
from lit_sparse.mappings import functional as F

SHAPES = [(64, 50), (1024, 50), (4096, 256), (512, 1024), (256, 50000)]
TOTAL, SHORT = 1_000_000, 100  # entries in all, and entries of a short row, for --scaling
Function = Callable[[Tensor], Tensor]


def contestants(d: int) -> dict[str, Function]:
    """Name every mapping for rows of d entries and, where it is installed, its peer in the entmax package."""
    functions: dict[str, Function] = {
        "torch.softmax": lambda x: torch.softmax(x, -1),
        "softmax": F.softmax,
        "sparsemax": F.sparsemax,
        "topk_sparsemax(k=8)": lambda x: F.topk_sparsemax(x, 8),
        "entmax(1.5)": F.entmax,
        "entmax(1.25)": lambda x: F.entmax(x, 1.25),
        "entmax(1.75)": lambda x: F.entmax(x, 1.75),
        "sq_pnorm_max(1.5)": F.sq_pnorm_max,
        "sq_pnorm_max(1.25)": lambda x: F.sq_pnorm_max(x, 1.25),
        "fusedmax(0.1)": F.fusedmax,
        "fusedmax(0.5)": lambda x: F.fusedmax(x, 0.5),
        "oscarmax(0.01)": F.oscarmax,
        "capped_softmax(4/d)": lambda x: F.capped_softmax(x, min(0.5, 4 / d)),
        "hoyer_projection(0.75)": lambda x: F.hoyer_projection(x, 0.75),
        "hard_threshold(d/8)": lambda x: F.hard_threshold(x, max(1, d // 8)),
    }
    try:
        import entmax
    except ImportError:
        print(f"The peer is missing; for its column: {install_command('bench')}")
    else:
        functions["entmax: sparsemax"] = lambda x: entmax.sparsemax(x, dim=-1)
        functions["entmax: entmax(1.5)"] = lambda x: entmax.entmax15(x, dim=-1)
        functions["entmax: entmax(1.25)"] = lambda x: entmax.entmax_bisect(x, 1.25, dim=-1)
    return functions


def keep_memory() -> None:
    """Make the C library keep freed memory; otherwise page faults hit methods at random."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD


def measure(functions: dict[str, Function], x: Tensor, weights: Tensor | None, rounds: int) -> dict[str, float]:
    """Return the median seconds of a pass of each method, forward and, given weights for the result, backward."""

    def call(function: Function) -> None:
        x.grad = None
        if weights is None:
            with torch.no_grad():
                function(x)
        else:
            function(x).backward(weights)
        if x.is_cuda:
            torch.cuda.synchronize(x.device)

    return medians({name: partial(call, function) for name, function in functions.items()}, rounds, least=0.05)


def saved_bytes(function: Function, x: Tensor) -> float:
    """Return how many bytes an entry of x makes the graph keep for the backward pass."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(x)
    return sum(sizes.values()) / x.numel()


def scores(shape: tuple[int, int], device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return normal scores and weights."""
    generator = torch.Generator().manual_seed(0)
    x, weights = (torch.randn(shape, generator=generator).to(device, dtype) for _ in range(2))
    return x.requires_grad_(), weights


def compare(functions: dict[str, Function], shape: tuple[int, int], options: argparse.Namespace) -> dict[str, str]:
    """Print the rows of the table for one shape; return each method's ratios in short."""
    short = {}
    x, weights = scores(shape, options.device, getattr(torch, options.dtype))
    both = measure(functions, x, weights, options.rounds)
    forward = measure(functions, x, None, options.rounds)
    for name, seconds in both.items():
        ratio, only = seconds / both["torch.softmax"], forward[name] / forward["torch.softmax"]
        peer = both.get(f"entmax: {name}")
        faster = f"{peer / seconds:.1f}" if peer else ""
        saved = saved_bytes(functions[name], x)
        short[name] = f"{ratio:.1f} ({only:.1f})"
        if not options.wide:
            print(f"| {shape} | {name} | {1e3 * seconds:.3f} | {ratio:.2f} | {only:.2f} | {faster} | {saved:.0f} |", flush=True)
    return short


def scale(options: argparse.Namespace) -> None:
    """Print how the cost of an entry grows from short to long rows."""
    torch.set_num_threads(1)
    print("| mapping | ms, rows of 100 | ms, one row of 1,000,000 | ratio |\n| --- | ---: | ---: | ---: |")
    for name in contestants(SHORT):
        if options.only not in name or name.startswith("entmax:"):
            continue
        times = []
        for shape in ((TOTAL // SHORT, SHORT), (1, TOTAL)):
            function = contestants(shape[1])[name]
            x, weights = scores(shape, "cpu", torch.float32)
            times.append(measure({name: function}, x, weights, options.rounds)[name])
        print(f"| {name} | {1e3 * times[0]:.2f} | {1e3 * times[1]:.2f} | {times[1] / times[0]:.2f} |", flush=True)


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="rounds over all contestants")
    parser.add_argument("--threads", type=int, default=None, help="threads for torch and the kernels")
    parser.add_argument("--only", default="", help="measure only names that contain this, besides torch.softmax and peers")
    parser.add_argument("--shapes", nargs="*", default=[], help="shapes such as 4096x256")
    parser.add_argument("--device", default="cpu", help="where to run, cuda for example")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64", "bfloat16", "float16"])
    parser.add_argument("--wide", action="store_true", help="one row a mapping, one column a shape, of the ratios alone")
    parser.add_argument("--scaling", action="store_true", help="compare short with long rows instead")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    keep_memory()
    where = platform.processor() or platform.machine()
    if options.device != "cpu":
        where = torch.cuda.get_device_name(options.device)
    if options.scaling:
        print(f"{where}, 1 thread, torch {torch.__version__}, float32, forward + backward, median\n")
        scale(options)
        return
    print(f"{where}, {torch.get_num_threads()} threads, torch {torch.__version__}, {options.dtype}")
    if options.wide:
        print("Medians of the time of forward and backward over torch.softmax, and in parentheses of the forward pass alone.\n")
    else:
        print(
            "Medians. `ms` and `x softmax`: forward + backward, and its ratio to torch.softmax; `forward x`: the ratio of the"
        )
        print(
            "forward pass alone, `entmax x` the speed-up over entmax, `saved` the bytes per entry that are kept for backward.\n"
        )
        print("| shape | mapping | ms | x softmax | forward x | entmax x | saved |")
        print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    shapes = [tuple(map(int, text.split("x"))) for text in options.shapes] or SHAPES
    columns: list[dict[str, str]] = []
    for rows, d in shapes:
        functions = contestants(d)
        chosen = {
            name: function
            for name, function in functions.items()
            if options.only in name or name == "torch.softmax" or name.startswith("entmax:")
        }
        columns.append(compare(chosen, (rows, d), options))
    if options.wide:
        print(f"| mapping | {' | '.join(f'({rows}, {d})' for rows, d in shapes)} |\n| --- |{' ---: |' * len(shapes)}")
        for names in zip(*columns, strict=True):  # of d, in some
            if not names[0].startswith("entmax: "):
                print(f"| {names[0]} | {' | '.join(column[name] for column, name in zip(columns, names, strict=True))} |")


if __name__ == "__main__":
    main()
