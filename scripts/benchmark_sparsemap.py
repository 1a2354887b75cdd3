"""Time SparseMAP: milliseconds a vector by structure, size and batch, and the k best bit vectors.

Usage:
    python scripts/benchmark_sparsemap.py [--threads 2] [--rounds 15] [--quick]

Scores are drawn from N(0, 1). Times are medians over rounds in which all cases take turns. The support is the number of
structures with probability, the gap the duality gap. Prints markdown tables.
"""

from __future__ import annotations

from timing import medians  # isort: skip

import argparse
import platform
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lit_sparse.mappings import functional as F
from lit_sparse.structures import Assignment, BitVector, Budget, Sequence, Structure, Tree

MAX_ITER = 2000


class Case(NamedTuple):
    """Method, with the number of vectors that one call maps."""

    name: str
    call: Callable[[], object]
    batch: int
    note: str = ""


def scores(batch: int, d: int, seed: int = 0) -> Tensor:
    """Return (batch, d) scores."""
    return torch.randn(batch, d, generator=torch.Generator().manual_seed(seed))


def support(structure: Structure, x: Tensor) -> str:
    """Return the mean and the largest size of the support, and the largest gap."""
    out = F.sparsemap(x.double(), structure, max_iter=MAX_ITER)
    sizes = (out.probs > 0).sum(-1).float()
    return f"{sizes.mean():.1f} | {int(sizes.max())} | {float(out.gap.max()):.0e}"


def backward(structure: Structure, x: Tensor) -> Callable[[], object]:
    """Return a call of the mapping and of the gradient of marginals and probabilities."""
    leaf = x.clone().requires_grad_()

    def call() -> object:
        out = F.sparsemap(leaf, structure, max_iter=MAX_ITER)
        return torch.autograd.grad(out.marginals.sum() + out.probs.square().sum(), leaf)

    return call


def measure(cases: list[Case], rounds: int) -> list[float]:
    """Return the median milliseconds a vector of each case."""
    found = medians({str(place): case.call for place, case in enumerate(cases)}, rounds)
    return [1e3 * seconds / case.batch for seconds, case in zip(found.values(), cases, strict=True)]


def compare(options: argparse.Namespace) -> None:
    """Print the table of structures."""
    structures: list[tuple[Structure, int]] = [
        (BitVector(32), 32),
        (Budget(32, 16), 32),
        (BitVector(128), 128),
        (Budget(128, 64), 128),
        (Sequence(30, tags=2), 60),
        (Sequence(30, tags=5), 150),
        (Assignment(10, 10), 100),
        (Assignment(30, 30), 900),
        (Tree(10), 100),
        (Tree(30), 900),
    ]
    if options.quick:
        structures = structures[:1]
    cases = []
    for structure, d in structures:
        x = scores(64, d)

        def call(x: Tensor = x, structure: Structure = structure) -> object:
            return F.sparsemap(x, structure, max_iter=MAX_ITER)

        cases += [Case(repr(structure), call, 64, support(structure, x)), Case("", backward(structure, x), 64)]
    times = measure(cases, options.rounds)
    print("\n| structure, batch 64 | forward, ms a vector | with backward | mean support | largest | largest gap |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for i in range(0, len(cases), 2):
        print(f"| `{cases[i].name}` | {times[i]:.3f} | {times[i + 1]:.3f} | {cases[i].note} |")


def scale(options: argparse.Namespace) -> None:
    """Print how the time of bit vectors grows with their length and the batch."""
    sizes = [(64, d) for d in (8, 16, 32, 64, 128, 256)] + [(b, 32) for b in (1, 16, 256, 1024)]
    if options.quick:
        sizes = sizes[:2]
    cases = []
    for batch, d in sizes:
        x = scores(batch, d)
        cases.append(Case(f"{batch} | {d}", lambda x=x: F.sparsemap(x, BitVector(), max_iter=MAX_ITER), batch))  # type: ignore[misc]
        cases.append(Case("", lambda x=x: BitVector().topk(x, 10), batch))  # type: ignore[misc]
    times = measure(cases, options.rounds)
    print("\n| batch | D | SparseMAP of bits, ms a vector | 10 best |")
    print("| ---: | ---: | ---: | ---: |")
    for i in range(0, len(cases), 2):
        print(f"| {cases[i].name} | {times[i]:.4f} | {times[i + 1]:.4f} |")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="the first cases alone")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {options.threads} threads")
    compare(options)
    scale(options)


if __name__ == "__main__":
    main()
